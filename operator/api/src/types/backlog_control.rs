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
    /// S_t, the target of the mean service delay, 10ms to 1h; required. The service delay of a
    /// request is its queue wait plus its processing time at this proxy. Requests that were
    /// refused, timed out in the queue or were cancelled don't count. Neither does the time spent
    /// connecting or waiting for a workflow's rate.
    pub target: Option<Duration>,
    /// The controlled quantity; the cost of queued requests (`Backlog`) by default.
    pub control: BacklogSignal,
    /// The cost that a request adds to the backlog; the measured mean processing time of its type
    /// by default.
    pub cost: Cost,
    /// P, the sampling period, 10ms to 1h; 1s by default. The bound moves at the end of each
    /// period.
    pub period: Option<Duration>,
    /// K_P, the proportional gain: the change of the bound for an error of 1s, in cost (ms with
    /// cost `Measured`), or in requests with control `QueueLength`; with control `Proportional` the
    /// probability of a refusal for an error as large as the target. Above 0, at most 1e12; derived
    /// from measurements by default (1 with `Proportional`). Requires `integralGain`, except with
    /// `Proportional`.
    pub proportional_gain: Option<f64>,
    /// K_I, the integral gain, without a unit: above 0, at most 1e12; derived by default. Requires
    /// `proportionalGain`. Control `Proportional` has none.
    pub integral_gain: Option<f64>,
    /// Upper limit of the bound (max-data), in cost (ms with cost `Measured`), or in requests with
    /// control `QueueLength`: above 0, at most 1e12; the cost of a full queue by default. Control
    /// `Proportional` has none.
    pub max_backlog: Option<f64>,
    /// Whether responses carry the rejection rate (0 to 1) in the header
    /// `x-headgate-rejection-rate`, so that clients can send less; true by default. The rate covers
    /// the last one to two periods. Requests that timed out in the queue count as refused. Mode
    /// `DryRun` sends no header.
    pub hint: Option<bool>,
}

/// The cost that a request adds to the backlog (n_i).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cost {
    /// The source of the cost; `Measured` by default.
    #[serde(rename = "type")]
    pub kind: CostType,
    /// Costs by type name, 1 to 16777216; only with `Type`, 1 for types that aren't listed.
    pub costs: BTreeMap<String, i64>,
    /// Name of the request header with the cost, case-insensitive; only with `Header`,
    /// `x-headgate-cost` by default. A request without the header costs 1.
    pub header: Option<String>,
}

/// The source of a request's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CostType {
    /// The measured mean processing time of the request's type, in ms.
    #[default]
    Measured,
    /// A constant per type.
    Type,
    /// The value of a request header.
    Header,
}
