//! Headers that carry workflows and class admission between processes (see [`wire`]).
//!
//! Workflows and class admission are independent of each other.
//!
//! The inbound side of a sidecar reads a request's workflow, sender and progress. It passes a token
//! to the application. With the response, it passes the rate that the sender may use to the sender.
//! The outbound side finds the request that caused a call by the token. It sets the request's
//! workflow, deadline, class and progress as headers of the call, and records the called process's
//! answer.

pub(crate) mod admission;
pub(crate) mod central;
pub(crate) mod flows;
mod mesh;
pub(crate) mod smoothing;

use std::collections::HashMap;
use std::time::Duration;

use headgate_core::classify::{RequestView, fits};
use headgate_core::config::{
    ConfigError, MAX_WORKFLOW_NAME, OutboundConfig, ResourceReport, SharingConfig, StageConfig,
    WorkflowSource, WorkflowsConfig,
};
use headgate_core::decision::{Action, Origin, PolicyId, Ticket};
use headgate_core::host::Host;
use headgate_core::progress;
use headgate_core::requests::Phase;
use headgate_core::stage::Outcome;
use headgate_strategies::host::HostError;
use headgate_strategies::request::{Attributes, ClassId, Progress};
use headgate_strategies::strategy::hint;
use headgate_strategies::time::Instant;

use crate::Engine;
use crate::workflows::wire::Spent;
use crate::workflows::{Announced, Call, OTHER, ProcessId, Token, Workflows, process, wire};
use admission::{Admission, Admitted, Heard};
use smoothing::{Smoothed, Smoother};

pub use central::Callout;
pub use mesh::Mesh;
pub(crate) use mesh::Policy;
pub use smoothing::delay;

/// The maximum number of clusters whose service is cached. The service of any other cluster is
/// looked up at each call.
pub(crate) const MAX_CLUSTERS: usize = 1024;
/// The prefix of all of Headgate's headers.
const OURS: &str = "x-headgate-";

/// The buffers that all requests reuse, so that no request allocates.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    name: Vec<u8>,
    pub(crate) value: String,
    /// The value of the header `baggage`, with or without a token.
    pub(crate) baggage: Vec<u8>,
}

/// The outbound listener's configuration and state.
#[derive(Debug)]
pub(crate) struct Outbound {
    config: OutboundConfig,
    pub(crate) admission: Option<Admission>,
    pub(crate) smoother: Option<Smoother>,
    clusters: HashMap<String, Cluster>,
    /// The number of the configuration. It identifies calls that began under an earlier
    /// configuration.
    generation: u32,
    /// This process's id, or `None` until a call without a workflow needs the id.
    process: Option<ProcessId>,
}

/// The service of a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cluster {
    /// The service's index in [`Outbound::admission`], or `None` without class targets.
    admitted: Option<usize>,
    /// The delays of calls, or `None` if calls aren't delayed.
    pub(crate) smoothed: Option<Smoothed>,
}

impl Outbound {
    /// Returns the state of an outbound listener.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting at fault.
    pub(crate) fn new(
        host: &impl Host,
        config: OutboundConfig,
        (seed, generation): (u64, u32),
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            admission: Admission::new(host, &config, seed)?,
            smoother: Smoother::new(host, &config, seed)?,
            config,
            clusters: HashMap::new(),
            generation,
            process: None,
        })
    }

    /// Returns the service of the cluster `name`. Calls to clusters beyond [`MAX_CLUSTERS`] aren't
    /// delayed.
    pub(crate) fn cluster(&mut self, name: &str) -> Cluster {
        if let Some(known) = self.clusters.get(name) {
            return *known;
        }
        let named = named_service(&self.config, name);
        let service = named.map_or(name, |(_, service)| service);
        let admission = self.admission.as_ref();
        let mut cluster = Cluster {
            admitted: admission.and_then(|admission| admission.service(service)),
            smoothed: None,
        };
        if self.clusters.len() < MAX_CLUSTERS {
            let range = smoothing::range(&self.config, named.map(|(pattern, _)| pattern));
            let smoother = self.smoother.as_mut().zip(range);
            cluster.smoothed = smoother.map(|(smoother, range)| smoother.of(service, range));
            self.clusters.insert(name.to_owned(), cluster);
        }
        cluster
    }

    /// Returns this process's id, which is also the id that the policy's workflows use.
    pub(crate) fn process(&mut self, host: &impl Host, seed: u64) -> Result<ProcessId, HostError> {
        if let Some(known) = self.process {
            return Ok(known);
        }
        let key = format!("headgate/workflows/{}", self.config.policy);
        let drawn = process(host, &key, seed)?;
        self.process = Some(drawn);
        Ok(drawn)
    }
}

