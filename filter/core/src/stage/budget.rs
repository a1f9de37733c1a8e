//! The budget of tokens: a second limit, in addition to the slots.
//!
//! **The problem.** A server may exhaust something other than slots. An LLM server's cache holds
//! the tokens of all running sequences, and a long sequence takes as many tokens as twenty short
//! ones. With slots alone, P can be right for long sequences or for short ones, but not for both.
//! So a request takes its tokens together with its slot, and starts only when both are free.
//!
//! The first waiter starts as soon as it fits, and no request overtakes it. If others could
//! overtake it, large requests would never find room beside small ones. Until the first waiter
//! fits, up to its tokens less one are unused. A request that is larger than the budget takes all
//! of it and runs alone.
//!
//! **Outputs.** The length of an output is only known at its end. A request states its maximum, and
//! most outputs are far shorter. So where outputs are counted, a request takes tokens for the 95th
//! percentile of its type's output lengths ([`super::output_lengths`]) instead of its maximum. If
//! the output grows beyond that length, the request takes as many tokens again as its output has,
//! up to its maximum. It takes these tokens at once, whether they fit or not, because the server
//! already uses them. If the budget is then exceeded, no request starts until enough tokens are
//! released. A request releases all of its tokens with its slot.
//!
//! **Estimates** divide queued work by the number of slots. If the budget binds, fewer than P slots
//! work. Let m be the mean number of tokens of the running requests, weighted by time. Then
//!
//! ```text
//! slots that work at once = min(P, u / m)          m, u over about 5 s
//! ```
//!
//! Here u is the number of tokens in use while requests wait for tokens. It is the budget without
//! the tokens that are too few for the first waiter. When the mix of requests changes, the estimate
//! follows as slowly as m.
//!
//! The queue moves only after running requests have released the tokens that the first waiter
//! lacks. A request that is larger than the first waiter waits until it fits itself. Let s be the
//! slot time of ended requests, weighted by their tokens, and t the tokens in use. Running requests
//! release t / s tokens per second. So the estimated wait is the time for the work ahead, plus
//!
//! ```text
//! rest = s · (t + tokens − budget) / t, at least 0     tokens: its own, or the first waiter's
//! ```
//!
//! Without a budget, the rest is a slot time divided by P, and estimates ignore it. If two large
//! requests fill the budget, the rest is half of a slot time.
//!
//! **The value cut** ranks types by value per slot time. A type may hold few slots but most of the
//! budget. So the cost of a request is the larger of its parts of the slots and of the budget (its
//! dominant resource), expressed as slot time:
//!
//! ```text
//! max(slot time, P · tokens · slot time / budget)
//! ```
//!
//! In the model of the server of `scripts/bench llm`, with a budget for prompts, 11.4 and 14.4
//! answers per second are in time at 1.5 and 2 times its capacity. With a rank by slot time alone,
//! 11.0 and 12.8 are in time.
//!
//! **The search for P** ignores measurements while the budget binds. Slots are free although
//! requests wait, so a free slot doesn't mean that P is too high, and a wait doesn't mean that P is
//! too low.

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::request::{Attributes, TypeId};
use headgate_strategies::time::Instant;

use super::Outcome;
use super::output_lengths::Lengths;
use crate::config::{StageConfig, TokensConfig};
use crate::host::Host;
use crate::ledger::{Ledger, Tokens};
use crate::requests::Request;

/// The weight of the latest request in the mean of its type.
const GAIN: f64 = 0.05;
/// The time constant of the means, s.
const MEMORY: f64 = 5.0;
/// The time for which the budget counts as binding after requests waited for tokens.
const BINDS_FOR: Duration = Duration::from_secs(1);

/// A stage's budget of tokens, on one worker.
#[derive(Debug)]
pub(super) struct Budget {
    tokens: u32,
    /// The means of the slots and of the tokens in use.
    in_use: (f64, f64),
    /// u, the mean of the tokens in use while requests wait for tokens.
    full: f64,
    /// Decaying sums over ended requests: their tokens, and their tokens times their slot time, s.
    ended: (f64, f64),
    looked: Instant,
    /// The time at which requests last waited for tokens.
    waited: Option<Instant>,
    /// The mean over ended requests of their tokens times their slot time, s, by type. It is 0
    /// before the first request.
    token_times: Vec<f64>,
    /// The output lengths, by type.
    outputs: Vec<Lengths>,
}

