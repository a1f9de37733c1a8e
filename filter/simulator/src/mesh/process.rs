//! A process of a service, with the engine in front of it.

use std::collections::VecDeque;
use std::time::Duration;

use headgate_core::config::FilterConfig;
use headgate_core::decision::{Action, Arrival, Decision, Origin, PolicyId, Refusal, Ticket};
use headgate_core::stage::Outcome;
use headgate_mesh::workflows::{Call, OTHER, ProcessId, Token, WorkflowId};
use headgate_mesh::{Engine, engine};
use headgate_strategies::host::HostError;
use headgate_strategies::request::{Attributes, ClassId, Progress};
use headgate_strategies::time::Instant;

use super::clocks::Clock;
use super::graph::{Graph, Service};
use super::policy::Setup;
use super::seen::ProcessSample;
use super::spans::{Said, Span};
use crate::host::Local;
use crate::simulation::SimulationError;
use crate::workload::dice::Dice;
use crate::workload::request::Classification;

/// The only policy of a process.
const POLICY: PolicyId = PolicyId(0);

/// A process and its engine.
#[derive(Debug)]
pub(super) struct Process {
    host: Local,
    clock: Clock,
    engine: Engine,
    /// Classifications of requests in the stage, by task and workflow.
    places: Vec<Vec<Option<Classification>>>,
    /// Names of the workflows.
    names: Vec<String>,
    services: Vec<String>,
    threads: Option<u32>,
    computing: u32,
    /// Requests with a slot that wait for a thread, each with the time for which it will compute,
    /// ns.
    waiting: VecDeque<(u32, u64)>,
    /// The number of requests that hold a slot.
    running: u32,
    /// Σ held slots × ns, until `since`.
    busy: u128,
    since: u64,
    offered: Vec<u64>,
    refused: Vec<u64>,
    completed: Vec<u64>,
    /// The next process of each service, for round robin.
    turns: Vec<usize>,
    pub(super) dice: Dice,
}

impl Process {
    pub(super) fn new(
        graph: &Graph,
        service: usize,
        setup: &Setup,
        clock: Clock,
        seed: u64,
    ) -> Result<Self, SimulationError> {
        let (host, policy) = (Local::default(), setup.policy(graph, service));
        let Service { threads, slots, .. } = graph.services[service];
        let is_found = policy.stage.auto_parallelism.is_some();
        let config = FilterConfig {
            revision: String::new(),
            stages: vec![policy.stage],
            ..FilterConfig::default()
        };
        let (start, mut none_held) = (clock.at(0), Vec::new());
        let mut engine = Engine::new(seed);
        engine.configure(&host, start, &config, &mut none_held)?;
        engine.join(&host, start, &mut none_held)?;
        let none = vec![0; graph.workflows.len()];
        Ok(Self {
            clock,
            engine,
            places: policy.places,
            names: graph.workflows.iter().map(|w| w.name.clone()).collect(),
            services: graph.services.iter().map(|s| s.name.clone()).collect(),
            // If P is found automatically, the service computes as many requests at once as the
            // mesh specifies, however many are admitted.
            threads: threads.or(is_found.then_some(slots)),
            computing: 0,
            waiting: VecDeque::new(),
            running: 0,
            busy: 0,
            since: 0,
            offered: none.clone(),
            refused: none.clone(),
            completed: none,
            turns: vec![0; graph.services.len()],
            dice: Dice::new(seed),
            host,
        })
    }

    /// Returns the engine's decision on an arriving request.
    pub(super) fn arrive(
        &mut self,
        now: u64,
        stream: u32,
        span: &Span,
        own_deadline: Option<Duration>,
        asked: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        let workflow = usize::from(span.workflow);
        self.offered[workflow] += 1;
        let Some(place) = self.places[usize::from(span.task)][workflow] else {
            return Ok(Decision::PassBy);
        };
        let attributes = Attributes {
            // If the process has workflows, the engine replaces this number by its own id of the
            // workflow.
            flow: span.workflow + 1,
            class: ClassId(place.class),
            cost: (place.cost > 0).then_some(place.cost),
            size: (place.cost > 0).then_some(place.cost),
            own_deadline: shorter(span.call.and_then(|call| call.deadline), own_deadline),
            progress: span.call.map_or(Progress::default(), |call| call.progress),
            ..Attributes::of(place.kind)
        };
        let now = self.clock.at(now);
        let arrival = Arrival {
            stream,
            attributes,
            origin: Origin {
                flow: self.identify(now, workflow).0,
                sender: span.upstream.map(|process| process.0),
            },
        };
        self.engine.admit(&self.host, now, POLICY, &arrival, asked)
    }

    fn identify(&mut self, now: Instant, workflow: usize) -> WorkflowId {
        let workflows = self.engine.beside_mut().workflows_mut(POLICY);
        let name = self.names[workflow].as_bytes();
        workflows.map_or(OTHER, |workflows| workflows.identify(&self.host, now, name))
    }

