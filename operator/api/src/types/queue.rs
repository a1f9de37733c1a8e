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
    /// The order of the queue. The default is `Slack` where the proxy holds the queue and the
    /// strategy is Bouncer, so that every type has objectives, and otherwise `FIFO`.
    pub discipline: Option<DisciplineType>,
    /// Settings of the discipline `DRR`.
    pub drr: Option<DeficitRoundRobin>,
    /// Settings of the discipline `WFQ`.
    pub wfq: Option<WeightedFairQueue>,
    /// Longest queue, 0 to 1000000 requests; 800 by default. With 0, a request that finds no free
    /// slot is refused.
    pub max_length: Option<i64>,
    /// Longest wait in the queue, 1ms to 1h; 1s by default. A request's own deadline may be
    /// shorter. It then waits only while its deadline leaves the 10th percentile of its type's
    /// processing time, and is refused at once if it doesn't.
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
    /// Deficit round robin: while requests wait, each type, class or workflow gets its share of the
    /// slots' time, whatever the number and cost of its requests. A request counts as the measured
    /// cost of its type, class or workflow, and once it has ended as the time that it held its
    /// slot.
    #[serde(rename = "DRR")]
    Drr,
    /// Weighted fair queue: shares as with `DRR`, in turns of single requests instead of rounds.
    /// For requests that are small beside a round: with weights of 8, 4 and 1 and a quantum of 1ms,
    /// a round is 13ms.
    #[serde(rename = "WFQ")]
    Wfq,
    /// Strict priority among `classes`: a request waits for all requests of higher classes, and
    /// within its class for earlier ones. Lower classes get the remaining slots, which may be none.
    Priority,
    /// By latest start, the earliest first: the arrival plus the least time that any objective of
    /// the type leaves for waiting. Needs objectives for each type. As with `FIFO`, `EDF` and
    /// `LSTF`, Bouncer estimates a request's wait as the time in which the whole queue drains, not
    /// as the wait of its own place.
    Slack,
}

/// Settings of the discipline `DRR`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeficitRoundRobin {
    /// The flows that take turns; types by default.
    pub by: Flow,
    /// Processing time that a flow of weight 1 may spend in a round, 1ms to 1m; 10ms by default.
    pub quantum: Option<Duration>,
    /// Weights, by name of the type or class or by id of the workflow (1 to 128 bytes): 0.01 to
    /// 100; 1 for the others. At most 1024. A workflow without a weight here has that of
    /// `workflows.named`.
    pub weights: BTreeMap<String, f64>,
}

/// Settings of the discipline `WFQ`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WeightedFairQueue {
    /// The flows that take turns; types by default.
    pub by: Flow,
    /// Weights, as with `drr`.
    pub weights: BTreeMap<String, f64>,
    /// Makes turns of tokens in place of slots' time, for servers of language models, whose time is
    /// shared by the requests that they decode together. A request costs `input` for each unit of
    /// its size (`types[].cost.size`; 1 unit without one) and `output` for each token of its
    /// response: each server-sent event with data, or each part of another body. It is expected to
    /// answer as earlier ones of its type, class or workflow, until its response has ended. With
    /// `by: Workflow`, the process's slots limit no workflow's rate: turns share them. Needs
    /// `releaseSlot: LastByte`.
    pub tokens: Option<TokenCost>,
}

/// The cost of a request in tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TokenCost {
    /// Cost of a unit of the request's size, 0 to 1000; 1 by default. With a size in bytes, such as
    /// `content-length`, the tokens in a byte.
    pub input: Option<f64>,
    /// Cost of a token of the response, 0 to 1000; 2 by default.
    pub output: Option<f64>,
}
