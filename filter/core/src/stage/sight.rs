//! The state of the queue at a request's arrival, on which the decision on the request is based.
//!
//! Decisions must be based on the queue that results from them. If decisions are enforced, that is
//! the real queue, which the ledger has. A dry run refuses no request, so its real queue differs.
//! In a dry run, all strategies use the length, work, wait and free slots of the modelled queue
//! (see [`mod@super::backlog`]).

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::reason::Reason;
use headgate_strategies::request::Attributes;
use headgate_strategies::strategy::View;
use headgate_strategies::time::{Instant, micros};
use headgate_strategies::work::work;

use super::Stage;
use super::backlog::Modelled;
use crate::config::{CostConfig, Mode, QueueMode};
use crate::host::Host;
use crate::ledger::QueueState;
use crate::requests::Request;

/// The longest time to which an amount of work is converted, s, so that sums of estimates can't
/// overflow.
const MAX_TIME: f64 = 86_400.0;
/// One in this many requests is admitted although its deadline is too short.
const PROBED: u32 = 10;

/// The queue and the estimates at a request's arrival.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    /// The real queue.
    pub(super) queue: QueueState,
    /// The modelled queue, in a dry run.
    pub(super) modelled: Option<Modelled>,
    /// The time until running requests have released the tokens that the request or the first
    /// waiter lacks.
    pub(super) rest: Duration,
    /// The request's estimated queue wait under the discipline in use.
    pub(super) wait: Duration,
    /// The queue wait by which strategies judge the request
    /// ([`Order::admits_by_drain`](headgate_strategies::discipline::Order::admits_by_drain)).
    pub(super) judged_wait: Duration,
    /// The queue wait of the request's rival under a value cut.
    pub(super) rival_wait: Duration,
    /// The work that the request adds to the queue.
    pub(super) work: u64,
}

/// The longest queue wait of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) longest: Duration,
    /// The reason for the refusal of a request that would wait longer.
    pub(super) reason: Reason,
}

impl Stage {
    /// Returns the estimated queue wait of a request that arrives now, if it is admitted.
    #[cfg(test)]
    pub(crate) fn expected_wait(
        &self,
        host: &impl Host,
        now: Instant,
        attributes: &Attributes,
    ) -> Result<Duration, HostError> {
        let queue = self.ledger.queue(host)?;
        Ok(self.look(host, now, attributes, queue)?.wait)
    }

    /// Returns the state on which decisions on a request are based.
    pub(super) fn look(
        &self,
        host: &impl Host,
        now: Instant,
        request: &Attributes,
        queue: QueueState,
    ) -> Result<Sight, HostError> {
        let (times, slots) = (&self.service_times, self.slots.count());
        let modelled = match self.config.mode {
            Mode::Enforce => None,
            Mode::DryRun => Some(self.backlog.queue(host, now, times, slots)?),
        };
        let rest = match modelled {
            None => self.rest(host, request, queue)?,
            Some(_) => Duration::ZERO,
        };
        let fifo_wait = modelled.map_or_else(|| self.drain_time(queue) + rest, |m| m.wait);
        // With an empty queue, a slot may be free, so no measured wait applies.
        let wait_of = |request: &Attributes| {
            if self.order.reorders() && queue.length > 0 {
                self.places.queue_wait(self.order.group(request), fifo_wait)
            } else {
                fifo_wait
            }
        };
        let wait = wait_of(request);
        let cut = self.strategy.base.value_cut();
        let rival = cut.and_then(|cut| cut.rival(request));
        Ok(Sight {
            queue,
            modelled,
            rest,
            wait,
            judged_wait: if cut.is_none() && self.order.admits_by_drain() {
                fifo_wait
            } else {
                wait
            },
            rival_wait: rival.map_or(Duration::ZERO, |kind| {
                wait_of(&Attributes { kind, ..*request })
            }),
            work: work(self.config.strategy.cost(), request, times).min(queue.room()),
        })
    }

