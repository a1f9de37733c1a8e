//! Machine-readable rows: named values in a fixed order.

use std::borrow::Cow;

use serde::ser::{Serialize, Serializer};
use serde_json::Value;

/// A row: names and values in a fixed order. A number that is not finite is written as null, as is
/// a missing value, such as the response time of a type without served requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReportRow(Vec<(Cow<'static, str>, Value)>);

/// The precision of numbers with a fraction. One rejection in ten million requests, in percent,
/// must still differ from 0.
const DECIMALS: f64 = 1e6;

impl ReportRow {
    /// Returns an empty row.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns this row with one more value at the end.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Self {
        let mut value = value.into();
        if let Some(number) = value.as_f64().filter(|_| value.is_f64()) {
            // Adding 0 turns -0.0 into 0.0, which has no sign.
            let rounded = (number * DECIMALS).round() / DECIMALS + 0.0;
            value = if rounded.is_finite() { rounded } else { number }.into();
        }
        self.0.push((name.into(), value));
        self
    }

    /// Returns the value of the field `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
}

impl Serialize for ReportRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_an_object_in_the_order_in_which_it_was_filled() {
        let row = ReportRow::new()
            .with("z", 1.5)
            .with("a", "text")
            .with("missing", None::<f64>)
            .with("tiny", 0.000_013_333)
            .with("nan", f64::NAN)
            .with("count", 3_u64)
            .with("zero", -1e-9)
            .with("flag", true);
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"z":1.5,"a":"text","missing":null,"tiny":0.000013,"nan":null,"count":3,"zero":0.0,"flag":true}"#
        );
        assert_eq!(row.get("count").and_then(Value::as_f64), Some(3.0));
        assert_eq!(row.get("b"), None);
    }
}
