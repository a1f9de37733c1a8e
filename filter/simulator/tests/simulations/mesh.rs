//! Meshes, and the Wisp experiments at a small size: what the paper says about them in words.

// Of helpers outside of `#[test]` functions, clippy can't tell that they are tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::num::NonZeroUsize;
use std::time::Duration;

use headgate_core::config::WorkflowsConfig;
use headgate_simulator::mesh::{
    Arrivals, Calls, Clocks, Ending, Graph, Load, Network, Route, Run, Seen, Service, Setup, Step,
    Task, Workflow,
};
use headgate_simulator::report::Value;
use headgate_simulator::scenario::{Silent, Size, by_name};
use headgate_simulator::{Report, ServiceTime};

fn run(name: &str, requests: u64, threads: Option<usize>) -> Report {
    let size = Size {
        requests: Some(requests),
        seeds: Some(1),
        seed: Some(1),
        threads: threads.and_then(NonZeroUsize::new),
    };
    by_name(name).unwrap().run(&size, &Silent).unwrap()
}

/// Whether the claim that contains these words holds.
fn holds(report: &Report, words: &str) -> bool {
    let found = report
        .claims
        .iter()
        .find(|claim| claim.text.contains(words));
    let claim = found.unwrap_or_else(|| panic!("no claim with {words:?}"));
    claim.holds == Some(true)
}

fn simulate(graph: &Graph, arrivals: Arrivals, seconds: u64, seed: u64) -> Seen {
    simulate_with(&Setup::default(), graph, arrivals, seconds, seed)
}

fn simulate_with(
    setup: &Setup,
    graph: &Graph,
    arrivals: Arrivals,
    seconds: u64,
    seed: u64,
) -> Seen {
    let run = Run {
        graph,
        loads: &[Load::new(0, arrivals)],
        setup,
        until: Duration::from_secs(seconds),
        sample_every: Duration::from_secs(1),
        requests: u64::MAX,
        seed,
    };
    run.make().unwrap()
}

/// `front` makes `calls` of `back`, so many at once.
fn two_tiers(calls: u32, at_once: u32, time: ServiceTime, network: Network) -> Graph {
    let several = Calls::several(0, calls, at_once, Route::RoundRobin);
    Graph {
        services: vec![Service::new("front", 1, 1_000), Service::new("back", 2, 8)],
        tasks: vec![
            Task {
                service: 1,
                steps: vec![Step::Compute(time)],
            },
            Task {
                service: 0,
                steps: vec![Step::Call(several)],
            },
        ],
        workflows: vec![Workflow::new("w", 1)],
        network,
    }
}

fn still(delay: Duration) -> Network {
    Network {
        delay,
        ..Network::default()
    }
}

#[test]
fn a_single_queue_is_that_of_the_textbook() {
    let graph = Graph {
        services: vec![Service::new("one", 1, 1)],
        tasks: vec![Task {
            service: 0,
            steps: vec![Step::Compute(ServiceTime::Exponential(10.0))],
        }],
        workflows: vec![Workflow::new("w", 0)],
        network: still(Duration::ZERO),
    };
    let seen = simulate(&graph, Arrivals::Poisson(70.0), 2_000, 3);
    let latencies = seen.latencies(None, 0.0..1_990.0);
    // M/M/1: 10 ms / (1 − 0.7).
    let mean = latencies.iter().sum::<f64>() / latencies.len() as f64;
    assert!((mean - 0.0333).abs() < 0.002, "{mean}");
    assert!((seen.utilization(0, 1, 10.0..1_990.0) - 0.7).abs() < 0.02);
}

#[test]
fn calls_are_made_in_sequence_or_at_once_and_spread_over_processes() {
    let ms = Duration::from_millis(1);
    for (at_once, expected) in [(1, 48.0), (2, 24.0), (4, 12.0)] {
        let graph = two_tiers(4, at_once, ServiceTime::Constant(10.0), still(ms));
        let seen = simulate(&graph, Arrivals::Even(10.0), 20, 1);
        let latencies = seen.latencies(None, 0.0..19.0);
        // Each round of calls is 10 ms and two ways; so are the client's.
        let took = latencies[latencies.len() / 2] * 1e3;
        assert!((took - expected - 2.0).abs() < 0.1, "{at_once}: {took}");
        let last = seen.samples.last().unwrap();
        let offered: Vec<u64> = last.processes.iter().map(|p| p.offered[0]).collect();
        assert!(offered[1].abs_diff(offered[2]) <= 4, "{offered:?}");
        assert!((offered[1] + offered[2]).abs_diff(offered[0] * 4) <= 4);
    }
}

#[test]
fn lost_responses_end_by_the_callers_timeout_and_leave_nothing_behind() {
    let network = Network {
        lost: 0.25,
        timeout: Some(Duration::from_millis(200)),
        ..Network::default()
    };
    let graph = two_tiers(1, 1, ServiceTime::Constant(10.0), network);
    let seen = simulate(&graph, Arrivals::Poisson(100.0), 100, 5);
    let failed = seen.part(None, 0.0..99.0, Ending::Failed).unwrap();
    assert!((failed - 0.25).abs() < 0.02, "{failed}");
    let slow = seen.sent_in(None, 0.0..99.0).filter(|e| !e.is_served());
    assert!(
        slow.into_iter()
            .all(|e| (0.2..0.21).contains(&e.latency_s()))
    );
    assert!(seen.samples.last().unwrap().processes[0].running < 30);
}

