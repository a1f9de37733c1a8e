//! Tests of backlog control over several workers, which share one bound and one rejection rate,
//! with costs from a header.

use super::*;
use crate::config::StrategyConfig;

/// Returns a request that states its cost.
fn costing(cost: &str) -> MemoryRequest {
    MemoryRequest::get("/").with("x-headgate-cost", cost)
}

/// Returns a configuration with one slot, S_t = 1 s and P = 1 s (the sampling period).
fn config(change: impl FnOnce(&mut StageConfig)) -> FilterConfig {
    super::config(1, |stage| {
        let strategy = r#"{"type":"BacklogControl","target_us":1000000,"control":"Backlog",
            "cost":{"type":"Header","header":"x-headgate-cost"},"period_us":1000000,"hint":true}"#;
        stage.strategy = serde_json::from_str::<StrategyConfig>(strategy).unwrap();
        stage.queue.timeout_us = 60_000_000;
        change(stage);
    })
}

/// Returns three workers that have served 20 requests of cost 10 and 100 ms each.
fn warm() -> Process {
    let mut process = Process::new(3, &config(|_| {}));
    for n in 0..20 {
        let stream = process.arrive_as(n % 3, &costing("10"), None);
        process.run_for(Duration::from_millis(100));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_millis(10));
    process
}

fn rates(process: &Process) -> Vec<Option<f64>> {
    let rate = |engine: &Option<Engine>| {
        let engine = engine.as_ref().unwrap();
        engine.policies[0].stage.rejection_rate()
    };
    process.workers.iter().map(rate).collect()
}

#[test]
fn all_workers_fill_one_backlog_and_tell_one_rejection_rate() {
    let mut process = warm();
    let bound = process.gauge("backlog_bound");
    // A unit takes 10 ms. So 45 units take half of the remaining 900 ms, which are the target of 1
    // s less the 100 ms of a request.
    assert!((40..=50).contains(&bound), "{bound}");
    process.run_for(Duration::from_secs(3));
    assert_eq!(rates(&process), [Some(0.0); 3]);
    process.refused.clear();
    for n in 0..20 {
        process.arrive_as(n % 3, &costing("10"), None);
    }
    let admitted = 1 + bound / 10;
    assert_eq!(process.queued().len() as u64, admitted - 1);
    assert_eq!(process.gauge("queued_work_us"), (admitted - 1) * 10);
    assert!(
        process
            .refused
            .iter()
            .all(|(_, reason)| *reason == Reason::Backlog)
    );
    // A smaller request still fits, on any worker.
    let room = bound - (admitted - 1) * 10;
    assert!(room >= 1);
    process.arrive_as(2, &costing("1"), None);
    assert_eq!(process.queued().len() as u64, admitted);
    // The record has all counts after the first tick, and all workers have read the counts after
    // the second tick.
    process.run_for(Duration::from_millis(20));
    let rate = (20 - admitted) as f64 / 21.0;
    for told in rates(&process) {
        assert!((told.unwrap() - rate).abs() < 1e-9, "{told:?}, {rate}");
    }
    // The stat of the queued work is a time, regardless of the unit of costs.
    let micros = process.host.value("headgate.policy.ns/p.queued_work_us");
    let expected = ((admitted - 1) * 10 + 1) * 10_000;
    assert!(
        micros.unwrap().abs_diff(expected) < expected / 100,
        "{micros:?}"
    );
}

#[test]
fn a_request_that_expires_in_the_queue_counts_in_the_rejection_rate() {
    let mut process = warm();
    process.run_for(Duration::from_secs(3));
    assert_eq!(rates(&process), [Some(0.0); 3]);
    for n in 0..4 {
        // One request gets the slot, and two of the others expire, because a request takes 100 ms.
        let deadline = (n % 2 == 1).then_some(Duration::from_millis(350));
        process.arrive_as(n % 3, &costing("1"), deadline);
    }
    process.run_for(Duration::from_millis(200));
    assert_eq!(rates(&process), [Some(0.0); 3]);
    process.run_for(Duration::from_millis(100));
    assert_eq!(process.queued().len(), 1);
    assert_eq!(rates(&process), [Some(0.5); 3]);
    process.run_for(Duration::from_secs(3));
    assert_eq!(rates(&process), [Some(0.0); 3]);
}

