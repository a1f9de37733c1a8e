//! Tests of one type whose requests cost 2 ms + 1 ms for each unit of their size.

use headgate_core::config::{
    Logic, Objective, RequestCost, RequestSize, StrategyConfig, TokenCount, TokensConfig,
};

use super::value_tests::{number, row};
use super::*;
use crate::progress::Silent;
use crate::samples;
use crate::workload::{LogNormal, TypeLoad};

/// Returns a workload in which a fifth of the requests have size 100 and the others size 1. Their
/// service times vary little.
fn workload() -> Workload {
    let of = |(name, share, size): (&str, f64, u32)| {
        let mean = 2.0 + f64::from(size);
        TypeLoad {
            cost: size,
            ..TypeLoad::new(
                name,
                TypeId(0),
                share,
                LogNormal::new(mean, 0.98 * mean).unwrap(),
            )
        }
    };
    Workload::new([("small", 0.8, 1), ("large", 0.2, 100)].map(of).to_vec()).unwrap()
}

/// Returns a stage with one type and its objective at p90, ms.
fn stage(objective_ms: u64, shed_by_value: bool, by_size: bool) -> StageConfig {
    let mut stage = samples::stage();
    stage.types.drain(..stage.types.len() - 1);
    let kind = &mut stage.types[0];
    kind.slo = vec![Objective {
        percentile: 90.0,
        objective_us: objective_ms * 1_000,
    }];
    kind.cost = by_size.then(|| RequestCost {
        size: RequestSize {
            header: "x-size".to_owned(),
        },
    });
    stage.parallelism = 8;
    stage.strategy = StrategyConfig::Bouncer {
        capacity: None,
        logic: Logic::Any,
        shed_by_value,
    };
    stage
}

fn report(stage: StageConfig, load: f64) -> Report {
    let plan = Plan {
        offered: Offered::Loads {
            workload: workload(),
            loads: vec![Rate::Factor(load)],
        },
        parallelism: None,
        requests: Some(40_000),
        seeds: Some(2),
        seed: Some(1),
        warm_up: Some(Duration::from_secs(10)),
    };
    let trial = Trial::new(stage, "default/simulated", plan, "workload.yaml");
    trial.run(&Size::default(), &Silent).unwrap()
}

/// Returns the percentage of all requests answered within the objective, with `cost` and without
/// `cost`, and the percentages of small and large requests that are refused with `cost`.
fn compare(objective_ms: u64, shed_by_value: bool, load: f64) -> ([f64; 2], [f64; 2]) {
    let [with, without] =
        [true, false].map(|by_size| report(stage(objective_ms, shed_by_value, by_size), load));
    let within = [&with, &without].map(|report| number(row(report, "ALL"), "within_pct"));
    let refused = ["small", "large"].map(|kind| number(row(&with, kind), "rejected_pct"));
    println!("{objective_ms} ms, by value {shed_by_value}, {load}: {within:?}, {refused:?}");
    (within, refused)
}

#[test]
fn only_large_requests_are_refused_for_an_objective() {
    let (within, refused) = compare(150, false, 1.5);
    assert!(refused[0] <= 0.0 && refused[1] > 25.0, "{refused:?}");
    assert!(within[0] >= 1.3 * within[1], "{within:?}");
}

#[test]
fn more_requests_are_answered_in_time_by_value_too() {
    let (within, _) = compare(150, true, 1.5);
    assert!(within[0] >= 1.3 * within[1], "{within:?}");
}

/// Large requests take longer than the objective even on an idle backend. They only get slots that
/// are free, and don't delay small requests beyond the objective.
#[test]
fn requests_that_are_late_in_any_case_take_no_slots_from_others() {
    let (within, refused) = compare(50, false, 1.5);
    assert!(refused[0] < 1.0 && refused[1] > 50.0, "{refused:?}");
    assert!(
        within[0] >= 79.0 && within[0] >= 1.3 * within[1],
        "{within:?}"
    );
}

#[test]
fn hardly_anything_is_refused_below_full_load() {
    for shed_by_value in [false, true] {
        let (_, refused) = compare(300, shed_by_value, 0.7);
        assert!(refused[0] < 0.1 && refused[1] < 1.0, "{refused:?}");
    }
}

/// A request takes as many tokens as its size, so two large requests run at once, and half of the
/// work of large requests fits. The estimates account for this: large requests are refused, and
/// small requests behind them are answered.
#[test]
fn a_budget_of_tokens_refuses_what_would_wait_too_long_for_them() {
    let mut budgeted = stage(500, false, true);
    budgeted.tokens = Some(TokensConfig {
        budget: 250.0,
        prompt: Some(TokenCount {
            header: Some("x-size".to_owned()),
            per_unit: 1.0,
            otherwise: 1,
        }),
        output: None,
        per_request: None,
    });
    for load in [0.2, 0.6] {
        let report = report(budgeted.clone(), load);
        let of = |name: &str| ["small", "large"].map(|kind| number(row(&report, kind), name));
        let (refused, within) = (of("rejected_pct"), of("within_pct"));
        if load < 0.5 {
            assert!(
                refused[1] < 1.0 && within[1] > 99.0,
                "{refused:?}, {within:?}"
            );
        } else {
            // There are slots for all requests at this load. If the estimate left out the remaining
            // work of running requests, only a fifth of the admitted large requests would be in
            // time.
            assert!(
                refused[1] > 45.0 && within[0] > 99.0,
                "{refused:?}, {within:?}"
            );
            assert!(
                within[1] > 0.75 * (100.0 - refused[1]),
                "{refused:?}, {within:?}"
            );
        }
    }
}
