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
//! A request counts as sent when its body has arrived, because the backend can't answer it earlier.
//! Further requests wait outside the queue, where they delay no other type. They wait until their
//! last objective at most, and then are refused. No other request is refused because of them. One
//! answer ends the wait, so a type that has only become slower waits for a moment. A type that is
//! the only one with traffic never waits. Probes of a broken type don't wait, because the value cut
//! limits their number.
//!
//! Each of n workers counts only the requests that it sent itself, and compares their number with
//! the bound divided by n. So workers need not exchange these counts. A bound for one worker may be
//! less than one request, so the answers must be those of all workers: otherwise one slow request
//! would stop its type on its worker. A worker publishes the time of a type's last answer once per
//! mean slot time. It reads the time only before it stops a type, and then drops the requests that
//! it sent before that time from the count.
//!
//! **Without a limit** P is not known. That is so while P is searched for and the law is open. Then
//! P − b − 2√b is left out, and a type that hangs takes the backend's workers until the law closes.
//! In addition, another type must have been answered 2m or more after the first of the requests was
//! sent. So a backend that pauses as a whole parks nothing.

use headgate_strategies::discipline::Place;
use headgate_strategies::host::{HostError, Number, Shared};
use headgate_strategies::request::TypeId;
use headgate_strategies::time::Instant;

use super::Stage;
use crate::decision::Action;
use crate::host::Host;
use crate::requests::Request;
use crate::stats;

/// The least number of unanswered requests, on all workers, after which a type sends no more.
const FEWEST: f64 = 2.0;
/// The least time for which the first unanswered request must have been waiting, mean slot times.
const LONG: f64 = 4.0;

/// The requests of a type that this worker sent since the type's last known answer.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    /// The number of these requests that haven't ended.
    count: u32,
    /// The time at which the first of these requests was sent.
    since: Instant,
    /// The time of the last answer that this worker published.
    published: Instant,
    /// The time of the last answer that any worker published, ns. Defined at the first use.
    answered: Option<Number>,
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

    /// Counts a request that the backend has, unless its body still arrives.
    pub(super) fn sent(&mut self, request: &Request) {
        let sent = self.sent.get_mut(usize::from(request.attributes.kind.0));
        if let (Some(sent), Some(at)) = (sent, request.unanswered_since()) {
            // Threads that share the stage read the clock before they wait for its lock, so a
            // request may come after one that was sent later.
            if sent.count == 0 || at < sent.since {
                sent.since = at;
            }
            sent.count = sent.count.saturating_add(1);
        }
    }

    /// Counts an answer, which shows that the backend works on requests of `kind`.
    fn answered(&mut self, now: Instant, kind: TypeId) {
        self.answered = now;
        if let Some(sent) = self.sent.get_mut(usize::from(kind.0)) {
            sent.count = 0;
        }
    }

    /// Counts the end without an answer of a request that the backend has. A request from before
    /// the last answer is no longer in the count.
    pub(super) fn ended(&mut self, request: &Request) {
        let sent = self.sent.get_mut(usize::from(request.attributes.kind.0));
        if let (Some(sent), Some(at)) = (sent, request.unanswered_since())
            && at >= sent.since
        {
            sent.count = sent.count.saturating_sub(1);
        }
    }
}

impl Stage {
    /// Whether an admitted request of `kind` has to wait for an answer of its type. Probes of a
    /// broken type don't wait, because the requests that hang may never be answered.
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn parks(
        &mut self,
        host: &impl Host,
        now: Instant,
        kind: TypeId,
    ) -> Result<bool, HostError> {
        let is_unanswered = self.is_unanswered(host, now, kind)?;
        let cut = self.strategy.base.value_cut();
        Ok(is_unanswered && cut.is_none_or(|cut| !cut.is_broken(kind)))
    }

    /// Whether so many requests of `kind` are unanswered for so long that no further ones are sent.
    fn is_unanswered(
        &mut self,
        host: &impl Host,
        now: Instant,
        kind: TypeId,
    ) -> Result<bool, HostError> {
        #[cfg(test)]
        self.parked.judged.set(self.parked.judged.get() + 1);
        if !self.is_unanswered_here(now, kind) {
            return Ok(false);
        }
        let Some(number) = self.answered_at(host, kind)? else {
            return Ok(true);
        };
        let answered = Instant::from_nanos(host.get(number)?);
        let sent = self.parked.sent.get_mut(usize::from(kind.0));
        let Some(sent) = sent.filter(|sent| answered > sent.since) else {
            return Ok(true);
        };
        // Another worker answered the type, so only the requests sent since then count.
        let of_kind = (self.requests.iter()).filter(|of| of.attributes.kind == kind);
        let later = (of_kind.filter_map(Request::unanswered_since)).filter(|at| *at >= answered);
        (sent.count, sent.since) =
            later.fold((0, now), |(count, since), at| (count + 1, since.min(at)));
        Ok(self.is_unanswered_here(now, kind))
    }

