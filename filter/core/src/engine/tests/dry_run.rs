//! Tests that a dry run makes the same decisions as enforcement.

use super::*;
use crate::config::{Mode, Objective, StrategyConfig};

const SERVICE: Duration = Duration::from_millis(20);

/// Sends a request of 20 ms to one slot every 10 ms, which is twice the full load. Returns how many
/// of the 1,000 requests after the first `warm_up` requests are rejected.
fn rejected(mode: Mode, strategy: &str, warm_up: u64) -> u64 {
    let mut config = config(1, |stage| {
        stage.mode = mode;
        stage.queue.max_length = 20;
        stage.queue.timeout_us = 300_000;
        stage.strategy = serde_json::from_str::<StrategyConfig>(strategy).unwrap();
        for kind in &mut stage.types {
            kind.slo.push(Objective {
                percentile: 50.0,
                objective_us: 105_000,
            });
        }
    });
    config.stages[0].service_times.min_samples = 5;
    let mut process = Process::new(2, &config);
    let mut served = 0;
    let mut ends = None;
    let mut before = 0;
    for n in 0..warm_up + 1_000 {
        if n == warm_up {
            before = process.gauge("type.default.rq_rejected");
        }
        process.arrive(n as usize % 2, "/");
        process.run_for(Duration::from_millis(10));
        // The backend has one server, and serves in order of arrival.
        if ends.is_some_and(|at| at <= process.now) {
            process.finish(process.started[served], Outcome::Completed);
            process.settle();
            served += 1;
            ends = None;
        }
        if ends.is_none() && served < process.started.len() {
            ends = Some(process.now + SERVICE);
        }
    }
    process.run_for(Duration::from_millis(10));
    process.gauge("type.default.rq_rejected") - before
}

#[test]
fn a_dry_run_rejects_about_as_many_as_enforcing() {
    let control = |signal: &str| {
        format!(
            r#"{{"type":"BacklogControl","target_us":150000,"control":"{signal}",
            "cost":{{"type":"Measured"}},"period_us":500000}}"#
        )
    };
    for strategy in [
        r#"{"type":"MaxQueueLength"}"#.to_owned(),
        r#"{"type":"MaxQueueWait","limit_us":100000,"window_us":1000000,"step_us":100000}"#
            .to_owned(),
        r#"{"type":"Bouncer"}"#.to_owned(),
        control("Backlog"),
        control("QueueLength"),
        control("Proportional"),
    ] {
        let enforced = rejected(Mode::Enforce, &strategy, 500);
        let dry = rejected(Mode::DryRun, &strategy, 500);
        assert!((450..=550).contains(&enforced), "{strategy}: {enforced}");
        assert!(
            dry.abs_diff(enforced) <= 50,
            "{strategy}: {dry} of {enforced}"
        );
    }
}

#[test]
fn a_queue_without_requests_refuses_no_request() {
    let mut process = Process::new(
        1,
        &config(1, |stage| {
            stage.mode = Mode::DryRun;
            stage.queue.max_length = 2;
        }),
    );
    for _ in 0..30 {
        let stream = process.arrive(0, "/slow");
        process.pass_time(SERVICE);
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_secs(3));
    let rejected = |process: &mut Process| {
        process.run_for(Duration::from_millis(10));
        process.gauge("type.slow.rq_rejected")
    };
    // Under enforcement one request would run and two would wait. In the dry run all twenty are in
    // the backend, which serves them one by one.
    let burst: Vec<u32> = (0..20).map(|_| process.arrive(0, "/slow")).collect();
    assert_eq!(rejected(&mut process), 17);
    for stream in &burst[..5] {
        process.run_for(SERVICE);
        process.finish(*stream, Outcome::Completed);
    }
    // Under enforcement, the three admitted requests would have ended by now.
    process.arrive(0, "/slow");
    assert_eq!(rejected(&mut process), 17);
}
