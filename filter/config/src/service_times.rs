//! The settings of the estimates of processing times, and their checks.

use serde::{Deserialize, Serialize};

use super::MAX_HISTOGRAM_STEPS;
use super::place::{Checked, HOUR_US, Place};

/// The settings of the estimates of processing times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTimesConfig {
    /// Length of the window of the estimates, µs. 10 ms to 1 h.
    pub interval_us: u64,
    /// The least number of samples with which a type's histogram replaces the general one.
    pub min_samples: u32,
    /// The kind of the window.
    #[serde(default)]
    pub window: HistogramWindow,
}

impl Default for ServiceTimesConfig {
    fn default() -> Self {
        Self {
            interval_us: 1_000_000,
            min_samples: 50,
            window: HistogramWindow::default(),
        }
    }
}

/// The kind of the window of processing times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum HistogramWindow {
    /// The window advances by its whole length. One histogram is read while the next one is
    /// populated (Bouncer §3).
    #[default]
    DualBuffer,
    /// The window advances by a step at a time (Bouncer §7).
    Sliding {
        /// Length of a step, µs, at least 10 ms. `interval_us` is 2 to [`MAX_HISTOGRAM_STEPS`]
        /// steps long.
        step_us: u64,
    },
}

impl ServiceTimesConfig {
    pub(super) fn check(&self, at: &Place) -> Checked {
        let interval_us = self.interval_us;
        at.within("interval_us", interval_us, 10_000..=HOUR_US)?;
        let HistogramWindow::Sliding { step_us } = self.window else {
            return Ok(());
        };
        let whole = step_us >= 10_000 && interval_us.is_multiple_of(step_us);
        let most = MAX_HISTOGRAM_STEPS as u64;
        let is_right = whole && (2..=most).contains(&(interval_us / step_us));
        at.ensure("window.step_us", is_right, || {
            format!(
                "{step_us}; at least 10000, and 2 to {most} whole steps make interval_us \
                 ({interval_us})"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<ServiceTimesConfig, String> {
        let config: ServiceTimesConfig = serde_json::from_str(json).map_err(|e| e.to_string())?;
        config.check(&Place::new("s")).map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn windows_are_dual_buffers_by_default() {
        let config = read(r#"{"interval_us":1000000,"min_samples":50}"#).unwrap();
        assert_eq!(config, ServiceTimesConfig::default());
        let dual = r#"{"interval_us":1000000,"min_samples":50,"window":{"type":"DualBuffer"}}"#;
        assert_eq!(read(dual).unwrap(), config);
    }

    #[test]
    fn a_sliding_window_is_2_to_100_whole_steps_of_at_least_10_ms() {
        let sliding = |interval_us: u64, step_us: u64| {
            read(&format!(
                r#"{{"interval_us":{interval_us},"min_samples":50,"window":{{"type":"Sliding","step_us":{step_us}}}}}"#
            ))
        };
        for (interval, step) in [(1_000_000, 100_000), (20_000, 10_000), (1_000_000, 10_000)] {
            let window = HistogramWindow::Sliding { step_us: step };
            assert_eq!(sliding(interval, step).unwrap().window, window);
        }
        for (interval, step) in [
            (1_000_000, 0),
            (1_000_000, 300_000),
            (1_000_000, 1_000_000),
            (2_000_000, 10_000),
            (90_000, 9_000),
        ] {
            assert_eq!(
                sliding(interval, step).unwrap_err(),
                format!(
                    "s.window.step_us: {step}; at least 10000, and 2 to 100 whole steps make \
                     interval_us ({interval})"
                )
            );
        }
        assert_eq!(
            sliding(1_000, 500).unwrap_err(),
            "s.interval_us: 1000; 10000 to 3600000000"
        );
        let unknown = r#"{"interval_us":1000000,"min_samples":50,"window":{"type":"Hopping"}}"#;
        assert!(read(unknown).unwrap_err().contains("Hopping"));
    }
}
