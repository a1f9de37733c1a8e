//! The metrics of the module server: requests for filter modules, by outcome.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use headgate_xds::metrics::register;

/// The outcome of a request for a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServeResult {
    /// The module was sent.
    Ok,
    /// No module has that hash, or its file can't be read.
    NotFound,
    /// The request's method is neither GET nor HEAD, or the connection was rejected at a limit.
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

type Labels = [(&'static str, &'static str); 1];

/// Handles of the module server's metrics.
#[derive(Debug, Clone)]
pub struct ModuleMetrics {
    served: Family<Labels, Counter>,
}

impl ModuleMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let help = "Requests for the filter's module by how they ended";
        let served: Family<Labels, Counter> = register(registry, "modules_served", help);
        // The series are registered at the start, because a counter that first appears with the
        // value 1 shows no rate.
        for result in ServeResult::ALL {
            drop(served.get_or_create(&labels(result)));
        }
        Self { served }
    }

    /// Returns the number of requests with this outcome.
    pub fn count(&self, result: ServeResult) -> u64 {
        self.served.get_or_create(&labels(result)).get()
    }

    /// Counts a request for a module.
    pub fn served(&self, result: ServeResult) {
        self.served.get_or_create(&labels(result)).inc();
    }
}

const fn labels(result: ServeResult) -> Labels {
    [("result", result.as_str())]
}
