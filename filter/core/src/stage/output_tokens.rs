//! The output tokens of responses: their number, and the objectives for the time per token.
//!
//! The time per token doesn't depend on the queue wait. It depends on the number of requests in the
//! backend, because a server of a language model works on all of them in turn. So estimates and
//! decisions on single requests don't use the time per token. A response whose tokens come too
//! slowly counts like a response that is late as a whole. For the search for P it is late, and for
//! the value cut it is not delivered.

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use super::{Outcome, Stage};
use crate::decision::Ticket;
use crate::host::Host;
use crate::requests::{Phase, Request};

impl Stage {
    /// Whether the output tokens of the response to a request must be counted, for its type's
    /// objectives, for the turns of its flow or for the budget.
    pub fn counts_tokens(&self, ticket: Ticket) -> bool {
        let kind = self.type_of(ticket);
        self.config.queue.discipline.token_cost().is_some()
            || kind.is_some_and(|kind| !kind.tpot.is_empty())
            || (self.config.tokens.as_ref()).is_some_and(|tokens| tokens.output.is_some())
    }

    /// Takes more tokens of the budget for a request whose output has grown to `output` tokens, if
    /// the request has too few. Calls the host only in that case.
    ///
    /// # Errors
    /// [`HostError`]; then no tokens are taken.
    pub fn grows(
        &mut self,
        host: &impl Host,
        ticket: Ticket,
        output: u32,
    ) -> Result<(), HostError> {
        let Some(request) = self.requests.of_mut(ticket) else {
            return Ok(());
        };
        let more = self.slots.budget.lacks(request, output);
        let has_slot = matches!(request.phase, Phase::Running { .. }) && request.freed.is_none();
        if more > 0 && has_slot {
            self.ledger.take_more(host, more)?;
            request.tokens += more;
        }
        Ok(())
    }

    /// Records the number of output tokens of a response and the time per token. The caller calls
    /// this function just before [`Stage::finish`]. `token_time` is `None` if there are too few
    /// tokens. `each` is true if `output` counts tokens. Otherwise `output` counts parts of the
    /// response.
    pub fn tokens(
        &mut self,
        ticket: Ticket,
        output: u32,
        each: bool,
        token_time: Option<Duration>,
    ) {
        if let Some(request) = self.requests.of_mut(ticket) {
            (request.output, request.counts_each) = (output, each);
            request.token_time = token_time;
        }
    }

    /// Compares the time per output token of a measured response with the objectives of its type.
    /// The request held a slot since `dequeued`, and its processing time ended at `measured`.
    pub(super) fn judge_tokens(
        &mut self,
        host: &impl Host,
        request: &Request,
        (dequeued, measured): (Instant, Instant),
        outcome: Outcome,
    ) -> Result<(), HostError> {
        let kind = request.attributes.kind;
        let objectives = &self.config.types[usize::from(kind.0)].tpot;
        let Some(last) = objectives.last() else {
            return Ok(());
        };
        // A stream that the backend breaks off meets no objective.
        if !matches!(outcome, Outcome::Completed | Outcome::Abandoned) {
            return Ok(());
        }
        let took = request.token_time;
        let limit = |us| Duration::from_micros(us);
        for (at, objective) in objectives.iter().enumerate() {
            if took.is_none_or(|took| took <= limit(objective.objective_us)) {
                self.stats.tpot_met(kind, at);
            }
        }
        let Some(took) = took else {
            return Ok(());
        };
        let last = (last.percentile / 100.0, limit(last.objective_us));
        let (beside, weight) = (self.beside(request), request.weight);
        (self.slots).streamed(kind, dequeued, took, beside, last, weight);
        let most = self.service_times.objectives(kind).last();
        let in_time = most.is_none_or(|most| measured.since(dequeued) <= most.response_time);
        if took > last.1
            && in_time
            && let Some(cut) = self.strategy.base.value_cut_mut()
        {
            cut.undelivered(kind, weight);
        }
        self.stats.token_time(host, kind, took)
    }
}
