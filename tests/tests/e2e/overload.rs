//! Tests of overload: at 1.2 to 2 times its capacity, a backend never serves more than P requests
//! at once, and only types that would miss their objectives are refused.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use headgate_tests::backend::BackendConfig;
use headgate_tests::load::{self, Lateness, LoadReport, LoadSpec, Phase};
use headgate_tests::rig::Rig;
use headgate_tests::wait::{until, until_within};
use headgate_tests::{mix, policy, simulated};
use serde_json::{Value, json};

const P: usize = 20;
const SCALE: f64 = 4.0;
const WARMUP: Duration = Duration::from_secs(2);

/// Runs the paper's mix at each of `loads`, a multiple of the capacity, for `seconds`. A warm-up at
/// the first load comes before.
fn overload(policy: &Value, threads: u32, loads: &[f64], seconds: u64) -> Result<LoadReport> {
    let objective = mix::bouncer(SCALE)[0].p50;
    load::undisturbed(load::tolerable(objective), |_| {
        run(policy.clone(), threads, loads, seconds)
    })
}

/// Returns the requests of an overload run to `target`.
fn requests(target: SocketAddr, loads: &[f64], seconds: u64) -> LoadSpec {
    let mix = mix::bouncer(SCALE);
    let capacity = mix::capacity_rps(&mix, P);
    let mut spec = LoadSpec::for_mix(target, &mix, 0.0, Duration::ZERO);
    spec.carry_service_times(&mix);
    let phase = |load: &f64| Phase {
        duration: Duration::from_secs(seconds),
        rate: load * capacity,
    };
    spec.phases = loads.iter().map(phase).collect();
    spec.phases.insert(
        0,
        Phase {
            duration: WARMUP,
            rate: loads[0] * capacity,
        },
    );
    spec.warmup = WARMUP;
    spec
}

/// Runs the load once and checks the properties that hold on any machine.
fn run(policy: Value, threads: u32, loads: &[f64], seconds: u64) -> Result<(LoadReport, Lateness)> {
    let rig = Rig::builder(BackendConfig::for_mix(P, &mix::bouncer(SCALE)), policy)
        .concurrency(threads)
        .start()?;
    let spec = requests(rig.addr(), loads, seconds);
    let points = (spec.duration().as_secs_f64() / spec.bin.as_secs_f64()) as usize;
    let warm = (WARMUP.as_secs_f64() / spec.bin.as_secs_f64()) as usize;
    let load = load::start(spec)?;
    // Utilization is measured from the end of the warm-up to the last point of the series, while
    // requests still arrive.
    let reached = |point: usize| {
        until_within(Duration::from_secs(120), "the load to go on", || match load
            .snapshot()
            .total
            .series
            .len()
        {
            now if now >= point => Ok(rig.backend.stats()),
            now => Err(format!("at point {now} of {points}")),
        })
    };
    let utilization = {
        let begin = reached(warm)?;
        reached(points)?.utilization_since(&begin)
    };
    let report = load.wait()?;
    let backend = rig.backend.stats();
    println!(
        "{threads} threads: utilization {utilization:.3}, at most {} in flight, lateness p99 {:.2} \
         ms",
        backend.max_in_flight, report.lateness_ms.p99
    );
    // The handover time is the time for which a free slot waits for its next request on another
    // worker.
    let name = format!("wasmcustom.headgate.policy.{}.handover_us", policy::NAME);
    let shown: Vec<String> = rig
        .envoy
        .histogram(&name)?
        .iter()
        .filter(|(percent, _)| [50.0, 99.0, 100.0].contains(percent))
        .map(|(percent, us)| format!("p{percent} {us:.0} µs"))
        .collect();
    println!("  handover between workers: {}", shown.join(", "));
    for kind in &report.types {
        let (q, acceptance) = (&kind.latency_ms, kind.acceptance());
        println!(
            "  {:11} accepted {acceptance:.3} p50 {:5.1} ms p90 {:5.1} ms {:?}",
            kind.name, q.p50, q.p90, kind.refused_by
        );
    }

    assert_eq!(
        backend.max_busy, P,
        "the backend was never fully used: no overload"
    );
    assert_eq!(
        backend.max_in_flight, P,
        "more were in the backend than it has workers"
    );
    let total = &report.total;
    assert_eq!(
        (total.transport_errors, total.not_sent, total.unanswered),
        (0, 0, 0)
    );
    assert_eq!(
        total.ok + total.refused,
        total.offered,
        "{:?}",
        total.status
    );
    rig.wait_until_idle()?;
    // The counts of Envoy equal the counts of the clients, warm-up included.
    let everything = total.series.iter();
    let (ok, refused) = everything.fold((0, 0), |(ok, refused), bin| {
        (ok + bin.ok, refused + bin.refused)
    });
    for (name, expected) in [("rq_completed", ok), ("rq_rejected_enforced", refused)] {
        // Workers publish their counts once a tick.
        until(name, || {
            let counts = report
                .types
                .iter()
                .map(|t| rig.type_stat(&t.name, name))
                .collect::<Result<Vec<_>>>();
            match counts.map_err(|e| e.to_string())?.iter().sum::<u64>() {
                sum if sum == expected => Ok(()),
                sum => Err(format!("{sum}, not {expected}")),
            }
        })?;
    }
    let lateness = Lateness::of(&report, &backend);
    Ok((report, lateness))
}

