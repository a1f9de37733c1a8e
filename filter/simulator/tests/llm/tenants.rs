//! Two tenants in front of the server, each with clients that always have a request in progress.

use std::collections::VecDeque;

use headgate_simulator::{Answer, Ending, Request, Source};
use serde_json::{Value, json};

use crate::load::{self, SECOND, server};
use crate::mix::SLOTS;

/// The seconds until flows are charged the actual cost of their requests, and the measured seconds
/// after them. The measured time is so long that one prompt makes no difference.
const WARM_UP: u64 = 200;
const MEASURED: u64 = 2_000;
/// The tokens of each tenant's prompts. The second tenant's prompts are a hundred times as long.
const PROMPT: [u32; 2] = [32, 3_200];
const OUTPUT: u32 = 64;
/// The number of clients of each tenant. With so many clients, both tenants always have requests in
/// the queue.
const CLIENTS: [usize; 2] = [120, 30];

/// Clients that send their next request immediately after an answer.
struct Clients {
    due: VecDeque<Request>,
    /// The tokens of each tenant's served requests: prompts, and outputs counted twice.
    tokens: [u64; 2],
}

impl Clients {
    fn new() -> Self {
        let of_tenant = |tenant| (0..CLIENTS[tenant]).map(move |_| request(tenant, 0));
        Self {
            due: (0..CLIENTS.len()).flat_map(of_tenant).collect(),
            tokens: [0; 2],
        }
    }
}

fn request(tenant: usize, at: u64) -> Request {
    Request {
        prompt: PROMPT[tenant],
        output: OUTPUT,
        // The cost is the request's size.
        cost: PROMPT[tenant],
        class: tenant as u8,
        ..Request::new(at, 0, 0)
    }
}

impl Source for Clients {
    fn peek(&self) -> Option<u64> {
        self.due.front().map(|request| request.at)
    }

    fn take(&mut self) -> Option<Request> {
        self.due.pop_front()
    }

    fn answered(&mut self, of: &Request, at: u64, answer: Answer) {
        let tenant = usize::from(of.class);
        if answer.ending == Ending::Served && at >= WARM_UP * SECOND {
            self.tokens[tenant] += u64::from(of.prompt + 2 * of.output);
        }
        self.due.push_back(request(tenant, at + 1));
    }
}

/// Returns the second tenant's part of all tokens.
fn share(tokens: &Value) -> f64 {
    let stage = json!({
        "policy": "default/llm",
        "parallelism": SLOTS,
        "queue": {
            "discipline": {"type": "WFQ", "by": "Class", "tokens": tokens},
            "max_length": 1_000,
            "timeout_us": 600_000_000,
        },
        "measure": "FirstByte",
        "strategy": {"type": "MaxQueueLength"},
        "types": [{"name": "default", "cost": {"size": {"header": "x-tokens"}}}],
        "classes": [{"name": "short", "matches": [{"method": "GET"}]}, {"name": "long"}],
    });
    let mut clients = Clients::new();
    load::run(stage, (WARM_UP, MEASURED), &mut clients, server());
    let [short, long] = clients.tokens;
    long as f64 / (short + long) as f64
}

#[test]
fn each_of_two_tenants_gets_half_of_the_tokens() {
    let by_tokens = share(&json!({"input": 1, "output": 2}));
    assert!((by_tokens - 0.5).abs() < 0.05, "{by_tokens}");
    // If turns are measured in slot time, the tenant with long prompts gets nearly all tokens,
    // because the server reads many tokens in the time in which it writes one.
    let by_time = share(&Value::Null);
    assert!(by_time > 0.9, "{by_time}");
}
