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
    /// Settings of `AcceptFraction`. With type `Bouncer` they are a second limit: of the requests
    /// that Bouncer and `starvationAvoidance` admit, the share above the utilization is refused at
    /// random. With `shedByValue`, the least valuable requests are refused first, and few at
    /// random.
    pub accept_fraction: Option<AcceptFractionSettings>,
    /// Settings of `ResponseTimeController`.
    pub response_time_controller: Option<ResponseTimeControllerSettings>,
    /// Settings of `BacklogControl`.
    pub backlog_control: Option<BacklogControlSettings>,
    /// Prevents starvation of types under a strategy that distinguishes types: `Bouncer`,
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
    /// Length of the window in which processing times are measured, 10ms to 1h; 1s by default. At
    /// most about 800 responses/s are measured per type and worker thread of the proxy.
    pub interval: Option<Duration>,
    /// Minimum number of a type's processing times in the window, 1 to 1000000; 50 by default. With
    /// fewer, the processing times of all types count.
    pub min_samples: Option<i64>,
    /// The way the window moves; by its whole length (`DualBuffer`) by default.
    pub window: HistogramWindow,
    /// Whether missing any or all objectives of its type refuses a request; `Any` by default.
    pub logic: Logic,
    /// Whether, under overload, the requests with the least value per processing time
    /// (`types[].value`, `classes[].value`) are refused first, even if they would meet their
    /// objectives; true by default. The share of a type's responses that may be late is then a
    /// third of what an objective allows (17% for p50). False is the Bouncer of the paper.
    pub shed_by_value: Option<bool>,
}

/// The way the window of processing times moves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HistogramWindow {
    /// The kind; `DualBuffer` by default.
    #[serde(rename = "type")]
    pub kind: HistogramWindowType,
    /// Step by which the window slides, 10ms or more; only with `Sliding`, 100ms by default. The
    /// interval has 2 to 100 steps.
    pub step: Option<Duration>,
}

/// The way the window of processing times moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum HistogramWindowType {
    /// By its whole length: one histogram is read while another is filled (Bouncer §3).
    #[default]
    DualBuffer,
    /// Step by step: follows changes sooner, at a higher cost (Bouncer §7).
    Sliding,
}

/// Settings of `MaxQueueWait`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MaxQueueWaitSettings {
    /// T, the maximum estimated wait of an admitted request, 1ms to 1h; required.
    pub limit: Option<Duration>,
    /// T by type name, with precedence over `limit`; 1ms to 1h each.
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
    /// `MaxUtil`, the maximum mean utilization of the slots, or of `processingUnits`: above 0, at
    /// most 1; 0.95 by default.
    pub max_utilization: Option<f64>,
    /// `|PU|`, the number of processing units, such as the cores of a service that holds more
    /// requests than it has cores: above 0, at most 1000000; the number of slots by default. It is
    /// per endpoint with `parallelism.perEndpoint`, otherwise for all endpoints together.
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

/// The kind of starvation avoidance. Requests that it admits may miss their objectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StarvationAvoidanceType {
    /// Admits at least a share of each type's requests while the queue has room (Bouncer Alg. 2).
    AcceptanceAllowance,
    /// Admits more requests of types that are refused more than others (Bouncer Alg. 3, as far as
    /// the paper describes it).
    HelpingTheUnderserved,
}

/// Settings of Bouncer Alg. 2.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AcceptanceAllowance {
    /// A, the share of a type's requests that is admitted regardless of the strategy while the
    /// queue has room: 0 to 1; 0.1 by default.
    pub allowance: Option<f64>,
    /// A by type name, with precedence over `allowance`; 0 to 1 each.
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
    /// α, twice the maximum probability of admitting a request that the strategy refused: above 0,
    /// at most 1; 1 by default.
    pub alpha: Option<f64>,
    /// D, the window over which shares are counted, 1ms to 1h; 1s by default.
    pub window: Option<Duration>,
    /// Δ, the step by which the window slides, 1ms to 1h; 10ms by default. 2 to 10000 steps make
    /// the window.
    pub step: Option<Duration>,
}
