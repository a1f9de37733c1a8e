//! Services that call each other, in cases with known theoretical results.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use headgate_core::config::{Discipline, StageConfig, WorkflowsConfig};
use headgate_simulator::ServiceTime;
use headgate_simulator::mesh::file::MeshFile;
use headgate_simulator::mesh::{
    Arrivals, Calls, Clocks, Ending, Graph, Load, Network, Policy, Route, Run, Seen, Service,
    Setup, Step, Task, Workflow,
};
use serde_json::json;

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

/// Returns a graph in which `front` makes `calls` calls to `back`, `at_once` of them at once.
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
    // The mean response time of M/M/1 is 10 ms / (1 − 0.7).
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
        // Each round of calls takes 10 ms and two network delays. The client adds two more delays.
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
fn a_service_continues_to_work_on_abandoned_requests() {
    let mut graph = two_tiers(1, 1, ServiceTime::Constant(100.0), Network::default());
    graph.workflows[0].timeout = Some(Duration::from_millis(500));
    // The capacity of `back` is 160 requests/s.
    let seen = simulate(&graph, Arrivals::Poisson(240.0), 60, 5);
    let timed_out = seen.part(None, 20.0..59.0, Ending::TimedOut).unwrap();
    assert!(timed_out > 0.99, "{timed_out}");
    assert!(seen.utilization(1, 8, 20.0..59.0) > 0.99);
}

