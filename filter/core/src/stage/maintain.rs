//! Maintenance of a stage between requests. It covers the work of every tick, and changes of the
//! configuration.

use std::time::Duration;

use headgate_strategies::discipline::{Order, Place};
use headgate_strategies::host::HostError;
use headgate_strategies::request::{ClassId, TypeId};
use headgate_strategies::retries::FirstAttempts;
use headgate_strategies::service_times::{ServiceTimes, Settings};
use headgate_strategies::strategy::Strategy;
use headgate_strategies::time::Instant;
use headgate_strategies::work::work;

use super::Stage;
use super::control;
use super::hosts::Hosts;
use super::places::Places;
use super::sampling::Sampling;
use super::usage::Usage;
use crate::config::{CostConfig, Measure, Mode, QueueMode, RequestCost, StageConfig};
use crate::decision::Action;
use crate::host::Host;
use crate::ledger::Share;
use crate::queue::Queue;
use crate::requests::{Phase, Request};
use crate::stats::{self, StageCount, StageStats};
use crate::workers::{Changes, Membership};

/// The time between two comparisons of the process-wide totals with the sum of the workers' shares.
const AUDIT: Duration = Duration::from_millis(100);
/// The number of audits before a drift is corrected.
const AUDITS: usize = 20;

/// Detects a lasting difference between the process-wide totals and the workers' shares.
///
/// An audit reads the numbers one after the other while other workers book slots and queued work,
/// so under load two audits rarely agree. A booking in progress is sometimes only in the total and
/// sometimes only in a share, so the error has either sign. Without a lasting difference, nine of
/// ten audits almost never find the same sign.
///
/// Each list of workers audits the same totals. A correction is at most the difference in the last
/// audit, because another list may have corrected a part of it in the meantime.
#[derive(Debug, Default)]
pub(super) struct DriftWatch {
    audited: Instant,
    seen: [Share; AUDITS],
    next: usize,
}

impl DriftWatch {
    /// Returns the difference to correct, if it has lasted.
    fn lasting(&mut self, drift: Share) -> Option<Share> {
        self.seen[self.next] = drift;
        self.next = (self.next + 1) % AUDITS;
        if self.next != 0 {
            return None;
        }
        let lasting = Share {
            slots: agreed(self.seen.map(|drift| drift.slots)),
            tokens: agreed(self.seen.map(|drift| drift.tokens)),
            queued: agreed(self.seen.map(|drift| drift.queued)),
            work: agreed(self.seen.map(|drift| drift.work)),
        };
        (lasting != Share::default()).then_some(lasting)
    }
}

/// Returns the part of the difference that nine of ten audits have in common with the last audit.
fn agreed(mut found: [i64; AUDITS]) -> i64 {
    let last = found[AUDITS - 1];
    found.sort_unstable();
    let (low, high) = (found[AUDITS / 10], found[AUDITS - 1 - AUDITS / 10]);
    if low > 0 {
        low.min(last).max(0)
    } else {
        high.max(last).min(0)
    }
}

