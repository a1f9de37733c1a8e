//! What was learned about processing times survives a policy edit, and an upgrade of the filter's code.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use headgate_tests::{headgate, policy};
use serde_json::{Value, json};

/// Every request takes 40 ms.
fn backend() -> BackendConfig {
    BackendConfig::new(
        100,
        vec![ServiceType::constant("/", Duration::from_millis(40))],
    )
}

/// Bouncer with this many slots and this objective for the median of slow requests.
fn policy(slots: usize, p50: &str) -> Value {
    let matches = json!([{"path": {"type": "PathPrefix", "value": "/slow"}}]);
    let slow = json!({"name": "slow", "matches": matches, "slo": {"p50": p50, "p90": "10s"}});
    let default = json!({"name": "default", "slo": {"p50": "5s", "p90": "10s"}});
    let mut policy = policy::policy(slots, &[slow, default]);
    // By value, the first slow requests would use their objective's error budget.
    policy["spec"]["strategy"] = json!({"type": "Bouncer", "bouncer": {"shedByValue": false}});
    policy
}

/// Lets the stage learn what a request costs.
fn learn(rig: &Rig) -> Result<()> {
    for request in rig.send("/slow", 200)? {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_for_stat("type.slow.rq_completed", 200)?;
    rig.wait_until_idle()
}

/// Asserts that slow requests are refused from the first on, on every worker. Whoever has learned nothing admits
/// everything; whoever knows that a request takes 40 ms also knows that it misses 60 ms behind four others and two slots.
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

/// The other side: a stage that has learned nothing admits what [`assert_remembered`] sees refused.
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
    let module = folder.path().join("headgate.wasm");
    std::fs::copy(headgate::module_path(), &module)?;
    let rig = Rig::builder(backend(), policy(50, "10s"))
        .module(module.clone())
        .start()?;
    learn(&rig)?;
    rig.edit_policy(&policy(2, "60ms"))?;

    let before = rig.status()?["module"]["hash"].clone();
    upgrade(&module)?;
    until("another module", || match rig.status() {
        Ok(status) if status["module"]["hash"] != before => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    rig.wait_for_policy()?;
    assert_remembered(&rig)
}

/// The same code with other bytes: an empty custom section named `upgraded` at its end.
fn upgrade(module: &Path) -> Result<()> {
    let mut bytes = std::fs::read(module)?;
    let name = b"upgraded";
    bytes.extend([0, u8::try_from(name.len())? + 1, u8::try_from(name.len())?]);
    bytes.extend(name);
    let next = module.with_extension("next");
    std::fs::write(&next, bytes)?;
    Ok(std::fs::rename(next, module)?)
}
