//! Rows for programs: named values in a fixed order.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// A row: names and values, written in this order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Record(Vec<(Cow<'static, str>, Value)>);

/// A value of a [`Record`].
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number; one that is not finite is written as null.
    Number(f64),
    /// A whole number.
    Count(u64),
    /// A text.
    Text(String),
    /// A boolean.
    Flag(bool),
    /// No value, such as the response time of a type without served requests.
    Missing,
}

/// Precision of written numbers: one rejection in ten million requests, in percent, still differs
/// from none.
const DECIMALS: f64 = 1e6;

impl Record {
    /// Returns an empty row.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns this row with one more value at its end.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Self {
        self.0.push((name.into(), value.into()));
        self
    }

    /// Returns the value of the field `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
}

impl Value {
    /// Returns the number; `None` for a value that is not a number.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Count(count) => Some(*count as f64),
            Self::Text(_) | Self::Flag(_) | Self::Missing => None,
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Option<f64>> for Value {
    fn from(number: Option<f64>) -> Self {
        number.map_or(Self::Missing, Self::Number)
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) if number.is_finite() => {
                // Adding 0 turns -0.0 into 0.0, which has no sign.
                let rounded = (number * DECIMALS).round() / DECIMALS + 0.0;
                serializer.serialize_f64(if rounded.is_finite() {
                    rounded
                } else {
                    *number
                })
            }
            Self::Count(count) => serializer.serialize_u64(*count),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Number(_) | Self::Missing => serializer.serialize_none(),
        }
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_an_object_in_the_order_in_which_it_was_filled() {
        let row = Record::new()
            .with("z", 1.5)
            .with("a", "text")
            .with("missing", None)
            .with("tiny", 0.000_013_333)
            .with("nan", f64::NAN)
            .with("count", 3_u64)
            .with("zero", -1e-9)
            .with("flag", true);
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"z":1.5,"a":"text","missing":null,"tiny":0.000013,"nan":null,"count":3,"zero":0.0,"flag":true}"#
        );
        assert_eq!(row.get("count").and_then(Value::number), Some(3.0));
        assert_eq!(row.get("b"), None);
    }
}
