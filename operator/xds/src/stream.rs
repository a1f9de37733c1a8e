//! The driver of one stream, which receives requests and changes of the snapshot, and sends
//! responses.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use futures::Stream;
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tonic::Status;
use tracing::{debug, warn};

use crate::limits::Limits;
use crate::metrics::XdsMetrics;
use crate::module::Kind;
use crate::node::{Identity, clip};
use crate::peer::Peer;
use crate::quota::{Quota, Slot};
use crate::random::random;
use crate::registry::{Connection, MAX_REASON, Registry};
use crate::resource::Resource;
use crate::snapshot::{Assignment, Snapshot};
use crate::sotw::{Sotw, Verdict};
use crate::tenants::{Tenant, take};
use crate::{ECDS_TYPE_URL, is_headgate_slot};

/// The problem that is reported for a proxy that keeps the configuration of a previous operator.
const KEPT: &str = "it keeps its configuration from before this operator started, because a policy \
                    has mistakes and this operator has no good version of it; correct or delete \
                    that policy";

/// The parts of the server that a stream uses.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) shutdown: watch::Receiver<bool>,
    pub(crate) limits: Limits,
    /// The unanswered responses, in bytes.
    unanswered: Arc<Quota<Tenant>>,
}

impl Context {
    /// Returns the context of the streams of one server.
    pub(crate) fn new(
        snapshots: watch::Receiver<Arc<Snapshot>>,
        registry: Arc<Registry>,
        shutdown: watch::Receiver<bool>,
        limits: Limits,
    ) -> Self {
        let (all, each) = (limits.response_bytes, limits.response_bytes_per_namespace);
        Self {
            snapshots,
            registry,
            shutdown,
            limits,
            unanswered: Arc::new(Quota::new(all, each)),
        }
    }

    /// Counts the bytes of a response to the proxy `node` until the slot is dropped.
    fn count(&self, peer: &Peer, node: &str, response: &DiscoveryResponse) -> Result<Slot, Status> {
        let quota = &self.unanswered;
        let bytes = response.encoded_len().min(quota.max_each).min(quota.max);
        let slot = take(quota, "bytes of responses", Tenant::of(peer), bytes);
        slot.map_err(|full| {
            let status = Status::resource_exhausted(full.to_string());
            self.registry.refuse(Some(node), peer.address, status)
        })
    }
}

/// The state of a stream after its first message.
struct Session {
    sotw: Sotw,
    identity: Identity,
    connection: Connection,
    peer: Peer,
    /// The share of the unanswered response in the quota of responses.
    unanswered: Option<Slot>,
    /// Whether this process has offered the proxy a version on this stream, or the proxy already
    /// ran the version on offer. It stays true if the proxy refuses the version.
    familiar: bool,
    /// The assignment that the record and the last response reflect. `None` if they may be
    /// outdated, as after a request.
    last: Option<Arc<Assignment>>,
    /// The native module in the last response, if any.
    native: Option<PathBuf>,
    /// Whether the proxy has run a native module on this stream.
    runs_native: bool,
    /// Whether the proxy's own module, of another version, has refused a configuration on this
    /// stream.
    is_older: bool,
    /// Whether the last response has fields that can be left out for such a module.
    has_new_fields: bool,
    /// The time at which the stream began.
    began: Instant,
    /// The time of the snapshot of the last response.
    sent_of: Instant,
}

type Out = mpsc::Sender<Result<DiscoveryResponse, Status>>;

/// Serves `requests` until either side ends the stream. An error ends the stream with its status.
pub(crate) async fn drive(
    mut context: Context,
    peer: Peer,
    requests: impl Stream<Item = Result<DiscoveryRequest, Status>>,
    responses: Out,
) {
    let mut requests = pin!(requests.throttle(context.limits.request_interval));
    if let Err(status) = serve(&mut context, &peer, &mut requests, &responses).await {
        // The receiver may have been dropped already.
        let _ = responses.send(Err(status)).await;
    }
}