    /// Records that a request got its slot. Returns the token for its calls.
    pub(super) fn began(&mut self, now: u64, ticket: Option<Ticket>) -> Option<Token> {
        self.pass_to(now);
        self.running += 1;
        engine::token(&self.engine, ticket?)
    }

    /// Records the answer of a request that held a slot. Returns the answer's workflow data.
    pub(super) fn ended(
        &mut self,
        now: u64,
        span: &Span,
        ok: bool,
        asked: &mut Vec<Action>,
    ) -> Result<Option<Said>, HostError> {
        self.pass_to(now);
        self.running -= 1;
        self.completed[usize::from(span.workflow)] += u64::from(ok);
        let now = self.clock.at(now);
        let Some(ticket) = span.ticket else {
            return Ok(None);
        };
        let answer = engine::answer(&mut self.engine, &self.host, now, ticket);
        self.engine
            .finish(&self.host, now, ticket, Outcome::Completed, asked)?;
        Ok(answer.map(|answer| (answer.announcement, answer.progress)))
    }

    /// Records the refusal of a request. Returns the refusal's workflow data.
    pub(super) fn refused(&mut self, span: &Span, refusal: &Refusal) -> Option<Said> {
        self.refused[usize::from(span.workflow)] += 1;
        let workflows = self.engine.beside().workflows(POLICY)?;
        Some((workflows.announcement(refusal.origin), Progress::default()))
    }

    /// Records a call of this process to a service. Returns this process's id and the state of the
    /// call.
    pub(super) fn calls(
        &mut self,
        now: u64,
        caller: &Span,
        service: usize,
    ) -> Option<(ProcessId, Call)> {
        let workflows = self.engine.beside_mut().workflows_mut(POLICY)?;
        let now = self.clock.at(now);
        let service = workflows.service(&self.host, now, self.services[service].as_bytes());
        let name = self.names[usize::from(caller.workflow)].as_bytes();
        let id = workflows.identify(&self.host, now, name);
        let token = caller.token.as_ref();
        let token = token.map(|token| token.as_str().as_bytes());
        let call = workflows.called(&self.host, (now, now), service, token, Some(id));
        Some((workflows.process(), call))
    }

    /// Records the end of a call of this process. `said` is `None` if the call was given up, or if
    /// the answer has no workflow data.
    pub(super) fn heard(&mut self, now: u64, call: Call, said: Option<Said>) {
        let Some(workflows) = self.engine.beside_mut().workflows_mut(POLICY) else {
            return;
        };
        let (announcement, progress) = said.unzip();
        let now = self.clock.at(now);
        workflows.answered(
            &self.host,
            now,
            call,
            announcement.as_ref(),
            progress.as_ref(),
        );
    }

    /// Returns whether a request may begin to compute now. If not, the request is queued for a
    /// thread.
    pub(super) fn compute(&mut self, stream: u32, time: u64) -> bool {
        if self
            .threads
            .is_some_and(|threads| self.computing >= threads)
        {
            self.waiting.push_back((stream, time));
            return false;
        }
        self.computing += 1;
        true
    }

    /// Frees a thread. Returns the next request that waits for a thread, and the time for which
    /// this request will compute, ns.
    pub(super) fn computed(&mut self) -> Option<(u32, u64)> {
        let next = self.waiting.pop_front();
        self.computing -= u32::from(next.is_none());
        next
    }

    /// Returns the next process, in round-robin order, of a service with `of` processes.
    pub(super) fn turn(&mut self, service: usize, of: usize) -> usize {
        let turn = &mut self.turns[service];
        *turn = (*turn + 1) % of;
        *turn
    }

    pub(super) fn tick(&mut self, now: u64, asked: &mut Vec<Action>) -> Result<(), HostError> {
        self.engine.tick(&self.host, self.clock.at(now), asked)
    }

    fn pass_to(&mut self, now: u64) {
        self.busy += u128::from(now.saturating_sub(self.since)) * u128::from(self.running);
        self.since = now.max(self.since);
    }

    pub(super) fn sample(&mut self, now: u64) -> ProcessSample {
        self.pass_to(now);
        ProcessSample {
            busy: self.busy as f64 / 1e9,
            running: self.running,
            queued: (self.engine.pending() as u32).saturating_sub(self.running),
            offered: self.offered.clone(),
            refused: self.refused.clone(),
            completed: self.completed.clone(),
            rates: self.rates(now),
        }
    }

    fn rates(&mut self, now: u64) -> Vec<f64> {
        let Some(workflows) = self.engine.beside_mut().workflows_mut(POLICY) else {
            return vec![f64::INFINITY; self.names.len()];
        };
        let now = self.clock.at(now);
        let rate = |name: &String| {
            let id = workflows.identify(&self.host, now, name.as_bytes());
            workflows.rate(id)
        };
        self.names.iter().map(rate).collect()
    }
}

fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (some, None) | (None, some) => some,
    }
}
