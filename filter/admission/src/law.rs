//! The law of an admit probability (Aequitas, Algorithm 1). It defines the times and sizes of the
//! probability's changes.
//!
//! Each channel has additive increase, and additive decrease by the size of the calls that missed:
//!
//! ```text
//! W = L · 100 / (100 − π)                       a window
//! a call of size n took ℓ, λ = ℓ/n if per cost, else ℓ:
//!     λ > L                    p −= β·n, not below the floor; the window starts over
//!     no miss for W            p += α,   not above 1;         the window starts over
//! ```
//!
//! With α = β = 0.01 and one miss a window, p rises by 0.01 and falls by 0.01 for each unit of
//! size. So large calls are downgraded sooner. p changes only when calls complete. A channel
//! without calls keeps its p until the channel is forgotten.
//!
//! p is in balance when misses subtract as much as windows add. With x calls/s of one sender in the
//! class, the ratio
//!
//! ```text
//! m = α / (β·n·W·x)
//! ```
//!
//! of them misses. This ratio is (100 − π)/100 at x = α / (β·n·L), and larger for senders with
//! fewer calls. π holds for senders whose windows have (α/β·n) · 100/(100 − π) calls or more. The
//! recovery from the floor takes (1 − floor)/α windows.
//!
//! If a window were a number of completed calls instead of W, π would hold at any rate, but senders
//! would be treated unequally. m would be the same for all senders, so p would rise or fall with m,
//! independent of x. A sender with few calls would lose as much as a sender with many calls, and
//! would not regain its p. Since p rises with time and falls with calls, all senders converge to
//! the same x or to p = 1.
//!
//! In the SIGCOMM text, the window begins at the last increase. In its simulator, the window begins
//! at the last increase or miss. This code follows the simulator, because the published numbers are
//! the simulator's.

use std::time::Duration;

use headgate_config::ConfigError;
use headgate_strategies::request::ClassId;
use headgate_strategies::time::{Instant, nanos};

use crate::{Completion, Settings};

/// The law with its checked [`Settings`].
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelLaw {
    settings: Settings,
    /// W, the window, of each class except the lowest.
    windows: Vec<Duration>,
}

/// The effect of a completed call on its channel's admit probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// No change, because the window has not ended.
    None,
    /// An increase by this value. The window starts over.
    Increase(f64),
    /// A decrease by this value. The window starts over.
    Decrease(f64),
}

impl TryFrom<Settings> for ChannelLaw {
    type Error = ConfigError;

    fn try_from(settings: Settings) -> Result<Self, ConfigError> {
        settings.check()?;
        let targets_per_window = 100.0 / (100.0 - settings.percentile);
        // The conversion saturates. The value is rounded, since 100 − 99.9 is a little more than
        // 0.1.
        let window = |target_us: &u64| {
            let target = target_us.saturating_mul(1_000) as f64;
            Duration::from_nanos((target * targets_per_window).round() as u64)
        };
        Ok(Self {
            windows: settings.targets_us.iter().map(window).collect(),
            settings,
        })
    }
}

impl ChannelLaw {
    /// Returns the lowest class, which has no target. Classes with higher ids are treated like the
    /// lowest class.
    pub fn lowest(&self) -> ClassId {
        // The number fits, because there are at most 15 targets.
        ClassId(u8::try_from(self.windows.len()).unwrap_or(u8::MAX))
    }

    /// Whether calls of `class` have a target.
    pub fn promises(&self, class: ClassId) -> bool {
        class < self.lowest()
    }

    /// Whether `call` took longer than the target of its class. The result is false in the lowest
    /// class.
    pub fn missed(&self, call: &Completion) -> bool {
        let Some(target_us) = self.settings.targets_us.get(usize::from(call.class.0)) else {
            return false;
        };
        let units = if self.settings.per_cost {
            u64::from(call.size.max(1))
        } else {
            1
        };
        nanos(call.latency) > target_us.saturating_mul(1_000).saturating_mul(units)
    }

    /// Returns the effect of `call`, completed at `now`, on its channel, whose window began at
    /// `since`.
    pub fn change(&self, since: Instant, now: Instant, call: &Completion) -> Change {
        let Some(window) = self.windows.get(usize::from(call.class.0)) else {
            return Change::None;
        };
        if self.missed(call) {
            Change::Decrease(self.settings.decrease * f64::from(call.size.max(1)))
        } else if now.since(since) > *window {
            Change::Increase(self.settings.increase)
        } else {
            Change::None
        }
    }

    /// Returns W, the window of a class. The result is zero for the lowest class, which has no
    /// window.
    pub fn window(&self, class: ClassId) -> Duration {
        let window = self.windows.get(usize::from(class.0));
        window.copied().unwrap_or_default()
    }

    /// Returns the time in which p rises from its minimum to 1 if no call misses.
    pub fn recovery(&self, class: ClassId) -> Duration {
        let steps = (1.0 - self.settings.min_probability) / self.settings.increase;
        let recovery = nanos(self.window(class)) as f64 * steps;
        // The conversion saturates.
        Duration::from_nanos(recovery.round() as u64)
    }

