//! Timestamps in access logs: RFC 3339, or seconds since the Unix epoch.

/// Returns ns since the Unix epoch; `None` for a text that is not a time after it.
pub(super) fn nanos(text: &str) -> Option<u64> {
    let text = text.trim();
    rfc3339(text).or_else(|| epoch(text))
}

/// Parses `%START_TIME(%s.%3f)%`: seconds, or milliseconds, which other logs use.
fn epoch(text: &str) -> Option<u64> {
    let number: f64 = text.parse().ok()?;
    // This is the year 5138 in seconds, or 1973 in milliseconds.
    let micros = if number >= 1e11 {
        number * 1e3
    } else {
        number * 1e6
    };
    // A double represents today's times to microseconds, and ns of 584 years fit into the result.
    let fits = number > 0.0 && micros < 1.8e16;
    fits.then(|| micros.round() as u64 * 1_000)
}

fn rfc3339(text: &str) -> Option<u64> {
    let (date, time) = text.split_at_checked(10)?;
    let time = time.strip_prefix(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-')?;
    let (clock, offset) = match time.find(['Z', 'z', '+', '-']) {
        Some(at) => time.split_at(at),
        // Some formats omit the zone.
        None => (time, "Z"),
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock, ':')?;
    let valid = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (hour < 24 && minute < 60 && second < 61);
    if !valid {
        return None;
    }
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let subsecond: i64 = digits.parse().ok()?;
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    let seconds = seconds - offset_seconds(offset)?;
    u64::try_from(seconds.checked_mul(1_000_000_000)? + subsecond).ok()
}

fn offset_seconds(text: &str) -> Option<i64> {
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        (_, "") => return Some(0),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':').or_else(|| rest.split_at_checked(2))?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    let valid = (0..24).contains(&hours) && (0..60).contains(&minutes);
    valid.then(|| sign * (hours * 3_600 + minutes * 60))
}

fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let mut parts = text.split(separator).map(|part| part.parse::<i64>().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    (parts.next().is_none() && numbers.iter().all(|n| *n >= 0)).then_some(numbers)
}

/// Returns the days from the Unix epoch to a date (H. Hinnant, "chrono-compatible low-level date
/// algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let ms = 1_000_000;
        for (text, expected) in [
            ("1970-01-01T00:00:00.000Z", 0),
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
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "-",
            "yesterday",
            "2016-04-15",
            "2016-13-15T20:17:00Z",
            "2016-04-15T25:17:00Z",
            "2016-04-15T20:17Z",
            "2016-04-15T20:17:00+x",
            "2016-04-15T20:17:00+9999999999999999:00",
            "999999-4-1T20:17:00Z",
            "1e300",
            "1960-01-01T00:00:00Z",
            "-5",
            "NaN",
            "０016-04-15T20:17:00Z",
        ] {
            assert_eq!(nanos(text), None, "{text}");
        }
    }
}