/// Returns a setup with rates, limiters, deadlines, and these clocks.
fn rates_by(graph: &Graph, clocks: Clocks) -> Setup {
    let workflows: WorkflowsConfig = serde_json::from_value(json!({
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
        clocks,
        ..Setup::alike(graph, &Discipline::Fifo, Some(&workflows))
    }
}

/// Runs `front` for 30 s at 1.5 times the capacity of `back`.
fn overloaded(clocks: Clocks) -> Seen {
    let mut graph = two_tiers(1, 1, ServiceTime::Exponential(100.0), Network::default());
    graph.workflows[0].deadline = Some(Duration::from_secs(2));
    simulate_with(
        &rates_by(&graph, clocks),
        &graph,
        Arrivals::Poisson(240.0),
        30,
        9,
    )
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
    // The first drift is what time synchronization can cause, and the second a hundred times as
    // much.
    let even = served(0.0);
    for drift in [0.0005, 0.05] {
        let uneven = served(drift);
        assert!((uneven / even - 1.0).abs() < 0.05, "{even}, then {uneven}");
    }
}

/// Returns a mesh in which `front` calls `back` once for each of two operations. The capacity of
/// `back` is 160 requests/s.
fn two_operations() -> MeshFile {
    let operation = |name: &str| {
        let call = json!({"call": {"service": "back", "operation": name}});
        json!({"name": name, "steps": [call]})
    };
    let answer = |name: &str, mean: &str| {
        let compute = json!({"compute": {"distribution": "Constant", "mean": mean}});
        json!({"name": name, "request": {"path": format!("/api/{name}")}, "steps": [compute]})
    };
    let workflow = |name: &str, rate: u32| {
        json!({
            "name": name, "service": "front", "operation": name, "clients": [{"rate": rate}],
        })
    };
    let file = json!({
        "services": [
            {"name": "front", "parallelism": 1_000,
             "operations": [operation("read"), operation("write")]},
            {"name": "back", "processes": 2, "parallelism": 8,
             "operations": [answer("read", "100ms"), answer("write", "100ms")]},
        ],
        "workflows": [workflow("read", 120), workflow("write", 120)],
        "duration": "60s",
    });
    serde_json::from_value(file).unwrap()
}

/// Returns a stage with two types by path, and with the fields of `more`.
fn stage(more: &serde_json::Value) -> StageConfig {
    let kind = |name: &str| {
        let path = json!({"type": "PathPrefix", "value": format!("/api/{name}")});
        let slo = json!([{
            "percentile": 50,
            "objective_us": if name == "read" { 300_000 } else { 5_000_000 },
        }]);
        json!({"name": name, "matches": [{"path": path}], "slo": slo})
    };
    let mut stage = json!({
        "policy": "default/back",
        "parallelism": 1,
        "queue": {"max_length": 800, "timeout_us": 10_000_000},
        "strategy": {"type": "Bouncer"},
        "types": [
            kind("read"),
            kind("write"),
            {"name": "default", "slo": [{"percentile": 50, "objective_us": 1_000_000}]},
        ],
    });
    stage
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    serde_json::from_value(stage).unwrap()
}

/// Runs the mesh with this stage in front of `back`, and without a policy for `front`.
fn behind(stage: StageConfig) -> Seen {
    let plan = two_operations().plan().unwrap();
    let setup = Setup {
        policies: vec![None, Some(Policy::new(stage, &plan, 1).unwrap())],
        deadlines: true,
        ..Setup::default()
    };
    let run = Run {
        graph: &plan.graph,
        loads: &plan.loads,
        setup: &setup,
        until: Duration::from_secs(60),
        sample_every: Duration::from_secs(1),
        requests: u64::MAX,
        seed: 1,
    };
    run.make().unwrap()
}

/// Returns the ratios of reads and of writes that failed.
fn failed(seen: &Seen) -> [f64; 2] {
    [0, 1].map(|w| seen.part(Some(w), 20.0..55.0, Ending::Failed).unwrap())
}

#[test]
fn each_service_decides_by_its_own_policy() {
    // A read waits for at most 200 ms, a write for five seconds, so the refused requests are reads.
    let [reads, writes] = failed(&behind(stage(&json!({}))));
    assert!(reads > 0.4 && writes < 0.1, "{reads} {writes}");
    // With the objectives exchanged, the refused requests are writes.
    let mut other = stage(&json!({}));
    (other.types[0].slo, other.types[1].slo) =
        (other.types[1].slo.clone(), other.types[0].slo.clone());
    let [reads, writes] = failed(&behind(other));
    assert!(reads < 0.1 && writes > 0.4, "{reads} {writes}");
}

#[test]
fn a_service_orders_its_queue_by_objectives_and_by_classes() {
    let full = json!({"type": "MaxQueueLength"});
    // Requests are served in order of slack, so reads wait for less time than writes.
    let slack = stage(&json!({
        "strategy": full,
        "queue": {
            "discipline": {"type": "Slack"}, "max_length": 64, "timeout_us": 10_000_000,
        },
    }));
    let median = |seen: &Seen, w| {
        let sorted = seen.latencies(Some(w), 20.0..55.0);
        sorted[sorted.len() / 2]
    };
    let seen = behind(slack);
    assert!(
        median(&seen, 0) < 0.6 * median(&seen, 1),
        "{} {}",
        median(&seen, 0),
        median(&seen, 1)
    );
    // Three of four turns go to reads, whose class is derived from the path.
    let path = json!({"type": "PathPrefix", "value": "/api/read"});
    let weighted = stage(&json!({
        "strategy": full,
        "classes": [{"name": "gold", "matches": [{"path": path}]}, {"name": "rest"}],
        "queue": {
            "discipline": {
                "type": "DRR", "by": "Class", "quantum_us": 100_000, "weights": {"gold": 3.0},
            },
            "max_length": 64,
            "timeout_us": 10_000_000,
        },
    }));
    let seen = behind(weighted);
    assert!(
        median(&seen, 0) < 0.6 * median(&seen, 1),
        "{} {}",
        median(&seen, 0),
        median(&seen, 1)
    );
}

#[test]
fn excluded_requests_bypass_a_policy() {
    let path = json!({"type": "PathPrefix", "value": "/api/write"});
    let seen = behind(stage(&json!({"excluded": [{"path": path}]})));
    let [_, writes] = failed(&seen);
    assert_eq!(writes, 0.0);
    // A request that bypasses the stage needs no slot.
    assert!(seen.samples.last().unwrap().processes[1].running >= 1);
}
