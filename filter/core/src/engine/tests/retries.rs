//! Tests of retries while first attempts are refused.

use super::*;
use crate::config::StarvationAvoidance;

/// Sends a request with this `x-envoy-attempt-count`.
fn attempt(process: &mut Process, worker: usize, path: &'static str, count: &str) -> u32 {
    let request = MemoryRequest::get(path).with("x-envoy-attempt-count", count);
    process.arrive_as(worker, &request, None)
}

#[test]
fn no_retry_takes_the_slot_of_a_first_attempt() {
    let mut process = Process::new(1, &config(1, |stage| stage.queue.max_length = 0));
    let retried = attempt(&mut process, 0, "/", "2");
    assert!(
        process.requests.contains_key(&retried),
        "nothing was refused yet"
    );
    let first = attempt(&mut process, 0, "/", "1");
    assert_eq!(process.refused, [(first, Reason::QueueFull)]);
    process.finish(retried, Outcome::Completed);

    let again = attempt(&mut process, 0, "/", "3");
    assert_eq!(process.refused.last(), Some(&(again, Reason::Retry)));
    assert!(process.retry_after >= Duration::from_secs(1), "no sooner");
    let slow = attempt(&mut process, 0, "/slow", "2");
    assert!(
        process.requests.contains_key(&slow),
        "of a type without a refusal"
    );
    process.finish(slow, Outcome::Completed);
    let next = attempt(&mut process, 0, "/", "1");
    assert!(
        process.requests.contains_key(&next),
        "a first attempt takes the slot"
    );
    process.finish(next, Outcome::Completed);

    process.run_for(Duration::from_millis(1_001));
    let late = attempt(&mut process, 0, "/", "2");
    assert!(
        process.requests.contains_key(&late),
        "first attempts fit again"
    );
    process.finish(late, Outcome::Completed);
    process.assert_nothing_booked();
}

#[test]
fn refused_retries_do_not_keep_retries_out() {
    let mut process = Process::new(1, &config(1, |stage| stage.queue.max_length = 0));
    let running = attempt(&mut process, 0, "/", "1");
    attempt(&mut process, 0, "/", "1");
    process.finish(running, Outcome::Completed);
    for _ in 0..9 {
        process.run_for(Duration::from_millis(120));
        attempt(&mut process, 0, "/", "2");
    }
    assert_eq!(
        process.refused.len(),
        9,
        "one first attempt, and retries for a second"
    );
    assert_eq!(process.started.len(), 2);
}

/// The refusal of a deadline that even a free slot would miss doesn't show that slots are scarce. A
/// deadline that passes in the queue does show it.
#[test]
fn only_first_attempts_that_find_no_slot_keep_retries_out() {
    let mut process = Process::new(1, &config(1, |_| {}));
    process.learn_slow();
    let retried = |process: &mut Process| {
        let retry = attempt(process, 0, "/slow", "2");
        let is_admitted = process.requests.contains_key(&retry);
        process.finish(retry, Outcome::Completed);
        is_admitted
    };
    for _ in 0..9 {
        let hopeless = process.arrive_with(0, "/slow", Some(Duration::from_millis(1)));
        process.finish(hopeless, Outcome::Unmeasured);
    }
    assert!(process.refused.len() >= 7, "{:?}", process.refused);
    assert!(retried(&mut process), "a slot is free");

    let running = process.arrive(0, "/slow");
    let late = process.arrive_with(0, "/slow", Some(Duration::from_millis(30)));
    process.run_for(Duration::from_millis(40));
    assert_eq!(process.refused.last(), Some(&(late, Reason::Deadline)));
    process.finish(running, Outcome::Completed);
    assert!(!retried(&mut process), "a first attempt found no slot");
}

/// A client that has less time than the objectives give to all is refused after a short wait.
#[test]
fn a_deadline_shorter_than_the_objectives_keeps_no_retries_out() {
    for (objective_ms, keeps_out) in [(30, true), (31, false)] {
        let config = config(1, |stage| {
            stage.types[0].slo = vec![Objective {
                percentile: 90.0,
                objective_us: objective_ms * 1_000,
            }];
        });
        let mut process = Process::new(1, &config);
        process.learn_slow();
        let running = process.arrive(0, "/slow");
        let hasty = process.arrive_with(0, "/slow", Some(Duration::from_millis(30)));
        process.run_for(Duration::from_millis(40));
        assert_eq!(process.refused, [(hasty, Reason::Deadline)]);
        process.finish(running, Outcome::Completed);
        let retry = attempt(&mut process, 0, "/slow", "2");
        let is_admitted = process.requests.contains_key(&retry);
        assert_eq!(is_admitted, !keeps_out, "{objective_ms} ms");
    }
}

#[test]
fn refused_retries_are_in_no_window_of_starvation_avoidance() {
    let mut process = Process::new(
        1,
        &config(1, |stage| {
            stage.queue.max_length = 0;
            stage.starvation_avoidance = Some(StarvationAvoidance::AcceptanceAllowance {
                allowance: 0.1,
                type_allowances: BTreeMap::new(),
                window_us: 1_000_000,
                step_us: 10_000,
            });
        }),
    );
    let received = "type.default.window_received";
    let before = process.gauge(received);
    for (count, reason) in [
        ("1", None),
        ("1", Some(Reason::QueueFull)),
        ("2", Some(Reason::Retry)),
    ] {
        attempt(&mut process, 0, "/", count);
        assert_eq!(process.refused.last().map(|(_, reason)| *reason), reason);
    }
    process.run_for(Duration::from_millis(20));
    assert_eq!(process.gauge(received) - before, 2);
}
