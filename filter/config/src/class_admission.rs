//! The configuration of class admission (Aequitas): trusted peers and the targets of services, with
//! its checks.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::ClassConfig;
use super::admission_law::{Method, Scope, Settings, check_smoothing};
use super::place::{Checked, Place};
use super::types::check_classes;

/// Longest name of a service, bytes.
const MAX_NAME: usize = 512;
const REPORTS_US: RangeInclusive<u64> = 10_000..=10_000_000;
const PERIODS_US: RangeInclusive<u64> = 10_000..=60_000_000;
const MISSES: RangeInclusive<u32> = 1..=1_000_000;

/// The class admission of a stage, which trusts the classes of these senders. The stage's queue
/// orders requests by class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassAdmissionConfig {
    /// Whether classes have targets at this stage. Then senders name the class of their requests,
    /// and responses report the queue wait.
    pub receives: bool,
    /// SPIFFE ids of the trusted senders, as in
    /// [`WorkflowsConfig::peers`](super::WorkflowsConfig::peers). If the stage has workflows, their
    /// `edge` and `peers` take precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
}

/// The latency targets of a service's classes, and the parameters of the law that its callers
/// apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceAdmissionConfig {
    /// The service's classes, the highest first, 2 to 16. A call belongs to the first class that it
    /// matches.
    pub classes: Vec<ClassConfig>,
    /// L: target of each class but the last, µs.
    pub targets_us: Vec<u64>,
    /// π: percentile at which the targets apply, 0 ≤ π < 100.
    pub percentile: f64,
    /// Whether targets apply to each unit of a call's cost instead of to the call.
    pub per_cost: bool,
    /// α, the increase of the probability after a window without a miss, 0 < α ≤ 1.
    pub increase: f64,
    /// β, the decrease of the probability after a miss, for each unit of size, 0 < β ≤ 1.
    pub decrease: f64,
    /// The least probability, above 0 and at most 1.
    pub min_probability: f64,
    /// Whether calls are downgraded. If not, the calls that would be downgraded are only counted.
    pub enforced: bool,
    /// The server that decides for all senders. Absent: each sender decides for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub central: Option<CentralConfig>,
}

/// The settings of the server that decides for all senders.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CentralConfig {
    /// The name of the service at the server: `namespace/name`.
    pub service: String,
    /// The method of the decision.
    pub method: Method,
    /// The scope over which measurements are aggregated.
    pub scope: Scope,
    /// Time between reports, µs.
    pub report_us: u64,
    /// The decision while the server does not answer.
    pub fallback: Fallback,
}

/// The decision while the server does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Fallback {
    /// Each sender decides by its own measurements.
    #[default]
    Distributed,
    /// Calls run in the class that they request.
    Admit,
}

impl ServiceAdmissionConfig {
    /// Returns the settings of the law that moves the probabilities.
    pub fn settings(&self) -> Settings {
        Settings {
            targets_us: self.targets_us.clone(),
            percentile: self.percentile,
            per_cost: self.per_cost,
            increase: self.increase,
            decrease: self.decrease,
            min_probability: self.min_probability,
        }
    }
}

impl ClassAdmissionConfig {
    /// Checks the settings at `at`, of a stage with this many classes.
    pub(super) fn check(&self, classes: usize, at: &Place) -> Checked {
        at.ensure("receives", !self.receives || classes >= 2, || {
            format!("true with {classes} classes; false, or 2 classes or more")
        })?;
        at.peers(&self.peers)
    }
}

impl ServiceAdmissionConfig {
    pub(super) fn check(&self, at: &Place) -> Checked {
        check_classes(&self.classes, at)?;
        let (targets, classes) = (self.targets_us.len(), self.classes.len());
        at.ensure("targets_us", targets + 1 == classes, || {
            format!("{targets} targets for {classes} classes; one for each class but the last")
        })?;
        let checked = self.settings().check();
        checked.map_err(|error| at.error(&error))?;
        match &self.central {
            Some(central) => central.check(&at.field("central")),
            None => Ok(()),
        }
    }
}

impl CentralConfig {
    fn check(&self, at: &Place) -> Checked {
        let service = &self.service;
        let is_right = (1..=MAX_NAME).contains(&service.len());
        at.ensure("service", is_right, || {
            format!("{service:?}; namespace/name of the service, 1 to {MAX_NAME} bytes")
        })?;
        at.within("report_us", self.report_us, REPORTS_US)?;
        let at = at.field("method");
        match self.method {
            Method::Misses { allowed, period_us } => {
                at.within("allowed", allowed.get(), MISSES)?;
                at.within("period_us", period_us, PERIODS_US)
            }
            Method::Incast { smoothing } => {
                check_smoothing(smoothing).map_err(|error| at.error(&error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_method_of_a_server_is_checked() {
        let problem = |method: &str| {
            let json = format!(
                r#"{{"service":"ns/stock","method":{method},"scope":"Class","report_us":100000,
                "fallback":"Admit"}}"#
            );
            let config: CentralConfig = serde_json::from_str(&json).unwrap();
            let checked = config.check(&Place::new("central"));
            checked.err().map(|error| error.to_string())
        };
        let misses = |allowed: u32, period_us: u64| {
            problem(&format!(
                r#"{{"type":"Misses","allowed":{allowed},"period_us":{period_us}}}"#
            ))
        };
        assert_eq!(misses(1_000_000, 60_000_000), None);
        for (found, expected) in [
            (
                misses(1_000_001, 1_000_000),
                "allowed: 1000001; 1 to 1000000",
            ),
            (misses(5, 9_999), "period_us: 9999; 10000 to 60000000"),
            (
                problem(r#"{"type":"Incast","smoothing":1}"#),
                "smoothing: 1; 0 or more, below 1",
            ),
        ] {
            assert_eq!(found, Some(format!("central.method.{expected}")));
        }
    }
}
