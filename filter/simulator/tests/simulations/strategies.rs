//! A stage before P servers, in cases with known theoretical results.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use headgate_core::config::{
    ControlScope, QueueMode, ResponseTimeControllerConfig, StageConfig, StrategyConfig,
};
use headgate_core::strategy::TypeId;
use headgate_simulator::{LogNormal, Rate, ServiceTime, Simulation, TypeLoad, Workload};
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

/// SEDA §3.2: docs/src/concepts/strategies.md has the sweep of the constants. With an `increase` of
/// 1% of the capacity, one set of the others holds targets of different scale at every load.
#[test]
fn an_increase_of_a_hundredth_of_the_capacity_holds_targets_of_milliseconds() {
    const SLOTS: u32 = 20;
    for target_ms in [50.0, 200.0] {
        let times = ServiceTime::Exponential(target_ms / 10.0);
        let capacity = f64::from(SLOTS) * 1e3 / times.mean_ms();
        let mut stage = stage();
        stage.parallelism = SLOTS;
        stage.types.drain(..2);
        let target_us = (target_ms * 1e3) as u64;
        let figure_4 = ResponseTimeControllerConfig::figure_4;
        stage.strategy = StrategyConfig::ResponseTimeController(ResponseTimeControllerConfig {
            increase: capacity / 100.0,
            max_rate: capacity * 1.5,
            decrease: 1.05,
            increase_below: -0.05,
            increase_offset: -0.05,
            smoothing: 0.3,
            requests: 20,
            ..figure_4(ControlScope::Type, vec![vec![target_us]])
        });
        let workload = Workload::new(vec![TypeLoad::new("a", TypeId(0), 1.0, times)]).unwrap();
        for load in [1.2, 1.5, 2.0] {
            let simulation = Simulation {
                stage: &stage,
                workload: &workload,
                per_second: capacity * load,
                warm_up: Duration::from_secs(10),
                requests: (capacity * load * 30.0) as u64,
                seed: 1,
            };
            let outcome = simulation.run().unwrap();
            let p90 = outcome.types[0].response_time_ms(0.9).unwrap() / target_ms;
            let seen = format!("{target_ms} ms, {load}: {p90}, {}", outcome.utilization);
            assert!(
                (p90 - 1.0).abs() < 0.15 && outcome.utilization > 0.6,
                "{seen}"
            );
        }
    }
}
