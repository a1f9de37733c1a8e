//! Who gets a free slot, over all workers.
//!
//! The rule is the queue's order: the smallest rank among all workers' first waiters. The worker that
//! frees a slot gives it to a waiter of its own if that one is first, or behind the first by at most
//! [`ORDER_TOLERANCE`]; otherwise it wakes the worker whose waiter is first, which takes the slot
//! itself. No slot ever travels in a message, so a lost message loses no slot: the next release, arrival
//! or tick of any worker looks again.
//!
//! A worker that was woken takes one slot, so one is left to it. Further free slots go on: to the next worker, or to
//! waiters here. With several slots free at once (clients reset their streams, an edit raises P), order between workers
//! would cost more than it is worth: one wake-up after the other, and a slot that idles through each.
//!
//! A worker that was woken and whose first waiter still waits after [`UNRESPONSIVE_AFTER`] is passed
//! over (its thread is busy, or its VM died and its lease has not run out yet): a slot does not idle for
//! the sake of order.

use std::time::Duration;

use super::Stage;
use crate::decision::Action;
use crate::host::{Host, HostError};
use crate::queue::First;
use crate::request::Attributes;
use crate::requests::{Phase, Request};
use crate::stats::Count;
use crate::time::Instant;
use crate::workers::WorkerId;

/// A waiter may overtake one of another worker that arrived this much earlier: less than a wake-up
/// costs when the other thread is busy, and far less than the queue waits it is compared with.
pub const ORDER_TOLERANCE: Duration = Duration::from_millis(1);
/// A woken worker that has not moved for this long is passed over.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(2);
/// The rank of a waiter whose worker has another order, for as long as an edit has not reached both: it
/// goes behind all that can be compared, but no slot idles beside it.
const OTHER_ORDER: u64 = u64::MAX;
/// Attempts to take a slot that is free but contended; the next release looks again.
const ATTEMPTS: u32 = 8;

/// The requests that wait on other workers.
#[derive(Debug)]
struct Elsewhere {
    /// The worker with the smallest rank among those that can be expected to act on it, and that rank.
    to_wake: Option<(WorkerId, u64)>,
    /// The smallest rank of all.
    least: u64,
}

impl Stage {
    /// Another worker left a slot to this one (or a tick looks whether that was lost on the way).
    ///
    /// # Errors
    /// [`HostError`]; the next call continues.
    pub fn woken(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        self.handed_over = self.ledger.answer_wake(host)?;
        let done = self.dispatch(host, now, actions);
        self.handed_over = None;
        done
    }

