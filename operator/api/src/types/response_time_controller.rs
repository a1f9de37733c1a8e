//! `spec.strategy.responseTimeController`: SEDA's controller (SEDA §3.2–3.4). Brackets hold the
//! names of its Figure 4.

use std::collections::BTreeMap;

use headgate_core::config::ControlScope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// Settings of `ResponseTimeController`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ResponseTimeControllerSettings {
    /// Percentile of response times to hold at the target: above 0, below 100; 90 by default. The
    /// response time of a request is its queue wait plus its processing time at this proxy.
    /// Requests that timed out in the queue don't count. With `workflows`, the response time begins
    /// at the request's entry to the mesh, if the peers on its path are trusted.
    pub percentile: Option<f64>,
    /// The target for all types, 1ms to 1h; each type's objective at `percentile` by default.
    pub target: Option<Duration>,
    /// Targets by class name, for all types; 1ms to 1h each.
    pub class_targets: BTreeMap<String, Duration>,
    /// Targets by type name and class name, with precedence over all others; 1ms to 1h each. Only
    /// with classes and scope `Type`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub type_targets: BTreeMap<String, BTreeMap<String, Duration>>,
    /// The scope of a controller; each type by default.
    pub scope: ControlScope,
    /// Weight of the previous value in the moving average of the percentile (α): 0 or more, below
    /// 1; 0.3 by default, 0.7 if `increase` is set.
    pub smoothing: Option<f64>,
    /// Number of requests after which the controller runs (nreq), 1 to 10000; 20 by default, 100 if
    /// `increase` is set.
    pub requests: Option<i64>,
    /// Time after which the controller runs even with fewer requests (timeout), 10ms to 1h; 1s by
    /// default.
    pub timeout: Option<Duration>,
    /// Relative error of the response time below which the rate increases (err_i): above -1, at
    /// most `increaseOffset` and `decreaseAbove`; -0.1 by default, -0.5 if `increase` is set.
    pub increase_below: Option<f64>,
    /// Relative error above which the rate decreases (err_d): -1 to 10; 0 by default.
    pub decrease_above: Option<f64>,
    /// Factor of an increase (adj_i), requests/s: above 0, at most 1000000; 5% of the measured
    /// throughput by default. With the default, increases and decreases are per interval as long as
    /// the target, not per run, and in overload a decrease starts at the throughput.
    pub increase: Option<f64>,
    /// Divisor of a decrease (adj_d): above 1, at most 1000000; 1.2 by default.
    pub decrease: Option<f64>,
    /// Relative error at which an increase would be 0 (c_i): -1 to 10; -0.1 by default.
    pub increase_offset: Option<f64>,
    /// Minimum rate, requests/s: 0.001 to `maxRate`; 0.05 by default.
    pub min_rate: Option<f64>,
    /// Maximum and initial rate, requests/s: `minRate` to 1000000; 100000 by default, 2000 if
    /// `increase` is set.
    pub max_rate: Option<f64>,
    /// Divisor of the rates of lower classes when a class misses its target (adj_lo): above 1, at
    /// most 1000000; 10 by default. Only with classes.
    pub lower_class_decrease: Option<f64>,
    /// Number of runs for which all lower classes must be at `minRate` before the rate of the class
    /// itself decreases (lc_thresh), 0 to 1000000; 20 by default. Only with classes.
    pub lower_class_patience: Option<i64>,
    /// Service degradation: the request header `x-headgate-quality` asks the application for lower
    /// quality before requests are refused; none by default.
    pub degradation: Option<DegradationSettings>,
}

/// Service degradation (SEDA §3.4).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DegradationSettings {
    /// Minimum quality, where 1 is full quality: above 0, below 1; 0.1 by default.
    pub min_quality: Option<f64>,
    /// Divisor of the quality when response times miss the target: above 1, at most 1000000; 1.2 by
    /// default.
    pub decrease: Option<f64>,
    /// Increase of the quality when response times meet the target: above 0, at most 1; 0.05 by
    /// default.
    pub increase: Option<f64>,
    /// Whether requests are refused when the minimum quality doesn't suffice; true by default.
    pub admission: Option<bool>,
}
