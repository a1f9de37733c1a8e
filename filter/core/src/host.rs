//! The engine's interface to its process: [`Metrics`] for dashboards, and [`Shared`] state on which
//! decisions depend.

#[cfg(test)]
mod memory_tests;

use headgate_strategies::host::{HostError, Shared};

/// The id of a metric, from [`Metrics::define`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MetricId(pub u32);

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// A count that only grows.
    Counter,
    /// A gauge for dashboards. If the stats matcher rejects the gauge, writes are dropped silently.
    Gauge,
    /// A distribution.
    Histogram,
}

/// Metrics for dashboards, which the engine can't read. No call panics.
pub trait Metrics {
    /// Defines a metric. The same name gives the same metric in every worker.
    ///
    /// # Errors
    /// [`HostError::Call`] when the host refuses the name.
    fn define(&self, kind: MetricKind, name: &str) -> Result<MetricId, HostError>;

    /// Adds `delta` (which may be negative for gauges) atomically.
    ///
    /// # Errors
    /// [`HostError::Call`] for an unknown metric.
    fn add(&self, metric: MetricId, delta: i64) -> Result<(), HostError>;

    /// Sets a gauge, or records a value into a histogram.
    ///
    /// # Errors
    /// [`HostError::Call`] for an unknown metric.
    fn record(&self, metric: MetricId, value: u64) -> Result<(), HostError>;
}

/// The complete interface of the engine to its process.
pub trait Host: Metrics + Shared {}

impl<H: Metrics + Shared> Host for H {}
