//! Tests that a fair queue shares the time of the slots equally, whatever the requests of a tenant
//! cost. Its discipline is WFQ. Module `shares` of headgate-mesh's `discipline_conformance` tests
//! DRR, too, and module `disciplines` tests that Envoy serves in the order of each.

use std::time::Duration;

use anyhow::{Context, Result};
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::load::{self, Clients, Lateness, LoadSpec, RequestType};
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use serde_json::json;

const P: usize = 4;
const CHEAP: Duration = Duration::from_millis(20);
/// The service time of an expensive request, 25 times that of a cheap one of the same type.
const DEAR: Duration = Duration::from_millis(500);
/// The number of requests that each tenant has in progress at all times.
const CLIENTS: usize = 12;
const WARMUP: Duration = Duration::from_secs(4);
const MEASURED: Duration = Duration::from_secs(8);

/// Returns the share of the slots' time that each tenant got, first of the tenant `cheap`. The
/// share is the number of served requests times their cost.
fn run() -> Result<([f64; 2], Lateness)> {
    let types = vec![
        ServiceType::constant("/cheap", CHEAP),
        ServiceType::constant("/dear", DEAR),
    ];
    let mut policy = policy::policy(P, &[json!({"name": "default"})]);
    policy["spec"]["strategy"] = json!({"type": "MaxQueueLength"});
    policy["spec"]["queue"] =
        json!({"discipline": "WFQ", "wfq": {"by": "Workflow"}, "timeout": "60s"});
    let rig = Rig::builder(BackendConfig::new(P, types), policy)
        .concurrency(2)
        .start()?;
    let start = |name: &str| {
        let request =
            RequestType::get(name, &format!("/{name}")).header("x-headgate-workflow", name);
        let mut spec = LoadSpec::new(rig.addr(), vec![request], 0.0, Duration::ZERO);
        spec.phases.clear();
        spec.clients = vec![Clients {
            count: CLIENTS,
            from: Duration::ZERO,
            until: WARMUP + MEASURED,
            think: Duration::ZERO,
        }];
        spec.warmup = WARMUP;
        load::start(spec)
    };
    let loads = [start("cheap")?, start("dear")?];
    let (mut shares, mut lateness) = ([0.0; 2], Lateness::of_backend(&rig.backend.stats()));
    for ((load, cost), share) in loads.into_iter().zip([CHEAP, DEAR]).zip(&mut shares) {
        let report = load.wait()?;
        let served = report.types.first().context("one type")?;
        assert_eq!((served.refused, served.transport_errors), (0, 0));
        *share = served.ok as f64 * cost.as_secs_f64() / (report.seconds * P as f64);
        lateness = Lateness::of(&report, &rig.backend.stats());
    }
    rig.wait_until_idle()?;
    println!("cheap {:.3}, dear {:.3}", shares[0], shares[1]);
    Ok((shares, lateness))
}

#[test]
fn a_tenant_with_expensive_requests_gets_half_of_the_slots_time() -> Result<()> {
    let [cheap, dear] = load::undisturbed(CHEAP, |_| run())?;
    assert!((0.42..0.58).contains(&dear), "{dear} of the slots' time");
    // The slot is empty for a part of a millisecond between two requests of the tenant `cheap`.
    assert!((0.36..0.52).contains(&cheap), "{cheap} of the slots' time");
    Ok(())
}

/// Streams of two tenants wait for one slot. The streams of one tenant have ten times as many
/// tokens. The number of tokens is known only at the end of a stream.
#[test]
fn tenants_share_tokens() -> Result<()> {
    const TOKENS: [u64; 2] = [2, 20];
    const STREAMS: [usize; 2] = [60, 12];
    let mut policy = policy::queue_only(1, 100);
    policy["spec"]["queue"]["discipline"] = json!("WFQ");
    policy["spec"]["queue"]["wfq"] = json!({"by": "Workflow", "tokens": {}});
    let backend = BackendConfig::constant(10, Duration::from_millis(1));
    let rig = Rig::builder(backend, policy).concurrency(2).start()?;
    let held = rig.occupy("/held", 1)?;
    let mut waiting = Vec::new();
    for (tenant, (count, tokens)) in STREAMS.into_iter().zip(TOKENS).enumerate() {
        let path = format!("/?stream={tokens}");
        let (id, seq) = (format!("tenant-{tenant}"), tenant.to_string());
        let headers = [
            ("accept", "text/event-stream"),
            ("x-headgate-workflow", id.as_str()),
            ("x-seq", seq.as_str()),
        ];
        for _ in 0..count {
            waiting.push(rig.request(&path, &headers)?);
            rig.wait_for_stat("queue_length", waiting.len() as u64)?;
        }
    }
    rig.backend.release();
    for request in held.into_iter().chain(waiting) {
        assert_eq!(request.answer()?.status, 200);
    }
    rig.wait_until_idle()?;
    let mut served = [0; 2];
    for arrival in rig.backend.arrivals() {
        let tenant = usize::try_from(arrival.seq)?;
        // By default, a policy counts one token for the prompt and each output token twice.
        served[tenant] += 1 + 2 * TOKENS[tenant];
        if served[0] > 250 {
            break;
        }
    }
    // The first streams of both tenants were charged equally.
    let share = served[1] as f64 / (served[0] + served[1]) as f64;
    println!("tokens {served:?}");
    assert!((0.4..0.6).contains(&share), "{share}");
    Ok(())
}
