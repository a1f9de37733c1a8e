//! A stage before P servers, in cases with known theoretical results.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, ControlScope, CostConfig, QueueMode,
    ResponseTimeControllerConfig, StageConfig, StrategyConfig,
};
use headgate_core::strategy::TypeId;
use headgate_simulator::{LogNormal, Outcome, Rate, ServiceTime, Simulation, TypeLoad, Workload};
use serde_json::json;

/// Returns Bouncer before 100 servers, with Table 1's types `fast` and `slow` and objectives of 18
/// and 50 ms.
fn stage() -> StageConfig {
    let slo = json!([
        {"percentile": 50, "objective_us": 18_000},
        {"percentile": 90, "objective_us": 50_000},
    ]);
    let kind = |name: &str| json!({"name": name, "matches": [{"method": name}], "slo": slo});
    let stage = json!({
        "policy": "default/simulated",
        "parallelism": 100,
        "queue": {"max_length": 1_000_000, "timeout_us": 3_600_000_000_u64},
        "strategy": {"type": "Bouncer"},
        "types": [kind("fast"), kind("slow"), {"name": "default", "slo": slo}],
    });
    serde_json::from_value(stage).unwrap()
}

#[test]
fn below_capacity_response_times_are_service_times_and_nothing_is_refused() {
    let times = [
        LogNormal::new(1.16, 0.38).unwrap(),
        LogNormal::new(20.05, 12.51).unwrap(),
    ];
    let kind =
        |(id, times): (u16, LogNormal)| TypeLoad::new(id.to_string(), TypeId(id), 0.5, times);
    let workload = Workload::new((0..).zip(times).map(kind).collect()).unwrap();
    for mode in [QueueMode::Hold, QueueMode::Observe] {
        let mut stage = stage();
        stage.queue.mode = mode;
        let simulation = Simulation {
            stage: &stage,
            workload: &workload,
            per_second: workload.per_second(Rate::Factor(0.5), 100),
            warm_up: Duration::from_secs(12),
            requests: 200_000,
            seed: 1,
        };
        let outcome = simulation.run().unwrap();
        assert!(
            (outcome.utilization - 0.5).abs() < 0.01,
            "{}",
            outcome.utilization
        );
        for (kind, times) in outcome.types.iter().zip(times) {
            assert_eq!(kind.rejected, 0);
            let (found, expected) = (kind.response_time_ms(0.5).unwrap(), times.median_ms());
            assert!((found / expected - 1.0).abs() < 0.03, "{found} {expected}");
        }
    }
}

/// Bouncer §2: 64 servers with queries of 10 ms on average, and an objective of 100 ms for the
/// median.
#[test]
fn objectives_far_above_processing_times_do_not_bound_the_utilization() {
    let times = LogNormal::new(10.0, 9.0).unwrap();
    let load = TypeLoad::new("a", TypeId(0), 1.0, times);
    let workload = Workload::new(vec![load]).unwrap();
    let run = |strategy: serde_json::Value| {
        let mut stage = stage();
        stage.parallelism = 64;
        stage.strategy = serde_json::from_value(strategy).unwrap();
        stage.types.remove(1);
        for kind in &mut stage.types {
            kind.slo = serde_json::from_value(json!([
                {"percentile": 50, "objective_us": 100_000},
            ]))
            .unwrap();
        }
        let simulation = Simulation {
            stage: &stage,
            workload: &workload,
            per_second: workload.per_second(Rate::Factor(1.1), 64),
            warm_up: Duration::from_secs(12),
            requests: 200_000,
            seed: 1,
        };
        let outcome = simulation.run().unwrap();
        let median = outcome.types[0].response_time_ms(0.5).unwrap();
        (outcome.utilization, median)
    };
    let (utilization, median) = run(json!({"type": "Bouncer"}));
    assert!(
        utilization > 0.99 && median > 80.0,
        "{utilization} {median}"
    );
    let capacity = json!({"max_utilization": 0.8, "window_us": 5_000_000, "step_us": 100_000});
    let (utilization, median) = run(json!({"type": "Bouncer", "capacity": capacity}));
    assert!(
        (utilization - 0.8).abs() < 0.01 && median < 10.0,
        "{utilization} {median}"
    );
}

/// Runs `strategy`, of one type of exponential processing times, at 1.2, 1.5 and 2 times the
/// capacity. Measures from 10 s on, for a hundred times the target: a rate swings over some ten.
fn under_overload(
    target_ms: f64,
    processing_ms: f64,
    strategy: &StrategyConfig,
) -> impl Iterator<Item = (f64, Outcome)> {
    const SLOTS: u32 = 20;
    let times = ServiceTime::Exponential(processing_ms);
    let capacity = f64::from(SLOTS) * 1e3 / times.mean_ms();
    let mut stage = stage();
    stage.parallelism = SLOTS;
    stage.types.drain(..2);
    stage.strategy = strategy.clone();
    let workload = Workload::new(vec![TypeLoad::new("a", TypeId(0), 1.0, times)]).unwrap();
    [1.2, 1.5, 2.0].into_iter().map(move |load| {
        let simulation = Simulation {
            stage: &stage,
            workload: &workload,
            per_second: capacity * load,
            warm_up: Duration::from_secs(10),
            requests: (capacity * load * (10.0 + (target_ms * 0.1).max(30.0))) as u64,
            seed: 1,
        };
        (load, simulation.run().unwrap())
    })
}

/// With the defaults of the API.
#[test]
fn percentiles_of_50_ms_to_1_s_are_held_by_steps_in_units_of_the_throughput() {
    for (target_ms, part) in [(50.0, 0.1), (200.0, 0.1), (1_000.0, 0.1), (200.0, 0.03)] {
        let targets_us = vec![vec![(target_ms * 1e3) as u64]];
        let strategy = StrategyConfig::ResponseTimeController(ResponseTimeControllerConfig {
            increase: None,
            increase_below: -0.1,
            smoothing: 0.3,
            requests: 20,
            max_rate: 100_000.0,
            ..ResponseTimeControllerConfig::figure_4(ControlScope::Type, targets_us)
        });
        for (load, outcome) in under_overload(target_ms, target_ms * part, &strategy) {
            let p90 = outcome.types[0].response_time_ms(0.9).unwrap() / target_ms;
            let seen = format!("{target_ms} ms, {load}: {p90}, {}", outcome.utilization);
            println!("{seen}");
            assert!(
                (p90 - 1.0).abs() < 0.15 && outcome.utilization > 0.85,
                "{seen}"
            );
        }
    }
}

/// With the defaults of the API.
#[test]
fn mean_delays_of_50_ms_to_1_s_are_held_by_the_backlog() {
    for target_ms in [50.0, 200.0, 1_000.0] {
        let strategy = StrategyConfig::BacklogControl(BacklogControlConfig {
            target_us: (target_ms * 1e3) as u64,
            control: BacklogSignal::Backlog,
            cost: CostConfig::Measured,
            period_us: 1_000_000,
            proportional_gain: None,
            integral_gain: None,
            max_backlog: None,
            hint: false,
        });
        for (load, outcome) in under_overload(target_ms, target_ms * 0.1, &strategy) {
            let at = |n: u32| outcome.types[0].response_time_ms((f64::from(n) + 0.5) / 1e3);
            let mean = (0..1_000).map(|n| at(n).unwrap()).sum::<f64>() / 1e3 / target_ms;
            let seen = format!("{target_ms} ms, {load}: {mean}, {}", outcome.utilization);
            println!("{seen}");
            assert!(
                (mean - 1.0).abs() < 0.15 && outcome.utilization > 0.97,
                "{seen}"
            );
        }
    }
}
