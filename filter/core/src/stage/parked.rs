//! Parked requests: admitted requests that wait because no request of their type is answered.
//!
//! **The problem.** Whether a type is broken is decided from the outcomes of all workers
//! ([`ValueCut`](headgate_strategies::strategy::ValueCut)), which takes a few hundred ms. Until
//! then every request of a type that hangs takes a slot, and keeps it until the route's timeout.
//!
//! **The rule.** By Little's law a type of arrival rate λ and mean slot time m uses a = λm slots.
//! With random arrivals it hardly ever uses more than a + 4√a. Other types use b slots, and hardly
//! ever more than b + 2√b. So a type sends no further requests while
//!
//! ```text
//! none was answered since one was sent more than 4m ago, and
//! the number of requests sent since then that haven't ended ≥ max(a + 4√a, P − b − 2√b, 2)
//! ```
//!
//! Further requests wait outside the queue, where they delay no other type. They wait until their
//! last objective at most, and then are refused. No other request is refused because of them. One
//! answer ends the wait, so a type that has only become slower waits for a moment. A type that is
//! the only one with traffic never waits. Probes of a broken type don't wait, because the value cut
//! limits their number.
//!
//! Each of n workers counts only the requests that it sent itself, and compares their number with
//! the bound divided by n. So workers need not exchange these counts.
//!
//! **Without a limit** P is not known. That is so while P is searched for and the law is open. Then
//! P − b − 2√b is left out, and a type that hangs takes the backend's workers until the law closes.
//! In addition, another type must have been answered 2m or more after the first of the requests was
//! sent. So a backend that pauses as a whole parks nothing.

use headgate_strategies::discipline::Place;
use headgate_strategies::host::HostError;
use headgate_strategies::request::TypeId;
use headgate_strategies::time::Instant;

use super::Stage;
use crate::decision::Action;
use crate::host::Host;

/// The least number of unanswered requests, on all workers, after which a type sends no more.
const FEWEST: f64 = 2.0;
/// The least time for which the first unanswered request must have been waiting, mean slot times.
const LONG: f64 = 4.0;

/// The requests of a type that this worker sent since the type's last answer and that haven't
/// ended.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    count: u32,
    /// The time at which the first of these requests was sent.
    since: Instant,
}

/// The parked requests of a stage on one worker.
#[derive(Debug)]
pub(super) struct Parked {
    /// The requests without an answer, by type.
    sent: Vec<Sent>,
    /// The number of parked requests.
    count: u32,
    /// The number of parked requests, by type.
    counts: Vec<u32>,
    /// The time of the last answer of any type.
    answered: Instant,
    /// The number of calls of [`Stage::is_unanswered`].
    #[cfg(test)]
    judged: std::cell::Cell<u32>,
}

impl Parked {
    pub(super) fn new(types: usize) -> Self {
        Self {
            sent: vec![Sent::default(); types],
            count: 0,
            counts: vec![0; types],
            answered: Instant::default(),
            #[cfg(test)]
            judged: std::cell::Cell::default(),
        }
    }

    /// Discards the counts of requests that were sent, because the types have changed. `parked` are
    /// the types of the parked requests.
    pub(super) fn resize(&mut self, types: usize, parked: impl Iterator<Item = TypeId>) {
        *self = Self {
            answered: self.answered,
            ..Self::new(types)
        };
        parked.for_each(|kind| self.entered(kind));
    }

    /// Returns the number of parked requests.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the types that have parked requests.
    fn types(&self) -> impl Iterator<Item = TypeId> + '_ {
        let counts = (!self.is_empty()).then_some(&self.counts);
        let types = (0..).zip(counts.into_iter().flatten());
        types.filter_map(|(kind, count)| (*count > 0).then_some(TypeId(kind)))
    }

    /// Counts a parked request of `kind`.
    fn entered(&mut self, kind: TypeId) {
        self.count += 1;
        if let Some(count) = self.counts.get_mut(usize::from(kind.0)) {
            *count += 1;
        }
    }

    /// Counts a parked request of `kind` that left.
    pub(super) fn left(&mut self, kind: TypeId) {
        self.count = self.count.saturating_sub(1);
        if let Some(count) = self.counts.get_mut(usize::from(kind.0)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Counts a request of `kind` that is sent to the backend.
    pub(super) fn sent(&mut self, now: Instant, kind: TypeId) {
        if let Some(sent) = self.sent.get_mut(usize::from(kind.0)) {
            if sent.count == 0 {
                sent.since = now;
            }
            sent.count = sent.count.saturating_add(1);
        }
    }

    /// Counts the end of a request of `kind` that was sent to the backend at `at`. An answer shows
    /// that the backend works on requests of `kind`. Any other end takes the request out of the
    /// count, unless the type was answered after `at`, which took the request out before.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        kind: TypeId,
        at: Option<Instant>,
        answered: bool,
    ) {
        if answered {
            self.answered = now;
        }
        if let Some(sent) = self.sent.get_mut(usize::from(kind.0)) {
            if answered {
                sent.count = 0;
            } else if at.is_some_and(|at| at >= sent.since) {
                sent.count = sent.count.saturating_sub(1);
            }
        }
    }
}

