//! Each strategy in the simulator does what tells it from the others.

// Of helpers outside of `#[test]` functions, clippy can't tell that they are tests.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use headgate_core::config::QueueMode;
use headgate_simulator::scenario::{Metric, Sweep, sweep};
use headgate_simulator::{ALL, Batch, Experiment, Rate, Row, ServiceTime, Silent};

/// Results of one series of a scenario at one place of its axis.
fn run(scenario: &Sweep, strategy: &str, x: f64, requests: u64) -> Vec<Row> {
    let series = scenario
        .series
        .iter()
        .find(|s| s.strategy == strategy)
        .unwrap();
    let point = series.points.iter().find(|p| p.x == x).unwrap();
    run_one(scenario, &point.experiment, requests)
}

fn run_one(scenario: &Sweep, experiment: &Experiment, requests: u64) -> Vec<Row> {
    let batch = Batch {
        workload: &scenario.workload,
        warm_up: Duration::from_secs(12),
        requests,
        seed: 1,
        seeds: 2,
        threads: None,
    };
    let results = batch.run(std::slice::from_ref(experiment), &Silent);
    results.unwrap().swap_remove(0)
}

fn value(rows: &[Row], metric: Metric, kind: &str) -> f64 {
    let row = rows.iter().find(|row| row.kind == kind).unwrap();
    metric.of(row).unwrap()
}

#[test]
fn plateaus_order_and_utilization_are_those_of_figures_6_to_8() {
    let scenario = sweep("bouncer-fig6").unwrap();
    // AcceptFraction accepts everything until it has measured for a second; the queue that this leaves
    // has to drain before its utilization can be seen.
    let at = |strategy| run(&scenario, strategy, 1.2, 60_000);
    let (bouncer, length) = (at("Bouncer"), at("MaxQueueLength"));
    let (wait, fraction) = (at("MaxQueueWait"), at("AcceptFraction"));

    let median = |rows: &[Row]| value(rows, Metric::MedianResponseTime, "slow");
    assert!((median(&length) - 40.0).abs() < 3.0, "{}", median(&length));
    assert!((median(&wait) - 22.0).abs() < 2.0, "{}", median(&wait));
    assert!(median(&bouncer) <= 18.5, "{}", median(&bouncer));

    let busy = |rows: &[Row]| value(rows, Metric::Utilization, ALL);
    for rows in [&bouncer, &length, &wait] {
        assert!(busy(rows) > 0.98, "{}", busy(rows));
    }
    assert!(
        (busy(&fraction) - 0.95).abs() < 0.015,
        "{}",
        busy(&fraction)
    );

    let rejected = |rows: &[Row]| value(rows, Metric::Rejected, ALL);
    assert!(rejected(&bouncer) + 5.0 < rejected(&wait));
    assert!(rejected(&wait).max(rejected(&length)) + 1.0 < rejected(&fraction));
}

#[test]
fn limits_by_type_bring_max_queue_wait_close_to_bouncer() {
    let scenario = sweep("bouncer-fig14").unwrap();
    let at = |strategy| run(&scenario, strategy, 1.3, 200_000);
    let (bouncer, wait) = (at("Bouncer"), at("MaxQueueWait+TypeLimits"));
    let close = |metric, kind, tolerance: f64| {
        let (a, b) = (value(&bouncer, metric, kind), value(&wait, metric, kind));
        assert!((a - b).abs() < tolerance, "{kind}: {a} and {b}");
    };
    close(Metric::MedianResponseTime, "slow", 1.5);
    close(Metric::Rejected, ALL, 1.0);
}

#[test]
fn the_same_seed_gives_the_same_result_whatever_the_threads() {
    let scenario = sweep("bouncer-table3").unwrap();
    let experiments = scenario.experiments();
    let run = |threads: usize, seed| {
        let batch = Batch {
            workload: &scenario.workload,
            warm_up: Duration::from_millis(500),
            requests: 5_000,
            seed,
            seeds: 2,
            threads: std::num::NonZeroUsize::new(threads),
        };
        batch.run(&experiments[10..14], &Silent).unwrap()
    };
    let once = run(1, 7);
    assert_eq!(once, run(3, 7));
    assert_ne!(once, run(1, 8));
}

