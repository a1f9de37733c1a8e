//! serde's reading of a [`Node`] tree, with errors that keep serde's details: the field, the known
//! names, and the path.

use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, Unexpected, Visitor};

use crate::validate::node::{Member, Node, Value};
use crate::validate::path::{Path, Segment};

/// A mistake and its path, innermost step first.
#[derive(Debug)]
pub(crate) struct DecodeError {
    fault: Fault,
    way: Vec<Segment>,
}

/// The kind of a mistake.
#[derive(Debug)]
pub(super) enum Fault {
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

    pub(super) fn into_parts(mut self) -> (Path, Fault) {
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
            "a boolean" => "true or false",
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

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Bool(b) => visitor.visit_bool(b),
            Value::Anything => visitor.visit_bool(false),
            _ => Err(Node::mismatch(&visitor)),
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
            _ => Err(DecodeError::wrong(a_mapping_with(known))),
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
        i128 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct
    }
}

/// Returns the description of a mapping with these fields, or with the first of many.
fn a_mapping_with(fields: &[&str]) -> String {
    const MOST: usize = 6;
    let names = fields[..fields.len().min(MOST)].join(", ");
    match fields.len() {
        0 => "a mapping".to_owned(),
        1 => format!("a mapping with the field {names}"),
        2..=MOST => format!("a mapping with the fields {names}"),
        _ => format!("a mapping with fields such as {names}"),
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
    entries: &'a [Member],
    next: usize,
    /// Fields of the struct that is read: `null` counts as absent for them, as in Kubernetes.
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
