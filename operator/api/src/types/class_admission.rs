//! `spec.classAdmission`: senders keep their calls within the capacity of a service's classes
//! (Aequitas).

use std::collections::BTreeMap;

use headgate_core::config::Fallback;
use headgate_core::config::admission_law::Scope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, Outbound};

/// Class admission: the sidecars of a service's callers downgrade some calls to its lowest class,
/// so that the other calls meet the target of their class. It refuses no calls.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClassAdmission {
    /// The place of the decision; each sender (`Distributed`) by default.
    pub method: ClassAdmissionMethod,
    /// The target of each class for a call's latency less its processing time at the service, such
    /// as `{high: 15ms, medium: 50ms}`; 1ms to 1h. Each of the policy's `classes` has one, except
    /// the last. Callers know the service by the name of a Service in `targetRefs`. A policy
    /// without targets applies to outbound calls only.
    pub targets: BTreeMap<String, Duration>,
    /// Percentile of calls that should meet their target: 0 or more, below 100; 99 by default. A
    /// sender increases its probability after target · 100 / (100 − percentile) without a miss. If
    /// `increase` equals `decrease`, the percentile holds for senders with at least 1 / target
    /// calls/s in the class (`headgate explain`), but not with `Incast`.
    pub percentile: Option<f64>,
    /// Whether targets are per unit of a call's cost (`x-headgate-cost`) instead of per call; false
    /// by default.
    pub per_cost: bool,
    /// Settings of `Distributed`. They also apply to `Centralized` with `Incast` or with fallback
    /// `Distributed`.
    pub distributed: Option<DistributedAdmission>,
    /// Settings of `Centralized`.
    pub centralized: Option<CentralizedAdmission>,
    /// SPIFFE ids of the trusted peers, as in `workflows.peers`, which takes precedence if the
    /// policy has workflows. They require mutual TLS between proxies. With `Centralized`, the
    /// server trusts the proxies in the namespaces of these ids, by default in the service's own
    /// namespace. Without TLS, it trusts all proxies.
    pub peers: Vec<String>,
    /// Calls of the backend to other services, as in `workflows.outbound`, which takes precedence
    /// if the policy has workflows. Calls to services with targets are admitted to classes. A
    /// service in the same namespace is known by its name, one in another namespace by
    /// `name.namespace`. With `smoothing` alone, calls have no classes.
    pub outbound: Outbound,
}

/// The place where the class of a call is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum ClassAdmissionMethod {
    /// Each sender decides for itself, by a probability per service and class.
    #[default]
    Distributed,
    /// A server decides for all senders (`headgate run --admission`) from the reports of their
    /// sidecars (`headgate bootstrap --admission`). Calls don't wait for the server.
    Centralized,
}

/// Settings of `Centralized`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CentralizedAdmission {
    /// The algorithm of the server; `Misses` by default.
    pub method: CentralizedMethod,
    /// Number of calls of all senders that may miss their target in a period, 1 to 1000000; only
    /// with `Misses`, 5 by default.
    pub misses: Option<i64>,
    /// Length of a period, 10ms to 1m; only with `Misses`, 1s by default. At the percentile, a
    /// period has misses · 100 / (100 − percentile) calls: divide that by the calls/s in the class.
    pub period: Option<Duration>,
    /// Weight of the average of a second ago in the average wait: 0 or more, below 1; only with
    /// `Incast`, 0.5 by default. The closer to 1, the slower the average follows.
    pub smoothing: Option<f64>,
    /// The scope over which misses or waits are aggregated; a class of the service (`Class`) by
    /// default.
    pub scope: Scope,
    /// Interval between the reports of a sidecar, 10ms to 10s; 100ms by default, or `period` if
    /// that is shorter.
    pub report: Option<Duration>,
    /// The decision while the server doesn't answer; that of each sender (`Distributed`) by
    /// default.
    pub fallback: Fallback,
}

/// The algorithm of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CentralizedMethod {
    /// After `misses` misses in a period, all calls of the class run in the lowest class until the
    /// period ends.
    #[default]
    Misses,
    /// A probability per sender follows the average wait at the service. Targets are then for the
    /// mean: single calls may take far longer.
    Incast,
}

/// Settings of `Distributed`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DistributedAdmission {
    /// α, the increase of the probability after an interval (see `percentile`) without a miss:
    /// above 0, at most 1; 0.01 by default.
    pub increase: Option<f64>,
    /// β, the decrease of the probability at a call that misses its target, per unit of its cost:
    /// above 0, at most 1; 0.01 by default.
    pub decrease: Option<f64>,
    /// Minimum probability, which keeps some calls in the class to detect its recovery: above 0, at
    /// most 1; 0.1 by default.
    pub min_probability: Option<f64>,
}
