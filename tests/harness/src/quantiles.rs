//! Latencies, as histograms while they are gathered, and as a few numbers in reports.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A histogram of durations from 1 µs to 1 h, with an error of the values of at most 0.1%.
#[derive(Debug, Clone)]
pub struct Durations {
    micros: Histogram<u64>,
}

/// The longest duration that the histogram distinguishes, µs. Longer durations count as this one.
const MAX_US: u64 = 3_600_000_000;

impl Durations {
    /// Returns an empty histogram.
    pub fn new() -> Self {
        Self { micros: empty(3) }
    }

    /// Adds one duration.
    pub fn record(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(MAX_US);
        // The histogram grows as needed, so this can't fail up to MAX_US.
        let _ = self.micros.record(micros.clamp(1, MAX_US));
    }

    /// Removes all durations.
    pub fn clear(&mut self) {
        self.micros.reset();
    }

    /// Returns the number of recorded durations.
    pub fn count(&self) -> u64 {
        self.micros.len()
    }

    /// Returns the duration that the ratio `q` (0..=1) of durations doesn't exceed, ms, or 0 if the
    /// histogram is empty.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        if self.micros.is_empty() {
            0.0
        } else {
            to_ms(self.micros.value_at_quantile(q))
        }
    }

    /// Returns the numbers for reports.
    pub fn summary(&self) -> Quantiles {
        if self.micros.is_empty() {
            return Quantiles::default();
        }
        Quantiles {
            count: self.micros.len(),
            mean: self.micros.mean() / 1_000.0,
            p50: self.quantile_ms(0.5),
            p90: self.quantile_ms(0.9),
            p99: self.quantile_ms(0.99),
            max: to_ms(self.micros.max()),
        }
    }
}

fn to_ms(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}

/// Returns a histogram that grows as needed, with `digits` significant decimal digits (0..=5).
fn empty(digits: u8) -> Histogram<u64> {
    match Histogram::new(digits) {
        Ok(histogram) => histogram,
        Err(_) => empty(digits.min(5)),
    }
}

impl Default for Durations {
    fn default() -> Self {
        Self::new()
    }
}

/// Mean and quantiles of some durations, ms. All are zero without durations.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Quantiles {
    /// The number of durations.
    pub count: u64,
    /// Arithmetic mean, ms.
    pub mean: f64,
    /// Median, ms.
    pub p50: f64,
    /// 90th percentile, ms.
    pub p90: f64,
    /// 99th percentile, ms.
    pub p99: f64,
    /// Longest duration, ms.
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_a_thousandth_over_five_decades() {
        let mut durations = Durations::new();
        assert_eq!(durations.summary(), Quantiles::default());
        for magnitude in [0.01, 1.0, 100.0, 1_000.0] {
            durations.clear();
            (1..=1_000).for_each(|i| {
                durations.record(Duration::from_secs_f64(f64::from(i) * magnitude / 1e3));
            });
            let summary = durations.summary();
            for (measured, expected) in [
                (summary.p50, 500.0),
                (summary.p90, 900.0),
                (summary.max, 1_000.0),
            ] {
                assert!(
                    (measured / (expected * magnitude) - 1.0).abs() < 0.001_1,
                    "{measured} for {expected}"
                );
            }
        }
    }
}
