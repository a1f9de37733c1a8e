//! What requests and calls say to each other across processes, in headers (see [`wire`]).
//!
//! There are two reasons to: workflows, and class admission. Each works without the other.
//!
//! The inbound side of a sidecar learns from a request which workflow it belongs to, who sent it
//! and how far the whole has come; it tells the application a token, and the sender, with the
//! response, what it may send. The outbound side finds the request of a call by that token, hands
//! its workflow, deadline, class and progress on, and takes note of what the called process
//! answers.

use std::collections::HashMap;
use std::time::Duration;

use super::admission::{Admission, Admitted, Heard};
use super::smoothing::Smoother;
use super::{Engine, Policy};
use crate::classify::RequestView;
use crate::config::{
    ConfigError, MAX_WORKFLOW_NAME, OutboundConfig, ResourceReport, SharingConfig, StageConfig,
    WorkflowSource, WorkflowsConfig,
};
use crate::decision::{Action, PolicyId, Ticket};
use crate::host::{Host, HostError};
use crate::progress::{self, Spent};
use crate::refusal::{Origin, Refusal};
use crate::request::{Attributes, ClassId, Progress};
use crate::requests::Phase;
use crate::strategy::hint;
use crate::time::Instant;
use crate::workflows::{
    Answer, Call, OTHER, ProcessId, ServiceId, Token, Workflows, baggage, process, wire,
};

/// Clusters whose service is remembered; those beyond are looked up each time.
pub(super) const MAX_CLUSTERS: usize = 1024;
/// What all headers of Headgate begin with.
const OURS: &str = "x-headgate-";

/// Buffers, so that nothing is allocated for a request.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    name: Vec<u8>,
    value: String,
}

/// What the calls of the process belong to.
#[derive(Debug)]
pub(super) struct Outbound {
    config: OutboundConfig,
    services: HashMap<String, ServiceId>,
    pub(super) admission: Option<Admission>,
    /// Places of services in the admission, by cluster.
    admitted: HashMap<String, Option<usize>>,
    pub(super) smoother: Option<Smoother>,
    /// Tells a call that began under an earlier configuration.
    generation: u32,
    /// What this process is called where the calls belong to no workflows.
    process: Option<ProcessId>,
}

impl Outbound {
    /// # Errors
    /// [`ConfigError`] with the setting at fault.
    pub(super) fn new(
        host: &impl Host,
        config: OutboundConfig,
        (seed, generation): (u64, u32),
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            admission: Admission::new(host, &config, seed)?,
            smoother: Smoother::new(host, &config, seed)?,
            config,
            services: HashMap::new(),
            admitted: HashMap::new(),
            generation,
            process: None,
        })
    }

    /// The place in the admission of the service that `cluster` leads to.
    fn admitted(&mut self, cluster: &str) -> Option<usize> {
        let admission = self.admission.as_ref()?;
        if let Some(known) = self.admitted.get(cluster) {
            return *known;
        }
        let service = admission.service(service(&self.config, cluster));
        if self.admitted.len() < MAX_CLUSTERS {
            self.admitted.insert(cluster.to_owned(), service);
        }
        service
    }

    /// What delays calls, and the place in it of the service that `cluster` leads to.
    pub(super) fn smoothed(&mut self, cluster: &str) -> Option<(&mut Smoother, usize)> {
        let smoother = self.smoother.as_mut()?;
        let place = smoother.place(cluster, || service(&self.config, cluster))?;
        Some((smoother, place))
    }

    /// What this process is called: as workflows of the same policy would call it.
    pub(super) fn process(&mut self, host: &impl Host, seed: u64) -> Result<ProcessId, HostError> {
        if let Some(known) = self.process {
            return Ok(known);
        }
        let key = format!("headgate/workflows/{}", self.config.policy);
        let drawn = process(host, &key, seed)?;
        self.process = Some(drawn);
        Ok(drawn)
    }
}

/// Name of the service that `cluster` leads to: the longest pattern counts.
fn service<'a>(config: &'a OutboundConfig, cluster: &'a str) -> &'a str {
    let patterns = config.services.iter();
    patterns
        .filter(|(pattern, _)| fits(pattern, cluster.as_bytes()))
        .max_by_key(|(pattern, _)| (!pattern.ends_with('*'), pattern.len()))
        .map_or(cluster, |(_, service)| service)
}

