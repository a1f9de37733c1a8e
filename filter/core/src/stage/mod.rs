//! The admission stage: P slots, one queue, and objectives for each type (Bouncer §3, Figure 1).
//!
//! Each worker has one `Stage` per policy. All stages of a policy act like one stage. They share
//! slots and queued work through [`Ledger`], and the order of the queue through published ranks.
//! Points 1, 2 and 3 of Figure 1 are [`Stage::arrive`], [`Action::Resume`] (see [`mod@dispatch`]),
//! and [`Stage::finish`].
//!
//! The caller owns the requests. It reports their arrivals and ends, and executes [`Action`]s.

mod backlog;
mod budget;
mod control;
mod delivery;
mod dispatch;
mod hosts;
mod long_streams;
mod maintain;
mod output_lengths;
mod output_tokens;
mod parked;
mod places;
mod sampling;
mod sight;
mod slots;
mod usage;
#[cfg(test)]
mod wait_tests;

use std::time::Duration;

use headgate_strategies::discipline::{Order, Place};
use headgate_strategies::host::HostError;
use headgate_strategies::reason::Reason;
use headgate_strategies::request::{Attributes, ClassId, Served, TypeId};
use headgate_strategies::retries::{self, FirstAttempts};
use headgate_strategies::rng::Rng;
use headgate_strategies::service_times::ServiceTimes;
use headgate_strategies::strategy::{Avoidance, Strategy};
use headgate_strategies::time::{Instant, micros};

use crate::config::{CostConfig, Measure, Mode, QueueMode, SetHeader, StageConfig, TypeConfig};
use crate::decision::{Action, Decision, Origin, PolicyId, Refusal, Ticket};
use crate::host::Host;
use crate::ledger::Ledger;
use crate::queue::Queue;
use crate::requests::{Counts, Phase, Request, Requests};
use crate::stats::{self, Count, StageCount, StageStats};
use crate::workers::{Membership, WorkerId};

use backlog::Backlog;
use hosts::Hosts;
use parked::Parked;
use places::Places;
use sampling::Sampling;
use sight::Sight;
use slots::Slots;
use usage::Usage;

pub use dispatch::{ORDER_TOLERANCE, UNRESPONSIVE_AFTER};
pub use sampling::SAMPLES_PER_SECOND;

/// One in this many admissions has its estimates recorded.
const ESTIMATES: u32 = 8;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outcome {
    /// The backend answered. The times of the request are measured.
    #[default]
    Completed,
    /// The backend failed, with an error response, a timeout or a reset. An immediate failure says
    /// nothing about service times. The time until a late failure is a lower bound of the service
    /// time.
    Failed,
    /// The client left before the backend's answer was complete. The time until then is a lower
    /// bound of the service time.
    Abandoned,
    /// The request ended in another way, such as with a local reply. Its times say nothing about
    /// the backend. They only show for how long requests of its type hold slots.
    Unmeasured,
    /// The response was not inspected, because [`Stage::wants_answer`] returned false.
    Unsampled,
}

/// A stage on one worker.
#[derive(Debug)]
pub struct Stage {
    policy: PolicyId,
    config: StageConfig,
    slots: Slots,
    ledger: Ledger,
    queue: Queue,
    order: Order,
    places: Places,
    /// The requests of this worker.
    pub requests: Requests,
    service_times: ServiceTimes,
    times_key: String,
    strategy: Strategy,
    sampling: Sampling,
    firsts: FirstAttempts,
    /// Whether any service time is known, so that the work of queued requests can be estimated.
    knows_times: bool,
    control_key: String,
    backlog: Backlog,
    hosts: Hosts,
    parked: Parked,
    usage: Usage,
    stats: StageStats,
    /// The time at which a slot was handed to this worker. It is `Some` only while the worker
    /// handles that wake-up.
    handed_over: Option<Instant>,
    /// The workers to which the current dispatch handed a slot.
    handed_to: Vec<WorkerId>,
    rng: Rng,
    others: Vec<WorkerId>,
    /// The value of [`Membership::joins`] when the ledger was opened.
    joins: u32,
    next_deadline: Option<Instant>,
    estimates: u32,
    drift: maintain::DriftWatch,
    retired: bool,
}

