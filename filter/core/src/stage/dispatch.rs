//! Who gets a free slot, over all workers.
//!
//! The rule is the queue's order: the smallest rank among all workers' first waiters. The worker that
//! frees a slot gives it to a waiter of its own if that one is first, or behind the first by at most
//! [`ORDER_TOLERANCE`]; otherwise it wakes the worker whose waiter is first, which takes the slot
//! itself. No slot ever travels in a message, so a lost message loses no slot: the next release, arrival
//! or tick of any worker looks again.
//!
//! A worker that was woken and whose first waiter still waits after [`UNRESPONSIVE_AFTER`] is passed
//! over (its thread is busy, or its VM died and its lease has not run out yet): a slot does not idle for
//! the sake of order.

use std::time::Duration;

use super::{Event, Phase, Stage};
use crate::host::{Host, HostError, MetricId, MetricKind};
use crate::refusal::Cause;
use crate::stats::Count;
use crate::time::Instant;
use crate::workers::WorkerId;

/// A waiter may overtake one of another worker that arrived this much earlier: less than a wake-up
/// costs when the other thread is busy, and far less than the queue waits it is compared with.
pub const ORDER_TOLERANCE: Duration = Duration::from_millis(1);
/// A woken worker that has not moved for this long is passed over.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(2);
/// Attempts to take a slot that is free but contended; the next release looks again.
const ATTEMPTS: u32 = 8;

/// Wake-ups under way.
#[derive(Debug)]
pub(super) struct Handovers {
    /// When a slot was last left to another worker, ns; 0 when none is under way.
    since: MetricId,
    /// By worker: the rank of its first waiter when it was woken, and when.
    woken: Vec<Option<(u64, Instant)>>,
}

impl Handovers {
    pub(super) fn new(host: &impl Host, prefix: &str) -> Result<Self, HostError> {
        let since = host.define(MetricKind::Gauge, &format!("{prefix}.handover_since_ns"))?;
        Ok(Self { since, woken: Vec::new() })
    }

    /// When worker `id` was woken for the waiter of this `rank`.
    fn woken(&self, id: WorkerId, rank: u64) -> Option<Instant> {
        let (woken_for, at) = self.woken.get(id as usize).copied().flatten()?;
        (woken_for == rank).then_some(at)
    }

    fn note(&mut self, id: WorkerId, rank: u64, now: Instant) {
        let needed = id as usize + 1;
        if self.woken.len() < needed {
            self.woken.resize(needed, None);
        }
        self.woken[id as usize] = Some((rank, now));
    }
}

