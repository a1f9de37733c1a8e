//! The gauges that only some policies have. An edit that removes such a gauge resets it.

use std::collections::HashSet;

use headgate_strategies::host::HostError;

use crate::host::{MetricId, MetricKind, Metrics};

/// The gauges that a stage has defined, by name. Ids don't identify a gauge, because a host may
/// give one metric several ids.
#[derive(Debug, Clone, Default)]
pub(super) struct Gauges(Vec<(String, MetricId)>);

impl Gauges {
    /// Defines a gauge.
    pub(super) fn define(
        &mut self,
        host: &impl Metrics,
        name: String,
    ) -> Result<MetricId, HostError> {
        let metric = host.define(MetricKind::Gauge, &name)?;
        self.0.push((name, metric));
        Ok(metric)
    }

    /// Sets to 0 all gauges that are not in `kept`.
    pub(super) fn withdraw(&self, host: &impl Metrics, kept: &Self) -> Result<(), HostError> {
        let kept: HashSet<&str> = kept.0.iter().map(|(name, _)| name.as_str()).collect();
        let mut gone = self
            .0
            .iter()
            .filter(|(name, _)| !kept.contains(name.as_str()));
        gone.try_for_each(|&(_, metric)| host.record(metric, 0))
    }
}
