//! Random events under load, of one seed: policies of every kind replace each other, types and
//! workflows come and go, the backend fails in each of its ways, clients leave, the operator and
//! the filter's VM or engine restart. The bugs that other tests miss lie between two such events.
//! Afterwards nothing may be left of them: every request was answered, no slot is taken, no request
//! is queued, and the limit of the last policy holds.
//!
//! `HEADGATE_CHURN_SEED` sets the seed, `HEADGATE_CHURN_EVENTS` the number of events.

use std::env;
use std::time::Duration;

use anyhow::{Context, Result};
use headgate_tests::backend::{BackendConfig, Fault, FaultKind, ServiceType};
use headgate_tests::load::{self, LoadSpec, Protocol, RequestType, Running};
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use headgate_tests::{headgate, http, policy};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::faults::assert_enforced;

/// The events of a run in CI.
const EVENTS: u64 = 40;
/// The slots of the last policy.
const SLOTS: usize = 8;
/// The longest load. It is stopped after the last event.
const LONGEST: Duration = Duration::from_secs(30 * 60);

fn variable(name: &str, default: u64) -> Result<u64> {
    match env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text}")),
        Err(_) => Ok(default),
    }
}

/// Returns a policy with random values in most of its fields.
fn any_policy(rng: &mut SmallRng) -> Value {
    let slots = rng.random_range(1..=24);
    let mut types = Vec::new();
    for (name, slo) in [("fast", ["20ms", "80ms"]), ("slow", ["100ms", "400ms"])] {
        if rng.random_bool(0.7) {
            let matches = json!([{"path": {"type": "PathPrefix", "value": format!("/{name}")}}]);
            let value = rng.random_range(1..=20);
            let [p50, p90] = slo;
            types.push(json!({
                "name": name, "matches": matches, "slo": {"p50": p50, "p90": p90}, "value": value,
            }));
        }
    }
    types.push(json!({"name": "default", "slo": {"p50": "50ms", "p90": "200ms"}}));
    let mut policy = policy::policy(slots, &types);
    if rng.random_bool(0.5) {
        policy = policy::without_parallelism(policy);
    }
    policy = match rng.random_range(0..8) {
        0 => policy::with_allowance(policy, 0.2),
        1 => policy::with_helping(policy, 0.5),
        2 => policy::with_backlog_control(policy, Duration::from_millis(100)),
        3 => policy::with_response_time_controller(policy),
        kind => {
            let kinds = [
                "MaxQueueLength",
                "AcceptFraction",
                "MaxQueueWait",
                "Bouncer",
            ];
            let mut strategy = json!({"type": kinds[kind - 4]});
            if kinds[kind - 4] == "MaxQueueWait" {
                strategy["maxQueueWait"] = json!({"limit": "50ms"});
            }
            policy["spec"]["strategy"] = strategy;
            policy
        }
    };
    let spec = &mut policy["spec"];
    let length = rng.random_range(0..200);
    let discipline = ["FIFO", "Slack", "Priority", "DRR", "WFQ"].choose(rng);
    spec["queue"] = json!({"maxLength": length, "timeout": "2s", "discipline": discipline});
    if discipline == Some(&"Priority") || rng.random_bool(0.5) {
        let gold = json!([{"headers": [{"name": "x-plan", "value": "gold"}]}]);
        spec["classes"] = json!([{"name": "gold", "matches": gold}, {"name": "others"}]);
    }
    if rng.random_bool(0.3) {
        spec["measure"] = json!("FirstByte");
    }
    if rng.random_bool(0.2) {
        spec["mode"] = json!("DryRun");
    }
    if rng.random_bool(0.3) {
        spec["workflows"] = json!({
            "edge": rng.random_bool(0.5),
            "identifyBy": [{"type": "Header", "header": {"name": "x-tenant"}}],
        });
    }
    policy
}

/// Does something random to the system. Returns what it did.
fn disturb(rig: &mut Rig, rng: &mut SmallRng) -> Result<String> {
    let paths = ["/", "/fast", "/slow", "/upload"];
    let kinds = [
        FaultKind::Reset,
        FaultKind::Hang,
        FaultKind::Status,
        FaultKind::Slow,
    ];
    Ok(match rng.random_range(0..16) {
        0..6 => {
            let policy = any_policy(rng);
            rig.write_policy(&policy)?;
            format!("policy {policy}")
        }
        6..10 => {
            let path = paths.choose(rng).context("no path")?;
            let kind = kinds.choose(rng).context("no kind")?;
            let mut fault = Fault::new(*kind, path, rng.random_range(1..=60));
            fault.delay_ms = rng.random_range(0..500);
            rig.backend.inject(fault.clone());
            format!("{fault:?}")
        }
        10 => {
            rig.backend.clear_faults();
            format!("{} released", rig.backend.release())
        }
        11 => {
            let workers = rng.random_range(1..=16);
            rig.backend.set_workers(workers);
            format!("{workers} workers")
        }
        12 => {
            rig.restart_backend()?;
            "the backend restarts".to_owned()
        }
        13 => {
            rig.restart_headgate()?;
            "the operator restarts".to_owned()
        }
        14 => {
            // It may be deleted already.
            let _ = rig.delete_policy();
            let policy = policy::queue_only(SLOTS, 100);
            if rng.random_bool(0.5) {
                rig.write_policy(&policy)?;
            }
            "the policy is deleted".to_owned()
        }
        _ => {
            let hooks = ["request", "response", "scheduled"];
            let hook = hooks.choose(rng).context("no hook")?;
            // Envoy fails the request that trapped, with a 503 or by closing the connection.
            let _ = http::get_with(rig.addr(), "/", &[("x-headgate-trap", hook)]);
            format!("a trap on {hook}")
        }
    })
}

