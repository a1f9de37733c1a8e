//! A budget of tokens in front of a server whose cache is full before its slots are.

use headgate_core::rng::Rng;
use headgate_simulator::{Answer, Ending, Request, Source};
use serde_json::json;

use crate::load::{self, SECOND, gap};
use crate::server::{Batching, Costs, Limits};

const WARM_UP: u64 = 20;
const MEASURED: u64 = 200;
/// Slots that would be enough for all requests.
const SLOTS: u32 = 64;
/// Tokens of the server's cache.
const CACHE: u32 = 8_192;
/// Tokens of the prompts; one request in five has a long one.
const PROMPT: [u32; 2] = [128, 2_048];
const OUTPUT: u32 = 64;
const LONG: f64 = 0.2;
/// The objective for the first token, ms.
const OBJECTIVE: u64 = 3_000;

/// Requests with Poisson arrivals.
struct Open {
    rng: Rng,
    per_second: f64,
    next: Request,
    /// By prompt: requests that were sent, answered, and of these with a first token in time.
    counts: [[u32; 3]; 2],
    /// The time of the first token, by client.
    begun: Vec<u64>,
}

impl Open {
    fn new(per_second: f64) -> Self {
        let mut open = Self {
            rng: Rng::new(1),
            per_second,
            next: Request::new(0, 0, 0),
            counts: [[0; 3]; 2],
            begun: Vec::new(),
        };
        open.draw();
        open
    }

    fn draw(&mut self) {
        let at = self.next.at + gap(&mut self.rng, self.per_second);
        let prompt = PROMPT[usize::from(self.rng.chance(LONG))];
        self.next = Request {
            client: self.begun.len() as u32,
            prompt,
            output: OUTPUT,
            // Its size.
            cost: prompt,
            ..Request::new(at, 0, 0)
        };
        self.begun.push(0);
    }

    fn count(&mut self, of: &Request, what: usize) {
        if of.at >= WARM_UP * SECOND {
            self.counts[usize::from(of.prompt == PROMPT[1])][what] += 1;
        }
    }
}

impl Source for Open {
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
        self.begun[request.client as usize] = at;
    }

    fn answered(&mut self, of: &Request, _at: u64, answer: Answer) {
        if answer.ending != Ending::Served {
            return;
        }
        self.count(of, 1);
        let took = self.begun[of.client as usize] - of.at;
        if took <= OBJECTIVE * 1_000_000 {
            self.count(of, 2);
        }
    }
}

/// Returns the counts at this load, requests/s.
fn run(per_second: f64) -> [[u32; 3]; 2] {
    let stage = json!({
        "policy": "default/llm",
        "parallelism": SLOTS,
        "tokens": {
            "budget": f64::from(CACHE),
            "prompt": {"header": "x-tokens", "otherwise": 1},
            "output": {"otherwise": OUTPUT},
        },
        "queue": {"max_length": 1_000, "timeout_us": 60_000_000},
        "measure": "FirstByte",
        "strategy": {"type": "Bouncer", "logic": "Any"},
        "types": [{
            "name": "default",
            "slo": [{"percentile": 90, "objective_us": OBJECTIVE * 1_000}],
            "cost": {"size": {"header": "x-tokens"}},
        }],
    });
    let mut source = Open::new(per_second);
    let limits = Limits {
        cache: CACHE.into(),
        ..Limits::llama_server(SLOTS)
    };
    let server = Batching::new(limits, Costs::LLAMA_SERVER);
    load::run(stage, (WARM_UP, MEASURED), &mut source, server);
    source.counts
}

/// At twice what the cache carries. By the work ahead alone, 85% of the long prompts that are
/// admitted are in time, and 89% of the others.
#[test]
fn admitted_prompts_get_their_first_tokens_in_time() {
    let counts = run(8.0);
    for [sent, answered, in_time] in counts {
        assert!(answered > sent / 8, "{counts:?}");
        assert!(20 * in_time > 19 * answered, "{counts:?}");
    }
}
