//! A model of a server of a large language model with continuous batching. The simulator's tests
//! include this file.
//!
//! The server has S slots for sequences, and a FIFO queue before the slots. It works in iterations.
//! Each iteration produces one token for every sequence whose prompt is done, and processes as many
//! tokens of the other prompts as fit into the batch, oldest slot first. A sequence gets its first
//! token at the end of the iteration in which its prompt ends. So a long prompt delays all tokens
//! of all sequences. A request that arrives during an iteration waits for the iteration's end.
//!
//! An iteration is processed in micro-batches with the same number of tokens of each sequence, as
//! in llama-server with a cache for each slot (`llama_batch_allocr::split_equal`). A micro-batch of
//! n tokens, d of which belong to answers, takes
//!
//! ```text
//! t = b + c·n + κ·Σ (c_prompt or c_answer)      b + c·n: another constant for n = 1
//! κ = the longest context of its sequences in tokens, rounded up to a multiple of 256
//! ```
//!
//! because attention is computed over κ tokens for each of its sequences. A single token multiplies
//! a vector by the weights, which has its own and faster code. Each token of an answer also takes
//! time for sampling and sending.
//!
//! The cache of all sequences has a fixed number of tokens. A sequence takes either, at its start,
//! all the tokens that it will need, or only those that it has so far. In the second case, the
//! youngest sequences are preempted when the cache is full, and are computed again later, as in
//! vLLM.
//!
//! The model leaves out caches of prompts and speculation. Nothing in it is random.

use std::collections::VecDeque;

use headgate_simulator::{Backend, Request};

/// The granularity of κ, tokens.
const CONTEXT_STEP: u32 = 256;

/// The limits of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    /// S, the number of slots for sequences.
    pub(crate) slots: u32,
    /// The largest number of tokens in an iteration.
    pub(crate) batch: u32,
    /// The largest number of tokens in a micro-batch.
    pub(crate) micro_batch: u32,
    /// The largest number of tokens of all sequences. A request waits until it fits, and all later
    /// requests wait behind it. A single request always fits.
    pub(crate) cache: u64,
    /// Whether older sequences preempt younger ones when the cache is full. Otherwise a sequence
    /// takes the tokens of its prompt and of its whole answer at its start.
    pub(crate) preempts: bool,
}

/// The times of a server, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Costs {
    /// b: the time of a micro-batch.
    pub(crate) micro_batch: f64,
    /// c: the time of a token.
    pub(crate) token: f64,
    /// The time of a micro-batch of one token.
    pub(crate) single: f64,
    /// Attention of a token of a prompt to a token of its context.
    pub(crate) prompt_attention: f64,
    /// Attention of a token of an answer to a token of its context.
    pub(crate) answer_attention: f64,
    /// Sampling and sending a token.
    pub(crate) output: f64,
}

impl Limits {
    /// Returns llama-server's defaults (`--batch-size`, `--ubatch-size`), with a cache for each
    /// slot that no sequence exceeds.
    pub(crate) const fn llama_server(slots: u32) -> Self {
        Self {
            slots,
            batch: 2_048,
            micro_batch: 512,
            cache: u64::MAX,
            preempts: false,
        }
    }
}

impl Costs {
    /// llama-server on one core with the model of `scripts/bench llm`, fitted to closed loops of 1
    /// to 8 clients (`scripts/bench llm --model`), to the mean of two runs. The model's throughput
    /// is then within 15% of the server's in each of 16 closed loops. Its times to the first token
    /// are within 27% except for one loop (46%), and those for an output token within 21% except
    /// for one loop (61%). In a third run, its throughput is within 28%. The three runs of the
    /// server differ by up to 49% in the throughput of a loop, and by more in these times.
    pub(crate) const LLAMA_SERVER: Self = Self {
        micro_batch: 990_000.0,
        token: 74_000.0,
        single: 310_000.0,
        prompt_attention: 118.0,
        answer_attention: 343.0,
        output: 400_000.0,
    };
}

/// A request in the server.
#[derive(Debug, Clone, Copy)]
struct Sequence {
    job: u32,
    /// The number of sequences that started earlier.
    before: u64,
    /// Tokens of the prompt, and tokens of the answer that are computed again.
    prompt: u32,
    /// The other tokens of the answer.
    output: u32,
    /// Tokens of the answer so far.
    made: u32,
    /// Tokens of the sequence in the cache.
    context: u32,
    /// Tokens of the sequence in the current iteration.
    batched: u32,
    /// Tokens of the sequence in the current iteration that are in no micro-batch yet.
    left: u32,
}

