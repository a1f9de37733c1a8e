//! `spec.strategy.backlogControl`: Chronos' feedback control of the backlog (Chronos §2–4).

use std::collections::BTreeMap;

use headgate_core::config::BacklogSignal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// Settings of `BacklogControl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BacklogControlSettings {
    /// S_t, the target of the mean service delay, 10ms to 1h. It must be given. The service delay
    /// of a request is its queue wait plus its processing time at this proxy. Only served requests
    /// count: not those that were refused, timed out in the queue or were cancelled. Time spent
    /// connecting and waiting for a workflow's rate doesn't count.
    pub target: Option<Duration>,
    /// The controlled quantity; the cost of queued requests (`Backlog`) by default.
    pub control: BacklogSignal,
    /// The amount that a request adds to the backlog; the measured mean processing time of its type
    /// by default.
    pub cost: Cost,
    /// P, the sampling period, at whose end the bound moves, 10ms to 1h; 1s by default.
    pub period: Option<Duration>,
    /// K_P, the amount by which an error of 1s moves the bound: cost (ms with cost `Measured`), or
    /// requests with control `QueueLength`; with control `Proportional` the probability of a
    /// refusal for an error as large as the target. Above 0, at most 1e12; derived from
    /// measurements by default (1 with `Proportional`). Given only together with `integralGain`.
    /// Stats report the backlog as time, so a trace for `headgate sysid` in another unit of cost
    /// has to come from elsewhere.
    pub proportional_gain: Option<f64>,
    /// K_I, without a unit: above 0, at most 1e12; derived by default. Given only together with
    /// `proportionalGain`; control `Proportional` has none.
    pub integral_gain: Option<f64>,
    /// The largest bound (max-data), in cost (ms with cost `Measured`), or requests with control
    /// `QueueLength`: above 0, at most 1e12; by default the cost of the longest queue. Control
    /// `Proportional` has none.
    pub max_backlog: Option<f64>,
    /// Whether responses carry the rejection rate (0 to 1) in the header
    /// `x-headgate-rejection-rate`, so that clients can send less; true by default. The rate covers
    /// the last one to two periods, and counts requests that timed out in the queue as refused.
    /// Mode `DryRun` sends no header.
    pub hint: Option<bool>,
}

/// The amount that a request adds to the backlog (n_i).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cost {
    /// The source of the cost; `Measured` by default.
    #[serde(rename = "type")]
    pub kind: CostType,
    /// With `Type`: costs by name of the type, 1 to 16777216; 1 for the others.
    pub costs: BTreeMap<String, i64>,
    /// With `Header`: the name of the header that carries the cost, in any case; `x-headgate-cost`
    /// by default. A request without it costs 1.
    pub header: Option<String>,
}

/// The source of a request's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CostType {
    /// The measured mean processing time of its type, in ms.
    #[default]
    Measured,
    /// A number for each type.
    Type,
    /// A header of the request.
    Header,
}
