//! The server of centralized class admission ([`headgate_core::class_admission::Server`]) over HTTP/2, with the
//! connections, the bounds and the TLS of xDS.
//!
//! Reports about a service have to meet in one process. So one operator of a cluster serves at a time, its leader: the
//! others don't listen, and a proxy that is turned away by one of them connects again, perhaps to another. A new leader
//! knows nothing, and soon as much as the one before: the paper's state is that of a period, or of recent calls.
//!
//! No lock is held while a proxy is waited for. An exchange is some µs of computing, so there is one lock for all.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant as Clock};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use headgate_core::class_admission::Server;
use headgate_core::class_admission::protocol::{MAX_BYTES, PATH, Report};
use headgate_core::time::{Instant, nanos};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;

use super::limits::Limits;
use super::listen::incoming;
use super::peer::Peer;
use super::registry::Registry;
use super::stream::stopped;
use super::tls::Trust;

/// How long connections have to end when somebody else serves.
const GRACE: Duration = Duration::from_secs(5);

/// A server that isn't listening yet.
#[derive(Debug, Clone)]
pub struct AdmissionServer {
    registry: Arc<Registry>,
    trust: Option<watch::Receiver<Arc<Trust>>>,
    limits: Limits,
}

/// What the handlers share.
#[derive(Clone)]
struct Shared {
    state: Arc<Mutex<Server>>,
    began: Clock,
}

impl AdmissionServer {
    /// A server that counts its connections in `registry`, and with `trust` serves over TLS only.
    #[must_use]
    pub fn new(
        registry: Arc<Registry>,
        trust: Option<watch::Receiver<Arc<Trust>>>,
        limits: Limits,
    ) -> Self {
        Self {
            registry,
            trust,
            limits,
        }
    }

    /// Serves until `end`, and then for a little while those who are connected. It starts with nothing.
    ///
    /// # Errors
    /// The listener failed.
    pub async fn serve(
        &self,
        listener: TcpListener,
        end: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let limits = self.limits;
        let shared = Shared {
            state: Arc::default(),
            began: Clock::now(),
        };
        let app = Router::new()
            .route(PATH, post(exchange))
            .layer(DefaultBodyLimit::max(MAX_BYTES))
            .with_state(shared);
        let (trust, registry) = (self.trust.clone(), Arc::clone(&self.registry));
        let connections = incoming(listener, limits, trust, registry);
        let (ending, mut told) = watch::channel(false);
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(limits.streams_per_connection)
            .http2_max_header_list_size(limits.header_bytes)
            .http2_keepalive_interval(Some(limits.keepalive_interval))
            .http2_keepalive_timeout(Some(limits.keepalive_timeout))
            .add_routes(Routes::from(app))
            .serve_with_incoming_shutdown(connections, async move {
                stopped(&mut told).await;
            });
        let over = async {
            end.await;
            ending.send_replace(true);
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            served = server => served,
            () = over => Ok(()),
        }
    }
}

/// A report and its answer.
async fn exchange(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    body: Bytes,
) -> Response {
    let _open = peer.activity.open();
    let refused = |problem: String| (StatusCode::BAD_REQUEST, problem).into_response();
    let report: Report<'_> = match serde_json::from_slice(&body) {
        Ok(report) => report,
        Err(error) => return refused(format!("no report: {error}")),
    };
    let now = Instant::from_nanos(nanos(shared.began.elapsed()));
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let answer = state.exchange(now, &report);
    drop(state);
    match answer {
        // It has no maps and no numbers that JSON lacks.
        Ok(answer) => {
            let json = serde_json::to_vec(&answer).unwrap_or_default();
            ([(CONTENT_TYPE, "application/json")], json).into_response()
        }
        Err(error) => refused(error.to_string()),
    }
}
