//! The progress of a request's call tree, as reported by its callers (Wisp §4.2, Table 2).
//!
//! The progress is in one header, a dictionary of RFC 9651 whose numbers are milliseconds:
//!
//! ```text
//! x-headgate-progress: elapsed=12.5, total=40, work=12.5, total-work=55, age=20
//! ```
//!
//! Unknown members are skipped, because later versions may have them. An invalid header is ignored,
//! because progress only affects order and is never a reason to refuse.

use std::time::Duration;

use headgate_strategies::request::Progress;

use crate::classify::RequestView;

/// The name of the header.
pub const HEADER: &str = "x-headgate-progress";

/// Returns the progress in the header of `request`, or an unknown progress without a valid header.
pub fn progress(request: &impl RequestView) -> Progress {
    request
        .header(HEADER)
        .and_then(|value| std::str::from_utf8(value).ok())
        .and_then(parse)
        .unwrap_or_default()
}

/// Parses the header's value. Returns `None` if the value is invalid.
pub fn parse(dictionary: &str) -> Option<Progress> {
    let mut progress = Progress::default();
    for (key, value) in members(dictionary) {
        match key {
            "" => return None,
            // A key without a value is a boolean, but these members are numbers.
            "elapsed" => progress.elapsed = millis(value)?,
            "total" => progress.total = Some(millis(value)?),
            "work" => progress.work = millis(value)?,
            "total-work" => progress.total_work = Some(millis(value)?),
            "age" => progress.age = millis(value)?,
            _ => {}
        }
    }
    Some(progress)
}

/// Yields the keys and values of a dictionary. The value of a key without a value is empty. The
/// parameters of values are left out, because none of Headgate's members has parameters.
pub fn members(dictionary: &str) -> impl Iterator<Item = (&str, &str)> {
    dictionary.split(',').map(|member| {
        let member = member.trim_matches([' ', '\t']);
        let (key, value) = member.split_once('=').unwrap_or((member, ""));
        (key, value.split_once(';').map_or(value, |(value, _)| value))
    })
}

/// Parses a decimal of RFC 9651 as milliseconds. It must not be negative, and must have at most 12
/// digits before the point and 3 after it.
pub fn millis(decimal: &str) -> Option<Duration> {
    let digits = |s: &str, most| {
        (1..=most).contains(&s.len()) && s.bytes().all(|byte| byte.is_ascii_digit())
    };
    let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, "0"));
    if !digits(whole, 12) || !digits(fraction, 3) {
        return None;
    }
    let unit_us = 10_u64.pow(3 - fraction.len() as u32);
    let micros = fraction.parse::<u64>().ok()? * unit_us;
    Some(Duration::from_millis(whole.parse().ok()?) + Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_dictionary_of_milliseconds() {
        let us = Duration::from_micros;
        let known =
            parse("elapsed=12.5, total=40,\twork=0.25;x=1, total-work=55.125, age=7").unwrap();
        assert_eq!(
            known,
            Progress {
                elapsed: us(12_500),
                total: Some(us(40_000)),
                work: us(250),
                total_work: Some(us(55_125)),
                age: us(7_000),
            }
        );
        let some = parse("elapsed=3, hops=2, retried, cached;by=cdn").unwrap();
        assert_eq!((some.elapsed, some.total), (us(3_000), None));
    }

    #[test]
    fn an_invalid_dictionary_has_no_progress() {
        for odd in [
            "",
            "elapsed",
            "elapsed=",
            "elapsed=-1",
            "elapsed=1.2345",
            "elapsed=1e3",
            "elapsed=.5",
            "elapsed=1234567890123",
            "elapsed=1, ",
            "elapsed=1;total",
        ] {
            assert!(parse(odd).is_none() || odd == "elapsed=1;total", "{odd:?}");
        }
    }
}
