//! The settings of the law of class admission (Aequitas and its centralized form): the steps of
//! admit probabilities, and the method of a server that decides for all senders.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MAX_CLASSES;

/// The classes' targets and the steps of the probability.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// L: the target of each class but the lowest, the highest class first.
    pub targets: Vec<Duration>,
    /// π: percentile at which the targets apply, 0 ≤ π < 100.
    pub percentile: f64,
    /// Whether targets apply to each unit of a call's size instead of to the call.
    pub per_cost: bool,
    /// α: the increase of the probability after a window without a miss.
    pub increase: f64,
    /// β: the decrease after a miss, for each unit of size.
    pub decrease: f64,
    /// Least probability, above 0, because the recovery of a class without calls would never be
    /// measured.
    pub min_probability: f64,
}

impl Settings {
    /// Returns the paper's constants with these targets: 99.9th percentile, α = β = 0.01, least
    /// probability 0.1.
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

    /// Checks that these settings are valid for a law.
    ///
    /// # Errors
    /// [`SettingsError`] with the setting at fault.
    pub fn check(&self) -> Result<(), SettingsError> {
        let step = |value: f64| value > 0.0 && value <= 1.0;
        let targets = &self.targets;
        if targets.is_empty() || targets.len() >= MAX_CLASSES {
            return Err(SettingsError::Targets(targets.len()));
        }
        if let Some(class) = targets.iter().position(Duration::is_zero) {
            return Err(SettingsError::Target(class));
        }
        if !(0.0..100.0).contains(&self.percentile) {
            return Err(SettingsError::Percentile(self.percentile));
        }
        if !step(self.increase) {
            return Err(SettingsError::Increase(self.increase));
        }
        if !step(self.decrease) {
            return Err(SettingsError::Decrease(self.decrease));
        }
        if !step(self.min_probability) {
            return Err(SettingsError::MinProbability(self.min_probability));
        }
        Ok(())
    }
}

/// The reason why [`Settings`], or the weight of the average of incast delays, is invalid.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// There are not 1 to 15 targets.
    #[error(
        "targets: {0} targets; give 1 to {most}, one for each class but the lowest",
        most = MAX_CLASSES - 1
    )]
    Targets(usize),
    /// The target of this class is 0.
    #[error("targets[{0}]: 0; must be more than 0")]
    Target(usize),
    /// π is not in 0 ≤ π < 100.
    #[error("percentile: {0}; must be at least 0 and less than 100")]
    Percentile(f64),
    /// α is not in 0 < α ≤ 1.
    #[error("increase: {0}; must be more than 0 and at most 1")]
    Increase(f64),
    /// β is not in 0 < β ≤ 1.
    #[error("decrease: {0}; must be more than 0 and at most 1")]
    Decrease(f64),
    /// The least probability p is not in 0 < p ≤ 1.
    #[error("minProbability: {0}; must be more than 0 and at most 1")]
    MinProbability(f64),
    /// w is not in 0 ≤ w < 1.
    #[error("smoothing: {0}; must be at least 0 and less than 1")]
    Smoothing(f64),
}

/// The calls that share one measurement of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Scope {
    /// All calls to the receiver, as in the paper.
    Destination,
    /// The calls of a class: in a weighted fair queue each class has its own wait.
    #[default]
    Class,
}

/// The method by which a server decides for all senders.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum Method {
    /// By the misses in a period (centralized Aequitas §3.1).
    Misses {
        /// K.
        allowed: NonZeroU32,
        /// T, µs.
        period_us: u64,
    },
    /// By the average incast delay (centralized Aequitas §3.2).
    Incast {
        /// w, 0 ≤ w < 1.
        smoothing: f64,
    },
}
