//! The budget of tokens beside the slots.
//!
//! **The problem.** A server may run out of something other than slots: an LLM server's cache holds
//! the tokens of all running sequences, and a long one takes as many as twenty short ones. With
//! slots alone, P is right for one of the two. So a request takes its tokens together with its
//! slot, and starts only when both are free.
//!
//! The first waiter starts as soon as it fits, and nothing overtakes it: otherwise large requests
//! would never find room beside small ones. Meanwhile up to its tokens, less one, are unused. A
//! request that is larger than the budget takes all of it, and runs alone.
//!
//! **Estimates** divide queued work by the number of slots, and P is too many if the budget binds.
//! With the mean number of tokens m of the running requests, weighted by time,
//!
//! ```text
//! slots that work at once = min(P, budget / m)          m over about 5 s
//! ```
//!
//! When the mix of requests changes, the estimate follows as slowly as m. It doesn't contain the
//! tokens that are unused while the first waiter doesn't fit.
//!
//! **The search for P** learns nothing while the budget binds: slots are free although requests
//! wait, so neither is a free slot unneeded, nor does a wait show that more slots would help.

use std::time::Duration;

use crate::config::StageConfig;
use crate::host::{Host, HostError};
use crate::ledger::{Ledger, Tokens};
use crate::request::Attributes;
use crate::time::Instant;

/// Time constant of the mean number of tokens, s.
const MEMORY: f64 = 5.0;
/// The time for which the budget counts as binding after requests waited for tokens.
const BINDS_FOR: Duration = Duration::from_secs(1);

/// A stage's budget of tokens, on one worker.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: u32,
    /// Means of the slots and of the tokens in use.
    in_use: (f64, f64),
    looked: Instant,
    /// The time at which requests last waited for tokens.
    waited: Option<Instant>,
}

impl Budget {
    /// Returns the budget of a stage; `None` if it has none.
    pub(super) fn new(config: &StageConfig) -> Option<Self> {
        let tokens = config.tokens.as_ref()?.whole_budget();
        Some(Self {
            tokens,
            in_use: (0.0, 0.0),
            looked: Instant::default(),
            waited: None,
        })
    }

    /// Adopts another number of tokens. What was learned about requests stays.
    pub(super) fn resize(&mut self, of: &Self) {
        self.tokens = of.tokens;
    }

    /// Returns the tokens that a request takes.
    pub(super) fn tokens(&self, request: &Attributes) -> Tokens {
        Tokens {
            taken: request.tokens.min(self.tokens),
            budget: self.tokens,
        }
    }

    /// Returns the mean number of tokens of running requests; `None` if none has run.
    fn mean(&self) -> Option<f64> {
        let (slots, tokens) = self.in_use;
        (slots > 0.0 && tokens > 0.0).then(|| tokens / slots)
    }

    /// Returns the number of requests that run at once, at most `slots`.
    pub(super) fn slots(&self, slots: u32) -> u32 {
        // A float too large becomes the largest integer.
        let fit = self
            .mean()
            .map_or(slots, |mean| (f64::from(self.tokens) / mean) as u32);
        fit.clamp(1, slots.max(1))
    }

    /// Records that a request waits for tokens while a slot is free.
    pub(super) fn waits(&mut self, now: Instant) {
        self.waited = Some(now);
    }

    /// Whether requests waited for tokens at `since` or later, or shortly before.
    pub(super) fn binds(&self, since: Instant) -> bool {
        self.waited.is_some_and(|at| at + BINDS_FOR > since)
    }

    /// Reads what is in use on all workers, of `limit` slots.
    pub(super) fn look(
        &mut self,
        host: &impl Host,
        now: Instant,
        ledger: &Ledger,
        limit: u32,
    ) -> Result<(), HostError> {
        let (slots, tokens) = (ledger.slots_in_use(host)?, ledger.tokens_in_use(host)?);
        let elapsed = now.since(self.looked).as_secs_f64();
        self.looked = now;
        if slots <= 0 || tokens <= 0 {
            return Ok(());
        }
        let gain = if self.mean().is_some() {
            1.0 - (-elapsed / MEMORY).exp()
        } else {
            1.0
        };
        self.in_use.0 += gain * (slots as f64 - self.in_use.0);
        self.in_use.1 += gain * (tokens as f64 - self.in_use.1);
        // Another worker may have the first waiter, so its tokens are not known here.
        let is_full = tokens as f64 + self.mean().unwrap_or(0.0) > f64::from(self.tokens);
        if is_full && slots < i64::from(limit) && ledger.queue(host)?.length > 0 {
            self.waits(now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FilterConfig;
    use crate::memory::MemoryHost;
    use crate::request::TypeId;

    fn budget() -> Budget {
        let json = br#"{"stages":[{"policy":"ns/p","parallelism":8,"tokens":{"budget":100},
            "queue":{"max_length":10,"timeout_us":1},
            "strategy":{"type":"MaxQueueLength"},"types":[{"name":"default"}]}]}"#;
        Budget::new(&FilterConfig::from_json(json).unwrap().stages[0]).unwrap()
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_request_takes_the_whole_budget_at_most() {
        let taken = |tokens| {
            let request = Attributes {
                tokens,
                ..Attributes::of(TypeId(0))
            };
            budget().tokens(&request).taken
        };
        assert_eq!([0, 30, 100, 5_000].map(taken), [0, 30, 100, 100]);
    }

    #[test]
    fn the_slots_that_work_follow_the_tokens_of_running_requests() {
        let (host, mut budget) = (MemoryHost::new(), budget());
        let mut ledger = Ledger::new(&host, "s", 0).unwrap();
        ledger.count_tokens(&host).unwrap();
        assert_eq!(budget.slots(8), 8, "no request has run");
        for _ in 0..3 {
            ledger.acquire_over_limit(&host, 30).unwrap();
        }
        budget.look(&host, at(10), &ledger, 8).unwrap();
        assert_eq!((budget.slots(8), budget.slots(2)), (3, 2));
        assert!(!budget.binds(at(10)), "nothing waits");
        ledger.enqueue(&host, 0).unwrap();
        budget.look(&host, at(20), &ledger, 3).unwrap();
        assert!(!budget.binds(at(20)), "all slots are in use");
        budget.look(&host, at(30), &ledger, 8).unwrap();
        assert!(budget.binds(at(1_020)) && !budget.binds(at(1_030)));
        for _ in 0..3 {
            ledger.release(&host, 30).unwrap();
            ledger.acquire_over_limit(&host, 5).unwrap();
        }
        (4..30).for_each(|s| budget.look(&host, at(1_000 * s), &ledger, 8).unwrap());
        assert_eq!((budget.slots(8), budget.slots(100)), (8, 19));
        for _ in 0..3 {
            ledger.release(&host, 5).unwrap();
        }
        budget.look(&host, at(31_000), &ledger, 8).unwrap();
        assert_eq!(budget.slots(100), 19, "an idle backend says nothing");
    }
}