    /// Point 2: hands free slots to waiters.
    pub(super) fn dispatch(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let limit = self.slots.limit(now);
        let mut attempts = ATTEMPTS;
        self.handed_to.clear();
        while self.ledger.queue(host)?.length > 0
            && self.ledger.slots_in_use(host)? + (self.handed_to.len() as i64) < i64::from(limit)
        {
            self.drop_late(host, now, actions)?;
            let own = self.head().and_then(|head| self.order.heard(head));
            let elsewhere = self.first_elsewhere(host, now)?;
            if let Some((other, rank)) = elsewhere.to_wake {
                // Watching costs nobody an idle slot, so there the order is exact.
                let tolerance = if self.holds() {
                    self.order.tolerance(ORDER_TOLERANCE)
                } else {
                    0
                };
                if own.is_none_or(|own| own > rank.saturating_add(tolerance)) {
                    self.hand_over(host, now, other)?;
                    if !self.holds() {
                        return Ok(());
                    }
                    self.handed_to.push(other);
                    continue;
                }
            }
            if own.is_none() {
                return Ok(());
            }
            if self.ledger.try_acquire(host, limit)? {
                self.start_first(host, now, elsewhere.least, actions)?;
            } else {
                attempts -= 1;
                if attempts == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn first_elsewhere(&mut self, host: &impl Host, now: Instant) -> Result<Elsewhere, HostError> {
        let mut elsewhere = Elsewhere {
            to_wake: None,
            least: u64::MAX,
        };
        for at in 0..self.others.len() {
            let other = self.others[at];
            let Some(announced) = self.ledger.head_of(host, other)? else {
                continue;
            };
            let rank = self.order.heard(announced).unwrap_or(OTHER_ORDER);
            elsewhere.least = elsewhere.least.min(rank);
            let is_later = (elsewhere.to_wake).is_some_and(|(_, least)| least <= rank);
            if is_later || self.handed_to.contains(&other) {
                continue;
            }
            let woken_at = self.ledger.woken_at(host, other)?;
            if woken_at.is_none_or(|at| now.since(at) < UNRESPONSIVE_AFTER) {
                elsewhere.to_wake = Some((other, rank));
            }
        }
        Ok(elsewhere)
    }

    fn hand_over(
        &mut self,
        host: &impl Host,
        now: Instant,
        other: WorkerId,
    ) -> Result<(), HostError> {
        if self.ledger.woken_at(host, other)?.is_some() {
            return Ok(());
        }
        self.ledger.note_wake(host, other, now)?;
        // A worker that can't be woken looks by itself at its next tick.
        host.wake(other).or(Ok(()))
    }

    /// Called with a slot taken: the first waiter gets it. `elsewhere` is the smallest rank that waits on other workers.
    fn start_first(
        &mut self,
        host: &impl Host,
        now: Instant,
        elsewhere: u64,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let holds = self.holds();
        let Some(First { slot, rank, next }) = self.queue.pop() else {
            return self.ledger.release(host);
        };
        let mut ordered = self.order.started(host, rank.min(elsewhere));
        if let Some((next, turn)) = next {
            ordered = ordered.and(self.call_up(host, next, turn, rank));
        }
        let Some(request) = self.requests.get_mut(slot) else {
            return self.ledger.release(host).and(ordered);
        };
        let handed_over = self.handed_over.take();
        // Watched requests started when the slot got free, not when this worker heard of it.
        let dequeued = handed_over
            .filter(|_| !holds)
            .unwrap_or(now)
            .max(request.arrived);
        request.phase = Phase::Running {
            dequeued: Some(dequeued),
        };
        request.beside = self.slots.in_use(self.ledger.booked().slots);
        let request = *request;
        let (stream, work) = (request.stream, request.work);
        let waited = dequeued.since(request.arrived);
        let group = self.order.group(&request.attributes);
        if let Some(fifo_wait) = request.fifo_wait {
            self.places.left(group, waited, fifo_wait);
        }
        if holds {
            self.lets_pass(&request);
        }
        // Dequeued even if the gauge updates below fail.
        if holds && let Some(ticket) = self.requests.ticket(slot) {
            actions.push(Action::Resume { stream, ticket });
        }
        let published = self.publish_head(host);
        let booked = self.ledger.dequeue(host, work);
        let recorded = match handed_over {
            Some(since) => self.stats.handover(host, now.since(since)),
            None => Ok(()),
        };
        published.and(booked).and(ordered).and(recorded)
    }

    /// Puts a request into the queue and announces it; on error it is in neither.
    pub(super) fn enqueue(&mut self, host: &impl Host, slot: u32) -> Result<(), HostError> {
        let Some(request) = self.requests.get(slot).copied() else {
            return Ok(());
        };
        self.push(slot, &request);
        let announced = self
            .publish_head(host)
            .and_then(|()| self.ledger.enqueue(host, request.work));
        if announced.is_err() {
            self.queue.remove(slot);
            let left = self.order.left(host, request.turn);
            // The next change of the head publishes it if this doesn't.
            return announced.and(self.publish_head(host)).and(left);
        }
        if self.holds() {
            let next = self
                .next_deadline
                .map_or(request.deadline, |d| d.min(request.deadline));
            self.next_deadline = Some(next);
        }
        Ok(())
    }

    /// Takes a request out of the queue that won't get a slot.
    pub(super) fn leave_queue(
        &mut self,
        host: &impl Host,
        slot: u32,
        request: &Request,
    ) -> Result<(), HostError> {
        let was_first = self.queue.head().is_some_and(|(first, _)| first == slot);
        if !self.queue.remove(slot) {
            return Ok(());
        }
        let published = if was_first {
            self.publish_head(host)
        } else {
            Ok(())
        };
        let booked = self.ledger.dequeue(host, request.work);
        booked
            .and(self.order.left(host, request.turn))
            .and(published)
    }

    /// A request leaves the queue without a slot, having waited at least until now.
    pub(super) fn gave_up(&mut self, now: Instant, request: &Request) {
        let waited = now.since(request.arrived);
        let group = self.order.group(&request.attributes);
        if let Some(fifo_wait) = request.fifo_wait {
            self.places.left(group, waited, fifo_wait);
        }
    }

    pub(super) fn push(&mut self, slot: u32, request: &Request) {
        let first = match request.turn {
            Some(turn) => self.queue.line_up(turn.flow, slot, turn.at),
            None => true,
        };
        if first {
            self.queue.push(slot, request.rank);
        }
    }

    /// A waiter with this `turn` is the first of its flow from now on: it gets its rank, or `otherwise` on error.
    fn call_up(
        &mut self,
        host: &impl Host,
        slot: u32,
        turn: i64,
        otherwise: u64,
    ) -> Result<(), HostError> {
        let request = self.requests.get(slot);
        let ranked = match request.and_then(|request| Some((request.arrived, request.turn?.flow))) {
            Some((arrived, flow)) => self.order.rank_of_turn(host, flow, turn, arrived),
            None => Ok(otherwise),
        };
        let rank = ranked.clone().unwrap_or(otherwise);
        self.queue.push(slot, rank);
        ranked.map(drop)
    }

    /// The first waiter, as the other workers are told of it.
    fn head(&self) -> Option<u64> {
        self.queue.head().map(|(_, rank)| self.order.announce(rank))
    }

    pub(super) fn publish_head(&self, host: &impl Host) -> Result<(), HostError> {
        self.ledger.publish_head(host, self.head())
    }

    /// Refuses waiters at the head whose deadline has passed: a slot is not spent on them.
    fn drop_late(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        if !self.holds() || self.next_deadline.is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        while let Some((slot, _)) = self.queue.head() {
            if self
                .requests
                .get(slot)
                .is_some_and(|request| request.deadline > now)
            {
                break;
            }
            self.expire(host, now, slot, actions)?;
        }
        Ok(())
    }

    /// Refuses every waiter whose deadline has passed.
    pub(super) fn expire_late(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        if !self.holds() || self.next_deadline.is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        let mut late = Vec::new();
        let mut next = None;
        for slot in self.queue.slots() {
            let Some(request) = self.requests.get(slot) else {
                continue;
            };
            if request.deadline <= now {
                late.push(slot);
            } else {
                next = Some(next.map_or(request.deadline, |n: Instant| n.min(request.deadline)));
            }
        }
        self.next_deadline = next;
        // All of them, since `next_deadline` no longer counts them.
        let mut done = Ok(());
        for slot in late {
            done = done.and(self.expire(host, now, slot, actions));
        }
        done
    }

    fn expire(
        &mut self,
        host: &impl Host,
        now: Instant,
        slot: u32,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let Some(ticket) = self.requests.ticket(slot) else {
            return Ok(());
        };
        let origin = self.requests.origin(ticket);
        let Some(request) = self.requests.take(ticket) else {
            return Ok(());
        };
        let Attributes { kind, class, .. } = request.attributes;
        self.strategy.base.left(kind, class);
        self.strategy.base.expired();
        self.gave_up(now, &request);
        let left = self.leave_queue(host, slot, &request);
        self.stats.count(kind, Count::Unmeasured);
        let queue = self.ledger.queue(host);
        let queue_wait = self.drain_time(queue.clone().unwrap_or_default());
        let refusal = self.refuse(now, &request.attributes, origin, request.late, queue_wait);
        actions.push(Action::Refuse {
            stream: request.stream,
            refusal,
        });
        left.and(queue.map(drop))
    }
}
