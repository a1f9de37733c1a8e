//! The admin address: status as JSON, health, readiness, and metrics.
//!
//! The interface is read-only and plain HTTP/1.1. By default it listens on the loopback address. If
//! an operator in a cluster listens on another address, only users that the API server authorizes
//! can read the status and the metrics, which cover all namespaces ([`Authorizer`]). Health and
//! readiness are open to every client.
//!
//! Any client may be able to reach the address. So the number of connections is limited, in total
//! and for each client address, and so is their lifetime. Health and readiness have a second
//! address, which only the kubelet needs to reach. Clients that exhaust the connections of the
//! first address must not cause a restart of the operator.

use std::io::Cursor;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, FromRequestParts, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use futures::StreamExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::io::ReaderStream;

use crate::kubernetes::peers::{COUNTS_PATH, PATCH, TAKES_CHANGES, Versions, encoded};
use crate::kubernetes::status;
use crate::kubernetes::store::Observations;
use crate::metrics::{self, Metrics};
use crate::report::Report;
use headgate_api::plan::PolicyState;
use headgate_xds::http_server::{self, HttpLimits};
use headgate_xds::registry::Registry;
use headgate_xds::review::authorize::{Authorizer, Refusal, TOKEN_HEADER};
use headgate_xds::review::bearer;
use headgate_xds::snapshot::Snapshot;
use headgate_xds::tally::{Changes, Tallies};

/// Limits of the admin address. A connection carries one request. The largest response is a report.
const LIMITS: HttpLimits = HttpLimits {
    connections: 64,
    connections_per_address: 16,
    waiting: 0,
    head: Duration::from_secs(5),
    connection: Duration::from_secs(30),
    keep_alive: false,
};
/// Limits of the probe address. Its requests are small and answered immediately, so it allows more
/// connections with a shorter lifetime. A few Pods must not be able to lock out the kubelet.
const PROBES: HttpLimits = HttpLimits {
    connections: 1_024,
    connections_per_address: 16,
    waiting: 0,
    head: Duration::from_secs(2),
    connection: Duration::from_secs(4),
    keep_alive: false,
};
/// The largest number of full reports in memory at once. A report of 10,000 proxies has 10 MB.
const MAX_REPORTS: usize = 4;
/// The chunk size of a report's response body, in bytes.
const CHUNK: usize = 64 << 10;

const JSON: &str = "application/json";

/// The state that the admin address serves.
#[derive(Clone)]
pub struct Admin {
    view: watch::Receiver<Option<View>>,
    missing: watch::Receiver<String>,
    shutdown: watch::Receiver<bool>,
    instance: Arc<str>,
    counts: Arc<Mutex<Versions>>,
    reports: Arc<Semaphore>,
}

/// The state of a running xDS server.
#[derive(Debug, Clone)]
pub struct View {
    /// The registry of the server's proxies.
    pub registry: Arc<Registry>,
    /// The snapshots that the server serves.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The policies' statuses as observed on the API server. `None` without an API server.
    pub statuses: Option<Arc<Observations>>,
    /// The metrics of the process.
    pub metrics: Metrics,
}

impl View {
    fn report(&self) -> Report {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let now = SystemTime::now();
        let Some(statuses) = &self.statuses else {
            return Report::new(&snapshot, &self.registry, None, now);
        };
        let written = |state: &PolicyState| {
            let observed = state.name.parse().ok().and_then(|key| statuses.get(&key));
            status::written(state, observed.as_ref().and_then(|o| o.status.as_ref()))
        };
        Report::new(&snapshot, &self.registry, Some(&written), now)
    }
}

