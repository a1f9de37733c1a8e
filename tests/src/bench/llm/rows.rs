//! The protections that `llm` compares, and the settings that are fitted to the server.

use std::time::Duration;

use serde_json::{Value, json};

use super::report::TypeReport;
use super::{OBJECTIVE, SLOTS};
use crate::bench::lab::Protection;
use crate::bench::native_filters::{self, NativeFilter, Protected};
use crate::policy;

/// One configuration of one protection.
pub(super) struct Candidate {
    pub(super) setting: String,
    /// The slots of the server.
    pub(super) slots: usize,
    pub(super) protection: Protection,
}

/// A row of the table.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// One candidate, or several of which the best is chosen.
    pub(super) candidates: Vec<Candidate>,
}

/// Returns Envoy without a filter, in front of a server with this many slots.
pub(super) fn unfiltered(slots: usize) -> Candidate {
    Candidate {
        setting: format!("--parallel {slots}"),
        slots,
        protection: Protection::Native(native_filters::plain()),
    }
}

/// Returns all rows to compare.
pub(super) fn rows(types: &[TypeReport], capacity_rps: f64) -> Vec<Row> {
    let on_envoy = |setting: String, slots, filter| Candidate {
        setting,
        slots,
        protection: Protection::Native(filter),
    };
    let breaker = |connections: usize, pending: usize| {
        let filter = NativeFilter {
            circuit_breakers: Some(json!({"thresholds": [{
                "max_connections": connections,
                "max_pending_requests": pending,
                "max_requests": 1_000,
            }]})),
            ..native_filters::plain()
        };
        on_envoy(
            format!("{connections} connections, {pending} pending"),
            SLOTS,
            filter,
        )
    };
    let protected = |parallelism| Protected {
        parallelism,
        capacity_rps,
        p90: Duration::ZERO,
    };
    let tuned = |parallelism| {
        let filter = native_filters::adaptive_concurrency_tuned(protected(parallelism));
        on_envoy(
            format!("{parallelism} to {}", 2 * parallelism),
            SLOTS,
            filter,
        )
    };
    let policy = |by, p: Option<usize>| {
        let setting = if p.is_some() { "P given" } else { "P found" };
        (setting.to_owned(), headgate(types, by, p))
    };
    let candidate = |name, title, native: bool, (setting, policy): (String, Value)| {
        let protection = Protection::Headgate {
            name,
            title,
            policy,
            native,
        };
        Candidate {
            setting,
            slots: SLOTS,
            protection,
        }
    };
    let on_headgate = |name, title, native, policy| {
        row(name, title, vec![candidate(name, title, native, policy)])
    };
    let with_budget = |name, title, native, floor: bool| {
        let of = |bytes| {
            let (setting, policy) = policy(By::Budget(bytes), None);
            let policy = match floor {
                true => with_floor(policy),
                false => policy,
            };
            candidate(
                name,
                title,
                native,
                (format!("{setting}, {bytes} bytes"), policy),
            )
        };
        row(name, title, BUDGETS.map(of).into())
    };
    vec![
        row("none", "no filter", vec![unfiltered(SLOTS)]),
        row(
            "server",
            "no filter, slots of the server",
            [SLOTS / 2, SLOTS * 2, SLOTS * 4].map(unfiltered).into(),
        ),
        row(
            "breaker",
            "circuit breaker",
            vec![
                breaker(SLOTS, 2),
                breaker(SLOTS, SLOTS),
                breaker(SLOTS * 2, 2),
            ],
        ),
        row(
            "adaptive_concurrency",
            "adaptive_concurrency",
            vec![
                on_envoy(
                    "as documented".to_owned(),
                    SLOTS,
                    native_filters::adaptive_concurrency(),
                ),
                tuned(SLOTS / 2),
                tuned(SLOTS),
            ],
        ),
        on_headgate(
            "native-requests",
            "Headgate by requests, native",
            true,
            policy(By::Requests, None),
        ),
        on_headgate(
            "wasm-p",
            "Headgate, Wasm",
            false,
            policy(By::Tokens, Some(SLOTS)),
        ),
        on_headgate("wasm", "Headgate, Wasm", false, policy(By::Tokens, None)),
        on_headgate(
            "native-p",
            "Headgate, native",
            true,
            policy(By::Tokens, Some(SLOTS)),
        ),
        on_headgate("native", "Headgate, native", true, policy(By::Tokens, None)),
        with_budget("wasm-budget", "Headgate with a budget, Wasm", false, false),
        with_budget(
            "native-budget",
            "Headgate with a budget, native",
            true,
            false,
        ),
        with_budget(
            "native-floor",
            "Headgate with a budget and a floor of 20% for batch, native",
            true,
            true,
        ),
    ]
}

