//! A stage before P servers, in cases with known theoretical results.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, ControlScope, CostConfig, QueueMode,
    ResponseTimeControllerConfig, StageConfig, StrategyConfig,
};
use headgate_simulator::backend::Servers;
use headgate_simulator::{LogNormal, Outcome, Rate, Run, ServiceTime, TypeLoad, Until, Workload};
use headgate_strategies::strategy::TypeId;
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

/// Runs `stage` before as many servers as it has slots, with a workload at a rate, requests/s.
/// Results count from `warm_up` s on, for this number of requests.
fn outcome(
    stage: &StageConfig,
    (workload, per_second): (&Workload, f64),
    warm_up: u64,
    requests: u64,
    seed: u64,
) -> Outcome {
    let kinds: Vec<TypeId> = workload.types().iter().map(|kind| kind.kind).collect();
    let run = Run {
        stage,
        kinds: &kinds,
        warm_up: Duration::from_secs(warm_up),
        until: Until::Requests(requests),
        seed: !seed,
    };
    let mut traffic = workload.steady(per_second, seed);
    let servers = Servers::new(stage.parallelism);
    run.with(&mut traffic, servers).unwrap()
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
        let per_second = workload.per_second(Rate::Factor(0.5), 100);
        let outcome = outcome(&stage, (&workload, per_second), 12, 200_000, 1);
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
        let per_second = workload.per_second(Rate::Factor(1.1), 64);
        let outcome = outcome(&stage, (&workload, per_second), 12, 200_000, 1);
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

pub(crate) const OVERLOADS: [f64; 3] = [1.2, 1.5, 2.0];

/// Returns a stage of one type.
pub(crate) fn one_type(slots: u32, strategy: &StrategyConfig) -> StageConfig {
    let mut stage = stage();
    stage.parallelism = slots;
    stage.types.drain(..2);
    stage.strategy = strategy.clone();
    stage
}

/// Runs `strategy` with one type of requests at `load` times the capacity. Processing times are
/// exponential, with a mean of `part` times the target. Measures from 10 s on, for at least a
/// hundred times the target, because rates oscillate over some ten times the target.
pub(crate) fn under(
    load: f64,
    slots: u32,
    (target_ms, part): (f64, f64),
    strategy: &StrategyConfig,
    seed: u64,
) -> Outcome {
    let times = ServiceTime::Exponential(target_ms * part);
    let per_second = load * f64::from(slots) * 1e3 / times.mean_ms();
    let stage = one_type(slots, strategy);
    let workload = Workload::new(vec![TypeLoad::new("a", TypeId(0), 1.0, times)]).unwrap();
    let requests = (per_second * (10.0 + (target_ms * 0.1).max(30.0))) as u64;
    outcome(&stage, (&workload, per_second), 10, requests, seed)
}

/// SEDA §3.2: with an `increase` of 1% of the capacity, one set of the other constants holds
/// targets of different scale at every load.
#[test]
fn an_increase_of_a_hundredth_of_the_capacity_holds_targets_of_milliseconds() {
    const SLOTS: u32 = 20;
    for target_ms in [50.0, 200.0] {
        let capacity = f64::from(SLOTS) * 1e3 / (target_ms / 10.0);
        let target_us = (target_ms * 1e3) as u64;
        let figure_4 = ResponseTimeControllerConfig::figure_4;
        let strategy = StrategyConfig::ResponseTimeController(ResponseTimeControllerConfig {
            increase: Some(capacity / 100.0),
            max_rate: capacity * 1.5,
            decrease: 1.05,
            increase_below: -0.05,
            increase_offset: -0.05,
            smoothing: 0.3,
            requests: 20,
            ..figure_4(ControlScope::Type, vec![vec![target_us]])
        });
        for load in OVERLOADS {
            let outcome = under(load, SLOTS, (target_ms, 0.1), &strategy, 1);
            let p90 = outcome.types[0].response_time_ms(0.9).unwrap() / target_ms;
            let seen = format!("{target_ms} ms, {load}: {p90}, {}", outcome.utilization);
            assert!(
                (p90 - 1.0).abs() < 0.15 && outcome.utilization > 0.6,
                "{seen}"
            );
        }
    }
}

/// Returns SEDA's controller with the defaults of the API.
pub(crate) fn adaptive(target_ms: f64) -> StrategyConfig {
    seda(ResponseTimeControllerConfig::adaptive, target_ms)
}

#[test]
fn percentiles_of_50_ms_to_1_s_are_held_by_steps_in_units_of_the_throughput() {
    for (slots, part) in [(20, 0.1), (20, 0.03)] {
        for target_ms in [50.0, 200.0, 1_000.0] {
            for load in OVERLOADS {
                let outcome = under(load, slots, (target_ms, part), &adaptive(target_ms), 1);
                let p90 = outcome.types[0].response_time_ms(0.9).unwrap() / target_ms;
                let busy = outcome.utilization;
                assert!(
                    (p90 - 1.0).abs() < 0.15 && busy > 0.85,
                    "{slots} slots, {target_ms} ms, {part}, {load}: {p90}, {busy}"
                );
            }
        }
    }
}

#[test]
fn below_the_capacity_steps_in_units_of_the_throughput_refuse_no_request() {
    for target_ms in [50.0, 200.0, 1_000.0] {
        for load in [0.3, 0.9] {
            let outcome = under(load, 20, (target_ms, 0.1), &adaptive(target_ms), 1);
            assert_eq!(outcome.types[0].rejected, 0, "{target_ms} ms, {load}");
        }
    }
}

/// The controller has the defaults of the API.
#[test]
fn mean_delays_of_50_ms_to_1_s_are_held_by_the_backlog() {
    for target_ms in [50.0, 200.0, 1_000.0] {
        for load in OVERLOADS {
            let outcome = under(load, 20, (target_ms, 0.1), &backlog(target_ms), 1);
            let (mean, busy) = (mean(&outcome) / target_ms, outcome.utilization);
            assert!(
                (mean - 1.0).abs() < 0.15 && busy > 0.97,
                "{target_ms} ms, {load}: {mean}, {busy}"
            );
        }
    }
}

fn seda(
    settings: fn(ControlScope, Vec<Vec<u64>>) -> ResponseTimeControllerConfig,
    target_ms: f64,
) -> StrategyConfig {
    StrategyConfig::ResponseTimeController(settings(
        ControlScope::Type,
        vec![vec![(target_ms * 1e3) as u64]],
    ))
}

pub(crate) fn backlog(target_ms: f64) -> StrategyConfig {
    StrategyConfig::BacklogControl(BacklogControlConfig {
        target_us: (target_ms * 1e3) as u64,
        control: BacklogSignal::Backlog,
        cost: CostConfig::Measured,
        period_us: 1_000_000,
        proportional_gain: None,
        integral_gain: None,
        max_backlog: None,
        hint: false,
    })
}

pub(crate) fn mean(outcome: &Outcome) -> f64 {
    let at = |n: u32| outcome.types[0].response_time_ms((f64::from(n) + 0.5) / 1e3);
    (0..1_000).map(|n| at(n).unwrap()).sum::<f64>() / 1e3
}
