//! A run of a mesh.

mod calls;

use std::time::Duration;

use headgate_core::decision::{Action, Decision, Refusal, Ticket};
use headgate_strategies::time::nanos;

use super::agenda::Agenda;
use super::graph::{Count, Graph, Step};
use super::load::{Load, partition};
use super::policy::Setup;
use super::process::Process;
use super::seen::{Ended, Ending, Sample, Seen};
use super::spans::{Caller, Span, SpanId, Spans};
use crate::simulation::SimulationError;
use crate::workload::dice::Dice;

/// The tick period, as in Envoy while requests wait.
const TICK_NS: u64 = 10_000_000;

/// The parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Services and workflows.
    pub graph: &'a Graph,
    /// Clients.
    pub loads: &'a [Load],
    /// The processes' setup.
    pub setup: &'a Setup,
    /// The end of the run.
    pub until: Duration,
    /// Time between two samples of the processes.
    pub sample_every: Duration,
    /// The number of clients' requests after which the run ends early.
    pub requests: u64,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Run<'_> {
    /// Runs the mesh.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn make(&self) -> Result<Seen, SimulationError> {
        let mut world = World::new(self)?;
        world.play(nanos(self.until))?;
        Ok(world.seen)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client of this load sends a request.
    Send(u32),
    /// A request reaches its process.
    Arrive(u32),
    /// A request has finished a computation.
    Computed(u32),
    /// An answer reaches its caller.
    Answer(u32),
    /// A caller gives up waiting: index and generation of the request.
    GiveUp(u32, u32),
    /// A process ticks.
    Tick(u32),
    /// All processes are sampled.
    Sample,
}

struct World<'a> {
    run: &'a Run<'a>,
    graph: &'a Graph,
    now: u64,
    events: Agenda<Event>,
    processes: Vec<Process>,
    /// The index of the first process of each service.
    first: Vec<usize>,
    spans: Spans,
    /// Actions that processes returned and that are still to be carried out.
    asked: Vec<Action>,
    /// Random numbers for each load.
    dice: Vec<Dice>,
    /// The number of requests sent from each load's trace.
    replayed: Vec<usize>,
    /// Random numbers for the network.
    network: Dice,
    /// The next process that receives a client's request, by service.
    entries: Vec<usize>,
    seen: Seen,
}

impl<'a> World<'a> {
    fn new(run: &'a Run<'a>) -> Result<Self, SimulationError> {
        let graph = run.graph;
        let mut seeds = Dice::new(run.seed);
        let mut seed = move || seeds.seed();
        let dice: Vec<Dice> = run.loads.iter().map(|_| Dice::new(seed())).collect();
        let network = Dice::new(seed());
        // Clocks have their own generator, so that the rest of the run is the same with any clocks.
        let mut clocks = Dice::new(!run.seed);
        let mut processes = Vec::new();
        let mut services = Vec::new();
        for (at, service) in graph.services.iter().enumerate() {
            let begin = processes.len();
            for _ in 0..service.processes.max(1) {
                let clock = run.setup.clocks.draw(&mut clocks);
                processes.push(Process::new(graph, at, run.setup, clock, seed())?);
            }
            services.push(begin..processes.len());
        }
        let mut world = Self {
            run,
            graph,
            now: 0,
            events: Agenda::new(),
            first: services.iter().map(|range| range.start).collect(),
            processes,
            spans: Spans::default(),
            asked: Vec::new(),
            dice,
            replayed: vec![0; run.loads.len()],
            network,
            entries: vec![0; graph.services.len()],
            seen: Seen {
                services,
                ..Seen::default()
            },
        };
        for process in 0..world.processes.len() {
            // Proxies don't all tick at the same time.
            let offset = (world.network.unit() * TICK_NS as f64) as u64;
            world.events.at(offset, Event::Tick(process as u32));
        }
        world.events.at(0, Event::Sample);
        for (at, load) in run.loads.iter().enumerate() {
            for _ in 0..load.senders() {
                let first = load.first(&mut world.dice[at]);
                world.events.at(first, Event::Send(at as u32));
            }
        }
        Ok(world)
    }