impl Stage {
    /// Whether an admitted request of `kind` has to wait for an answer of its type. Probes of a
    /// broken type don't wait, because the requests that hang may never be answered.
    pub(super) fn parks(&self, now: Instant, kind: TypeId) -> bool {
        let cut = self.strategy.base.value_cut();
        self.is_unanswered(now, kind) && cut.is_none_or(|cut| !cut.is_broken(kind))
    }

    /// Whether so many requests of `kind` are unanswered for so long that no further ones are sent.
    fn is_unanswered(&self, now: Instant, kind: TypeId) -> bool {
        #[cfg(test)]
        self.parked.judged.set(self.parked.judged.get() + 1);
        let sent = self.parked.sent.get(usize::from(kind.0));
        let (Some(cut), Some(sent)) = (self.strategy.base.value_cut(), sent) else {
            return false;
        };
        if sent.count == 0 || !self.holds() {
            return false;
        }
        let Some(time) = cut.slot_time(kind).map(|time| LONG * time) else {
            return false;
        };
        if now.since(sent.since).as_secs_f64() <= time {
            return false;
        }
        let answered = self.parked.answered.since(sent.since).as_secs_f64();
        if self.slots.is_unlimited() && answered < time / 2.0 {
            return false;
        }
        let part = cut.most_by_chance(kind).max(FEWEST) / (self.others.len() + 1) as f64;
        f64::from(sent.count) >= part
    }

    /// Returns how often this stage determined whether a type is unanswered.
    #[cfg(test)]
    pub(crate) fn judged_unanswered(&self) -> u32 {
        self.parked.judged.get()
    }

    /// Parks an admitted request, until its last objective at the latest.
    pub(super) fn park(&mut self, slot: u32) {
        if let Some(request) = self.requests.get_mut(slot) {
            request.parked = true;
            self.parked.entered(request.attributes.kind);
            let objectives = self.service_times.objectives(request.attributes.kind);
            if let Some(last) = objectives.last() {
                let late = request.arrived + last.response_time;
                request.deadline = request.deadline.min(late);
            }
            let deadline = request.deadline;
            let next = self.next_deadline.map_or(deadline, |d| d.min(deadline));
            self.next_deadline = Some(next);
        }
    }

    /// Returns the slots of all parked requests.
    pub(super) fn parked_slots(&self) -> impl Iterator<Item = u32> + '_ {
        let all = (!self.parked.is_empty()).then(|| self.requests.tickets());
        let parked = all.into_iter().flatten().filter(|(_, of)| of.parked);
        parked.map(|(ticket, _)| ticket.slot)
    }

    /// Moves parked requests whose type is answered again to the queue, in the order of arrival.
    pub(super) fn unpark(
        &mut self,
        host: &impl Host,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> Result<(), HostError> {
        // Either all parked requests of a type may go or none. Usually none of any type may go, so
        // check the types before the requests.
        if (self.parked.types()).all(|kind| self.is_unanswered(now, kind)) {
            return Ok(());
        }
        let may_go = |slot: &u32| {
            let request = self.requests.get(*slot);
            request.is_some_and(|of| !self.is_unanswered(now, of.attributes.kind))
        };
        let mut slots: Vec<u32> = self.parked_slots().filter(may_go).collect();
        slots.sort_unstable_by_key(|slot| self.requests.get(*slot).map(|of| of.arrived));
        for slot in slots {
            let Some(mut request) = self.requests.get(slot).copied() else {
                continue;
            };
            if self.is_unanswered(now, request.attributes.kind) {
                continue;
            }
            let queued = self.ledger.queue(host)?.length;
            let expected_us = self.time_us(request.work.cast_unsigned());
            let (order, times) = (&mut self.order, &self.service_times);
            let (arrived, attributes) = (request.arrived, request.attributes);
            let Place { rank, turn } =
                order.place(host, arrived, &attributes, times, expected_us, queued)?;
            (request.rank, request.turn, request.parked) = (rank, turn, false);
            self.parked.left(attributes.kind);
            if let Some(row) = self.requests.get_mut(slot) {
                *row = request;
            }
            let queued = self.enqueue(host, slot);
            if queued.is_err() {
                self.park(slot);
                return queued;
            }
            self.dispatch(host, now, actions)?;
        }
        Ok(())
    }
}
