//! One worker's engine: the stages of its configuration, and its membership in the process.
//!
//! The filter's glue holds one of these per VM and forwards Envoy's callbacks to it. An engine joins
//! the process at its first request, not at its configuration: Envoy also configures VMs that never see
//! one (a canary for every update, a base VM on the main thread).

mod mesh;

use std::time::Duration;

use crate::classify::{Classified, Classifier, RequestView};
use crate::config::{
    ConfigError, CostConfig, Direction, ErrorsConfig, FilterConfig, StageConfig, StrategyConfig,
};
use crate::discipline::Order;
use crate::entrance::{self, Entrance, Place};
use crate::host::{Host, HostError};
use crate::progress::progress;
use crate::refusal::{Cause, Refusal};
use crate::request::{Attributes, Progress};
use crate::stage::{Event, Outcome};
use crate::stats::{StageCount, StageStats, percentile_name};
use crate::time::Instant;
use crate::work;
use crate::workers::{Changes, Membership, WorkerId};
use crate::workflow::workflow;

pub use mesh::{Calling, Reply, named};

/// Between ticks while somebody waits: they expire deadlines and repair lost wake-ups. Nothing in the
/// normal course of a request waits for a tick.
pub const FAST_TICK: Duration = Duration::from_millis(10);
/// Between ticks otherwise; well below a lease.
pub const SLOW_TICK: Duration = Duration::from_millis(50);

/// A stage's number within its engine; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageId(u32);

/// A request's place in a stage, to be given to [`Engine::finish`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pass {
    /// The stage.
    pub stage: StageId,
    place: Place,
    /// End the request at the response's headers.
    pub first_byte: bool,
    /// The quality that the application is to be told, ratio; `None`: nothing.
    pub quality: Option<f64>,
}

/// What becomes of a request at its arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Admission {
    /// No stage is for it: let it through.
    PassBy,
    /// Send it to the backend now.
    Forward(Pass),
    /// Hold it until an [`Action`] names its stream.
    Hold(Pass),
    /// Answer it now.
    Refuse(StageId, Refusal),
}

/// What the caller must do for a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Send it to the backend.
    Resume(u32),
    /// Refuse it; its [`Pass`] is void.
    Refuse(u32, StageId, Refusal),
}

/// A refusal in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words<'a> {
    /// `namespace/name`.
    pub policy: &'a str,
    /// The request's type.
    pub kind: &'a str,
    /// `slo_p50` or like it, `queue_full`, `queue_wait`, `utilization`, `backlog`, `response_time`,
    /// `queue_timeout`, `deadline` or `rate_limit`.
    pub reason: &'a str,
}