impl Budget {
    /// Returns the budget of a stage. Without a budget, requests take no tokens.
    pub(super) fn new(config: &StageConfig) -> Self {
        let tokens = config.tokens.as_ref().map_or(0, TokensConfig::whole_budget);
        let types = config.tokens.as_ref().map_or(0, |_| config.types.len());
        Self {
            tokens,
            token_times: vec![0.0; types],
            in_use: (0.0, 0.0),
            full: tokens.into(),
            ended: (0.0, 0.0),
            looked: Instant::default(),
            waited: None,
            outputs: vec![Lengths::default(); types],
        }
    }

    /// Whether the stage has a budget.
    pub(super) fn is_set(&self) -> bool {
        self.tokens > 0
    }

    /// Adopts the number of tokens of `of`. The measurements of requests stay.
    pub(super) fn resize(&mut self, of: &Self) {
        (self.tokens, self.full) = (of.tokens, of.full);
    }

    /// Discards the measurements of single types, because the types have changed.
    pub(super) fn forget_types(&mut self, config: &StageConfig) {
        self.outputs.clear();
        self.outputs.resize(config.types.len(), Lengths::default());
        self.token_times.clear();
        self.token_times.resize(config.types.len(), 0.0);
    }

    /// Returns the tokens that a request takes.
    pub(super) fn tokens(&self, request: &Attributes) -> Tokens {
        let lengths = self.outputs.get(usize::from(request.kind.0));
        let output = lengths.and_then(Lengths::usual).unwrap_or(u32::MAX);
        Tokens {
            taken: with_output(request, output).min(self.tokens),
            budget: self.tokens,
        }
    }

    /// Returns the expected output of a request, from its maximum and the outputs of its type.
    pub(super) fn output(&self, request: &Attributes) -> u32 {
        let most = request.tokens - request.prompt_tokens;
        // Without a budget for outputs, the maximum of every request is 0.
        let lengths = (self.outputs.get(usize::from(request.kind.0))).filter(|_| most > 0);
        lengths.map_or(most, |lengths| lengths.mean(most))
    }

    /// Returns the number of further tokens that a request takes because its output has grown to
    /// this length. Returns 0 if the request has enough tokens.
    pub(super) fn lacks(&self, request: &Request, output: u32) -> u32 {
        if with_output(&request.attributes, output) <= request.tokens {
            return 0;
        }
        let twice = with_output(&request.attributes, output.saturating_mul(2));
        twice.min(self.tokens).saturating_sub(request.tokens)
    }

    /// Records the output of a request whose response ended, or `None` if its tokens were not
    /// counted. Such an output may be as long as the request allows.
    pub(super) fn wrote(&mut self, request: &Attributes, output: Option<u32>, outcome: Outcome) {
        let is_answered = match outcome {
            Outcome::Completed | Outcome::Unsampled => true,
            Outcome::Abandoned if output.is_some() => false,
            Outcome::Abandoned | Outcome::Failed | Outcome::Unmeasured => return,
        };
        let output = output.unwrap_or(request.tokens - request.prompt_tokens);
        let is_whole = is_answered && with_output(request, output) < request.tokens;
        if let Some(lengths) = self.outputs.get_mut(usize::from(request.kind.0)) {
            lengths.learn(output, is_whole);
        }
    }

    /// Returns the mean number of tokens of running requests, or `None` if none has run.
    fn mean(&self) -> Option<f64> {
        let (slots, tokens) = self.in_use;
        (slots > 0.0 && tokens > 0.0).then(|| tokens / slots)
    }

    /// Returns the mean number of requests that run at once while others wait, at most `slots`.
    pub(super) fn slots(&self, slots: u32) -> f64 {
        let slots = f64::from(slots.max(1));
        (self.mean()).map_or(slots, |mean| (self.full / mean).clamp(1.0, slots))
    }

    /// Records that a request of `kind` has released its `tokens` after holding them for `held`.
    pub(super) fn ended(&mut self, kind: TypeId, tokens: u32, held: Duration) {
        let time = f64::from(tokens) * held.as_secs_f64();
        self.ended.0 += f64::from(tokens);
        self.ended.1 += time;
        if let Some(mean) = self.token_times.get_mut(usize::from(kind.0)) {
            let gain = if *mean > 0.0 { GAIN } else { 1.0 };
            *mean += gain * (time - *mean);
        }
    }