impl Stage {
    /// Returns the stage of `policy` with this configuration and these stats, on the worker of
    /// `membership`. `seed` makes the random decisions of the stage repeatable.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a metric.
    pub fn new(
        policy: PolicyId,
        config: StageConfig,
        stats: StageStats,
        membership: &Membership,
        seed: u64,
        host: &impl Host,
    ) -> Result<Self, HostError> {
        let prefix = stats::prefix(&config.policy);
        let order = Order::new(host, &prefix, &config)?;
        let mut ledger = Ledger::new(host, &prefix, membership.id())?;
        if config.tokens.is_some() {
            ledger.count_tokens(host)?;
        }
        let mut this = Self {
            slots: Slots::new(&config),
            policy,
            ledger,
            queue: Queue::default(),
            places: Places::new(order.groups(&config), order.steepest_wait()),
            order,
            requests: Requests::new(policy),
            service_times: ServiceTimes::from_config(&config),
            times_key: format!("headgate/times/{}", config.policy),
            strategy: Strategy::new(host, &prefix, &config)?,
            sampling: Sampling::new(config.types.len()),
            firsts: FirstAttempts::new(config.types.len()),
            knows_times: false,
            control_key: control::key(&config.policy, config.mode),
            backlog: Backlog::new(host, &prefix)?,
            hosts: Hosts::new(config.types.len()),
            parked: Parked::new(config.types.len()),
            usage: Usage::new(config.types.len()),
            stats,
            handed_over: None,
            handed_to: Vec::new(),
            rng: Rng::new(seed),
            others: membership.others().to_vec(),
            joins: membership.joins(),
            next_deadline: None,
            estimates: 0,
            drift: maintain::DriftWatch::default(),
            retired: false,
            config,
        };
        this.identify();
        this.stats.configured(host, this.config.parallelism)?;
        Ok(this)
    }

    /// Returns the id of the stage's policy.
    pub fn policy(&self) -> PolicyId {
        self.policy
    }

    /// Returns the current configuration.
    pub fn config(&self) -> &StageConfig {
        &self.config
    }

    /// Returns P, configured or found automatically.
    pub fn parallelism(&self) -> u32 {
        self.slots.known()
    }

    /// Whether neither P nor a budget limits the requests in the backend.
    pub fn is_unlimited(&self) -> bool {
        self.slots.is_unlimited()
    }

    /// Returns the measured processing times.
    pub fn service_times(&self) -> &ServiceTimes {
        &self.service_times
    }

    /// Returns the number of this worker's requests that are in the backend, or wait in or before
    /// the stage.
    pub fn pending(&self) -> usize {
        self.requests.len()
    }

    /// Whether the stage holds requests in its queue. Otherwise it only observes them.
    fn holds(&self) -> bool {
        self.config.mode == Mode::Enforce
            && self.config.queue.mode == QueueMode::Hold
            && !self.retired
    }

    /// Returns the stream of a request, which is the caller's id for the request. Returns `None`
    /// after the request has ended.
    pub fn stream(&self, ticket: Ticket) -> Option<u32> {
        self.requests.of(ticket).map(|request| request.stream)
    }

    /// Returns the type of a request, or `None` after the request has ended.
    pub fn type_of(&self, ticket: Ticket) -> Option<&TypeConfig> {
        let kind = self.requests.of(ticket)?.attributes.kind;
        self.config.types.get(usize::from(kind.0))
    }

    /// Decides whether this request is measured. The caller calls this function once, when the
    /// request goes to the backend. Requests for which it isn't called are all measured.
    pub fn sample(&mut self, ticket: Ticket) {
        if let Some(request) = self.requests.of_mut(ticket) {
            let kind = request.attributes.kind;
            request.weight = self.sampling.draw(kind, &mut self.rng);
        }
    }

    /// Whether the caller must determine the outcome of this request from its response. If false,
    /// the caller may end the request as [`Outcome::Unsampled`].
    ///
    /// The response to a request that took longer than usual may be a timeout, which doesn't count
    /// as an answer. When the rate of a type has fallen, for example because its requests hang, the
    /// sampling budget suffices to inspect all responses, including those to unmeasured requests.
    pub fn wants_answer(&self, ticket: Ticket) -> bool {
        let request = self.requests.of(ticket);
        request.is_none_or(|request| {
            request.weight > 0 || request.silent || self.sampling.has_room(request.attributes.kind)
        })
    }

