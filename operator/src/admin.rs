//! The admin address: status as JSON, health, readiness, and metrics.
//!
//! Plain HTTP/1.1 without authentication, because it changes nothing; it listens on the loopback address
//! unless told otherwise. Small enough that a web framework would be most of the code.
//!
//! A client may be anybody who reaches the address. So connections are bounded in number, for each address too, and
//! in time. Health and readiness have an address of their own besides, which nobody but the kubelet need reach: clients
//! that take all of the one must not have the operator restarted.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use crate::kubernetes::cluster::ObjectKey;
use crate::kubernetes::peers::{COUNTS_PATH, Counted, LONGEST_WAIT};
use crate::kubernetes::status;
use crate::kubernetes::store::Observations;
use crate::metrics;
use crate::plan::PolicyState;
use crate::xds::addresses::Addresses;
use crate::xds::registry::Registry;
use crate::xds::resource::hash;
use crate::xds::snapshot::Snapshot;
use crate::xds::status::{Report, Written};
use crate::xds::tally::Tallies;

/// Connections open at once; one more is closed at once.
const MAX_CONNECTIONS: usize = 64;
/// Those from one address (of IPv6: one /64).
const MAX_PER_ADDRESS: usize = 16;
/// Longest life of a connection, which is for one request: more than one that waits for news takes.
const MAX_LIFE: Duration = Duration::from_secs(30);
/// Full reports in memory at once, 10 MB each with 10,000 proxies.
const MAX_REPORTS: usize = 4;
/// Time for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`, which means that the process is out of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Requests for news that are kept open at once; more are answered at once.
const MAX_WAITING: usize = 16;
/// Time between two looks at the proxies for one such request.
const LOOK: Duration = Duration::from_millis(100);
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// What the admin address shows.
#[derive(Debug, Clone)]
pub struct Admin {
    view: watch::Receiver<Option<View>>,
    missing: watch::Receiver<String>,
    shutdown: watch::Receiver<bool>,
    instance: Arc<str>,
    waiting: Arc<Semaphore>,
    reports: Arc<Semaphore>,
    only_probes: bool,
}

/// A server that serves.
#[derive(Debug, Clone)]
pub struct View {
    /// Its proxies.
    pub registry: Arc<Registry>,
    /// What it serves.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The policies' statuses as the API server has them, if one does.
    pub statuses: Option<Arc<Observations>>,
}

impl View {
    fn report(&self) -> Report {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let written = self.statuses.as_ref().map(|statuses| {
            |state: &PolicyState| {
                let (namespace, name) = state.name.split_once('/').unwrap_or_default();
                let observed = statuses.get(&ObjectKey::new(namespace, name));
                status::written(state, observed.as_ref().and_then(|o| o.status.as_ref()))
            }
        });
        let written = written.as_ref().map(|w| w as Written<'_>);
        Report::new(&snapshot, &self.registry, written, SystemTime::now())
    }
}

impl Admin {
    /// Shows this server's state. `/readyz` fails once `shutdown` holds `true`, so that new proxies go
    /// elsewhere.
    #[must_use]
    pub fn new(
        registry: Arc<Registry>,
        snapshots: watch::Receiver<Arc<Snapshot>>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let view = View {
            registry,
            snapshots,
            statuses: None,
        };
        // Both keep their value when their senders are gone.
        let (_, view) = watch::channel(Some(view));
        let (_, missing) = watch::channel(String::new());
        Self::starting(view, missing, "", shutdown)
    }

