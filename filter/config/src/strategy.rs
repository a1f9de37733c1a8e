//! The types of the filter's configuration: admission strategies, with their checks. The response
//! time controller's checks are in `check`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bounds::{ensure, header_name, positive, window, within};
use super::types::is_default;
use super::{ConfigError, MAX_COST, StageConfig};

/// The strategy that decides which requests may enter the queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum StrategyConfig {
    /// Refuses requests whose estimated response times miss objectives of their type (Bouncer Alg.
    /// 1).
    Bouncer {
        /// Whether a request is refused if it misses any objective of its type, or only if it
        /// misses all.
        #[serde(default)]
        logic: Logic,
        /// Whether a value cut (`strategy::value_cut`) refuses the requests of the least value per
        /// slot time before Alg. 1 decides.
        #[serde(default, skip_serializing_if = "is_default")]
        shed_by_value: bool,
        /// The limit on utilization that also applies to requests that Bouncer admits (Bouncer §2).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        capacity: Option<AcceptFractionConfig>,
    },
    /// Refuses only when the queue is full (`queue.max_length`).
    #[default]
    MaxQueueLength,
    /// Refuses requests whose estimated wait is too long (Bouncer §5.2.2, Eq. 5; per type §5.5).
    MaxQueueWait {
        /// T, the longest estimated wait, µs.
        limit_us: u64,
        /// T of the types with a limit of their own, µs.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        type_limits_us: BTreeMap<String, u64>,
        /// D, the length of the window of the moving averages, µs.
        window_us: u64,
        /// Δ, the step of the window, µs.
        step_us: u64,
    },
    /// Refuses the part of the requests that exceeds a utilization (Bouncer §5.2.3).
    AcceptFraction(AcceptFractionConfig),
    /// Bounds the backlog by feedback (Chronos §2-4).
    BacklogControl(BacklogControlConfig),
    /// Admits as many requests a second as measured response times allow (SEDA §3.2–3.4).
    ResponseTimeController(ResponseTimeControllerConfig),
}

impl StrategyConfig {
    /// Returns the limit on utilization, if it is the strategy itself or follows Bouncer.
    #[must_use]
    pub fn accept_fraction(&self) -> Option<&AcceptFractionConfig> {
        match self {
            Self::AcceptFraction(fraction) => Some(fraction),
            Self::Bouncer { capacity, .. } => capacity.as_ref(),
            _ => None,
        }
    }

    /// Returns [`StrategyConfig::accept_fraction`] mutably, to divide it among proxies.
    pub fn accept_fraction_mut(&mut self) -> Option<&mut AcceptFractionConfig> {
        match self {
            Self::AcceptFraction(fraction) => Some(fraction),
            Self::Bouncer { capacity, .. } => capacity.as_mut(),
            _ => None,
        }
    }

    /// Whether a strategy with the settings `other` can adopt these settings and keep its state. It
    /// can if the two differ at most in the processing units, which change with the endpoints.
    #[must_use]
    pub fn continues(&self, other: &Self) -> bool {
        let mut known = other.clone();
        if let (Some(known), Some(own)) = (known.accept_fraction_mut(), self.accept_fraction()) {
            known.units = own.units;
        }
        *self == known
    }

    /// Checks the strategy of `stage`, which is at `at`.
    pub(crate) fn check(&self, at: &str, stage: &StageConfig) -> Result<(), ConfigError> {
        let strategy = format!("{at}.strategy");
        match self {
            Self::Bouncer { capacity, .. } => {
                let at = format!("{strategy}.capacity");
                capacity.as_ref().map_or(Ok(()), |limit| limit.check(&at))
            }
            Self::MaxQueueLength => Ok(()),
            Self::MaxQueueWait {
                type_limits_us,
                window_us,
                step_us,
                ..
            } => {
                let field = format!("{strategy}.type_limits_us");
                known_types(&field, type_limits_us, stage)?;
                window(strategy, *window_us, *step_us)
            }
            Self::AcceptFraction(limit) => limit.check(&strategy),
            Self::BacklogControl(control) => control.check(&strategy, stage.types.len()),
            Self::ResponseTimeController(settings) => settings.check(at, stage),
        }
    }
}

/// Checks that the keys of the map at `at` are names of types of `stage`.
fn known_types<T>(
    at: &str,
    map: &BTreeMap<String, T>,
    stage: &StageConfig,
) -> Result<(), ConfigError> {
    map.keys().try_for_each(|name| {
        let is_known = stage.types.iter().any(|kind| kind.name == *name);
        ensure(is_known, at, || format!("{name:?}; no type has that name"))
    })
}

