//! The server of centralized class admission ([`headgate_admission::Server`]) over
//! HTTP/2, with the connections, the bounds and the TLS of xDS.
//!
//! All reports about a service must reach the same process. So only the leader of a cluster's
//! operators serves. The other replicas don't listen, and a proxy whose connection is refused
//! retries, possibly at another replica. A new leader starts without state. It catches up soon,
//! because the state covers only one period, or recent calls.
//!
//! A report about misses can deny a class to all callers of a service. So over TLS, reports are
//! accepted only from the namespaces in `classAdmission.peers` of the service's policy
//! (`workflows.peers`, if it has workflows). Without peers, they are accepted only from the
//! service's own namespace.
//!
//! No lock is held while waiting for a proxy. An exchange takes some µs of computation, so one lock
//! suffices for all.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant as Clock};

use axum::Router;
use axum::body::{Bytes, HttpBody as _};
use axum::extract::{DefaultBodyLimit, Extension, FromRequest as _, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use headgate_admission::Server;
use headgate_admission::protocol::{MAX_BYTES, PATH, Report};
use headgate_strategies::time::{Instant, nanos};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::limits::Limits;
use crate::listen::Connections;
use crate::node::clip;
use crate::peer::{Peer, Spiffe};
use crate::registry::Registry;
use crate::review::tokens::{ProxyTokens, Refusal};
use crate::tenants::{Refused, Tenants};
use crate::tls::Trust;
use headgate_api::plan::{Plan, TargetKind, TargetRef};

/// The size, in bytes, as which a smaller report counts in the limits.
const LEAST_BYTES: usize = 1 << 10;
/// The grace period for open connections when this replica stops leading.
const GRACE: Duration = Duration::from_secs(5);

/// A server that isn't listening yet.
#[derive(Clone)]
pub struct AdmissionServer {
    /// The plans. The newest has the services.
    pub plans: watch::Receiver<Arc<Plan>>,
    /// The registry in whose metrics connections are counted.
    pub registry: Arc<Registry>,
    /// The server's certificate and the client CAs. `None` without TLS.
    pub trust: Option<watch::Receiver<Arc<Trust>>>,
    /// The reviewer of the tokens of proxies without a certificate.
    pub tokens: Option<ProxyTokens>,
    /// The limits of connections and reports.
    pub limits: Limits,
}

/// The shared state of the handlers.
#[derive(Clone)]
struct Shared {
    plans: watch::Receiver<Arc<Plan>>,
    tenants: Arc<Tenants>,
    state: Arc<Mutex<Server>>,
    began: Clock,
    /// The time within which a report must arrive.
    patience: Duration,
}

impl AdmissionServer {
    /// Serves until `end` completes, and then serves connected proxies for a grace period. Starts
    /// without state.
    pub async fn serve(&self, listener: TcpListener, end: impl Future<Output = ()>) {
        let limits = self.limits;
        // The limit for reports whose token is being reviewed. At least one must fit, because the
        // review precedes the reading of the body.
        let each = limits.report_bytes_per_namespace;
        let reports = (limits.report_bytes, each, each);
        let shared = Shared {
            plans: self.plans.clone(),
            tenants: Tenants::new(self.tokens.clone(), &limits, "bytes of reports", reports),
            state: Arc::default(),
            began: Clock::now(),
            patience: limits.first_message,
        };
        let app = Router::new()
            .route(PATH, post(exchange))
            .layer(DefaultBodyLimit::max(MAX_BYTES))
            .with_state(shared);
        let (ending, ended) = watch::channel(false);
        let connections = Connections {
            limits,
            trust: self.trust.clone(),
            registry: Arc::clone(&self.registry),
            app,
            shutdown: ended,
        };
        let over = async {
            end.await;
            ending.send_replace(true);
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            () = connections.serve(listener) => {}
            () = over => {}
        }
    }
}

/// Answers one report.
async fn exchange(
    State(shared): State<Shared>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Response {
    let _open = peer.open_stream();
    let bytes = request.body().size_hint().upper();
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.map_or(MAX_BYTES, |bytes| bytes.clamp(LEAST_BYTES, MAX_BYTES));
    let admitted = shared.tenants.admit(peer, request.headers(), bytes).await;
    let (peer, _slot) = match admitted {
        Ok(admitted) => admitted,
        Err(refused) => {
            let code = match refused {
                Refused::Full { .. } => StatusCode::TOO_MANY_REQUESTS,
                Refused::Unproven(_) => StatusCode::FORBIDDEN,
                Refused::Token(Refusal::Invalid(_)) => StatusCode::UNAUTHORIZED,
                Refused::Token(Refusal::Unavailable(_)) => StatusCode::SERVICE_UNAVAILABLE,
            };
            return (code, refused.to_string()).into_response();
        }
    };
    // The body is read only after the sender is counted, because the body takes memory. The sender
    // counts until the exchange ends.
    let read = Bytes::from_request(request, &());
    let body = match tokio::time::timeout(shared.patience, read).await {
        Ok(Ok(body)) => body,
        Ok(Err(refused)) => return refused.into_response(),
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    let refused = |problem: String| (StatusCode::BAD_REQUEST, problem).into_response();
    let mut report: Report<'_> = match serde_json::from_slice(&body) {
        Ok(report) => report,
        Err(error) => return refused(format!("no report: {error}")),
    };
    if let Some(proven) = &peer.proven {
        let plan = Arc::clone(&shared.plans.borrow());
        if let Err(why) = keep_accepted(&plan, &mut report, proven) {
            return (StatusCode::FORBIDDEN, why).into_response();
        }
    }
    let now = Instant::from_nanos(nanos(shared.began.elapsed()));
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let proven = peer
        .proven
        .as_deref()
        .and_then(|proven| proven.as_ref().ok());
    let namespace = proven.map(|sender| sender.namespace.as_str());
    let answer = state.exchange(now, namespace, &report);
    drop(state);
    match answer {
        // Serialization can't fail, because the answer has no maps and only finite numbers.
        Ok(answer) => {
            let json = serde_json::to_vec(&answer).unwrap_or_default();
            ([(CONTENT_TYPE, "application/json")], json).into_response()
        }
        Err(error) => refused(error.to_string()),
    }
}

/// Removes from `report` the services whose policy doesn't accept the sender's reports.
///
/// # Errors
/// Returns one line that says that the peer proves no namespace, or that no service is left.
fn keep_accepted(
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
        .retain(|reported| accepts(plan, &reported.service, sender));
    match report.services.is_empty() {
        false => Ok(()),
        true => Err(format!(
            "{first}: its policy does not exist, or its classAdmission.peers (by default its own \
             namespace) does not include the namespace of {}",
            clip(&sender.id, 256)
        )),
    }
}

/// Whether the policy of `service`, `namespace/name`, accepts reports from `sender`. Without peers,
/// it accepts reports from its own namespace.
fn accepts(plan: &Plan, service: &str, sender: &Spiffe) -> bool {
    let Some((namespace, name)) = service.split_once('/') else {
        return false;
    };
    let target = TargetRef::new(TargetKind::Service, namespace, name);
    let stages = plan.workloads.get(&target).into_iter();
    let mut stages = stages.flat_map(|config| &config.stages);
    stages.any(|stage| {
        let of_classes = stage.class_admission.as_ref().filter(|a| a.receives);
        let peers = of_classes.map(|classes| match &stage.workflows {
            Some(workflows) => &workflows.peers,
            None => &classes.peers,
        });
        peers.is_some_and(|peers| match peers.is_empty() {
            true => sender.namespace == namespace,
            false => peers.iter().any(|peer| is_of(peer, sender)),
        })
    })
}

/// Whether `peer`, a SPIFFE id or a prefix followed by `*`, names a workload of the sender's
/// namespace. Accounts are not compared, because the proxy's certificate for Headgate may name
/// another account than the workload's.
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
            validity: None,
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
