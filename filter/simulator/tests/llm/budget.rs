//! A budget of tokens in front of a server whose cache is full before its slots are.

use headgate_simulator::{Answer, Ending, Request, Source};
use headgate_strategies::rng::Rng;
use serde_json::{Value, json};

use crate::load::{self, SECOND, gap};
use crate::mix;
use crate::server::{Batching, Costs, Limits};

const WARM_UP: u64 = 20;
const MEASURED: u64 = 200;
/// Slots that would be enough for all requests.
const SLOTS: u32 = 64;
/// Tokens of the server's cache.
const CACHE: u32 = 8_192;
/// The objective for the first token, ms.
const OBJECTIVE: u64 = 3_000;

/// By group of requests: the numbers sent, answered, and answered in time.
type Counts = [[u32; 3]; 2];

/// Requests with Poisson arrivals.
struct Open<F> {
    rng: Rng,
    per_second: f64,
    /// Draws a request that arrives at a time, ns, and its group.
    draw: F,
    /// Whether the objective is about the first token rather than the last.
    by_first: bool,
    objective_ms: u64,
    next: Request,
    counts: Counts,
    /// The group and the time of the first token, by client.
    sent: Vec<(usize, u64)>,
}

impl<F: FnMut(&mut Rng, u64) -> (usize, Request)> Open<F> {
    fn new(per_second: f64, (by_first, objective_ms): (bool, u64), draw: F) -> Self {
        let mut open = Self {
            rng: Rng::new(1),
            per_second,
            draw,
            by_first,
            objective_ms,
            next: Request::new(0, 0, 0),
            counts: Counts::default(),
            sent: Vec::new(),
        };
        open.draw();
        open
    }

    fn draw(&mut self) {
        let at = self.next.at + gap(&mut self.rng, self.per_second);
        let (group, next) = (self.draw)(&mut self.rng, at);
        let client = self.sent.len() as u32;
        self.next = Request { at, client, ..next };
        self.sent.push((group, 0));
    }

    fn count(&mut self, of: &Request, what: usize) {
        if of.at >= WARM_UP * SECOND {
            self.counts[self.sent[of.client as usize].0][what] += 1;
        }
    }
}

impl<F: FnMut(&mut Rng, u64) -> (usize, Request)> Source for Open<F> {
    fn peek(&self) -> Option<u64> {
        Some(self.next.at)
    }

    fn take(&mut self) -> Option<Request> {
        let request = self.next;
        self.draw();
        self.count(&request, 0);
        Some(request)
    }

    fn begun(&mut self, request: &Request, at: u64) {
        self.sent[request.client as usize].1 = at;
    }

    fn answered(&mut self, of: &Request, at: u64, answer: Answer) {
        if answer.ending != Ending::Served {
            return;
        }
        self.count(of, 1);
        let end = match self.by_first {
            true => self.sent[of.client as usize].1,
            false => at,
        };
        if end - of.at <= self.objective_ms * 1_000_000 {
            self.count(of, 2);
        }
    }
}

/// Returns a policy with this budget.
fn stage(tokens: &Value) -> Value {
    json!({
        "policy": "default/llm",
        "parallelism": SLOTS,
        "tokens": tokens,
        "queue": {"max_length": 1_000, "timeout_us": 60_000_000},
        "measure": "FirstByte",
        "strategy": {"type": "Bouncer", "logic": "Any"},
        "types": [{
            "name": "default",
            "slo": [{"percentile": 90, "objective_us": OBJECTIVE * 1_000}],
            "cost": {"size": {"header": "x-tokens"}},
        }],
    })
}

/// Prompts have 128 tokens in four requests of five and 2,048 in the fifth. Outputs have 64 tokens.
/// The load is twice what the cache carries. If only the work ahead is considered, 85% of the
/// admitted long prompts are in time, and 89% of the short prompts.
#[test]
fn admitted_prompts_get_their_first_tokens_in_time() {
    let draw = |rng: &mut Rng, at| {
        let is_long = rng.chance(0.2);
        let prompt = if is_long { 2_048 } else { 128 };
        let request = Request {
            prompt,
            output: 64,
            // The cost is the request's size.
            cost: prompt,
            ..Request::new(at, 0, 0)
        };
        (usize::from(is_long), request)
    };
    let mut source = Open::new(8.0, (true, OBJECTIVE), draw);
    let limits = Limits {
        cache: CACHE.into(),
        ..Limits::llama_server(SLOTS)
    };
    let stage = stage(&json!({
        "budget": f64::from(CACHE),
        "prompt": {"header": "x-tokens", "otherwise": 1},
        "output": {"otherwise": 64},
    }));
    let server = Batching::new(limits, Costs::LLAMA_SERVER);
    load::run(stage, (WARM_UP, MEASURED), &mut source, server);
    for [sent, answered, in_time] in source.counts {
        assert!(answered > sent / 8, "{:?}", source.counts);
        assert!(20 * in_time > 19 * answered, "{:?}", source.counts);
    }
}

/// The tokens that a request takes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Takes {
    /// The tokens of the request's prompt and of its maximum output.
    Most,
    /// The tokens of the request's prompt and of its actual output, which no proxy knows.
    Exact,
    /// The tokens of the request's prompt and of the usual output of its type.
    Usual,
}

const PROMPT: u32 = 128;
const MOST_OUTPUT: u32 = 512;