#[test]
fn below_capacity_response_times_are_service_times_and_nothing_is_refused() {
    let scenario = sweep("bouncer-table3").unwrap();
    let mut experiment = scenario.experiments().swap_remove(0);
    experiment.rate = Rate::Factor(0.5);
    for mode in [QueueMode::Hold, QueueMode::Observe] {
        experiment.stage.queue.mode = mode;
        let rows = run_one(&scenario, &experiment, 100_000);
        assert_eq!(value(&rows, Metric::Rejected, ALL), 0.0);
        assert!((value(&rows, Metric::Utilization, ALL) - 0.5).abs() < 0.01);
        for kind in scenario.workload.types() {
            let ServiceTime::LogNormal(times) = &kind.service_time else {
                panic!("the paper's times are lognormal")
            };
            let (found, expected) = (
                value(&rows, Metric::MedianResponseTime, &kind.name),
                times.median_ms(),
            );
            assert!((found / expected - 1.0).abs() < 0.03, "{found} {expected}");
        }
    }
}

#[test]
fn results_are_held_against_the_paper() {
    let scenario = sweep("bouncer-table3").unwrap();
    let row = |kind: &str, rejected_pct| Row {
        kind: kind.into(),
        offered: 1.0,
        rejected_pct,
        rt_p50_ms: None,
        rt_p90_ms: None,
        utilization: 1.0,
    };
    // At 0.9 times the full load the paper has slow 0.01 and ALL 0.00.
    let good = vec![row("fast", 0.0), row("slow", 2.9), row(ALL, 0.9)];
    let bad = vec![row("fast", 0.001), row("slow", 3.1), row(ALL, 1.1)];
    let judge = |rows| scenario.report(&scenario.rows(vec![rows])).verdict();
    let found = |rows: &[Row]| judge(rows.to_vec());
    assert_eq!(
        (found(&good).failures.len(), found(&bad).failures.len()),
        (0, 3)
    );
    let outside = found(&bad).failures;
    assert_eq!(
        outside[1],
        "Bouncer, slow, factor 0.9: 3.10, the paper has 0.01 ± 3"
    );
}

#[test]
fn sliding_windows_stay_within_the_tolerances_of_table_3() {
    let scenario = sweep("bouncer-windows").unwrap();
    // Table 3, Bouncer: slow and ALL.
    for (load, slow, all) in [(1.05, 15.89, 1.59), (1.2, 53.63, 5.36), (1.5, 98.46, 11.30)] {
        let rows = run(&scenario, "Bouncer+Sliding", load, 200_000);
        let rejected = |kind| value(&rows, Metric::Rejected, kind);
        for (kind, paper, within) in [("slow", slow, 3.0), (ALL, all, 1.0)] {
            let found = rejected(kind);
            assert!(
                (found - paper).abs() <= within,
                "{kind} at {load}: {found:.2}, the paper has {paper}"
            );
        }
        assert_eq!((rejected("fast"), rejected("mediumfast")), (0.0, 0.0));
        let busy = value(&rows, Metric::Utilization, ALL);
        assert!(busy > 0.99, "{busy} at {load}");
    }
}

#[test]
fn all_gives_up_the_tighter_objective_and_any_does_not() {
    let scenario = sweep("bouncer-windows").unwrap();
    let median = |strategy| {
        let rows = run(&scenario, strategy, 1.3, 200_000);
        value(&rows, Metric::MedianResponseTime, "slow")
    };
    assert!(median("Bouncer+Sliding") <= 18.0);
    assert!(median("Bouncer+All+Sliding") > 18.5);
}
