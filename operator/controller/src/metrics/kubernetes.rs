//! The API server's client: each request, each write by its outcome, each lost watch.

use std::borrow::Cow;

use http::{Method, StatusCode, Uri};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Resources that the operator watches.
const WATCHED: [&str; 8] = [
    "admissionpolicies",
    "endpointslices",
    "gateways",
    "grpcroutes",
    "httproutes",
    "inferencepools",
    "pods",
    "services",
];

/// The outcome of a write to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteResult {
    /// Created or changed.
    Applied,
    /// Another field manager or a newer version conflicts.
    Conflict,
    /// Anything else.
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
#[derive(Debug)]
pub struct KubernetesMetrics {
    requests: Family<Labels<3>, Counter>,
    writes: Family<Labels<2>, Counter>,
    watch_restarts: Family<Labels<1>, Counter>,
}

impl KubernetesMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            writes: Family::default(),
            watch_restarts: Family::default(),
        };
        // Registered at the start: a counter that first appears with 1 has no increase.
        for resource in WATCHED {
            let labels = [("resource", resource.into())];
            drop(metrics.watch_restarts.get_or_create(&labels));
        }
        registry.register(
            "kubernetes_requests",
            "Requests to the API server; code is the HTTP status, or error where there was no \
             answer",
            metrics.requests.clone(),
        );
        registry.register(
            "kubernetes_writes",
            "Objects and statuses written to the API server, by what came of it",
            metrics.writes.clone(),
        );
        registry.register(
            "kubernetes_watch_restarts",
            "Watches that ended with an error and began anew",
            metrics.watch_restarts.clone(),
        );
        metrics
    }

    /// Counts a request to the API server that was answered with `status`; `None`: without an
    /// answer.
    pub fn requested(&self, method: &Method, uri: &Uri, status: Option<StatusCode>) {
        let path = Path::of(uri);
        let verb = verb(method, &path, uri.query().unwrap_or_default());
        let code = status.map_or("error".into(), |s| s.as_str().to_owned().into());
        let labels = [
            ("verb", verb.into()),
            ("resource", path.resource.to_owned().into()),
            ("code", code),
        ];
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a write of an object, or of its status, of `resource` (plural, lower case:
    /// `admissionpolicies`).
    pub fn wrote(&self, resource: &str, result: WriteResult) {
        let labels = [
            ("resource", resource.to_owned().into()),
            ("result", result.as_str().into()),
        ];
        self.writes.get_or_create(&labels).inc();
    }

    /// Counts a watch of `resource` (plural, lower case) that ended with an error and restarts.
    pub fn watch_restarted(&self, resource: &str) {
        let labels = [("resource", resource.to_owned().into())];
        self.watch_restarts.get_or_create(&labels).inc();
    }
}

/// The parts of a request's path: `/api/v1/namespaces/a/pods/b`, `/apis/GROUP/VERSION/pods`.
struct Path<'a> {
    resource: &'a str,
    /// Whether it is one object rather than a collection.
    named: bool,
}

impl<'a> Path<'a> {
    fn of(uri: &'a Uri) -> Self {
        let mut parts = uri.path().split('/').filter(|part| !part.is_empty());
        let versioned = match parts.next() {
            Some("api") => parts.next().is_some(),
            Some("apis") => parts.next().is_some() && parts.next().is_some(),
            _ => false,
        };
        let mut rest = parts.filter(|_| versioned);
        let (first, second, third) = (rest.next(), rest.next(), rest.next());
        let (resource, name) = match (first, second, third) {
            // An object in a namespace, rather than a namespace itself.
            (Some("namespaces"), Some(_), Some(resource)) => (Some(resource), rest.next()),
            (resource, name, _) => (resource, name),
        };
        Self {
            // Discovery, /version, /healthz.
            resource: resource.unwrap_or("none"),
            named: name.is_some(),
        }
    }
}

/// Returns the verb as RBAC and audit logs name it.
fn verb(method: &Method, path: &Path<'_>, query: &str) -> &'static str {
    let watches = || {
        query
            .split('&')
            .any(|p| matches!(p, "watch=true" | "watch=1"))
    };
    match *method {
        Method::GET if watches() => "watch",
        Method::GET if path.named || path.resource == "none" => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if path.named => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    }
}