/// Runs requests that may have up to [`MOST_OUTPUT`] tokens of output and have 64 on average. The
/// server needs about the same time for few sequences as for many, as a GPU does. From the middle
/// of the measured time, outputs are `longer` times as long.
fn outputs(takes: Takes, longer: f64) -> Counts {
    let draw = |rng: &mut Rng, at: u64| {
        let longer = match at < (WARM_UP + MEASURED / 2) * SECOND {
            true => 1.0,
            false => longer,
        };
        let output = (-64.0 * longer * (1.0 - rng.next_f64()).ln()).ceil();
        let output = (output as u32).clamp(1, MOST_OUTPUT);
        let taken = match takes {
            Takes::Most => PROMPT + MOST_OUTPUT,
            Takes::Exact => PROMPT + output,
            Takes::Usual => PROMPT,
        };
        let request = Request {
            prompt: PROMPT,
            output,
            most_output: MOST_OUTPUT,
            cost: taken,
            ..Request::new(at, 0, 0)
        };
        (usize::from(longer > 1.0), request)
    };
    let mut source = Open::new(40.0, (true, OBJECTIVE), draw);
    let mut tokens = json!({
        "budget": f64::from(CACHE),
        "prompt": {"header": "x-tokens", "otherwise": 1},
    });
    if takes == Takes::Usual {
        tokens["output"] = json!({"header": "x-max-tokens", "otherwise": MOST_OUTPUT});
    }
    let mut stage = stage(&tokens);
    stage["types"][0] = json!({"name": "default", "slo": [
        {"percentile": 50, "objective_us": OBJECTIVE * 500},
        {"percentile": 90, "objective_us": OBJECTIVE * 1_000},
    ]});
    let limits = Limits {
        cache: CACHE.into(),
        preempts: true,
        micro_batch: 2_048,
        ..Limits::llama_server(SLOTS)
    };
    let costs = Costs {
        micro_batch: 12_000_000.0,
        token: 50_000.0,
        prompt_attention: 0.0,
        answer_attention: 0.0,
        output: 0.0,
        single: 12_050_000.0,
    };
    load::run(
        stage,
        (WARM_UP, MEASURED),
        &mut source,
        Batching::new(limits, costs),
    );
    source.counts
}

#[test]
fn a_budget_carries_more_requests_if_each_takes_the_usual_output() {
    let [most, exact, usual] =
        [Takes::Most, Takes::Exact, Takes::Usual].map(|takes| outputs(takes, 1.0)[0]);
    println!("sent, answered, in time: {most:?} by the most, {exact:?} exact, {usual:?} usual");
    assert!(10 * usual[2] > 15 * most[2], "{usual:?}, {most:?}");
    assert!(10 * usual[2] > 9 * usual[1], "{usual:?}");
}

/// Outputs that suddenly are four times as long grow beyond their reservations. The budget follows
/// the actual outputs, so the server preempts few sequences. Nearly as many requests are in time as
/// if each request took its maximum.
#[test]
fn outputs_that_grow_longer_take_their_tokens() {
    let [most, exact, usual] =
        [Takes::Most, Takes::Exact, Takes::Usual].map(|takes| outputs(takes, 4.0)[1]);
    println!("sent, answered, in time: {most:?} by the most, {exact:?} exact, {usual:?} usual");
    assert!(10 * usual[2] > 9 * most[2], "{usual:?}, {most:?}");
}

/// The source of the estimate of a whole answer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Judged {
    /// The type.
    ByType,
    /// The prompt.
    ByPrompt,
    /// The prompt and the maximum output, with a budget that always suffices.
    ByOutput,
    /// A size that includes the output.
    Exactly,
}

/// Runs requests with short and long outputs, each as long as its maximum, at twice the capacity.
fn whole_answers(judged: Judged) -> Counts {
    const OUTPUTS: [u32; 2] = [16, 256];
    const MS: u64 = 5_000;
    let draw = |rng: &mut Rng, at| {
        let is_long = rng.chance(0.3);
        let output = OUTPUTS[usize::from(is_long)];
        let prompt = 64 << (3.0 * rng.next_f64()) as u32;
        let more = if judged == Judged::Exactly { 40 } else { 0 };
        let request = Request {
            prompt,
            output,
            most_output: output,
            cost: prompt + more * output,
            ..Request::new(at, 0, 0)
        };
        (usize::from(is_long), request)
    };
    let mut source = Open::new(24.0, (false, MS), draw);
    let mut stage = stage(&Value::Null);
    stage["measure"] = json!("LastByte");
    stage["parallelism"] = json!(mix::SLOTS);
    stage["types"][0]["slo"] = json!([
        {"percentile": 50, "objective_us": MS * 500},
        {"percentile": 90, "objective_us": MS * 1_000},
    ]);
    if judged == Judged::ByType {
        stage["types"][0]["cost"] = Value::Null;
    }
    if judged == Judged::ByOutput {
        stage["tokens"] = json!({
            "budget": 1e9,
            "prompt": {"header": "x-tokens", "otherwise": 1},
            "output": {"header": "x-max-tokens", "otherwise": 1},
        });
    }
    load::run(stage, (WARM_UP, MEASURED), &mut source, load::server());
    source.counts
}

#[test]
fn whole_answers_are_judged_by_their_most_outputs() {
    let all = [
        Judged::ByType,
        Judged::ByPrompt,
        Judged::ByOutput,
        Judged::Exactly,
    ];
    let counts = all.map(|judged| (judged, whole_answers(judged)));
    println!("sent, answered, in time, of short and of long outputs: {counts:?}");
    let in_time = counts.map(|(_, [short, long])| short[2] + long[2]);
    assert!(4 * in_time[2] > 5 * in_time[1], "{in_time:?}");
}
