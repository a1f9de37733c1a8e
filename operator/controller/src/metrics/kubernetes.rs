//! The metrics of the API server's client: requests, writes by outcome, and lost watches.

use std::borrow::Cow;

use http::{StatusCode, Uri};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use headgate_xds::metrics::register;

/// The outcome of a write to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteResult {
    /// The object was created or changed.
    Applied,
    /// A conflict with another field manager or a newer version.
    Conflict,
    /// Any other failure.
    Error,
}

impl WriteResult {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Conflict => "conflict",
            Self::Error => "error",
        }
    }
}

type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// Handles of the metrics of the client of the API server.
#[derive(Debug, Clone)]
pub struct KubernetesMetrics {
    requests: Family<Labels<3>, Counter>,
    writes: Family<Labels<2>, Counter>,
    watch_restarts: Family<Labels<1>, Counter>,
}

impl KubernetesMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            requests: register(
                registry,
                "kubernetes_requests",
                "Requests to the API server; code is the HTTP status, or error without a response",
            ),
            writes: register(
                registry,
                "kubernetes_writes",
                "Statuses and Events written to the API server, by result",
            ),
            watch_restarts: register(
                registry,
                "kubernetes_watch_restarts",
                "Watches that ended with an error and were restarted",
            ),
        }
    }

    /// Counts a request to the API server. `status` is that of the response, or `None` without a
    /// response. `operation` is the client's name for the request, such as `patch_status`.
    pub fn requested(&self, operation: &'static str, uri: &Uri, status: Option<StatusCode>) {
        // RBAC and audit logs use the same verb for all variants of an operation.
        let verb = operation.split('_').next().unwrap_or(operation);
        let code = status.map_or("error".into(), |s| s.as_str().to_owned().into());
        let labels = [
            ("verb", verb.into()),
            ("resource", resource(uri).to_owned().into()),
            ("code", code),
        ];
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a write of an object of `resource`, or of its status. `resource` is the plural in
    /// lower case, such as `admissionpolicies`.
    pub fn wrote(&self, resource: &str, result: WriteResult) {
        let labels = [
            ("resource", resource.to_owned().into()),
            ("result", result.as_str().into()),
        ];
        self.writes.get_or_create(&labels).inc();
    }

    /// Returns the counter of a watch's restarts after an error. `resource` is the plural in lower
    /// case. A watch gets its counter when it starts, because a counter that first appears with the
    /// value 1 shows no increase.
    pub fn watch_restarts(&self, resource: &str) -> Counter {
        let labels = [("resource", resource.to_owned().into())];
        self.watch_restarts.get_or_create_owned(&labels)
    }
}

/// Returns the resource in a request's path, such as `/api/v1/namespaces/a/pods/b` or
/// `/apis/GROUP/VERSION/pods`.
fn resource(uri: &Uri) -> &str {
    let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
    let versioned = match parts.next() {
        Some("api") => parts.next().is_some(),
        Some("apis") => parts.next().is_some() && parts.next().is_some(),
        _ => false,
    };
    let mut rest = parts.filter(|_| versioned);
    match (rest.next(), rest.next(), rest.next()) {
        // The path names a resource in a namespace, rather than the namespace itself.
        (Some("namespaces"), Some(_), Some(resource)) => resource,
        // Discovery, /version and /healthz have no resource.
        (resource, ..) => resource.unwrap_or("none"),
    }
}
