//! The admin address: status as JSON, health, readiness, and metrics.
//!
//! Plain HTTP/1.1 without authentication, because it changes nothing; it listens on the loopback address
//! unless told otherwise. Small enough that a web framework would be most of the code.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use crate::xds::metrics;
use crate::xds::registry::Registry;
use crate::xds::snapshot::Snapshot;
use crate::xds::status::Report;

/// Connections served at once; more wait.
const MAX_CONNECTIONS: usize = 64;
/// Time for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`, which means that the process is out of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the admin address shows.
#[derive(Debug, Clone)]
pub struct Admin {
    registry: Arc<Registry>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    shutdown: watch::Receiver<bool>,
}

impl Admin {
    /// Shows this server's state. `/readyz` fails once `shutdown` holds `true`, so that new proxies
    /// go elsewhere.
    #[must_use]
    pub fn new(
        registry: Arc<Registry>,
        snapshots: watch::Receiver<Arc<Snapshot>>,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        Self {
            registry,
            snapshots,
            shutdown,
        }
    }

    /// Serves until `shutdown` holds `true`. Connections that are open then end with the process.
    pub async fn serve(self, listener: TcpListener) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut shutdown = self.shutdown.clone();
        let accept = async {
            loop {
                let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                    return;
                };
                let stream = match listener.accept().await {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        warn!("admin address: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let admin = self.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let response = admin.answer(&request);
                        async { Ok::<_, Infallible>(response) }
                    });
                    let served = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD_TIMEOUT)
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                    if let Err(error) = served {
                        debug!("admin connection: {error}");
                    }
                    drop(permit);
                });
            }
        };
        tokio::select! {
            () = accept => {}
            _ = shutdown.wait_for(|stop| *stop) => {}
        }
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        const TEXT: &str = "text/plain; charset=utf-8";
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return respond(
                StatusCode::METHOD_NOT_ALLOWED,
                TEXT,
                "GET only\n".to_owned(),
            );
        }
        match request.uri().path() {
            "/healthz" => respond(StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" if *self.shutdown.borrow() => respond(
                StatusCode::SERVICE_UNAVAILABLE,
                TEXT,
                "stopping\n".to_owned(),
            ),
            "/readyz" => respond(StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/status" => match serde_json::to_string_pretty(&self.report()) {
                Ok(json) => respond(StatusCode::OK, "application/json", json + "\n"),
                Err(error) => respond(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    TEXT,
                    format!("{error}\n"),
                ),
            },
            "/metrics" => {
                let text = metrics::render(&self.report(), &self.registry);
                respond(
                    StatusCode::OK,
                    "text/plain; version=0.0.4; charset=utf-8",
                    text,
                )
            }
            _ => respond(
                StatusCode::NOT_FOUND,
                TEXT,
                "not found; try /status, /metrics, /healthz or /readyz\n".to_owned(),
            ),
        }
    }

    fn report(&self) -> Report {
        let snapshot = Arc::clone(&self.snapshots.borrow());
        Report::new(&snapshot, &self.registry, SystemTime::now())
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let value = header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}