    /// Adds a request to the modelled queue of a dry run. Returns the reason for its refusal if it
    /// would find no free slot and can't wait.
    pub(super) fn place_in_model(
        &mut self,
        host: &impl Host,
        now: Instant,
        request: &Attributes,
        sight: &Sight,
        modelled: Modelled,
    ) -> Result<Result<(), Reason>, HostError> {
        let holds = self.config.queue.mode == QueueMode::Hold;
        let no_slot = modelled.slots_in_use >= self.slots.count();
        if holds
            && no_slot
            && let Some(reason) = self.no_room(request, modelled.length, sight.wait)
        {
            self.strategy.withdrawn(request);
            return Ok(Err(reason));
        }
        let work = self.time(sight.work).mul_f64(self.usage.of(request.kind));
        self.backlog.accept(host, now, work, self.slots.count())?;
        Ok(Ok(()))
    }

    /// Returns the reason why a request that finds no free slot can't wait, or `None` if it can
    /// wait.
    pub(super) fn no_room(
        &self,
        request: &Attributes,
        queued: u32,
        wait: Duration,
    ) -> Option<Reason> {
        if queued >= self.config.queue.max_length {
            return Some(Reason::QueueFull);
        }
        let patience = self.patience(request);
        (wait > patience.longest).then_some(patience.reason)
    }

    /// Returns the longest allowed queue wait of a request, and the reason to refuse it after that.
    /// The wait is the minimum of `queue.timeout` and of the request's own deadline − p10 of its
    /// processing time. While P is unlimited, the last objective of its type − p10 is a third
    /// bound, because decisions then assume no wait.
    pub(super) fn patience(&self, request: &Attributes) -> Patience {
        let timeout = Duration::from_micros(self.config.queue.timeout_us);
        let least = self.service_times.at_least(request);
        let own = (request.own_deadline).map(|own| own.saturating_sub(least));
        let objective = self.service_times.objectives(request.kind).last();
        let timeout = match objective.filter(|_| self.slots.is_unlimited()) {
            // Types that take half of the objective or longer are excluded, because their requests
            // could hardly wait at all.
            Some(last) if least < last.response_time / 2 => {
                timeout.min(last.response_time.saturating_sub(least))
            }
            _ => timeout,
        };
        let own = own.filter(|own| *own < timeout);
        Patience {
            longest: own.unwrap_or(timeout),
            reason: own.map_or(Reason::QueueTimeout, |_| Reason::Deadline),
        }
    }

    /// Whether a request has little chance of meeting its own deadline even without queue wait,
    /// because nine in ten requests of its type take longer (Wisp §3.2, §4.3). If the mean were
    /// used instead, and service times vary widely, most of the requests that can meet their
    /// deadlines would be refused.
    pub(super) fn lacks_time(&self, request: &Attributes) -> bool {
        let least = self.service_times.at_least(request);
        request.own_deadline.is_some_and(|own| own < least)
    }

    /// Whether a request's own deadline is shorter than the last objective of its type.
    pub(super) fn is_hasty(&self, request: &Attributes) -> bool {
        let last = self.service_times.objectives(request.kind).last();
        (request.own_deadline.zip(last)).is_some_and(|(own, last)| own < last.response_time)
    }

    /// Whether a request must be refused because it [lacks time](Self::lacks_time).
    ///
    /// Refused requests are not measured, so one in [`PROBED`] passes. Otherwise a type that was
    /// slow once, and whose requests all have deadlines, would be refused permanently. The choice
    /// depends only on the request's stream, so that all callers make the same choice.
    pub fn is_hopeless(&self, stream: u32, request: &Attributes) -> bool {
        // Streams may be numbered in steps. A multiplicative hash (Knuth, TAOCP 3, §6.4) spreads
        // the numbers.
        let probed = (stream.wrapping_mul(0x9e37_79b1) >> 16).is_multiple_of(PROBED);
        self.lacks_time(request) && !probed
    }

    /// Returns the time for which `work` keeps a slot busy.
    pub(super) fn time(&self, work: u64) -> Duration {
        match self.config.strategy.cost() {
            CostConfig::Measured => Duration::from_micros(work),
            CostConfig::Type { .. } | CostConfig::Header { .. } => {
                let seconds = work as f64 * self.strategy.base.time_per_work().unwrap_or(0.0);
                Duration::from_secs_f64(seconds.clamp(0.0, MAX_TIME))
            }
        }
    }

    pub(super) fn time_us(&self, work: u64) -> u64 {
        micros(self.time(work))
    }