/// Starts a load of all kinds of requests, and of clients that leave.
fn start_load(rig: &Rig, protocol: Protocol, rate: f64) -> Result<Running> {
    let mut upload = RequestType::get("upload", "/upload");
    (upload.method, upload.body) = ("POST".to_owned(), "x".repeat(4_096));
    let mut impatient = RequestType::get("impatient", "/slow");
    impatient.abort_after = Some(Duration::from_millis(20));
    let mut retrying = RequestType::get("retrying", "/fast").header("x-tenant", "blue");
    retrying.retries = 2;
    let kinds = vec![
        RequestType::get("fast", "/fast").header("x-plan", "gold"),
        RequestType::get("slow", "/slow").header("x-tenant", "green"),
        retrying,
        upload,
        impatient,
    ];
    let mut spec = LoadSpec::new(rig.addr(), kinds, rate, LONGEST);
    (spec.protocol, spec.connections) = (protocol, 16);
    load::start(spec)
}

fn answered(load: &Running) -> u64 {
    load.snapshot().total.status.values().sum()
}

#[test]
fn random_events_leave_no_slot_taken_and_no_request_queued() -> Result<()> {
    let seed = variable("HEADGATE_CHURN_SEED", 1)?;
    let events = variable("HEADGATE_CHURN_EVENTS", EVENTS)?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let types = vec![
        ServiceType::constant("/", Duration::from_millis(4)),
        ServiceType::constant("/slow", Duration::from_millis(30)),
    ];
    let name = match headgate::is_native() {
        true => "libheadgate-trap.so",
        false => "headgate-trap.wasm",
    };
    let mut rig = Rig::builder(
        BackendConfig::new(SLOTS, types),
        policy::queue_only(SLOTS, 100),
    )
    .module(headgate::variant_path(name))
    .concurrency(3)
    .change(|bootstrap| {
        // The end of requests that hang, and of those of a VM that has trapped.
        bootstrap.routes()?[0]["route"]["timeout"] = json!("1s");
        bootstrap.manager()?["stream_idle_timeout"] = json!("3s");
        Ok(())
    })
    .start()?;
    let loads = [
        start_load(&rig, Protocol::Http1, 150.0)?,
        start_load(&rig, Protocol::Http2, 150.0)?,
    ];
    let mut past = Vec::new();
    for event in 1..=events {
        let before: Vec<u64> = loads.iter().map(answered).collect();
        let more = rng.random_range(5..80);
        past.push(format!("{event}: {}", disturb(&mut rig, &mut rng)?));
        until("answers", || {
            let now: Vec<u64> = loads.iter().map(answered).collect();
            match now
                .iter()
                .zip(&before)
                .all(|(now, before)| now >= &(before + more))
            {
                true => Ok(()),
                false => Err(format!("{before:?}, {now:?}; seed {seed}, {past:#?}")),
            }
        })?;
    }
    rig.backend.clear_faults();
    rig.backend.release();
    rig.backend.set_workers(SLOTS);
    loads.iter().for_each(Running::stop);
    for load in loads {
        let total = load.wait()?.total;
        assert_eq!(
            total.unanswered, 0,
            "{:?}; seed {seed}, {past:#?}",
            total.status
        );
        let known = [200, 429, 500, 503, 504];
        assert!(
            total.status.keys().all(|s| known.contains(s)),
            "{:?}",
            total.status
        );
    }
    assert!(rig.envoy.is_running());
    let _ = rig.delete_policy();
    rig.write_policy(&policy::queue_only(SLOTS, 100))?;
    rig.wait_for_stat("slots", SLOTS as u64)
        .with_context(|| format!("{seed}: {past:#?}"))?;
    rig.wait_until_idle()
        .with_context(|| format!("seed {seed}, {past:#?}"))?;
    assert_enforced(&rig, SLOTS).with_context(|| format!("seed {seed}, {past:#?}"))
}
