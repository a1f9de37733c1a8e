//! Shapes of the configuration of class admission (Aequitas): who is believed, and what services promise.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ClassConfig;
use super::admission_law::{Method, Scope, Settings};

/// Class admission of a stage. Its queue orders requests by class; this says whose word on classes counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassAdmissionConfig {
    /// Whether classes have targets here: senders name the class of their requests, and are told how long these waited.
    pub receives: bool,
    /// SPIFFE ids of the senders that are believed, as in [`WorkflowsConfig::peers`](super::WorkflowsConfig::peers),
    /// whose `edge` and `peers` count in place of this where the stage has workflows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
}

/// The targets that a service promises to its callers, and how these keep within them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceAdmissionConfig {
    /// The service's classes, the highest first, 2 to 16; a call belongs to the first that it matches.
    pub classes: Vec<ClassConfig>,
    /// L: target of each class but the last, µs.
    pub targets_us: Vec<u64>,
    /// π: percentile at which the targets are to hold, 0 ≤ π < 100.
    pub percentile: f64,
    /// Targets are for a unit of cost, not for a call.
    pub per_cost: bool,
    /// α, 0 < α ≤ 1.
    pub increase: f64,
    /// β, 0 < β ≤ 1.
    pub decrease: f64,
    /// Least probability, above 0, at most 1.
    pub min_probability: f64,
    /// Whether calls are downgraded, or only counted.
    pub enforced: bool,
    /// The server that decides; without, each sender does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub central: Option<CentralConfig>,
}

/// How a server decides for all senders (centralized Aequitas).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CentralConfig {
    /// What the server knows the service by: `namespace/name`.
    pub service: String,
    /// How it decides.
    pub method: Method,
    /// Whose measurements it takes together.
    pub scope: Scope,
    /// Time between reports, µs.
    pub report_us: u64,
    /// Who decides while the server is silent.
    pub fallback: Fallback,
}

/// Who decides while the server is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Fallback {
    /// Each sender, by what it saw itself.
    #[default]
    Distributed,
    /// Nobody: calls run in the class that they ask for.
    Admit,
}

impl ServiceAdmissionConfig {
    /// Returns the settings of the law by which the probabilities move.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let targets = self.targets_us.iter().copied();
        Settings {
            targets: targets.map(Duration::from_micros).collect(),
            percentile: self.percentile,
            per_cost: self.per_cost,
            increase: self.increase,
            decrease: self.decrease,
            min_probability: self.min_probability,
        }
    }
}
