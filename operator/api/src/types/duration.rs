//! Durations as the Gateway API writes them (GEP-2257): `1h30m`, `18ms`, `1s500ms`.
//!
//! A duration is one to four numbers with units. Numbers have one to five digits, and units are
//! `h`, `m`, `s` and `ms`. There are no fractions and no signs. This form is stricter than Go's or
//! systemd's durations, so that every tool reads the same text in the same way.

use std::fmt;
use std::time::Duration as Span;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A duration as in GEP-2257, such as `250ms` or `1m30s`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Duration(pub String);

impl Duration {
    /// Returns the length of the duration.
    ///
    /// # Errors
    /// Returns the mistake in the text and its correction.
    pub fn parse(&self) -> Result<Span, String> {
        parse(&self.0)
    }

    /// Returns the text of `us` µs, rounded down to whole milliseconds.
    pub fn of_micros(us: u64) -> Self {
        Span::from_micros(us).into()
    }

    /// Returns the length of the duration in `text`, an argument that must be more than 0.
    ///
    /// # Errors
    /// Returns the mistake in the text and its correction.
    pub fn above_zero(text: &str) -> Result<Span, String> {
        match parse(text) {
            Ok(Span::ZERO) => Err("must be more than 0".to_owned()),
            parsed => parsed,
        }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Span> for Duration {
    /// Returns the shortest text of `span`, rounded down to whole milliseconds; at most 99999h.
    fn from(span: Span) -> Self {
        let ms = span.as_millis().min(u128::from(MAX_HOURS) * 3_600_000);
        let parts = [
            (ms / 3_600_000, "h"),
            (ms / 60_000 % 60, "m"),
            (ms / 1000 % 60, "s"),
            (ms % 1000, "ms"),
        ];
        let text: String = parts
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, unit)| format!("{n}{unit}"))
            .collect();
        Self(if text.is_empty() {
            "0s".to_owned()
        } else {
            text
        })
    }
}

/// The largest number of five digits.
const MAX_HOURS: u32 = 99_999;

fn parse(text: &str) -> Result<Span, String> {
    let wrong = |problem: &str| Err(problem.to_owned());
    if text.is_empty() {
        return wrong("empty; a duration such as 18ms, 1s or 1m30s");
    }
    const FRACTION: &str = "fractions are not allowed; use a smaller unit, such as 1500ms for 1.5s";
    let mut rest = text;
    let mut total = Span::ZERO;
    let mut units = 0;
    while !rest.is_empty() {
        let (digits, after) = split(rest, |c| c.is_ascii_digit());
        if after.starts_with(['.', ',']) {
            return wrong(FRACTION);
        }
        if digits.is_empty() {
            return match after.starts_with(['+', '-']) {
                true => wrong("durations have no sign"),
                false => wrong(&format!(
                    "no number before {after:?}; a duration such as 18ms, 1s or 1m30s"
                )),
            };
        }
        let (unit, after) = split(after, |c| {
            !c.is_ascii_digit() && !matches!(c, '+' | '-' | '.' | ',')
        });
        let millis = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            "" => {
                let right = format!("write {digits}ms, {digits}s, {digits}m or {digits}h");
                return wrong(&format!("no unit after {digits}; {right}"));
            }
            _ => {
                return wrong(&format!("unknown unit {unit:?}; units are h, m, s and ms"));
            }
        };
        units += 1;
        if units > 4 {
            return wrong("more than 4 units; such as 1h30m20s500ms at most");
        }
        let number = match digits.parse::<u64>() {
            Ok(number) if digits.len() <= 5 => number,
            _ => {
                return wrong(&format!(
                    "{digits} has more than 5 digits; use a larger unit"
                ));
            }
        };
        // The sum is at most 4 * 99999 h, far below the largest possible span.
        total += Span::from_millis(number * millis);
        rest = after;
    }
    Ok(total)
}

/// Splits `text` before the first character for which `belongs` is false.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 18ms, 1s or 1m30s")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                Ok(Duration(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(text: &str) -> Result<u128, String> {
        Duration(text.into()).parse().map(|d| d.as_millis())
    }

    #[test]
    fn examples_of_the_gep() {
        // GEP-2257, section "Testing".
        for (text, expected) in [
            ("0h", 0),
            ("0s", 0),
            ("0h0m0s", 0),
            ("1h", 3_600_000),
            ("30m", 1_800_000),
            ("10s", 10_000),
            ("500ms", 500),
            ("2h30m", 9_000_000),
            ("150m", 9_000_000),
            ("7230s", 7_230_000),
            ("1h30m10s", 5_410_000),
            ("10s30m1h", 5_410_000),
            ("100ms200ms300ms", 600),
        ] {
            assert_eq!(ms(text), Ok(expected), "{text}");
        }
        for text in [
            "1",
            "1m1",
            "1h30m10s20ms50h",
            "999999h",
            "1.5h",
            "-15m",
            "",
            "1d",
            "ms",
            "1 s",
            "1s ",
            "+1s",
            "1s-1s",
            "１s",
            "1us",
            "5µs",
            "1H",
        ] {
            assert!(ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_say_what_would_be_right() {
        for (text, expected) in [
            ("18", "no unit after 18; write 18ms, 18s, 18m or 18h"),
            (
                "1.5s",
                "fractions are not allowed; use a smaller unit, such as 1500ms for 1.5s",
            ),
            ("18us", "unknown unit \"us\"; units are h, m, s and ms"),
            ("-1s", "durations have no sign"),
            (
                "100000ms",
                "100000 has more than 5 digits; use a larger unit",
            ),
            (
                "1h1m1s1ms1ms",
                "more than 4 units; such as 1h30m20s500ms at most",
            ),
            (
                "fast",
                "no number before \"fast\"; a duration such as 18ms, 1s or 1m30s",
            ),
            ("", "empty; a duration such as 18ms, 1s or 1m30s"),
        ] {
            assert_eq!(ms(text), Err(expected.to_owned()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn reads_what_it_writes(millis in 0..=u64::from(MAX_HOURS) * 3_600_000) {
            let text = Duration::from(Span::from_millis(millis));
            prop_assert_eq!(text.parse(), Ok(Span::from_millis(millis)));
        }

        #[test]
        fn accepts_exactly_the_gep_pattern(
            text in "[0-9]{0,6}(h|m|s|ms|us|)([0-9]{1,6}(h|m|s|ms)){0,4}",
        ) {
            // A hand-written match of GEP-2257's regular expression.
            let mut rest = text.as_str();
            let mut groups = 0;
            let valid = loop {
                let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
                let after = &rest[digits..];
                let unit = after.bytes().take_while(u8::is_ascii_alphabetic).count();
                if !(1..=5).contains(&digits) || !matches!(&after[..unit], "h" | "m" | "s" | "ms") {
                    break false;
                }
                groups += 1;
                rest = &after[unit..];
                if rest.is_empty() {
                    break groups <= 4;
                }
            };
            prop_assert_eq!(ms(&text).is_ok(), valid, "{}", text);
        }

        #[test]
        fn never_panics(text in "\\PC{0,12}") {
            let _ = ms(&text);
        }
    }
}
