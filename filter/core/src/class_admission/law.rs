//! When an admit probability moves, and by how much (Aequitas, Algorithm 1).
//!
//! Additive increase, and additive decrease by the size of the calls that missed, for each channel by itself:
//!
//! ```text
//! W = L · 100 / (100 − π)                       a window: at percentile π one miss is due in it
//! a call of size n took ℓ, λ = ℓ/n if per cost, else ℓ:
//!     λ > L                    p −= β·n, not below the floor; the window starts over
//!     no miss for W            p += α,   not above 1;         the window starts over
//! ```
//!
//! With α = β = 0.01 and one miss a window, p rises by 0.01 and falls by 0.01 for each unit of size: calls that are
//! large give way sooner. p moves with completions only; a channel without calls stays where it is until it is
//! forgotten.
//!
//! The SIGCOMM text counts the window from the last increase, its simulator from the last increase or miss. This
//! follows the simulator: the published numbers are the simulator's.

use std::time::Duration;

use super::{Completion, MAX_CLASSES};
use crate::request::ClassId;
use crate::time::{Instant, nanos};

/// The classes' targets and the steps of the probability, as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// L: the target of each class but the lowest, the highest class first.
    pub targets: Vec<Duration>,
    /// π: percentile at which the targets are to hold, 0 ≤ π < 100.
    pub percentile: f64,
    /// Targets are for a unit of size, not for a call.
    pub per_cost: bool,
    /// α: what a window without a miss adds to the probability.
    pub increase: f64,
    /// β: what a miss takes away, for each unit of size.
    pub decrease: f64,
    /// Least probability, above 0: a class that nobody runs in would never be seen to recover.
    pub min_probability: f64,
}

impl Settings {
    /// The paper's constants with these targets: 99.9th percentile, α = β = 0.01, at least 0.1.
    #[must_use]
    pub fn new(targets: Vec<Duration>) -> Self {
        Self {
            targets,
            percentile: 99.9,
            per_cost: false,
            increase: 0.01,
            decrease: 0.01,
            min_probability: 0.1,
        }
    }
}

/// Why [`Settings`] make no [`Law`], or a weight no [`Incast`](super::Incast).
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// Not 1 to 15 targets.
    #[error("targets: {0} targets; give 1 to {most}, one for each class but the lowest", most = MAX_CLASSES - 1)]
    Targets(usize),
    /// The target of this class is 0.
    #[error("targets[{0}]: 0; must be more than 0")]
    Target(usize),
    /// Not 0 ≤ π < 100.
    #[error("percentile: {0}; must be at least 0 and less than 100")]
    Percentile(f64),
    /// Not 0 < α ≤ 1.
    #[error("increase: {0}; must be more than 0 and at most 1")]
    Increase(f64),
    /// Not 0 < β ≤ 1.
    #[error("decrease: {0}; must be more than 0 and at most 1")]
    Decrease(f64),
    /// Not 0 < p ≤ 1.
    #[error("minProbability: {0}; must be more than 0 and at most 1")]
    MinProbability(f64),
    /// Not 0 ≤ w < 1.
    #[error("smoothing: {0}; must be at least 0 and less than 1")]
    Smoothing(f64),
}

/// Checked [`Settings`].
#[derive(Debug, Clone, PartialEq)]
pub struct Law {
    settings: Settings,
    /// W of each class but the lowest.
    windows: Vec<Duration>,
}

/// The effect of a completed call on the admit probability of its channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// Nothing: the window has not ended.
    None,
    /// Adds this much; the window starts over.
    Increase(f64),
    /// Takes this much away; the window starts over.
    Decrease(f64),
}

impl TryFrom<Settings> for Law {
    type Error = SettingsError;

