//! Tests of requests whose deadline leaves less time than nine in ten requests of their type take.

use super::*;
use crate::config::Mode;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Sends a request with this `deadline`, in ms, and returns whether it is admitted. The client
/// leaves at once.
fn sent(process: &mut Process, worker: usize, deadline: u64) -> bool {
    let stream = process.arrive_with(worker, "/slow", Some(ms(deadline)));
    let passed = process.requests.contains_key(&stream);
    process.finish(stream, Outcome::Unmeasured);
    passed
}

#[test]
fn a_request_without_the_time_that_it_takes_is_refused_though_slots_are_free() {
    for (mode, refused) in [(Mode::Enforce, 85..=95), (Mode::DryRun, 0..=0)] {
        let mut process = Process::new(2, &config(4, |stage| stage.mode = mode));
        assert!(sent(&mut process, 0, 1), "nothing is known");
        process.learn_slow();
        let passed = (0..100).filter(|n| sent(&mut process, n % 2, 15)).count();
        assert!(refused.contains(&(100 - passed)), "{mode:?}: {passed}");
        assert!((process.refused.iter()).all(|(_, reason)| *reason == Reason::Deadline));
        process.run_for(ms(10));
        let judged = process.gauge("type.slow.rq_rejected.reason.deadline");
        assert!((85..=98).contains(&judged), "{mode:?}: {judged}");
        assert!((0..100).all(|n| sent(&mut process, n % 2, 25)));
        // The times of `slow` don't count for another type.
        let other = process.arrive_with(1, "/", Some(ms(1)));
        assert!(process.requests.contains_key(&other));
        process.finish(other, Outcome::Unmeasured);
        process.assert_nothing_booked();
    }
}

#[test]
fn a_deadline_that_one_in_five_requests_meets_is_worth_a_slot() {
    let mut process = Process::new(2, &config(4, |_| {}));
    // The tenth percentile is 10 ms, the median 50 ms, the mean 42 ms.
    for n in 0..30 {
        let stream = process.arrive(0, "/slow");
        process.pass_time(ms(if n % 5 == 0 { 10 } else { 50 }));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(ms(3_000));
    assert!((0..100).all(|n| sent(&mut process, n % 2, 25)));
    assert!((0..100).any(|n| !sent(&mut process, n % 2, 5)));
}

#[test]
fn a_request_waits_while_its_deadline_leaves_the_time_that_it_takes() {
    let mut process = Process::new(1, &config(1, |_| {}));
    process.learn_slow();
    let running = process.arrive(0, "/slow");
    let first = process.arrive_with(0, "/slow", Some(ms(55)));
    // This request would wait for 20 ms and take 20 ms.
    let late = process.arrive_with(0, "/slow", Some(ms(35)));
    assert_eq!(process.refused, [(late, Reason::Deadline)]);
    let second = process.arrive_with(0, "/slow", Some(ms(65)));
    assert_eq!(process.queued(), [first, second]);
    process.run_for(ms(30));
    assert_eq!(process.queued(), [first, second]);
    process.run_for(ms(10));
    assert_eq!(
        process.queued(),
        [second],
        "what is left is too little for the first"
    );
    process.finish(running, Outcome::Completed);
    assert_eq!(process.started.last(), Some(&second));
}

#[test]
fn a_type_that_got_faster_is_let_in_again() {
    let mut process = Process::new(2, &config(4, |_| {}));
    process.learn_slow();
    let passed: Vec<bool> = (0..200)
        .map(|n| {
            let stream = process.arrive_with(n % 2, "/slow", Some(ms(15)));
            let passed = process.requests.contains_key(&stream);
            process.run_for(ms(10));
            process.finish(stream, Outcome::Completed);
            passed
        })
        .collect();
    assert!(
        !passed[0] && passed[160..].iter().all(|passed| *passed),
        "{passed:?}"
    );
}
