//! One run: requests arrive, the engine decides and the backend works, until the condition
//! [`Until`] ends the run.
//!
//! Three kinds of discrete events are processed in the order of their times: the next arrival of a
//! [`Source`], the next event of a [`Backend`], and the engine's tick every 10 ms. At equal times,
//! arrivals are last, because an end of service frees a slot.
//!
//! The model leaves out the network and multiple workers: one worker decides on all requests.

use std::time::Duration;

use headgate_core::config::{ConfigError, FilterConfig, Measure, StageConfig, TokensConfig};
use headgate_core::decision::{Action, Arrival, Decision, Origin, PolicyId, Ticket};
use headgate_core::requests::Upstream;
use headgate_core::stage::{Outcome as Completion, Stage};
use headgate_mesh::Engine;
use headgate_strategies::host::HostError;
use headgate_strategies::reason::Reason;
use headgate_strategies::request::{Attributes, ClassId};
use headgate_strategies::strategy::TypeId;
use headgate_strategies::time::{Instant, nanos};

use crate::backend::Backend;
use crate::host::Local;
use crate::results::{Outcome, TypeOutcome};
use crate::source::{Answer, Ending, Request, Source};
use crate::workload::WorkloadError;

/// The only policy of a run.
const POLICY: PolicyId = PolicyId(0);
/// The tick period, as in Envoy while requests wait.
const TICK_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// An error that ends a run.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The configuration of the stage or of class admission is invalid. The filter would reject
    /// this configuration, too.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(#[from] HostError),
    /// The workload's arrivals can't be drawn.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A run would take years of simulated time.
    #[error(
        "{field}: {value:?}; at least {least:?}, at which {requests} requests take a year; or fewer \
         requests"
    )]
    Long {
        /// The field of the workload, `load` or `rate`.
        field: &'static str,
        /// The value of the field.
        value: f64,
        /// The least valid value for this number of requests.
        least: f64,
        /// The number of requests of the run.
        requests: u64,
    },
    /// The histograms for the results can't be created.
    #[error("results can't be kept: {0}")]
    Results(String),
    /// A thread of the simulation ended early.
    #[error("a run ended early; this is a bug of the simulator")]
    Lost,
}

/// The condition that ends a run. A run also ends when no events are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// This number of requests has arrived after the warm-up.
    Requests(u64),
    /// This time after the start has passed.
    Time(Duration),
}

/// A run of a stage with any source and backend.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The stage in front of the backend.
    pub stage: &'a StageConfig,
    /// The stage's types for the source's types, by [`Request::kind`].
    pub kinds: &'a [TypeId],
    /// Time before results count.
    pub warm_up: Duration,
    /// The end of the run.
    pub until: Until,
    /// The seed of the strategy.
    pub seed: u64,
}

impl Run<'_> {
    /// Runs until [`Run::until`], and then until all requests have left the stage. The source still
    /// receives their answers, but no further request is taken from the source.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn with<S: Source, B: Backend>(
        &self,
        source: &mut S,
        backend: B,
    ) -> Result<Outcome, SimulationError> {
        let config = FilterConfig {
            revision: String::new(),
            stages: vec![self.stage.clone()],
            ..FilterConfig::default()
        };
        let mut world = World::new(self, &config, source, backend)?;
        let warm_up = nanos(self.warm_up);
        world.play(warm_up, u64::MAX)?;
        world.measure_from(warm_up);
        let (until, requests) = match self.until {
            Until::Requests(requests) => (u64::MAX, requests),
            Until::Time(time) => (nanos(time).max(warm_up), u64::MAX),
        };
        world.play(until, requests)?;
        let utilization = world.utilization_since(warm_up);
        let seconds = world.now.saturating_sub(warm_up) as f64 / 1e9;
        world.drain()?;
        Ok(Outcome {
            types: world.types,
            utilization,
            seconds,
            parallelism: world.parallelism,
        })
    }
}

/// A request that has arrived and not ended.
#[derive(Debug, Clone, Copy)]
struct Job {
    request: Request,
    ticket: Option<Ticket>,
    quality: Option<f64>,
    counts: bool,
    /// The time of the first byte of the response, ns; `None` before this time, or if the backend
    /// doesn't report the first byte.
    begun: Option<u64>,
}

struct World<'a, S, B> {
    host: Local,
    engine: Engine,
    kinds: &'a [TypeId],
    /// The token budget. [`Request::cost`] is the value of the header with the prompt's tokens.
    tokens: Option<&'a TokensConfig>,
    source: &'a mut S,
    backend: B,
    jobs: Vec<Job>,
    free: Vec<u32>,
    actions: Vec<Action>,
    next_tick: u64,
    now: u64,
    /// Whether the warm-up is over.
    counts: bool,
    /// Σ busy servers × ns.
    busy: u128,
    types: Vec<TypeOutcome>,
    parallelism: Vec<u32>,
}

