//! Reports of outcomes to the value cut. They concern requests that ended, and requests that have
//! been in the backend for too long.

use std::time::Duration;

use headgate_strategies::strategy::End;
use headgate_strategies::time::Instant;

use super::{Outcome, Stage};
use crate::requests::{Phase, Request};

impl Stage {
    /// Gives the strategy a random number that identifies this worker within the process.
    pub(super) fn identify(&mut self) {
        if let Some(cut) = self.strategy.base.value_cut_mut() {
            cut.identify(self.rng.next_u64());
        }
    }

    /// Reports the end of a request that held a slot since `dequeued`, or the first byte of its
    /// stream. `measured` is true if the histogram of its type includes its time. For a request
    /// without an answer, the histogram records a time beyond the last objective as that objective.
    pub(super) fn delivered(
        &mut self,
        now: Instant,
        request: &Request,
        dequeued: Option<Instant>,
        outcome: Outcome,
        measured: bool,
    ) {
        let kind = request.attributes.kind;
        let Some(dequeued) = dequeued else {
            return;
        };
        let time = now.since(dequeued);
        // The response of an unsampled request may be a timeout.
        if outcome == Outcome::Completed {
            self.hosts.answered(now, kind, time);
        }
        let weight = request.weight;
        if weight == 0 {
            return;
        }
        let Some(cut) = self.strategy.base.value_cut_mut() else {
            return;
        };
        let held = (request.freed).map_or(time, |(at, _)| at.since(dequeued));
        let last = self.service_times.objectives(kind).last();
        let last = last.map_or(Duration::MAX, |objective| objective.response_time);
        let late = time > last;
        let says_something = match outcome {
            Outcome::Completed | Outcome::Failed => true,
            // A client that leaves early, or reads slowly, gives no information about the backend.
            Outcome::Abandoned => late && request.sent.is_some() && !request.begun,
            Outcome::Unmeasured | Outcome::Unsampled => false,
        };
        if says_something {
            let answered = outcome == Outcome::Completed;
            cut.ended(
                kind,
                &End {
                    answered: answered.then_some(time),
                    delivered: answered && !late,
                    late,
                    was_overdue: request.overdue,
                    measured,
                    beyond: match (answered, measured) {
                        (true, _) => Duration::ZERO,
                        (false, true) => held.saturating_sub(last),
                        (false, false) => held,
                    },
                    weight,
                },
            );
        }
    }

    /// Finds requests that have been in the backend for too long. Each counts as late for the
    /// search for P, or as silent or overdue for the value cut. Late and overdue requests are
    /// compared with answers, so they count only if their answers would be measured. Silent
    /// requests are compared with the slots that they hold, so all of them count.
    pub(super) fn find_overdue(&mut self, now: Instant) {
        let mut cut = self.strategy.base.value_cut_mut();
        let due = match &cut {
            Some(cut) => headgate_strategies::strategy::Controlled::due(*cut, now),
            None => self.slots.is_open(),
        };
        if !due {
            return;
        }
        for request in self.requests.iter_mut() {
            let Phase::Running { dequeued: Some(at) } = request.phase else {
                continue;
            };
            // A response that has begun is an answer, however long it continues.
            let Some(since) = request.unanswered_since() else {
                continue;
            };
            let kind = request.attributes.kind;
            let time = now.since(since);
            let response = self.slots.response(request, at, now);
            let is_sample = request.weight > 0;
            if is_sample
                && !request.counted_late
                && (self.slots.late_after(kind)).is_some_and(|most| response > most)
            {
                request.counted_late = true;
                self.slots.answered(kind, response, request.weight);
            }
            let Some(cut) = &mut cut else {
                continue;
            };
            if !request.silent
                && cut.silent_after(kind).is_some_and(|usual| time > usual)
                && (self.service_times.mean_by_size(&request.attributes))
                    .is_none_or(|by_size| time > by_size * 2)
            {
                request.silent = true;
                cut.silent(kind);
            }
            if is_sample && !request.overdue && cut.late_after(kind).is_some_and(|most| time > most)
            {
                request.overdue = true;
                cut.overdue(kind, request.weight);
            }
        }
    }
}
