//! Tests of a gateway in front of a sidecar. Workflows enter at the gateway, and their rates are
//! limited there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headgate_core::config::FilterConfig;
use headgate_tests::bootstrap::Bootstrap;
use headgate_tests::load::{self, Lateness, Pauses};
use headgate_tests::wait::lock_machine;
use serde_json::{Value, json};

use super::app::{App, Behaviour};
use super::sidecar::{Sidecar, inbound, outbound, workflows};
use super::{LATE, PAUSE};

/// The rate of a workflow at the service behind the gateway, requests/s.
const RATE: f64 = 10.0;

fn at_the_edge() -> Result<FilterConfig> {
    let mut workflows = workflows();
    workflows["edge"] = json!(true);
    inbound(&workflows)
}

/// Puts the outbound slot on the listener for requests, behind the inbound slot, as in a user's own
/// gateway.
fn one_chain(bootstrap: &mut Bootstrap) -> Result<()> {
    let listeners = &mut bootstrap.root()["static_resources"]["listeners"];
    let chain = |listener: usize| {
        format!("/{listener}/filter_chains/0/filters/0/typed_config/http_filters")
    };
    let filters = |v: &Value| v.as_array().cloned().context("filters");
    let outbound = listeners.pointer(&chain(1)).map(filters);
    let slot = outbound.context("an outbound listener")??[0].clone();
    let ingress = listeners.pointer_mut(&chain(0)).context("ingress")?;
    let ingress = ingress.as_array_mut().context("filters")?;
    ingress.insert(ingress.len() - 1, slot);
    Ok(())
}

/// The numbers of requests after the first seconds that were served, refused, and refused by the
/// proxy behind the gateway.
#[derive(Debug, Clone, Copy)]
struct Ends {
    served: usize,
    refused: usize,
    below: u64,
}

/// Sends requests at a rate far above [`RATE`] until the rates have settled, and then measures for
/// the same time.
fn send(gateway: &Sidecar, back: &Sidecar) -> Result<(Ends, Lateness)> {
    let (started, mut pauses) = (Instant::now(), Pauses::default());
    let (mut served, mut refused, mut below) = (0, 0, 0);
    while started.elapsed() < Duration::from_secs(6) {
        let late = started.elapsed() > Duration::from_secs(3);
        // The gateway ignores processes and rates in a client's headers.
        let headers = [
            ("baggage", "workflow=bulk,headgate=nonsense"),
            ("x-headgate-process", "00000000000000ff"),
            ("x-headgate-request", "nonsense"),
        ];
        let answer = gateway.get("/bulk", &headers)?;
        let ours = |name: &str| name.starts_with("x-headgate-") && name != "x-headgate-refused";
        let told = answer.headers.iter().find(|(name, _)| ours(name));
        ensure!(told.is_none(), "a client is told {told:?}");
        match (answer.status, answer.refusal_reason()) {
            (200, _) => served += usize::from(late),
            (429, Some("rate_limit")) => {
                let refusal = answer.header("x-headgate-refused").unwrap_or_default();
                ensure!(refusal.contains("policy=shop/app"), "{answer:?}");
                // The policies of both proxies have the same name here, so only the gateway's own
                // count shows which proxy refused.
                refused += usize::from(late);
            }
            _ => ensure!(!late, "{answer:?}"),
        }
        below = back.workflow_stat("bulk", "rq_rate_limited")?;
        pauses.pause(PAUSE);
    }
    let ends = Ends {
        served,
        refused,
        below,
    };
    Ok((ends, pauses.lateness()))
}

/// Checks that the application behind the gateway gets requests at [`RATE`], and that clients see
/// no rates.
fn throttles(gateway: &Sidecar, back: &Sidecar, b: &App) -> Result<()> {
    let Ends {
        served,
        refused,
        below,
    } = load::undisturbed(LATE, |_| send(gateway, back))?;
    println!("{served} served, {refused} refused, {below} of them below");
    let expected = RATE * 3.0;
    ensure!(
        (0.6 * expected..=1.35 * expected).contains(&(served as f64)) && refused > 30,
        "{served} served, {refused} refused; {:?}",
        gateway.stats()
    );
    ensure!(gateway.workflow_stat("bulk", "limited")? == 1);
    let rate = gateway.workflow_stat("bulk", "rate_mhz")? as f64 / 1_000.0;
    ensure!((0.7 * RATE..=1.3 * RATE).contains(&rate), "{rate}/s");
    let at_gateway = gateway.workflow_stat("bulk", "rq_rate_limited")? as usize;
    ensure!(at_gateway >= refused / 2, "{at_gateway} of {refused}");
    // The process behind the gateway knows the demand and its source. Its application sees only a
    // token.
    back.wait_for("bulk", "rq_offered", 1)?;
    let seen = b.last("/bulk")?;
    ensure!(seen.ours() == ["x-headgate-request"], "{seen:?}");
    gateway.check()?;
    back.check()
}

#[test]
fn a_gateway_throttles_what_enters() -> Result<()> {
    let _lock = lock_machine()?;
    let calls = outbound(&json!({}))?;
    for one_configuration in [true, false] {
        let b = App::start(Behaviour::default())?;
        let mut behind = workflows();
        behind["sharing"] = json!({"type": "StaticGuarantees"});
        behind["workflows"] = json!({"bulk": {"guarantee": RATE}});
        let back = Sidecar::start(b.addr, &inbound(&behind)?, None, |_| Ok(()))?;
        let mut config = at_the_edge()?;
        println!("one configuration for both ways: {one_configuration}");
        let gateway = if one_configuration {
            config.outbound.clone_from(&calls.outbound);
            Sidecar::start(back.addr, &config, None, |_| Ok(()))?
        } else {
            let nowhere = [("nowhere", b.addr)];
            Sidecar::start(back.addr, &config, Some((&calls, &nowhere)), one_chain)?
        };
        throttles(&gateway, &back, &b)?;
    }
    Ok(())
}
