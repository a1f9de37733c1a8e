//! The driver of one stream: requests and changes of the snapshot in, responses out.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use futures::{Stream, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tonic::Status;
use tracing::{debug, warn};

use super::ECDS_TYPE_URL;
use super::dialect::{Dialect, Offer, Verdict};
use super::limits::Limits;
use super::module::Kind;
use super::node::{Identity, clip};
use super::pace::Pace;
use super::peer::Peer;
use super::proxy::Transport;
use super::registry::{Connection, MAX_REASON, Registry};
use super::snapshot::{Assignment, Snapshot};
use crate::metrics::XdsMetrics;

/// The reason why a proxy isn't sent the empty configuration.
const KEPT: &str = "it keeps the configuration that it had before this operator started, because a \
                    policy is refused and has no good version here; correct that policy, or delete \
                    it";

/// The parts of the server that a stream uses.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) registry: Arc<Registry>,
    pub(super) shutdown: watch::Receiver<bool>,
    pub(super) limits: Limits,
}

/// A stream after its first message.
struct Session<D> {
    dialect: D,
    identity: Identity,
    connection: Connection,
    /// Names that aren't Headgate's and have been logged.
    logged: BTreeSet<String>,
    nonce: u64,
    /// Whether the proxy runs a version that this process has offered.
    familiar: bool,
    /// The native module in the last response, if it had one.
    native: Option<PathBuf>,
    /// Whether the proxy has run a native module on this stream.
    runs_native: bool,
    /// The time at which the stream began.
    began: Instant,
    /// The time of the snapshot that the last response comes from.
    sent_of: Instant,
}

type Out<D> = mpsc::Sender<Result<<D as Dialect>::Response, Status>>;

/// Serves `requests` until either side ends the stream. An error ends it with that status.
pub(super) async fn drive<D, S>(
    mut context: Context,
    transport: Transport,
    peer: Peer,
    mut requests: S,
    responses: Out<D>,
) where
    D: Dialect,
    S: Stream<Item = Result<D::Request, Status>> + Unpin,
{
    if let Err(status) =
        serve::<D, S>(&mut context, transport, &peer, &mut requests, &responses).await
    {
        // The receiver may have been dropped already.
        let _ = responses.send(Err(status)).await;
    }
}

async fn serve<D, S>(
    context: &mut Context,
    transport: Transport,
    peer: &Peer,
    requests: &mut S,
    responses: &Out<D>,
) -> Result<(), Status>
where
    D: Dialect,
    S: Stream<Item = Result<D::Request, Status>> + Unpin,
{
    let patience = tokio::time::timeout(context.limits.first_message, requests.next());
    let first = tokio::select! {
        first = patience => {
            first.map_err(|_| Status::deadline_exceeded("no request on this stream"))?
        }
        () = stopped(&mut context.shutdown) => return Err(stopping()),
    };
    let Some(first) = first.transpose()? else {
        return Ok(());
    };
    let mut identity = Identity::new(D::node(&first));
    allow(peer, &mut identity, &context.registry)?;
    let connection = context
        .registry
        .connect(
            &identity,
            &peer.address.to_string(),
            transport,
            D::VARIANT,
            SystemTime::now(),
        )
        .ok_or_else(|| {
            context.registry.metrics.xds.streams_refused.inc();
            Status::resource_exhausted(format!("{} proxies are connected", context.limits.proxies))
        })?;
    let mut session = Session::<D> {
        dialect: D::default(),
        identity,
        connection,
        logged: BTreeSet::new(),
        nonce: 0,
        familiar: false,
        native: None,
        runs_native: false,
        began: Instant::now(),
        sent_of: Instant::now(),
    };
    let mut request = Some(first);
    let limits = context.limits;
    let mut pace = Pace::new(
        limits.requests_burst,
        limits.requests_per_second,
        Instant::now(),
    );
    loop {
        let ours = match request.take() {
            Some(request) => session.receive(request, transport, &context.registry.metrics.xds)?,
            None => true,
        };
        if ours {
            let snapshot = Arc::clone(&context.snapshots.borrow_and_update());
            if let Some(response) = session.respond(&snapshot)
                && responses.send(Ok(response)).await.is_err()
            {
                return Ok(());
            }
        }
        let next = async {
            tokio::time::sleep_until(pace.ready_at().into()).await;
            requests.next().await
        };
        tokio::select! {
            next = next => match next.transpose()? {
                Some(next) => {
                    pace.take(Instant::now());
                    request = Some(next);
                }
                None => return Ok(()),
            },
            changed = context.snapshots.changed() => changed.map_err(|_| stopping())?,
            () = stopped(&mut context.shutdown) => return Err(stopping()),
        }
    }
}