impl Admin {
    /// Returns the admin state of an xDS server that starts later. Until then, `/readyz` fails and
    /// names what is `missing`. It fails again once `shutdown` holds `true`, so that new proxies
    /// connect to other replicas. `instance` names this process among its replicas.
    pub fn starting(
        view: watch::Receiver<Option<View>>,
        missing: watch::Receiver<String>,
        instance: &str,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        Self {
            view,
            missing,
            shutdown,
            instance: instance.into(),
            counts: Arc::default(),
            reports: Arc::new(Semaphore::new(MAX_REPORTS)),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Versions> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves until `shutdown` holds `true`. Connections still open then end with the process.
    /// Status and metrics require authorization by `authorizer`, if given.
    pub async fn serve(self, listener: TcpListener, authorizer: Option<Authorizer>) {
        let mut shown = Router::new()
            .route("/status", get(status))
            .route(COUNTS_PATH, get(counts))
            .route("/metrics", get(metrics));
        if let Some(authorizer) = authorizer {
            shown = shown.route_layer(from_fn_with_state(authorizer, authorize));
        }
        let app = probes().merge(shown).fallback((
            StatusCode::NOT_FOUND,
            "not found; try /status, /metrics, /healthz or /readyz\n",
        ));
        self.run(listener, LIMITS, app).await;
    }

    /// Serves `/healthz` and `/readyz` and nothing else, until `shutdown` holds `true`.
    pub async fn serve_probes(self, listener: TcpListener) {
        let app = probes().fallback((
            StatusCode::NOT_FOUND,
            "not found; try /healthz or /readyz\n",
        ));
        self.run(listener, PROBES, app).await;
    }

    async fn run(self, listener: TcpListener, limits: HttpLimits, app: Router<Self>) {
        let shutdown = self.shutdown.clone();
        let app = app.with_state(self);
        http_server::serve(listener, "admin", limits, None, app, || {}, shutdown).await;
    }
}

fn probes() -> Router<Admin> {
    Router::new()
        .route("/healthz", get("ok\n"))
        .route("/readyz", get(readyz))
}

async fn authorize(
    State(authorizer): State<Authorizer>,
    Extension(client): Extension<IpAddr>,
    request: Request,
    next: Next,
) -> Response {
    // The token is copied, because the request's body isn't `Sync`, so a borrow can't be held
    // across an await.
    let token = token(request.headers()).map(str::to_owned);
    let path = request.uri().path().to_owned();
    let authorized = authorizer.authorize(token.as_deref(), client, &path).await;
    let refusal = match authorized {
        Ok(()) => return next.run(request).await,
        Err(refusal) => refusal,
    };
    let code = match &refusal {
        // A leader of version 0.1.0 sends no token. It treats a refusal as a replica without
        // proxies, and reports that replica's policies as not programmed. On 304 it keeps its
        // counts and retries.
        Refusal::NoToken if path == COUNTS_PATH => StatusCode::NOT_MODIFIED,
        Refusal::NoToken | Refusal::UnknownToken => StatusCode::UNAUTHORIZED,
        Refusal::Forbidden { .. } => StatusCode::FORBIDDEN,
        Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = match code {
        StatusCode::NOT_MODIFIED => code.into_response(),
        _ => (code, format!("{refusal}\n")).into_response(),
    };
    if code == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let token = text(header::AUTHORIZATION.as_str()).and_then(bearer);
    let token = token.or_else(|| text(TOKEN_HEADER).map(str::trim));
    token.filter(|token| !token.is_empty())
}

/// Extracts the view, or responds that the server isn't running yet.
impl FromRequestParts<Admin> for View {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(_: &mut Parts, admin: &Admin) -> Result<Self, Self::Rejection> {
        let view = admin.view.borrow().clone();
        view.ok_or_else(|| {
            let text = format!("not ready: waiting for {}\n", *admin.missing.borrow());
            (StatusCode::SERVICE_UNAVAILABLE, text)
        })
    }
}

async fn readyz(State(admin): State<Admin>, _serving: View) -> (StatusCode, &'static str) {
    if *admin.shutdown.borrow() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else {
        (StatusCode::OK, "ok\n")
    }
}

async fn status(State(admin): State<Admin>, view: View) -> Response {
    let permit = admin.reports.acquire_owned().await.ok();
    match serde_json::to_string_pretty(&view.report()) {
        Ok(text) => in_chunks(text + "\n", permit),
        Err(error) => failed(&error),
    }
}

/// Returns a JSON response in chunks. `permit` is held until the client has read nearly all of it,
/// because the text stays in memory until then.
fn in_chunks(text: String, permit: Option<OwnedSemaphorePermit>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, JSON.to_owned()),
        (header::CONTENT_LENGTH, text.len().to_string()),
    ];
    let chunks = ReaderStream::with_capacity(Cursor::new(text), CHUNK).map(move |chunk| {
        let _permit = &permit;
        chunk
    });
    (headers, Body::from_stream(chunks)).into_response()
}

fn failed(error: &serde_json::Error) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}

async fn metrics(view: View) -> Response {
    let text = view.metrics.render(&view.report());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

/// Returns the proxies' counts for each policy, unless the request names the current version. The
/// response contains only the changes if the request accepts changes (RFC 3229) and names the
/// previous version.
async fn counts(State(admin): State<Admin>, view: View, headers: HeaderMap) -> Response {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let known = text(header::IF_NONE_MATCH.as_str());
    let takes_changes = text(TAKES_CHANGES) == Some(PATCH);
    let (version, all, changed) = admin.counts().publish(view.registry.tallies(), known);
    if known == Some(version.as_str()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, version)]).into_response();
    }
    match changed.filter(|_| takes_changes) {
        Some(changed) => {
            let mut answer = counted(&admin, version, &changed, Changes::brief);
            let patch = HeaderValue::from_static(PATCH);
            answer.headers_mut().insert("im", patch);
            *answer.status_mut() = StatusCode::IM_USED;
            answer
        }
        None => counted(&admin, version, &*all, Tallies::brief),
    }
}

fn counted<P: Serialize>(
    admin: &Admin,
    version: String,
    policies: &P,
    brief: impl FnOnce(&P) -> P,
) -> Response {
    let headers = [
        (header::ETAG, version),
        (header::CONTENT_TYPE, JSON.to_owned()),
    ];
    match encoded(&admin.instance, policies, brief) {
        Ok(body) => (headers, body).into_response(),
        Err(error) => failed(&error),
    }
}
