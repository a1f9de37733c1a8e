//! The module server: the outcomes of requests for filter modules.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::fmt::{self, Write as _};

/// The outcome of a request for a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServeResult {
    /// The module was handed over.
    Ok,
    /// No module has that hash.
    NotFound,
    /// Rejected at a limit, or a malformed request.
    Refused,
}

impl ServeResult {
    const ALL: [Self; 3] = [Self::Ok, Self::NotFound, Self::Refused];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotFound => "not_found",
            Self::Refused => "refused",
        }
    }
}

impl EncodeLabelValue for ServeResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    result: ServeResult,
}

/// Handles of the module server's metrics.
#[derive(Debug)]
pub struct ModuleMetrics {
    served: Family<Labels, Counter>,
}

impl ModuleMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let served = Family::<Labels, Counter>::default();
        // Registered at the start: a rate needs a first value, and a counter that first appears
        // with 1 has none.
        for result in ServeResult::ALL {
            drop(served.get_or_create(&Labels { result }));
        }
        registry.register(
            "modules_served",
            "Requests for the filter's module by how they ended",
            served.clone(),
        );
        Self { served }
    }

    /// Returns the number of requests with this outcome.
    #[must_use]
    pub fn count(&self, result: ServeResult) -> u64 {
        self.served.get_or_create(&Labels { result }).get()
    }

    /// Counts a request for a module.
    pub fn served(&self, result: ServeResult) {
        self.served.get_or_create(&Labels { result }).inc();
    }
}
