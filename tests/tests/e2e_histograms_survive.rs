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
    BackendConfig::new(100, vec![ServiceType::constant("/", Duration::from_millis(40))])
}

/// Bouncer with this objective for the median.
fn policy(p50: &str) -> Value {
    let matches = json!([{"path": {"type": "PathPrefix", "value": "/slow"}}]);
    let slow = json!({"name": "slow", "matches": matches, "slo": {"p50": p50, "p90": "10s"}});
    policy::policy(50, &[slow, json!({"name": "default", "slo": {"p50": "5s", "p90": "10s"}})])
}

/// Lets the stage learn what a slow request costs, on all workers.
fn learn(rig: &Rig) -> Result<()> {
    for request in rig.send("/slow", 200)? {
        assert_eq!(request.answer()?.status, 200);
    }
    // Measurements of all workers are merged once per interval; the objective of 20 ms is then known to be missed.
    rig.wait_for_stat("type.slow.rq_completed", 200)
}

/// An objective that the stage knows to be missed refuses; one that has learned nothing admits.
fn wait_until_refused(rig: &Rig) -> Result<()> {
    until("slow requests to be refused", || {
        let answer = rig.get("/slow").map_err(|e| e.to_string())?;
        match answer.header("x-headgate-refused") {
            Some(reason) if reason.ends_with("type=slow; reason=slo_p50") => Ok(()),
            other => Err(format!("{} {other:?}", answer.status)),
        }
    })
}

/// Asserts that requests are refused on every worker from the first on: what was learned is there.
fn assert_remembered(rig: &Rig) -> Result<()> {
    for request in rig.send("/slow", 40)? {
        let answer = request.answer()?;
        let refused = answer.header("x-headgate-refused").is_some_and(|r| r.ends_with("reason=slo_p50"));
        assert!(refused, "{answer:?}");
    }
    Ok(())
}

#[test]
fn histograms_survive_a_policy_edit() -> Result<()> {
    let rig = Rig::builder(backend(), policy("1s")).start()?;
    learn(&rig)?;
    let learned = rig.policy_stat("type.slow.rq_completed")?;
    rig.edit_policy(&policy("20ms"))?;
    wait_until_refused(&rig)?;
    let admitted = rig.policy_stat("type.slow.rq_accepted")? - learned;
    assert!(admitted < 50, "{admitted} were admitted after the edit: as many as it takes to learn anew");
    assert_remembered(&rig)
}

#[test]
fn histograms_survive_a_code_upgrade() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let module = folder.path().join("headgate.wasm");
    std::fs::copy(headgate::module_path(), &module)?;
    let rig = Rig::builder(backend(), policy("1s")).module(module.clone()).start()?;
    learn(&rig)?;
    rig.edit_policy(&policy("20ms"))?;
    wait_until_refused(&rig)?;

    let before = rig.status()?["module"]["hash"].clone();
    upgrade(&module)?;
    until("another module", || match rig.status() {
        Ok(status) if status["module"]["hash"] != before => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    rig.wait_for_policy()?;
    assert_remembered(&rig)?;
    assert_eq!(rig.get("/other")?.status, 200);
    rig.wait_until_idle()
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
