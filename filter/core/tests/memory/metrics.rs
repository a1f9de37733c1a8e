//! The metrics of a [`MemoryHost`].

use headgate_core::host::{MetricId, MetricKind, Metrics};
use headgate_strategies::host::HostError;

use super::{Group, MemoryHost};

impl Metrics for MemoryHost {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        Self::define(self, kind, name)
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        Self::add(self, metric, delta)
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        Self::record(self, metric, value)
    }
}

impl Metrics for Group<'_> {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        self.memory.define(kind, name)
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        self.memory.add(metric, delta)
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        self.memory.record(metric, value)
    }
}

impl Metrics for &MemoryHost {
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        (**self).define(kind, name)
    }

    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError> {
        (**self).add(metric, delta)
    }

    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError> {
        (**self).record(metric, value)
    }
}
