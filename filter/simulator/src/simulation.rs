//! One run: requests arrive, the stage decides, the backend works, until enough were seen.
//!
//! Discrete events of three kinds, taken in the order of their time: the next arrival, the next end of
//! service, and the engine's tick every 10 ms. The backend is P servers with a FIFO queue of their own,
//! which stays empty as long as the stage holds its requests back (`queue.mode: Hold`) and is all the
//! queue there is when it doesn't.
//!
//! What is left out: other workers (one decides for all), the network, and clients that give up or try
//! again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use headgate_core::config::{ConfigError, FilterConfig, StageConfig};
use headgate_core::host::HostError;
use headgate_core::request::Attributes;
use headgate_core::stage::{Arrival, Event, Outcome as Ending, Stage, Ticket};
use headgate_core::time::{Instant, nanos};
use headgate_core::workers::{Changes, Membership};

use crate::host::LocalHost;
use crate::results::{Outcome, TypeOutcome};
use crate::workload::{Request, Traffic, Workload};

/// As in Envoy.
const TICK_NS: u64 = 10_000_000;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The stage is not one that the filter would take.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Engine(#[from] HostError),
    /// No histogram for the results.
    #[error("results can't be kept: {0}")]
    Results(String),
    /// A thread ended early.
    #[error("a run ended early; this is a fault of the simulator")]
    Lost,
}

/// A run to make.
#[derive(Debug, Clone, Copy)]
pub struct Simulation<'a> {
    /// The stage in front of the backend.
    pub stage: &'a StageConfig,
    /// What arrives.
    pub workload: &'a Workload,
    /// Requests per second, above 0.
    pub per_second: f64,
    /// Time before results count.
    pub warm_up: Duration,
    /// Requests that count.
    pub requests: u64,
    /// Decides all that chance decides.
    pub seed: u64,
}

impl Simulation<'_> {
    /// Makes the run.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn run(&self) -> Result<Outcome, SimulationError> {
        let config = FilterConfig {
            revision: String::new(),
            stages: vec![self.stage.clone()],
        };
        config.check()?;
        let mut world = World::new(self)?;
        let mut traffic = Traffic::new(self.workload, self.per_second, self.seed);
        let warm_up = nanos(self.warm_up);
        let mut request = traffic.next();
        while request.at < warm_up {
            world.arrive(request, false)?;
            request = traffic.next();
        }
        world.measure_from(warm_up)?;
        for _ in 0..self.requests {
            world.arrive(request, true)?;
            request = traffic.next();
        }
        let utilization = world.utilization_since(warm_up);
        world.drain()?;
        Ok(Outcome {
            types: world.types,
            utilization,
            simulated: world.simulated,
        })
    }
}

/// A request that was let in.
#[derive(Debug, Clone, Copy)]
struct Job {
    request: Request,
    ticket: Option<Ticket>,
    counts: bool,
}

struct World<'a> {
    host: LocalHost,
    membership: Membership,
    stage: Stage,
    workload: &'a Workload,
    servers: usize,
    jobs: Vec<Job>,
    free: Vec<u32>,
    /// Ends of service: ns and job.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    /// Requests that the backend has and does not work on yet.
    backlog: VecDeque<u32>,
    events: Vec<Event>,
    next_tick: u64,
    now: u64,
    /// Σ busy servers × ns.
    busy: u128,
    types: Vec<TypeOutcome>,
    simulated: u64,
}

impl<'a> World<'a> {
    fn new(simulation: &Simulation<'a>) -> Result<Self, SimulationError> {
        let host = LocalHost::default();
        let membership = Membership::join(Instant::default(), 1, &host)?;
        // The strategy's luck must not be that of the traffic.
        let seed = !simulation.seed;
        let stage = Stage::new(simulation.stage.clone(), &membership, seed, &host)?;
        let types = simulation.workload.types().iter();
        Ok(Self {
            membership,
            stage,
            workload: simulation.workload,
            servers: simulation.stage.parallelism as usize,
            jobs: Vec::new(),
            free: Vec::new(),
            ends: BinaryHeap::new(),
            backlog: VecDeque::new(),
            events: Vec::new(),
            next_tick: 0,
            now: 0,
            busy: 0,
            types: types
                .map(|_| TypeOutcome::new())
                .collect::<Result<_, _>>()
                .map_err(|e| SimulationError::Results(e.to_string()))?,
            simulated: 0,
            host,
        })
    }

