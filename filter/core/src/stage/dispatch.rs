//! Dispatch of free slots to waiters, over all workers.
//!
//! A free slot goes to the waiter with the smallest rank among all workers' first waiters. The
//! worker that frees the slot gives it to its own first waiter if that waiter is the first of all,
//! or behind the first of all by at most [`ORDER_TOLERANCE`]. Otherwise it wakes the worker with
//! the first waiter, which takes the slot itself. Messages don't carry slots, so a lost message
//! loses no slot: the next release, arrival or tick of any worker checks again.
//!
//! A woken worker takes one slot, so the dispatch leaves one slot free for it. Further free slots
//! go to the next worker, or to waiters of this worker. If several slots are free at once (clients
//! reset their streams, an edit raises P), the order between workers is not exact. An exact order
//! would need one wake-up after the other, and a slot would idle during each.
//!
//! A woken worker that has not reacted after [`UNRESPONSIVE_AFTER`] is skipped, because no slot may
//! idle for the order's sake. Its thread is busy, or its VM died and its lease has not expired yet.

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::reason::Reason;
use headgate_strategies::request::Attributes;
use headgate_strategies::time::Instant;

use super::Stage;
use crate::decision::Action;
use crate::host::Host;
use crate::ledger::Tokens;
use crate::queue::First;
use crate::requests::{Phase, Request};
use crate::stats::Count;
use crate::workers::WorkerId;

/// The largest difference in arrival time by which a waiter may overtake one of another worker. It
/// is less than the cost of a wake-up while the other thread is busy, and far less than usual queue
/// waits.
pub const ORDER_TOLERANCE: Duration = Duration::from_millis(1);
/// The time after which a woken worker that has not reacted is skipped.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_millis(2);
/// The published rank of a waiter of a worker that uses another order. Orders differ while an edit
/// has reached only one of two workers. This rank is behind all comparable ranks, but its waiter
/// still gets a free slot.
const OTHER_ORDER: u64 = u64::MAX;
/// The number of attempts to take a contended free slot. After these, the next release tries again.
const ATTEMPTS: u32 = 8;

/// The requests that wait on other workers.
#[derive(Debug)]
struct Elsewhere {
    /// The worker with the smallest rank among those that are expected to react to a wake-up, and
    /// that rank.
    to_wake: Option<(WorkerId, u64)>,
    /// The smallest rank among all other workers.
    least: u64,
}

