//! Tests of stages whose P is found automatically.

use super::*;
use crate::config::{AutoParallelism, Measure};

const MS: Duration = Duration::from_millis(1);

/// Returns a process that has found a small P, because requests were late without a limit. As many
/// `streams` are in progress.
fn limited(workers: usize, streams: usize, measure: Measure) -> Process {
    let config = config(4, |stage| {
        stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 100 });
        stage.measure = measure;
        stage.queue.timeout_us = 60_000_000;
        stage.types[1].slo = vec![Objective {
            percentile: 90.0,
            objective_us: 150_000,
        }];
    });
    let mut process = Process::new(workers, &config);
    for n in 0..150 {
        let stream = process.arrive(n % workers, "/");
        process.run_for(10 * MS);
        process.finish(stream, Outcome::Completed);
    }
    for n in 0..streams {
        let stream = process.arrive(n % workers, "/");
        process.first_byte(stream);
    }
    let late: Vec<u32> = (0..40).map(|n| process.arrive(n % workers, "/")).collect();
    assert_eq!(process.in_backend(), streams + 40);
    process.run_for(200 * MS);
    // The law of P acts when a request ends.
    process.finish(late[0], Outcome::Completed);
    process.run_for(10 * MS);
    for &stream in &late[1..] {
        process.finish(stream, Outcome::Unmeasured);
    }
    let slots = process.gauge("slots");
    assert!(slots < 10, "{slots}");
    process
}

/// The limit varies around P by a schedule, even while no request arrives or ends.
#[test]
fn a_waiter_starts_within_a_tick_after_the_limit_rises() {
    for workers in [1, 2] {
        let mut process = limited(workers, 0, Measure::LastByte);
        let mut rises = 0;
        for n in 0..200 {
            while process.queued().len() < 20 {
                process.arrive(n % workers, "/");
            }
            // After these ends, as many requests run as the limit allows now.
            let requests = process.requests.iter();
            let running = requests.filter(|(_, (_, _, at))| matches!(at, At::Backend(_)));
            let running: Vec<u32> = running.map(|(&stream, _)| stream).collect();
            for stream in running {
                process.finish(stream, Outcome::Unmeasured);
                process.settle();
            }
            let before = process.in_backend();
            process.run_for(10 * MS);
            let after = process.in_backend();
            rises += u32::from(after > before);
            // The tick left no slot free, so an arrival gets none.
            process.arrive(n % workers, "/");
            process.settle();
            assert_eq!(process.in_backend(), after, "{workers} workers, tick {n}");
        }
        assert!(rises >= 5, "{rises}");
    }
}

/// Streams that go on for hours are more than P.
#[test]
fn long_streams_leave_the_slots_to_other_requests() {
    let both = |workers| [(workers, Measure::FirstByte), (workers, Measure::LastByte)];
    for (workers, measure) in [1, 2].into_iter().flat_map(both) {
        let mut process = limited(workers, 30, measure);
        let streams: Vec<u32> = process.requests.keys().copied().collect();
        assert_eq!(streams.len(), 30);
        let waiting: Vec<u32> = (0..2).map(|n| process.arrive(n % workers, "/")).collect();
        process.run_for(100 * MS);
        assert_eq!(process.queued(), waiting, "the streams hold all slots");
        process.run_for(5_000 * MS);
        assert!(process.queued().is_empty());
        // Each slot is released once.
        for n in 0..40 {
            process.arrive(n % workers, "/");
        }
        process.run_for(100 * MS);
        let most = 2 * process.gauge("slots") as usize;
        assert!(process.in_backend() - streams.len() <= most);
        for stream in streams {
            process.finish(stream, Outcome::Completed);
        }
        process.run_for(100 * MS);
        assert!(process.in_backend() <= most);
    }
}