    /// Records that the body of a request follows. The caller calls [`Stage::sent`] when it has
    /// ended. Until then the request doesn't count as one that the backend leaves unanswered.
    pub fn body_follows(&mut self, ticket: Ticket) {
        if let Some(request) = self.requests.of_mut(ticket) {
            self.parked.ended(request);
            request.sent = None;
        }
    }

    /// Records that the proxy has received the whole body of a request.
    pub fn sent(&mut self, ticket: Ticket, now: Instant) {
        if let Some(request) = self.requests.of_mut(ticket)
            && request.sent.replace(now).is_none()
        {
            self.parked.sent(request);
        }
    }

    /// Whether the stage needs fast ticks, because requests wait for a slot or decisions of this
    /// worker are unpublished.
    pub fn is_busy(&self) -> bool {
        !self.queue.is_empty()
            || !self.parked.is_empty()
            || (self.strategy.avoidance.as_ref()).is_some_and(Avoidance::is_pending)
    }

    /// Returns the quality that the application should deliver for this request, ratio. Returns
    /// `None` if the stage requests no quality.
    pub fn quality(&self, ticket: Ticket) -> Option<f64> {
        let request = self.requests.of(ticket)?.attributes;
        // A dry run doesn't change the application's behaviour.
        if self.config.mode == Mode::DryRun || self.retired {
            return None;
        }
        self.strategy.base.quality(request.kind, request.class)
    }

    /// Counts a request that bypasses the stage.
    pub fn pass_by(&mut self, count: StageCount) {
        self.stats.count_stage(count, 1);
    }

    /// Returns the headers that send a refused request to another route. Without headers, the
    /// client gets the refusal. A request that exceeds its workflow's rate always gets the refusal,
    /// because that limit isn't the backend's and the sender must receive the rate. This also holds
    /// if the reason is the deadline, which the request would miss while it waits for the rate.
    pub fn on_refusal(&self, refusal: &Refusal) -> &[SetHeader] {
        let kind = self.config.types.get(usize::from(refusal.kind.0));
        let exceeds_rate = refusal.reason == Reason::RateLimited || refusal.by_rate;
        let kind = kind.filter(|_| !exceeds_rate);
        kind.map_or(&[], |kind| &kind.on_refusal)
    }

    /// Counts a refused request of `kind` that goes on to another route.
    pub fn diverted(&mut self, kind: TypeId) {
        self.stats.count(kind, Count::Diverted);
    }

    /// Decides on an arriving request (point 1 of Figure 1).
    ///
    /// # Errors
    /// [`HostError`]; the caller lets the request through, unmanaged.
    pub fn arrive(
        &mut self,
        host: &impl Host,
        now: Instant,
        stream: u32,
        attributes: &Attributes,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        let request = Request::new(stream, *attributes, now);
        let ticket = self.requests.insert(request);
        self.enter(host, now, ticket, actions)
    }

    /// Decides on a request that is already in the table of requests (point 1 of Figure 1).
    ///
    /// # Errors
    /// [`HostError`]; the caller lets the request through, unmanaged, and its ticket is void.
    pub(crate) fn enter(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        let Some(Request { attributes, .. }) = self.requests.of_mut(ticket) else {
            return Ok(Decision::PassBy);
        };
        if self.service_times.has_cost(attributes.kind) {
            attributes.output = self.slots.budget.output(attributes);
        }
        let attributes = *attributes;
        let decision = self.judge(host, now, ticket, &attributes, actions);
        if !matches!(decision, Ok(Decision::Forward(_) | Decision::Hold(_))) {
            self.requests.take(ticket);
        }
        decision
    }

