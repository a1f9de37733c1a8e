//! Tests that `headgate suggest` reads a real Envoy's measurements of a dry run, and that the
//! suggested policy is enforced.

use std::time::Duration;

use anyhow::{Result, ensure};
use headgate_tests::backend::BackendConfig;
use headgate_tests::headgate::run_full;
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use headgate_tests::{policy, wait};
use serde_json::{Value, json};

/// The processing time of all requests.
const SERVICE: Duration = Duration::from_millis(20);

#[test]
fn suggest_makes_a_policy_from_a_dry_run() -> Result<()> {
    let backend = BackendConfig::constant(1_000, SERVICE);
    let mut observed = policy::policy(
        4,
        &[json!({"name": "default", "slo": {"p50": "1s", "p90": "1s"}})],
    );
    observed["spec"]["mode"] = json!("DryRun");
    let rig = Rig::builder(backend, observed).start()?;
    let proxy = format!("--proxy={}", rig.envoy.admin());
    let suggest = || run_full(&["suggest", &proxy, "--service=default/search"]);
    let refusal = suggest().unwrap_err();
    ensure!(
        format!("{refusal:#}").contains("fewer than 50 responses measured so far"),
        "{refusal:#}"
    );
    for _ in 0..60 {
        ensure!(rig.get("/")?.status == 200);
    }
    // Envoy adds values to its histograms only when it flushes them.
    let suggested = until("a suggestion", || suggest().map_err(|e| format!("{e:#}")))?;
    let mut suggested: Value = serde_saphyr::from_str(&suggested)?;
    let slo = &suggested["spec"]["types"][0]["slo"];
    let ms = |name: &str| -> Option<u64> { slo[name].as_str()?.strip_suffix("ms")?.parse().ok() };
    // The suggested objectives are 2 · 20 ms + 20 ms at p50 and 2 · 20 ms + 2 · 20 ms at p90. A
    // slow machine adds to all of these times.
    ensure!(ms("p50") >= Some(70) && ms("p90") >= Some(100), "{slo}");
    ensure!(ms("p90") <= Some(1_000), "{slo}");
    suggested["metadata"]["name"] = json!("search");
    suggested["spec"]["mode"] = json!("Enforce");
    rig.edit_policy(&suggested)?;
    let (accepted, message) = rig.accepted()?;
    ensure!(accepted, "{message}");
    wait::until("an answer under the suggested policy", || {
        match rig.get("/") {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}
