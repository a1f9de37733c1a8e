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
    expecting = "a mapping with method, targets, percentile, distributed, centralized, peers, outbound and more"
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
    /// they admit more: target · 100 / (100 − percentile). It holds for senders with 1 / target calls/s in the class or
    /// more where `increase` is `decrease` (`headgate explain`), and not with `Incast`, which averages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentile: Option<f64>,
    /// Targets are for each unit of what a call says that it costs (`x-headgate-cost`), not for a call. False by default.
    pub per_cost: bool,
    /// Settings of `Distributed`, also for `Centralized` with `Incast` or where it falls back to `Distributed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distributed: Option<DistributedAdmission>,
    /// Settings of `Centralized`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub centralized: Option<CentralizedAdmission>,
    /// SPIFFE ids of the processes that are believed, as `workflows.peers`, which counts where the policy has workflows.
    /// With `Centralized`, the server believes the proxies of their namespaces.
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
    /// A server for all senders (`headgate run --admission`), to which their sidecars report
    /// (`headgate bootstrap --admission`). Calls don't wait for it.
    Centralized,
}

/// Settings of `Centralized`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with method, misses, period, smoothing, scope, report and fallback"
)]
pub struct CentralizedAdmission {
    /// How the server decides; `Misses` by default.
    pub method: CentralizedMethod,
    /// With `Misses`: calls that may miss their target in a period, those of all senders together; 5 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<i64>,
    /// With `Misses`: the period, 10ms to 1m; 1s by default. So many misses are due in misses · 100 / (100 −
    /// percentile) calls: divide that by the calls/s in the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Duration>,
    /// With `Incast`: weight of what was known a second ago in the average wait, 0 to less than 1; 0.5 by default. The
    /// closer it is to 1, the slower the average follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<f64>,
    /// Whose misses or waits are taken together; those of a class of the service (`Class`) by default.
    pub scope: AdmissionScope,
    /// Time between the reports of a sidecar, 10ms to 10s; 100ms by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Duration>,
    /// Who decides while the server doesn't answer; each sender for itself (`Distributed`) by default.
    pub fallback: AdmissionFallback,
}

/// How the server decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CentralizedMethod {
    /// After some misses, all calls of the class run in the lowest one until the period ends.
    #[default]
    Misses,
    /// By a probability for each sender, which follows the average wait at the service. Targets are then for the mean of
    /// calls: some may take far longer.
    Incast,
}

/// Whose measurements are taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum AdmissionScope {
    /// Those of a class of the service.
    #[default]
    Class,
    /// Those of the service.
    Destination,
}

/// Who decides while the server doesn't answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum AdmissionFallback {
    /// Each sender, by what it saw itself.
    #[default]
    Distributed,
    /// Nobody: calls run in the class that they ask for.
    Admit,
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
