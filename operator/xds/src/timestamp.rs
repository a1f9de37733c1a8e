//! Wall-clock times as RFC 3339 in UTC, with whole seconds, as Kubernetes writes them.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;

/// Returns a time such as `2026-03-01T12:30:05Z`. A time out of range, about 8,000 years away,
/// becomes 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).and_then(|t| Timestamp::from_second(t.as_second()));
    time.unwrap_or_default().to_string()
}

/// Returns a duration in kubectl's format for ages: `45s`, `12m`, `3h`, `5d`.
pub fn age(elapsed: Duration) -> String {
    match elapsed.as_secs() {
        s @ 0..=119 => format!("{s}s"),
        s @ 120..=7_199 => format!("{}m", s / 60),
        s @ 7_200..=172_799 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn at(seconds: u64) -> String {
        rfc3339(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn known_instants() {
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_772_323_200), "2026-03-01T00:00:00Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn ages_read_like_kubectl() {
        let shown = |s| age(Duration::from_secs(s));
        assert_eq!(
            [
                shown(0),
                shown(119),
                shown(120),
                shown(7_200),
                shown(172_800)
            ],
            ["0s", "119s", "2m", "2h", "2d"]
        );
    }
}