    fn try_from(settings: Settings) -> Result<Self, SettingsError> {
        let step = |value: f64| value > 0.0 && value <= 1.0;
        let targets = &settings.targets;
        if targets.is_empty() || targets.len() >= MAX_CLASSES {
            return Err(SettingsError::Targets(targets.len()));
        }
        if let Some(class) = targets.iter().position(Duration::is_zero) {
            return Err(SettingsError::Target(class));
        }
        if !(0.0..100.0).contains(&settings.percentile) {
            return Err(SettingsError::Percentile(settings.percentile));
        }
        if !step(settings.increase) {
            return Err(SettingsError::Increase(settings.increase));
        }
        if !step(settings.decrease) {
            return Err(SettingsError::Decrease(settings.decrease));
        }
        if !step(settings.min_probability) {
            return Err(SettingsError::MinProbability(settings.min_probability));
        }
        let targets_per_window = 100.0 / (100.0 - settings.percentile);
        // The conversion saturates. Rounded, since 100 − 99.9 is a little more than 0.1.
        let window = |target: &Duration| {
            Duration::from_nanos((nanos(*target) as f64 * targets_per_window).round() as u64)
        };
        Ok(Self {
            windows: targets.iter().map(window).collect(),
            settings,
        })
    }
}

impl Law {
    /// The lowest class, which has no target. Classes beyond it are like it.
    #[must_use]
    pub fn lowest(&self) -> ClassId {
        // At most 15 targets.
        ClassId(u8::try_from(self.windows.len()).unwrap_or(u8::MAX))
    }

    /// Whether calls of `class` have a target.
    #[must_use]
    pub fn promises(&self, class: ClassId) -> bool {
        class < self.lowest()
    }

    /// Whether `call` took longer than its class promises; never in the lowest class.
    #[must_use]
    pub fn missed(&self, call: &Completion) -> bool {
        let Some(target) = self.settings.targets.get(usize::from(call.class.0)) else {
            return false;
        };
        let units = if self.settings.per_cost {
            u64::from(call.size.max(1))
        } else {
            1
        };
        nanos(call.latency) > nanos(*target).saturating_mul(units)
    }

    /// The effect of `call`, completed at `now`, on its channel, whose window began at `since`.
    #[must_use]
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

    /// W of a class; zero in the lowest, which has none.
    #[must_use]
    pub fn window(&self, class: ClassId) -> Duration {
        let window = self.windows.get(usize::from(class.0));
        window.copied().unwrap_or_default()
    }

    /// Least admit probability.
    #[must_use]
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
    fn a_window_is_the_time_in_which_one_miss_is_due() {
        let law = Law::try_from(Settings::new(vec![US(14), US(25)])).unwrap();
        assert_eq!(law.windows, [US(14_000), US(25_000)]);
        assert_eq!(law.lowest(), ClassId(2));
        let lenient = Settings {
            percentile: 98.5,
            ..Settings::new(vec![US(30)])
        };
        assert_eq!(Law::try_from(lenient).unwrap().windows, [US(2_000)]);
    }

    #[test]
    fn a_miss_counts_by_size_and_a_window_without_one_by_its_end() {
        let law = Law::try_from(Settings::new(vec![US(14), US(25)])).unwrap();
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
            ..Settings::new(vec![US(2)])
        };
        let law = Law::try_from(settings).unwrap();
        assert!(!law.missed(&call(0, 14, 7)));
        assert!(law.missed(&call(0, 15, 7)));
        assert!(law.missed(&call(0, 3, 0)));
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let good = Settings::new(vec![US(14)]);
        let error = |change: &dyn Fn(&mut Settings)| {
            let mut settings = good.clone();
            change(&mut settings);
            Law::try_from(settings).unwrap_err().to_string()
        };
        for (field, error) in [
            ("targets:", error(&|s| s.targets.clear())),
            ("targets:", error(&|s| s.targets = vec![US(1); 16])),
            ("targets[1]:", error(&|s| s.targets.push(Duration::ZERO))),
            ("percentile:", error(&|s| s.percentile = 100.0)),
            ("percentile:", error(&|s| s.percentile = f64::NAN)),
            ("increase:", error(&|s| s.increase = 0.0)),
            ("decrease:", error(&|s| s.decrease = f64::NAN)),
            ("minProbability:", error(&|s| s.min_probability = 1.1)),
        ] {
            assert!(error.starts_with(field), "{error}");
        }
    }
}