/// The token of the request that a call is for, as the application handed it on.
pub(super) fn token(call: &impl RequestView) -> Option<&[u8]> {
    call.header(wire::REQUEST).or_else(|| {
        let list = call.header(wire::BAGGAGE)?;
        baggage::token(std::iter::once(list))
    })
}

/// Whether `text` is what a pattern says, exactly or, with a trailing `*`, in its beginning.
fn fits(pattern: &str, text: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix.as_bytes()),
        None => text == pattern.as_bytes(),
    }
}

/// Whether `peer` is one of `peers`, each exact or with a trailing `*`. Where none are named all
/// are.
fn is_one_of(peers: &[String], peer: Option<&[u8]>) -> bool {
    peers.is_empty() || peer.is_some_and(|peer| peers.iter().any(|pattern| fits(pattern, peer)))
}

/// Whether what a request says in Headgate's headers is believed.
fn is_believed(config: &WorkflowsConfig, request: &impl RequestView) -> bool {
    !config.edge && is_peer(&config.peers, request)
}

/// Whether `request` comes from one of `peers`.
fn is_peer(peers: &[String], request: &impl RequestView) -> bool {
    peers.is_empty() || is_one_of(peers, request.peer().as_deref())
}

/// The class that a sender names, where the stage has class admission and the sender is believed.
pub(super) fn named_class(config: &StageConfig, request: &impl RequestView) -> Option<ClassId> {
    let admission = config.class_admission.as_ref().filter(|a| a.receives)?;
    let class = inherited_class(config, request)?;
    is_peer(&admission.peers, request).then_some(class)
}

/// Where `request` comes from. Adds to its attributes what it says in Headgate's headers, if it is
/// believed.
pub(super) fn origin(
    workflows: &mut Workflows,
    host: &impl Host,
    now: Instant,
    request: &impl RequestView,
    (config, attributes): (&StageConfig, &mut Attributes),
    scratch: &mut Scratch,
) -> Origin {
    let believed = is_believed(workflows.config(), request);
    let kind = config.types.get(usize::from(attributes.kind.0));
    let kind = kind.map_or("", |kind| kind.name.as_str());
    let named = (workflows.config().identify.iter())
        .any(|source| name(source, request, kind, believed, &mut scratch.name));
    let workflow = if named {
        if scratch.name.len() > MAX_WORKFLOW_NAME {
            workflows.name_too_long();
        }
        workflows.identify(host, now, &scratch.name)
    } else {
        OTHER
    };
    let upstream = if believed {
        attributes.progress = progress::progress(request);
        if let Some(class) = inherited_class(config, request) {
            attributes.class = class;
        }
        request.header(wire::PROCESS).and_then(wire::parse_process)
    } else {
        attributes.progress = Progress::UNKNOWN;
        None
    };
    Origin { workflow, upstream }
}

/// Name of the workflow of `request`, which is of type `kind`, and which source gave it, by place:
/// for people who ask. `None` where it has none, and shares [`OTHER`]. Callers are taken for peers.
#[must_use]
pub fn named(
    config: &WorkflowsConfig,
    request: &impl RequestView,
    kind: &str,
) -> Option<(usize, Vec<u8>)> {
    let mut found = Vec::new();
    let believed = !config.edge;
    let at = (config.identify.iter())
        .position(|source| name(source, request, kind, believed, &mut found))?;
    Some((at, found))
}

/// The class of the parent, else a sub-request could wait behind what its parent went before; or
/// the one to which the sender downgraded it.
fn inherited_class(config: &StageConfig, request: &impl RequestView) -> Option<ClassId> {
    if config.classes.is_empty() {
        return None;
    }
    let name = request.header(wire::CLASS)?;
    let at = config
        .classes
        .iter()
        .position(|c| c.name.as_bytes() == name)?;
    u8::try_from(at).ok().map(ClassId)
}

