//! Fair queues share the slots' time, whatever a tenant's requests cost.

use std::time::Duration;

use anyhow::{Context, Result};
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::load::{self, Clients, Lateness, LoadSpec, RequestType};
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use serde_json::json;

const P: usize = 4;
const CHEAP: Duration = Duration::from_millis(20);
/// The cost of 25 cheap ones, of the same type.
const DEAR: Duration = Duration::from_millis(500);
/// Each tenant has so many requests under way all the time.
const CLIENTS: usize = 12;
const WARMUP: Duration = Duration::from_secs(4);
const MEASURED: Duration = Duration::from_secs(8);

/// Part of the slots' time that each tenant had, by what the backend spent on its requests: cheap,
/// dear.
fn run(discipline: &str) -> Result<([f64; 2], Lateness)> {
    let types = vec![
        ServiceType::constant("/cheap", CHEAP),
        ServiceType::constant("/dear", DEAR),
    ];
    let mut policy = policy::policy(P, &[json!({"name": "default"})]);
    policy["spec"]["strategy"] = json!({"type": "MaxQueueLength"});
    let field = discipline.to_lowercase();
    policy["spec"]["queue"] =
        json!({"discipline": discipline, field: {"by": "Workflow"}, "timeout": "60s"});
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
    println!(
        "{discipline}: cheap {:.3}, dear {:.3}",
        shares[0], shares[1]
    );
    Ok((shares, lateness))
}

fn check(discipline: &str) -> Result<()> {
    let [cheap, dear] = load::undisturbed(CHEAP, |_| run(discipline))?;
    assert!((0.42..0.58).contains(&dear), "{dear} of the slots' time");
    // The slot stands empty for a part of a millisecond between two of its requests.
    assert!((0.36..0.52).contains(&cheap), "{cheap} of the slots' time");
    Ok(())
}

#[test]
fn a_tenant_whose_requests_are_dear_gets_half_of_the_slots_time_under_drr() -> Result<()> {
    check("DRR")
}

#[test]
fn a_tenant_whose_requests_are_dear_gets_half_of_the_slots_time_under_wfq() -> Result<()> {
    check("WFQ")
}