impl Sequence {
    /// Whether the prompt is done.
    fn answers(&self) -> bool {
        self.context >= self.prompt
    }

    fn tokens(&self) -> u64 {
        u64::from(self.prompt) + u64::from(self.output)
    }

    /// Returns the number of tokens of the cache that the sequence takes for the next iteration.
    fn cached(&self, preempts: bool) -> u64 {
        match preempts {
            true => u64::from(self.context.max(self.prompt)) + 1,
            false => self.tokens(),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Streamed {
    /// The request.
    pub(crate) request: Request,
    /// The time of the first token, ns.
    pub(crate) begun: u64,
    /// The time of the last token, ns.
    pub(crate) ended: u64,
}

impl Streamed {
    /// Returns the time to the first token, ms.
    pub(crate) fn ttft_ms(&self) -> f64 {
        (self.begun - self.request.at) as f64 / 1e6
    }

    /// Returns the mean time between two tokens, ms, or 0 if the answer has only one token.
    pub(crate) fn tpot_ms(&self) -> f64 {
        let gaps = self.request.output.saturating_sub(1).max(1);
        (self.ended - self.begun) as f64 / 1e6 / f64::from(gaps)
    }
}

/// A server with continuous batching.
#[derive(Debug)]
pub(crate) struct Batching {
    limits: Limits,
    costs: Costs,
    slots: Vec<Option<Sequence>>,
    waiting: VecDeque<Sequence>,
    /// The end of the current iteration, ns, or `u64::MAX` if the server is idle.
    end: u64,
    /// The end of the last iteration, ns.
    now: u64,
    begun: VecDeque<u32>,
    ended: VecDeque<u32>,
    /// The answers that grew in the last iteration.
    wrote: VecDeque<(u32, u32)>,
    /// The number of sequences that have started.
    started: u64,
}

impl Batching {
    /// Returns an idle server.
    pub(crate) fn new(limits: Limits, costs: Costs) -> Self {
        Self {
            slots: vec![None; limits.slots as usize],
            limits,
            costs,
            waiting: VecDeque::new(),
            end: u64::MAX,
            now: 0,
            begun: VecDeque::new(),
            ended: VecDeque::new(),
            wrote: VecDeque::new(),
            started: 0,
        }
    }

    /// Runs this many clients until `until`, ns. Each client sends its next request as soon as it
    /// has an answer. Returns the answers, in the order of their ends.
    pub(crate) fn closed_loop(
        mut self,
        clients: u32,
        until: u64,
        mut next: impl FnMut(u64) -> Request,
    ) -> Vec<Streamed> {
        let mut sent = |at| Streamed {
            request: next(at),
            begun: 0,
            ended: 0,
        };
        let mut answers: Vec<Streamed> = Vec::new();
        let mut pending: Vec<Streamed> = (0..clients).map(|_| sent(0)).collect();
        for (client, streamed) in (0..).zip(&pending) {
            self.take(0, client, &streamed.request);
        }
        while self.next_end() < until {
            let now = self.next_end();
            let ended = self.end(now);
            while let Some(client) = self.begun() {
                pending[client as usize].begun = now;
            }
            if let Some(client) = ended {
                let answered = std::mem::replace(&mut pending[client as usize], sent(now));
                answers.push(Streamed {
                    ended: now,
                    ..answered
                });
                self.take(now, client, &pending[client as usize].request);
            }
        }
        answers
    }

    fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().flatten()
    }

    /// Gives free slots to waiting requests.
    fn admit(&mut self) {
        let mut cached = self.cached();
        while let Some(next) = self.waiting.front_mut()
            && (cached == 0
                || cached.saturating_add(next.cached(self.limits.preempts)) <= self.limits.cache)
            && let Some(slot) = self.slots.iter_mut().find(|slot| slot.is_none())
        {
            cached = cached.saturating_add(next.cached(self.limits.preempts));
            next.before = self.started;
            self.started += 1;
            *slot = self.waiting.pop_front();
        }
    }

    /// Returns the number of tokens of the cache that all sequences take for the next iteration.
    fn cached(&self) -> u64 {
        let cached = |sequence: &Sequence| sequence.cached(self.limits.preempts);
        self.sequences().map(cached).sum()
    }

    /// Preempts the youngest sequences that don't fit into the cache.
    fn preempt(&mut self) {
        while self.cached() > self.limits.cache && self.sequences().count() > 1 {
            let before = |slot: &&mut Option<Sequence>| slot.map(|sequence| sequence.before);
            let youngest = self.slots.iter_mut().max_by_key(before);
            let Some(mut sequence) = youngest.and_then(Option::take) else {
                return;
            };
            let tokens = sequence.prompt + sequence.output;
            sequence.prompt = sequence
                .prompt
                .max(sequence.context + u32::from(sequence.answers()));
            sequence.output = tokens - sequence.prompt;
            sequence.context = 0;
            self.waiting.push_front(sequence);
        }
    }

    /// Starts an iteration, if any sequence has work.
    fn start(&mut self, now: u64) {
        if self.limits.preempts {
            self.preempt();
        }
        self.admit();
        let mut free = self.limits.batch;
        let mut take = |sequence: &mut Sequence, tokens: u32| {
            sequence.batched = tokens.min(free);
            sequence.left = sequence.batched;
            free -= sequence.batched;
        };
        for sequence in self.slots.iter_mut().flatten() {
            if sequence.answers() {
                take(sequence, 1);
            }
        }
        for sequence in self.slots.iter_mut().flatten() {
            if !sequence.answers() {
                take(sequence, sequence.prompt - sequence.context);
            }
        }
        let time = self.time();
        self.end = match time > 0.0 {
            true => now + time.ceil() as u64,
            false => u64::MAX,
        };
    }

    /// Returns the time of an iteration, ns, or 0 without work.
    fn time(&mut self) -> f64 {
        let mut time = 0.0;
        loop {
            let active = self.slots.iter_mut().flatten().filter(|s| s.left > 0);
            let mut active: Vec<&mut Sequence> = active.collect();
            active.truncate(self.limits.micro_batch as usize);
            let Some(least) = active.iter().map(|sequence| sequence.left).min() else {
                return time;
            };
            let each = least.min(self.limits.micro_batch / active.len() as u32);
            let (mut longest, mut attention) = (0, 0.0);
            for sequence in &mut active {
                sequence.left -= each;
                longest = longest.max(sequence.context + sequence.batched - sequence.left);
                attention += f64::from(each)
                    * match sequence.answers() {
                        true => self.costs.answer_attention,
                        false => self.costs.prompt_attention,
                    };
            }
            let tokens = f64::from(each) * active.len() as f64;
            let context = f64::from(longest.next_multiple_of(CONTEXT_STEP));
            let work = match active.len() as u32 * each {
                1 => self.costs.single,
                _ => self.costs.micro_batch + self.costs.token * tokens,
            };
            time += work + attention * context;
            let made = |s: &&&mut Sequence| s.left == 0 && s.context + s.batched >= s.prompt;
            time += self.costs.output * active.iter().filter(made).count() as f64;
        }
    }

    /// Ends the iteration.
    fn finish(&mut self) {
        self.wrote.clear();
        for slot in &mut self.slots {
            let Some(sequence) = slot else {
                continue;
            };
            sequence.context += sequence.batched;
            if !sequence.answers() || sequence.batched == 0 {
                continue;
            }
            if sequence.made == 0 {
                self.begun.push_back(sequence.job);
            }
            sequence.made += 1;
            self.wrote.push_back((sequence.job, sequence.made));
            // The last token of an answer isn't put into the cache.
            if u64::from(sequence.context) + 1 >= sequence.tokens() {
                self.ended.push_back(sequence.job);
                *slot = None;
            }
        }
    }
}

impl Backend for Batching {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.waiting.push_back(Sequence {
            job,
            before: 0,
            prompt: request.prompt.max(1),
            output: request.output.max(1),
            made: 0,
            context: 0,
            batched: 0,
            left: 0,
        });
        if self.end == u64::MAX {
            self.start(now);
        }
    }

    fn next_end(&self) -> u64 {
        match self.ended.is_empty() {
            true => self.end,
            false => self.now,
        }
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        if self.ended.is_empty() {
            self.now = now;
            self.finish();
            // The iteration starts before the requests that are sent because of these answers
            // arrive.
            self.start(now);
        }
        self.ended.pop_front()
    }

    fn begun(&mut self) -> Option<u32> {
        self.begun.pop_front()
    }

    fn wrote(&mut self) -> Option<(u32, u32)> {
        self.wrote.pop_front()
    }

    fn busy(&self) -> u32 {
        self.sequences().count() as u32
    }

    fn servers(&self) -> u32 {
        self.limits.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        micro_batch: 100.0,
        token: 10.0,
        prompt_attention: 0.0,
        answer_attention: 0.0,
        output: 1.0,
        single: 110.0,
    };

    /// Returns the times at which each of these requests (arrival, prompt, output) begins and ends.
    fn times(limits: Limits, costs: Costs, requests: &[(u64, u32, u32)]) -> Vec<(u64, u64)> {
        let mut server = Batching::new(limits, costs);
        let mut times = vec![(0, 0); requests.len()];
        let mut next = 0;
        loop {
            let arrival = requests.get(next).map_or(u64::MAX, |request| request.0);
            let end = server.next_end();
            if arrival == u64::MAX && end == u64::MAX {
                return times;
            }
            if end <= arrival {
                let ended = server.end(end);
                while let Some(job) = server.begun() {
                    times[job as usize].0 = end;
                }
                if let Some(job) = ended {
                    times[job as usize].1 = end;
                }
            } else {
                let (at, prompt, output) = requests[next];
                let request = Request {
                    prompt,
                    output,
                    ..Request::new(at, 0, 0)
                };
                server.take(at, next as u32, &request);
                next += 1;
            }
        }
    }

    #[test]
    fn one_request_is_a_prompt_and_then_token_by_token() {
        let found = times(Limits::llama_server(2), COSTS, &[(7, 20, 3)]);
        // The iteration of the prompt makes the first token.
        assert_eq!(found, [(7 + 301, 7 + 301 + 2 * 111)]);
        let found = times(Limits::llama_server(2), COSTS, &[(0, 20, 1)]);
        assert_eq!(found, [(301, 301)]);
    }

    #[test]
    fn a_prompt_delays_the_tokens_of_others() {
        let found = times(
            Limits::llama_server(2),
            COSTS,
            &[(0, 1, 3), (50, 601, 1), (60, 1, 1)],
        );
        // The second request waits for the end of the first iteration. Its own iteration has a
        // micro-batch of one token of each sequence, and two of 512 and 88 tokens. The third
        // request waits for a slot.
        let (first, second) = (111, 121 + 100 + 5_120 + 100 + 880 + 1);
        assert_eq!(found[0], (first, first + second + 122));
        assert_eq!(found[1], (first + second, first + second));
        assert_eq!(found[2].0, first + second + 122);
    }

    #[test]
    fn a_prompt_larger_than_a_batch_takes_several_iterations() {
        let limits = Limits {
            batch: 100,
            ..Limits::llama_server(2)
        };
        let found = times(limits, COSTS, &[(0, 250, 1)]);
        assert_eq!(found[0].0, 3 * 100 + 2_500 + 1);
    }

    #[test]
    fn attention_is_over_the_longest_context() {
        let costs = Costs {
            answer_attention: 1.0,
            output: 0.0,
            ..COSTS
        };
        let found = times(Limits::llama_server(2), costs, &[(0, 300, 2), (1, 10, 2)]);
        let prompt = 100 + 3_000;
        // The second iteration has two micro-batches: one token of each sequence, and then the
        // remaining nine tokens of the second prompt.
        assert_eq!(found[0], (prompt, prompt + 120 + 512 + 190));
        // The second sequence then makes its second token.
        assert_eq!(found[1].1 - found[1].0, 110 + 256);
    }

    #[test]
    fn a_request_waits_until_it_fits_into_the_cache() {
        let limits = Limits {
            cache: 100,
            ..Limits::llama_server(3)
        };
        let found = times(
            limits,
            COSTS,
            &[(0, 60, 1), (1, 60, 1), (2, 1, 1), (3, 200, 1)],
        );
        let begun: Vec<u64> = found.iter().map(|times| times.0).collect();
        assert_eq!(begun[0], 701);
        assert_eq!(begun[1], begun[2], "the third overtakes nobody");
        assert!(begun[3] > begun[2], "it runs alone");
    }

    #[test]
    fn the_youngest_sequence_gives_way_and_is_computed_again() {
        let limits = Limits {
            cache: 30,
            preempts: true,
            ..Limits::llama_server(2)
        };
        let found = times(limits, COSTS, &[(0, 10, 8), (1, 8, 8)]);
        let both = 201 + 121 + 171;
        assert_eq!(found[0], (201, both + 5 * 122 + 111));
        // The second sequence makes six tokens before it is preempted. These tokens are computed
        // again with the prompt.
        assert_eq!(found[1], (both, found[0].1 + 241 + 111));
    }
}