/// Writes the name of the workflow that `source` gives `request` to `out`; false when it gives
/// none.
fn name(
    source: &WorkflowSource,
    request: &impl RequestView,
    kind: &str,
    believed: bool,
    out: &mut Vec<u8>,
) -> bool {
    let plain = |value: &[u8], out: &mut Vec<u8>| {
        let value = value.trim_ascii();
        out.clear();
        let valid = (1..=wire::MAX_VALUE).contains(&value.len());
        if valid {
            out.extend_from_slice(value);
        }
        valid
    };
    match source {
        WorkflowSource::Baggage { key } => request
            .header(wire::BAGGAGE)
            .and_then(|baggage| wire::member(baggage, key.as_bytes()))
            .is_some_and(|value| wire::parse_name(value, out)),
        WorkflowSource::Header { name } if name.starts_with(OURS) => {
            let value = request.header(name).filter(|_| believed);
            value.is_some_and(|value| wire::parse_name(value, out))
        }
        WorkflowSource::Header { name } => {
            let value = request.header(name);
            value.is_some_and(|value| plain(value, out))
        }
        WorkflowSource::Metadata { path } => {
            let value = request.metadata(path);
            value.is_some_and(|value| plain(&value, out))
        }
        WorkflowSource::Type => plain(kind.as_bytes(), out),
    }
}

/// A call of the process, to be given to [`Engine::answered`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calling {
    call: Option<(PolicyId, Call)>,
    /// And under which [`Outbound::generation`].
    admitted: Option<(u32, Admitted)>,
    /// The place of its service in the [`Smoother`], likewise.
    smoothed: Option<(u32, usize)>,
}

/// What the response to a call says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reply<'a> {
    /// Header [`wire::RATE`].
    pub rate: Option<&'a [u8]>,
    /// Header [`wire::PROGRESS`].
    pub progress: Option<&'a [u8]>,
    /// Header [`hint::HEADER`].
    pub rejection: Option<&'a [u8]>,
    /// SPIFFE id of who answered.
    pub peer: Option<&'a [u8]>,
    /// Whether it says that there was no room for the call, or that nobody answered in time.
    pub failed: bool,
}

impl Engine {
    /// Whether what a request says in Headgate's headers is believed. If it is not, they are
    /// nobody's to see; if it is, they are for the proxy and none of the application's business.
    /// `None`: they stay as they are.
    #[must_use]
    pub fn believes(&self, request: &impl RequestView) -> Option<bool> {
        // Before the first request of a worker nothing runs yet.
        let running = self.running.iter().map(|r| &r.compiled);
        let mut compiled = running.chain(&self.compiled);
        let policy = self.policy_for(request)?;
        let compiled = compiled.find(|c| c.config.policy == policy)?;
        let StageConfig {
            workflows,
            class_admission,
            ..
        } = &compiled.config;
        match (workflows, class_admission) {
            (Some(workflows), _) => Some(is_believed(workflows, request)),
            // A class that is believed is the application's business, too: it hands it on with its
            // calls.
            (None, Some(a)) if a.receives && !is_peer(&a.peers, request) => Some(false),
            (None, _) => None,
        }
    }

    /// How long the request waited and has been worked on, for the process that sent it; `None`
    /// where the stage has no class admission, or nobody can tell. Asked when its response begins.
    #[must_use]
    pub fn spent(&self, now: Instant, ticket: Ticket) -> Option<Spent> {
        let stage = &self.policy(ticket.policy)?.stage;
        stage
            .config()
            .class_admission
            .as_ref()
            .filter(|a| a.receives)?;
        let request = stage.requests.of(ticket)?;
        let Phase::Running { dequeued } = request.phase else {
            return None;
        };
        let dequeued = dequeued?;
        Some(Spent {
            wait: dequeued.since(request.arrived),
            slot: now.since(dequeued),
        })
    }

    /// What the application is to hand on with its calls for a request: asked when the request goes
    /// to the backend, at [`crate::decision::Decision::Forward`] or [`Action::Resume`]. `None`
    /// where it has no workflow.
    #[must_use]
    pub fn token(&self, ticket: Ticket) -> Option<Token> {
        self.policy(ticket.policy)?.token(ticket)
    }

    /// Whether the request is one of a workflow.
    #[must_use]
    pub fn has_workflow(&self, ticket: Ticket) -> bool {
        let policy = self.policy(ticket.policy);
        policy.is_some_and(|policy| policy.stage.requests.part(ticket).is_some())
    }

