//! Tests that the simulator and Envoy reject the same requests under the same policy. Both get
//! identical requests.
//!
//! The tests compare only rejections. `scripts/bench agreement` compares response times, because
//! that needs a quiet machine.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headgate_tests::backend::BackendConfig;
use headgate_tests::load::{self, Lateness, LoadSpec};
use headgate_tests::rig::Rig;
use headgate_tests::{mix, policy, simulated};
use serde_json::json;

const P: usize = 20;
const SCALE: f64 = 4.0;
const LOAD: f64 = 1.5;
/// The measured time of a comparison of each type. In 9 s, runs of identical requests differed by
/// up to 7 percentage points. In 27 s, they differed by at most 2.
const OF_TYPES: Duration = Duration::from_secs(27);
/// The measured time of a comparison of the work of all types together, which differs less between
/// runs: in one run of 9 s, it was 0.9 percentage points from the simulator's.
const OF_ALL: Duration = Duration::from_secs(9);

/// The tolerated difference between rejections, in percentage points. It is twice the tolerance of
/// `scripts/bench agreement`, because requests are slower on a busy machine, and more of them are
/// refused.
const POINTS: f64 = 6.0;

/// The rejected requests of a type, in percent of its requests.
struct Rejected {
    name: &'static str,
    /// The type's share of the offered work, ratio 0..=1.
    work: f64,
    in_envoy: f64,
    simulated: f64,
}

impl Rejected {
    fn points(&self) -> f64 {
        self.in_envoy - self.simulated
    }
}

/// Tests Algorithm 1 alone, in which no type absorbs the difference in capacity.
#[test]
fn as_many_of_each_type_are_rejected_in_envoy_as_in_the_simulator() -> Result<()> {
    for kind in rejected(false, OF_TYPES)? {
        let points = kind.points();
        assert!(points.abs() <= POINTS, "{}: {points:.1} points", kind.name);
    }
    Ok(())
}

/// With shedding by value, the type at the cut absorbs the difference in capacity. So the test
/// compares the rejected work of all types together.
#[test]
fn as_much_work_is_rejected_by_value_in_envoy_as_in_the_simulator() -> Result<()> {
    let rejected = rejected(true, OF_ALL)?;
    let points: f64 = rejected.iter().map(|kind| kind.work * kind.points()).sum();
    println!("{points:.1} points of the work");
    assert!(points.abs() <= POINTS, "{points:.1} points of the work");
    Ok(())
}

fn rejected(shed_by_value: bool, time: Duration) -> Result<Vec<Rejected>> {
    let mix = mix::bouncer(SCALE);
    let mut policy = policy::with_allowance(policy::for_mix(P, &mix), 0.3);
    policy["spec"]["strategy"]["bouncer"] = json!({"shedByValue": shed_by_value});
    let policy = policy::with_discipline(policy, "Slack");
    let warmup = Duration::from_secs(3);
    let rate = LOAD * mix::capacity_rps(&mix, P);
    let load = |target: SocketAddr| {
        let mut spec = LoadSpec::for_mix(target, &mix, rate, warmup + time);
        spec.warmup = warmup;
        spec.carry_service_times(&mix);
        spec
    };
    let (report, late, utilization, answered) =
        load::undisturbed(load::tolerable(mix[0].p50), |_| {
            let rig = Rig::builder(BackendConfig::for_mix(P, &mix), policy.clone())
                .concurrency(2)
                .start()?;
            let spec = load(rig.addr());
            let measured = Instant::now() + warmup..Instant::now() + spec.duration();
            let running = load::start(spec)?;
            let stats_at = |at: Instant| {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                rig.backend.stats()
            };
            let (before, after) = (stats_at(measured.start), stats_at(measured.end));
            let report = running.wait()?;
            rig.wait_until_idle()?;
            let backend = rig.backend.stats();
            let lateness = Lateness::of(&report, &backend);
            let late = Duration::from_secs_f64(backend.late_ms.mean / 1e3);
            let answered = after.completed - before.completed;
            let utilization = after.utilization_since(&before);
            Ok(((report, late, utilization, answered), lateness))
        })?;
    // Find the capacity of this run. Every service ended a little late, and every slot was empty
    // for a moment before the next request came through Envoy.
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let at_once = simulated::replay_with(&policy, &load(nowhere), late)?;
    let slot_time = time * P as u32;
    let turnaround = simulated::turnaround(&at_once, utilization, slot_time, answered);
    println!("  late by {late:.1?}, then empty for {turnaround:.1?}");
    let simulated = simulated::replay_with(&policy, &load(nowhere), late + turnaround)?;
    let total: f64 = mix.iter().map(|q| q.share * q.mean.as_secs_f64()).sum();
    let mut all = Vec::new();
    for (query, expected) in mix.iter().zip(&simulated.types) {
        let kind = report.of(query.name).context(query.name)?;
        assert_eq!(kind.offered, expected.offered, "the same requests");
        let rejected = Rejected {
            name: query.name,
            work: query.share * query.mean.as_secs_f64() / total,
            in_envoy: 100.0 * kind.refusal(),
            simulated: expected.rejected_pct(),
        };
        println!(
            "  {:11} rejected {:5.1}% in Envoy, {:5.1}% in the simulator",
            rejected.name, rejected.in_envoy, rejected.simulated
        );
        all.push(rejected);
    }
    Ok(all)
}
