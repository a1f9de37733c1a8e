//! Gauges with the response time and the quantile of each objective, and the budget of tokens.
//!
//! Dashboards draw these gauges beside response times. Alerts take from them the share of responses
//! that must be in time. The label of an objective is not enough, because policies may use any
//! percentile, and Prometheus can't convert the label `p99_9` to a number.

use headgate_strategies::host::HostError;
use headgate_strategies::reason::percentile_name;

use super::gauges::Gauges;
use super::tpot_name;
use crate::config::StageConfig;
use crate::host::{MetricId, Metrics};

/// The gauges of a stage's objectives and of its budget of tokens, with their values. All workers
/// write the same values.
#[derive(Debug, Clone)]
pub(super) struct Objectives(Vec<(MetricId, u64)>);

impl Objectives {
    /// Defines the gauges. `names` are the names of the types in stats. Types that share the name
    /// `_other` have no gauges, because their objectives differ.
    pub(super) fn new(
        host: &impl Metrics,
        gauges: &mut Gauges,
        prefix: &str,
        names: &[&str],
        config: &StageConfig,
    ) -> Result<Self, HostError> {
        let mut all = Vec::new();
        if let Some(tokens) = &config.tokens {
            let gauge = gauges.define(host, format!("{prefix}.tokens"))?;
            all.push((gauge, tokens.whole_budget().into()));
        }
        for (kind, shown) in config.types.iter().zip(names) {
            if kind.name != *shown {
                continue;
            }
            let named = kind.slo.iter().map(|o| (percentile_name(o.percentile), o));
            let tokens = kind.tpot.iter().map(|o| (tpot_name(o.percentile), o));
            for (name, objective) in named.chain(tokens) {
                let quantile_ppm = (objective.percentile * 1e4).round() as u64;
                for (what, value) in [
                    ("slo_response_time_us", objective.objective_us),
                    ("slo_quantile_ppm", quantile_ppm),
                ] {
                    let name = format!("{prefix}.type.{shown}.{what}.objective.{name}");
                    all.push((gauges.define(host, name)?, value));
                }
            }
        }
        Ok(Self(all))
    }

    pub(super) fn publish(&self, host: &impl Metrics) -> Result<(), HostError> {
        (self.0.iter()).try_for_each(|&(metric, value)| host.record(metric, value))
    }
}
