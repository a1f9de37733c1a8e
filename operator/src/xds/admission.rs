//! The server of centralized class admission ([`headgate_core::class_admission::Server`]) over
//! HTTP/2, with the connections, the bounds and the TLS of xDS.
//!
//! Reports about a service have to meet in one process. So one operator of a cluster serves at a
//! time, its leader: the others don't listen, and a proxy that is turned away by one of them
//! connects again, perhaps to another. A new leader knows nothing, and soon as much as the one
//! before: the paper's state is that of a period, or of recent calls.
//!
//! A report about misses can take a class from all who call a service. So over TLS,
//! `classAdmission.peers` of the service's policy (`workflows.peers`, where it has workflows) says
//! of which namespaces it is believed.
//!
//! No lock is held while a proxy is waited for. An exchange is some µs of computing, so there is
//! one lock for all.

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
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;

use super::limits::Limits;
use super::listen::incoming;
use super::node::clip;
use super::peer::{Peer, Spiffe};
use super::registry::Registry;
use super::stream::stopped;
use super::tls::Trust;
use crate::kubernetes::review::bearer;
use crate::kubernetes::tokens::{ProxyTokens, Refusal};
use crate::plan::{Plan, TargetKind, TargetRef};

/// How long connections have to end when somebody else serves.
const GRACE: Duration = Duration::from_secs(5);

/// A server that isn't listening yet.
#[derive(Debug, Clone)]
pub struct AdmissionServer {
    plans: watch::Receiver<Arc<Plan>>,
    registry: Arc<Registry>,
    trust: Option<watch::Receiver<Arc<Trust>>>,
    tokens: Option<ProxyTokens>,
    limits: Limits,
}

/// What the handlers share.
#[derive(Clone)]
struct Shared {
    plans: watch::Receiver<Arc<Plan>>,
    tokens: Option<ProxyTokens>,
    state: Arc<Mutex<Server>>,
    began: Clock,
}

impl AdmissionServer {
    /// A server for the services of the newest of `plans`, that counts its connections in
    /// `registry`, and with `trust` serves over TLS only.
    #[must_use]
    pub fn new(
        plans: watch::Receiver<Arc<Plan>>,
        registry: Arc<Registry>,
        trust: Option<watch::Receiver<Arc<Trust>>>,
        limits: Limits,
    ) -> Self {
        Self {
            plans,
            registry,
            trust,
            tokens: None,
            limits,
        }
    }

    /// Over TLS, believes proxies without a certificate whose token `tokens` accepts.
    #[must_use]
    pub fn with_tokens(mut self, tokens: Option<ProxyTokens>) -> Self {
        self.tokens = tokens;
        self
    }

    /// Serves until `end`, and then for a little while those who are connected. It starts with
    /// nothing.
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
            plans: self.plans.clone(),
            tokens: self.tokens.clone(),
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
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let _open = peer.activity.open();
    let refused = |problem: String| (StatusCode::BAD_REQUEST, problem).into_response();
    let mut report: Report<'_> = match serde_json::from_slice(&body) {
        Ok(report) => report,
        Err(error) => return refused(format!("no report: {error}")),
    };
    let token = headers.get(AUTHORIZATION);
    let token = token.and_then(|value| bearer(value.to_str().ok()?));
    let token = token.map(str::to_owned);
    let peer = match peer.with_token(token, shared.tokens.as_ref()).await {
        Ok(peer) => peer,
        Err(refusal) => {
            let code = match refusal {
                Refusal::Invalid(_) => StatusCode::UNAUTHORIZED,
                Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            return (code, refusal.to_string()).into_response();
        }
    };
    if let Some(proven) = &peer.proven {
        let plan = Arc::clone(&shared.plans.borrow());
        if let Err(why) = keep_believed(&plan, &mut report, proven) {
            return (StatusCode::FORBIDDEN, why).into_response();
        }
    }
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

/// Removes the services from `report` whose policy doesn't believe the sender.
///
/// # Errors
/// One line: the peer proves no namespace, or no service is left.
fn keep_believed(
    plan: &Plan,
    report: &mut Report<'_>,
    proven: &Result<Spiffe, String>,
) -> Result<(), String> {
    let sender = proven.as_ref().map_err(Clone::clone)?;
    let Some(first) = report.services.first().map(|s| s.service.to_string()) else {
        return Ok(());
    };
    report
        .services
        .retain(|told| believes(plan, &told.service, sender));
    match report.services.is_empty() {
        false => Ok(()),
        true => Err(format!(
            "{first}: its policy does not exist, or its classAdmission.peers does not have the namespace of {}",
            clip(&sender.id, 256)
        )),
    }
}

/// Whether the policy of `service`, `namespace/name`, believes reports of `sender`. Without peers,
/// it believes all.
fn believes(plan: &Plan, service: &str, sender: &Spiffe) -> bool {
    let Some((namespace, name)) = service.split_once('/') else {
        return false;
    };
    let target = TargetRef {
        kind: TargetKind::Service,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        section: None,
    };
    let stages = plan.workloads.get(&target).into_iter();
    let mut stages = stages.flat_map(|config| &config.stages);
    stages.any(|stage| {
        let of_classes = stage.class_admission.as_ref().filter(|a| a.receives);
        let peers = of_classes.map(|classes| match &stage.workflows {
            Some(workflows) => &workflows.peers,
            None => &classes.peers,
        });
        peers.is_some_and(|peers| peers.is_empty() || peers.iter().any(|p| is_of(p, sender)))
    })
}

/// Whether `peer`, a SPIFFE id or the beginning of some before a `*`, names a workload of the
/// sender's namespace. The workload's proxy may have an account of its own in its certificate for
/// Headgate, so accounts are not compared.
fn is_of(peer: &str, sender: &Spiffe) -> bool {
    let namespace = sender.id.rsplit_once("/sa/");
    let namespace = namespace.map_or(sender.id.clone(), |(id, _)| format!("{id}/"));
    match peer.strip_suffix('*') {
        Some(start) => namespace.starts_with(start) || start.starts_with(&namespace),
        None => peer.starts_with(&namespace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_peers_admits_the_proxies_of_its_namespaces() {
        let sender = Spiffe {
            id: "spiffe://cluster.local/ns/shop/sa/proxy".to_owned(),
            namespace: "shop".to_owned(),
            expires: None,
        };
        for (peer, is) in [
            ("spiffe://cluster.local/ns/shop/sa/engine", true),
            ("spiffe://cluster.local/ns/shop/sa/eng*", true),
            ("spiffe://cluster.local/ns/shop/*", true),
            ("spiffe://cluster.local/ns/shop*", true),
            ("spiffe://cluster.local/*", true),
            ("spiffe://cluster.local/ns/shopping/*", false),
            ("spiffe://cluster.local/ns/sho/sa/proxy", false),
            ("spiffe://cluster.local/ns/bank/sa/engine", false),
            ("spiffe://elsewhere/ns/shop/*", false),
        ] {
            assert_eq!(is_of(peer, &sender), is, "{peer}");
        }
    }
}