    /// Returns the mean of tokens · slot time ÷ budget over requests of `kind` on this worker, s.
    pub(super) fn part_time(&self, kind: TypeId) -> f64 {
        let mean = self.token_times.get(usize::from(kind.0));
        mean.map_or(0.0, |mean| mean / f64::from(self.tokens.max(1)))
    }

    /// Returns the time until running requests have released enough tokens for a request with these
    /// `tokens`. The running requests have `in_use` tokens.
    pub(super) fn rest(&self, in_use: i64, tokens: u32) -> Duration {
        let lacks = in_use + i64::from(tokens) - i64::from(self.tokens);
        if lacks <= 0 || in_use <= 0 || self.ended.0 <= 0.0 {
            return Duration::ZERO;
        }
        let slot_time = Duration::from_secs_f64(self.ended.1 / self.ended.0);
        // Requests that aren't held may have more tokens than the budget.
        slot_time.mul_f64((lacks as f64 / in_use as f64).min(1.0))
    }

    /// Records that a request waits for tokens while a slot is free.
    pub(super) fn waits(&mut self, now: Instant) {
        self.waited = Some(now);
    }

    /// Whether requests waited for tokens at `since` or later, or up to [`BINDS_FOR`] before.
    pub(super) fn binds(&self, since: Instant) -> bool {
        self.waited.is_some_and(|at| at + BINDS_FOR > since)
    }

    /// Updates the means from the slots and tokens in use on all workers. `limit` is the number of
    /// slots that may be in use.
    pub(super) fn look(
        &mut self,
        host: &impl Host,
        now: Instant,
        ledger: &Ledger,
        limit: u32,
    ) -> Result<(), HostError> {
        if !self.is_set() {
            return Ok(());
        }
        let (slots, tokens) = (ledger.slots_in_use(host)?, ledger.tokens_in_use(host)?);
        let before = std::mem::replace(&mut self.looked, now);
        let kept = (-now.since(before).as_secs_f64() / MEMORY).exp();
        self.ended = (self.ended.0 * kept, self.ended.1 * kept);
        if slots <= 0 || tokens <= 0 {
            return Ok(());
        }
        let gain = self.mean().map_or(1.0, |_| 1.0 - kept);
        self.in_use.0 += gain * (slots as f64 - self.in_use.0);
        self.in_use.1 += gain * (tokens as f64 - self.in_use.1);
        // Another worker may have the first waiter, so the tokens of the first waiter are not known
        // here.
        let is_full = tokens as f64 + self.mean().unwrap_or(0.0) > f64::from(self.tokens);
        let has_waited = is_full || self.waited.is_some_and(|at| at > before);
        if has_waited && slots < i64::from(limit) && ledger.queue(host)?.length > 0 {
            self.full += (1.0 - kept) * (tokens as f64 - self.full);
            self.waits(now);
        }
        Ok(())
    }
}

