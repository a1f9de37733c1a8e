//! Wall-clock times as RFC 3339 in UTC, with whole seconds, as Kubernetes writes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `2026-03-01T12:30:05Z`. Times before 1970 are shown as 1970.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (year, month, day) = civil(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01.
///
/// Counts in 400-year eras of 146,097 days from 0000-03-01, so that the leap day ends a year
/// (H. Hinnant, *chrono-Compatible Low-Level Date Algorithms*, `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// An age as kubectl shows it: `45s`, `12m`, `3h`, `5d`.
#[must_use]
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
