//! Tests of a policy without `parallelism`, for which Headgate finds the concurrency of the backend
//! and follows its changes. Also tests a token budget beside the slots.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, Fault, FaultKind};
use headgate_tests::http::Pending;
use headgate_tests::load::{self, LoadSpec};
use headgate_tests::rig::Rig;
use headgate_tests::wait::{until, until_within};
use headgate_tests::{mix, policy};
use serde_json::json;

const WORKERS: usize = 12;
const SCALE: f64 = 4.0;
/// The longest time of each part of a test. It is many times the needed time, because a slow
/// machine must not fail the test.
const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until the number of slots is in this range.
fn wait_for_slots(rig: &Rig, expected: RangeInclusive<u64>) -> Result<()> {
    until_within(PATIENCE, &format!("slots in {expected:?}"), || {
        let slots = rig.policy_stat("slots").map_err(|e| e.to_string())?;
        match expected.contains(&slots) {
            true => Ok(()),
            false => Err(format!("{slots}")),
        }
    })
}

#[test]
fn slots_follow_the_workers_of_the_backend() -> Result<()> {
    let mix = mix::bouncer(SCALE);
    let policy = policy::without_parallelism(policy::for_mix(WORKERS, &mix));
    let rig = Rig::builder(BackendConfig::for_mix(WORKERS, &mix), policy).start()?;
    let rate = 1.5 * mix::capacity_rps(&mix, WORKERS);
    let load = load::start(LoadSpec::for_mix(rig.addr(), &mix, rate, 5 * PATIENCE))?;
    let (all, half) = (WORKERS as u64, WORKERS as u64 / 2);
    wait_for_slots(&rig, all - 2..=all + 3)?;
    rig.backend.set_workers(WORKERS / 2);
    wait_for_slots(&rig, half - 1..=half + 2)?;
    rig.backend.set_workers(WORKERS);
    wait_for_slots(&rig, all - 2..=all + 3)?;
    load.stop();
    Ok(())
}

/// Sends ten requests that need `tokens` each and hang. Waits until `at_once` of them are in the
/// backend and hold tokens, and the others wait.
fn hang(rig: &Rig, tokens: u64, at_once: usize) -> Result<Vec<Pending>> {
    rig.backend.inject(Fault::new(FaultKind::Hang, "/held", 10));
    let tokens_each = tokens.to_string();
    let requests = (0..10).map(|_| rig.request("/held", &[("x-tokens", tokens_each.as_str())]));
    let requests = requests.collect::<Result<Vec<Pending>>>()?;
    until(&format!("{at_once} requests at once"), || {
        match rig.backend.stats().busy {
            busy if busy == at_once => Ok(()),
            busy => Err(format!("{busy}; {:?}", rig.policy_stats())),
        }
    })?;
    rig.wait_for_stat("queue_length", 10 - at_once as u64)?;
    rig.wait_for_stat("tokens_in_use", (tokens * at_once as u64).min(100))?;
    assert_eq!(rig.backend.stats().busy, at_once);
    // The other requests won't hang.
    rig.backend.clear_faults();
    Ok(requests)
}

#[test]
fn heavy_requests_run_fewer_at_once_and_give_their_tokens_back() -> Result<()> {
    let mut policy = policy::queue_only(8, 20);
    policy["spec"]["parallelism"]["tokens"] = json!({
        "budget": 100,
        "prompt": {"header": "x-tokens", "otherwise": 10},
    });
    let backend = BackendConfig::constant(1_000, Duration::from_millis(1));
    let rig = Rig::builder(backend, policy.clone()).start()?;
    // Eight requests fill the slots, three of 30 tokens fill the budget, and one needs more tokens
    // than the budget.
    for (tokens, at_once) in [(10, 8), (30, 3), (1_000, 1)] {
        let requests = hang(&rig, tokens, at_once)?;
        rig.backend.release();
        for request in requests {
            assert_eq!(request.answer()?.status, 200);
        }
        rig.wait_for_stat("tokens_in_use", 0)?;
        rig.wait_until_idle()?;
    }
    rig.wait_for_stat("tokens", 100)?;
    // Clients leave while their requests are served or wait.
    for request in hang(&rig, 30, 3)? {
        request.hang_up();
    }
    rig.wait_for_stat("tokens_in_use", 0)?;
    rig.wait_until_idle()?;
    // After an edit of the budget, waiting requests start beside the requests that hold tokens.
    let requests = hang(&rig, 30, 3)?;
    rig.backend.inject(Fault::new(FaultKind::Hang, "/held", 5));
    policy["spec"]["parallelism"]["tokens"]["budget"] = json!(300);
    rig.edit_policy(&policy)?;
    rig.wait_for_stat("tokens_in_use", 240)?;
    rig.wait_for_stat("slots_in_use", 8)?;
    until("eight requests at once", || {
        match rig.backend.stats().busy {
            8 => Ok(()),
            busy => Err(busy.to_string()),
        }
    })?;
    rig.backend.release();
    for request in requests {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_for_stat("tokens_in_use", 0)?;
    rig.wait_until_idle()
}