async fn serve(
    context: &mut Context,
    peer: &Peer,
    requests: &mut (impl Stream<Item = Result<DiscoveryRequest, Status>> + Unpin),
    responses: &Out,
) -> Result<(), Status> {
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
    let mut identity = Identity::new(first.node.as_ref());
    allow(peer, &mut identity, &context.registry)?;
    let address = peer.address.to_string();
    let connection = context
        .registry
        .connect(&identity, &address, SystemTime::now());
    check_type(&first)?;
    let sotw = Sotw::new(first).map_err(Status::invalid_argument)?;
    if !is_headgate_slot(sotw.name()) {
        debug!(
            node = identity.id,
            name = sotw.name(),
            "not a Headgate slot: its name must start with \"headgate\""
        );
    }
    let mut session = Session {
        sotw,
        identity,
        connection,
        peer: peer.clone(),
        unanswered: None,
        familiar: false,
        last: None,
        native: None,
        runs_native: false,
        is_older: false,
        has_new_fields: false,
        began: Instant::now(),
        sent_of: Instant::now(),
    };
    loop {
        let snapshot = Arc::clone(&context.snapshots.borrow_and_update());
        if let Some(response) = session.respond(&snapshot) {
            session.unanswered = Some(context.count(peer, &session.identity.id, &response)?);
            if responses.send(Ok(response)).await.is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            next = requests.next() => match next.transpose()? {
                Some(next) => session.receive(next, &context.registry.metrics)?,
                None => return Ok(()),
            },
            changed = context.snapshots.changed() => changed.map_err(|_| stopping())?,
            () = stopped(&mut context.shutdown) => return Err(stopping()),
        }
    }
}

/// Checks that the certificate or token covers all of the proxy's claims, and adds the proven facts
/// to `identity`.
fn allow(peer: &Peer, identity: &mut Identity, registry: &Registry) -> Result<(), Status> {
    peer.authorize(identity).map_err(|why| {
        registry.refuse(
            Some(&identity.id),
            peer.address,
            Status::permission_denied(why),
        )
    })
}

/// Waits until the server stops.
pub(crate) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, which also ends the server.
    let _ = shutdown.wait_for(|stop| *stop).await;
}

fn stopping() -> Status {
    Status::unavailable("headgate is stopping; the last configuration stays in force")
}

/// Checks that a request asks for resources of ECDS.
fn check_type(request: &DiscoveryRequest) -> Result<(), Status> {
    let type_url = &request.type_url;
    match type_url == ECDS_TYPE_URL || type_url.is_empty() {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!(
            "type_url {type_url:?}; this service serves {ECDS_TYPE_URL}"
        ))),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The connection may still have the response in its buffers.
        if let Some(unread) = self.unanswered.take() {
            self.peer.keep(unread);
        }
    }
}

impl Session {
    /// Applies a later request.
    fn receive(&mut self, request: DiscoveryRequest, metrics: &XdsMetrics) -> Result<(), Status> {
        self.last = None;
        check_type(&request)?;
        if let Some(verdict) = self
            .sotw
            .receive(request)
            .map_err(Status::invalid_argument)?
        {
            self.unanswered = None;
            let falls_back = self.learn_what_it_loads(&verdict);
            let is_refused = matches!(verdict, Verdict::Nack { .. });
            self.is_older |= is_refused && self.identity.is_older();
            // The refusal of a native module that can't be loaded isn't about fields of the
            // configuration, so the Wasm module gets all of them.
            self.is_older &= !falls_back;
            // The time isn't counted for a snapshot from before the stream, because its age is the
            // time since the last edit, not a delay.
            if matches!(verdict, Verdict::Ack(_)) && self.sent_of > self.began {
                metrics.acked_after(self.sent_of.elapsed());
            }
            self.connection.answered(verdict, SystemTime::now());
        }
        Ok(())
    }