    /// Everything that happens before `until`.
    fn run_until(&mut self, until: u64) -> Result<(), SimulationError> {
        loop {
            let end = self.ends.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let next = end.min(self.next_tick);
            if next > until {
                self.pass_to(until);
                return Ok(());
            }
            self.pass_to(next);
            if end == next {
                self.end_of_service()?;
            } else {
                self.tick()?;
            }
        }
    }

    fn pass_to(&mut self, at: u64) {
        self.busy += u128::from(at - self.now) * self.ends.len() as u128;
        self.now = at;
    }

    fn measure_from(&mut self, at: u64) -> Result<(), SimulationError> {
        self.run_until(at)?;
        self.busy = 0;
        Ok(())
    }

    fn utilization_since(&self, begin: u64) -> f64 {
        let time = (self.now - begin).max(1);
        self.busy as f64 / (time as f64 * self.servers as f64)
    }

    /// Serves those that are still there.
    fn drain(&mut self) -> Result<(), SimulationError> {
        while self.stage.pending() > 0 || !self.ends.is_empty() {
            let next = self
                .ends
                .peek()
                .map_or(self.next_tick, |Reverse((at, _))| *at);
            self.run_until(next)?;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), SimulationError> {
        self.next_tick += TICK_NS;
        let now = Instant::from_nanos(self.now);
        let changes: Changes = self.membership.tick(now, &self.host)?;
        self.stage.tick(
            &self.host,
            now,
            &self.membership,
            &changes,
            &mut self.events,
        )?;
        self.carry_out();
        Ok(())
    }

    fn arrive(&mut self, request: Request, counts: bool) -> Result<(), SimulationError> {
        self.run_until(request.at)?;
        self.simulated += 1;
        let stream = self.insert(Job {
            request,
            ticket: None,
            counts,
        });
        self.types[request.kind].offered += u64::from(counts);
        let kind = self.workload.types()[request.kind].kind;
        let now = Instant::from_nanos(self.now);
        let arrival = self.stage.arrive(
            &self.host,
            now,
            stream,
            &Attributes::of(kind),
            &mut self.events,
        )?;
        match arrival {
            Arrival::Forward(ticket) => {
                self.jobs[stream as usize].ticket = Some(ticket);
                self.send(stream);
            }
            Arrival::Hold(ticket) => self.jobs[stream as usize].ticket = Some(ticket),
            Arrival::Refuse(_) => self.refused(stream),
        }
        self.carry_out();
        Ok(())
    }

    fn end_of_service(&mut self) -> Result<(), SimulationError> {
        let Some(Reverse((at, stream))) = self.ends.pop() else {
            return Ok(());
        };
        let job = self.jobs[stream as usize];
        self.free.push(stream);
        if job.counts {
            self.types[job.request.kind].served(at - job.request.at);
        }
        if let Some(next) = self.backlog.pop_front() {
            self.start(next);
        }
        if let Some(ticket) = job.ticket {
            let now = Instant::from_nanos(at);
            self.stage
                .finish(&self.host, now, ticket, Ending::Completed, &mut self.events)?;
        }
        self.carry_out();
        Ok(())
    }

    fn carry_out(&mut self) {
        for at in 0..self.events.len() {
            match self.events[at] {
                Event::Resume { stream } => self.send(stream),
                Event::Expire { stream, .. } => self.refused(stream),
            }
        }
        self.events.clear();
    }

    /// To the backend.
    fn send(&mut self, stream: u32) {
        if self.ends.len() < self.servers {
            self.start(stream);
        } else {
            self.backlog.push_back(stream);
        }
    }

    fn start(&mut self, stream: u32) {
        let processing = self.jobs[stream as usize].request.processing;
        self.ends.push(Reverse((self.now + processing, stream)));
    }

    fn refused(&mut self, stream: u32) {
        let job = self.jobs[stream as usize];
        self.free.push(stream);
        self.types[job.request.kind].rejected += u64::from(job.counts);
    }

    fn insert(&mut self, job: Job) -> u32 {
        if let Some(stream) = self.free.pop() {
            self.jobs[stream as usize] = job;
            return stream;
        }
        self.jobs.push(job);
        // 2^32 requests at once don't fit into memory.
        (self.jobs.len() - 1) as u32
    }
}