/// Accepts a proxy that claims no more than its certificate covers, and adds the proven facts.
fn allow(peer: &Peer, identity: &mut Identity, registry: &Registry) -> Result<(), Status> {
    peer.authorize(identity).map_err(|why| {
        registry.metrics.xds.streams_refused.inc();
        warn!(node = identity.id, peer = %peer.address, "proxy turned away: {why}");
        Status::permission_denied(why)
    })
}

/// Waits until the server stops.
pub(super) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, which also ends the server.
    let _ = shutdown.wait_for(|stop| *stop).await;
}

fn stopping() -> Status {
    Status::unavailable("headgate is stopping; the last configuration stays in force")
}

impl<D: Dialect> Session<D> {
    /// Applies a request. Returns `false` if it is about a type that Headgate doesn't serve: on ADS
    /// such requests are normal and get no response.
    fn receive(
        &mut self,
        request: D::Request,
        transport: Transport,
        metrics: &XdsMetrics,
    ) -> Result<bool, Status> {
        let type_url = D::type_url(&request);
        if type_url != ECDS_TYPE_URL && !(type_url.is_empty() && transport == Transport::Ecds) {
            return match transport {
                Transport::Ads if !type_url.is_empty() => {
                    debug!(node = self.identity.id, type_url, "nothing of this type");
                    Ok(false)
                }
                _ => Err(Status::invalid_argument(format!(
                    "type_url {type_url:?}; this service serves {ECDS_TYPE_URL}"
                ))),
            };
        }
        let verdict = self
            .dialect
            .receive(request)
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        if let Some(verdict) = verdict {
            self.learn_what_it_loads(&verdict);
            // The first response after a connection is as old as the last edit, so its delay isn't
            // counted.
            if matches!(verdict, Verdict::Ack(_)) && self.sent_of > self.began {
                metrics.acked_after(self.sent_of.elapsed());
            }
            self.connection.answered(verdict, SystemTime::now());
        }
        Ok(true)
    }

    /// Updates the record, and returns the response that is due.
    fn respond(&mut self, snapshot: &Snapshot) -> Option<D::Response> {
        let mut assignment = snapshot.assign(&self.identity);
        let offer = snapshot.offer(&assignment, self.dialect.names());
        self.log_unknown(&offer);
        if self.keeps_its_own(&assignment, snapshot) {
            assignment.problem = Some(KEPT.to_owned());
            self.connection.assigned(&Offer::default(), &assignment);
            return None;
        }
        self.connection.assigned(&offer, &assignment);
        if self.dialect.busy() {
            return None;
        }
        let response = self.send(&offer, &assignment)?;
        self.sent_of = snapshot.made;
        Some(response)
    }

    /// Falls back to the Wasm module for a proxy that refuses a native module before it has run
    /// any: its C library may be too old, or its processor another. After one has run there is no
    /// fallback, since the configuration may be at fault.
    fn learn_what_it_loads(&mut self, verdict: &Verdict) {
        let Some(sent) = self.native.clone() else {
            return;
        };
        match verdict {
            Verdict::Ack(_) => self.runs_native = true,
            Verdict::Nack { message, .. } if !self.runs_native => {
                let why = clip(message, MAX_REASON);
                warn!(
                    node = self.identity.id,
                    "the proxy gets the Wasm filter, as it refused the native one: {why}"
                );
                self.identity.refused = Some((sent, why));
            }
            Verdict::Nack { .. } => {}
        }
    }

    /// Whether the proxy keeps the configuration of a previous operator.
    ///
    /// Last valid versions are not kept across restarts. An operator that starts with a broken
    /// policy file would otherwise remove the policy from every proxy that still enforces it.
    fn keeps_its_own(&self, assignment: &Assignment, snapshot: &Snapshot) -> bool {
        assignment.config.stages.is_empty()
            && snapshot.is_incomplete_for(&self.identity)
            && !self.familiar
            && self.dialect.holds_any()
    }

    fn send(&mut self, offer: &Offer, assignment: &Assignment) -> Option<D::Response> {
        let now = SystemTime::now();
        let is_native = Kind::of(&assignment.module) == Kind::Native;
        let native = is_native.then(|| assignment.module.clone());
        if self.dialect.holds(offer) {
            self.connection.held(offer, assignment, now);
            self.familiar = true;
            self.runs_native |= native.is_some();
        }
        let response = self.dialect.respond(offer, self.nonce + 1)?;
        self.familiar = true;
        self.native = native;
        self.nonce += 1;
        self.connection.sent(offer, assignment, now);
        Some(response)
    }

    fn log_unknown(&mut self, offer: &Offer) {
        self.logged.retain(|name| offer.unknown.contains(name));
        for name in &offer.unknown {
            if self.logged.insert(name.clone()) {
                debug!(
                    node = self.identity.id,
                    name, "not a Headgate slot: its name must start with \"headgate\""
                );
            }
        }
    }
}