/// Returns the longest pattern that matches `cluster`, and the name of its service.
fn named_service<'a>(
    config: &'a OutboundConfig,
    cluster: &str,
) -> Option<(&'a String, &'a String)> {
    let patterns = config.services.iter();
    patterns
        .filter(|(pattern, _)| fits(pattern, cluster.as_bytes()))
        .max_by_key(|(pattern, _)| (!pattern.ends_with('*'), pattern.len()))
}

/// Whether `peer` matches one of `peers`, which are exact names or prefixes with a trailing `*`. An
/// empty list allows every peer.
fn is_one_of(peers: &[String], peer: Option<&[u8]>) -> bool {
    peers.is_empty() || peer.is_some_and(|peer| peers.iter().any(|pattern| fits(pattern, peer)))
}

/// Whether Headgate's headers of `request` are trusted.
fn is_trusted(config: &WorkflowsConfig, request: &impl RequestView) -> bool {
    !config.edge && is_peer(&config.peers, request)
}

/// Whether `request` comes from one of `peers`.
fn is_peer(peers: &[String], request: &impl RequestView) -> bool {
    peers.is_empty() || is_one_of(peers, request.peer().as_deref())
}

/// Returns the class that the sender names, or `None` if the stage has no class admission or
/// doesn't trust the sender.
pub(crate) fn named_class(config: &StageConfig, request: &impl RequestView) -> Option<ClassId> {
    let admission = config.class_admission.as_ref().filter(|a| a.receives)?;
    let class = inherited_class(config, request)?;
    is_peer(&admission.peers, request).then_some(class)
}

/// Returns the workflow and sender of `request`. If the sender is trusted, its progress and class
/// are added to the attributes.
pub(crate) fn origin(
    workflows: &mut Workflows,
    host: &impl Host,
    now: Instant,
    request: &impl RequestView,
    (config, attributes): (&StageConfig, &mut Attributes),
    scratch: &mut Scratch,
) -> Origin {
    let trusted = is_trusted(workflows.config(), request);
    let kind = config.types.get(usize::from(attributes.kind.0));
    let kind = kind.map_or("", |kind| kind.name.as_str());
    let named = (workflows.config().identify.iter())
        .any(|source| name(source, request, kind, trusted, &mut scratch.name));
    let workflow = if named {
        if scratch.name.len() > MAX_WORKFLOW_NAME {
            workflows.name_too_long();
        }
        workflows.identify(host, now, &scratch.name)
    } else {
        OTHER
    };
    let sender = if trusted {
        attributes.progress = progress::progress(request);
        if let Some(class) = inherited_class(config, request) {
            attributes.class = class;
        }
        request.header(wire::PROCESS).and_then(wire::parse_process)
    } else {
        attributes.progress = Progress::default();
        None
    };
    Origin {
        flow: workflow.0,
        sender: sender.map(|process| process.0),
    }
}

/// Returns the workflow name of `request`, which is of type `kind`, and the index of the source of
/// the name, for `headgate explain`. Returns `None` if no source gives a name. The request then
/// belongs to the workflow [`OTHER`]. Senders are assumed to be trusted peers.
pub fn named(
    config: &WorkflowsConfig,
    request: &impl RequestView,
    kind: &str,
) -> Option<(usize, Vec<u8>)> {
    let mut found = Vec::new();
    let trusted = !config.edge;
    let at = (config.identify.iter())
        .position(|source| name(source, request, kind, trusted, &mut found))?;
    Some((at, found))
}

/// Returns the class that the sender names. It is the class of the parent request, or the class to
/// which the sender downgraded this request. A sub-request keeps its parent's class, because in a
/// lower class it could wait behind requests that its parent overtook.
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

