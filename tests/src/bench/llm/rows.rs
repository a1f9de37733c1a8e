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

/// Returns all rows to compare.
pub(super) fn rows(types: &[TypeReport], capacity_rps: f64) -> Vec<Row> {
    let on_envoy = |setting: String, slots, filter| Candidate {
        setting,
        slots,
        protection: Protection::Native(filter),
    };
    let plain = |slots| {
        on_envoy(
            format!("--parallel {slots}"),
            slots,
            native_filters::plain(),
        )
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
    let policies = [("P given", Some(SLOTS)), ("P found", None)];
    let policies = policies.map(|(setting, p)| (setting.to_owned(), headgate(types, p)));
    let [given, found] = policies;
    let on_headgate = |name, title, native: bool, (setting, policy): &(String, Value)| {
        let policy = policy.clone();
        let protection = if native {
            Protection::NativeHeadgate {
                name,
                title,
                policy,
            }
        } else {
            Protection::Headgate {
                name,
                title,
                policy,
            }
        };
        let candidate = Candidate {
            setting: setting.clone(),
            slots: SLOTS,
            protection,
        };
        row(name, title, vec![candidate])
    };
    vec![
        row("none", "no filter", vec![plain(SLOTS)]),
        row(
            "server",
            "no filter, slots of the server",
            vec![plain(SLOTS / 2), plain(SLOTS * 2), plain(SLOTS * 4)],
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
        on_headgate("wasm-p", "Headgate, Wasm", false, &given),
        on_headgate("wasm", "Headgate, Wasm", false, &found),
        on_headgate("native-p", "Headgate, native", true, &given),
        on_headgate("native", "Headgate, native", true, &found),
    ]
}

fn row(name: &'static str, title: &'static str, candidates: Vec<Candidate>) -> Row {
    Row {
        name,
        title,
        candidates,
    }
}

/// Returns a policy with the types, their objectives for the first token, and P if it is given. It
/// sets no objectives for the time per output token (`tpot`).
fn headgate(types: &[TypeReport], p: Option<usize>) -> Value {
    let slo = |kind: &TypeReport| {
        let p90 = Duration::from_secs_f64(kind.ttft_ms / 1e3);
        json!({"p50": policy::duration(p90 / 2), "p90": policy::duration(p90)})
    };
    let mut all: Vec<Value> = types
        .iter()
        .map(|kind| {
            json!({
                "name": kind.name,
                "matches": [{"headers": [{"name": OBJECTIVE, "value": kind.name}]}],
                "slo": slo(kind),
            })
        })
        .collect();
    all.extend(
        types
            .last()
            .map(|kind| json!({"name": "default", "slo": slo(kind)})),
    );
    let mut policy = policy::policy(p.unwrap_or(SLOTS), &all);
    policy["spec"]["measure"] = json!("FirstByte");
    if p.is_none() {
        policy = policy::without_parallelism(policy);
    }
    policy
}