/// The edit makes the stream's slot time unknown.
#[test]
fn a_long_stream_releases_its_slot_after_an_edit_of_the_measure() {
    let measuring = |measure| {
        config(4, |stage| {
            stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 100 });
            stage.measure = measure;
        })
    };
    let mut process = Process::new(1, &measuring(Measure::LastByte));
    let stream = process.arrive(0, "/");
    process.first_byte(stream);
    process.run_for(1_000 * MS);
    process.configure(&measuring(Measure::FirstByte));
    process.run_for(1_000 * MS);
    assert_eq!(process.gauge("slots_in_use"), 1);
    process.run_for(4_000 * MS);
    assert_eq!(process.gauge("slots_in_use"), 0);
    process.finish(stream, Outcome::Completed);
    assert_eq!(process.gauge("slots_in_use"), 0);
}

/// The strategy's average is that of slot times.
#[test]
fn a_long_response_counts_with_the_time_until_it_released_its_slot() {
    const MAX_QUEUE_WAIT: &str = r#"{"type":"MaxQueueWait","limit_us":1000000,
        "window_us":60000000,"step_us":1000000}"#;
    let config = config(4, |stage| {
        stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 100 });
        stage.strategy = serde_json::from_str(MAX_QUEUE_WAIT).unwrap();
    });
    let mut process = Process::new(1, &config);
    let stream = process.arrive(0, "/");
    process.first_byte(stream);
    process.run_for(8_000 * MS);
    process.finish(stream, Outcome::Completed);
    process.run_for(100 * MS);
    let slot_us = process.gauge("demand_processing_us");
    assert!((5_000_000..5_100_000).contains(&slot_us), "{slot_us}");
}

/// The backend answers each upload 10 ms after its body has arrived.
#[test]
fn slow_uploads_are_not_late() {
    for are_uploads in [false, true] {
        let config = config(4, |stage| {
            stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 100 });
            stage.types[1].slo = vec![Objective {
                percentile: 90.0,
                objective_us: 150_000,
            }];
        });
        let mut process = Process::new(1, &config);
        for _ in 0..150 {
            let stream = process.arrive(0, "/");
            process.run_for(10 * MS);
            process.finish(stream, Outcome::Completed);
        }
        let streams: Vec<u32> = (0..40).map(|_| process.arrive(0, "/")).collect();
        assert_eq!(process.in_backend(), 40);
        let each = |process: &mut Process, f: fn(&mut Stage, Ticket, Instant)| {
            for stream in streams.iter().filter(|_| are_uploads) {
                let (worker, _, At::Queue(ticket) | At::Backend(ticket)) = process.requests[stream];
                process.with(worker, |engine, _, now, _| {
                    f(engine.stage_mut(ticket.policy).unwrap(), ticket, now);
                });
            }
        };
        each(&mut process, |stage, ticket, _| stage.body_follows(ticket));
        process.run_for(200 * MS);
        each(&mut process, Stage::sent);
        process.run_for(10 * MS);
        for &stream in &streams[..20] {
            process.finish(stream, Outcome::Completed);
        }
        process.run_for(10 * MS);
        assert_eq!(process.stage(0).is_unlimited(), are_uploads);
    }
}

/// For `ms`, keeps 40 requests in the backend, each for 100 ms. Returns the requests at the end.
fn serve(process: &mut Process, mut running: Vec<u32>, ms: u64) -> Vec<u32> {
    for n in 0..ms / 10 {
        let ended: Vec<u32> = running.drain(..running.len().min(4)).collect();
        for stream in ended {
            process.finish(stream, Outcome::Completed);
        }
        running.extend((0..40 - running.len()).map(|_| process.arrive(0, "/")));
        process.run_for(10 * MS);
        assert_eq!(process.queued().len(), 0, "after {n} ticks");
    }
    running
}

/// The process is stopped for a time in which the backend answers all of its requests. The loop of
/// events then handles either the answers first or the timer.
#[test]
fn a_suspended_process_limits_nothing_when_it_resumes() {
    for answers_first in [true, false] {
        let config = config(4, |stage| {
            stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 1_000 });
            stage.types[1].slo = vec![Objective {
                percentile: 90.0,
                objective_us: 150_000,
            }];
        });
        let mut process = Process::new(1, &config);
        let running = serve(&mut process, Vec::new(), 3_000);
        process.pass_time(Duration::from_secs(10));
        if !answers_first {
            process.run_for(10 * MS);
        }
        for stream in running {
            process.finish(stream, Outcome::Completed);
        }
        serve(&mut process, Vec::new(), 3_000);
    }
}
