//! `spec.queue`.

use std::collections::BTreeMap;

use headgate_core::config::{Flow, QueueMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// The queue in front of the backend.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Queue {
    /// The place of the queue; the proxy (`Hold`) by default.
    pub mode: QueueMode,
    /// The order of the queue; by default `Slack` if the proxy holds the queue and the strategy is
    /// `Bouncer`, otherwise `FIFO`.
    pub discipline: Option<DisciplineType>,
    /// Settings of the discipline `DRR`.
    pub drr: Option<DeficitRoundRobin>,
    /// Settings of the discipline `WFQ`.
    pub wfq: Option<WeightedFairQueue>,
    /// Maximum length of the queue, 0 to 1000000 requests; 800 by default. With 0, a request that
    /// finds no free slot is refused.
    pub max_length: Option<i64>,
    /// Maximum wait in the queue, 1ms to 1h; 1s by default. A request's own deadline may be
    /// earlier. The request then waits only while at least the 10th percentile of its type's
    /// processing time is left. If less is left at its arrival, it is refused at once.
    pub timeout: Option<Duration>,
}

/// Order of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DisciplineType {
    /// First in, first out.
    #[serde(rename = "FIFO")]
    Fifo,
    /// Earliest deadline first. The deadline is the request's own, else its type's objective at the
    /// highest percentile, else `timeout`.
    #[serde(rename = "EDF")]
    Edf,
    /// Least slack time first: deadline less the remaining processing time.
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
    /// Deficit round robin: while requests wait, each flow (type, class or workflow) gets its share
    /// of slot time, independent of the number and cost of its requests. A request is charged the
    /// measured cost of its flow at first, and once it has ended the time for which it held its
    /// slot.
    #[serde(rename = "DRR")]
    Drr,
    /// Weighted fair queue: shares as with `DRR`, but flows take turns request by request instead
    /// of in rounds. For requests that are short relative to a round.
    #[serde(rename = "WFQ")]
    Wfq,
    /// Strict priority among `classes`: a request waits for all requests of higher classes, and
    /// within its class for earlier ones. Lower classes get the remaining slots, so they may
    /// starve.
    Priority,
    /// Earliest latest start first: the arrival plus the shortest wait that the objectives of the
    /// type allow. Requires objectives for each type. With `shedByValue: false`, Bouncer judges
    /// requests under `Slack`, `EDF` and `LSTF` by the time in which the whole queue drains, not by
    /// their own wait.
    Slack,
}

/// Settings of the discipline `DRR`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeficitRoundRobin {
    /// The flows that take turns; types by default.
    pub by: Flow,
    /// Slot time that a flow of weight 1 may use per round, 1ms to 1m; 10ms by default.
    pub quantum: Option<Duration>,
    /// Weights by type name, class name or workflow id (1 to 128 bytes): 0.01 to 100; at most 1024
    /// entries. A workflow that isn't listed has its weight in `workflows.named`. Other flows have
    /// weight 1.
    pub weights: BTreeMap<String, f64>,
}

/// Settings of the discipline `WFQ`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WeightedFairQueue {
    /// The flows that take turns; types by default.
    pub by: Flow,
    /// Weights, as in `drr.weights`.
    pub weights: BTreeMap<String, f64>,
    /// Charges tokens in place of slot time, for LLM servers, which decode several requests in one
    /// batch. A request costs `input` per unit of its size (`types[].cost.size`; 1 unit without
    /// one) and `output` per token of its response, as `types[].tpot` counts them. Until the
    /// response has ended, its tokens are estimated from earlier responses of the same flow. With
    /// `by: Workflow`, slots limit no workflow's rate, because the queue shares them. Requires
    /// `releaseSlot: LastByte`.
    pub tokens: Option<TokenCost>,
}

/// The cost of a request in tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TokenCost {
    /// Cost per unit of the request's size, 0 to 1000; 1 by default. For a size in bytes, such as
    /// `content-length`, it is the number of tokens per byte.
    pub input: Option<f64>,
    /// Cost per token of the response, 0 to 1000; 2 by default.
    pub output: Option<f64>,
}