    /// Updates the record, and returns the response that is due.
    fn respond(&mut self, snapshot: &Snapshot) -> Option<DiscoveryResponse> {
        let mut assignment = snapshot.assign(&self.identity);
        // Most changes of the plan don't affect this proxy.
        if (self.last.as_ref()).is_some_and(|last| last.is_same(&assignment)) {
            return None;
        }
        // From here on, the record may differ from the last response.
        self.last = None;
        let Some(resource) = assignment.resource(self.sotw.name()) else {
            self.connection.assigned(None, &Arc::new(assignment));
            return None;
        };
        if self.keeps_its_own(&assignment, &resource, snapshot) {
            assignment.problem = Some(KEPT.to_owned());
            // The valid policies count as unanswered.
            let resource = (!assignment.config.stages.is_empty()).then_some(&resource);
            self.connection.assigned(resource, &Arc::new(assignment));
            return None;
        }
        let assignment = Arc::new(assignment);
        self.connection.assigned(Some(&resource), &assignment);
        if self.sotw.busy() {
            return None;
        }
        let less = self
            .identity
            .is_older()
            .then(|| assignment.for_older_filter());
        let less = less
            .flatten()
            .and_then(|less| Some((less.resource(self.sotw.name())?, less)));
        // Only the proxy's other slots may have new fields.
        let less = less.filter(|(less, _)| less.version != resource.version);
        self.has_new_fields = less.is_some() && !self.is_older;
        let response = match less.filter(|_| self.is_older) {
            Some((less, assignment)) => {
                self.connection.withheld(&resource.version);
                self.send(&less, &assignment)
            }
            None => self.send(&resource, &assignment),
        };
        // The assignment of a proxy without policies is evaluated at each change, because whether
        // the proxy keeps its own configuration also depends on other policies.
        self.last = (!assignment.config.stages.is_empty()).then_some(assignment);
        let response = response?;
        self.sent_of = snapshot.made;
        Some(response)
    }

    /// Falls back to the Wasm module if the proxy refuses a native module before it has run any.
    /// Its C library may be too old, or its processor may have another architecture. Once the proxy
    /// has run a native module, there is no fallback, because the configuration may be at fault. An
    /// older module may have refused new fields, so it is tried without them first. Returns whether
    /// the proxy falls back.
    fn learn_what_it_loads(&mut self, verdict: &Verdict) -> bool {
        let Some(sent) = self.native.clone() else {
            return false;
        };
        match verdict {
            Verdict::Ack(_) => {
                self.runs_native = true;
                false
            }
            Verdict::Nack { message, .. } if !self.runs_native && !self.has_new_fields => {
                let why = clip(message, MAX_REASON);
                warn!(
                    node = self.identity.id,
                    "the proxy gets the Wasm filter, because it refused the native one: {why}"
                );
                self.identity.refused = Some((sent, why));
                true
            }
            Verdict::Nack { .. } => false,
        }
    }

    /// Whether the proxy should keep the configuration of a previous operator.
    ///
    /// Last valid versions aren't kept across restarts. So without this rule, an operator that
    /// starts with an invalid policy would remove that policy from every proxy that still enforces
    /// it. If other policies also apply to the proxy, it gets no edits of these meanwhile, because
    /// only the proxy has the stage of the invalid policy.
    fn keeps_its_own(
        &self,
        assignment: &Assignment,
        resource: &Resource,
        snapshot: &Snapshot,
    ) -> bool {
        let may_lack = match assignment.config.stages.is_empty() {
            true => Snapshot::is_incomplete_for,
            false => Snapshot::lacks_a_policy_of,
        };
        !self.familiar
            && self.sotw.holds_any()
            && !self.sotw.holds(resource)
            && may_lack(snapshot, &self.identity)
    }

    fn send(&mut self, resource: &Resource, assignment: &Assignment) -> Option<DiscoveryResponse> {
        let now = SystemTime::now();
        let is_native = Kind::of(&assignment.module) == Kind::Native;
        let native = is_native.then(|| assignment.module.clone());
        if self.sotw.holds(resource) {
            self.connection.held(resource, assignment, now);
            self.familiar = true;
            self.runs_native |= native.is_some();
        }
        // A proxy that hasn't read the response can't guess the nonce. With a guess, it could
        // answer responses that the server still keeps in memory.
        let response = self.sotw.respond(resource, random())?;
        self.familiar = true;
        self.native = native;
        self.connection.sent(resource, assignment, now);
        Some(response)
    }
}
