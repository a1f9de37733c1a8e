//! The admission stage: P slots, one queue, per-type objectives (Bouncer §3, Figure 1).
//!
//! One `Stage` per policy and worker; all of them in a process act as one, through [`Ledger`] for slots
//! and queued work and through published ranks for the order of the queue. Points 1, 2 and 3 of
//! Figure 1 are [`Stage::arrive`], [`Event::Resume`] (see [`mod@dispatch`]), and [`Stage::finish`].
//!
//! The caller owns the requests themselves. It tells of arrivals and ends, and carries out [`Event`]s.

mod acceptance;
mod backlog;
mod control;
mod demand;
mod dispatch;
mod maintain;
mod places;
mod requests;
mod sampling;
mod sight;
mod slots;

use std::time::Duration;

use crate::config::{Measure, Mode, QueueMode, StageConfig};
use crate::discipline::{Order, Place};
use crate::host::{Host, HostError};
use crate::ledger::Ledger;
use crate::queue::Queue;
use crate::refusal::{Cause, Refusal};
use crate::request::{Attributes, Served, TypeId};
use crate::rng::Rng;
use crate::service_times::{ServiceTimes, Settings};
use crate::stats::{self, Count, StageCount, StageStats};
use crate::strategy::{Admission, Strategy};
use crate::time::Instant;
use crate::work::Work;
use crate::workers::{Membership, WorkerId};

use acceptance::Exchange;
use backlog::Backlog;
use control::Control;
use demand::DemandExchange;
use places::Places;
use requests::{Counts, Phase, Request, Requests};
use sampling::Sampling;
use sight::Sight;
use slots::Slots;

pub use dispatch::{ORDER_TOLERANCE, UNRESPONSIVE_AFTER};
pub(crate) use maintain::renamed;
pub use requests::Ticket;
pub use sampling::SAMPLES_PER_SECOND;

/// Of so many admissions, one's estimates are recorded.
const ESTIMATES: u32 = 8;

/// What becomes of a request at its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Send it to the backend now.
    Forward(Ticket),
    /// Hold it until an [`Event`] names its stream.
    Hold(Ticket),
    /// Answer it now.
    Refuse(Refusal),
}

/// What the caller must do for a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Send it to the backend: it has a slot.
    Resume {
        /// The caller's name for the request.
        stream: u32,
    },
    /// Refuse it: it waited too long. Its ticket is void.
    Expire {
        /// The caller's name for the request.
        stream: u32,
        /// What to answer.
        refusal: Refusal,
    },
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The backend answered; its times count.
    Completed,
    /// Anything else: the client left, a local reply, a reset. Its times say nothing about the backend.
    Unmeasured,
    /// An answer that [`Stage::wants_sample`] didn't ask to look at.
    Unsampled,
}

/// A stage, seen from one worker.
#[derive(Debug)]
pub struct Stage {
    config: StageConfig,
    slots: Slots,
    ledger: Ledger,
    queue: Queue,
    order: Order,
    places: Places,
    work: Work,
    requests: Requests,
    service_times: ServiceTimes,
    times_key: String,
    strategy: Strategy,
    acceptance: Option<Exchange>,
    sampling: Sampling,
    demand: Option<DemandExchange>,
    control: Control,
    backlog: Backlog,
    stats: StageStats,
    /// While this worker reacts to a wake-up: when the slot was left to it.
    handed_over: Option<Instant>,
    rng: Rng,
    others: Vec<WorkerId>,
    /// [`Membership::joins`] when the ledger was opened.
    joins: u32,
    next_deadline: Option<Instant>,
    estimates: u32,
    drift: maintain::DriftWatch,
    retired: bool,
}