/// Returns the tokens of a request whose output has this length.
fn with_output(request: &Attributes, output: u32) -> u32 {
    request
        .tokens
        .min(request.prompt_tokens.saturating_add(output))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::FilterConfig;
    use crate::memory::MemoryHost;

    fn budget() -> Budget {
        let json = br#"{"stages":[{"policy":"ns/p","parallelism":8,"tokens":{"budget":100},
            "queue":{"max_length":10,"timeout_us":1},
            "strategy":{"type":"MaxQueueLength"},"types":[{"name":"default"}]}]}"#;
        Budget::new(&FilterConfig::from_json(json).unwrap().stages[0])
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Returns a request that takes this many tokens at most, including those of its prompt.
    fn asking(tokens: u32, prompt_tokens: u32) -> Attributes {
        Attributes {
            tokens,
            prompt_tokens,
            ..Attributes::of(TypeId(0))
        }
    }

    #[test]
    fn a_request_takes_the_whole_budget_at_most() {
        let taken = |tokens| budget().tokens(&asking(tokens, 0)).taken;
        assert_eq!([0, 30, 100, 5_000].map(taken), [0, 30, 100, 100]);
    }

    #[test]
    fn a_request_takes_the_usual_output_of_its_type() {
        let (request, asks_little) = (asking(90, 10), asking(15, 10));
        let mut budget = budget();
        let wrote = |budget: &mut Budget, output, outcome| {
            (0..2_000).for_each(|_| budget.wrote(&request, Some(output), outcome));
        };
        let taken = |budget: &Budget| [request, asks_little].map(|of| budget.tokens(&of).taken);
        for outcome in [Outcome::Failed, Outcome::Unmeasured, Outcome::Abandoned] {
            wrote(&mut budget, 20, outcome);
            assert_eq!(taken(&budget), [90, 15], "no length is known");
        }
        assert_eq!(budget.output(&request), 80);
        wrote(&mut budget, 20, Outcome::Completed);
        assert_eq!(taken(&budget), [10 + 23, 15]);
        assert_eq!([request, asks_little].map(|of| budget.output(&of)), [22, 5]);
        // The output is cut off at its maximum.
        wrote(&mut budget, 80, Outcome::Unsampled);
        assert_eq!(taken(&budget), [90, 15]);
        // A few uncounted outputs leave the length known. More of them raise it to the maximum,
        // because each may be as long as its request allows.
        wrote(&mut budget, 20, Outcome::Completed);
        for (count, outcome, usual) in [
            (100, Outcome::Abandoned, 33),
            (10, Outcome::Completed, 33),
            (20, Outcome::Unsampled, 90),
        ] {
            (0..count).for_each(|_| budget.wrote(&request, None, outcome));
            assert_eq!(taken(&budget), [usual, 15], "{count}");
        }
    }

    #[test]
    fn an_output_that_outgrows_its_tokens_takes_as_many_again() {
        let mut request = Request::new(1, asking(150, 10), at(0));
        request.tokens = 33;
        let lacks = [0, 23, 24, 60, u32::MAX].map(|output| budget().lacks(&request, output));
        // A request takes at most the whole budget.
        assert_eq!(lacks, [0, 0, 10 + 48 - 33, 100 - 33, 100 - 33]);
    }

    #[test]
    fn the_slots_that_work_follow_the_tokens_of_running_requests() {
        let (host, mut budget) = (MemoryHost::new(), budget());
        let mut ledger = Ledger::new(&host, "s", 0).unwrap();
        ledger.count_tokens(&host).unwrap();
        let slots = |budget: &Budget, of| budget.slots(of) as u32;
        assert_eq!(slots(&budget, 8), 8, "no request has run");
        for _ in 0..3 {
            ledger.acquire_over_limit(&host, 30).unwrap();
        }
        budget.look(&host, at(10), &ledger, 8).unwrap();
        assert_eq!((slots(&budget, 8), slots(&budget, 2)), (3, 2));
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
        assert_eq!((slots(&budget, 8), slots(&budget, 100)), (8, 19));
        for _ in 0..3 {
            ledger.release(&host, 5).unwrap();
        }
        budget.look(&host, at(31_000), &ledger, 8).unwrap();
        assert_eq!(slots(&budget, 100), 19, "an idle backend says nothing");
    }

    #[test]
    fn tokens_that_never_suffice_for_the_first_waiter_serve_no_request() {
        let (host, mut budget) = (MemoryHost::new(), budget());
        let mut ledger = Ledger::new(&host, "s", 0).unwrap();
        ledger.count_tokens(&host).unwrap();
        ledger.enqueue(&host, 0).unwrap();
        for _ in 0..2 {
            ledger.acquire_over_limit(&host, 40).unwrap();
        }
        (1..3_000).for_each(|n| budget.look(&host, at(10 * n), &ledger, 8).unwrap());
        assert!((budget.slots(8) - 2.0).abs() < 0.01, "{budget:?}");
    }

    #[test]
    fn running_requests_release_tokens_as_those_before_them_did() {
        let mut budget = budget();
        assert_eq!(budget.rest(100, 50), Duration::ZERO, "none has ended");
        budget.ended(TypeId(0), 30, Duration::from_millis(200));
        budget.ended(TypeId(0), 10, Duration::from_millis(40));
        let ms = |in_use, tokens| budget.rest(in_use, tokens).as_millis();
        assert_eq!((ms(0, 100), ms(60, 40)), (0, 0), "it fits");
        assert_eq!((ms(100, 50), ms(100, 100), ms(50, 75)), (80, 160, 80));
        assert_eq!(ms(1_000, 1), 144, "more than the budget is in use");
    }
}
