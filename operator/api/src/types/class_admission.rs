//! `spec.classAdmission`: senders keep their calls within the capacity of a service's classes
//! (Aequitas).

use std::collections::BTreeMap;

use headgate_core::config::Fallback;
use headgate_core::config::admission_law::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, Outbound};

/// Class admission: the sidecars of a service's callers run some of their calls in its lowest
/// class, so that the others meet their class's target. No call is refused for it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClassAdmission {
    /// The place of the decision; each sender (`Distributed`) by default.
    pub method: ClassAdmissionMethod,
    /// The target of each class: the time that a call may take beyond the service's work on it,
    /// such as `{high: 15ms, medium: 50ms}`; 1ms to 1h for each class but the last, which has none.
    /// Classes are those of this policy, and callers know the service by the name of a Service in
    /// `targetRefs`. A policy without targets applies to outbound calls only.
    pub targets: BTreeMap<String, Duration>,
    /// Percentile at which targets are to hold, 0 to less than 100; 99 by default. It sets the time
    /// that senders wait before they admit more: target · 100 / (100 − percentile). It holds for
    /// senders with 1 / target calls/s in the class or more where `increase` is `decrease`
    /// (`headgate explain`), and not with `Incast`, which averages.
    pub percentile: Option<f64>,
    /// Whether targets apply to each unit of a call's cost (`x-headgate-cost`) instead of to the
    /// call. False by default.
    pub per_cost: bool,
    /// Settings of `Distributed`, also for `Centralized` with `Incast` or where it falls back to
    /// `Distributed`.
    pub distributed: Option<DistributedAdmission>,
    /// Settings of `Centralized`.
    pub centralized: Option<CentralizedAdmission>,
    /// SPIFFE ids of the trusted peers, as `workflows.peers`, which takes precedence where the
    /// policy has workflows, and with the mutual TLS between proxies that these need. With
    /// `Centralized`, the server trusts the proxies of their namespaces, by default those of the
    /// service's own; without TLS, all.
    pub peers: Vec<String>,
    /// Calls of the backend to other services, as `workflows.outbound`, which takes precedence
    /// where the policy has workflows. Those to services with targets are admitted to classes. A
    /// service of the same namespace is called by its name, one of another by `name.namespace`.
    /// With `smoothing` alone, calls are in no classes.
    pub outbound: Outbound,
}

/// The place where the class of a call is decided.
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
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CentralizedAdmission {
    /// How the server decides; `Misses` by default.
    pub method: CentralizedMethod,
    /// With `Misses`: calls that may miss their target in a period, those of all senders together;
    /// 5 by default.
    pub misses: Option<i64>,
    /// With `Misses`: the period, 10ms to 1m; 1s by default. So many misses are due in misses · 100
    /// / (100 − percentile) calls: divide that by the calls/s in the class.
    pub period: Option<Duration>,
    /// With `Incast`: weight of what was known a second ago in the average wait, 0 to less than 1;
    /// 0.5 by default. The closer it is to 1, the slower the average follows.
    pub smoothing: Option<f64>,
    /// The scope over which misses or waits are aggregated; a class of the service (`Class`) by
    /// default.
    pub scope: Scope,
    /// Time between the reports of a sidecar, 10ms to 10s; 100ms by default, or `period` if that is
    /// shorter.
    pub report: Option<Duration>,
    /// The decision while the server doesn't answer; each sender's own (`Distributed`) by default.
    pub fallback: Fallback,
}

/// How the server decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CentralizedMethod {
    /// After some misses, all calls of the class run in the lowest one until the period ends.
    #[default]
    Misses,
    /// By a probability for each sender, which follows the average wait at the service. Targets are
    /// then for the mean of calls: some may take far longer.
    Incast,
}

/// Settings of `Distributed`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DistributedAdmission {
    /// α, by which the probability rises after a time without a miss: above 0, at most 1; 0.01 by
    /// default.
    pub increase: Option<f64>,
    /// β, by which it falls at a call that misses its target, for each unit of its cost: above 0,
    /// at most 1; 0.01 by default.
    pub decrease: Option<f64>,
    /// Least probability, so that a class is seen to recover: above 0, at most 1; 0.1 by default.
    pub min_probability: Option<f64>,
}