    fn judge(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        attributes: &Attributes,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        let kind = attributes.kind;
        self.arrived(attributes);
        let by_header = matches!(self.config.strategy.cost(), CostConfig::Header { .. });
        let lacks_cost = by_header && attributes.cost.is_none();
        if lacks_cost || attributes.size.is_none() && self.service_times.has_cost(kind) {
            self.stats.count_stage(StageCount::CostUnknown, 1);
        }
        let queue = self.ledger.queue(host)?;
        let sight = self.look(host, now, attributes, queue)?;
        let mut decision = if self.retired {
            // A removed policy sends the requests that waited before its stage to the backend.
            Ok(())
        } else if self.firsts.precede(attributes, now) {
            Err(Reason::Retry)
        } else {
            self.decide(host, now, attributes, &sight)?
        };
        let stream = self.stream(ticket).unwrap_or_default();
        if decision.is_ok() && !self.retired && self.is_hopeless(stream, attributes) {
            self.strategy.withdrawn(attributes);
            decision = Err(Reason::Deadline);
        }
        if let (Ok(()), Some(modelled)) = (decision, sight.modelled) {
            decision = self.place_in_model(host, now, attributes, &sight, modelled)?;
        }
        let rejected = decision.is_err();
        if let Err(reason) = decision {
            self.strategy.base.decided(false);
            let origin = (self.requests.of(ticket)).map(|request| request.origin);
            let origin = origin.unwrap_or_default();
            let refusal = self.refuse(now, attributes, origin, reason, sight.judged_wait);
            if self.config.mode == Mode::Enforce {
                return Ok(Decision::Refuse(refusal));
            }
        } else {
            self.record_estimates(host, attributes, sight.wait)?;
        }
        let counts = match (sight.modelled, rejected) {
            (None, _) => Counts::Real,
            (Some(modelled), false) => Counts::Modelled(modelled.wait),
            (Some(_), true) => Counts::Refused,
        };
        let decision = self.admit(host, now, ticket, &sight, counts, actions)?;
        if !rejected {
            let admitted = !matches!(decision, Decision::Refuse(_));
            self.strategy.base.decided(admitted);
        }
        Ok(decision)
    }

    /// Counts an arrival and its expected slot time.
    fn arrived(&mut self, request: &Attributes) {
        self.stats.count(request.kind, Count::Total);
        // A type whose requests are mostly refused may never have a histogram of its own.
        let estimate = self.service_times.estimate_of(request);
        let mean = estimate.preliminary.unwrap_or(estimate.mean);
        let time = mean.mul_f64(self.usage.of(request.kind));
        self.stats
            .count_stage(StageCount::OfferedWork, micros(time));
    }

    /// Returns the recent ratio of refused requests, 0..=1, for replies to clients. Returns `None`
    /// if the policy doesn't announce the ratio, and in a dry run, which changes no replies.
    pub fn rejection_rate(&self) -> Option<f64> {
        match self.config.mode {
            Mode::Enforce if !self.retired => self.strategy.base.rejection_rate(),
            Mode::Enforce | Mode::DryRun => None,
        }
    }

    /// Returns the rate up to which requests of this type and class are admitted, requests/s.
    /// Returns `None` if the strategy sets no rate.
    pub fn admission_rate(&self, kind: TypeId, class: ClassId) -> Option<f64> {
        self.strategy.base.admission_rate(kind, class)
    }

    /// Counts a rejection by the stage, and returns the refusal.
    fn refuse(
        &mut self,
        now: Instant,
        request: &Attributes,
        origin: Origin,
        reason: Reason,
        queue_wait: Duration,
    ) -> Refusal {
        // A refusal that a free slot wouldn't prevent doesn't show that slots are scarce. Nor does
        // that of a client with less time than the type's objectives give to all.
        let is_alone = match reason {
            Reason::Deadline => self.lacks_time(request) || self.is_hasty(request),
            Reason::Objective(_) => self.service_times.estimate_of(request).is_late_by_size(),
            _ => false,
        };
        if !is_alone {
            self.firsts.refused(request, now);
        }
        self.refusal(request, origin, reason, queue_wait)
    }

