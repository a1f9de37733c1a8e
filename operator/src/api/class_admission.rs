//! `spec.classAdmission`: senders keep within what classes can have of a service (Aequitas).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, Outbound};

/// Class admission: the sidecars of those who call a service run some of their calls in its lowest class, so that the
/// others meet their class's target. No call is refused for it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with method, targets, percentile, distributed, peers, outbound and more"
)]
pub struct ClassAdmission {
    /// Who decides; each sender for itself (`Distributed`) by default.
    pub method: ClassAdmissionMethod,
    /// What calls of each class may take beside the service's work on them, such as `{high: 15ms, medium: 50ms}`: 1ms to
    /// 1h for each class but the last, which promises nothing. Classes are those of this policy, and callers know the
    /// service by the name of a Service in `targetRefs`. Without targets the policy is for calls only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub targets: BTreeMap<String, Duration>,
    /// Percentile at which targets are to hold, 0 to less than 100; 99 by default. It says how long senders wait before
    /// they admit more: target · 100 / (100 − percentile).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentile: Option<f64>,
    /// Targets are for each unit of what a call says that it costs (`x-headgate-cost`), not for a call. False by default.
    pub per_cost: bool,
    /// Settings of `Distributed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distributed: Option<DistributedAdmission>,
    /// SPIFFE ids of the processes that are believed, as `workflows.peers`, which counts where the policy has workflows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Calls of the backend to other services, as `workflows.outbound`, which counts where the policy has workflows.
    /// Those to services with targets are admitted to classes. A service of the same namespace goes by its name, one of
    /// another by `name.namespace`. With `smoothing` alone, calls are in no classes.
    pub outbound: Outbound,
}

/// Who decides in which class a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum ClassAdmissionMethod {
    /// Each sender for itself, by a probability for each service and class.
    #[default]
    Distributed,
}

/// Settings of `Distributed`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with increase, decrease and minProbability"
)]
pub struct DistributedAdmission {
    /// α, by which the probability rises after a time without a miss: above 0, at most 1; 0.01 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub increase: Option<f64>,
    /// β, by which it falls at a call that misses its target, for each unit of its cost: above 0, at most 1; 0.01 by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decrease: Option<f64>,
    /// Least probability, so that a class is seen to recover: above 0, at most 1; 0.1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_probability: Option<f64>,
}