    /// Schedules an event after the network's delay.
    fn after_delay(&mut self, event: Event) {
        let delay = nanos(self.graph.network.delay);
        self.events.after(self.now, delay, event);
    }

    fn play(&mut self, until: u64) -> Result<(), SimulationError> {
        while let Some((time, event)) = self.events.next() {
            if time > until || self.seen.ended.len() as u64 >= self.run.requests {
                return Ok(());
            }
            self.now = time;
            match event {
                Event::Send(load) => self.send(load),
                Event::Arrive(span) => self.arrive(span)?,
                Event::Computed(span) => self.computed(span)?,
                Event::Answer(span) => self.answered(span)?,
                Event::GiveUp(index, generation) => {
                    self.give_up(SpanId { index, generation })?;
                }
                Event::Tick(process) => self.tick(process)?,
                Event::Sample => self.sample(),
            }
        }
        Ok(())
    }

    fn sample(&mut self) {
        let now = self.now;
        let processes = self.processes.iter_mut().map(|p| p.sample(now)).collect();
        self.seen.samples.push(Sample { at: now, processes });
        let pause = nanos(self.run.sample_every).max(1);
        self.events.after(now, pause, Event::Sample);
    }

    fn tick(&mut self, process: u32) -> Result<(), SimulationError> {
        self.processes[process as usize].tick(self.now, &mut self.asked)?;
        self.events.after(self.now, TICK_NS, Event::Tick(process));
        self.carry_out()
    }

    /// Sends a client's request.
    fn send(&mut self, at: u32) {
        let load = &self.run.loads[at as usize];
        if self.now >= load.until {
            return;
        }
        let turn = &mut self.replayed[at as usize];
        let item = load.trace[*turn % load.trace.len()];
        *turn += 1;
        let dice = &mut self.dice[at as usize];
        let partition = partition(self.graph, item.workflow, dice);
        if !load.is_closed() {
            let next = load.next(self.now, dice);
            self.events.at(next, Event::Send(at));
        }
        let workflow = &self.graph.workflows[item.workflow];
        let service = self.graph.tasks[workflow.entry].service;
        let turn = &mut self.entries[service];
        *turn = (*turn + 1) % self.graph.services[service].processes.max(1);
        let process = self.first[service] + *turn;
        let deadline = item.deadline.or(workflow.deadline);
        let deadline = deadline.map_or(u64::MAX, |d| self.now + nanos(d));
        let id = self.spans.insert(Span {
            caller: Caller::Client(at),
            workflow: item.workflow as u16,
            task: workflow.entry as u16,
            process: process as u32,
            called_by: process as u32,
            partition: partition as u32,
            size: item.size,
            deadline,
            sent: self.now,
            ..Span::default()
        });
        self.after_delay(Event::Arrive(id.index));
        if let Some(timeout) = workflow.timeout {
            let event = Event::GiveUp(id.index, id.generation);
            self.events.after(self.now, nanos(timeout), event);
        }
    }

    fn arrive(&mut self, at: u32) -> Result<(), SimulationError> {
        let span = *self.spans.at(at);
        let expires = match (span.caller, self.graph.network.timeout) {
            // The route's timeout limits the deadline, as in Envoy.
            (Caller::Span(_), Some(timeout)) => span.deadline.min(span.sent + nanos(timeout)),
            _ => span.deadline,
        };
        let own = (self.run.setup.deadlines && expires < u64::MAX)
            // The deadline's header must not be 0.
            .then(|| Duration::from_nanos(expires.saturating_sub(self.now).max(1_000)));
        let process = &mut self.processes[span.process as usize];
        match process.arrive(self.now, at, &span, own, &mut self.asked)? {
            Decision::PassBy => self.begin(at, None)?,
            Decision::Forward(ticket) => self.begin(at, Some(ticket))?,
            Decision::Hold(_) => {}
            Decision::Refuse(refusal) => self.refused(at, &refusal),
        }
        self.carry_out()
    }