    /// Counts a rejection. Returns the refusal, which includes the time after which a retry is
    /// worthwhile.
    fn refusal(
        &mut self,
        request: &Attributes,
        origin: Origin,
        reason: Reason,
        queue_wait: Duration,
    ) -> Refusal {
        let kind = request.kind;
        // More slots would not help if the policy's processing units limit the slots in use.
        if reason != Reason::Value || !self.strategy.is_bounded(self.slots.count()) {
            self.slots.refused(kind, reason);
        }
        self.stats
            .rejected(kind, reason, self.config.mode == Mode::Enforce);
        let times = &self.service_times;
        let drain = match reason {
            Reason::Retry => queue_wait.max(retries::MEMORY),
            _ => (self.strategy.base).retry_after(request, reason, queue_wait, times),
        };
        Refusal::new(self.policy, kind, reason, drain, origin, &mut self.rng)
    }

    /// Counts a request that is refused before it enters the stage. `wait` is the time for which it
    /// would have waited for the rate of its workflow.
    pub(crate) fn refuse_before(
        &mut self,
        request: &Attributes,
        origin: Origin,
        reason: Reason,
        wait: Duration,
    ) -> Refusal {
        self.arrived(request);
        Refusal {
            by_rate: !wait.is_zero(),
            ..self.refusal(request, origin, reason, wait)
        }
    }

    /// Records the estimates of one in [`ESTIMATES`] admissions. More records would not make the
    /// distribution better, and each record is a host call. `queue_wait` is the wait that the
    /// request can expect, because estimates are compared with measurements. The decision may be
    /// based on another wait ([`Sight::judged_wait`]).
    fn record_estimates(
        &mut self,
        host: &impl Host,
        request: &Attributes,
        queue_wait: Duration,
    ) -> Result<(), HostError> {
        self.estimates = self.estimates.wrapping_add(1);
        let estimate = self.service_times.estimate_of(request);
        if estimate.is_own() && self.estimates.is_multiple_of(ESTIMATES) {
            for (objective, quantile) in estimate.times().enumerate() {
                self.stats
                    .estimated(host, request.kind, objective, queue_wait + quantile)?;
            }
        }
        Ok(())
    }

    /// Gives an admitted request a slot or a place in the queue.
    fn admit(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        sight: &Sight,
        counts: Counts,
        actions: &mut Vec<Action>,
    ) -> Result<Decision, HostError> {
        let Some(&(mut request)) = self.requests.of(ticket) else {
            return Ok(Decision::PassBy);
        };
        let attributes = request.attributes;
        let queued = sight.queue.length;
        let patience = self.patience(&attributes);
        request.arrived = now;
        request.deadline = now + patience.longest;
        request.late = patience.reason;
        request.work = sight.work.cast_signed();
        request.counts = counts;
        let parks = self.parks(host, now, attributes.kind)?;
        let (limit, tokens) = (self.slots.limit(now), self.slots.budget.tokens(&attributes));
        if queued == 0 && !parks && self.ledger.try_acquire(host, limit, tokens)? {
            let dequeued = Some(now);
            request.phase = Phase::Running { dequeued };
            request.tokens = tokens.taken;
            self.accept(ticket, request);
            self.parked.sent(&request);
            self.lets_pass(&request);
            return Ok(Decision::Forward(ticket));
        }
        if self.holds()
            && let Some(reason) =
                self.no_room(&attributes, queued + self.parked.count(), sight.wait)
        {
            self.strategy.withdrawn(&attributes);
            let refusal = self.refuse(now, &attributes, request.origin, reason, sight.wait);
            return Ok(Decision::Refuse(refusal));
        }
        if parks {
            request.phase = Phase::Queued;
            self.accept(ticket, request);
            self.park(ticket.slot);
            return Ok(Decision::Hold(ticket));
        }
        let expected_us = self.time_us(sight.work);
        let (order, times) = (&mut self.order, &self.service_times);
        let placed = order.place(host, now, &attributes, times, expected_us, queued);
        let Place { rank, turn } = placed?;
        (request.rank, request.turn) = (rank, turn);
        request.fifo_wait = (self.knows_times).then(|| self.drain_time(sight.queue) + sight.rest);
        request.phase = Phase::Queued;
        self.accept(ticket, request);
        // The request may be first in the queue while a slot is free.
        let own_turn =
            |action: &Action| matches!(action, Action::Resume { ticket: t, .. } if *t == ticket);
        let before = actions.len();
        let placed = self
            .enqueue(host, ticket.slot)
            .and_then(|()| self.dispatch(host, now, actions));
        if let Err(error) = placed {
            // The caller lets the request through unmanaged, so remove it from the stage.
            actions.retain(|action| !own_turn(action));
            self.forget(host, ticket).or(Ok(()))?;
            return Err(error);
        }
        if !self.holds() {
            self.lets_pass(&request);
            return Ok(Decision::Forward(ticket));
        }
        if let Some(at) = actions[before..].iter().position(own_turn) {
            actions.remove(before + at);
            return Ok(Decision::Forward(ticket));
        }
        Ok(Decision::Hold(ticket))
    }