impl Stage {
    /// The stage of `config` on the worker that `membership` names. `seed` makes its random decisions
    /// repeatable.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a metric.
    pub fn new(
        config: StageConfig,
        membership: &Membership,
        seed: u64,
        host: &impl Host,
    ) -> Result<Self, HostError> {
        let prefix = stats::prefix(&config.policy);
        let order = Order::new(host, &prefix, &config)?;
        let this = Self {
            slots: Slots::new(&config),
            ledger: Ledger::new(host, &prefix, membership.id())?,
            queue: Queue::default(),
            places: Places::new(order.groups(config.types.len())),
            order,
            work: Work::from_config(&config),
            requests: Requests::default(),
            service_times: ServiceTimes::new(Settings::from_config(&config)),
            times_key: format!("headgate/times/{}", config.policy),
            strategy: Strategy::from_config(&config),
            acceptance: Exchange::new(host, &prefix, &config)?,
            sampling: Sampling::new(config.types.len()),
            demand: DemandExchange::new(host, &prefix, &config)?,
            control: Control::of_strategy(&config.policy, config.mode),
            backlog: Backlog::new(host, &prefix)?,
            stats: StageStats::new(host, &config)?,
            handed_over: None,
            rng: Rng::new(seed),
            others: membership.others().to_vec(),
            joins: membership.joins(),
            next_deadline: None,
            estimates: 0,
            drift: maintain::DriftWatch::default(),
            retired: false,
            config,
        };
        this.stats.configured(host, this.config.parallelism, None)?;
        Ok(this)
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &StageConfig {
        &self.config
    }

    /// P, as configured or as found.
    #[must_use]
    pub fn parallelism(&self) -> u32 {
        self.slots.count()
    }

    /// Measured processing times.
    #[must_use]
    pub fn service_times(&self) -> &ServiceTimes {
        &self.service_times
    }

    /// Requests of this worker that wait or hold a slot.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.requests.len()
    }

    /// Whether requests are held here, rather than only watched.
    fn holds(&self) -> bool {
        self.config.mode == Mode::Enforce
            && self.config.queue.mode == QueueMode::Hold
            && !self.retired
    }

    /// Whether processing time ends at the response's headers.
    #[must_use]
    pub fn ends_at_first_byte(&self) -> bool {
        self.config.measure == Measure::FirstByte
    }

    /// The caller's name for a request; `None` once it has ended.
    #[must_use]
    pub fn stream(&self, ticket: Ticket) -> Option<u32> {
        self.requests.of(ticket).map(|request| request.stream)
    }

    /// Whether the answer to this request is worth looking at. The caller asks once, when the answer
    /// comes; on false it may end the request as [`Outcome::Unsampled`].
    pub fn wants_sample(&mut self, ticket: Ticket) -> bool {
        let Some(request) = self.requests.of_mut(ticket) else {
            return true;
        };
        let weight = self.sampling.take(request.attributes.kind);
        request.weight = weight.unwrap_or(0);
        weight.is_some()
    }