/// A limit on the backend's utilization (Bouncer §5.2.3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptFractionConfig {
    /// MaxUtil, the highest utilization, a ratio 0 < u <= 1.
    pub max_utilization: f64,
    /// |PU|, the number of processing units, above 0. Absent: P, the number of slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<f64>,
    /// D, the length of the window of the moving averages, µs.
    pub window_us: u64,
    /// Δ, the step of the window, µs.
    pub step_us: u64,
}

impl AcceptFractionConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        if let Some(units) = self.units {
            let is_right = units > 0.0 && units.is_finite();
            let problem = || format!("{units}; above 0");
            ensure(is_right, format_args!("{at}.units"), problem)?;
        }
        let field = format_args!("{at}.max_utilization");
        positive(field, self.max_utilization, 1.0)?;
        window(at, self.window_us, self.step_us)
    }
}

/// The objectives of a type that an estimate must miss for a refusal (Bouncer §7, future work).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Logic {
    /// Any of them: by their estimates, all objectives of admitted requests are kept.
    #[default]
    Any,
    /// All of them: at least one objective is kept, and fewer requests are refused.
    All,
}

/// SEDA's response time controller. The names in parentheses are those of Figure 4.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseTimeControllerConfig {
    /// Percentile of response times that the controller keeps at the target, 0 < p < 100.
    pub percentile: f64,
    /// The targets, µs. There is one row for each type, or one row for all types with
    /// [`ControlScope::Policy`]. A row has one target for each class, or a single target if there
    /// are no classes.
    pub targets_us: Vec<Vec<u64>>,
    /// The scope of a controller.
    pub scope: ControlScope,
    /// Weight of the past in the moving average of the percentile (α), ratio 0 <= α < 1.
    pub smoothing: f64,
    /// Requests between two runs of a controller (nreq).
    pub requests: u32,
    /// Time after which the controller runs with fewer requests, µs (timeout).
    pub timeout_us: u64,
    /// Relative error below which the rate is increased (err_i).
    pub increase_below: f64,
    /// Relative error above which the rate is decreased (err_d).
    pub decrease_above: f64,
    /// Factor of an increase, requests/s (adj_i). Absent: the factor is 5% of the measured
    /// throughput, and the settings of increases and decreases apply per target time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub increase: Option<f64>,
    /// Divisor of a decrease, above 1 (adj_d).
    pub decrease: f64,
    /// Relative error at which an increase is 0 (c_i).
    pub increase_offset: f64,
    /// Least rate, requests/s, above 0.
    pub min_rate: f64,
    /// Greatest rate, requests/s.
    pub max_rate: f64,
    /// Divisor of the rates of lower classes (adj_lo), above 1.
    pub lower_class_decrease: f64,
    /// The number of runs for which all lower classes must have their least rate before the class's
    /// own rate is decreased (lc_thresh).
    pub lower_class_patience: u32,
    /// Service degradation, which comes before refusals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub degradation: Option<DegradationConfig>,
}

impl ResponseTimeControllerConfig {
    /// Returns SEDA's own settings: Figure 4, and §3.3 for classes. `targets_us` is the target of
    /// the 90th percentile.
    #[must_use]
    pub fn figure_4(scope: ControlScope, targets_us: Vec<Vec<u64>>) -> Self {
        Self {
            percentile: 90.0,
            targets_us,
            scope,
            smoothing: 0.7,
            requests: 100,
            timeout_us: 1_000_000,
            // The paper's Figure 4 lacks the minus sign. The documentation of the strategy's law
            // gives the reasons for it.
            increase_below: -0.5,
            decrease_above: 0.0,
            increase: Some(2.0),
            decrease: 1.2,
            increase_offset: -0.1,
            min_rate: 0.05,
            max_rate: 2_000.0,
            lower_class_decrease: 10.0,
            lower_class_patience: 20,
            degradation: None,
        }
    }

    /// Returns the default settings of a controller without `increase`.
    #[must_use]
    pub fn adaptive(scope: ControlScope, targets_us: Vec<Vec<u64>>) -> Self {
        Self {
            smoothing: 0.3,
            requests: 20,
            increase_below: -0.1,
            increase: None,
            max_rate: 100_000.0,
            ..Self::figure_4(scope, targets_us)
        }
    }
}

/// The scope of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ControlScope {
    /// Each type (times classes), as each stage of SEDA.
    #[default]
    Type,
    /// All types together (times classes).
    Policy,
}

/// Service degradation (SEDA §3.4): a request header carries the quality that the application
/// should deliver.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DegradationConfig {
    /// Lowest quality, ratio 0 < q < 1.
    pub min_quality: f64,
    /// Divisor of quality when response times miss the target, above 1.
    pub decrease: f64,
    /// Increase of the quality when response times meet the target, ratio.
    pub increase: f64,
    /// Whether requests are refused when the lowest quality doesn't suffice.
    pub admission: bool,
}

