//! Tests of the layout of records: names and types of all fields, and the bytes of an example.
//!
//! serde yields both from the type alone: `Filler` answers each call of its `Deserialize` with the
//! next number and records the call. For an enum it has the names of all variants, but the content
//! of the last one only. Bytes within a record are those of a histogram.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::Deserializer;
use serde::de::value::Error;
use serde::de::{DeserializeSeed, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};

use super::Record;

/// A histogram: the sum, the number of buckets, then each one's distance to the one before and its
/// count.
const HISTOGRAM: [u8; 6] = [9, 2, 3, 1, 4, 2];

/// Fails unless the layout of `T` is the one that was committed for its schema. Writes the layout
/// of a new schema.
pub(crate) fn check<T: Record>() {
    let schema = T::SCHEMA;
    let mut filler = Filler::default();
    let example = T::deserialize(&mut filler).unwrap();
    let mut bytes = Vec::new();
    super::encode(&example, &mut bytes);
    let mut layout = filler.layout;
    layout.push('\n');
    for byte in bytes {
        write!(layout, "{byte:02x}").unwrap();
    }
    layout.push('\n');
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../strategies/tests/record_layouts");
    let file = folder.join(format!("{schema}.txt"));
    let Ok(committed) = fs::read_to_string(&file) else {
        fs::write(&file, layout).unwrap();
        panic!("wrote {}; commit it", file.display());
    };
    assert_eq!(
        layout,
        committed,
        "{} is the layout of schema {schema} (the second one here). Give the record the next \
         number as its schema. If no release has schema {schema} yet, delete the file instead and \
         run this again.",
        file.display()
    );
}

#[derive(Default)]
struct Filler {
    layout: String,
    numbers: u8,
}

impl Filler {
    fn next(&mut self, asked: &str) -> u8 {
        self.layout.push_str(asked);
        self.numbers = self.numbers.wrapping_add(1);
        self.numbers
    }
}

/// The elements of a sequence, or the fields of a struct.
struct Elements<'a> {
    filler: &'a mut Filler,
    left: usize,
    fields: std::slice::Iter<'static, &'static str>,
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        if let Some(field) = self.fields.next() {
            write!(self.filler.layout, " {field}: ").unwrap();
        }
        let value = seed.deserialize(&mut *self.filler)?;
        self.filler.layout.push(',');
        Ok(Some(value))
    }
}

/// The only entry of a map, as long as it is `left`.
struct Entry<'a> {
    filler: &'a mut Filler,
    left: bool,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        if !std::mem::take(&mut self.left) {
            return Ok(None);
        }
        seed.deserialize(&mut *self.filler).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        self.filler.layout.push_str(" -> ");
        seed.deserialize(&mut *self.filler)
    }
}

/// The last variant of an enum.
struct Last<'a> {
    filler: &'a mut Filler,
    index: u32,
}

impl<'de> EnumAccess<'de> for Last<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        use serde::de::IntoDeserializer;
        Ok((seed.deserialize(self.index.into_deserializer())?, self))
    }
}

impl<'de> VariantAccess<'de> for Last<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.filler)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.filler.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.filler.deserialize_struct("", fields, visitor)
    }
}

macro_rules! numbers {
    ($($ask:ident $visit:ident $number:ident,)*) => {
        $(fn $ask<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit($number::from(self.next(stringify!($number))))
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Filler {
    type Error = Error;

    numbers! {
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
        deserialize_i64 visit_i64 i64,
        deserialize_f64 visit_f64 f64,
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.next("bool");
        visitor.visit_bool(true)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.layout.push_str("bytes");
        visitor.visit_borrowed_bytes(&HISTOGRAM)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.layout.push('?');
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        write!(self.layout, "{name} ").unwrap();
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.layout.push_str("any number of ");
        self.deserialize_tuple(1, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.layout.push('(');
        let value = visitor.visit_seq(Elements {
            filler: self,
            left: len,
            fields: [].iter(),
        })?;
        self.layout.push(')');
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.layout.push_str("map of ");
        visitor.visit_map(Entry {
            filler: self,
            left: true,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        write!(self.layout, "{name} {{").unwrap();
        let value = visitor.visit_seq(Elements {
            filler: self,
            left: fields.len(),
            fields: fields.iter(),
        })?;
        self.layout.push_str(" }");
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        write!(self.layout, "{name} {} ", variants.join(" | ")).unwrap();
        let index = variants.len() as u32 - 1;
        visitor.visit_enum(Last {
            filler: self,
            index,
        })
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(serde::de::Error::custom(
            "a type that no record had before: add it to this module",
        ))
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i128 u128 f32 char str string byte_buf unit unit_struct tuple_struct
        identifier ignored_any
    }
}