impl Stage {
    /// Point 2: hands free slots to waiters. Call it when woken; arrivals and ends call it themselves.
    ///
    /// # Errors
    /// [`HostError`]; the next call continues.
    pub fn dispatch(
        &mut self,
        host: &impl Host,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let limit = self.config.parallelism;
        let mut attempts = ATTEMPTS;
        while self.ledger.queue_length(host)? > 0
            && self.ledger.slots_in_use(host)? < i64::from(limit)
        {
            self.drop_late(host, now, events)?;
            let own = self.queue.head().map(|(_, rank)| rank);
            if let Some((other, rank)) = self.first_elsewhere(host, now)? {
                let tolerated = rank.saturating_add(crate::time::nanos(ORDER_TOLERANCE));
                if own.is_none_or(|own| own > tolerated) {
                    return self.hand_over(host, now, other, rank);
                }
            }
            if own.is_none() {
                return Ok(());
            }
            if self.ledger.try_acquire(host, limit)? {
                self.start_first(host, now, events)?;
            } else {
                attempts -= 1;
                if attempts == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The smallest rank among the other workers that can be expected to act on it.
    fn first_elsewhere(
        &mut self,
        host: &impl Host,
        now: Instant,
    ) -> Result<Option<(WorkerId, u64)>, HostError> {
        let mut first: Option<(WorkerId, u64)> = None;
        for at in 0..self.others.len() {
            let other = self.others[at];
            let Some(rank) = self.ledger.head_of(host, other)? else { continue };
            let unresponsive = self
                .handovers
                .woken(other, rank)
                .is_some_and(|woken| now.since(woken) >= UNRESPONSIVE_AFTER);
            if !unresponsive && first.is_none_or(|(_, least)| rank < least) {
                first = Some((other, rank));
            }
        }
        Ok(first)
    }

    fn hand_over(
        &mut self,
        host: &impl Host,
        now: Instant,
        other: WorkerId,
        rank: u64,
    ) -> Result<(), HostError> {
        if self.handovers.woken(other, rank).is_some() {
            return Ok(());
        }
        self.handovers.note(other, rank, now);
        host.record(self.handovers.since, now.as_nanos())?;
        // A worker that can't be woken looks by itself at its next tick.
        host.wake(other).or(Ok(()))
    }

    /// Called with a slot taken: the first waiter gets it.
    fn start_first(
        &mut self,
        host: &impl Host,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let holds = self.holds();
        let Some(slot) = self.queue.pop() else { return self.ledger.release(host) };
        self.publish_head(host)?;
        let Some(request) = self.requests.get_mut(slot) else { return self.ledger.release(host) };
        request.phase = Phase::Running { dequeued: now };
        let (stream, work_us) = (request.stream, request.work_us);
        self.ledger.dequeue(host, work_us)?;
        if holds {
            events.push(Event::Resume { stream });
        }
        let since = host.read(self.handovers.since)?;
        if since != 0 {
            host.record(self.handovers.since, 0)?;
            self.stats.handover(host, now.since(Instant::from_nanos(since)))?;
        }
        Ok(())
    }

    pub(super) fn enqueue(&mut self, host: &impl Host, slot: u32) -> Result<(), HostError> {
        let Some(request) = self.requests.get(slot).copied() else { return Ok(()) };
        self.queue.push(slot, request.arrived.as_nanos());
        self.publish_head(host)?;
        if self.holds() {
            let next = self.next_deadline.map_or(request.deadline, |d| d.min(request.deadline));
            self.next_deadline = Some(next);
        }
        self.ledger.enqueue(host, request.work_us)
    }

    /// Takes a request out of the queue that won't get a slot.
    pub(super) fn leave_queue(
        &mut self,
        host: &impl Host,
        slot: u32,
        work_us: i64,
    ) -> Result<(), HostError> {
        let was_first = self.queue.head().is_some_and(|(first, _)| first == slot);
        if !self.queue.remove(slot) {
            return Ok(());
        }
        if was_first {
            self.publish_head(host)?;
        }
        self.ledger.dequeue(host, work_us)
    }

    fn publish_head(&self, host: &impl Host) -> Result<(), HostError> {
        self.ledger.publish_head(host, self.queue.head().map(|(_, rank)| rank))
    }

    /// Refuses waiters at the head whose deadline has passed: a slot is not spent on them.
    fn drop_late(
        &mut self,
        host: &impl Host,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        if !self.holds() || self.next_deadline.is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        while let Some((slot, _)) = self.queue.head() {
            if self.requests.get(slot).is_some_and(|request| request.deadline > now) {
                break;
            }
            self.expire(host, slot, events)?;
        }
        Ok(())
    }

    /// Refuses every waiter whose deadline has passed.
    pub(super) fn expire_late(
        &mut self,
        host: &impl Host,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        if !self.holds() || self.next_deadline.is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        let mut late = Vec::new();
        let mut next = None;
        for slot in self.queue.slots() {
            let Some(request) = self.requests.get(slot) else { continue };
            if request.deadline <= now {
                late.push(slot);
            } else {
                next = Some(next.map_or(request.deadline, |n: Instant| n.min(request.deadline)));
            }
        }
        self.next_deadline = next;
        for slot in late {
            self.expire(host, slot, events)?;
        }
        Ok(())
    }

    fn expire(
        &mut self,
        host: &impl Host,
        slot: u32,
        events: &mut Vec<Event>,
    ) -> Result<(), HostError> {
        let Some(request) = self.requests.take_slot(slot) else { return Ok(()) };
        self.leave_queue(host, slot, request.work_us)?;
        self.stats.count(request.kind, Count::Unmeasured);
        let cause = if request.own_deadline { Cause::Deadline } else { Cause::QueueTimeout };
        let work_us = self.ledger.queued_work_us(host)?.max(0).cast_unsigned();
        let queue_wait = Duration::from_micros(work_us) / self.config.parallelism;
        let refusal = self.refuse(request.kind, cause, queue_wait);
        events.push(Event::Expire { stream: request.stream, refusal });
        Ok(())
    }
}
