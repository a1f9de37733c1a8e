//! Types that hang, over several workers.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn by_value(parallelism: u32) -> FilterConfig {
    config(parallelism, |stage| {
        stage.strategy = StrategyConfig::Bouncer {
            logic: Logic::Any,
            shed_by_value: true,
        };
        for kind in &mut stage.types {
            let objective = |(percentile, ms): (f64, u64)| Objective {
                percentile,
                objective_us: ms * 1_000,
            };
            kind.slo = [(50.0, 200), (90.0, 500)].map(objective).to_vec();
        }
    })
}

/// Sends 100 requests a second that are answered after 20 ms and as many of a type that hangs, for
/// `ms`; those fail after 3 s. Returns the most that hung at once after the first second, and the
/// answered part of the others.
fn hang(process: &mut Process, workers: usize, ms: u64) -> (usize, f64) {
    let mut hung: Vec<(u64, u32)> = Vec::new();
    let mut served: Vec<(u64, u32)> = Vec::new();
    let (mut most, mut sent, mut answered) = (0, 0, 0);
    for at in (0..ms).step_by(10) {
        let worker = at as usize / 10 % workers;
        served.push((at + 20, process.arrive(worker, "/")));
        hung.push((at + 3_000, process.arrive((worker + 1) % workers, "/slow")));
        sent += 1;
        let is_running = |process: &Process, stream: &u32| {
            matches!(process.requests.get(stream), Some((_, _, At::Backend(_))))
        };
        hung.retain(|(_, stream)| process.requests.contains_key(stream));
        let running = hung
            .iter()
            .filter(|(_, stream)| is_running(process, stream));
        if at > 1_000 {
            most = most.max(running.count());
        }
        for (ends, outcome) in [
            (&mut served, Outcome::Completed),
            (&mut hung, Outcome::Failed),
        ] {
            let over: Vec<u32> = (ends.iter())
                .filter(|(end, stream)| *end <= at && is_running(process, stream))
                .map(|(_, stream)| *stream)
                .collect();
            for stream in over {
                answered += u32::from(outcome == Outcome::Completed);
                process.finish(stream, outcome);
                ends.retain(|(_, other)| *other != stream);
            }
        }
        process.run_for(10 * MS);
    }
    (most, f64::from(answered) / f64::from(sent))
}

#[test]
fn a_type_that_hangs_holds_few_slots_of_all_workers_together() {
    for workers in [1, 3] {
        let mut process = Process::new(workers, &by_value(16));
        let (most, answered) = hang(&mut process, workers, 6_000);
        let reason = |(_, reason): &(u32, Reason)| *reason == Reason::Unresponsive;
        assert!(process.refused.iter().any(reason));
        // Requests of the first second hold their slots for three.
        let (later, _) = hang(&mut process, workers, 3_000);
        assert!(most <= 16, "{most}");
        assert!(later <= 3, "{later} of 16 slots, {workers} workers");
        assert!(answered > 0.6, "{answered}, {workers} workers");
        let (_, answered) = hang(&mut process, workers, 2_000);
        assert!(answered > 0.97, "{answered}, {workers} workers");
    }
}

#[test]
fn a_type_that_hung_is_let_in_again_after_a_few_answers() {
    let mut process = Process::new(2, &by_value(16));
    hang(&mut process, 2, 8_000);
    let running: Vec<u32> = process.requests.keys().copied().collect();
    for stream in running {
        process.finish(stream, Outcome::Failed);
    }
    process.refused.clear();
    let mut refused_late = 0;
    for at in 0..200 {
        let streams = [process.arrive(at % 2, "/"), process.arrive(at % 2, "/slow")];
        process.run_for(10 * MS);
        for stream in streams {
            process.finish(stream, Outcome::Completed);
        }
        let refused = std::mem::take(&mut process.refused).len();
        if at >= 100 {
            refused_late += refused;
        }
    }
    assert_eq!(refused_late, 0, "after a second");
    process.assert_nothing_booked();
}

/// Streams go on for longer than their last objective, which is for their first byte.
#[test]
fn a_stream_that_has_begun_is_answered() {
    let mut config = by_value(16);
    config.stages[0].measure = crate::config::Measure::FirstByte;
    let mut process = Process::new(2, &config);
    let streams: Vec<u32> = (0..6).map(|at| process.arrive(at % 2, "/slow")).collect();
    process.run_for(20 * MS);
    for stream in &streams {
        let (worker, _, at) = process.requests[stream];
        let At::Backend(ticket) = at else {
            panic!("{at:?}")
        };
        let begun = process.with(worker, |engine, host, now, _| {
            engine.first_byte(host, now, ticket, Outcome::Completed)
        });
        begun.unwrap().unwrap();
    }
    for at in 0..200 {
        let other = process.arrive(at % 2, "/");
        process.run_for(10 * MS);
        process.finish(other, Outcome::Completed);
    }
    process.arrive(0, "/slow");
    assert_eq!(process.refused, []);
}