#[test]
fn never_more_than_p_and_fast_types_are_never_refused() -> Result<()> {
    // With shedding by value, requests of the second type may be refused in favor of the first
    // type.
    let never: [(bool, &[&str]); 2] = [(false, &["fast", "mediumfast"]), (true, &["fast"])];
    for (threads, (shed_by_value, never_refused)) in [(1, never[0]), (2, never[0]), (4, never[1])] {
        let mut policy = policy::for_mix(P, &mix::bouncer(SCALE));
        policy["spec"]["strategy"] =
            json!({"type": "Bouncer", "bouncer": {"shedByValue": shed_by_value}});
        let (loads, seconds) = ([1.2, 1.5, 2.0], 2);
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let spec = requests(nowhere, &loads, seconds);
        let simulated = simulated::replay_with(&policy, &spec, Duration::ZERO)?;
        let report = overload(&policy, threads, &loads, seconds)?;
        for &name in never_refused {
            let kind = report.of(name).context(name)?;
            let at = report.types.iter().position(|t| t.name == name);
            let exact = &simulated.types[at.context(name)?];
            assert_eq!(exact.rejected_pct(), 0.0, "{name}, without delays");
            // A pause of the machine makes the queue longer, and it also adds to the measured
            // service times of the types. After a pause of 0.1 s, requests that arrive in about
            // 0.15 s of the 6 s are refused. The run isn't repeated for such a pause if at most 1%
            // of requests and services were late.
            assert!(
                100 * kind.refused <= 3 * kind.offered,
                "{threads} threads: {name} {:?}",
                kind.refused_by
            );
        }
        let slow = report.of("slow").context("slow")?;
        assert!(
            slow.refused > slow.offered / 2,
            "the costliest type is refused first: {slow:?}"
        );
    }
    Ok(())
}

#[test]
fn no_type_is_accepted_below_its_allowance_in_slack_order() -> Result<()> {
    let allowance = 0.3;
    let policy = policy::with_allowance(policy::for_mix(P, &mix::bouncer(SCALE)), allowance);
    let report = overload(&policy::with_discipline(policy, "Slack"), 2, &[1.5], 6)?;
    for kind in &report.types {
        // With about 680 slow requests, the accepted share has a standard deviation of about 0.018.
        assert!(
            kind.acceptance() > allowance - 0.04,
            "{}: {}",
            kind.name,
            kind.acceptance()
        );
    }
    // The costliest types are refused most, so cheap types are nearly always accepted.
    for name in ["fast", "mediumfast"] {
        let kind = report.of(name).context(name)?;
        assert!(kind.acceptance() > 0.9, "{name}: {}", kind.acceptance());
    }
    Ok(())
}

/// The simulator gets the same requests without help, and refuses nearly all of `slow`. An Envoy
/// without help refuses no less of it, because its slots are empty for a moment between requests.
#[test]
fn the_underserved_are_helped() -> Result<()> {
    let plain = policy::for_mix(P, &mix::bouncer(SCALE));
    let (loads, seconds) = ([1.5], 5);
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let without = simulated::replay(&plain, &requests(nowhere, &loads, seconds))?;
    let helped = overload(&policy::with_helping(plain, 1.0), 2, &loads, seconds)?;
    let at = helped.types.iter().position(|t| t.name == "slow");
    let at = at.context("slow")?;
    let without = 1.0 - without.types[at].rejected_pct() / 100.0;
    let with = helped.types[at].acceptance();
    println!("slow: {with:.3} accepted with help, {without:.3} without");
    assert!(with > without, "{with} with help, {without} without");
    Ok(())
}