#[derive(Debug)]
struct Compiled {
    config: StageConfig,
    classifier: Classifier,
    /// `slo_pNN` by type and objective.
    reasons: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Running {
    id: StageId,
    compiled: Compiled,
    entrance: Entrance,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Engine {
    seed: u64,
    revision: String,
    membership: Option<Membership>,
    /// Stages of the current configuration, in matching order.
    compiled: Vec<Compiled>,
    running: Vec<Running>,
    /// Stages whose policy is gone but whose requests are not.
    retired: Vec<Running>,
    next_stage: u32,
    events: Vec<Event>,
    /// What calls of the process belong to, once an outbound listener was configured.
    outbound: Option<mesh::Outbound>,
    /// Whether that came with the stages: requests are calls as well.
    gateway: bool,
    scratch: mesh::Scratch,
}

impl Compiled {
    /// The header in which requests name their cost, where it counts.
    fn cost_header(&self) -> Option<&str> {
        match &self.config.strategy {
            StrategyConfig::BacklogControl(control) => match &control.cost {
                CostConfig::Header { header } => Some(header),
                CostConfig::Measured | CostConfig::Type { .. } => None,
            },
            _ => None,
        }
    }
}

fn compile(config: &FilterConfig) -> Result<Vec<Compiled>, ConfigError> {
    let stage = |(i, stage): (usize, &StageConfig)| {
        let at = |e: ConfigError| ConfigError::new(format!("stages[{i}].{}", e.field), e.problem);
        let names = |o: &crate::config::Objective| format!("slo_{}", percentile_name(o.percentile));
        Ok(Compiled {
            classifier: Classifier::new(stage).map_err(at)?,
            reasons: stage
                .types
                .iter()
                .map(|t| t.slo.iter().map(names).collect())
                .collect(),
            config: stage.clone(),
        })
    };
    config.stages.iter().enumerate().map(stage).collect()
}

impl Engine {
    /// An engine without configuration: every request passes by. `seed` differs between the workers of
    /// a process; it names them in the list of members and makes their random decisions repeatable.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// The revision of the configuration in force.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// This worker's number, once it has joined.
    #[must_use]
    pub fn worker(&self) -> Option<WorkerId> {
        self.membership.as_ref().map(Membership::id)
    }

    /// Requests that wait or run in this worker.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.running
            .iter()
            .chain(&self.retired)
            .map(|r| r.entrance.pending())
            .sum()
    }

    /// Takes a configuration over. All of it or, on error, nothing: the last good one stays.
    ///
    /// # Errors
    /// [`ConfigError`] with the field at fault.
    pub fn configure(
        &mut self,
        host: &impl Host,
        now: Instant,
        config: &FilterConfig,
        actions: &mut Vec<Action>,
    ) -> Result<(), ConfigError> {
        config.check()?;
        if config.direction == Direction::Outbound {
            self.outbound = config.outbound.clone().map(mesh::Outbound::new);
            self.gateway = false;
            return Ok(());
        }
        let compiled = compile(config)?;
        for (i, stage) in config.stages.iter().enumerate() {
            // Every stat exists from the start, on workers without traffic too.
            StageStats::new(host, stage)
                .map_err(|e| ConfigError::new(format!("stages[{i}]"), e.to_string()))?;
        }
        // A listener for calls, if there is one, has told on its own.
        if config.outbound.is_some() || self.gateway {
            self.outbound = config.outbound.clone().map(mesh::Outbound::new);
            self.gateway = self.outbound.is_some();
        }
        self.compiled = compiled;
        self.revision.clone_from(&config.revision);
        if self.membership.is_some() {
            self.build(host, now, actions)
                .map_err(|e| ConfigError::new("stages", e.to_string()))?;
        }
        Ok(())
    }

    /// Makes the running stages those of the configuration, keeping the ones that stay. A stage that
    /// can't be changed stays as it was.
    fn build(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(membership) = &self.membership else {
            return Ok(());
        };
        let mut done = Ok(());
        let mut old = std::mem::take(&mut self.running);
        old.append(&mut self.retired);
        for compiled in std::mem::take(&mut self.compiled) {
            let same = |r: &Running| r.compiled.config.policy == compiled.config.policy;
            if let Some(at) = old.iter().position(same) {
                let mut running = old.remove(at);
                let config = compiled.config.clone();
                let events = &mut self.events;
                let changed = running
                    .entrance
                    .reconfigure(host, now, config, membership, events);
                // Also where an error came after: types are classified as the stage numbers them.
                if running.entrance.stage.config() == &compiled.config {
                    running.compiled = compiled;
                }
                deliver(running.id, &mut self.events, actions);
                done = done.and(changed);
                self.running.push(running);
                continue;
            }
            let id = StageId(self.next_stage);
            self.next_stage += 1;
            let seed = self.seed.wrapping_add(u64::from(id.0));
            match Entrance::new(compiled.config.clone(), membership, seed, now, host) {
                Ok(entrance) => self.running.push(Running {
                    id,
                    compiled,
                    entrance,
                }),
                Err(error) => done = done.and(Err(error)),
            }
        }
        for mut gone in old {
            if !gone.entrance.stage.is_retired() {
                done = done.and(gone.entrance.retire(host, now, &mut self.events));
            }
            deliver(gone.id, &mut self.events, actions);
            self.retired.push(gone);
        }
        done
    }

    fn join(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let membership = Membership::join(now, self.seed, host)?;
        self.membership = Some(membership);
        self.build(host, now, actions)?;
        // Learned times of other workers, or of the VM before us, serve the first request already.
        self.tick_stages(host, now, &Changes::default(), actions)
    }

    /// Whether a request may concern any stage at all.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.compiled.is_empty() && self.running.is_empty()
    }

