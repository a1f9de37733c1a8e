//! `spec.strategy`: which requests may enter the queue.
//!
//! `type` names the strategy, and a block of the same name holds its settings. A block of another
//! strategy is a mistake, so that settings without effect are reported. The one exception is
//! `acceptFraction` beside `Bouncer`.

use std::collections::BTreeMap;

use headgate_core::config::Logic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BacklogControlSettings, Duration, ResponseTimeControllerSettings};

/// The strategy that decides which requests may enter the queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Strategy {
    /// The strategy; `Bouncer` by default.
    #[serde(rename = "type")]
    pub kind: StrategyType,
    /// Settings of `Bouncer`.
    pub bouncer: Option<BouncerSettings>,
    /// Settings of `MaxQueueWait`.
    pub max_queue_wait: Option<MaxQueueWaitSettings>,
    /// Settings of `AcceptFraction`. Beside type `Bouncer`, a second limit: of what Bouncer and
    /// `starvationAvoidance` admit, the share that exceeds the utilization is refused at random.
    /// With `shedByValue` the least valuable requests are refused first, and little is left to
    /// refuse at random. Objectives that are far above processing times don't bound the utilization
    /// (Bouncer §2).
    pub accept_fraction: Option<AcceptFractionSettings>,
    /// Settings of `ResponseTimeController`.
    pub response_time_controller: Option<ResponseTimeControllerSettings>,
    /// Settings of `BacklogControl`.
    pub backlog_control: Option<BacklogControlSettings>,
    /// Keeps types from starvation under a strategy that distinguishes types: `Bouncer`,
    /// `MaxQueueWait` with `limits`, `ResponseTimeController` with scope `Type`. None by default.
    pub starvation_avoidance: Option<StarvationAvoidance>,
}

/// The kind of a strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum StrategyType {
    /// Refuses a request whose estimated response time misses an objective of its type (Bouncer
    /// Alg. 1). A type with fewer than `minSamples` processing times is judged by those of all
    /// types and by the objectives of `default`. A type whose processing times alone miss an
    /// objective is admitted while the queue is empty, so that it can be measured again.
    #[default]
    Bouncer,
    /// Refuses only when the queue is full (Bouncer §5.2.1).
    MaxQueueLength,
    /// Refuses requests whose estimated wait is too long (Bouncer §5.2.2, per type §5.5).
    MaxQueueWait,
    /// Refuses the share of the requests that exceeds a utilization of the slots (Bouncer §5.2.3).
    AcceptFraction,
    /// Admits as many requests a second as measured response times allow (SEDA §3.2–3.4).
    ResponseTimeController,
    /// Bounds the backlog by feedback, so that the mean service delay stays at a target (Chronos
    /// §2–4).
    BacklogControl,
}

/// Settings of `Bouncer`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BouncerSettings {
    /// Length of the window that processing times are estimated from, 10ms to 1h; 1s by default.
    /// About 800 responses a second are measured for each type and each worker of the proxy, or all
    /// if there are fewer.
    pub interval: Option<Duration>,
    /// The number of a type's processing times in the window from which on they replace those of
    /// all types, 1 to 1000000; 50 by default.
    pub min_samples: Option<i64>,
    /// The way the window moves; by its whole length (`DualBuffer`) by default.
    pub window: HistogramWindow,
    /// The objectives of a type whose miss refuses a request; `Any` by default.
    pub logic: Logic,
    /// Whether the requests that are worth least per processing time (`types[].value`,
    /// `classes[].value`) are refused first under overload, also where they would meet their
    /// objectives; true by default. A type's requests may then be late for a third of what an
    /// objective allows (17% for p50). False is the Bouncer of the paper.
    pub shed_by_value: Option<bool>,
}

/// The way the window of processing times moves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HistogramWindow {
    /// The kind; `DualBuffer` by default.
    #[serde(rename = "type")]
    pub kind: HistogramWindowType,
    /// With `Sliding`: the step by which it moves, 10ms or more, of which 2 to 100 make the
    /// interval; 100ms by default.
    pub step: Option<Duration>,
}

