//! The settings of the law of class admission (Aequitas and its centralized form): the steps of
//! admit probabilities, and the method of a server that decides for all senders.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::place::{HOUR_US, Place};
use super::{ConfigError, MAX_CLASSES};

/// The classes' targets and the steps of the probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// L: the target of each class but the lowest, the highest class first, µs.
    pub targets_us: Vec<u64>,
    /// π: percentile at which the targets apply, 0 ≤ π < 100.
    pub percentile: f64,
    /// Whether targets apply to each unit of a call's size instead of to the call. Reports to a
    /// server don't contain it, because senders divide the latencies that they report by the cost.
    #[serde(skip)]
    pub per_cost: bool,
    /// α: the increase of the probability after a window without a miss.
    pub increase: f64,
    /// β: the decrease after a miss, for each unit of size.
    pub decrease: f64,
    /// The least probability, above 0. At 0 a class would have no calls, so its recovery would
    /// never be measured.
    pub min_probability: f64,
}

impl Settings {
    /// Returns the paper's constants with these targets: 99.9th percentile, α = β = 0.01, least
    /// probability 0.1.
    pub fn new(targets_us: Vec<u64>) -> Self {
        Self {
            targets_us,
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
    /// [`ConfigError`] with the setting at fault.
    pub fn check(&self) -> Result<(), ConfigError> {
        let at = Place::new("");
        let (targets, most) = (self.targets_us.len(), MAX_CLASSES - 1);
        at.ensure("targets_us", (1..=most).contains(&targets), || {
            format!("{targets} targets; 1 to {most}, one for each class but the lowest")
        })?;
        for (class, target) in self.targets_us.iter().enumerate() {
            at.within(&format!("targets_us[{class}]"), *target, 1..=HOUR_US)?;
        }
        let percentile = self.percentile;
        at.ensure("percentile", (0.0..100.0).contains(&percentile), || {
            format!("{percentile}; 0 or more, below 100")
        })?;
        for (field, value) in [
            ("increase", self.increase),
            ("decrease", self.decrease),
            ("min_probability", self.min_probability),
        ] {
            let problem = || format!("{value}; above 0, at most 1");
            at.ensure(field, value > 0.0 && value <= 1.0, problem)?;
        }
        Ok(())
    }
}

/// Checks the weight of the past in the average of incast delays: 0 ≤ w < 1.
///
/// # Errors
/// [`ConfigError`] if `past` is outside this range.
pub fn check_smoothing(past: f64) -> Result<(), ConfigError> {
    let problem = || format!("{past}; 0 or more, below 1");
    Place::new("").ensure("smoothing", (0.0..1.0).contains(&past), problem)
}

// The paper's scope is the service. In a weighted fair queue, each class has its own wait.
/// The scope over which measurements are aggregated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Scope {
    /// A class of the service.
    #[default]
    Class,
    /// The service.
    Destination,
}

/// The method by which a server decides for all senders.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum Method {
    /// The server decides by the misses in a period (centralized Aequitas §3.1).
    Misses {
        /// K, the number of misses that a period allows.
        allowed: NonZeroU32,
        /// T, the length of a period, µs.
        period_us: u64,
    },
    /// The server decides by the average incast delay (centralized Aequitas §3.2).
    Incast {
        /// w, the weight of the past in the average, 0 ≤ w < 1.
        smoothing: f64,
    },
}
