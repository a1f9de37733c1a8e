//! The `spec` of an [`AdmissionPolicy`](super::AdmissionPolicy).

use std::collections::BTreeMap;

use headgate_core::config;
use serde::{Deserialize, Serialize};

use super::{Duration, Queue, RequestMatch, Strategy};

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
    /// When a request's processing time ends; with the last byte of the response by default.
    #[serde(default)]
    pub measure: MeasureType,
    /// The queue in front of the backend.
    #[serde(default)]
    pub queue: Queue,
    /// Decides which requests may enter the queue; `Bouncer` by default.
    #[serde(default)]
    pub strategy: Strategy,
    /// Query types, tried in order; `default`, wherever it stands, takes the rest. 1 to 1024.
    pub types: Vec<QueryType>,
    /// Classes of requests by what they are worth, the highest priority first; the last has no matches and
    /// takes the rest. At most 16; none by default, and then all requests are of one class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<RequestClass>,
    /// Requests that bypass admission, such as health checks; at most 64 matches.
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
    /// Slots over all endpoints, 1 to 1000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<i64>,
    /// Slots of each ready endpoint, 1 to 1000000.
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
    /// Any of these; none for `default`. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<RequestMatch>,
    /// Response time objectives by percentile, such as `p50` or `p99.9`: 1ms to 1h each, at most 16.
    /// `Bouncer` and the discipline `Slack` need one or more for each type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub slo: BTreeMap<String, Duration>,
}

/// A class: requests that are worth the same, whatever their type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with name and matches"
)]
pub struct RequestClass {
    /// Its name in stats.
    pub name: String,
    /// Any of these; none for the last class. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<RequestMatch>,
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
