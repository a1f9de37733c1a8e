//! Tests of streams, whose processing time ends with the first byte but whose slot is held until
//! the last byte.

use headgate_strategies::request::{Attributes, TypeId};

use super::*;
use crate::config::{Measure, QueueMode};
use crate::stage::Stage;

const MS: Duration = Duration::from_millis(1);

fn streaming(parallelism: u32, change: impl FnOnce(&mut StageConfig)) -> FilterConfig {
    config(parallelism, |stage| {
        stage.measure = Measure::FirstByte;
        stage.types[1].slo = vec![Objective {
            percentile: 50.0,
            objective_us: 1_000_000,
        }];
        change(stage);
    })
}

impl Process {
    pub(super) fn first_byte(&mut self, stream: u32) {
        let (worker, _, At::Backend(ticket)) = self.requests[&stream] else {
            panic!("{stream} is not in the backend")
        };
        self.with(worker, |engine, host, now, _| {
            let stage = engine.stage_mut(ticket.policy).unwrap();
            let held = stage.first_byte(host, now, ticket, Outcome::Completed);
            held.unwrap();
        });
    }

    /// Serves `count` streams, one after another, with the first byte after 10 ms and the last byte
    /// after 100 ms.
    fn stream(&mut self, count: u32, outcome: Outcome) {
        for _ in 0..count {
            let stream = self.arrive(0, "/");
            self.pass_time(MS * 10);
            self.first_byte(stream);
            self.pass_time(MS * 90);
            self.finish(stream, outcome);
        }
        self.run_for(Duration::from_secs(2));
    }

    pub(super) fn stage(&self, worker: usize) -> &Stage {
        let engine = self.workers[worker].as_ref().unwrap();
        &engine.policies[0].stage
    }

    /// Returns the estimated mean and median of the only type, ms.
    fn estimates(&self, worker: usize) -> (u128, u128) {
        let estimate = self.stage(worker).service_times().estimate(TypeId(1));
        let rounded = |time: Duration| (time + MS / 2).as_millis();
        (rounded(estimate.mean), rounded(estimate.quantiles[0]))
    }
}

#[test]
fn objectives_are_about_the_first_byte_and_the_queue_is_about_slots() {
    // The result is the same whether the backend or the client ends the stream.
    for outcome in [Outcome::Completed, Outcome::Abandoned] {
        let mut process = Process::new(2, &streaming(1, |_| {}));
        process.stream(30, outcome);
        // The other worker has the same estimates.
        for worker in 0..2 {
            assert_eq!(process.estimates(worker), (100, 10), "{outcome:?}");
        }
        process.arrive(0, "/");
        process.arrive(0, "/");
        let (host, now) = (&process.host, process.now);
        let request = Attributes::of(TypeId(1));
        let wait = process.stage(0).expected_wait(host, now, &request);
        let wait = wait.unwrap();
        assert!(wait.abs_diff(MS * 100) < MS * 2, "{wait:?}");
    }
}

#[test]
fn streams_that_the_backend_breaks_off_say_nothing_of_slots() {
    let mut process = Process::new(1, &streaming(1, |_| {}));
    process.stream(30, Outcome::Completed);
    for _ in 0..30 {
        let stream = process.arrive(0, "/");
        process.pass_time(MS * 10);
        process.first_byte(stream);
        process.finish(stream, Outcome::Failed);
    }
    process.run_for(Duration::from_secs(2));
    assert_eq!(process.estimates(0), (100, 10));
}

#[test]
fn learned_slot_times_survive_an_edit() {
    let mut process = Process::new(1, &streaming(1, |_| {}));
    process.stream(30, Outcome::Completed);
    let edited = streaming(1, |stage| stage.service_times.min_samples = 5);
    process.configure(&edited);
    assert_eq!(process.estimates(0), (100, 10));
    // If the slot is released at the first byte, the slot time equals the processing time.
    let released = streaming(1, |stage| stage.release_slot = Measure::FirstByte);
    process.configure(&released);
    assert_eq!(process.estimates(0), (10, 10));
    process.configure(&edited);
    assert_eq!(process.estimates(0), (100, 10));
}

#[test]
fn a_slot_goes_to_the_next_once_when_the_stream_ends() {
    let mut process = Process::new(2, &streaming(1, |_| {}));
    let first = process.arrive(0, "/");
    let waiting = [process.arrive(1, "/"), process.arrive(1, "/")];
    process.first_byte(first);
    process.first_byte(first);
    process.run_for(MS * 100);
    assert_eq!(process.started, [first]);
    let (_, _, at) = process.requests[&first];
    let At::Backend(ticket) = at else {
        panic!("{at:?}")
    };
    process.finish(first, Outcome::Completed);
    process.settle();
    assert_eq!(process.started, [first, waiting[0]]);
    // The end of the first stream is reported again, followed by a late event of its body.
    process.with(0, |engine, host, now, actions| {
        engine
            .finish(host, now, ticket, Outcome::Abandoned, actions)
            .unwrap();
        let stage = engine.stage_mut(ticket.policy).unwrap();
        stage
            .first_byte(host, now, ticket, Outcome::Completed)
            .unwrap();
    });
    process.run_for(MS * 100);
    assert_eq!(process.started, [first, waiting[0]]);
    assert_eq!(process.queued(), [waiting[1]]);
}

#[test]
fn a_stream_holds_a_slot_of_a_configured_p_to_its_end() {
    let config = streaming(1, |stage| stage.queue.timeout_us = 600_000_000);
    let mut process = Process::new(1, &config);
    let [stream, waiting] = [process.arrive(0, "/"), process.arrive(0, "/")];
    process.first_byte(stream);
    process.run_for(Duration::from_secs(70));
    assert_eq!(process.queued(), [waiting]);
}

#[test]
fn a_stream_that_is_watched_without_a_slot_is_not_measured() {
    let observing = streaming(1, |stage| stage.queue.mode = QueueMode::Observe);
    let mut process = Process::new(1, &observing);
    let first = process.arrive(0, "/");
    let second = process.arrive(0, "/");
    let completed = |process: &mut Process| {
        process.run_for(Duration::from_secs(1));
        let name = "headgate.policy.ns/p.type.default.rq_completed";
        process.host.value(name).unwrap()
    };
    // The backend answers the second request first, which a FIFO wouldn't do.
    let (_, _, place) = process.requests[&second];
    let (At::Queue(ticket) | At::Backend(ticket)) = place;
    process.with(0, |engine, host, now, _| {
        let stage = engine.stage_mut(ticket.policy).unwrap();
        stage
            .first_byte(host, now, ticket, Outcome::Completed)
            .unwrap();
    });
    process.pass_time(MS);
    process.finish(first, Outcome::Completed);
    let before = completed(&mut process);
    process.finish(second, Outcome::Completed);
    assert_eq!(completed(&mut process), before);
}