#[test]
fn what_clients_gave_up_is_still_worked_on() {
    let mut graph = two_tiers(1, 1, ServiceTime::Constant(100.0), Network::default());
    graph.workflows[0].timeout = Some(Duration::from_millis(500));
    // 160 requests/s can be served.
    let seen = simulate(&graph, Arrivals::Poisson(240.0), 60, 5);
    let timed_out = seen.part(None, 20.0..59.0, Ending::TimedOut).unwrap();
    assert!(timed_out > 0.99, "{timed_out}");
    assert!(seen.utilization(1, 8, 20.0..59.0) > 0.99);
}

/// Rates, limiters and deadlines, with clocks that are apart.
fn rates_by(clocks: Clocks) -> Setup {
    let workflows: WorkflowsConfig = serde_json::from_value(serde_json::json!({
        "identify": [{"type": "Type"}],
        "quantile": 0.5,
        "interval_us": 100_000,
        "rate_ttl_us": 1_000_000,
        "sharing": {"type": "BottleneckFairness", "probe": 10.0, "max_utilization": 0.9},
        "max_workflows": 10,
        "max_queue_length": 100,
    }))
    .unwrap();
    Setup {
        deadlines: true,
        workflows: Some(workflows),
        clocks,
        ..Setup::default()
    }
}

/// Half as much again as `back` can serve, for 30 s.
fn overloaded(clocks: Clocks) -> Seen {
    let mut graph = two_tiers(1, 1, ServiceTime::Exponential(100.0), Network::default());
    graph.workflows[0].deadline = Some(Duration::from_secs(2));
    simulate_with(&rates_by(clocks), &graph, Arrivals::Poisson(240.0), 30, 9)
}

#[test]
fn clocks_that_are_years_apart_change_nothing() {
    let together = overloaded(Clocks::default());
    let refused = together.part(None, 10.0..29.0, Ending::Refused).unwrap();
    assert!((0.25..0.6).contains(&refused), "{refused}");
    let apart = overloaded(Clocks {
        ahead: Duration::from_secs(100 * 365 * 24 * 60 * 60),
        drift: 0.0,
    });
    assert!(together == apart, "not the same run");
}

#[test]
fn clocks_that_run_unevenly_change_little() {
    let served = |drift| {
        let seen = overloaded(Clocks {
            ahead: Duration::from_secs(3_600),
            drift,
        });
        let late = seen.part(None, 10.0..29.0, Ending::TimedOut).unwrap();
        assert!(late < 0.01, "{late}");
        seen.throughput(0, 10.0..29.0)
    };
    // What time synchronization allows for, and a hundred times as much.
    let even = served(0.0);
    for drift in [0.0005, 0.05] {
        let uneven = served(drift);
        assert!((uneven / even - 1.0).abs() < 0.05, "{even}, then {uneven}");
    }
}

#[test]
fn the_same_seed_gives_the_same_report_whatever_the_threads() {
    let once = run("wisp-example", 1, Some(1));
    assert_eq!(once, run("wisp-example", 1, Some(3)));
}

#[test]
fn the_example_has_the_papers_numbers() {
    let report = run("wisp-example", 1, None);
    assert!(report.verdict().holds(), "{:?}", report.verdict().failures);
    let numbers = |name: &str| -> Vec<f64> {
        let rows = report.rows.iter();
        rows.map(|row| row.get(name).and_then(Value::number).unwrap())
            .collect()
    };
    assert_eq!(numbers("q"), [0.0, 0.5, 1.0]);
    let sigma = numbers("sigma_a1_w1");
    assert!((sigma[0] - 75.0).abs() < 4.0 && (sigma[2] - 100.0).abs() < 4.0);
}

#[test]
fn without_rates_one_workflow_takes_all_down_and_with_them_it_does_not() {
    // Long enough for what timed out to fill every queue.
    let report = run("wisp-fig7", 100_000, None);
    for words in [
        "throughput collapse",
        "retain their throughput",
        "throttles F",
    ] {
        assert!(holds(&report, words), "{words}: {:?}", report.claims);
    }
}

#[test]
fn a_hotspot_is_contained() {
    let report = run("wisp-fig9", 30_000, None);
    for words in [
        "inflates A's latency",
        "A retains its latency",
        "background",
    ] {
        assert!(holds(&report, words), "{words}: {:?}", report.claims);
    }
}

#[test]
fn rates_settle_and_stay_whatever_the_hops_and_losses() {
    let report = run("wisp-convergence", 1, None);
    assert!(report.verdict().holds(), "{:?}", report.verdict().failures);
}

#[test]
fn deadlines_are_met_by_those_that_are_answered() {
    let report = run("wisp-table3", 20_000, None);
    assert!(
        holds(&report, "improves on the baseline"),
        "{:?}",
        report.claims
    );
    assert!(holds(&report, "large factors"), "{:?}", report.claims);
}
