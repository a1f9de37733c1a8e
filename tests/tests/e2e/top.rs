//! Tests of `headgate top` at real Envoys under overload: its values equal the counts of the
//! Envoys.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_tests::backend::BackendConfig;
use headgate_tests::fleet::Fleet;
use headgate_tests::headgate::full_path;
use headgate_tests::load::{self, LoadSpec};
use headgate_tests::{mix, policy, wait};
use serde_json::Value;

const P: usize = 6;
const SCALE: f64 = 16.0;
const OVERLOAD: f64 = 1.6;

#[test]
fn top_shows_what_real_proxies_count() -> Result<()> {
    let mix = mix::bouncer(SCALE);
    let search = policy::for_mix(P, &mix);
    let mut fleet = Fleet::start(&BackendConfig::for_mix(40 * P, &mix), &[search])?;
    for name in ["search-1", "search-2"] {
        fleet.add_proxy(name, "Service/default/search", "default")?;
    }
    fleet.wait_for_streams("Running", 2)?;
    // Each proxy has its own slots, so each proxy gets the overload.
    let rate = OVERLOAD * mix::capacity_rps(&mix, P);
    let spec = |p: &headgate_tests::fleet::Proxy| {
        LoadSpec::for_mix(p.addr, &mix, rate, Duration::from_secs(90))
    };
    let loads = fleet.proxies.values().map(spec).map(load::start);
    let loads = loads.collect::<Result<Vec<_>>>()?;
    let admins: Vec<String> = fleet
        .proxies
        .values()
        .map(|p| format!("--proxy={}", p.envoy.admin()))
        .collect();
    let ask = |more: &[&str]| -> Result<Vec<u8>> {
        let output = std::process::Command::new(full_path())
            .args(["top", "--once", "--window=4s"])
            .args(&admins)
            .args(more)
            .output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(output.stdout)
    };
    // Poll until the types are no longer new to the filter. Each view takes a window of 4 s.
    wait::until_within(Duration::from_secs(60), "refusals", || {
        let shown = ask(&["--output=json"]).map_err(|e| e.to_string())?;
        let view: Value = serde_json::from_slice(&shown).map_err(|e| e.to_string())?;
        check(&view, 2.0 * rate).map_err(|e| format!("{e:#}\n{view:#}"))
    })
    .map_err(anyhow::Error::msg)?;
    let table = String::from_utf8(ask(&[])?)?;
    ensure!(table.contains("default/search (2 proxies)"), "{table}");
    ensure!(table.contains("2 proxies, "), "{table}");
    for load in &loads {
        load.stop();
    }
    Ok(())
}

/// Checks that the view shows two proxies that together get `rate` requests/s, more than they can
/// serve.
fn check(view: &Value, rate: f64) -> Result<()> {
    let policy = &view["policies"][0];
    ensure!(policy["policy"] == "default/search");
    ensure!(policy["slots"].as_u64() == Some(2 * P as u64));
    let number = |value: &Value| value.as_f64().context("no number");
    let arrivals = number(&policy["traffic"]["arrivalRate"])?;
    ensure!(
        (0.7 * rate..1.3 * rate).contains(&arrivals),
        "{arrivals} arrive, {rate} are sent"
    );
    let accepted = number(&policy["traffic"]["acceptedRate"])?;
    let refused = number(&policy["traffic"]["refusedRate"])?;
    ensure!(refused > 0.1 * rate, "{refused} refused");
    // Waiting requests count neither as accepted nor as refused.
    ensure!((accepted + refused - arrivals).abs() < 0.1 * arrivals);
    ensure!(number(&policy["hurt"])? >= refused - 0.01);
    for kind in policy["types"].as_array().into_iter().flatten() {
        if kind["type"] == "default" {
            continue;
        }
        ensure!(
            kind["objectives"].as_array().is_some_and(|o| !o.is_empty()),
            "{kind}"
        );
        ensure!(number(&kind["queueWaitMs"]["p99"])? >= number(&kind["queueWaitMs"]["p50"])?);
        let reasons = kind["refusedByReason"].as_object().context("reasons")?;
        let sum: f64 = reasons.values().filter_map(Value::as_f64).sum();
        ensure!((sum - number(&kind["refusedRate"])?).abs() < 1.0, "{kind}");
    }
    for proxy in view["proxies"].as_array().into_iter().flatten() {
        ensure!(
            proxy["state"] == "Answers" && proxy["version"] == "1.40.0",
            "{proxy}"
        );
        ensure!(
            proxy["node"]
                .as_str()
                .is_some_and(|n| n.starts_with("search-"))
        );
        let seconds = view["windowSeconds"].as_f64().unwrap_or_default();
        ensure!((3.0..8.0).contains(&seconds), "{seconds} s");
    }
    Ok(())
}
