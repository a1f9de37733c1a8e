//! Tests of every admission strategy in Envoy with two workers.
//!
//! Each test fails if another strategy is in force, by the reason in refusals and by the state of
//! the queue and the slots at the first refusal. Requests that don't end hold the slots meanwhile,
//! so the tests don't depend on the speed of the machine.

mod accept_fraction;
mod backlog_control;
mod bouncer;
mod queue_limits;
mod response_time_controller;
mod service_times;

use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::http::{Answer, Pending};
use headgate_tests::policy;
use headgate_tests::rig::{Rig, Waiter};
use serde_json::{Value, json};

/// The name of a type, which is also its path, its service time, ms, and its objectives, ms.
struct Kind(&'static str, u64, &'static [(&'static str, u64)]);

/// Returns a policy for `kinds`, each on its own path. The objectives of `default` are those of the
/// first kind.
fn policy(slots: usize, kinds: &[Kind], strategy: &Value) -> Value {
    let slo = |objectives: &[(&str, u64)]| -> Value {
        let objective = |&(name, ms): &(&str, u64)| {
            (
                name.to_owned(),
                json!(policy::duration(Duration::from_millis(ms))),
            )
        };
        objectives.iter().map(objective).collect()
    };
    let mut types: Vec<Value> = kinds
        .iter()
        .map(|Kind(path, _, objectives)| {
            let name = path.trim_start_matches('/');
            let path = json!({"type": "PathPrefix", "value": path});
            json!({"name": name, "matches": [{"path": path}], "slo": slo(objectives)})
        })
        .collect();
    types.push(json!({"name": "default", "slo": slo(kinds[0].2)}));
    let mut policy = policy::policy(slots, &types);
    policy["spec"]["strategy"] = strategy.clone();
    policy["spec"]["queue"] = json!({"maxLength": 100, "timeout": "600s"});
    policy
}

/// Returns `settings` with the fields of `changes`.
fn changed(mut settings: Value, changes: &Value) -> Value {
    for (field, value) in changes.as_object().into_iter().flatten() {
        settings[field] = value.clone();
    }
    settings
}

fn start(kinds: &[Kind], policy: Value) -> Result<Rig> {
    let mut services = vec![ServiceType::constant("/held", Duration::ZERO)];
    services.extend(
        kinds
            .iter()
            .map(|Kind(path, ms, _)| ServiceType::constant(path, Duration::from_millis(*ms))),
    );
    Rig::builder(BackendConfig::new(1_000, services), policy)
        .concurrency(2)
        .balanced()
        .start()
}

/// Queues requests for `path` until `length` requests wait.
fn fill(rig: &Rig, waiting: &mut Vec<Pending>, path: &'static str, length: usize) -> Result<()> {
    while waiting.len() < length {
        waiting.push(rig.admit(&Waiter::at(path))?);
    }
    rig.wait_for_stat("queue_length", length as u64)
}

/// Returns the reason why a request for `path` isn't admitted to the queue on either worker, or
/// `None` if it is admitted.
fn refused(rig: &Rig, path: &'static str) -> Result<Option<String>> {
    rig.try_queue_on_both(&Waiter::at(path))
}

fn some(reason: &str) -> Option<String> {
    Some(reason.to_owned())
}

/// Ends all requests that wait or hold slots.
fn finish(rig: &Rig, held: Vec<Pending>, waiting: Vec<Pending>) -> Result<()> {
    waiting.into_iter().for_each(Pending::hang_up);
    rig.wait_for_stat("queue_length", 0)?;
    rig.backend.release();
    for pending in held {
        assert_eq!(pending.answer()?.status, 200);
    }
    rig.wait_until_idle()
}

/// The types `probe` and `filler`. `probe` takes 100 ms, and its objectives are 1 s at the median
/// and 2 s at the 90th percentile. `filler` takes 200 ms, and its objectives are never missed.
const PROBE_AND_FILLER: [Kind; 2] = [
    Kind("/probe", 100, &[("p50", 1_000), ("p90", 2_000)]),
    Kind("/filler", 200, &[("p50", 1_000_000), ("p90", 2_000_000)]),
];

/// Ends the last request in the queue.
fn leave(rig: &Rig, waiting: &mut Vec<Pending>) -> Result<()> {
    if let Some(pending) = waiting.pop() {
        pending.hang_up();
    }
    rig.wait_for_stat("queue_length", waiting.len() as u64)
}

/// A type whose requests never wait, because each admitted request is served at once.
const ALONE: [Kind; 1] = [Kind("/work", 1, &[("p50", 1), ("p90", 1)])];

/// Service times, µs. The slow one is far above the target, whatever the machine adds to a quick
/// response.
const SLOW: &str = "800000";
const QUICK: &str = "0";

/// Sends `count` requests at once and returns their responses.
fn at_once(rig: &Rig, class: &str, service_us: &str, count: usize) -> Result<Vec<Answer>> {
    let headers = [("x-class", class), ("x-backend-service-us", service_us)];
    let pending = (0..count)
        .map(|_| rig.request("/work", &headers))
        .collect::<Result<Vec<_>>>()?;
    pending.into_iter().map(Pending::answer).collect()
}
