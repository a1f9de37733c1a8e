//! From a [`Node`] tree to the API's types, with all mistakes and not only the first.
//!
//! serde ends at the first mistake. So the tree is mended there and read again, until it reads: a
//! misspelt name becomes the one that was meant, an unusable value becomes [`Value::Anything`], which
//! reads as whatever is asked for. Each round gives one problem. The policy that comes out serves only to
//! look for further mistakes; fields that were mended are left out of that ([`Decoded::mended`]).

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, Unexpected, Visitor,
};

use super::node::{Entry, Node, Position, Value};
use super::path::{Path, Segment};
use super::suggest::{closest, instead_of};

/// Most mistakes of one document that are looked for; each costs one more reading.
const MAX_PROBLEMS: usize = 100;

/// What a document reads as.
pub(crate) struct Decoded<T> {
    /// The value, unless there are too many mistakes.
    pub(crate) value: Option<T>,
    /// Every mistake: the field, where it stands and what is wrong.
    pub(crate) problems: Vec<(Path, Position, String)>,
    /// Fields whose values are made up.
    pub(crate) mended: Vec<Path>,
}

/// Reads `document`, mending it where it must.
pub(crate) fn decode<T: DeserializeOwned>(document: &mut Node) -> Decoded<T> {
    let (mut problems, mut mended) = (Vec::new(), Vec::new());
    while problems.len() < MAX_PROBLEMS {
        let error = match T::deserialize(&*document) {
            Ok(value) => {
                return Decoded {
                    value: Some(value),
                    problems,
                    mended,
                };
            }
            Err(error) => error,
        };
        let (path, fault) = error.into_parts();
        let place = document.position(&path);
        let Some(node) = document.find_mut(path.segments()) else {
            problems.push((path, document.at, "not readable".to_owned()));
            break;
        };
        let made_up = |field: &Path| mended.iter().any(|m| field.is_within(m));
        let mut at = path.clone();
        // Before mending, which may take the field away.
        let mut position = place;
        let message = match fault {
            Fault::UnknownField { field, expected } => {
                at = path.key(&field);
                position = node.position(&Path::default().key(&field));
                rename_or_remove(node, &field, expected);
                format!(
                    "unknown field; {}",
                    instead_of(&field, expected.iter().copied())
                )
            }
            Fault::UnknownVariant { variant, expected } => {
                let meant = closest(&variant, expected.iter().copied());
                node.value = meant.map_or(Value::Anything, |name| Value::Text(name.to_owned()));
                let message = format!(
                    "{variant:?}; {}",
                    instead_of(&variant, expected.iter().copied())
                );
                if meant.is_none() && !made_up(&at) {
                    mended.push(at.clone());
                }
                message
            }
            Fault::Missing { field } => {
                at = path.key(field);
                let known = made_up(&at);
                insert_anything(node, field);
                if known {
                    continue;
                }
                mended.push(at.clone());
                format!("missing; {}", example(field))
            }
            Fault::Wrong { expected } => {
                let quote = matches!(node.value, Value::Bool(_) | Value::Int(_) | Value::Float(_))
                    && expected == "a string";
                let quote = if quote { " (put it in quotes)" } else { "" };
                let message = format!("{}; {expected}{quote}", node.describe());
                node.value = Value::Anything;
                mended.push(at.clone());
                message
            }
            Fault::Other(message) => {
                let message = format!("{}; {message}", node.describe());
                node.value = Value::Anything;
                mended.push(at.clone());
                message
            }
        };
        problems.push((at, position, message));
    }
    Decoded {
        value: None,
        problems,
        mended,
    }
}

/// What a missing field would look like.
fn example(field: &str) -> &'static str {
    match field {
        "apiVersion" => "headgate.dev/v1alpha1",
        "kind" => "AdmissionPolicy, Service or whatever it is",
        "metadata" => "such as {name: search, namespace: default}",
        "name" => "every object, type and header has a name",
        "spec" => "targetRefs, parallelism and types",
        "targetRefs" => "such as [{group: \"\", kind: Service, name: search}]",
        "parallelism" => "how many requests the backend works on at once, such as {total: 20}",
        "types" => {
            "at least one, named default, such as [{name: default, slo: {p50: 18ms, p90: 50ms}}]"
        }
        "value" => "the text to compare with",
        "type" => "AcceptanceAllowance or HelpingTheUnderserved",
        _ => "it has to be given",
    }
}