impl Stage {
    /// Does the periodic work: releases the slots and the queued work of dead workers, refuses
    /// expired waiters, hands out slots that a lost wake-up left free, exchanges measured times
    /// with the other workers, and publishes counters.
    ///
    /// # Errors
    /// [`HostError`]; the next tick continues.
    pub fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
        changes: &Changes,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        if self.joins != membership.joins() {
            self.ledger.rejoin(host, membership.id())?;
            self.joins = membership.joins();
            self.publish_head(host)?;
        }
        for &dead in &changes.dead {
            self.ledger.give_back(host, dead)?;
            self.stats.count_stage(StageCount::WorkersLost, 1);
        }
        for &free in &changes.free {
            self.ledger.give_back(host, free)?;
        }
        self.others.clear();
        self.others.extend_from_slice(membership.others());
        self.expire_late(host, now, actions)?;
        self.release_streams(host, now)?;
        let holds = self.holds();
        let cut = self.strategy.base.value_cut();
        let moved = self
            .slots
            .run(host, now, holds, &self.ledger, &self.service_times, cut)?;
        if moved && !self.retired {
            self.stats.slots(host, self.slots.known())?;
        }
        self.unpark(host, now, actions)?;
        self.dispatch_at_tick(host, now, actions)?;
        self.service_times.sync(now, host, &self.times_key)?;
        if !self.knows_times && self.work_is_known() {
            // Requests that arrived before the first measurement count as no work. Without the
            // recount, requests behind these would appear to wait for many times their estimate.
            // That would distort estimates for seconds.
            self.knows_times = true;
            self.recount_work(host)?;
        }
        self.find_overdue(now);
        self.inform_strategy(now);
        control::run(host, now, &self.control_key, &mut self.strategy)?;
        self.sampling.refill(now);
        self.places.tick(now);
        self.strategy.exchange(host, now)?;
        self.strategy.tick(now);
        self.audit(host, now, membership)?;
        let queue = self.ledger.queue(host)?;
        self.stats
            .queue(host, queue.length, self.time(queue.work))?;
        // The gauges of a retired stage stay 0.
        if !self.retired {
            self.stats.control(host, self.strategy.base.as_ref())?;
        }
        self.stats.flush(host)
    }

    /// Gives the strategy the measured times and P, which its control law needs.
    fn inform_strategy(&mut self, now: Instant) {
        let (slots, is_open) = (self.slots.for_value(), self.slots.is_unlimited());
        let tokens = |kind| self.slots.token_time(kind);
        (self.strategy).learn(now, slots, is_open, &self.service_times, tokens);
        self.strategy.base.set_slots(self.slots.count());
    }

    /// Corrects a lasting difference between totals and shares. Of each list, only the worker with
    /// the lowest number corrects it, because the correction must happen once.
    fn audit(
        &mut self,
        host: &impl Host,
        now: Instant,
        membership: &Membership,
    ) -> Result<(), HostError> {
        let lowest = membership
            .others()
            .iter()
            .all(|&other| other > membership.id());
        if !lowest || now.since(self.drift.audited) < AUDIT {
            return Ok(());
        }
        self.drift.audited = now;
        let drift = self.ledger.drift(host, membership.numbers())?;
        if let Some(drift) = self.drift.lasting(drift) {
            self.ledger.correct(host, drift)?;
            self.stats.count_stage(StageCount::LedgerCorrected, 1);
        }
        Ok(())
    }

    /// Applies a new version of the policy. Waiting and running requests stay. Learned times stay,
    /// because they are stored by type name. The strategy keeps its state if its configuration is
    /// unchanged. `stats` are those of `config`.
    ///
    /// # Errors
    /// [`HostError`]. [`Stage::config`] shows whether the version applies: all fallible parts are
    /// created before anything changes, and the next tick repairs later failures.
    pub fn reconfigure(
        &mut self,
        host: &impl Host,
        now: Instant,
        config: &StageConfig,
        stats: &StageStats,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let held = self.holds();
        let revived = self.retired;
        if config == &self.config && !revived {
            return Ok(());
        }
        let config = config.clone();
        let same_mode = config.mode == self.config.mode;
        let same_groups =
            config.types == self.config.types && config.classes == self.config.classes;
        let same_strategy = same_groups
            && config.strategy.continues(&self.config.strategy)
            && (same_mode || self.strategy.base.controlled_mut().is_none())
            && config.queue.max_length == self.config.queue.max_length
            && config.starvation_avoidance == self.config.starvation_avoidance;
        let prefix = stats::prefix(&config.policy);
        let same_order = same_mode
            && same_groups
            && config.queue == self.config.queue
            && config.max_flows() == self.config.max_flows();
        let new_order = if same_order {
            None
        } else {
            Some(Order::new(host, &prefix, &config)?)
        };
        if config.tokens.is_some() {
            self.ledger.count_tokens(host)?;
        }
        let new_stats = stats.clone();
        new_stats.configured(host, config.parallelism)?;
        let new_strategy = if same_strategy {
            None
        } else {
            Some(Strategy::new(host, &prefix, &config)?)
        };
        self.stats.flush(host)?;
        fn costs(config: &StageConfig) -> impl Iterator<Item = (&Option<RequestCost>, Measure)> {
            (config.types.iter()).map(|kind| (&kind.cost, config.measure_of(kind)))
        }
        let learned =
            |config: &StageConfig| (Settings::from_config(config), config.holds_streams());
        if !costs(&config).eq(costs(&self.config)) || learned(&config) != learned(&self.config) {
            self.service_times.flush(now, host, &self.times_key)?;
            let mut service_times = ServiceTimes::from_config(&config);
            service_times.sync(now, host, &self.times_key)?;
            self.service_times = service_times;
        }

        self.retired = false;
        self.slots.reconfigure(&self.config, &config);
        // The next request already uses the shared record. On error, the next tick reads it.
        let cut = self.strategy.base.value_cut();
        (self.slots.run(
            host,
            now,
            config.mode == Mode::Enforce && config.queue.mode == QueueMode::Hold,
            &self.ledger,
            &self.service_times,
            cut,
        ))
        .or(Ok(false))?;
        new_stats.slots(host, self.slots.known()).or(Ok(()))?;
        // Reset gauges only now, when the change can't fail any more. A stage that keeps its old
        // version would not set its gauges again.
        self.stats.withdrawn(host, &new_stats).or(Ok(()))?;
        self.stats = new_stats;
        if !same_mode {
            self.control_key = control::key(&config.policy, config.mode);
        }
        if let Some(strategy) = new_strategy {
            self.strategy = strategy;
            self.identify();
            self.inform_strategy(now);
            // The next request already uses the shared record. On error, the next tick reads it.
            control::run(host, now, &self.control_key, &mut self.strategy).or(Ok(()))?;
            self.strategy.exchange(host, now).or(Ok(()))?;
        }
        self.strategy.set_units(&config.strategy);
        if let Some(order) = &new_order {
            self.places = Places::new(order.groups(&config), order.steepest_wait());
        }
        if config.types != self.config.types {
            self.sampling = Sampling::new(config.types.len());
            self.firsts = FirstAttempts::new(config.types.len());
            self.hosts = Hosts::new(config.types.len());
            self.usage = Usage::new(config.types.len());
        }
        let old_order = new_order.map(|order| std::mem::replace(&mut self.order, order));
        let same_work = config.strategy.cost() == self.config.strategy.cost();
        self.rename(&config);
        if config.types != self.config.types {
            let parked = self.requests.iter().filter(|request| request.parked);
            let kinds = parked.map(|request| request.attributes.kind);
            self.parked.resize(config.types.len(), kinds);
        }
        self.config = config;
        if !same_strategy {
            let here = |request: &&Request| request.phase != Phase::Arriving;
            for request in self.requests.iter().filter(here) {
                self.strategy
                    .base
                    .entered(request.attributes.kind, request.attributes.class);
            }
        }
        let recounted = if same_work {
            Ok(())
        } else {
            self.recount_work(host)
        };
        let reranked = match old_order {
            Some(old) => self.rerank(host, old).and(recounted),
            None => recounted,
        };
        match (held, self.holds()) {
            (true, false) => self.release_all(host, now, actions)?,
            (false, true) => self.adopt_watched(host)?,
            _ => {}
        }
        self.dispatch(host, now, actions).and(reranked)
    }

    /// Ranks all waiters as if the new order had been in force when they arrived.
    ///
    /// Ranks of two orders can't be compared. Nor can ranks of flows that were renumbered. Other
    /// workers do the same when the edit reaches them, some milliseconds earlier or later. In
    /// between, each worker serves its own waiters first, in its own order, and hands the remaining
    /// slots to the other workers (`dispatch`).
    fn rerank(&mut self, host: &impl Host, mut old: Order) -> Result<(), HostError> {
        // Flows may have been renumbered, so the charges for requests with a slot must not be
        // corrected.
        let running = |request: &&mut Request| request.phase != Phase::Queued;
        for request in self.requests.iter_mut().filter(running) {
            request.turn = None;
        }
        let mut waiting: Vec<(Instant, u32)> = self
            .queue
            .slots()
            .filter_map(|slot| Some((self.requests.get(slot)?.arrived, slot)))
            .collect();
        if waiting.is_empty() {
            return Ok(());
        }
        waiting.sort_unstable();
        self.queue = Queue::default();
        let queued = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        for &(_, slot) in &waiting {
            let turn = self.requests.get(slot).and_then(|request| request.turn);
            // On error the flow keeps the charge for a while, which does no harm.
            old.left(host, turn).or(Ok(()))?;
        }
        for (arrived, slot) in waiting {
            let Some(mut request) = self.requests.get(slot).copied() else {
                continue;
            };
            let attributes = request.attributes;
            let expected_us = self.time_us(request.work.cast_unsigned());
            let (order, times) = (&mut self.order, &self.service_times);
            let placed = order.place(host, arrived, &attributes, times, expected_us, queued);
            // On a host error the rank is 0, so that the request keeps waiting.
            let Place { rank, turn } = placed.unwrap_or_default();
            (request.rank, request.turn) = (rank, turn);
            if let Some(waiting) = self.requests.get_mut(slot) {
                *waiting = request;
            }
            self.push(slot, &request);
        }
        self.publish_head(host)
    }

    fn work_is_known(&self) -> bool {
        let is_time = self.config.strategy.cost() == &CostConfig::Measured;
        !is_time || self.service_times.mean_of_all().is_some()
    }

    /// Counts the work of all requests again, in the current unit.
    fn recount_work(&mut self, host: &impl Host) -> Result<(), HostError> {
        let mut done = Ok(());
        let mut queue = self.ledger.queue(host)?;
        let cost = self.config.strategy.cost();
        for request in self.requests.iter_mut() {
            let attributes = request.attributes;
            let work = work(cost, &attributes, &self.service_times);
            let more = work.min(queue.room()).cast_signed() - request.work;
            request.work += more;
            if request.phase == Phase::Queued && !request.parked {
                queue.work = queue.work.saturating_add_signed(more);
                done = done.and(self.ledger.recount(host, more));
            }
        }
        done
    }

    /// Returns those of the `flows` that have no state to keep and no request on this worker.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn idle_flows(
        &mut self,
        host: &impl Host,
        mut flows: Vec<u16>,
    ) -> Result<Vec<u16>, HostError> {
        let mut busy: Vec<u16> = (self.requests.iter())
            .map(|request| request.attributes.flow)
            .collect();
        busy.sort_unstable();
        flows.retain(|flow| busy.binary_search(flow).is_err());
        let mut idle = Vec::with_capacity(flows.len());
        for flow in flows {
            if self.order.is_idle(host, flow)? {
                idle.push(flow);
            }
        }
        Ok(idle)
    }

    /// Resets the state of a flow, because the flow's id now belongs to other requests.
    pub fn forget_flow(&mut self, flow: u16) {
        self.order.forget(flow);
    }

    /// Maps the types and classes of unfinished requests by name. A type whose name is gone becomes
    /// `default`, and a class whose name is gone becomes the lowest class.
    ///
    /// A request in the backend whose processing time would now end at another moment isn't
    /// measured. Otherwise a response that began long ago would count as one whose first byte is
    /// late.
    fn rename(&mut self, config: &StageConfig) {
        let types = renamed(
            self.config.types.iter().map(|t| &t.name),
            config.types.iter().map(|t| &t.name),
        );
        let classes = renamed(
            self.config.classes.iter().map(|c| &c.name),
            config.classes.iter().map(|c| &c.name),
        );
        let lowest = u16::try_from(config.classes.len().saturating_sub(1)).unwrap_or(0);
        fn cost(stage: &StageConfig, kind: TypeId) -> Option<&RequestCost> {
            stage.types.get(usize::from(kind.0))?.cost.as_ref()
        }
        fn measure(stage: &StageConfig, kind: TypeId) -> Option<Measure> {
            let kind = stage.types.get(usize::from(kind.0))?;
            Some(stage.measure_of(kind))
        }
        for request in self.requests.iter_mut() {
            let old = request.attributes.kind;
            let before = cost(&self.config, old);
            let kind = TypeId(types.get(usize::from(old.0)).copied().unwrap_or(0));
            let is_running = matches!(request.phase, Phase::Running { .. });
            if is_running && measure(config, kind) != measure(&self.config, old) {
                self.parked.ended(request);
                request.phase = Phase::Running { dequeued: None };
            }
            request.attributes.kind = kind;
            if cost(config, kind) != before {
                // The new version may measure sizes in another unit.
                request.attributes.size = None;
            }
            // The old version may have had no classes.
            let class = classes.get(request.attributes.class.0 as usize).copied();
            let class = class.unwrap_or(lowest);
            request.attributes.class = ClassId(u8::try_from(class).unwrap_or(u8::MAX));
        }
    }

    /// Retires the stage, because its policy was removed. All waiters go to the backend. The caller
    /// drops the stage when [`Stage::pending`] is zero.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn retire(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let held = self.holds();
        self.retired = true;
        let released = match held {
            true => self.release_all(host, now, actions),
            false => Ok(()),
        };
        self.stats.retired(host).and(released)
    }

    /// Whether the policy was removed.
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// Sends all waiting and parked requests to the backend.
    fn release_all(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        self.next_deadline = None;
        let mut done = Ok(());
        let next = |this: &Self| {
            let head = this.queue.head().map(|(slot, _)| slot);
            head.or_else(|| this.parked_slots().next())
        };
        while let Some(slot) = next(self) {
            let Some(ticket) = self.requests.ticket(slot) else {
                break;
            };
            if let Some(&Request { stream, .. }) = self.requests.get(slot) {
                actions.push(Action::Resume { stream, ticket });
            }
            done = done.and(self.let_go(host, slot, Some(now)));
        }
        done
    }

    /// Counts as running all queued requests that were only observed. They are already in the
    /// backend, regardless of their place in the modelled queue. If the queue now holds requests,
    /// their old place would delay them or get them refused.
    fn adopt_watched(&mut self, host: &impl Host) -> Result<(), HostError> {
        let mut done = Ok(());
        while let Some((slot, _)) = self.queue.head() {
            if self.requests.get(slot).is_none() {
                break;
            }
            done = done.and(self.let_go(host, slot, None));
        }
        done
    }

    /// Sends a waiter to the backend and books a slot for it, above P if necessary. If the booking
    /// fails, the stage forgets the request, so that no slot is released for it later.
    fn let_go(
        &mut self,
        host: &impl Host,
        slot: u32,
        dequeued: Option<Instant>,
    ) -> Result<(), HostError> {
        let Some(request) = self.requests.get_mut(slot) else {
            return Ok(());
        };
        request.phase = Phase::Running { dequeued };
        request.tokens = self.slots.budget.tokens(&request.attributes).taken;
        let waiting = *request;
        request.parked = false;
        // `leave_queue` takes back the charge of the request's turn, so the end of the request must
        // not correct the charge.
        request.turn = None;
        let request = waiting;
        if dequeued.is_some() {
            self.lets_pass(&request);
        }
        let booked = self.ledger.acquire_over_limit(host, request.tokens);
        if booked.is_ok() {
            self.parked.sent(&request);
        }
        let ticket = self.requests.ticket(slot).filter(|_| booked.is_err());
        if ticket
            .and_then(|ticket| self.requests.take(ticket))
            .is_some()
        {
            self.strategy
                .base
                .left(request.attributes.kind, request.attributes.class);
        }
        booked.and(self.leave_queue(host, slot, &request))
    }

    /// Publishes pending measurements now, because the worker is about to end.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn flush(&mut self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        self.service_times.flush(now, host, &self.times_key)?;
        self.stats.flush(host)
    }
}