    /// Returns the number of calls of size 1 that a window must have for the target to hold at the
    /// percentile (see the module).
    pub fn calls_per_window(&self) -> f64 {
        let Settings {
            increase,
            decrease,
            percentile,
            ..
        } = self.settings;
        increase / decrease * 100.0 / (100.0 - percentile)
    }

    /// Returns the percentile, 0 ..= 100, at which the target holds for a sender with this number
    /// of calls of size 1 in a window.
    pub fn percentile(&self, calls_per_window: f64) -> f64 {
        let missed = self.settings.increase / self.settings.decrease / calls_per_window;
        100.0 * (1.0 - missed.min(1.0))
    }

    /// Returns the minimum admit probability.
    pub fn min_probability(&self) -> f64 {
        self.settings.min_probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    fn call(class: u8, latency_us: u64, size: u32) -> Completion {
        Completion {
            class: ClassId(class),
            latency: US(latency_us),
            size,
        }
    }

    #[test]
    fn a_window_is_a_target_for_each_call_of_which_one_may_miss() {
        let law = ChannelLaw::try_from(Settings::new(vec![14, 25])).unwrap();
        assert_eq!(law.windows, [US(14_000), US(25_000)]);
        assert_eq!(law.lowest(), ClassId(2));
        let lenient = Settings {
            percentile: 98.5,
            ..Settings::new(vec![30])
        };
        assert_eq!(ChannelLaw::try_from(lenient).unwrap().windows, [US(2_000)]);
    }

    #[test]
    fn a_sender_with_few_calls_has_a_lower_percentile() {
        let lenient = Settings {
            percentile: 99.0,
            ..Settings::new(vec![100_000])
        };
        let law = ChannelLaw::try_from(lenient.clone()).unwrap();
        assert_eq!(law.recovery(ClassId(0)), Duration::from_secs(900));
        assert!((law.calls_per_window() - 100.0).abs() < 1e-9);
        for (calls, percentile) in [(100.0, 99.0), (10.0, 90.0), (1.0, 0.0), (0.0, 0.0)] {
            assert!((law.percentile(calls) - percentile).abs() < 1e-9);
        }
        let strict = Settings {
            decrease: 0.1,
            ..lenient
        };
        let law = ChannelLaw::try_from(strict).unwrap();
        assert!((law.percentile(law.calls_per_window()) - 99.0).abs() < 1e-9);
        assert!((law.calls_per_window() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_miss_counts_by_size_and_a_window_without_one_by_its_end() {
        let law = ChannelLaw::try_from(Settings::new(vec![14, 25])).unwrap();
        let change = |ms: f64, call| {
            law.change(
                Instant::default(),
                Instant::from_nanos((ms * 1e6) as u64),
                &call,
            )
        };
        assert_eq!(change(1.0, call(0, 15, 7)), Change::Decrease(0.07));
        assert_eq!(change(1.0, call(1, 15, 7)), Change::None);
        assert_eq!(change(14.0, call(0, 14, 7)), Change::None);
        assert_eq!(change(14.001, call(0, 14, 7)), Change::Increase(0.01));
        assert_eq!(change(99.0, call(0, 15, 0)), Change::Decrease(0.01));
        assert_eq!(change(99.0, call(2, 9_999, 7)), Change::None);
        assert_eq!(change(99.0, call(255, 9_999, 7)), Change::None);
    }

    #[test]
    fn targets_per_cost_are_for_a_unit_of_size() {
        let settings = Settings {
            per_cost: true,
            ..Settings::new(vec![2])
        };
        let law = ChannelLaw::try_from(settings).unwrap();
        assert!(!law.missed(&call(0, 14, 7)));
        assert!(law.missed(&call(0, 15, 7)));
        assert!(law.missed(&call(0, 3, 0)));
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let good = Settings::new(vec![14]);
        let error = |change: &dyn Fn(&mut Settings)| {
            let mut settings = good.clone();
            change(&mut settings);
            ChannelLaw::try_from(settings).unwrap_err().to_string()
        };
        for (field, error) in [
            ("targets_us:", error(&|s| s.targets_us.clear())),
            ("targets_us:", error(&|s| s.targets_us = vec![1; 16])),
            ("targets_us[1]:", error(&|s| s.targets_us.push(0))),
            (
                "targets_us[1]:",
                error(&|s| s.targets_us.push(3_600_000_001)),
            ),
            ("percentile:", error(&|s| s.percentile = 100.0)),
            ("percentile:", error(&|s| s.percentile = f64::NAN)),
            ("increase:", error(&|s| s.increase = 0.0)),
            ("decrease:", error(&|s| s.decrease = f64::NAN)),
            ("min_probability:", error(&|s| s.min_probability = 1.1)),
        ] {
            assert!(error.starts_with(field), "{error}");
        }
    }
}
