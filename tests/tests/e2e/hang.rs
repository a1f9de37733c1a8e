//! Tests with three types of requests, one of which fails. The other two keep their objectives.
//!
//! That they miss them without the filter is tested in `filter/simulator/tests/faults`.

use std::time::Duration;

use anyhow::{Context, Result};
use headgate_tests::backend::{BackendConfig, Fault, FaultKind};
use headgate_tests::load::{self, Lateness, LoadReport, LoadSpec};
use headgate_tests::mix::QueryType;
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use headgate_tests::wait::until_within;
use serde_json::json;

const WORKERS: usize = 8;
/// The time in which all types work. The time [`TIMEOUT`] after the failure doesn't count, because
/// the first requests of a type that hangs hold slots until the route's timeout.
const WELL: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(6);

/// Returns a type with an arrival rate of `rate` requests/s and a service time of 20 ms.
fn kind(name: &'static str, path: &'static str, rate: f64) -> QueryType {
    let time = Duration::from_millis(20);
    QueryType {
        name,
        path,
        share: rate,
        mean: time,
        median: time,
        p50: Duration::from_millis(100),
        p90: Duration::from_millis(150),
    }
}

/// Runs the three types, of which the last one fails with `fault`. The report covers the time after
/// the first timeouts.
fn run(mix: &[QueryType], fault: FaultKind) -> Result<LoadReport> {
    load::undisturbed(load::tolerable(mix[0].p90), |_| {
        let policy = policy::for_mix(WORKERS, mix);
        let rig = Rig::builder(BackendConfig::for_mix(WORKERS, mix), policy)
            .change(|bootstrap| {
                bootstrap.routes()?[0]["route"]["timeout"] = json!(policy::duration(TIMEOUT));
                Ok(())
            })
            .start()?;
        let rate = mix.iter().map(|kind| kind.share).sum();
        let mut spec = LoadSpec::for_mix(rig.addr(), mix, rate, WELL + TIMEOUT + MEASURED);
        spec.warmup = WELL + TIMEOUT;
        let breaks = (WELL.as_secs_f64() / spec.bin.as_secs_f64()) as usize;
        let load = load::start(spec)?;
        until_within(Duration::from_secs(60), "requests to arrive", || match load
            .snapshot()
            .total
            .series
            .len()
        {
            points if points > breaks => Ok(()),
            points => Err(format!("for {points} of {breaks} points")),
        })?;
        let path = mix.last().context("three types")?.path;
        rig.backend.inject(Fault::new(fault, path, u64::MAX));
        let report = load.wait()?;
        rig.wait_until_idle()?;
        let lateness = Lateness::of(&report, &rig.backend.stats());
        for kind in &report.types {
            println!(
                "  {:6} in time {:.3} refused {:.3} {:?}",
                kind.name,
                in_time(&report, &kind.name)?,
                kind.refusal(),
                kind.refused_by
            );
        }
        Ok((report, lateness))
    })
}

/// Returns the share of a type's requests that were answered within the objective at p90.
fn in_time(report: &LoadReport, name: &str) -> Result<f64> {
    let kind = report.of(name).context("of the mix")?;
    Ok(kind.goodput_rps * report.seconds / kind.offered as f64)
}

/// Checks that both healthy types keep their objectives. Returns the report of the run.
fn healthy_types_are_answered(mix: &[QueryType], fault: FaultKind) -> Result<LoadReport> {
    let report = run(mix, fault)?;
    for name in ["fast", "other"] {
        let part = in_time(&report, name)?;
        assert!(part >= 0.9, "{name}: {part:.3} in time");
    }
    Ok(report)
}

#[test]
fn a_type_that_hangs_leaves_the_others_their_slots() -> Result<()> {
    let mix = [
        kind("fast", "/fast", 90.0),
        kind("other", "/other", 90.0),
        kind("third", "/third", 20.0),
    ];
    let report = healthy_types_are_answered(&mix, FaultKind::Hang)?;
    let hung = report.of("third").context("of the mix")?;
    assert!(hung.refusal() > 0.5, "{:?}", hung.refused_by);
    Ok(())
}

/// The load is 1.4 times the capacity. Types of equal value are refused at equal rates, so only its
/// errors distinguish the third type.
#[test]
fn under_overload_a_type_that_fails_comes_last() -> Result<()> {
    let mix = [
        kind("fast", "/fast", 120.0),
        kind("other", "/other", 120.0),
        kind("third", "/third", 320.0),
    ];
    healthy_types_are_answered(&mix, FaultKind::Status).map(drop)
}