/// Returns, for each of the `old` names, its index in `new`. A name that is gone gets the last
/// index.
fn renamed<'a>(
    old: impl Iterator<Item = &'a String>,
    new: impl Iterator<Item = &'a String>,
) -> Vec<u16> {
    let new: Vec<&String> = new.collect();
    let last = new.len().saturating_sub(1);
    let at = |name: &String| new.iter().position(|n| *n == name).unwrap_or(last);
    old.map(|name| u16::try_from(at(name)).unwrap_or(0))
        .collect()
}

#[cfg(test)]
mod tests {
    use headgate_strategies::rng::Rng;

    use super::*;

    #[test]
    fn only_a_drift_that_stays_is_corrected() {
        let mut watch = DriftWatch::default();
        let drift = |slots| Share {
            slots,
            ..Share::default()
        };
        for n in 0..100 {
            assert_eq!(watch.lasting(drift(n % 2)), None, "bookings under way");
        }
        let corrected: Vec<_> = (0..AUDITS)
            .filter_map(|_| watch.lasting(drift(1)))
            .collect();
        assert_eq!(corrected, [drift(1)]);
    }

    /// Each of 16 workers has 10,000 requests a second, so every audit finds half-done bookings.
    #[test]
    fn a_drift_is_found_while_bookings_go_on() {
        let mut rng = Rng::new(7);
        let mut under_way = |most: u64| {
            let most = most as f64 + 1.0;
            (rng.next_f64() * most) as i64 - (rng.next_f64() * most) as i64
        };
        for leaked in [0, 3, -3] {
            let mut watch = DriftWatch::default();
            let mut left = Share {
                slots: leaked,
                tokens: 0,
                queued: leaked,
                work: leaked * 20_000,
            };
            for _ in 0..50 * AUDITS {
                let seen = Share {
                    slots: left.slots + under_way(2),
                    tokens: 0,
                    queued: left.queued + under_way(2),
                    work: left.work + under_way(20_000),
                };
                if let Some(corrected) = watch.lasting(seen) {
                    assert_ne!(leaked, 0, "there was nothing to correct: {corrected:?}");
                    left.slots -= corrected.slots;
                    left.queued -= corrected.queued;
                    left.work -= corrected.work;
                }
            }
            let rest = left.slots.abs().max(left.queued.abs());
            assert!(
                rest <= 1 && left.work.abs() < 20_000,
                "{left:?} of {leaked}"
            );
        }
    }
}
