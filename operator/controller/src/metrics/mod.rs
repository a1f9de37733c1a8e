//! The operator's own metrics. Metrics of requests are in Envoy's stats.
//!
//! All names are registered in this folder, and those of the xDS server in
//! [`headgate_xds::metrics`], so that dashboards and alerts refer to two places. Other code uses
//! typed handles instead of names. There are two kinds of numbers, collected in different ways:
//!
//! - *Events* (streams, pushes, requests to the API server) are counted where they happen, through
//!   a clone of [`Metrics`].
//! - *States* (policies by condition, proxies by state) are read from the report at each scrape. A
//!   gauge updated by increments would be wrong after the first forgotten decrement.
//!
//! Labels have values from closed sets, or from the operator's own requests. So the number of
//! series is bounded, independent of policies, proxies and the content of the API server's answers.

mod kubernetes;
mod modules;
mod plan;
mod process;
mod report;

use std::sync::Arc;

use headgate_xds::metrics::XdsMetrics;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

pub use kubernetes::{KubernetesMetrics, WriteResult};
pub use modules::{ModuleMetrics, ServeResult};
pub use plan::PlanMetrics;

use crate::report::Report;

/// `Content-Type` of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The prefix of all names.
const PREFIX: &str = "headgate";

/// All metrics of a process. Clones share the same numbers.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// The metrics of plans and of leadership.
    pub plan: PlanMetrics,
    /// The metrics of the xDS server.
    pub xds: XdsMetrics,
    /// The metrics of the client of the API server.
    pub kubernetes: KubernetesMetrics,
    /// The metrics of the module server.
    pub modules: ModuleMetrics,
}

impl Metrics {
    /// Returns metrics that start at zero. A process has one instance, but tests have several.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let plan = PlanMetrics::register(&mut registry);
        let xds = XdsMetrics::register(&mut registry);
        let kubernetes = KubernetesMetrics::register(&mut registry);
        let modules = ModuleMetrics::register(&mut registry);
        Self {
            registry: Arc::new(registry),
            plan,
            xds,
            kubernetes,
            modules,
        }
    }

    /// Returns all metrics, including the gauges of `report`, in the OpenMetrics text format.
    pub fn render(&self, report: &Report) -> String {
        let mut gauges = Registry::with_prefix(PREFIX);
        report::register(&mut gauges, report);
        let mut process = Registry::default();
        process::register(&mut process);
        let mut text = String::new();
        for registry in [&gauges, &*self.registry, &process] {
            // Writing to a String can't fail.
            let _ = encode_registry(&mut text, registry);
        }
        let _ = encode_eof(&mut text);
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
