//! Timestamps in access logs: RFC 3339, or seconds since the Unix epoch.

use jiff::Timestamp;

/// Returns ns since the Unix epoch; `None` if the text is not a time.
pub(super) fn nanos(text: &str) -> Option<i128> {
    let text = text.trim();
    rfc3339(text).or_else(|| epoch(text))
}

/// Parses seconds since the epoch, as in `%START_TIME(%s.%3f)%`, or milliseconds, as in other logs.
fn epoch(text: &str) -> Option<i128> {
    let number: f64 = text.parse().ok()?;
    // The limit is the year 5138 in seconds, or 1973 in milliseconds.
    let micros = if number >= 1e11 {
        number * 1e3
    } else {
        number * 1e6
    };
    // A double represents today's times with a precision of microseconds. Larger numbers aren't
    // times.
    let fits = number > 0.0 && micros < 1.8e16;
    fits.then(|| micros.round() as i128 * 1_000)
}

fn rfc3339(text: &str) -> Option<i128> {
    // The seconds are required: logs don't use shorter forms of ISO 8601.
    let text = Some(text).filter(|text| text.as_bytes().get(16) == Some(&b':'))?;
    // Some formats omit the zone.
    let utc = || format!("{text}Z").parse().ok();
    let time: Timestamp = text.parse().ok().or_else(utc)?;
    Some(time.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let ms = 1_000_000;
        for (text, expected) in [
            ("1970-01-01T00:00:00.000Z", 0),
            ("1969-12-31T23:59:59.999Z", -ms),
            ("2016-04-15T20:17:00.310Z", 1_460_751_420_310 * ms),
            ("2024-02-29T23:59:59Z", 1_709_251_199_000 * ms),
            ("2016-04-15T22:17:00.31+02:00", 1_460_751_420_310 * ms),
            ("2016-04-15 20:17:00.310", 1_460_751_420_310 * ms),
            (
                "2016-04-15T20:17:00.310000999Z",
                1_460_751_420_310 * ms + 999,
            ),
            ("1460751420310", 1_460_751_420_310 * ms),
            ("1460751420.310", 1_460_751_420_310 * ms),
        ] {
            assert_eq!(nanos(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn an_invalid_timestamp_is_none() {
        for text in [
            "",
            "-",
            "yesterday",
            "2016-04-15",
            "2016-13-15T20:17:00Z",
            "2016-04-15T25:17:00Z",
            "2016-04-15T20:17Z",
            "2016-04-15T20:17:00[Europe/Berlin]",
            "2016-04-15T20:17:00+x",
            "2016-04-15T20:17:00+9999999999999999:00",
            "999999-4-1T20:17:00Z",
            "1e300",
            "-5",
            "NaN",
            "０016-04-15T20:17:00Z",
        ] {
            assert_eq!(nanos(text), None, "{text}");
        }
    }
}