/// Writes the workflow name that `source` gives `request` to `out`. Returns false if `source` gives
/// no name.
fn name(
    source: &WorkflowSource,
    request: &impl RequestView,
    kind: &str,
    trusted: bool,
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
            .values(wire::BAGGAGE)
            .find_map(|baggage| wire::member(baggage, key.as_bytes()))
            .is_some_and(|value| wire::parse_name(value, out)),
        WorkflowSource::Header { name } if name.starts_with(OURS) => {
            let value = request.header(name).filter(|_| trusted);
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

/// The state of a call until [`Mesh::answered`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calling {
    call: Option<(PolicyId, Call)>,
    /// [`Outbound::generation`] when the call began. The next fields belong to it.
    generation: u32,
    /// The class admission of the call.
    admitted: Option<Admitted>,
    /// The [`Smoother`]'s delays of calls to the same cluster.
    smoothed: Option<Smoothed>,
}

impl Calling {
    /// Whether the proxy delays calls to the called service. The application then needn't delay its
    /// calls.
    pub fn is_delayed(&self) -> bool {
        self.smoothed.is_some_and(|smoothed| smoothed.enforced)
    }
}

/// The headers of a call's response.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reply<'a> {
    /// The value of header [`wire::RATE`].
    pub rate: Option<&'a [u8]>,
    /// The value of header [`wire::PROGRESS`].
    pub progress: Option<&'a [u8]>,
    /// The value of header [`hint::HEADER`].
    pub rejection: Option<&'a [u8]>,
    /// The SPIFFE id of the peer that answered.
    pub peer: Option<&'a [u8]>,
    /// [`Outcome::Failed`] if the call was refused for lack of room or not answered in time, and
    /// [`Outcome::Completed`] if the called application answered. `None` without class admission.
    pub outcome: Option<Outcome>,
}

/// Whether Headgate's headers of a request are trusted. On `Some(false)`, the headers are hidden
/// from all rules and from the application. On `Some(true)`, the proxy reads the headers and
/// removes them before the application sees the request. On `None`, the headers stay unchanged.
pub fn trusts(engine: &Engine, request: &impl RequestView) -> Option<bool> {
    let StageConfig {
        workflows,
        class_admission,
        ..
    } = engine.config_for(request)?;
    match (workflows, class_admission) {
        (Some(workflows), _) => Some(is_trusted(workflows, request)),
        // A trusted class stays visible to the application, which copies it to its calls.
        (None, Some(a)) if a.receives && !is_peer(&a.peers, request) => Some(false),
        (None, _) => None,
    }
}