    /// Whether something here can't wait for a slow tick: somebody waits for a slot, or other workers
    /// for our decisions.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.queue.is_empty() || self.acceptance.as_ref().is_some_and(Exchange::is_pending)
    }

    /// The quality in which the application should answer this request, ratio; `None` where it isn't told.
    #[must_use]
    pub fn quality(&self, request: &Attributes) -> Option<f64> {
        // A dry run changes nothing about what the application does.
        if self.config.mode == Mode::DryRun || self.retired {
            return None;
        }
        self.strategy.quality(request.kind, request.class)
    }

    /// Counts a request that passes the stage by.
    pub fn pass_by(&mut self, count: StageCount) {
        self.stats.count_stage(count, 1);
    }

    /// Point 1: a request arrives.
    ///
    /// # Errors
    /// [`HostError`]; the caller lets the request through, unmanaged.
    pub fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        stream: u32,
        attributes: &Attributes,
        events: &mut Vec<Event>,
    ) -> Result<Arrival, HostError> {
        let kind = attributes.kind;
        self.stats.count(kind, Count::Total);
        if self.work == Work::Header && attributes.cost.is_none() {
            self.stats.count_stage(StageCount::CostUnknown, 1);
        }
        if let Some(demand) = &mut self.demand {
            demand.received();
        }
        let queue = self.ledger.queue(host)?;
        let sight = self.look(host, now, attributes, queue)?;
        let mut decision = self.decide(host, now, attributes, &sight)?;
        if let (Ok(()), Some(modelled)) = (decision, sight.modelled) {
            decision = self.place_in_model(host, now, attributes, &sight, modelled)?;
        }
        let rejected = decision.is_err();
        if let Err(cause) = decision {
            self.decided(kind, false);
            let refusal = self.refuse(attributes, cause, sight.judged_wait);
            if self.config.mode == Mode::Enforce {
                return Ok(Arrival::Refuse(refusal));
            }
        } else {
            self.record_estimates(host, kind, sight.wait)?;
        }
        let counts = match (sight.modelled, rejected) {
            (None, _) => Counts::Real,
            (Some(modelled), false) => Counts::Modelled(modelled.wait),
            (Some(_), true) => Counts::Refused,
        };
        let arrival = self.admit(host, now, stream, attributes, &sight, counts, events)?;
        if !rejected && !matches!(arrival, Arrival::Refuse(_)) {
            self.stats.count(kind, Count::Accepted);
        }
        if !rejected {
            self.decided(kind, !matches!(arrival, Arrival::Refuse(_)));
        }
        Ok(arrival)
    }

    /// Counts a decision for the other workers' windows.
    fn decided(&mut self, kind: TypeId, accepted: bool) {
        self.strategy.decided(accepted);
        if let Some(acceptance) = &mut self.acceptance {
            acceptance.count(kind, accepted);
        }
    }

    /// The part of the requests that was refused lately, ratio 0..=1, if clients are to be told: never by
    /// a dry run, which changes nothing.
    #[must_use]
    pub fn rejection_rate(&self) -> Option<f64> {
        match self.config.mode {
            Mode::Enforce if !self.retired => self.strategy.rejection_rate(),
            Mode::Enforce | Mode::DryRun => None,
        }
    }

    /// Counts a rejection and says when coming back is worth it.
    fn refuse(&mut self, request: &Attributes, cause: Cause, queue_wait: Duration) -> Refusal {
        let kind = request.kind;
        self.stats
            .rejected(kind, cause, self.config.mode == Mode::Enforce);
        let drain = match cause {
            // Until the estimate at that objective is met again.
            Cause::Objective(objective) => {
                let estimate = self.service_times.estimate(kind);
                let at = objective as usize;
                match (estimate.quantiles.get(at), estimate.objectives.get(at)) {
                    (Some(&quantile), Some(target)) => {
                        (queue_wait + quantile).saturating_sub(target.response_time)
                    }
                    _ => queue_wait,
                }
            }
            Cause::QueueFull
            | Cause::QueueWait
            | Cause::Utilization
            | Cause::Backlog
            | Cause::QueueTimeout
            | Cause::Deadline
            | Cause::RateLimited => queue_wait,
            Cause::ResponseTime => self
                .strategy
                .response_time_controller()
                .map_or(queue_wait, |controller| {
                    controller.next_token(kind, request.class)
                }),
        };
        Refusal::new(kind, cause, drain, &mut self.rng)
    }

    /// Counts a request that is refused before it comes here; `wait` is the time after which it would have
    /// passed.
    pub fn refuse_before(&mut self, request: &Attributes, cause: Cause, wait: Duration) -> Refusal {
        self.stats.count(request.kind, Count::Total);
        self.refuse(request, cause, wait)
    }

    /// When a request got its slot; `None` while it waits, or where nobody can tell.
    #[must_use]
    pub fn dequeued(&self, ticket: Ticket) -> Option<Instant> {
        match self.requests.of(ticket)?.phase {
            Phase::Running { dequeued } => dequeued,
            Phase::Queued => None,
        }
    }

    /// One in [`ESTIMATES`]: a distribution needs no more, and each record is a host call.
    fn record_estimates(
        &mut self,
        host: &impl Host,
        kind: TypeId,
        queue_wait: Duration,
    ) -> Result<(), HostError> {
        self.estimates = self.estimates.wrapping_add(1);
        let estimate = self.service_times.estimate(kind);
        if estimate.is_own() && self.estimates.is_multiple_of(ESTIMATES) {
            for (objective, &quantile) in estimate.quantiles.iter().enumerate() {
                self.stats
                    .estimated(host, kind, objective, queue_wait + quantile)?;
            }
        }
        Ok(())
    }

    /// Gives an admitted request a slot or a place in the queue.
    #[allow(clippy::too_many_arguments)] // one request's facts, used once
    fn admit(
        &mut self,
        host: &impl Host,
        now: Instant,
        stream: u32,
        attributes: &Attributes,
        sight: &Sight,
        counts: Counts,
        events: &mut Vec<Event>,
    ) -> Result<Arrival, HostError> {
        let queued = sight.queue.length;
        let patience = self.patience(attributes);
        let mut request = Request {
            stream,
            attributes: *attributes,
            arrived: now,
            deadline: now + patience.longest,
            late: patience.cause,
            rank: 0,
            turn: None,
            work: sight.work.cast_signed(),
            fifo_wait: Duration::ZERO,
            weight: 1,
            counts,
            phase: Phase::Running {
                dequeued: Some(now),
            },
        };
        if queued == 0 && self.ledger.try_acquire(host, self.slots.limit(now))? {
            return Ok(Arrival::Forward(self.accept(request)));
        }
        if self.holds()
            && let Some(cause) = self.no_room(attributes, queued, sight.wait)
        {
            self.strategy.withdrawn(attributes);
            return Ok(Arrival::Refuse(self.refuse(attributes, cause, sight.wait)));
        }
        let (cost_us, queue) = (self.time_us(sight.work), self.in_time(sight.queue));
        let Place { rank, turn } =
            self.order
                .place(host, now, attributes, &self.service_times, cost_us, queue)?;
        (request.rank, request.turn) = (rank, turn);
        request.fifo_wait = self.drain_time(sight.queue);
        request.phase = Phase::Queued;
        let ticket = self.accept(request);
        // It may be first in line with a slot free.
        let own_turn = |event: &Event| matches!(event, Event::Resume { stream: s } if *s == stream);
        let before = events.len();
        let placed = self
            .enqueue(host, ticket.slot)
            .and_then(|()| self.dispatch(host, now, events));
        if let Err(error) = placed {
            // The caller lets it through unmanaged: nothing of it may stay behind.
            events.retain(|event| !own_turn(event));
            self.forget(host, ticket).or(Ok(()))?;
            return Err(error);
        }
        if !self.holds() {
            return Ok(Arrival::Forward(ticket));
        }
        if let Some(at) = events[before..].iter().position(own_turn) {
            events.remove(before + at);
            return Ok(Arrival::Forward(ticket));
        }
        Ok(Arrival::Hold(ticket))
    }

    fn accept(&mut self, request: Request) -> Ticket {
        self.strategy
            .entered(request.attributes.kind, request.attributes.class);
        self.requests.insert(request)
    }

    /// Point 3: a request ended, in whatever phase. Safe to call twice.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn finish(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        outcome: Outcome,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let Some(request) = self.requests.take(ticket) else {
            return Ok(());
        };
        let Attributes { kind, class, .. } = request.attributes;
        self.strategy.left(kind, class);
        match request.phase {
            Phase::Queued => {
                // Held: its client left. Watched: the backend took another order than FIFO.
                if self.holds() {
                    self.stats.count(kind, Count::Abandoned);
                }
                self.stats.count(kind, Count::Unmeasured);
                self.gave_up(now, &request);
                self.leave_queue(host, ticket.slot, &request)?;
            }
            Phase::Running { dequeued } => {
                let released = self.ledger.release(host);
                match (outcome, dequeued) {
                    (Outcome::Completed, Some(dequeued)) => {
                        self.measure(host, now, &request, dequeued)?;
                    }
                    (Outcome::Unsampled, _) => self.stats.count(kind, Count::Unsampled),
                    _ => self.stats.count(kind, Count::Unmeasured),
                }
                released?;
            }
        }
        self.dispatch(host, now, events)
    }

    /// Takes a request out that the caller won't tell the end of.
    fn forget(&mut self, host: &impl Host, ticket: Ticket) -> Result<(), HostError> {
        match self.requests.take(ticket) {
            None => Ok(()),
            Some(request) => {
                self.strategy
                    .left(request.attributes.kind, request.attributes.class);
                match request.phase {
                    Phase::Queued => self.leave_queue(host, ticket.slot, &request),
                    Phase::Running { .. } => self.ledger.release(host),
                }
            }
        }
    }

    fn measure(
        &mut self,
        host: &impl Host,
        now: Instant,
        request: &Request,
        dequeued: Instant,
    ) -> Result<(), HostError> {
        let Attributes { kind, class, .. } = request.attributes;
        let queue_wait = dequeued.since(request.arrived);
        let processing = now.since(dequeued);
        self.service_times.record(kind, processing, request.weight);
        let waited = match request.counts {
            Counts::Real => queue_wait > Duration::ZERO,
            Counts::Modelled(wait) => wait > Duration::ZERO,
            Counts::Refused => true,
        };
        self.slots
            .completed(kind, dequeued, now, waited, request.weight);
        let counted_wait = match request.counts {
            Counts::Real => Some(queue_wait),
            Counts::Modelled(wait) => Some(wait),
            Counts::Refused => None,
        };
        if let Some(queue_wait) = counted_wait {
            let served = Served {
                kind,
                class,
                queue_wait,
                processing,
                weight: request.weight,
                work: request.work.cast_unsigned(),
            };
            self.strategy.completed(&served, now);
        }
        if let Some(demand) = &mut self.demand {
            demand.completed(processing, request.weight);
        }
        self.stats.count(kind, Count::Completed);
        let objectives = &self.config.types[kind.0 as usize].slo;
        for (at, objective) in objectives.iter().enumerate() {
            if queue_wait + processing <= Duration::from_micros(objective.objective_us) {
                self.stats.slo_met(kind, at);
            }
        }
        self.stats.measured(host, kind, queue_wait, processing)
    }
}