    /// Whether the rule holds for the requests of `kind` that this worker sent since the type's
    /// last known answer.
    fn is_unanswered_here(&self, now: Instant, kind: TypeId) -> bool {
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

    /// Returns the number with the time of the last answer to `kind`, or `None` if no other worker
    /// answers requests.
    fn answered_at(
        &mut self,
        host: &impl Shared,
        kind: TypeId,
    ) -> Result<Option<Number>, HostError> {
        let at = usize::from(kind.0);
        let sent = (self.parked.sent.get_mut(at)).filter(|_| !self.others.is_empty());
        let (Some(sent), Some(of)) = (sent, self.config.types.get(at)) else {
            return Ok(None);
        };
        if sent.answered.is_none() {
            let prefix = stats::prefix(&self.config.policy);
            let name = format!("{prefix}.type.{}.answered_at_ns", of.name);
            sent.answered = Some(host.number(&name)?);
        }
        Ok(sent.answered)
    }

    /// Counts an answer to a request of `kind`, and publishes it once per mean slot time. If a host
    /// call fails, the next answer is published.
    pub(super) fn answered(&mut self, host: &impl Host, now: Instant, kind: TypeId) {
        self.parked.answered(now, kind);
        let cut = self.strategy.base.value_cut();
        let time = cut.and_then(|cut| cut.slot_time(kind));
        let sent = self.parked.sent.get(usize::from(kind.0));
        let (Some(time), Some(sent)) = (time.filter(|_| self.holds()), sent) else {
            return;
        };
        if now.since(sent.published).as_secs_f64() < time {
            return;
        }
        if let Ok(Some(number)) = self.answered_at(host, kind)
            && host.set(number, now.as_nanos()).is_ok()
            && let Some(sent) = self.parked.sent.get_mut(usize::from(kind.0))
        {
            sent.published = now;
        }
    }

    /// Returns the number of requests of `kind` that this worker sent since its last answer to the
    /// type and that haven't ended.
    #[cfg(test)]
    pub(crate) fn unanswered(&self, kind: TypeId) -> u32 {
        self.parked.sent[usize::from(kind.0)].count
    }

    /// Returns the number of times that this stage has checked whether a type is unanswered.
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
        if self.parked.is_empty() {
            return Ok(());
        }
        // Either all parked requests of a type may go or none. Usually none of any type may go, so
        // check the types before the requests.
        let mut may_go = Vec::new();
        for kind in (0..).map(TypeId).take(self.parked.counts.len()) {
            let count = self.parked.counts[usize::from(kind.0)];
            if count > 0 && !self.is_unanswered(host, now, kind)? {
                may_go.push(kind);
            }
        }
        if may_go.is_empty() {
            return Ok(());
        }
        let goes = |slot: &u32| {
            let request = self.requests.get(*slot);
            request.is_some_and(|of| may_go.contains(&of.attributes.kind))
        };
        let mut slots: Vec<u32> = self.parked_slots().filter(goes).collect();
        slots.sort_unstable_by_key(|slot| self.requests.get(*slot).map(|of| of.arrived));
        for slot in slots {
            let Some(mut request) = self.requests.get(slot).copied() else {
                continue;
            };
            if self.is_unanswered(host, now, request.attributes.kind)? {
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

#[cfg(test)]
mod tests {
    use headgate_strategies::request::Attributes;

    use super::*;
    use crate::requests::Phase;

    #[test]
    fn a_request_that_was_sent_before_those_that_are_counted_leaves_the_count() {
        let sent_at = |ms: u64| {
            let at = Instant::from_nanos(ms * 1_000_000);
            let dequeued = Some(at);
            Request {
                phase: Phase::Running { dequeued },
                ..Request::new(1, Attributes::of(TypeId(0)), at)
            }
        };
        let mut parked = Parked::new(1);
        for ms in [101, 100] {
            parked.sent(&sent_at(ms));
        }
        for (ms, left) in [(100, 1), (101, 0)] {
            parked.ended(&sent_at(ms));
            assert_eq!(parked.sent[0].count, left, "{ms}");
        }
    }
}
