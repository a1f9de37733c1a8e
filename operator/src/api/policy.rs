//! The `spec` of an [`AdmissionPolicy`](super::AdmissionPolicy).

use std::collections::BTreeMap;

use headgate_core::config;
use serde::{Deserialize, Serialize};

use super::{Duration, RequestMatch};

/// What a policy wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with targetRefs, parallelism and types"
)]
pub struct AdmissionPolicySpec {
    /// What the policy applies to: 1 to 16 objects of its own namespace (GEP-713).
    pub target_refs: Vec<PolicyTargetRef>,
    /// `Enforce` (default), or `DryRun` to decide and count only.
    #[serde(default)]
    pub mode: ModeType,
    /// Requests that the backend works on at once.
    pub parallelism: Parallelism,
    /// When a request's processing time ends.
    #[serde(default)]
    pub measure: MeasureType,
    /// The queue in front of the backend.
    #[serde(default)]
    pub queue: Queue,
    /// Decides which requests may enter the queue.
    #[serde(default)]
    pub strategy: Strategy,
    /// Query types, tried in order; `default`, wherever it stands, takes the rest.
    pub types: Vec<QueryType>,
    /// Requests that bypass admission, such as health checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<RequestMatch>,
}

/// An object that a policy applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with group, kind and name"
)]
pub struct PolicyTargetRef {
    /// API group; empty for a Service.
    #[serde(default)]
    pub group: String,
    /// `Service`, `Gateway`, `HTTPRoute` or `GRPCRoute`.
    pub kind: String,
    /// Name, in the policy's namespace.
    pub name: String,
}

/// Whether decisions take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ModeType {
    /// Refuse and queue.
    #[default]
    Enforce,
    /// Decide and count, refuse nothing, hold nothing.
    DryRun,
}

/// P of Bouncer §2: exactly one of its fields.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with total or perEndpoint"
)]
pub struct Parallelism {
    /// Slots over all endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// Slots of each ready endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_endpoint: Option<i64>,
}

/// When a request's processing time ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MeasureType {
    /// With the response body.
    #[default]
    LastByte,
    /// At the response headers; for streams.
    FirstByte,
}

/// The queue in front of the backend.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with mode, discipline, maxLength and timeout"
)]
pub struct Queue {
    /// Who holds it.
    pub mode: QueueModeType,
    /// Its order.
    pub discipline: DisciplineType,
    /// Longest queue, in requests; 800 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<i64>,
    /// Longest wait in the queue; 1s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

/// Who holds the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum QueueModeType {
    /// The proxy.
    #[default]
    Hold,
    /// The backend; wait and processing time are reconstructed.
    Observe,
}

/// Order of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DisciplineType {
    /// First in, first out.
    #[default]
    #[serde(rename = "FIFO")]
    Fifo,
}

/// Decides which requests may enter the queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with type and its settings"
)]
pub struct Strategy {
    /// Which one.
    #[serde(rename = "type")]
    pub kind: StrategyType,
    /// Settings of `Bouncer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bouncer: Option<BouncerSettings>,
    /// Wraps a strategy that tells types apart, so that none of them starves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starvation_avoidance: Option<StarvationAvoidance>,
}

/// Which strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum StrategyType {
    /// Refuses what would miss its objectives (Bouncer Alg. 1).
    #[default]
    Bouncer,
    /// Refuses only when the queue is full.
    MaxQueueLength,
}

/// Settings of `Bouncer`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with interval and minSamples"
)]
pub struct BouncerSettings {
    /// How long a histogram of processing times is filled before it is used; 1s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// Samples it needs before it replaces the one over all types; 50 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_samples: Option<i64>,
}

/// Wraps a strategy so that no type starves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with type and its settings"
)]
pub struct StarvationAvoidance {
    /// Which one.
    #[serde(rename = "type")]
    pub kind: StarvationAvoidanceType,
    /// Settings of `AcceptanceAllowance`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceptance_allowance: Option<AcceptanceAllowance>,
    /// Settings of `HelpingTheUnderserved`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helping_the_underserved: Option<HelpingTheUnderserved>,
}

/// Which starvation avoidance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StarvationAvoidanceType {
    /// Each type is let in at least for this share of its requests (Bouncer Alg. 2).
    AcceptanceAllowance,
    /// Types that are refused more than others are let in more often (Bouncer Alg. 3).
    HelpingTheUnderserved,
}

/// Settings of Bouncer Alg. 2.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with allowance, window and step"
)]
pub struct AcceptanceAllowance {
    /// A, the share of a type's requests that is always let in: 0 to 1; 0.1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowance: Option<f64>,
    /// D, the time over which shares are counted; 1s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
    /// Δ, by which the window slides; 10ms by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Duration>,
}

/// Settings of Bouncer Alg. 3.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with alpha, window and step"
)]
pub struct HelpingTheUnderserved {
    /// α, the greatest probability to let in what the strategy refused: above 0, at most 1; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// D, the time over which shares are counted; 1s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Duration>,
    /// Δ, by which the window slides; 10ms by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Duration>,
}

/// A query type: requests of about the same cost with the same objectives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with name, matches and slo"
)]
pub struct QueryType {
    /// Its name in stats, headers and access logs.
    pub name: String,
    /// Any of these; none for `default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<RequestMatch>,
    /// Response time objectives by percentile, such as `p50` or `p99.9`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub slo: BTreeMap<String, Duration>,
}

impl From<ModeType> for config::Mode {
    fn from(mode: ModeType) -> Self {
        match mode {
            ModeType::Enforce => Self::Enforce,
            ModeType::DryRun => Self::DryRun,
        }
    }
}

impl From<MeasureType> for config::Measure {
    fn from(measure: MeasureType) -> Self {
        match measure {
            MeasureType::LastByte => Self::LastByte,
            MeasureType::FirstByte => Self::FirstByte,
        }
    }
}

impl From<QueueModeType> for config::QueueMode {
    fn from(mode: QueueModeType) -> Self {
        match mode {
            QueueModeType::Hold => Self::Hold,
            QueueModeType::Observe => Self::Observe,
        }
    }
}

impl From<DisciplineType> for config::Discipline {
    fn from(discipline: DisciplineType) -> Self {
        match discipline {
            DisciplineType::Fifo => Self::Fifo,
        }
    }
}