    /// A request arrives. `own_deadline` is the time it gives itself from now.
    ///
    /// # Errors
    /// [`HostError`]: Headgate's state is out of reach; let the request through.
    pub fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        stream: u32,
        request: &impl RequestView,
        own_deadline: Option<Duration>,
        actions: &mut Vec<Action>,
    ) -> Result<Admission, HostError> {
        if self.is_idle() {
            return Ok(Admission::PassBy);
        }
        self.be_member(host, now, actions)?;
        let Some(at) = self
            .running
            .iter()
            .position(|r| r.compiled.classifier.covers(request))
        else {
            return Ok(Admission::PassBy);
        };
        let running = &mut self.running[at];
        let kind = match running.compiled.classifier.classify(request) {
            Classified::Excluded => {
                running.entrance.stage.pass_by(StageCount::Excluded);
                return Ok(Admission::PassBy);
            }
            Classified::Type(kind) => kind,
        };
        let compiled = &running.compiled;
        let mut attributes = Attributes {
            kind,
            class: compiled.classifier.class(request),
            workflow: if Order::needs_workflow(&compiled.config.queue.discipline) {
                workflow(request)
            } else {
                0
            },
            own_deadline,
            cost: compiled
                .cost_header()
                .and_then(|name| work::cost(request.header(name)?)),
            progress: if Order::needs_progress(&compiled.config.queue.discipline) {
                progress(request)
            } else {
                Progress::UNKNOWN
            },
        };
        let origin = match &mut running.entrance.workflows {
            Some(workflows) => {
                let known = (&compiled.config, &mut attributes);
                mesh::origin(workflows, host, now, request, known, &mut self.scratch)
            }
            None => mesh::NOBODY,
        };
        let events = &mut self.events;
        let admission = running
            .entrance
            .arrive(host, now, stream, &attributes, origin, events);
        deliver(running.id, events, actions);
        let (stage, first_byte) = (running.id, running.entrance.stage.ends_at_first_byte());
        let quality = running.entrance.stage.quality(&attributes);
        let pass = |place| Pass {
            stage,
            place,
            first_byte,
            quality,
        };
        match admission {
            Ok(entrance::Admission::Forward(place)) => Ok(Admission::Forward(pass(place))),
            Ok(entrance::Admission::Hold(place)) => Ok(Admission::Hold(pass(place))),
            Ok(entrance::Admission::Refuse(refusal)) => Ok(Admission::Refuse(stage, refusal)),
            Err(error) => {
                running.entrance.stage.pass_by(StageCount::Unmanaged);
                Err(error)
            }
        }
    }

    /// Joins the process with the first request.
    fn be_member(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        match &self.membership {
            None => self.join(host, now, actions),
            Some(_) => self.resume_lease(host, now, actions),
        }
    }

    /// A request ended. Safe to call twice.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn finish(
        &mut self,
        host: &impl Host,
        now: Instant,
        pass: Pass,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let own = self
            .stage_mut(pass.stage)
            .and_then(|r| r.entrance.stream(pass.place));
        let ticked = self.resume_lease(host, now, actions);
        // The request is over: whatever the tick decided about it comes too late.
        actions.retain(|action| {
            let (Action::Resume(stream) | Action::Refuse(stream, ..)) = action;
            Some(*stream) != own
        });
        let mut events = std::mem::take(&mut self.events);
        let done = self.stage_mut(pass.stage).map_or(Ok(()), |running| {
            running
                .entrance
                .finish(host, now, pass.place, outcome, &mut events)
        });
        deliver(pass.stage, &mut events, actions);
        self.events = events;
        done.and(ticked)
    }

    fn stage_mut(&mut self, id: StageId) -> Option<&mut Running> {
        self.running
            .iter_mut()
            .chain(&mut self.retired)
            .find(|r| r.id == id)
    }

    /// Before anything is booked: notices when our lease ran out while the thread stood still.
    fn resume_lease(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        match &self.membership {
            Some(membership) if membership.is_doubtful(now) => self.tick(host, now, actions),
            _ => Ok(()),
        }
    }

    /// Whether the answer to this request is worth measuring; see [`crate::stage::Stage::wants_sample`].
    pub fn wants_sample(&mut self, pass: Pass) -> bool {
        let running = self.stage_mut(pass.stage);
        running.is_none_or(|r| {
            let ticket = r.entrance.ticket(pass.place);
            ticket.is_none_or(|ticket| r.entrance.stage.wants_sample(ticket))
        })
    }

    /// Which answers of this stage's backend are errors; `None` when the stage is gone.
    #[must_use]
    pub fn errors(&self, stage: StageId) -> Option<&ErrorsConfig> {
        let mut stages = self.running.iter().chain(&self.retired);
        let running = stages.find(|r| r.id == stage)?;
        Some(&running.entrance.stage.config().errors)
    }

    /// Whether ticks should come every [`FAST_TICK`] rather than every [`SLOW_TICK`].
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.running.iter().any(|r| r.entrance.is_busy())
    }

    /// Another worker freed a slot for a request that waits here.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn woken(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        self.resume_lease(host, now, actions)?;
        for running in self.running.iter_mut().chain(&mut self.retired) {
            let done = running.entrance.woken(host, now, &mut self.events);
            deliver(running.id, &mut self.events, actions);
            done?;
        }
        Ok(())
    }

    /// Housekeeping, every [`FAST_TICK`] or [`SLOW_TICK`]; does nothing before the first request.
    ///
    /// # Errors
    /// [`HostError`]; the next tick continues.
    pub fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(membership) = &mut self.membership else {
            return Ok(());
        };
        let changes = membership.tick(now, host)?;
        self.tick_stages(host, now, &changes, actions)?;
        if let Some(membership) = &mut self.membership {
            for dead in changes.dead.into_iter().chain(changes.free) {
                membership.buried(dead, host)?;
            }
        }
        self.retired.retain(|r| r.entrance.pending() > 0);
        if changes.hot_restart {
            return Err(HostError::HotRestart);
        }
        Ok(())
    }

    fn tick_stages(
        &mut self,
        host: &impl Host,
        now: Instant,
        changes: &Changes,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(membership) = &self.membership else {
            return Ok(());
        };
        let mut done = Ok(());
        for running in self.running.iter_mut().chain(&mut self.retired) {
            let ticked = running
                .entrance
                .tick(host, now, membership, changes, &mut self.events);
            deliver(running.id, &mut self.events, actions);
            // One stage's trouble is not the others'.
            done = done.and(ticked);
        }
        done
    }

    /// The VM ends: publishes what is pending and leaves, if no request is under way.
    ///
    /// # Errors
    /// [`HostError`]; the lease then runs out instead.
    pub fn leave(&mut self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        for running in self.running.iter_mut().chain(&mut self.retired) {
            running.entrance.flush(host, now)?;
        }
        if self.pending() > 0 {
            return Ok(());
        }
        self.retired.clear();
        // Back to the state before the first request, so that a new root context can start over.
        self.compiled = std::mem::take(&mut self.running)
            .into_iter()
            .map(|r| r.compiled)
            .collect();
        self.membership
            .take()
            .map_or(Ok(()), |membership| membership.leave(host))
    }

    /// The part of the requests that was refused lately, ratio 0..=1, if the clients of this stage are to
    /// be told.
    #[must_use]
    pub fn rejection_rate(&self, stage: StageId) -> Option<f64> {
        let running = self.running.iter().find(|r| r.id == stage);
        running.and_then(|r| r.entrance.stage.rejection_rate())
    }

    /// A refusal in words.
    #[must_use]
    pub fn words(&self, stage: StageId, refusal: &Refusal) -> Words<'_> {
        let Some(r) = self
            .running
            .iter()
            .chain(&self.retired)
            .find(|r| r.id == stage)
        else {
            return Words {
                policy: "",
                kind: "",
                reason: "",
            };
        };
        let kind = refusal.kind.0 as usize;
        let reason = match refusal.cause {
            Cause::Objective(objective) => r
                .compiled
                .reasons
                .get(kind)
                .and_then(|reasons| reasons.get(objective as usize))
                .map_or("slo", String::as_str),
            Cause::QueueFull => "queue_full",
            Cause::QueueWait => "queue_wait",
            Cause::Utilization => "utilization",
            Cause::Backlog => "backlog",
            Cause::ResponseTime => "response_time",
            Cause::QueueTimeout => "queue_timeout",
            Cause::Deadline => "deadline",
            Cause::RateLimited => "rate_limit",
        };
        let config = r.entrance.stage.config();
        let kind = config.types.get(kind).map_or("", |t| t.name.as_str());
        Words {
            policy: &config.policy,
            kind,
            reason,
        }
    }
}

fn deliver(stage: StageId, events: &mut Vec<Event>, actions: &mut Vec<Action>) {
    actions.extend(events.drain(..).map(|event| match event {
        Event::Resume { stream } => Action::Resume(stream),
        Event::Expire { stream, refusal } => Action::Refuse(stream, stage, refusal),
    }));
}

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod stages_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod workflow_tests;