    /// Where the response to a request says how much of the second resource it used.
    #[must_use]
    pub fn resource_report(&self, ticket: Ticket) -> Option<&ResourceReport> {
        let policy = self.policy(ticket.policy)?;
        match &policy.workflows.as_ref()?.config().sharing {
            SharingConfig::DominantResource { resource, .. } => Some(&resource.report),
            SharingConfig::StaticGuarantees | SharingConfig::BottleneckFairness { .. } => None,
        }
    }

    /// The response to a request says that it used so much of the second resource.
    pub fn resource_used(&mut self, ticket: Ticket, amount: f64) {
        if let Some(policy) = self.policy_mut(ticket.policy) {
            Workflows::resource_used(&mut policy.stage.requests, ticket, amount);
        }
    }

    /// The response of the backend to a request begins: what it tells the process of the mesh that
    /// sent it.
    pub fn answer(&mut self, host: &impl Host, now: Instant, ticket: Ticket) -> Option<Answer> {
        let policy = self.policy_mut(ticket.policy)?;
        let requests = &mut policy.stage.requests;
        policy
            .workflows
            .as_mut()?
            .answer(host, now, requests, ticket)
    }

    /// Writes an answer as headers of the response, and the time that the request spent.
    pub fn tell(
        &mut self,
        answer: Option<&Answer>,
        spent: Option<&Spent>,
        mut set: impl FnMut(&'static str, &str),
    ) {
        let value = &mut self.scratch.value;
        if let Some(answer) = answer {
            value.clear();
            wire::put_rate(value, &answer.announcement);
            set(wire::RATE, value);
        }
        let of_slot = |spent: &Spent| Progress {
            elapsed: spent.slot,
            work: spent.slot,
            ..Progress::UNKNOWN
        };
        let progress = answer.map(|a| a.progress).or(spent.map(of_slot));
        if let Some(progress) = progress {
            value.clear();
            wire::put_progress(value, &progress);
            if let Some(spent) = spent {
                wire::put_spent(value, spent);
            }
            set(wire::PROGRESS, value);
        }
    }

    /// Sets headers on a refusal: it, too, tells what may be sent.
    pub fn announce(&mut self, refusal: &Refusal, mut set: impl FnMut(&'static str, &str)) {
        // Who is no process of the mesh is told nothing about it.
        let origin = refusal.origin.filter(|origin| origin.upstream.is_some());
        let workflows = self.workflows(refusal.policy);
        let Some(said) = origin.zip(workflows).map(|(o, w)| w.announcement(o)) else {
            return;
        };
        let value = &mut self.scratch.value;
        value.clear();
        wire::put_rate(value, &said);
        set(wire::RATE, value);
    }

    /// The outbound listener is gone, and with it what calls belong to.
    pub fn forget_outbound(&mut self) {
        self.outbound = None;
    }

    /// Whether the proxy is a gateway: each request that it lets go on is a call as well
    /// ([`Engine::call`] with the request's own [`Engine::token`]), and there is no application
    /// that makes others.
    #[must_use]
    pub fn is_gateway(&self) -> bool {
        self.gateway
    }

    /// Whether an outbound listener was configured.
    #[must_use]
    pub fn has_outbound(&self) -> bool {
        self.outbound.is_some()
    }

    /// Whether calls may be downgraded.
    #[must_use]
    pub fn admits_calls(&self) -> bool {
        self.outbound
            .as_ref()
            .is_some_and(|o| o.admission.is_some())
    }

    /// Whether it depends on who answers a call that its answer is believed.
    #[must_use]
    pub fn asks_who_answers(&self) -> bool {
        let outbound = self.outbound.as_ref();
        outbound.is_some_and(|o| !o.config.peers.is_empty())
    }

    /// The process calls somebody, by way of Envoy's `cluster`: sets headers on the call. Where the
    /// caller doesn't know the `token` of the request that it is for, it is read from the call
    /// (headers [`wire::REQUEST`] and, in the baggage, see [`crate::workflows::baggage`]), and
    /// removed by the caller. `None` where nobody waits for what the answer says; else it is to be
    /// [`Engine::answered`].
    ///
    /// # Errors
    /// [`HostError`]; the call goes on as it is.
    pub fn call(
        &mut self,
        host: &impl Host,
        now: Instant,
        (request, token): (&impl RequestView, Option<&[u8]>),
        cluster: &str,
        actions: &mut Vec<Action>,
        mut set: impl FnMut(&'static str, &str),
    ) -> Result<Option<Calling>, HostError> {
        if self.outbound.is_none() {
            return Ok(None);
        }
        if !self.is_idle() {
            self.be_member(host, now, actions)?;
        }
        let call = self.call_of_workflow(host, now, (request, token), cluster, &mut set);
        let admitted = match self.admit_call(host, now, request, cluster, call.as_ref(), &mut set) {
            // Its workflow is to hear of the answer all the same.
            Err(_) if call.is_some() => None,
            admitted => admitted?,
        };
        let outbound = self.outbound.as_mut();
        let smoothed = outbound.and_then(|o| Some((o.generation, o.smoothed(cluster)?.1)));
        let calling = Calling {
            call,
            admitted,
            smoothed,
        };
        let is_any = call.is_some() || admitted.is_some() || smoothed.is_some();
        Ok(is_any.then_some(calling))
    }

    /// The part of [`Engine::call`] that is about class admission; `call` is the other one. `None`
    /// where the service promises nothing to classes.
    fn admit_call(
        &mut self,
        host: &impl Host,
        now: Instant,
        request: &impl RequestView,
        cluster: &str,
        call: Option<&(PolicyId, Call)>,
        mut set: impl FnMut(&'static str, &str),
    ) -> Result<Option<(u32, Admitted)>, HostError> {
        let Some(outbound) = &mut self.outbound else {
            return Ok(None);
        };
        let Some(service) = outbound.admitted(cluster) else {
            return Ok(None);
        };
        let inherited = call.and_then(|(policy, call)| {
            let running = self.running.iter().find(|r| r.id == *policy)?;
            let classes = &running.compiled.config.classes;
            Some(classes.get(usize::from(call.class?.0))?.name.as_str())
        });
        if call.is_none() {
            let process = outbound.process(host, self.seed)?;
            let value = &mut self.scratch.value;
            value.clear();
            wire::put_process(value, process);
            set(wire::PROCESS, value);
        }
        let Some(admission) = &mut outbound.admission else {
            return Ok(None);
        };
        let admitted = admission.admit(host, now, service, request, inherited)?;
        Ok(admitted.map(|(call, class)| {
            if let Some(class) = class {
                set(wire::CLASS, class);
            }
            (outbound.generation, call)
        }))
    }

    /// The part of [`Engine::call`] that is about workflows; `None` where the calls belong to none.
    fn call_of_workflow(
        &mut self,
        host: &impl Host,
        now: Instant,
        (request, token): (&impl RequestView, Option<&[u8]>),
        cluster: &str,
        mut set: impl FnMut(&'static str, &str),
    ) -> Option<(PolicyId, Call)> {
        let outbound = self.outbound.as_mut()?;
        let policy = &outbound.config.policy;
        let of_policy = |r: &&mut Policy| &r.compiled.config.policy == policy;
        let running = self.running.iter_mut().find(of_policy)?;
        let workflows = running.workflows.as_mut()?;
        let service = match outbound.services.get(cluster) {
            Some(&service) => service,
            None => {
                let name = service(&outbound.config, cluster);
                let service = workflows.service(host, now, name.as_bytes());
                // Id 0 is for services beyond the last id, and for a moment in which the host
                // fails.
                if service != ServiceId(0) && outbound.services.len() < MAX_CLUSTERS {
                    outbound.services.insert(cluster.to_owned(), service);
                }
                service
            }
        };
        let token = token.or_else(|| self::token(request));
        // What the application says itself, for when the token is lost.
        let named = (workflows.config().identify.iter())
            .any(|source| name(source, request, "", true, &mut self.scratch.name));
        let workflow = named.then(|| workflows.identify(host, now, &self.scratch.name));
        let call = workflows.called(host, now, service, token, workflow);

        let value = &mut self.scratch.value;
        let mut say = |header, write: &mut dyn FnMut(&mut String)| {
            value.clear();
            write(value);
            set(header, value);
        };
        say(wire::PROCESS, &mut |out| {
            wire::put_process(out, workflows.process());
        });
        if let Some(name) = workflows.name(call.workflow()) {
            say(wire::WORKFLOW, &mut |out| wire::put_name(out, name));
        }
        if let Some(left) = call.deadline {
            say(wire::TIMEOUT, &mut |out| wire::put_timeout(out, left));
        }
        if call.progress != Progress::UNKNOWN {
            say(wire::PROGRESS, &mut |out| {
                wire::put_progress(out, &call.progress);
            });
        }
        let classes = &running.compiled.config.classes;
        let class = call
            .class
            .and_then(|class| classes.get(usize::from(class.0)));
        if let Some(class) = class {
            say(wire::CLASS, &mut |out| out.push_str(&class.name));
        }
        Some((running.id, call))
    }

    /// A call ended; `None`: without a response. What the response says is read here; the caller
    /// removes it.
    ///
    /// # Errors
    /// [`HostError`]; what the answer says of its class is lost.
    pub fn answered(
        &mut self,
        host: &impl Host,
        now: Instant,
        calling: Calling,
        reply: Option<&Reply<'_>>,
    ) -> Result<(), HostError> {
        let peers = self.outbound.as_ref().map(|o| o.config.peers.as_slice());
        let believed = reply.is_some_and(|r| is_one_of(peers.unwrap_or_default(), r.peer));
        let (mut rate, mut below, mut heard, mut nonsense) = (None, None, None, false);
        if let Some(reply) = reply {
            rate = reply.rate.filter(|_| believed).and_then(wire::parse_rate);
            nonsense = reply.rate.is_some() && rate.is_none();
            let progress = reply.progress.filter(|_| believed);
            let progress = progress.and_then(|value| std::str::from_utf8(value).ok());
            below = progress.and_then(progress::parse);
            heard = match reply.failed {
                true => Some(Heard::Failed),
                false => progress.and_then(progress::spent).map(Heard::Spent),
            };
        }
        let mut learned = Ok(());
        let rejection = reply.and_then(|r| r.rejection).filter(|_| believed);
        if let (Some((generation, place)), Some(rate)) =
            (calling.smoothed, rejection.and_then(hint::rate))
            && let Some(outbound) = &mut self.outbound
            && outbound.generation == generation
            && let Some(smoother) = &mut outbound.smoother
        {
            learned = smoother.heard(host, now, place, rate);
        }
        if let (Some((_, call)), Some(heard)) = (calling.admitted, heard)
            && let Some(admission) = self.admission_of(&calling)
        {
            learned = learned.and(admission.answered(host, now, &call, heard));
        }
        if let Some((policy, call)) = calling.call
            && let Some(workflows) = self.workflows_mut(policy)
        {
            if nonsense {
                workflows.rate_refused();
            }
            workflows.answered(host, now, call, rate.as_ref(), below.as_ref());
        }
        learned
    }

    /// The class that a call asked for, where it ran in a lower one: for the application.
    #[must_use]
    pub fn downgraded(&self, calling: &Calling) -> Option<&str> {
        let (generation, call) = calling.admitted.as_ref()?;
        let outbound = self.outbound.as_ref();
        let outbound = outbound.filter(|o| o.generation == *generation)?;
        outbound.admission.as_ref()?.downgraded(call)
    }

    /// The time left to the request of `token` until its deadline; `None` where there is none, or
    /// nobody knows it.
    pub(super) fn time_left(&self, now: Instant, token: &[u8]) -> Option<Duration> {
        let outbound = self.outbound.as_ref()?;
        let mut policies = self.running.iter();
        let policy = policies.find(|r| r.compiled.config.policy == outbound.config.policy)?;
        Some(policy.workflows.as_ref()?.deadline(token)?.since(now))
    }

    fn admission_of(&mut self, calling: &Calling) -> Option<&mut Admission> {
        let (generation, _) = calling.admitted.as_ref()?;
        let outbound = self.outbound.as_mut();
        let outbound = outbound.filter(|o| o.generation == *generation)?;
        outbound.admission.as_mut()
    }

    /// The workflows of a policy; `None` if it has none.
    #[must_use]
    pub fn workflows(&self, policy: PolicyId) -> Option<&Workflows> {
        self.policy(policy)?.workflows.as_ref()
    }

    /// The same, to ask or tell what [`Engine::call`] and [`Engine::answered`] do in headers.
    pub fn workflows_mut(&mut self, policy: PolicyId) -> Option<&mut Workflows> {
        self.policy_mut(policy)?.workflows.as_mut()
    }
}
