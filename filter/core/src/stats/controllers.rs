//! Gauges with the outputs of the response time controllers.
//!
//! All workers see the same controllers, and each writes what it sees when that has changed.

use super::gauges::Gauges;
use crate::config::{ControlScope, StageConfig, StrategyConfig};
use crate::host::{HostError, MetricId, Metrics};
use crate::request::{ClassId, TypeId};
use crate::strategy::Admission;

/// A gauge, and the value that this worker set last.
pub(super) type Gauge = (MetricId, Option<u64>);

/// The gauges of one controller.
#[derive(Debug, Clone)]
struct ControllerStats {
    kind: TypeId,
    class: ClassId,
    rate: Gauge,
    response_time: Gauge,
    quality: Option<Gauge>,
}

/// Gauges of a stage's controllers; none with another strategy.
#[derive(Debug, Clone)]
pub(super) struct Controllers(Vec<ControllerStats>);

impl Controllers {
    /// `names` are those of the types in stats.
    pub(super) fn new(
        host: &impl Metrics,
        gauges: &mut Gauges,
        prefix: &str,
        names: &[&str],
        config: &StageConfig,
    ) -> Result<Self, HostError> {
        let StrategyConfig::ResponseTimeController(settings) = &config.strategy else {
            return Ok(Self(Vec::new()));
        };
        let kinds: Vec<String> = match settings.scope {
            ControlScope::Type => names.iter().map(|name| format!("type.{name}.")).collect(),
            ControlScope::Policy => vec![String::new()],
        };
        let mut all = Vec::new();
        for (kind, of_type) in (0..).map(TypeId).zip(&kinds) {
            for class in 0..config.classes.len().max(1) {
                let of_class = config.classes.get(class);
                let of_class = of_class.map_or(String::new(), |c| format!(".class.{}", c.name));
                let mut gauge = |what: &str| {
                    let name = format!("{prefix}.{of_type}{what}{of_class}");
                    gauges.define(host, name).map(|id| (id, None))
                };
                let degrades = settings.degradation.is_some();
                all.push(ControllerStats {
                    kind,
                    class: ClassId(u8::try_from(class).unwrap_or(u8::MAX)),
                    rate: gauge("admission_rate_mhz")?,
                    response_time: gauge("controlled_response_time_us")?,
                    quality: degrades.then(|| gauge("quality_permille")).transpose()?,
                });
            }
        }
        Ok(Self(all))
    }

    /// Publishes changed values.
    pub(super) fn publish(
        &mut self,
        host: &impl Metrics,
        strategy: &dyn Admission,
    ) -> Result<(), HostError> {
        for stats in &mut self.0 {
            let rate = strategy.admission_rate(stats.kind, stats.class);
            set(host, &mut stats.rate, rate)?;
            let measured = strategy.controlled_response_time(stats.kind, stats.class);
            let millis = measured.map(|measured| measured.as_secs_f64() * 1e3);
            set(host, &mut stats.response_time, millis)?;
            if let Some(quality) = &mut stats.quality {
                set(host, quality, strategy.quality(stats.kind, stats.class))?;
            }
        }
        Ok(())
    }
}

/// Sets a gauge to thousandths of `value`.
pub(super) fn set(
    host: &impl Metrics,
    (gauge, last): &mut Gauge,
    value: Option<f64>,
) -> Result<(), HostError> {
    let thousandths = value.map(|value| (value * 1e3).round() as u64);
    if let Some(value) = thousandths.filter(|_| thousandths != *last) {
        host.record(*gauge, value)?;
        *last = thousandths;
    }
    Ok(())
}
