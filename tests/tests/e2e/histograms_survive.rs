//! Tests that learned processing times survive an edit of the policy and an upgrade of the filter's
//! code.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::BackendConfig;
use headgate_tests::load::{self, LoadSpec, RequestType};
use headgate_tests::rig::Rig;
use headgate_tests::wait::{until, wait_until};
use headgate_tests::{file, headgate, policy};
use serde_json::{Value, json};

/// Returns a backend whose requests take 40 ms.
fn backend() -> BackendConfig {
    BackendConfig::constant(100, Duration::from_millis(40))
}

/// Returns a policy for the strategy Bouncer with this many slots, and this objective for the
/// median of slow requests.
fn policy(slots: usize, p50: &str) -> Value {
    let matches = json!([{"path": {"type": "PathPrefix", "value": "/slow"}}]);
    let slow = json!({"name": "slow", "matches": matches, "slo": {"p50": p50, "p90": "10s"}});
    let default = json!({"name": "default", "slo": {"p50": "5s", "p90": "10s"}});
    let mut policy = policy::policy(slots, &[slow, default]);
    // With shedding by value, the first slow requests would be admitted from the error budget of
    // their objective.
    policy["spec"]["strategy"] = json!({"type": "Bouncer", "bouncer": {"shedByValue": false}});
    policy
}

/// Sends requests until the stage has learned their processing time.
fn learn(rig: &Rig) -> Result<()> {
    for request in rig.send("/slow", 200)? {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_for_stat("type.slow.rq_completed", 200)?;
    rig.wait_until_idle()
}

/// Checks that every worker refuses slow requests from the first one on. A stage without learned
/// times admits all requests. A stage that has learned 40 ms a request estimates that a request
/// behind four others, with two slots, misses an objective of 60 ms.
fn assert_remembered(rig: &Rig) -> Result<()> {
    rig.wait_for_stat("slots", 2)?;
    let held = rig.occupy("/held", 2)?;
    let waiting = rig.enqueue("/other", 4)?;
    for request in rig.send("/slow", 40)? {
        let answer = request.answer()?;
        let refused = answer
            .header("x-headgate-refused")
            .is_some_and(|r| r.ends_with("type=slow; reason=slo_p50"));
        assert!(refused, "{answer:?}");
    }
    rig.backend.release();
    for request in held.into_iter().chain(waiting) {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_until_idle()
}

/// A stage without learned times admits the requests that [`assert_remembered`] expects to be
/// refused.
#[test]
fn nothing_is_refused_before_anything_was_learned() -> Result<()> {
    let rig = Rig::builder(backend(), policy(2, "60ms")).start()?;
    let held = rig.occupy("/held", 2)?;
    let waiting = rig.enqueue("/other", 4)?;
    let slow = rig.send("/slow", 40)?;
    rig.wait_for_stat("queue_length", 44)?;
    rig.backend.release();
    for request in held.into_iter().chain(waiting).chain(slow) {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_until_idle()
}

#[test]
fn histograms_survive_a_policy_edit() -> Result<()> {
    let rig = Rig::builder(backend(), policy(50, "10s")).start()?;
    learn(&rig)?;
    rig.edit_policy(&policy(2, "60ms"))?;
    assert_remembered(&rig)
}

#[test]
fn histograms_survive_a_code_upgrade() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let module = headgate::copy_tested_module(folder.path())?;
    let rig = Rig::builder(backend(), policy(50, "10s"))
        .module(module.clone())
        .start()?;
    learn(&rig)?;
    rig.edit_policy(&policy(2, "60ms"))?;

    upgrade(&rig, &module)?;
    assert_remembered(&rig)
}

/// The requests of the old code and of the new code share the slots, and no waiting request is
/// lost.
#[test]
fn the_limit_holds_while_code_is_upgraded_under_load() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let module = headgate::copy_tested_module(folder.path())?;
    let mut policy = policy::queue_only(2, 10_000);
    policy["spec"]["queue"]["timeout"] = json!("30s");
    let rig = Rig::builder(backend(), policy)
        .module(module.clone())
        .start()?;
    let quick = ("x-backend-service-us", "10000");
    let kinds = vec![RequestType::get("all", "/").header(quick.0, quick.1)];
    // The load is half of the capacity of both slots. So the queue drains, although responses are
    // late while Envoy compiles the module.
    let mut spec = LoadSpec::new(rig.addr(), kinds, 100.0, Duration::from_secs(60));
    spec.drain = Duration::from_secs(30);
    let load = load::start(spec)?;
    for _ in 0..3 {
        let answered = load.snapshot().total.ok;
        wait_until("traffic", || load.snapshot().total.ok > answered + 50)?;
        // The burst is more than 2 s of work, so requests run and wait in the old code while the
        // new code starts.
        let burst: Result<Vec<_>> = (0..400).map(|_| rig.request("/", &[quick])).collect();
        upgrade(&rig, &module)?;
        for request in burst? {
            assert_eq!(request.answer()?.status, 200);
        }
    }
    load.stop();
    let report = load.wait()?;
    assert_eq!(
        report.total.ok, report.total.offered,
        "{:?}",
        report.total.status
    );
    assert_eq!(rig.backend.stats().max_in_flight, 2);
    rig.wait_until_idle()
}

/// Replaces the filter's code and waits until Envoy runs the new code.
fn upgrade(rig: &Rig, module: &Path) -> Result<()> {
    let before = rig.module_hash()?;
    append(module)?;
    until("another module", || match rig.module_hash() {
        Ok(now) if now != before => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    rig.wait_for_policy()
}

/// Appends bytes to the module without changing its code: an empty custom section named `upgraded`
/// for Wasm, and bytes that no loader reads for a native module.
fn append(module: &Path) -> Result<()> {
    let mut bytes = std::fs::read(module)?;
    let name = b"upgraded";
    bytes.extend([0, u8::try_from(name.len())? + 1, u8::try_from(name.len())?]);
    bytes.extend(name);
    file::replace(module, bytes)
}
