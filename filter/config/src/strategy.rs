//! The configuration of admission strategies, with its checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::place::{Checked, HOUR_US, Place};
use super::types::is_default;
use super::{ControlScope, MAX_COST, MAX_QUANTITY, ResponseTimeControllerConfig, TypeConfig};

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

    /// Returns the unit of a request's work in the queue. Only backlog control uses others than
    /// time.
    pub fn cost(&self) -> &CostConfig {
        match self {
            Self::BacklogControl(control) => &control.cost,
            _ => &CostConfig::Measured,
        }
    }

    /// Whether a strategy with the settings `other` can adopt these settings and keep its state. It
    /// can if the two differ at most in the processing units, which change with the endpoints.
    pub fn continues(&self, other: &Self) -> bool {
        let mut known = other.clone();
        if let (Some(known), Some(own)) = (known.accept_fraction_mut(), self.accept_fraction()) {
            known.units = own.units;
        }
        *self == known
    }

    /// Checks the strategy at `at`, of a stage with these types and this many classes.
    pub(crate) fn check(&self, at: &Place, types: &[TypeConfig], classes: usize) -> Checked {
        match self {
            Self::Bouncer { capacity, .. } => {
                let at = at.field("capacity");
                capacity.as_ref().map_or(Ok(()), |limit| limit.check(&at))
            }
            Self::MaxQueueLength => Ok(()),
            Self::MaxQueueWait {
                limit_us,
                type_limits_us,
                window_us,
                step_us,
            } => {
                at.within("limit_us", *limit_us, 0..=HOUR_US)?;
                known_types(at, "type_limits_us", type_limits_us, types)?;
                for limit_us in type_limits_us.values() {
                    at.within("type_limits_us", *limit_us, 0..=HOUR_US)?;
                }
                at.window(*window_us, *step_us)
            }
            Self::AcceptFraction(limit) => limit.check(at),
            Self::BacklogControl(control) => control.check(at, types.len()),
            Self::ResponseTimeController(settings) => settings.check(at, types.len(), classes),
        }
    }
}

/// Checks that the keys of the map in `field` are names of `types`.
fn known_types<T>(
    at: &Place,
    field: &str,
    map: &BTreeMap<String, T>,
    types: &[TypeConfig],
) -> Checked {
    map.keys().try_for_each(|name| {
        let is_known = types.iter().any(|kind| kind.name == *name);
        at.ensure(field, is_known, || format!("{name:?}; the name of a type"))
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
    fn check(&self, at: &Place) -> Checked {
        if let Some(units) = self.units {
            at.positive("units", units, MAX_QUANTITY)?;
        }
        at.positive("max_utilization", self.max_utilization, 1.0)?;
        at.window(self.window_us, self.step_us)
    }
}

/// The objectives of a type that an estimate must miss for a refusal (Bouncer §7, future work).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Logic {
    /// A request is refused if it would miss any objective.
    #[default]
    Any,
    /// A request is refused only if it would miss all objectives.
    All,
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
    fn check(&self, at: &Place, types: usize) -> Checked {
        for (field, micros) in [("target_us", self.target_us), ("period_us", self.period_us)] {
            at.within(field, micros, 10_000..=HOUR_US)?;
        }
        for (field, number) in [
            ("proportional_gain", self.proportional_gain),
            ("integral_gain", self.integral_gain),
            ("max_backlog", self.max_backlog),
        ] {
            number.map_or(Ok(()), |number| at.positive(field, number, 1e12))?;
        }
        match &self.cost {
            CostConfig::Measured => Ok(()),
            CostConfig::Type { costs } => {
                at.ensure("cost.costs", costs.len() == types, || {
                    format!("{} costs; one for each of {types} types", costs.len())
                })?;
                let mut costs = costs.iter();
                costs.try_for_each(|&cost| at.within("cost.costs", cost, 1..=MAX_COST))
            }
            CostConfig::Header { header } => at.header_name("cost.header", header),
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
    /// Checks the settings at `at`, around `strategy` and for these types.
    pub(crate) fn check(
        &self,
        at: &Place,
        strategy: &StrategyConfig,
        types: &[TypeConfig],
    ) -> Checked {
        let is_of_types = match strategy {
            StrategyConfig::ResponseTimeController(control) => control.scope == ControlScope::Type,
            _ => true,
        };
        at.ensure("", is_of_types, || {
            "given with scope Policy of ResponseTimeController; scope Type, or no \
             starvation_avoidance"
                .to_owned()
        })?;
        let (window_us, step_us) = match self {
            Self::AcceptanceAllowance {
                allowance,
                type_allowances,
                window_us,
                step_us,
            } => {
                at.within("allowance", *allowance, 0.0..=1.0)?;
                known_types(at, "type_allowances", type_allowances, types)?;
                let types = at.field("type_allowances");
                for (name, allowance) in type_allowances {
                    types.within(name, *allowance, 0.0..=1.0)?;
                }
                (window_us, step_us)
            }
            Self::HelpingTheUnderserved {
                alpha,
                window_us,
                step_us,
            } => {
                at.positive("alpha", *alpha, 1.0)?;
                (window_us, step_us)
            }
        };
        at.window(*window_us, *step_us)
    }
}
