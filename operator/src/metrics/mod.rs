//! The operator's own metrics. What requests experience is in Envoy's stats.
//!
//! Every name is registered in this folder, so that dashboards and alerts have one place to look
//! at, and whoever counts has a typed handle in place of a name. Two kinds of numbers go two ways:
//!
//! - What has *happened* (streams, pushes, requests to the API server) is counted where it happens,
//!   by a clone of [`Metrics`].
//! - What *is* (policies by condition, proxies by state) is read from the report when somebody
//!   scrapes. A gauge that were kept up to date by increments would be wrong after the first
//!   forgotten decrement.
//!
//! Labels come from closed sets; what isn't known folds into `other`. So the number of series has a
//! bound that doesn't depend on policies, proxies or what an API server answers.

mod kubernetes;
mod modules;
mod plan;
mod process;
mod report;
mod xds;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

pub use kubernetes::{KubernetesMetrics, WriteResult};
pub use modules::{ModuleMetrics, ServeResult};
pub use plan::PlanMetrics;
pub use xds::XdsMetrics;

use crate::xds::status::Report;

/// `Content-Type` of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// What all names start with.
const PREFIX: &str = "headgate";

/// All metrics of a process. Clones count into the same numbers.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

/// The metrics by who counts.
#[derive(Debug)]
pub struct Inner {
    registry: Registry,
    process: Registry,
    /// Plans: from a change of policies, or of the cluster, to what is to be served.
    pub plan: PlanMetrics,
    /// The xDS server.
    pub xds: XdsMetrics,
    /// The client of the API server.
    pub kubernetes: KubernetesMetrics,
    /// The module server.
    pub modules: ModuleMetrics,
}

impl Metrics {
    /// Metrics that start at zero. One a process; several only in tests.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let plan = PlanMetrics::register(&mut registry);
        let xds = XdsMetrics::register(&mut registry);
        let kubernetes = KubernetesMetrics::register(&mut registry);
        let modules = ModuleMetrics::register(&mut registry);
        let mut process = Registry::default();
        process::register(&mut process);
        Self(Arc::new(Inner {
            registry,
            process,
            plan,
            xds,
            kubernetes,
            modules,
        }))
    }

    /// Everything, with the gauges of `report`, for one scrape, in OpenMetrics' text format.
    #[must_use]
    pub fn render(&self, report: &Report) -> String {
        let mut gauges = Registry::with_prefix(PREFIX);
        report::register(&mut gauges, report);
        let mut text = String::new();
        for registry in [&gauges, &self.registry, &self.process] {
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

impl Deref for Metrics {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