/// Chronos' backlog control.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BacklogControlConfig {
    /// S_t, the target for the mean service delay, µs.
    pub target_us: u64,
    /// The controlled quantity.
    pub control: BacklogSignal,
    /// The amount that a request adds to the backlog.
    pub cost: CostConfig,
    /// P, the sampling period, µs.
    pub period_us: u64,
    /// K_P, the proportional gain. Its unit is cost per second of error, for FC-Q requests per
    /// second of error, and for AC probability per relative error. Absent: derived from
    /// measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proportional_gain: Option<f64>,
    /// K_I, the integral gain. Absent: derived from measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integral_gain: Option<f64>,
    /// max-data: the largest bound, in cost. Absent: derived from `queue.max_length`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_backlog: Option<f64>,
    /// Whether responses carry the rejection rate (§3.2).
    #[serde(default)]
    pub hint: bool,
}

impl BacklogControlConfig {
    fn check(&self, at: &str, types: usize) -> Result<(), ConfigError> {
        let times = [("target_us", self.target_us), ("period_us", self.period_us)];
        for (field, micros) in times {
            within(format_args!("{at}.{field}"), micros, 10_000..=3_600_000_000)?;
        }
        let numbers = [
            ("proportional_gain", self.proportional_gain),
            ("integral_gain", self.integral_gain),
            ("max_backlog", self.max_backlog),
        ];
        for (field, number) in numbers {
            if let Some(number) = number {
                positive(format_args!("{at}.{field}"), number, 1e12)?;
            }
        }
        match &self.cost {
            CostConfig::Measured => Ok(()),
            CostConfig::Type { costs } => {
                let field = format_args!("{at}.cost.costs");
                ensure(costs.len() == types, field, || {
                    format!("{} costs; one for each of {types} types", costs.len())
                })?;
                let mut costs = costs.iter();
                costs.try_for_each(|&cost| within(field, cost, 1..=MAX_COST))
            }
            CostConfig::Header { header } => header_name(format_args!("{at}.cost.header"), header),
        }
    }
}

/// The controlled quantity of backlog control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BacklogSignal {
    /// A bound on the cost of queued requests (FC-D).
    #[default]
    Backlog,
    /// A bound on the number of queued requests (FC-Q).
    QueueLength,
    /// No bound: refuses with a probability in proportion to the error (AC).
    Proportional,
}

/// The amount that a request adds to the backlog (n_i).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum CostConfig {
    /// The measured mean processing time of its type, in ms.
    Measured,
    /// A number for each type, in the order of the types.
    Type {
        /// The costs, in the order of the types.
        costs: Vec<u32>,
    },
    /// The value of a request header, or 1 for a request without the header.
    Header {
        /// Lower case name.
        header: String,
    },
}

/// A strategy against the starvation of types, which wraps the admission strategy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum StarvationAvoidance {
    /// Accepts at least a small part of the requests of every type (Bouncer Alg. 2).
    AcceptanceAllowance {
        /// A, the allowance, a ratio 0..=1.
        allowance: f64,
        /// A of the types with an allowance of their own.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        type_allowances: BTreeMap<String, f64>,
        /// D, the length of the window, µs.
        window_us: u64,
        /// Δ, the step of the window, µs.
        step_us: u64,
    },
    /// Overrides rejections of types that are accepted less than the average (Bouncer Alg. 3).
    HelpingTheUnderserved {
        /// α, which scales the probability that a rejection is overridden, 0 < α <= 1.
        alpha: f64,
        /// D, the length of the window, µs.
        window_us: u64,
        /// Δ, the step of the window, µs.
        step_us: u64,
    },
}

impl StarvationAvoidance {
    /// Checks the settings of `stage`, which are at `at`.
    pub(crate) fn check(&self, at: &str, stage: &StageConfig) -> Result<(), ConfigError> {
        let (window_us, step_us) = match self {
            Self::AcceptanceAllowance {
                allowance,
                type_allowances,
                window_us,
                step_us,
            } => {
                within(format_args!("{at}.allowance"), *allowance, 0.0..=1.0)?;
                let field = format!("{at}.type_allowances");
                known_types(&field, type_allowances, stage)?;
                for (name, allowance) in type_allowances {
                    within(format_args!("{field}.{name}"), *allowance, 0.0..=1.0)?;
                }
                (window_us, step_us)
            }
            Self::HelpingTheUnderserved {
                alpha,
                window_us,
                step_us,
            } => {
                positive(format_args!("{at}.alpha"), *alpha, 1.0)?;
                (window_us, step_us)
            }
        };
        window(at, *window_us, *step_us)
    }
}