    /// Counts a request that goes to the backend. A request that expires in the queue counts as
    /// rejected instead.
    fn lets_pass(&mut self, request: &Request) {
        if request.counts != Counts::Refused {
            self.stats.count(request.attributes.kind, Count::Accepted);
        }
    }

    fn accept(&mut self, ticket: Ticket, request: Request) {
        let Attributes { kind, class, .. } = request.attributes;
        self.strategy.base.entered(kind, class);
        let in_use = self.slots.in_use(self.ledger.booked().slots);
        if let Some(row) = self.requests.of_mut(ticket) {
            *row = Request {
                beside: in_use,
                ..request
            };
        }
    }

    /// Whether a request releases its slot at the first byte of the response's body.
    pub fn releases_at_first_byte(&self, ticket: Ticket) -> bool {
        self.config.release_slot == Measure::FirstByte && self.ends_at_first_byte(ticket)
    }

    /// Whether a request's processing time ends at the first byte of the response's body.
    fn ends_at_first_byte(&self, ticket: Ticket) -> bool {
        let measure = |kind| self.config.measure_of(kind);
        self.type_of(ticket).map(measure) == Some(Measure::FirstByte)
    }

    /// Records the first byte of a response's body, if more bytes follow. The request is then
    /// answered, even if its answer is not measured. With [`Measure::FirstByte`], its processing
    /// time ends. It holds its slot until [`Stage::finish`]. A second call has no effect.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn first_byte(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        outcome: Outcome,
    ) -> Result<(), HostError> {
        let is_answer = matches!(outcome, Outcome::Completed | Outcome::Unsampled);
        let ends = self.ends_at_first_byte(ticket);
        let request = self.requests.of_mut(ticket);
        let Some(request) = request.filter(|request| is_answer && !request.begun) else {
            return Ok(());
        };
        (request.begun, request.first_byte) = (true, ends.then_some(now));
        let request = *request;
        self.answered(host, now, request.attributes.kind);
        match request.phase {
            Phase::Running {
                dequeued: Some(dequeued),
            } if ends => {
                self.delivered(now, &request, Some(dequeued), outcome, true);
                match outcome {
                    Outcome::Completed if request.weight > 0 => {
                        self.measure(host, now, &request, dequeued)
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Records the end of a request in any phase (point 3 of Figure 1). A second call has no
    /// effect.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn finish(
        &mut self,
        host: &impl Host,
        now: Instant,
        ticket: Ticket,
        outcome: Outcome,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(request) = self.requests.take(ticket) else {
            return Ok(());
        };
        if request.phase == Phase::Arriving {
            // The request never entered the stage.
            return Ok(());
        }
        let Attributes { kind, class, .. } = request.attributes;
        self.strategy.base.left(kind, class);
        match request.phase {
            Phase::Arriving => {}
            Phase::Queued => {
                // A held request ends in this phase only if its client left. An observed request
                // may end in this phase because the backend served it out of FIFO order.
                if self.holds() {
                    self.stats.count(kind, Count::Abandoned);
                } else {
                    self.used(now, &request, outcome, Duration::ZERO);
                }
                self.stats.count(kind, Count::Unmeasured);
                if let Some(fifo_wait) = request.fifo_wait {
                    let group = self.order.group(&request.attributes);
                    let waited = now.since(request.arrived);
                    self.places.given_up(group, waited, fifo_wait);
                }
                self.leave_queue(host, ticket.slot, &request)?;
            }
            Phase::Running { dequeued } => {
                let answered = matches!(outcome, Outcome::Completed | Outcome::Unsampled);
                // An answer that goes on as a stream was counted at its first byte.
                match answered {
                    _ if request.first_byte.is_some() => {}
                    true => self.answered(host, now, kind),
                    false => self.parked.ended(&request),
                }
                let released = self.release(host, &request);
                if let Some(dequeued) = dequeued.filter(|_| request.freed.is_none()) {
                    (self.slots.budget).ended(kind, request.tokens, now.since(dequeued));
                    self.used(now, &request, outcome, now.since(dequeued));
                }
                self.slots.wrote(&request, outcome);
                let charged = request.slot_time(now).map_or(Ok(()), |held| {
                    let usual_us = self.usual_us(&request);
                    (self.order).ended(
                        host,
                        &request.attributes,
                        request.turn,
                        request.output,
                        usual_us,
                        held,
                    )
                });
                // A stream was counted at its first byte.
                if request.first_byte.is_none() {
                    let is_bound = matches!(outcome, Outcome::Failed | Outcome::Abandoned);
                    let measured = match dequeued.filter(|_| is_bound) {
                        Some(_) if request.freed.is_some() || request.weight == 0 => false,
                        Some(dequeued) => self.took_at_least(&request, now.since(dequeued)),
                        None => outcome == Outcome::Completed,
                    };
                    self.delivered(now, &request, dequeued, outcome, measured);
                }
                let is_failure = outcome == Outcome::Failed;
                let is_end = answered || is_failure || request.first_byte.is_some();
                match (outcome, dequeued) {
                    _ if is_end && (request.weight == 0 || outcome == Outcome::Unsampled) => {
                        self.stats.count(kind, Count::Unsampled);
                    }
                    (_, Some(dequeued)) if request.first_byte.is_some() => {
                        self.streamed(host, now, &request, dequeued, outcome)?;
                    }
                    (Outcome::Completed, Some(dequeued)) => {
                        self.measure(host, now, &request, dequeued)?;
                        self.held(now, &request, dequeued);
                        self.judge_tokens(host, &request, (dequeued, now), outcome)?;
                    }
                    (Outcome::Failed, _) => {
                        self.slots.failed(request.weight);
                        self.stats.count_n(kind, Count::Failed, request.weight);
                    }
                    _ => self.stats.count(kind, Count::Unmeasured),
                }
                released.and(charged)?;
            }
        }
        self.unpark(host, now, actions)?;
        self.dispatch(host, now, actions)
    }

    /// Records the time in the backend of a request that ended without an answer, as a lower bound
    /// of its service time. Returns whether it was recorded.
    ///
    /// If clients give up on slow answers, or a route's timeout ends them, only fast answers are
    /// measured. Then estimates are too low, more requests are admitted, and answers take longer.
    /// So the time counts if it is longer than usual for the type. A shorter time contains no
    /// information.
    ///
    /// While the type has no mean of its own, the time counts only if it is beyond the last
    /// objective. Without objectives it doesn't count, because an immediate failure would look like
    /// a fast answer.
    ///
    /// The histogram records at most the last objective, so that clients who end long streams have
    /// little influence. A later answer would miss the objective in any case. Nothing is recorded
    /// for a type that hangs or has just recovered, or while the request's body still arrives,
    /// because the time is no service time.
    fn took_at_least(&mut self, request: &Request, time: Duration) -> bool {
        if request.sent.is_none() {
            return false;
        }
        let (request, weight) = (&request.attributes, request.weight);
        let kind = request.kind;
        if (self.strategy.base.value_cut()).is_some_and(|cut| cut.hangs(kind)) {
            return false;
        }
        let last = self.service_times.objectives(kind).last();
        let most = last.map(|objective| objective.response_time);
        let usual = self.service_times.own_mean(request);
        if usual.or(most).is_none_or(|least| time <= least) {
            return false;
        }
        // A large request may usually take longer than the objective.
        let bound = most.map(|most| most.max(usual.unwrap_or_default()));
        let by_size = bound.map_or(time, |bound| time.min(bound));
        (self.service_times).record_cost(request, request.output, by_size, weight);
        let time = most.map_or(time, |most| time.min(most));
        self.service_times.record(kind, time, weight);
        true
    }

    /// Records the end of a response that was measured at its first byte.
    ///
    /// If the client left, the slot was in use until then, so the slot time is recorded. The search
    /// for P uses complete responses only. A stream that the backend aborted is not measured.
    fn streamed(
        &mut self,
        host: &impl Host,
        now: Instant,
        request: &Request,
        dequeued: Instant,
        outcome: Outcome,
    ) -> Result<(), HostError> {
        let kind = request.attributes.kind;
        let first_byte = request.first_byte.unwrap_or(now);
        if first_byte < dequeued {
            // The request is observed, not held. In FIFO order it had no slot yet.
            self.stats.count(kind, Count::Unmeasured);
            return Ok(());
        }
        match outcome {
            Outcome::Completed => self.held(now, request, dequeued),
            Outcome::Abandoned => {
                let held = request.slot_time(now).unwrap_or_default();
                let (of, output) = (&request.attributes, request.real_output());
                (self.service_times).record_slot(of, output, held, request.weight);
            }
            Outcome::Failed | Outcome::Unmeasured | Outcome::Unsampled => {}
        }
        self.judge_tokens(host, request, (dequeued, first_byte), outcome)
    }

    /// Returns the number of slots in use when the request got its slot, or the number now if that
    /// is larger.
    fn beside(&self, request: &Request) -> u32 {
        let now = self.slots.in_use(self.ledger.booked().slots);
        request.beside.max(now)
    }

    /// Records a request with a complete response that held its slot from `dequeued` to `now`.
    fn held(&mut self, now: Instant, request: &Request, dequeued: Instant) {
        let (kind, weight) = (request.attributes.kind, request.weight);
        let waited = match request.counts {
            Counts::Real => dequeued > request.arrived,
            Counts::Modelled(wait) => wait > Duration::ZERO,
            Counts::Refused => true,
        };
        if self.slots.is_representative(self.beside(request)) {
            let (of, output) = (&request.attributes, request.real_output());
            let held = request.slot_time(now).unwrap_or_default();
            (self.service_times).record_slot(of, output, held, weight);
        }
        if request.freed.is_none() {
            let met = (waited, self.beside(request));
            self.slots.completed(kind, dequeued, now, met, weight);
        }
    }

    /// Releases the slot and the tokens of a request that ended, unless they were released before.
    fn release(&mut self, host: &impl Host, request: &Request) -> Result<(), HostError> {
        match request.freed {
            Some(_) => Ok(()),
            None => self.ledger.release(host, request.tokens),
        }
    }

    /// Removes a request whose end the caller won't report.
    fn forget(&mut self, host: &impl Host, ticket: Ticket) -> Result<(), HostError> {
        match self.requests.take(ticket) {
            None => Ok(()),
            Some(request) => {
                self.strategy
                    .base
                    .left(request.attributes.kind, request.attributes.class);
                match request.phase {
                    Phase::Arriving => Ok(()),
                    Phase::Queued => self.leave_queue(host, ticket.slot, &request),
                    Phase::Running { .. } => {
                        self.parked.ended(&request);
                        self.release(host, &request)
                    }
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
        let beside = self.beside(request);
        if request.first_byte.is_some() {
            self.slots.began(kind, dequeued, now, beside);
        }
        if !request.counted_late {
            let response = self.slots.response(request, dequeued, now);
            self.slots.answered(kind, response, request.weight);
        }
        if self.slots.is_representative(beside) {
            let (times, weight) = (&mut self.service_times, request.weight);
            times.record(kind, processing, weight);
            let (of, output) = (&request.attributes, request.real_output());
            times.record_cost(of, output, processing, weight);
        }
        // A stream still holds its slot, so its slot time is not known and the mean is used. A long
        // response may have released its slot before its end.
        let slot = match request.first_byte {
            Some(_) => processing.max(self.service_times.mean(kind).unwrap_or_default()),
            None => request.slot_time(now).unwrap_or_default(),
        };
        let counted_wait = match request.counts {
            Counts::Real => Some(queue_wait),
            Counts::Modelled(wait) => Some(wait),
            Counts::Refused => None,
        };
        if let Some(queue_wait) = counted_wait {
            let served = Served {
                kind,
                class,
                age: request.attributes.progress.age,
                queue_wait,
                processing,
                slot,
                weight: request.weight,
                work: request.work.cast_unsigned(),
            };
            self.strategy.completed(&served, now);
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
