//! Times in files: `1.16ms`, `380us`, `2s`, `1m30s`.
//!
//! A policy's durations have no fractions (GEP-2257). Service times may have fractions, because a
//! mean is measured rather than chosen.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// The text of a time; [`Time::ms`] parses it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Time(pub String);

/// The description of a valid time, in messages.
const RIGHT: &str = "a time such as 1.16ms, 2s or 1m30s";

impl Time {
    /// Returns the time in ms.
    ///
    /// # Errors
    /// The mistake in the text, or a valid form.
    pub fn ms(&self) -> Result<f64, String> {
        let mut rest = self.0.as_str();
        let mut total = 0.0;
        if rest.is_empty() {
            return Err(RIGHT.to_owned());
        }
        while !rest.is_empty() {
            if rest.starts_with(['-', '+']) {
                return Err("times have no sign".to_owned());
            }
            let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
            let Ok(value) = number.parse::<f64>() else {
                return Err(RIGHT.to_owned());
            };
            let (unit, after) = split(after, |c| !c.is_ascii_digit() && !"+-.".contains(c));
            total += value
                * match unit {
                    "h" => 3_600_000.0,
                    "m" => 60_000.0,
                    "s" => 1_000.0,
                    "ms" => 1.0,
                    "us" | "µs" => 0.001,
                    "" => {
                        return Err(format!(
                            "no unit after {number}; write {number}ms or {number}s"
                        ));
                    }
                    _ => {
                        let known = "units are h, m, s, ms and us";
                        return Err(format!("unknown unit {unit:?}; {known}"));
                    }
                };
            rest = after;
        }
        Ok(total)
    }
}

/// Splits `text` before the first character for which `belongs` is false.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(RIGHT)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                Ok(Time(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> Result<f64, String> {
        Time(text.into()).ms()
    }

    #[test]
    fn times_are_read() {
        for (text, expected) in [
            ("1.16ms", 1.16),
            ("380us", 0.38),
            ("380µs", 0.38),
            ("2s", 2_000.0),
            ("1m30s", 90_000.0),
            ("1s500ms", 1_500.0),
            ("0.5h", 1_800_000.0),
            ("0ms", 0.0),
        ] {
            assert!((ms(text).unwrap() - expected).abs() < 1e-9, "{text}");
        }
    }

    #[test]
    fn errors_say_what_would_be_right() {
        for (text, expected) in [
            ("", "a time such as 1.16ms, 2s or 1m30s"),
            ("fast", "a time such as 1.16ms, 2s or 1m30s"),
            ("1.2.3ms", "a time such as 1.16ms, 2s or 1m30s"),
            ("18", "no unit after 18; write 18ms or 18s"),
            ("18d", "unknown unit \"d\"; units are h, m, s, ms and us"),
            ("1 ms", "unknown unit \" ms\"; units are h, m, s, ms and us"),
            ("-1s", "times have no sign"),
        ] {
            assert_eq!(ms(text), Err(expected.to_owned()), "{text}");
        }
    }
}
