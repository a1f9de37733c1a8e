//! Sample requests. The classifier that also runs in Envoy determines their types by the policy's
//! rules.

use std::time::Duration;

use headgate_core::classify::{Classified, Classifier, RequestView};
use headgate_core::config::StageConfig;
use headgate_core::deadline::own_deadline;
use headgate_strategies::strategy::TypeId;

use super::file::RequestEntry;

/// The header with a request's cost.
const COST: &str = "x-headgate-cost";

/// A sample request.
#[derive(Debug, Clone, Default)]
pub(crate) struct SampleRequest {
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    /// The headers, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) route: Option<String>,
}

impl From<&RequestEntry> for SampleRequest {
    fn from(entry: &RequestEntry) -> Self {
        let header = |(name, value): (&String, &String)| (name.to_ascii_lowercase(), value.clone());
        Self {
            method: Some(entry.method.clone().unwrap_or_else(|| "GET".to_owned())),
            path: Some(entry.path.clone().unwrap_or_else(|| "/".to_owned())),
            headers: entry.headers.iter().map(header).collect(),
            route: entry.route.clone(),
        }
    }
}

impl RequestView for SampleRequest {
    fn path(&self) -> Option<&[u8]> {
        self.path.as_deref().map(str::as_bytes)
    }

    fn method(&self) -> Option<&[u8]> {
        self.method.as_deref().map(str::as_bytes)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_bytes())
    }

    fn route_name(&self) -> Option<&[u8]> {
        self.route.as_deref().map(str::as_bytes)
    }
}

/// The classification of a request in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Classification {
    pub(crate) kind: TypeId,
    pub(crate) class: u8,
    /// The cost; 0 for none.
    pub(crate) cost: u32,
    pub(crate) deadline: Option<Duration>,
}

impl Classification {
    /// Returns the classification of a request of this type, of the lowest class, without cost or
    /// deadline.
    pub(crate) fn of(kind: TypeId, stage: &StageConfig) -> Self {
        let lowest = stage.classes.len().saturating_sub(1);
        Self {
            kind,
            class: u8::try_from(lowest).unwrap_or(u8::MAX),
            cost: 0,
            deadline: None,
        }
    }
}

/// Returns the classification of `request` by these rules; `None` if the request bypasses the
/// stage.
pub(crate) fn place(classifier: &Classifier, request: &SampleRequest) -> Option<Classification> {
    if !classifier.covers(request) {
        return None;
    }
    let Classified::Type(kind) = classifier.classify(request) else {
        return None;
    };
    Some(Classification {
        kind,
        class: classifier.class(request).0,
        cost: cost(request).unwrap_or(0),
        deadline: own_deadline(request),
    })
}

/// Returns the cost in the header of `request`.
pub(crate) fn cost(request: &SampleRequest) -> Option<u32> {
    std::str::from_utf8(request.header(COST)?)
        .ok()?
        .parse()
        .ok()
}