    /// Carries out the actions that processes returned, and their consequences.
    fn carry_out(&mut self) -> Result<(), SimulationError> {
        while !self.asked.is_empty() {
            // Each action may cause further actions.
            let mut asked = std::mem::take(&mut self.asked);
            for asked in asked.drain(..) {
                match asked {
                    Action::Resume { stream, ticket } => self.begin(stream, Some(ticket))?,
                    Action::Refuse { stream, refusal } => self.refused(stream, &refusal),
                    // No service of a mesh uses smoothing.
                    Action::Send { .. } => {}
                }
            }
            if self.asked.is_empty() {
                // Reusing the empty list keeps its allocation.
                self.asked = asked;
                return Ok(());
            }
        }
        Ok(())
    }

    fn refused(&mut self, at: u32, refusal: &Refusal) {
        let span = self.spans.at_mut(at);
        span.said = self.processes[span.process as usize].refused(span, refusal);
        self.reply(at, Ending::Refused);
    }

    /// Starts a request that was assigned its slot.
    fn begin(&mut self, at: u32, ticket: Option<Ticket>) -> Result<(), SimulationError> {
        let span = self.spans.at_mut(at);
        span.ticket = ticket;
        span.began = self.now;
        span.token = self.processes[span.process as usize].began(self.now, ticket);
        self.step(at)
    }

    /// Runs the next steps of a request.
    fn step(&mut self, at: u32) -> Result<(), SimulationError> {
        loop {
            let span = *self.spans.at(at);
            let steps = &self.graph.tasks[usize::from(span.task)].steps;
            match steps.get(usize::from(span.step)) {
                None => return self.end(at, Ending::Served),
                Some(Step::Compute(time)) => {
                    let process = &mut self.processes[span.process as usize];
                    let time = time.draw(&mut process.dice);
                    if process.compute(at, time) {
                        self.events.at(self.now + time, Event::Computed(at));
                    }
                    return Ok(());
                }
                Some(Step::Call(calls)) => {
                    let count = match calls.count {
                        Count::Fixed(count) => count,
                        Count::Size => span.size,
                    };
                    self.spans.at_mut(at).left = count;
                    for _ in 0..count.min(calls.at_once.max(1)) {
                        self.call(at, calls);
                    }
                    if count > 0 {
                        return Ok(());
                    }
                    self.spans.at_mut(at).step += 1;
                }
            }
        }
    }

    /// Handles the end of a computation. The freed thread goes to the next waiting request.
    fn computed(&mut self, at: u32) -> Result<(), SimulationError> {
        let span = self.spans.at_mut(at);
        span.step += 1;
        let process = span.process as usize;
        if let Some((next, time)) = self.processes[process].computed() {
            self.events.at(self.now + time, Event::Computed(next));
        }
        self.step(at)
    }

    /// Ends a request that has finished all its steps, or failed.
    fn end(&mut self, at: u32, ending: Ending) -> Result<(), SimulationError> {
        let span = self.spans.at_mut(at);
        let process = &mut self.processes[span.process as usize];
        let ok = ending == Ending::Served;
        span.said = process.ended(self.now, span, ok, &mut self.asked)?;
        self.reply(at, ending);
        self.carry_out()
    }

    /// Records the end of a client's request.
    fn close(&mut self, load: u32, span: &Span, ending: Ending) {
        self.seen.ended.push(Ended {
            workflow: span.workflow,
            size: span.size,
            sent: span.sent,
            at: self.now,
            held: self
                .now
                .saturating_sub(span.began + nanos(self.graph.network.delay)),
            within: match span.deadline {
                u64::MAX => u64::MAX,
                deadline => deadline - span.sent,
            },
            ending,
        });
        let which = &self.run.loads[load as usize];
        if which.is_closed() {
            let next = which.next(self.now, &mut self.dice[load as usize]);
            self.events.at(next, Event::Send(load));
        }
    }
}