fn rename_or_remove(node: &mut Node, field: &str, expected: &[&str]) {
    let meant = closest(field, expected.iter().copied()).filter(|m| node.get(m).is_none());
    let Value::Map(entries) = &mut node.value else {
        return;
    };
    match (meant, entries.iter_mut().find(|e| e.key == field)) {
        (Some(meant), Some(entry)) => meant.clone_into(&mut entry.key),
        _ => entries.retain(|e| e.key != field),
    }
}

fn insert_anything(node: &mut Node, field: &str) {
    let at = node.at;
    let entry = Entry {
        key: field.to_owned(),
        at,
        node: Node {
            at,
            value: Value::Anything,
        },
    };
    match &mut node.value {
        Value::Map(entries) => {
            entries.retain(|e| e.key != field);
            entries.push(entry);
        }
        other => *other = Value::Map(vec![entry]),
    }
}

/// A mistake and the way to it, innermost step first.
#[derive(Debug)]
pub(crate) struct DecodeError {
    fault: Fault,
    way: Vec<Segment>,
}

#[derive(Debug)]
enum Fault {
    UnknownField {
        field: String,
        expected: &'static [&'static str],
    },
    UnknownVariant {
        variant: String,
        expected: &'static [&'static str],
    },
    Missing {
        field: &'static str,
    },
    Wrong {
        expected: String,
    },
    Other(String),
}

impl DecodeError {
    fn below(mut self, segment: Segment) -> Self {
        self.way.push(segment);
        self
    }

    fn into_parts(mut self) -> (Path, Fault) {
        self.way.reverse();
        (Path::new(self.way), self.fault)
    }

    fn wrong(expected: impl Into<String>) -> Self {
        Fault::Wrong {
            expected: expected.into(),
        }
        .into()
    }
}

impl From<Fault> for DecodeError {
    fn from(fault: Fault) -> Self {
        Self {
            fault,
            way: Vec::new(),
        }
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

impl std::error::Error for DecodeError {}

impl de::Error for DecodeError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Fault::Other(message.to_string()).into()
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::wrong(match expected.to_string().as_str() {
            "a sequence" => "a list",
            "a map" => "a mapping",
            other => other,
        })
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Fault::UnknownVariant {
            variant: variant.to_owned(),
            expected,
        }
        .into()
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Fault::UnknownField {
            field: field.to_owned(),
            expected,
        }
        .into()
    }

    fn missing_field(field: &'static str) -> Self {
        Fault::Missing { field }.into()
    }
}

impl Node {
    fn integer(&self) -> Result<i64, DecodeError> {
        match self.value {
            Value::Int(n) => {
                i64::try_from(n).map_err(|_| DecodeError::wrong("a smaller whole number"))
            }
            Value::Anything => Ok(0),
            _ => Err(DecodeError::wrong("a whole number")),
        }
    }

    fn mismatch<'de, V: Visitor<'de>>(visitor: &V) -> DecodeError {
        de::Error::invalid_type(Unexpected::Unit, visitor)
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            visitor.visit_i64(self.integer()?)
        }
    )*};
}