#[test]
fn the_gauge_has_the_mean_delay_of_the_last_period_with_an_answer() {
    let mut process = warm();
    process.run_for(Duration::from_millis(1_000));
    let delay = || process.gauge("service_delay_us");
    assert!(delay().abs_diff(100_000) < 100, "{}", delay());
    // One of the two requests waits for 200 ms, so that the two take 200 and 400 ms.
    let streams = [0, 1].map(|worker| process.arrive_as(worker, &costing("1"), None));
    for stream in streams {
        process.run_for(Duration::from_millis(200));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_millis(3_000));
    let delay = process.gauge("service_delay_us");
    assert!(delay.abs_diff(300_000) < 100, "{delay}");
}

#[test]
fn a_dry_run_and_a_policy_without_hint_announce_no_rate() {
    for change in [
        (|stage: &mut StageConfig| stage.mode = crate::config::Mode::DryRun) as fn(&mut _),
        |stage| {
            if let StrategyConfig::BacklogControl(control) = &mut stage.strategy {
                control.hint = false;
            }
        },
        |stage| stage.strategy = StrategyConfig::MaxQueueLength,
    ] {
        let mut process = warm();
        assert!(rates(&process).iter().all(Option::is_some));
        process.configure(&config(change));
        process.run_for(Duration::from_millis(20));
        assert_eq!(rates(&process), [None; 3]);
    }
}

#[test]
fn a_cost_that_cannot_be_read_is_1_and_counted() {
    let mut process = warm();
    process.run_for(Duration::from_millis(10));
    // The workers' first requests had no readable cost either.
    let before = process.gauge("rq_cost_unknown");
    process.arrive_as(0, &costing("10"), None);
    for odd in ["", "many", "-3", "0"] {
        process.arrive_as(1, &costing(odd), None);
    }
    assert_eq!(process.gauge("queued_work_us"), 4);
    process.run_for(Duration::from_millis(10));
    assert_eq!(process.gauge("rq_cost_unknown"), before + 4);
}

#[test]
fn an_edit_keeps_the_bound_and_another_unit_resets_it() {
    let mut process = warm();
    let bound = process.gauge("backlog_bound");
    process.configure(&config(|stage| {
        if let StrategyConfig::BacklogControl(control) = &mut stage.strategy {
            control.target_us = 3_000_000;
        }
    }));
    process.run_for(Duration::from_millis(20));
    assert_eq!(process.gauge("backlog_bound"), bound);
    // A lower maximum applies before any request is refused or served.
    process.configure(&config(|stage| {
        if let StrategyConfig::BacklogControl(control) = &mut stage.strategy {
            control.max_backlog = Some(20.0);
        }
    }));
    process.run_for(Duration::from_millis(20));
    assert_eq!(process.gauge("backlog_bound"), 20);
    // There is no bound in the new unit yet, so all requests are admitted.
    process.configure(&config(|stage| {
        if let StrategyConfig::BacklogControl(control) = &mut stage.strategy {
            control.cost = crate::config::CostConfig::Measured;
        }
    }));
    for _ in 0..50 {
        process.arrive_as(0, &costing("10"), None);
    }
    assert_eq!(process.queued().len(), 49);
}

/// The operator changes the slots of a proxy when the number of proxies changes.
#[test]
fn a_worker_without_requests_follows_an_edit_of_the_slots() {
    let mut process = Process::new(2, &config(|_| {}));
    process.configure(&config(|stage| stage.parallelism = 10));
    let stream = process.arrive_as(1, &costing("10"), None);
    process.run_for(Duration::from_millis(100));
    process.finish(stream, Outcome::Completed);
    // The first worker, which had no request since the edit, ticks first at the end of the period.
    process.run_for(Duration::from_secs(1));
    let bound = process.gauge("backlog_bound");
    // A unit takes 10 ms in one of ten slots, and half of 900 ms remain.
    assert!((440..=460).contains(&bound), "{bound}");
}