fn row(name: &'static str, title: &'static str, candidates: Vec<Candidate>) -> Row {
    Row {
        name,
        title,
        candidates,
    }
}

/// The budgets to choose from, in bytes of prompts. The largest is one and a half times the mean of
/// the longest type.
const BUDGETS: [usize; 3] = [750, 1_100, 1_650];

/// The type with a floor (`AcceptanceAllowance`), and the share of its requests that policies with
/// a floor admit at least.
const FLOOR: (&str, f64) = ("batch", 0.2);

/// The knowledge of a policy about requests.
#[derive(Clone, Copy)]
enum By {
    /// The types of requests, and the objectives for first tokens.
    Requests,
    /// Additionally the lengths of prompts, and the objectives for the tokens after the first.
    Tokens,
    /// Additionally a budget of this many bytes for the prompts in the server.
    Budget(usize),
}

/// Returns a policy with the types and their objectives, and with P unless `p` is `None`.
fn headgate(types: &[TypeReport], by: By, p: Option<usize>) -> Value {
    let ms = |ms: f64| policy::duration(Duration::from_secs_f64(ms / 1e3));
    let objectives = |mut kind: Value, of: &TypeReport| {
        kind["ttft"] = json!({"p50": ms(of.ttft_ms / 2.0), "p90": ms(of.ttft_ms)});
        if !matches!(by, By::Requests) {
            kind["tpot"] = json!({"p90": ms(of.tpot_ms)});
            kind["cost"] = json!({"size": {"header": "content-length"}});
        }
        kind
    };
    let mut all: Vec<Value> = types
        .iter()
        .map(|of| {
            let header = json!({"name": OBJECTIVE, "value": of.name});
            let kind = json!({"name": of.name, "matches": [{"headers": [header]}]});
            objectives(kind, of)
        })
        .collect();
    let default = |of| objectives(json!({"name": "default"}), of);
    all.extend(types.last().map(default));
    let mut policy = policy::policy(p.unwrap_or(SLOTS), &all);
    if p.is_none() {
        policy = policy::without_parallelism(policy);
    }
    if let By::Budget(bytes) = by {
        let size = json!({"header": "content-length", "otherwise": bytes});
        policy["spec"]["parallelism"]["tokens"] = json!({"budget": bytes, "prompt": size});
    }
    policy
}

fn with_floor(policy: Value) -> Value {
    let (name, share) = FLOOR;
    let mut policy = policy::with_allowance(policy, 0.0);
    let avoidance = &mut policy["spec"]["strategy"]["starvationAvoidance"];
    avoidance["acceptanceAllowance"]["allowances"] = json!({name: share});
    policy
}

#[cfg(test)]
mod tests {
    use super::super::MIX;
    use super::super::tests::assert_valid;
    use super::*;

    #[test]
    fn the_policies_are_valid_and_one_has_a_floor() {
        let types = MIX.map(|kind| TypeReport {
            name: kind.name,
            alone_ttft_ms: 10.0,
            alone_ttft_p99_ms: 10.0,
            busy_ttft_ms: 50.0,
            busy_tpot_ms: 5.0,
            ttft_ms: 100.0,
            tpot_ms: 7.5,
        });
        let mut with_floor = Vec::new();
        for row in rows(&types, 10.0) {
            for candidate in &row.candidates {
                assert_valid(&candidate.protection);
                let policy = candidate.protection.policy();
                let avoidance =
                    policy.map(|policy| &policy["spec"]["strategy"]["starvationAvoidance"]);
                if let Some(avoidance) = avoidance.filter(|avoidance| avoidance.is_object()) {
                    assert_eq!(avoidance["acceptanceAllowance"]["allowances"]["batch"], 0.2);
                    with_floor.push(row.name);
                }
            }
        }
        assert_eq!(with_floor, ["native-floor"; BUDGETS.len()]);
    }
}