/// The way the window of processing times moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum HistogramWindowType {
    /// By its whole length: one histogram is read while the next is filled (Bouncer §3).
    #[default]
    DualBuffer,
    /// By a step at a time: follows changes sooner, at more cost (Bouncer §7).
    Sliding,
}

/// Settings of `MaxQueueWait`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MaxQueueWaitSettings {
    /// T, the longest estimated wait of an admitted request, 1ms to 1h. It must be given.
    pub limit: Option<Duration>,
    /// T of single types, by their names; 1ms to 1h each.
    pub limits: BTreeMap<String, Duration>,
    /// D, the window of the mean processing time, 1ms to 1h; 60s by default.
    pub window: Option<Duration>,
    /// Δ, the step by which the window slides, 1ms to 1h; 1s by default. 2 to 10000 steps make the
    /// window.
    pub step: Option<Duration>,
}

/// Settings of `AcceptFraction`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AcceptFractionSettings {
    /// `MaxUtil`, the share of the slots, or of `processingUnits`, that may be in use on average:
    /// above 0, at most 1; 0.95 by default.
    pub max_utilization: Option<f64>,
    /// `|PU|`, the number of processing units where that isn't the number of slots, such as the
    /// cores of a service that holds more requests than it has cores: above 0, at most 1000000. Of
    /// each endpoint with `parallelism.perEndpoint`, else of all together. The slots by default.
    pub processing_units: Option<f64>,
    /// D, the window over which arrival rate and processing time are averaged, 1ms to 1h; 60s by
    /// default.
    pub window: Option<Duration>,
    /// Δ, the interval at which the share is computed, 1ms to 1h; 1s by default. 2 to 10000 steps
    /// make the window.
    pub step: Option<Duration>,
}

/// Wraps a strategy so that no type starves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StarvationAvoidance {
    /// The kind of starvation avoidance.
    #[serde(rename = "type")]
    pub kind: StarvationAvoidanceType,
    /// Settings of `AcceptanceAllowance`.
    pub acceptance_allowance: Option<AcceptanceAllowance>,
    /// Settings of `HelpingTheUnderserved`.
    pub helping_the_underserved: Option<HelpingTheUnderserved>,
}

/// The kind of starvation avoidance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StarvationAvoidanceType {
    /// At least a share of each type's requests is admitted, as far as the queue has room (Bouncer
    /// Alg. 2). These requests may miss their objectives.
    AcceptanceAllowance,
    /// Types that are refused more than others are admitted more often (Bouncer Alg. 3, as far as
    /// the paper describes it). These requests may miss their objectives.
    HelpingTheUnderserved,
}

/// Settings of Bouncer Alg. 2.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AcceptanceAllowance {
    /// A, the share of a type's requests that is admitted whatever the strategy decides, if the
    /// queue has room: 0 to 1; 0.1 by default.
    pub allowance: Option<f64>,
    /// A of single types, by their names; 0 to 1 each. The other types have `allowance`.
    pub allowances: BTreeMap<String, f64>,
    /// D, the window over which shares are counted, 1ms to 1h; 1s by default.
    pub window: Option<Duration>,
    /// Δ, the step by which the window slides, 1ms to 1h; 10ms by default. 2 to 10000 steps make
    /// the window.
    pub step: Option<Duration>,
}

/// Settings of Bouncer Alg. 3.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HelpingTheUnderserved {
    /// α, twice the greatest probability to admit a request that the strategy refused: above 0, at
    /// most 1; 1 by default.
    pub alpha: Option<f64>,
    /// D, the window over which shares are counted, 1ms to 1h; 1s by default.
    pub window: Option<Duration>,
    /// Δ, the step by which the window slides, 1ms to 1h; 10ms by default. 2 to 10000 steps make
    /// the window.
    pub step: Option<Duration>,
}