macro_rules! texts {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            match &self.value {
                Value::Text(text) => visitor.visit_str(text),
                Value::Anything => visitor.visit_str(""),
                _ => Err(Node::mismatch(&visitor)),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for &Node {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.value {
            Value::Null | Value::Anything => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Int(_) => visitor.visit_i64(self.integer()?),
            Value::Float(n) => visitor.visit_f64(*n),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => visitor.visit_seq(Items { items, next: 0 }),
            Value::Map(entries) => visitor.visit_map(Fields {
                entries,
                next: 0,
                known: &[],
            }),
        }
    }

    integers! { deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
    deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 }

    texts! { deserialize_str deserialize_string deserialize_identifier }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Float(n) => visitor.visit_f64(n),
            Value::Int(_) | Value::Anything => visitor.visit_i64(self.integer()?),
            _ => Err(DecodeError::wrong("a number")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.value {
            Value::List(items) => visitor.visit_seq(Items { items, next: 0 }),
            Value::Anything => visitor.visit_seq(Items {
                items: &[],
                next: 0,
            }),
            _ => Err(Node::mismatch(&visitor)),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_struct("", &[], visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match &self.value {
            Value::Map(entries) => visitor.visit_map(Fields {
                entries,
                next: 0,
                known,
            }),
            Value::Anything => visitor.visit_map(Fields {
                entries: &[],
                next: 0,
                known,
            }),
            _ => Err(Node::mismatch(&visitor)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let name = match (&self.value, variants.first()) {
            (Value::Text(text), _) => text.as_str(),
            (Value::Anything, Some(first)) => first,
            _ => {
                return Err(DecodeError::wrong(format!(
                    "one of {}",
                    variants.join(", ")
                )));
            }
        };
        visitor.visit_enum(name.into_deserializer())
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct
    }
}

struct Items<'a> {
    items: &'a [Node],
    next: usize,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some(item) = self.items.get(self.next) else {
            return Ok(None);
        };
        let index = self.next;
        self.next += 1;
        seed.deserialize(item)
            .map(Some)
            .map_err(|e| e.below(Segment::Item(index)))
    }
}

struct Fields<'a> {
    entries: &'a [Entry],
    next: usize,
    /// Fields of the struct that is read: `null` is as good as absent for them, as in Kubernetes.
    known: &'static [&'static str],
}

impl<'de> de::MapAccess<'de> for Fields<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        while let Some(entry) = self.entries.get(self.next) {
            if entry.node.value == Value::Null && self.known.contains(&entry.key.as_str()) {
                self.next += 1;
                continue;
            }
            return seed
                .deserialize(entry.key.as_str().into_deserializer())
                .map(Some);
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DecodeError> {
        let Some(entry) = self.entries.get(self.next) else {
            return Err(de::Error::custom("no value after the last field"));
        };
        self.next += 1;
        seed.deserialize(&entry.node)
            .map_err(|e| e.below(Segment::Field(entry.key.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AdmissionPolicy;
    use crate::validate::node;

    fn decoded(yaml: &str) -> Decoded<AdmissionPolicy> {
        decode(&mut node::parse(yaml).unwrap().remove(0))
    }

    fn problems(yaml: &str) -> Vec<String> {
        decoded(yaml)
            .problems
            .into_iter()
            .map(|(path, _, message)| format!("{path}: {message}"))
            .collect()
    }

    #[test]
    fn every_mistake_is_found_in_one_go() {
        let found = problems(
            "apiVersion: 1\nkind: AdmissionPolicy\nmetadata: {nam: x}\nspec:\n  mod: Enforc\n  \
             parallelism: many\n  extra: 1\n  types:\n  - {name: a, matches: {}}\n  - 7\n",
        );
        assert_eq!(
            found,
            [
                "apiVersion: 1; a string (put it in quotes)",
                "metadata.nam: unknown field; did you mean \"name\"?",
                "spec.mod: unknown field; did you mean \"mode\"?",
                "spec.mode: \"Enforc\"; did you mean \"Enforce\"?",
                "spec.parallelism: \"many\"; a mapping with total or perEndpoint",
                "spec.extra: unknown field; one of targetRefs, mode, parallelism, measure, queue, \
                 strategy, types, exclude",
                "spec.types[0].matches: a mapping; a list",
                "spec.types[1]: 7; a mapping with name, matches and slo",
                "spec.targetRefs: missing; such as [{group: \"\", kind: Service, name: search}]",
            ]
        );
    }

    #[test]
    fn null_is_as_good_as_absent() {
        let yaml = "apiVersion: v\nkind: k\nmetadata: {name: x, labels: null}\nspec: {targetRefs: [], \
                    mode: null, queue: ~, parallelism: {total: null}, types: []}\n";
        let decoded = decoded(yaml);
        assert_eq!(decoded.problems, []);
        assert_eq!(decoded.value.unwrap().spec.parallelism.total, None);
        assert_eq!(
            problems(&yaml.replace("types: []", "types: null")),
            [
                "spec.types: missing; at least one, named default, such as [{name: default, slo: {p50: \
              18ms, p90: 50ms}}]"
            ]
        );
    }

    #[test]
    fn anything_at_all_ends_in_problems() {
        for yaml in ["7", "[]", "a: {b: [c]}", "text", "{}", "? [a]\n: b"] {
            if let Ok(mut documents) = node::parse(yaml) {
                assert_ne!(
                    decode::<AdmissionPolicy>(&mut documents.remove(0)).problems,
                    [],
                    "{yaml}"
                );
            }
        }
    }
}