impl Stage {
    /// Takes a slot that another worker handed to this worker. The wake-up may be for slots of
    /// other policies only. A worker that then gave out free slots of this policy, too, whose
    /// waiters elsewhere lack tokens, would be woken for the same reason by the workers that it
    /// wakes, and so on.
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
        match self.handed_over {
            Some(_) => self.take_slots(host, now, actions),
            None => Ok(()),
        }
    }

    /// Gives free slots to waiters at a tick, in case a wake-up was lost.
    ///
    /// # Errors
    /// [`HostError`]; the next call continues.
    pub(super) fn dispatch_at_tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        self.handed_over = self.ledger.answer_wake(host)?;
        self.take_slots(host, now, actions)
    }

    fn take_slots(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let done = self.dispatch(host, now, actions);
        self.handed_over = None;
        done
    }

    /// Gives free slots to waiters (point 2 of Bouncer's Figure 1).
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
                // Observed requests don't wait for a slot, so an exact order leaves no slot idle.
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
                    if self.slots.budget.is_set() {
                        // The first waiter may need all of the free tokens.
                        return Ok(());
                    }
                    continue;
                }
            }
            let Some(tokens) = self.first_tokens().filter(|_| own.is_some()) else {
                return Ok(());
            };
            if self.ledger.try_acquire(host, limit, tokens)? {
                self.start_first(host, now, tokens.taken, elsewhere.least, actions)?;
            } else if !self.ledger.fits(host, tokens)? {
                self.slots.budget.waits(now);
                return Ok(());
            } else {
                attempts -= 1;
                if attempts == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the tokens of the first waiter, or `None` without a waiter.
    pub(super) fn first_tokens(&self) -> Option<Tokens> {
        let (slot, _) = self.queue.head()?;
        let request = self.requests.get(slot);
        Some(request.map_or(Tokens::default(), |of| {
            self.slots.budget.tokens(&of.attributes)
        }))
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
        // A worker that can't be woken checks at its next tick.
        host.wake(other).or(Ok(()))
    }

    /// Gives an acquired slot, with its `tokens`, to the first waiter. `elsewhere` is the smallest
    /// rank of the waiters on other workers.
    fn start_first(
        &mut self,
        host: &impl Host,
        now: Instant,
        tokens: u32,
        elsewhere: u64,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        let holds = self.holds();
        let Some(First { slot, rank, next }) = self.queue.pop() else {
            return self.ledger.release(host, tokens);
        };
        let mut ordered = self.order.started(host, rank.min(elsewhere));
        if let Some((next, turn)) = next {
            ordered = ordered.and(self.call_up(host, next, turn, rank));
        }
        let Some(request) = self.requests.get_mut(slot) else {
            return self.ledger.release(host, tokens).and(ordered);
        };
        let handed_over = self.handed_over.take();
        // An observed request started when the slot became free, not when this worker was woken.
        let dequeued = handed_over
            .filter(|_| !holds)
            .unwrap_or(now)
            .max(request.arrived);
        request.phase = Phase::Running {
            dequeued: Some(dequeued),
        };
        request.tokens = tokens;
        request.beside = self.slots.in_use(self.ledger.booked().slots);
        let request = *request;
        self.parked.sent(&request);
        let (stream, work) = (request.stream, request.work);
        self.waited(dequeued, &request);
        if holds {
            self.lets_pass(&request);
        }
        // The request has left the queue even if the gauge updates below fail.
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

    /// Adds a request to the queue and announces it. On error it is neither queued nor announced.
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
            // If this call fails, the next change of the head publishes the new head.
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

    /// Removes a waiting request that won't get a slot.
    pub(super) fn leave_queue(
        &mut self,
        host: &impl Host,
        slot: u32,
        request: &Request,
    ) -> Result<(), HostError> {
        if request.parked {
            self.parked.left(request.attributes.kind);
            return Ok(());
        }
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

    /// Records the wait of a request that leaves the queue. If the request got no slot, the
    /// recorded wait is shorter than its full wait would have been.
    pub(super) fn waited(&mut self, now: Instant, request: &Request) {
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

    /// Adds the waiter in `slot`, which is now the first of its flow, to the queue by the rank of
    /// `turn`. On error its rank is `otherwise`.
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

    /// Returns the rank of the first waiter, in its published form.
    fn head(&self) -> Option<u64> {
        self.queue.head().map(|(_, rank)| self.order.announce(rank))
    }

    pub(super) fn publish_head(&self, host: &impl Host) -> Result<(), HostError> {
        self.ledger.publish_head(host, self.head())
    }

    /// Refuses waiters at the head whose deadline has passed, so that they don't take a slot.
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
        for slot in self.queue.slots().chain(self.parked_slots()) {
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
        // An error doesn't end the loop, because `next_deadline` no longer includes these requests.
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
        let Some(request) = self.requests.take(ticket) else {
            return Ok(());
        };
        let Attributes { kind, class, .. } = request.attributes;
        self.strategy.base.left(kind, class);
        self.strategy.base.expired();
        self.waited(now, &request);
        let left = self.leave_queue(host, slot, &request);
        self.stats.count(kind, Count::Unmeasured);
        let queue = self.ledger.queue(host);
        let queue_wait = self.drain_time(queue.clone().unwrap_or_default());
        let Request { origin, late, .. } = request;
        let late = match request.parked {
            true => Reason::Unresponsive,
            false => late,
        };
        let refusal = self.refuse(now, &request.attributes, origin, late, queue_wait);
        actions.push(Action::Refuse {
            stream: request.stream,
            refusal,
        });
        left.and(queue.map(drop))
    }
}