    /// Shows the state of a server, once there is one: before, `/readyz` fails and says what is `missing`.
    /// It fails again once `shutdown` holds `true`, so that new proxies go elsewhere. `instance` names this
    /// process among its replicas.
    #[must_use]
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
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            reports: Arc::new(Semaphore::new(MAX_REPORTS)),
            only_probes: false,
        }
    }

    /// The same without all but `/healthz` and `/readyz`.
    #[must_use]
    pub fn only_probes(&self) -> Self {
        Self {
            only_probes: true,
            ..self.clone()
        }
    }

    /// Serves until `shutdown` holds `true`. Connections that are open then end with the process.
    pub async fn serve(self, listener: TcpListener) {
        let mut shutdown = self.shutdown.clone();
        tokio::select! {
            () = self.accept(listener) => {}
            _ = shutdown.wait_for(|stop| *stop) => {}
        }
    }

    async fn accept(self, listener: TcpListener) {
        let addresses = Addresses::new(MAX_CONNECTIONS, MAX_PER_ADDRESS);
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!("admin address: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(slot) = addresses.enter(peer.ip()) else {
                debug!(%peer, "a connection to the admin address was turned away at a limit");
                continue;
            };
            let admin = self.clone();
            tokio::spawn(async move {
                admin.connection(stream).await;
                drop(slot);
            });
        }
    }

    async fn connection(self, stream: TcpStream) {
        // Until the connection ends, because the report is in memory until the client has read it.
        let report = Arc::new(OnceLock::new());
        let service = service_fn(|request: Request<Incoming>| {
            let (admin, report) = (self.clone(), Arc::clone(&report));
            let (request, _) = request.into_parts();
            async move {
                if request.uri.path() == "/status"
                    && let Ok(permit) = Arc::clone(&admin.reports).acquire_owned().await
                {
                    let _ = report.set(permit);
                }
                Ok::<_, Infallible>(admin.answer(&request).await)
            }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        match tokio::time::timeout(MAX_LIFE, serving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!("admin connection: {error}"),
            Err(_) => debug!("admin connection: closed after {} s", MAX_LIFE.as_secs()),
        }
    }

    async fn answer(&self, request: &Parts) -> Response<Full<Bytes>> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return respond(
                StatusCode::METHOD_NOT_ALLOWED,
                TEXT,
                "GET only\n".to_owned(),
            );
        }
        let path = request.uri.path();
        if path == "/healthz" {
            return respond(StatusCode::OK, TEXT, "ok\n".to_owned());
        }
        let view = self.view.borrow().clone();
        let Some(view) = view else {
            return self.not_ready();
        };
        match path {
            "/readyz" if *self.shutdown.borrow() => respond(
                StatusCode::SERVICE_UNAVAILABLE,
                TEXT,
                "stopping\n".to_owned(),
            ),
            "/readyz" => respond(StatusCode::OK, TEXT, "ok\n".to_owned()),
            _ if self.only_probes => respond(
                StatusCode::NOT_FOUND,
                TEXT,
                "not found; try /healthz or /readyz\n".to_owned(),
            ),
            "/status" => json(serde_json::to_string_pretty(&view.report())),
            COUNTS_PATH => self.counts(&view, request).await,
            "/metrics" => {
                let text = view.registry.metrics.render(&view.report());
                respond(StatusCode::OK, metrics::CONTENT_TYPE, text)
            }
            _ => respond(
                StatusCode::NOT_FOUND,
                TEXT,
                "not found; try /status, /metrics, /healthz or /readyz\n".to_owned(),
            ),
        }
    }

    fn not_ready(&self) -> Response<Full<Bytes>> {
        let missing = self.missing.borrow().clone();
        let text = format!("not ready: waiting for {missing}\n");
        respond(StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
    }

    /// What proxies say of each policy. A request that names the version it has, and asks to wait (RFC 7240),
    /// is answered when there is another one.
    async fn counts(&self, view: &View, request: &Parts) -> Response<Full<Bytes>> {
        let text = |name: &str| request.headers.get(name).and_then(|v| v.to_str().ok());
        let known = text(header::IF_NONE_MATCH.as_str());
        let wait = text("prefer")
            .and_then(|p| p.strip_prefix("wait="))
            .and_then(|s| s.trim().parse().ok())
            .map_or(Duration::ZERO, Duration::from_secs)
            .min(LONGEST_WAIT);
        let permit = self.waiting.try_acquire().ok();
        let end = Instant::now()
            + if permit.is_some() {
                wait
            } else {
                Duration::ZERO
            };
        let mut changes = view.registry.changes();
        let mut shutdown = self.shutdown.clone();
        loop {
            changes.borrow_and_update();
            let counted = Counted {
                instance: self.instance.to_string(),
                policies: Tallies::of(&view.registry.proxies(SystemTime::now())),
            };
            let body = match serde_json::to_string(&counted) {
                Ok(body) => body,
                Err(error) => return json(Err(error)),
            };
            let version = format!("\"{}\"", hash(body.as_bytes()));
            let is_news = known != Some(version.as_str());
            if is_news || Instant::now() >= end || *shutdown.borrow() {
                let mut response = match is_news {
                    true => respond(StatusCode::OK, JSON, body),
                    false => respond(StatusCode::NOT_MODIFIED, JSON, String::new()),
                };
                if let Ok(version) = version.parse() {
                    response.headers_mut().insert(header::ETAG, version);
                }
                return response;
            }
            let next = Instant::now() + LOOK;
            tokio::select! {
                _ = changes.changed() => {}
                _ = shutdown.changed() => {}
                () = sleep_until(end) => {}
            }
            // Answers come in crowds.
            sleep_until(next.min(end)).await;
        }
    }
}

fn json(text: serde_json::Result<String>) -> Response<Full<Bytes>> {
    match text {
        Ok(text) => respond(StatusCode::OK, JSON, text + "\n"),
        Err(error) => respond(
            StatusCode::INTERNAL_SERVER_ERROR,
            TEXT,
            format!("{error}\n"),
        ),
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let value = header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}
