//! Numbers in few characters.

use super::view::Percentiles;

/// An unknown value.
pub(super) const UNKNOWN: &str = "-";

/// Formats a rate: `0`, `0.4`, `37.5`, `412`, `12.3k`.
pub(super) fn rate(value: Option<f64>) -> String {
    match value {
        None => UNKNOWN.to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(v) if v.abs() < 0.05 => "<0.1".to_owned(),
        Some(v) if v.abs() < 99.95 => format!("{v:.1}"),
        Some(v) if v.abs() < 9_999.5 => format!("{v:.0}"),
        Some(v) if v.abs() < 999_950.0 => format!("{:.1}k", v / 1e3),
        Some(v) => format!("{:.1}M", v / 1e6),
    }
}

/// Formats a count.
pub(super) fn count(value: Option<u64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |v| v.to_string())
}

/// Formats a time in ms: `0.4ms`, `37ms`, `1.24s`.
pub(super) fn time(ms: Option<f64>) -> String {
    match ms {
        None => UNKNOWN.to_owned(),
        Some(ms) if ms < 9.95 => format!("{ms:.1}ms"),
        Some(ms) if ms < 999.5 => format!("{ms:.0}ms"),
        Some(ms) if ms < 9_995.0 => format!("{:.2}s", ms / 1e3),
        Some(ms) => format!("{:.0}s", ms / 1e3),
    }
}

/// Formats the median and the 99th percentile.
pub(super) fn times(percentiles: Option<Percentiles>) -> (String, String) {
    (
        time(percentiles.map(|p| p.p50)),
        time(percentiles.map(|p| p.p99)),
    )
}

/// Formats `part` of `whole`, as `42%`; empty if `whole` is unknown or 0.
pub(super) fn percent(part: Option<f64>, whole: Option<f64>) -> String {
    match (part, whole) {
        (Some(part), Some(whole)) if whole > 0.0 => {
            let share = (part / whole).clamp(0.0, 1.0);
            match share {
                0.0 => "0%".to_owned(),
                s if s < 0.01 => "<1%".to_owned(),
                s => format!("{:.0}%", s * 100.0),
            }
        }
        _ => UNKNOWN.to_owned(),
    }
}

/// Formats a share with as many decimals as objectives have: `97.2%`, `99.95%`.
pub(super) fn share(value: f64) -> String {
    let text = format!("{:.2}", value * 100.0);
    let short = text.trim_end_matches('0').trim_end_matches('.');
    format!("{short}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.01, "<0.1"),
            (0.4, "0.4"),
            (37.5, "37.5"),
            (99.96, "100"),
            (412.4, "412"),
            (12_345.0, "12.3k"),
            (2e6, "2.0M"),
        ] {
            assert_eq!(rate(Some(value)), text);
        }
        assert_eq!(rate(None), "-");
        for (ms, text) in [
            (0.0, "0.0ms"),
            (9.94, "9.9ms"),
            (37.4, "37ms"),
            (1_240.0, "1.24s"),
            (12_000.0, "12s"),
        ] {
            assert_eq!(time(Some(ms)), text);
        }
        assert_eq!(percent(Some(1.0), Some(3.0)), "33%");
        assert_eq!(percent(Some(0.001), Some(3.0)), "<1%");
        assert_eq!(percent(Some(1.0), Some(0.0)), "-");
        assert_eq!(share(0.9995), "99.95%");
        assert_eq!(share(0.9), "90%");
    }
}
