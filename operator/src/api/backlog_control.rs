//! `spec.strategy.backlogControl`: Chronos' feedback control of the backlog (Chronos §2–4).

use std::collections::BTreeMap;

use headgate_core::config;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// Settings of `BacklogControl`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with target, control, cost, period and more"
)]
pub struct BacklogControlSettings {
    /// S_t, the mean service delay that is held, 10ms to 1h. It must be given. The delay is queue wait and
    /// processing time at this proxy, of requests that were served; what was refused, ran out of time in the queue or
    /// was given up doesn't count, nor do connecting and waiting for a workflow's rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Duration>,
    /// What is controlled; the cost of what waits (`Backlog`) by default.
    pub control: BacklogSignalType,
    /// What a request adds to the backlog; the measured mean processing time of its type by default.
    pub cost: Cost,
    /// P, the sampling period, at whose end the bound moves, 10ms to 1h; 1s by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<Duration>,
    /// K_P, by which an error of 1s moves the bound: cost (ms with cost `Measured`), or requests with control
    /// `QueueLength`; with control `Proportional` the probability of a refusal for an error as large as the
    /// target. Stats tell the backlog as time, so a trace for `headgate sysid` in another unit of cost has to come
    /// from elsewhere. Above 0, at most 1e12; derived from measurements by default (1 with `Proportional`). Given
    /// only together with `integralGain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proportional_gain: Option<f64>,
    /// K_I, without a unit: above 0, at most 1e12; derived by default. Given only together with
    /// `proportionalGain`; control `Proportional` has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integral_gain: Option<f64>,
    /// The largest bound (max-data), in cost (ms with cost `Measured`), or requests with control
    /// `QueueLength`: above 0, at most 1e12; by default what the longest queue can hold. Control
    /// `Proportional` has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_backlog: Option<f64>,
    /// Whether responses tell the rejection rate (0 to 1) in `x-headgate-rejection-rate`, so that clients
    /// can send less; true by default. It counts refusals over the last one to two periods, with those of requests
    /// that ran out of time in the queue. With mode `DryRun` nothing is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<bool>,
}

/// What backlog control controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum BacklogSignalType {
    /// A bound on the cost of what waits (FC-D).
    #[default]
    Backlog,
    /// A bound on the number of those who wait (FC-Q).
    QueueLength,
    /// No bound: refuses with a probability in proportion to the error (AC).
    Proportional,
}

/// What a request adds to the backlog (n_i).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with type and costs or header"
)]
pub struct Cost {
    /// Where it comes from; `Measured` by default.
    #[serde(rename = "type")]
    pub kind: CostType,
    /// With `Type`: costs by name of the type, 1 to 16777216; 1 for the others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub costs: BTreeMap<String, i64>,
    /// With `Header`: the header that tells it, in any case; `x-headgate-cost` by default. A request without
    /// it costs 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

/// Where the cost of a request comes from.
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

impl CostType {
    /// As policies write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "Measured",
            Self::Type => "Type",
            Self::Header => "Header",
        }
    }
}

impl From<BacklogSignalType> for config::BacklogSignal {
    fn from(signal: BacklogSignalType) -> Self {
        match signal {
            BacklogSignalType::Backlog => Self::Backlog,
            BacklogSignalType::QueueLength => Self::QueueLength,
            BacklogSignalType::Proportional => Self::Proportional,
        }
    }
}
