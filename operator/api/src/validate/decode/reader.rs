//! A serde deserializer for a [`Node`] tree. The deserializer's errors keep serde's details: the
//! field and the known names.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, Deserializer, IntoDeserializer, MapAccess, Unexpected, Visitor};

use crate::validate::node::{Member, Node, Value};

/// A mistake.
#[derive(Debug, thiserror::Error)]
#[error("not valid for its type")]
pub(crate) enum Fault {
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
    /// The expected value.
    Wrong(String),
}

impl Fault {
    fn wrong(expected: impl Into<String>) -> Self {
        Self::Wrong(expected.into())
    }
}

impl de::Error for Fault {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::wrong(message.to_string())
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
        Self::UnknownVariant {
            variant: variant.to_owned(),
            expected,
        }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::UnknownField {
            field: field.to_owned(),
            expected,
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing { field }
    }
}

impl Node {
    fn integer(&self) -> Result<i64, Fault> {
        match self.value {
            Value::Int(n) => i64::try_from(n).map_err(|_| Fault::wrong("a smaller whole number")),
            Value::Anything => Ok(0),
            _ => Err(Fault::wrong("a whole number")),
        }
    }

    fn mismatch<'de, V: Visitor<'de>>(visitor: &V) -> Fault {
        de::Error::invalid_type(Unexpected::Unit, visitor)
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            visitor.visit_i64(self.integer()?)
        }
    )*};
}

macro_rules! texts {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match &self.value {
                Value::Text(text) => visitor.visit_str(text),
                Value::Anything => visitor.visit_str(""),
                _ => Err(Node::mismatch(&visitor)),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for &Node {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.value {
            Value::Null | Value::Anything => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Int(_) => visitor.visit_i64(self.integer()?),
            Value::Float(n) => visitor.visit_f64(*n),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Value::Map(entries) => visitor.visit_map(fields(entries, &[])),
        }
    }

    integers! { deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
    deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 }

    texts! { deserialize_str deserialize_string deserialize_identifier }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Float(n) => visitor.visit_f64(n),
            Value::Int(_) | Value::Anything => visitor.visit_i64(self.integer()?),
            _ => Err(Fault::wrong("a number")),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Bool(b) => visitor.visit_bool(b),
            Value::Anything => visitor.visit_bool(false),
            _ => Err(Node::mismatch(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let items: &[Node] = match &self.value {
            Value::List(items) => items,
            Value::Anything => &[],
            _ => return Err(Node::mismatch(&visitor)),
        };
        visitor.visit_seq(SeqDeserializer::new(items.iter()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_struct("", &[], visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let members: &[Member] = match &self.value {
            Value::Map(members) => members,
            Value::Anything => &[],
            _ => return Err(Fault::wrong(a_mapping_with(known))),
        };
        visitor.visit_map(fields(members, known))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let name = match (&self.value, variants.first()) {
            (Value::Text(text), _) => text.as_str(),
            (Value::Anything, Some(first)) => first,
            _ => {
                return Err(Fault::wrong(format!("one of {}", variants.join(", "))));
            }
        };
        visitor.visit_enum(name.into_deserializer())
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
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

impl<'de> IntoDeserializer<'de, Fault> for &Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Returns the fields of a mapping. For the fields of a struct, which are `known`, null counts as
/// absent, as in Kubernetes.
fn fields<'a, 'de>(
    members: &'a [Member],
    known: &'static [&'static str],
) -> impl MapAccess<'de, Error = Fault> + use<'a, 'de> {
    let is_given =
        move |m: &&Member| m.node.value != Value::Null || !known.contains(&m.key.as_str());
    let given = members.iter().filter(is_given);
    MapDeserializer::new(given.map(|m| (m.key.as_str(), &m.node)))
}
