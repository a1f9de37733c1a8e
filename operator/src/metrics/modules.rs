//! The module server: what proxies that fetch the filter by its hash got.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use std::fmt::{self, Write as _};

/// How a request for a module ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServeResult {
    /// The module was handed over.
    Ok,
    /// No module of that hash is here.
    NotFound,
    /// Turned away at a limit, or a malformed request.
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
        // From the start: a rate needs a first value, and a counter that is born at 1 has none.
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

    /// Requests that ended so.
    #[must_use]
    pub fn count(&self, result: ServeResult) -> u64 {
        self.served.get_or_create(&Labels { result }).get()
    }

    /// A request for a module ended.
    pub fn served(&self, result: ServeResult) {
        self.served.get_or_create(&Labels { result }).inc();
    }
}
