//! Gauges with the outputs of a strategy's feedback control.
//!
//! All workers have the same outputs, and each writes those that have changed.

use headgate_strategies::host::HostError;
use headgate_strategies::request::{ClassId, TypeId};
use headgate_strategies::strategy::Admission;
use headgate_strategies::time::micros;

use super::gauges::Gauges;
use crate::config::{ControlScope, StageConfig, StrategyConfig};
use crate::host::{MetricId, Metrics};

/// A number that a strategy computes.
#[derive(Debug, Clone, Copy)]
enum Output {
    /// The outputs of the response time controller.
    Rate(TypeId, ClassId),
    ResponseTime(TypeId, ClassId),
    Quality(TypeId, ClassId),
    /// The outputs of backlog control.
    Bound,
    ServiceDelay,
    /// The outputs of the value cut.
    Admitted(TypeId),
    Density(TypeId),
    Asked(TypeId),
    Budget,
    FloorsOverCapacity,
}

impl Output {
    /// Returns the value for the gauge. Returns `None` before the strategy has computed the first.
    fn of(self, strategy: &dyn Admission) -> Option<u64> {
        let thousandths = |value: f64| (value * 1e3).round() as u64;
        let value = match self {
            Self::Rate(kind, class) => strategy.admission_rate(kind, class)?,
            Self::ResponseTime(kind, class) => {
                strategy
                    .controlled_response_time(kind, class)?
                    .as_secs_f64()
                    * 1e3
            }
            Self::Quality(kind, class) => strategy.quality(kind, class)?,
            Self::Bound => return Some(strategy.controlled_bound()?.value),
            Self::ServiceDelay => return Some(micros(strategy.controlled_bound()?.service_delay)),
            Self::Admitted(kind) => strategy.value_cut()?.admitted(kind),
            // A gauge of 0 means that the type has no rank yet. For the budget, 0 means that
            // nothing is refused by value. So any other value is at least 0.001.
            Self::Density(kind) => match strategy.value_cut()?.density(kind) {
                0.0 => 0.0,
                density => density.max(1e-3),
            },
            Self::Asked(kind) => strategy.value_cut()?.asked(kind),
            Self::Budget => strategy.value_cut()?.budget().max(1e-3),
            Self::FloorsOverCapacity => return Some((!strategy.value_cut()?.floors_fit()).into()),
        };
        Some(thousandths(value))
    }
}

/// The gauges of a stage's strategy.
#[derive(Debug, Clone)]
pub(super) struct Outputs(Vec<(Output, MetricId, Option<u64>)>);

impl Outputs {
    /// Defines the gauges. `names` are the names of the types in stats.
    pub(super) fn new(
        host: &impl Metrics,
        gauges: &mut Gauges,
        prefix: &str,
        names: &[&str],
        config: &StageConfig,
    ) -> Result<Self, HostError> {
        let mut all = Vec::new();
        let mut define = |output: Output, name: &str| {
            let metric = gauges.define(host, format!("{prefix}.{name}"))?;
            all.push((output, metric, None));
            Ok::<_, HostError>(())
        };
        match &config.strategy {
            StrategyConfig::ResponseTimeController(settings) => {
                let kinds: Vec<String> = match settings.scope {
                    ControlScope::Type => names.iter().map(|n| format!("type.{n}.")).collect(),
                    ControlScope::Policy => vec![String::new()],
                };
                let classes = config.classes.iter().map(|c| format!(".class.{}", c.name));
                let mut classes: Vec<String> = classes.collect();
                classes.resize(classes.len().max(1), String::new());
                for (kind, of_type) in (0..).map(TypeId).zip(&kinds) {
                    for (class, of_class) in (0..).map(ClassId).zip(&classes) {
                        let name = |what: &str| format!("{of_type}{what}{of_class}");
                        define(Output::Rate(kind, class), &name("admission_rate_mhz"))?;
                        let response_time = name("controlled_response_time_us");
                        define(Output::ResponseTime(kind, class), &response_time)?;
                        if settings.degradation.is_some() {
                            define(Output::Quality(kind, class), &name("quality_permille"))?;
                        }
                    }
                }
            }
            StrategyConfig::BacklogControl(_) => {
                define(Output::Bound, "backlog_bound")?;
                define(Output::ServiceDelay, "service_delay_us")?;
            }
            StrategyConfig::Bouncer {
                shed_by_value: true,
                ..
            } => {
                for (kind, name) in (0..).map(TypeId).zip(names) {
                    let name = |what: &str| format!("type.{name}.{what}");
                    define(Output::Admitted(kind), &name("value_admitted_permille"))?;
                    define(Output::Density(kind), &name("value_per_slot_second_milli"))?;
                    define(Output::Asked(kind), &name("value_slots_asked_milli"))?;
                }
                define(Output::Budget, "value_budget_permille")?;
                define(Output::FloorsOverCapacity, "floors_over_capacity")?;
            }
            _ => {}
        }
        Ok(Self(all))
    }

    /// Publishes the values that have changed.
    pub(super) fn publish(
        &mut self,
        host: &impl Metrics,
        strategy: &dyn Admission,
    ) -> Result<(), HostError> {
        for (output, gauge, last) in &mut self.0 {
            let value = output.of(strategy);
            if let Some(value) = value.filter(|value| Some(*value) != *last) {
                host.record(*gauge, value)?;
                *last = Some(value);
            }
        }
        Ok(())
    }
}
