//! `spec.queue`.

use std::collections::BTreeMap;

use headgate_core::config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// The queue in front of the backend.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with mode, discipline, drr, wfq, maxLength and timeout"
)]
pub struct Queue {
    /// Who holds it; the proxy (`Hold`) by default.
    pub mode: QueueModeType,
    /// Its order; by default `Slack` where the proxy holds it and the strategy is Bouncer, so that every
    /// type has objectives, and otherwise `FIFO`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discipline: Option<DisciplineType>,
    /// Settings of the discipline `DRR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drr: Option<DeficitRoundRobin>,
    /// Settings of the discipline `WFQ`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wfq: Option<WeightedFairQueue>,
    /// Longest queue, 0 to 1000000 requests; 800 by default. 0: a request that finds no free slot is
    /// refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_length: Option<i64>,
    /// Longest wait in the queue, 1ms to 1h; 1s by default. A request's own deadline may be shorter: it waits
    /// while that leaves the time which one in ten of its type needs at most, and is refused at once where it doesn't.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

/// Who holds the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum QueueModeType {
    /// The proxy: no more requests than `parallelism` are in the backend.
    #[default]
    Hold,
    /// The backend; wait and processing time are reconstructed, and the order is the backend's.
    Observe,
}

/// Order of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DisciplineType {
    /// First in, first out.
    #[serde(rename = "FIFO")]
    Fifo,
    /// Earliest deadline first. The deadline is the request's own, else its type's objective at the highest
    /// percentile, else `timeout`.
    #[serde(rename = "EDF")]
    Edf,
    /// Least slack time first: deadline less the processing time that is still ahead.
    #[serde(rename = "LSTF")]
    Lstf,
    /// Shortest job first, by total work.
    #[serde(rename = "SJF")]
    Sjf,
    /// Shortest remaining processing time first.
    #[serde(rename = "SRTF")]
    Srtf,
    /// Least attained service first, by work so far.
    #[serde(rename = "LASF")]
    Lasf,
    /// Deficit round robin: while requests wait, each type, class or workflow gets its share of the slots' time, however
    /// many requests it sends and whatever they cost. A request counts as what those of its type, class or workflow were
    /// found to take, and once it has ended as the time that it held its slot.
    #[serde(rename = "DRR")]
    Drr,
    /// Weighted fair queue: shares as with `DRR`, in turns of single requests instead of rounds. For requests that are
    /// small beside a round: with weights of 8, 4 and 1 and a quantum of 1ms, a round is 13ms.
    #[serde(rename = "WFQ")]
    Wfq,
    /// Strict priority among `classes`: a request waits for all of higher classes, and within a class for those that came
    /// before it. Lower classes get what higher ones leave, which may be nothing.
    Priority,
    /// By latest start: the arrival plus the least that any objective of the type leaves for waiting. Needs
    /// objectives for each type. As with `FIFO`, `EDF` and `LSTF`, Bouncer judges a request by the time in which all
    /// that waits drains, not by the wait that its own place means.
    Slack,
}

/// Settings of the discipline `DRR`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with by, quantum and weights"
)]
pub struct DeficitRoundRobin {
    /// What takes turns; types by default.
    pub by: FlowType,
    /// Processing time that a flow of weight 1 may spend in a round, 1ms to 1m; 10ms by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantum: Option<Duration>,
    /// Weights, by name of the type or class or by id of the workflow (1 to 128 bytes): 0.01 to 100; 1 for the
    /// others. At most 1024. A workflow without one here has that of `workflows.named`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, f64>,
}

/// Settings of the discipline `WFQ`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with by and weights"
)]
pub struct WeightedFairQueue {
    /// What takes turns; types by default.
    pub by: FlowType,
    /// Weights, as with `drr`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, f64>,
}

/// What takes turns in a fair queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum FlowType {
    /// Query types.
    #[default]
    Type,
    /// Classes.
    Class,
    /// Workflows, by their id as `workflows.identifyBy` finds it, or without that in the header
    /// `x-headgate-workflow` or as `workflow` in `baggage`; requests without one take turns as one. So do
    /// those of ids longer than 128 bytes, and of those that come after the first `workflows.maxWorkflows`, or the
    /// first 1000 where there are no `workflows`.
    Workflow,
}

impl From<FlowType> for config::Flow {
    fn from(flow: FlowType) -> Self {
        match flow {
            FlowType::Type => Self::Type,
            FlowType::Class => Self::Class,
            FlowType::Workflow => Self::Workflow,
        }
    }
}

impl DisciplineType {
    /// As policies write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO",
            Self::Edf => "EDF",
            Self::Lstf => "LSTF",
            Self::Sjf => "SJF",
            Self::Srtf => "SRTF",
            Self::Lasf => "LASF",
            Self::Drr => "DRR",
            Self::Wfq => "WFQ",
            Self::Priority => "Priority",
            Self::Slack => "Slack",
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
