//! What the simulator says of a policy is what Envoy does: both get the very same requests.
//!
//! Rejections only: response times belong to `scripts/bench agreement`, which wants a quiet machine.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use headgate_tests::backend::BackendConfig;
use headgate_tests::load::{self, Lateness, LoadSpec, ServiceTime};
use headgate_tests::rig::Rig;
use headgate_tests::{mix, policy, simulated};

const P: usize = 20;
const SCALE: f64 = 4.0;
const LOAD: f64 = 1.5;

/// By how many points rejections of a type may differ. Twice what `scripts/bench agreement` calls inside: a busy machine
/// makes requests slower and so refuses more of them.
const POINTS: f64 = 6.0;

#[test]
fn as_many_of_each_type_are_rejected_in_envoy_as_in_the_simulator() -> Result<()> {
    let mix = mix::bouncer(SCALE);
    let policy = policy::with_allowance(policy::for_mix(P, &mix), 0.3);
    let policy = policy::with_discipline(policy, "Slack");
    let warmup = Duration::from_secs(3);
    let rate = LOAD * mix::capacity_rps(&mix, P);
    let load = |target: SocketAddr| {
        let mut spec = LoadSpec::for_mix(target, &mix, rate, warmup + Duration::from_secs(9));
        spec.warmup = warmup;
        for (kind, query) in spec.types.iter_mut().zip(&mix) {
            let (mean, median) = (query.mean, query.median);
            kind.service = Some(ServiceTime { mean, median });
        }
        spec
    };
    let (report, late) = load::undisturbed(load::tolerable(mix[0].p50), |_| {
        let rig = Rig::builder(BackendConfig::for_mix(P, &mix), policy.clone())
            .concurrency(2)
            .start()?;
        let report = load::run(load(rig.addr()))?;
        rig.wait_until_idle()?;
        let backend = rig.backend.stats();
        let lateness = Lateness::of(&report, &backend);
        Ok(((report, backend.late_ms.mean), lateness))
    })?;
    // The capacity of this run: every service ended a little late.
    let late = Duration::from_secs_f64(late / 1e3);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let simulated = simulated::replay_with(&policy, &load(nowhere), late)?;
    let mut differences = Vec::new();
    for (query, expected) in mix.iter().zip(&simulated.types) {
        let kind = report.of(query.name).context(query.name)?;
        assert_eq!(kind.offered, expected.offered, "the same requests");
        let (rejected, expected) = (100.0 * kind.refusal(), expected.rejected_pct());
        println!(
            "  {:11} rejected {rejected:5.1}% in Envoy, {expected:5.1}% in the simulator",
            query.name
        );
        differences.push(rejected - expected);
    }
    assert!(
        differences.iter().all(|points| points.abs() <= POINTS),
        "points of difference by type: {differences:.1?}"
    );
    Ok(())
}