impl<'a, S: Source, B: Backend> World<'a, S, B> {
    fn new(
        run: &Run<'a>,
        config: &FilterConfig,
        source: &'a mut S,
        backend: B,
    ) -> Result<Self, SimulationError> {
        let (host, start) = (Local::default(), Instant::default());
        let (mut engine, mut actions) = (Engine::new(run.seed), Vec::new());
        engine.configure(&host, start, config, &mut actions)?;
        engine.join(&host, start, &mut actions)?;
        Ok(Self {
            engine,
            kinds: run.kinds,
            tokens: run.stage.tokens.as_ref(),
            source,
            backend,
            jobs: Vec::new(),
            free: Vec::new(),
            actions,
            next_tick: 0,
            now: 0,
            counts: false,
            busy: 0,
            types: run
                .kinds
                .iter()
                .map(|_| TypeOutcome::new())
                .collect::<Result<_, _>>()
                .map_err(|e| SimulationError::Results(e.to_string()))?,
            parallelism: Vec::new(),
            host,
        })
    }

    /// Runs all events before `until`, with at most `requests` arrivals. Ends early when only ticks
    /// are left.
    fn play(&mut self, until: u64, requests: u64) -> Result<(), SimulationError> {
        let mut left = requests;
        while left > 0 {
            let arrival = self.source.peek();
            match arrival {
                Some(at) if at < until => {
                    if self.step(at)? {
                        // The event may have caused an arrival before `at`.
                        continue;
                    }
                    let Some(request) = self.source.take() else {
                        continue;
                    };
                    left -= 1;
                    self.arrive(request)?;
                }
                None if self.is_idle() => return Ok(()),
                _ => {
                    if !self.step(until)? {
                        self.pass_to(until);
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs the next event of the backend or the next tick, unless that event is after `until`.
    /// Returns whether an event ran.
    fn step(&mut self, until: u64) -> Result<bool, SimulationError> {
        let end = self.backend.next_end();
        let next = end.min(self.next_tick);
        if next > until {
            return Ok(false);
        }
        self.pass_to(next);
        if end == next {
            self.end_of_service()?;
        } else {
            self.tick()?;
        }
        Ok(true)
    }

    fn is_idle(&self) -> bool {
        self.engine.pending() == 0 && self.backend.next_end() == u64::MAX
    }

    fn pass_to(&mut self, at: u64) {
        let at = at.max(self.now);
        self.busy += u128::from(at - self.now) * u128::from(self.backend.busy());
        self.now = at;
    }

    fn measure_from(&mut self, at: u64) {
        self.pass_to(at);
        self.busy = 0;
        self.counts = true;
    }

    fn utilization_since(&self, begin: u64) -> f64 {
        let time = self.now.saturating_sub(begin).max(1);
        self.busy as f64 / (time as f64 * f64::from(self.backend.servers()))
    }

    /// Runs until all requests have left.
    fn drain(&mut self) -> Result<(), SimulationError> {
        while !self.is_idle() {
            self.step(u64::MAX)?;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), SimulationError> {
        if self.next_tick.is_multiple_of(SECOND_NS) && self.next_tick > 0 {
            self.parallelism.extend(self.engine.parallelism(POLICY));
        }
        self.next_tick += TICK_NS;
        let now = Instant::from_nanos(self.now);
        self.engine.tick(&self.host, now, &mut self.actions)?;
        while let Some((ticket, stream)) = self.engine.suspects().pop() {
            if let Some(upstream) = self.upstream(stream) {
                let (host, actions) = (&self.host, &mut self.actions);
                self.engine.at_host(host, now, ticket, upstream, actions)?;
            }
        }
        self.carry_out();
        Ok(())
    }

    fn arrive(&mut self, request: Request) -> Result<(), SimulationError> {
        self.pass_to(request.at);
        let stream = self.insert(Job {
            request,
            ticket: None,
            quality: None,
            counts: self.counts,
            begun: None,
        });
        self.types[request.kind].offered += u64::from(self.counts);
        let arrival = Arrival {
            stream,
            attributes: self.attributes(&request),
            origin: Origin::default(),
        };
        let (host, now) = (&self.host, Instant::from_nanos(self.now));
        let actions = &mut self.actions;
        match self.engine.admit(host, now, POLICY, &arrival, actions)? {
            Decision::PassBy => self.send(stream),
            Decision::Forward(ticket) => {
                self.jobs[stream as usize].ticket = Some(ticket);
                self.send(stream);
            }
            Decision::Hold(ticket) => self.jobs[stream as usize].ticket = Some(ticket),
            Decision::Refuse(refusal) => self.refused(stream, refusal.reason),
        }
        self.carry_out();
        Ok(())
    }

    fn end_of_service(&mut self) -> Result<(), SimulationError> {
        let ended = self.backend.end(self.now);
        while let Some(stream) = self.backend.begun() {
            self.first_byte(stream)?;
        }
        while let Some((stream, output)) = self.backend.wrote() {
            let ticket = self.jobs[stream as usize].ticket;
            if let (Some(ticket), Some(stage)) = (ticket, self.engine.stage_mut(POLICY)) {
                stage.grows(&self.host, ticket, output)?;
            }
        }
        self.carry_out();
        let Some(stream) = ended else {
            return Ok(());
        };
        let job = self.jobs[stream as usize];
        self.free.push(stream);
        let failed = self.backend.failed();
        if job.counts && !failed {
            self.types[job.request.kind].served(self.now - job.request.at);
        }
        let (completion, ending) = if failed {
            (Completion::Failed, Ending::Failed)
        } else {
            (Completion::Completed, Ending::Served)
        };
        if let Some(ticket) = job.ticket {
            let now = Instant::from_nanos(self.now);
            let spoken = job.begun.map(|at| Duration::from_nanos(self.now - at));
            let output = job.request.output;
            let token_time = spoken.and_then(|spoken| spoken.checked_div(output.saturating_sub(1)));
            if let Some(stage) = self.engine.stage_mut(POLICY) {
                stage.tokens(ticket, output, true, token_time);
            }
            if let Some(upstream) = self.upstream(stream).filter(|_| !failed)
                && let Some(stage) = self.engine.stage_mut(POLICY)
                && stage.watches_hosts()
            {
                stage.answered_by(&self.host, now, ticket, upstream)?;
            }
            let actions = &mut self.actions;
            self.engine
                .finish(&self.host, now, ticket, completion, actions)?;
        }
        self.answer(&job, ending);
        self.carry_out();
        Ok(())
    }

    /// Handles the first byte of a response, as `headgate_core::http::Inbound` does.
    fn first_byte(&mut self, stream: u32) -> Result<(), SimulationError> {
        let job = &mut self.jobs[stream as usize];
        self.source.begun(&job.request, self.now);
        job.begun = Some(self.now);
        let (Some(ticket), Some(stage)) = (job.ticket, self.engine.stage_mut(POLICY)) else {
            return Ok(());
        };
        let (host, now, completed) = (
            &self.host,
            Instant::from_nanos(self.now),
            Completion::Completed,
        );
        let config = stage.config();
        let measure = stage.type_of(ticket).map(|kind| config.measure_of(kind));
        if measure != Some(Measure::FirstByte) {
            return Ok(());
        }
        if config.release_slot == Measure::LastByte {
            stage.first_byte(host, now, ticket, completed)?;
        } else {
            job.ticket = None;
            let actions = &mut self.actions;
            self.engine.finish(host, now, ticket, completed, actions)?;
        }
        Ok(())
    }

    fn carry_out(&mut self) {
        for at in 0..self.actions.len() {
            match self.actions[at] {
                Action::Resume { stream, .. } => self.send(stream),
                Action::Refuse { stream, refusal } => self.refused(stream, refusal.reason),
                // The stage makes no calls.
                Action::Send { .. } => {}
            }
        }
        self.actions.clear();
    }

    /// Sends a request to the backend.
    fn send(&mut self, stream: u32) {
        let job = &mut self.jobs[stream as usize];
        let stage = self.engine.stage(POLICY);
        job.quality = stage
            .zip(job.ticket)
            .and_then(|(stage, ticket)| stage.quality(ticket));
        if let Some(quality) = job.quality {
            job.request.processing = self.backend.work(&job.request, quality);
        }
        self.source.forwarded(&job.request, self.now);
        self.backend.take(self.now, stream, &job.request);
    }

    /// Returns the endpoint of a request, if the backend has several.
    fn upstream(&self, stream: u32) -> Option<Upstream> {
        let endpoint = self.backend.endpoint(stream)?;
        Some(Upstream::at(&endpoint.to_le_bytes()))
    }

    fn attributes(&self, request: &Request) -> Attributes {
        let cost = (request.cost > 0).then_some(request.cost);
        let most = (request.most_output > 0).then_some(request.most_output);
        let tokens = self.tokens.map_or((0, 0), |tokens| tokens.of(cost, most));
        Attributes {
            class: ClassId(request.class),
            own_deadline: request.deadline,
            is_retry: request.is_retry,
            cost,
            size: cost,
            tokens: tokens.0,
            prompt_tokens: tokens.1,
            ..Attributes::of(self.kinds[request.kind])
        }
    }

    fn refused(&mut self, stream: u32, reason: Reason) {
        let job = self.jobs[stream as usize];
        self.free.push(stream);
        self.types[job.request.kind].rejected += u64::from(job.counts);
        self.backend.refused(self.now);
        self.source.refused(&job.request, reason);
        self.answer(&job, Ending::Refused);
    }

    fn answer(&mut self, job: &Job, ending: Ending) {
        let stage = self.engine.stage(POLICY);
        let (kind, class) = (self.kinds[job.request.kind], ClassId(job.request.class));
        let answer = Answer {
            ending,
            rejection_rate: stage.and_then(Stage::rejection_rate).unwrap_or_default(),
            admission_rate: stage.and_then(|stage| stage.admission_rate(kind, class)),
            quality: job.quality,
        };
        self.source.answered(&job.request, self.now, answer);
    }

    fn insert(&mut self, job: Job) -> u32 {
        if let Some(stream) = self.free.pop() {
            self.jobs[stream as usize] = job;
            return stream;
        }
        self.jobs.push(job);
        // The index fits into 32 bits, because 2^32 requests at once don't fit into memory.
        (self.jobs.len() - 1) as u32
    }
}