/// Returns the request's queue wait and slot time so far, for the process that sent the request.
/// Returns `None` without class admission, or if the times aren't known. Call this function when
/// the response begins.
pub fn spent(engine: &Engine, now: Instant, ticket: Ticket) -> Option<Spent> {
    let stage = engine.stage(ticket.policy)?;
    let admission = stage.config().class_admission.as_ref();
    admission.filter(|a| a.receives)?;
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

/// Returns the token of a request, or `None` if the request has no workflow. The application copies
/// the token to its calls. Call this function when the request goes to the backend, at
/// [`headgate_core::decision::Decision::Forward`] or [`Action::Resume`].
pub fn token(engine: &Engine, ticket: Ticket) -> Option<Token> {
    let workflows = engine.beside().workflows(ticket.policy)?;
    workflows.token(&engine.stage(ticket.policy)?.requests, ticket)
}

/// Whether the request has a workflow.
pub fn has_workflow(engine: &Engine, ticket: Ticket) -> bool {
    let workflows = engine.beside().workflows(ticket.policy);
    workflows.is_some_and(|workflows| {
        let stage = engine.stage(ticket.policy);
        stage.is_some_and(|stage| workflows.has(&stage.requests, ticket))
    })
}

/// Records a request's use of the second resource, which its response reports.
pub fn resource_used(engine: &mut Engine, ticket: Ticket, amount: f64) {
    if let Some((mesh, requests)) = engine.with_requests(ticket.policy)
        && let Some(workflows) = mesh.workflows_mut(ticket.policy)
    {
        workflows.resource_used(requests, ticket, amount);
    }
}

/// Returns the announcement for the process that sent a request. Call this function when the
/// backend's response begins.
pub fn answer(
    engine: &mut Engine,
    host: &impl Host,
    now: Instant,
    ticket: Ticket,
) -> Option<Announced> {
    let (mesh, requests) = engine.with_requests(ticket.policy)?;
    let workflows = mesh.workflows_mut(ticket.policy)?;
    workflows.answer(host, now, requests, ticket)
}

/// Sets headers on a call to Envoy's `cluster`. `token` is the token of the request that caused the
/// call, which the caller must remove from the call. `since` is the time of the call's arrival, if
/// the call was delayed. Returns the state for [`Mesh::answered`], or `None` if the answer isn't
/// needed.
///
/// # Errors
/// [`HostError`]. The caller then sends the call unchanged.
pub fn call(
    engine: &mut Engine,
    host: &impl Host,
    now: Instant,
    (request, token, since): (&impl RequestView, Option<&[u8]>, Option<Instant>),
    cluster: &str,
    actions: &mut Vec<Action>,
    mut set: impl FnMut(&'static str, &str),
) -> Result<Option<Calling>, HostError> {
    if !engine.beside().has_outbound() {
        return Ok(None);
    }
    if !engine.is_idle() {
        engine.be_member(host, now, actions)?;
    }
    let mesh = engine.beside_mut();
    let Some(outbound) = &mut mesh.outbound else {
        return Ok(None);
    };
    let generation = outbound.generation;
    let Cluster { admitted, smoothed } = outbound.cluster(cluster);
    let call = (request, token, since);
    let call = mesh.call_of_workflow(host, now, call, cluster, &mut set);
    let admitted = match admitted {
        Some(service) => mesh.admit_call(host, now, request, service, call.as_ref(), &mut set),
        None => Ok(None),
    };
    let admitted = match admitted {
        // An error of class admission is ignored, because the workflow part still needs the answer.
        Err(_) if call.is_some() => None,
        admitted => admitted?,
    };
    let calling = Calling {
        call,
        generation,
        admitted,
        smoothed,
    };
    let is_any = call.is_some() || admitted.is_some() || smoothed.is_some();
    Ok(is_any.then_some(calling))
}

impl Mesh {
    /// Returns the rule for reading the use of the second resource from a response.
    pub fn resource_report(&self, ticket: Ticket) -> Option<&ResourceReport> {
        match &self.workflows(ticket.policy)?.config().sharing {
            SharingConfig::DominantResource { resource, .. } => Some(&resource.report),
            SharingConfig::StaticGuarantees | SharingConfig::BottleneckFairness { .. } => None,
        }
    }

    /// Writes an announcement and the request's times as response headers.
    pub fn write_answer(
        &mut self,
        answer: Option<&Announced>,
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
            ..Progress::default()
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

    /// Whether the proxy is a gateway. A gateway has no application that makes calls. Each
    /// forwarded request is itself a call ([`call`] with the request's own [`token`]).
    pub fn is_gateway(&self) -> bool {
        self.gateway
    }

    /// Whether an outbound listener was configured.
    pub fn has_outbound(&self) -> bool {
        self.outbound.is_some()
    }

    /// Whether calls may be downgraded.
    pub fn admits_calls(&self) -> bool {
        self.outbound
            .as_ref()
            .is_some_and(|o| o.admission.is_some())
    }

    /// Whether an answer is trusted only if it comes from a configured peer.
    pub fn asks_who_answers(&self) -> bool {
        let outbound = self.outbound.as_ref();
        outbound.is_some_and(|o| !o.config.peers.is_empty())
    }

    /// Runs the class admission part of [`call`], for a call to the service with this index in
    /// [`Outbound::admission`]. The argument `call` is the result of the workflow part.
    fn admit_call(
        &mut self,
        host: &impl Host,
        now: Instant,
        request: &impl RequestView,
        service: usize,
        call: Option<&(PolicyId, Call)>,
        mut set: impl FnMut(&'static str, &str),
    ) -> Result<Option<Admitted>, HostError> {
        let Some(outbound) = &mut self.outbound else {
            return Ok(None);
        };
        let inherited = call.and_then(|(policy, call)| {
            let policy = self.policies.iter().find(|p| p.id == *policy)?;
            policy.class_name(call.class?)
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
            call
        }))
    }

    /// Runs the workflow part of [`call`]. Returns `None` if the calls have no workflows.
    fn call_of_workflow(
        &mut self,
        host: &impl Host,
        now: Instant,
        (request, token, since): (&impl RequestView, Option<&[u8]>, Option<Instant>),
        cluster: &str,
        mut set: impl FnMut(&'static str, &str),
    ) -> Option<(PolicyId, Call)> {
        let outbound = self.outbound.as_ref()?;
        let policy = &outbound.config.policy;
        let of_policy = |p: &&mut Policy| p.in_force && &p.name == policy;
        let policy = self.policies.iter_mut().find(of_policy)?;
        let workflows = policy.workflows.as_mut()?;
        // Retired workflows stay for the calls of earlier requests.
        if workflows.is_retired() && !token.is_some_and(|token| workflows.made(token)) {
            return None;
        }
        let named = named_service(&outbound.config, cluster);
        let service = named.map_or(cluster, |(_, service)| service);
        let service = workflows.service(host, now, service.as_bytes());
        // This workflow, which the application's own headers name, counts if the token was lost.
        let named = (workflows.config().identify.iter())
            .any(|source| name(source, request, "", true, &mut self.scratch.name));
        let workflow = named.then(|| workflows.identify(host, now, &self.scratch.name));
        let call = workflows.called(host, (since.unwrap_or(now), now), service, token, workflow);

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
        if call.progress != Progress::default() {
            say(wire::PROGRESS, &mut |out| {
                wire::put_progress(out, &call.progress);
            });
        }
        if let Some(class) = call.class.and_then(|class| policy.class_name(class)) {
            say(wire::CLASS, &mut |out| out.push_str(class));
        }
        Some((policy.id, call))
    }

    /// Records the end of a call. `reply` is `None` if there was no response. The caller removes
    /// Headgate's headers from the response.
    ///
    /// # Errors
    /// [`HostError`]. The answer's effect on class admission or smoothing is then lost.
    pub fn answered(
        &mut self,
        host: &impl Host,
        now: Instant,
        calling: Calling,
        reply: Option<&Reply<'_>>,
    ) -> Result<(), HostError> {
        let peers = self.outbound.as_ref().map(|o| o.config.peers.as_slice());
        // Without a configuration no peer is known, so no answer is trusted.
        let trusted = reply.is_some_and(|r| peers.is_some_and(|peers| is_one_of(peers, r.peer)));
        let (mut rate, mut below, mut heard, mut nonsense) = (None, None, None, false);
        if let Some(reply) = reply {
            rate = reply.rate.filter(|_| trusted).and_then(wire::parse_rate);
            nonsense = peers.is_some() && reply.rate.is_some() && rate.is_none();
            let progress = reply.progress.filter(|_| trusted);
            let progress = progress.and_then(|value| std::str::from_utf8(value).ok());
            below = progress.and_then(progress::parse);
            let spent = progress.and_then(wire::spent).map(Heard::Spent);
            heard = match reply.outcome {
                Some(Outcome::Failed) => Some(Heard::Failed),
                Some(Outcome::Completed) => spent.or(Some(Heard::Untimed)),
                _ => spent,
            };
        }
        let mut learned = Ok(());
        let rejection = reply.and_then(|r| r.rejection).filter(|_| trusted);
        if let Some(outbound) = self.outbound.as_mut()
            && outbound.generation == calling.generation
        {
            if let (Some(smoothed), Some(rate), Some(smoother)) = (
                calling.smoothed,
                rejection.and_then(hint::rate),
                &mut outbound.smoother,
            ) {
                learned = smoother.heard(host, now, smoothed, rate);
            }
            if let (Some(call), Some(heard), Some(admission)) =
                (calling.admitted, heard, &mut outbound.admission)
            {
                learned = learned.and(admission.answered(host, now, &call, heard));
            }
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

    /// Returns the class that a call requested, for the application. Returns `None` if the call ran
    /// in that class.
    pub fn downgraded(&self, calling: &Calling) -> Option<&str> {
        let outbound = self.outbound.as_ref();
        let outbound = outbound.filter(|o| o.generation == calling.generation)?;
        let call = calling.admitted.as_ref()?;
        outbound.admission.as_ref()?.downgraded(call)
    }

    /// Returns the time until the deadline of the request of `token`, or `None` if the request has
    /// no deadline or isn't known.
    pub(crate) fn time_left(&self, now: Instant, token: &[u8]) -> Option<Duration> {
        let outbound = self.outbound.as_ref()?;
        let mut policies = self.policies.iter();
        let policy = policies.find(|p| p.in_force && p.name == outbound.config.policy)?;
        Some(policy.workflows.as_ref()?.deadline(token)?.since(now))
    }
}

#[cfg(test)]
mod workflow_tests;
