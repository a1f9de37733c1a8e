//! Numbers as Grafana writes them in its units.

/// Returns `value` in Grafana's unit `unit`.
pub(super) fn number(value: f64, unit: &str, decimals: Option<u64>) -> String {
    match unit {
        "percentunit" => format!("{}%", digits(value * 100.0, decimals)),
        "reqps" => format!("{} req/s", short(value, decimals)),
        "ops" => format!("{}/s", short(value, decimals)),
        "µs" => time(value / 1e6),
        "s" => time(value),
        "bytes" => format!("{:.0} MiB", value / f64::from(1 << 20)),
        _ => short(value, decimals),
    }
}

/// Returns seconds in the most readable unit.
fn time(seconds: f64) -> String {
    match seconds.abs() {
        0.0 => "0".to_owned(),
        s if s >= 172_800.0 => format!("{:.0} days", seconds / 86_400.0),
        s if s >= 7_200.0 => format!("{:.1} hours", seconds / 3_600.0),
        s if s >= 120.0 => format!("{:.0} min", seconds / 60.0),
        s if s >= 1.0 => format!("{} s", digits(seconds, None)),
        s if s >= 1e-3 => format!("{} ms", digits(seconds * 1e3, None)),
        _ => format!("{} µs", digits(seconds * 1e6, None)),
    }
}

fn short(value: f64, decimals: Option<u64>) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{} M", digits(value / 1e6, None)),
        v if v >= 1e4 => format!("{} K", digits(value / 1e3, None)),
        _ => digits(value, decimals),
    }
}

/// Returns `value` with `decimals` decimals. If `decimals` is `None`, the result has about three
/// digits.
fn digits(value: f64, decimals: Option<u64>) -> String {
    let wanted = decimals.and_then(|d| usize::try_from(d).ok());
    let decimals = wanted.unwrap_or(match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 || v == 0.0 => 2,
        _ => 4,
    });
    let text = format!("{value:.decimals$}");
    if wanted.is_some() || !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_units() {
        for (value, unit, text) in [
            (0.423, "percentunit", "42.3%"),
            (1.0, "percentunit", "100%"),
            (381.4, "reqps", "381 req/s"),
            (12_345.0, "short", "12.3 K"),
            (0.0, "short", "0"),
            (1_800.0, "µs", "1.8 ms"),
            (250.0, "µs", "250 µs"),
            (2_000_000.0, "µs", "2 s"),
            (90.0 * 86_400.0, "s", "90 days"),
            (52_428_800.0, "bytes", "50 MiB"),
            (0.05, "ops", "0.05/s"),
            (0.002_5, "short", "0.0025"),
        ] {
            assert_eq!(number(value, unit, None), text);
        }
        assert_eq!(number(0.987_6, "none", Some(2)), "0.99");
    }
}