    /// Returns the current estimate of the slot time of requests like `request`, µs. Returns 0
    /// while its type has no estimate. The estimate at the request's arrival may have come from
    /// other types.
    pub(super) fn usual_us(&self, request: &Request) -> u64 {
        let attributes = &request.attributes;
        match self.config.strategy.cost() {
            CostConfig::Measured if !self.service_times.estimate_of(attributes).is_own() => 0,
            cost @ CostConfig::Measured => work(cost, attributes, &self.service_times),
            CostConfig::Type { .. } | CostConfig::Header { .. } => {
                self.time_us(request.work.cast_unsigned())
            }
        }
    }

    /// Returns the work that all slots together do in `wait`.
    fn work_done_in(&self, wait: Duration) -> u64 {
        let time = wait.as_secs_f64() * f64::from(self.slots.count());
        let unit = match self.config.strategy.cost() {
            CostConfig::Measured => Some(1e-6),
            CostConfig::Type { .. } | CostConfig::Header { .. } => {
                self.strategy.base.time_per_work()
            }
        };
        // The cast saturates.
        unit.map_or(0, |unit| (time / unit) as u64)
    }

    /// Returns the queue wait of Eq. 2, from a running sum. Each request adds its type's mean when
    /// it is enqueued, and subtracts the same amount when it leaves. The paper multiplies the
    /// number of requests of a type by its current mean. Here a changed mean counts only for later
    /// requests. Requests from before the first measurement count as 0 until a tick recounts them.
    ///
    /// When P falls, as after a start without a limit, the slots in use beyond P must become free
    /// first. Each of these slots counts with the mean of all types, or with the reference service
    /// time as long as there is no mean. If no time of the queued requests is known, each of them
    /// counts with the same time.
    pub(super) fn drain_time(&self, queue: QueueState) -> Duration {
        let in_use = self.slots.in_use(self.ledger.booked().slots);
        let beyond = in_use.saturating_sub(self.slots.without_budget());
        let unknown = match self.config.strategy.cost() {
            CostConfig::Measured if queue.work == 0 => queue.length,
            _ => 0,
        };
        let others = match beyond + unknown {
            0 => Duration::ZERO,
            count => {
                let mean = self.service_times.mean_of_all();
                mean.or_else(|| self.slots.reference()).unwrap_or_default() * count
            }
        };
        (self.time(queue.work) + others).div_f64(self.slots.working())
    }

    /// Returns the time until running requests have released the tokens that the request lacks, or
    /// that the first waiter before it lacks, whichever is longer.
    fn rest(
        &self,
        host: &impl Host,
        request: &Attributes,
        queue: QueueState,
    ) -> Result<Duration, HostError> {
        if !self.slots.budget.is_set() {
            return Ok(Duration::ZERO);
        }
        let first = self.first_tokens().filter(|_| queue.length > 0);
        let first = first.map_or(0, |tokens| tokens.taken);
        let tokens = self.slots.budget.tokens(request).taken.max(first);
        Ok((self.slots.budget).rest(self.ledger.tokens_in_use(host)?, tokens))
    }

    pub(super) fn decide(
        &mut self,
        host: &impl Host,
        now: Instant,
        request: &Attributes,
        sight: &Sight,
    ) -> Result<Result<(), Reason>, HostError> {
        let (queue_length, queue_work) = match sight.modelled {
            None => (sight.queue.length, sight.queue.work),
            Some(modelled) => (modelled.length, self.work_done_in(modelled.wait)),
        };
        // Skip the host call if the decision doesn't need the number.
        let slots_in_use = match sight.modelled {
            Some(modelled) => modelled.slots_in_use,
            None if self
                .strategy
                .base
                .needs_slots_in_use(queue_length, sight.work) =>
            {
                let slots = self.ledger.slots_in_use(host)?.max(0);
                u32::try_from(slots).unwrap_or(u32::MAX)
            }
            None => 0,
        };
        let view = View {
            now,
            parallelism: self.slots.count(),
            slots_in_use,
            queue_length,
            queue_work,
            work: sight.work,
            queue_wait: sight.judged_wait,
            rival_wait: sight.rival_wait,
            service_times: &self.service_times,
        };
        Ok(self.strategy.decide(request, &view, &mut self.rng))
    }
}
