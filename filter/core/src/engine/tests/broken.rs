//! Tests of types that hang, over several workers.

use super::*;
use crate::config::{Measure, PathMatch, PathMatchKind};
use crate::requests::Phase;
use crate::stats::MAX_TYPES_IN_STATS;

const MS: Duration = Duration::from_millis(1);

pub(super) fn by_value(parallelism: u32) -> FilterConfig {
    config(parallelism, |stage| {
        stage.strategy = StrategyConfig::Bouncer {
            logic: Logic::Any,
            shed_by_value: true,
            capacity: None,
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

/// For `ms`, sends 100 requests a second that are answered after 20 ms, and 100 requests a second
/// of a type that hangs, which fail after 3 s. Returns the largest number of hanging requests in
/// the backend at once after the first second, and the ratio of the other requests that were
/// answered.
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
        let last = process.refused.last().unwrap();
        assert!(
            reason(last) && process.retry_after >= 2_000 * MS,
            "{last:?}"
        );
        // Requests of the first second hold their slots for three seconds, so only later ones show
        // the limit.
        let (later, _) = hang(&mut process, workers, 3_000);
        assert!(most <= 16, "{most}");
        assert!(later <= 3, "{later} of 16 slots, {workers} workers");
        assert!(answered > 0.6, "{answered}, {workers} workers");
        let (_, answered) = hang(&mut process, workers, 2_000);
        assert!(answered > 0.97, "{answered}, {workers} workers");
    }
}

/// Half of the slots are in use. One in nineteen requests of `/slow` takes 500 ms, and a worker
/// sends the next ones before that, all of which are answered after 10 ms.
#[test]
fn a_slow_request_parks_no_other_however_many_workers_and_types_there_are() {
    for (workers, more_types) in [(1, 0), (4, 0), (16, 0), (64, 0), (16, MAX_TYPES_IN_STATS)] {
        let mut config = by_value(16);
        let types = &mut config.stages[0].types;
        let slow = types[0].clone();
        let more = (0..more_types).map(|n| {
            let mut kind = slow.clone();
            kind.name = format!("more{n}");
            kind.matches[0].path = Some(PathMatch {
                kind: PathMatchKind::Exact,
                value: format!("/more{n}"),
            });
            kind
        });
        types.splice(..0, more);
        let mut process = Process::new(workers, &config);
        let mut running: Vec<(u64, u32)> = Vec::new();
        for at in 0..1_000_u64 {
            let time = if at % 19 == 0 { 500 } else { 10 };
            let worker = at as usize % workers;
            running.push((10 * at + time, process.arrive(worker, "/slow")));
            for other in 0..3 {
                let stream = process.arrive((worker + other) % workers, "/");
                running.push((10 * at + 10, stream));
            }
            assert!(process.queued().is_empty(), "{workers} workers");
            process.run_for(10 * MS);
            for (_, stream) in running.extract_if(.., |(end, _)| *end <= 10 * (at + 1)) {
                process.finish(stream, Outcome::Completed);
            }
        }
        assert_eq!(process.refused, [], "{workers} workers");
    }
}

/// For 10 ms, serves ten requests, which leave hardly any of 16 slots to `/slow`, and one request
/// of `/slow` on `worker`. Returns the requests that wait meanwhile.
fn serve(process: &mut Process, worker: Option<usize>) -> Vec<u32> {
    let workers = process.workers.len();
    let mut streams: Vec<u32> = (0..10)
        .map(|at| process.arrive(at % workers, "/"))
        .collect();
    streams.extend(worker.map(|worker| process.arrive(worker, "/slow")));
    let waiting = process.queued();
    process.run_for(10 * MS);
    for stream in streams {
        process.finish(stream, Outcome::Completed);
    }
    waiting
}

/// Returns a process of `workers` that has served ten requests of `/slow` per second.
fn with_a_rare_type(workers: usize) -> Process {
    let mut process = Process::new(workers, &by_value(16));
    for at in 0..600 {
        let worker = (at % 10 == 0).then_some(at / 10 % workers);
        serve(&mut process, worker);
    }
    process
}

/// The type is answered on another worker, but less often than in four of its mean slot times.
#[test]
fn a_slow_request_parks_no_other_of_a_type_that_another_worker_rarely_answers() {
    let mut process = with_a_rare_type(2);
    process.arrive(0, "/slow");
    for at in 0..10 {
        serve(&mut process, (at == 2).then_some(1));
    }
    assert_eq!(serve(&mut process, Some(0)), [0; 0]);
    assert_eq!(process.refused, []);
}

/// The responses began before the edit, so their first bytes aren't late.
#[test]
fn streams_that_run_while_their_objective_is_moved_to_the_first_byte_break_no_type() {
    let measured_at = |end, objectives_ms: [u64; 2]| {
        let mut config = by_value(32);
        let slow = &mut config.stages[0].types[0];
        slow.measure = Some(end);
        for (objective, ms) in slow.slo.iter_mut().zip(objectives_ms) {
            objective.objective_us = ms * 1_000;
        }
        config
    };
    let mut process = Process::new(1, &measured_at(Measure::LastByte, [10_000, 20_000]));
    (0..200).for_each(|_| _ = serve(&mut process, Some(0)));
    let streams = [(); 8].map(|()| process.arrive(0, "/slow"));
    (0..100).for_each(|_| _ = serve(&mut process, None));
    process.configure(&measured_at(Measure::FirstByte, [100, 200]));
    (0..20).for_each(|_| _ = serve(&mut process, None));
    assert_eq!(serve(&mut process, Some(0)), [0; 0]);
    assert_eq!(process.refused, []);
    let times = "headgate.policy.ns/p.type.slow.processing_time_us";
    let before = process.host.recorded(times);
    for stream in streams {
        process.finish(stream, Outcome::Completed);
    }
    assert_eq!(process.host.recorded(times), before);
    process.assert_nothing_booked();
}

/// The backend can't answer a request before its body has arrived.
#[test]
fn requests_whose_bodies_still_arrive_park_no_other() {
    let mut process = with_a_rare_type(1);
    let uploads = [(); 3].map(|()| process.arrive(0, "/slow"));
    let tickets = uploads.map(|stream| {
        let (_, _, At::Queue(ticket) | At::Backend(ticket)) = process.requests[&stream];
        ticket
    });
    let each = |process: &mut Process, f: fn(&mut Stage, Ticket, Instant)| {
        process.with(0, |engine, _, now, _| {
            for ticket in tickets {
                f(engine.stage_mut(ticket.policy).unwrap(), ticket, now);
            }
        });
    };
    each(&mut process, |stage, ticket, _| stage.body_follows(ticket));
    for _ in 0..6 {
        serve(&mut process, None);
    }
    assert_eq!(serve(&mut process, Some(0)), [0; 0]);
    each(&mut process, Stage::sent);
    for _ in 0..6 {
        serve(&mut process, None);
    }
    assert_eq!(serve(&mut process, Some(0)).len(), 1);
}

/// A client that reads slowly delays the end of its response.
#[test]
fn responses_that_have_begun_park_no_other() {
    for (begun, waiting) in [(false, 1), (true, 0)] {
        let mut process = with_a_rare_type(1);
        let read = [(); 3].map(|()| process.arrive(0, "/slow"));
        if begun {
            read.iter().for_each(|stream| process.first_byte(*stream));
        }
        for _ in 0..6 {
            serve(&mut process, None);
        }
        assert_eq!(serve(&mut process, Some(0)).len(), waiting, "{begun}");
    }
}

/// For `ms`, sends 300 requests a second that are answered after 10 ms.
fn serve_three(process: &mut Process, ms: u64, path: &'static str) {
    for _ in (0..ms).step_by(10) {
        let streams = [(); 3].map(|()| process.arrive(0, path));
        process.run_for(10 * MS);
        for stream in streams {
            process.finish(stream, Outcome::Completed);
        }
    }
}

/// Whether a request of `/slow` goes to the backend at once, where it is answered.
fn goes_on(process: &mut Process) -> bool {
    let stream = process.arrive(0, "/slow");
    let place = process.requests.get(&stream).map(|(_, _, at)| *at);
    process.run_for(10 * MS);
    process.finish(stream, Outcome::Completed);
    matches!(place, Some(At::Backend(_)))
}

/// Clients that read slowly, and then leave, say nothing about the backend.
#[test]
fn responses_that_have_begun_break_no_type() {
    for begun in [false, true] {
        let mut process = Process::new(1, &by_value(32));
        serve_three(&mut process, 500, "/slow");
        let read: Vec<u32> = (0..24).map(|_| process.arrive(0, "/slow")).collect();
        if begun {
            read.iter().for_each(|stream| process.first_byte(*stream));
        }
        serve_three(&mut process, 2_000, "/");
        assert_eq!(goes_on(&mut process), begun);
        if begun {
            for stream in read {
                process.finish(stream, Outcome::Abandoned);
            }
            process.run_for(200 * MS);
            // A type that is broken has one probe.
            (0..3).for_each(|_| _ = process.arrive(0, "/slow"));
        }
        let reason = |(_, reason): &(u32, Reason)| *reason == Reason::Unresponsive;
        assert_eq!(process.refused.iter().any(reason), !begun);
    }
}

/// The backend can't answer a request before its body has arrived.
#[test]
fn requests_whose_bodies_still_arrive_break_no_type() {
    let mut process = Process::new(1, &by_value(16));
    serve_three(&mut process, 500, "/slow");
    let uploads: Vec<u32> = (0..4).map(|_| process.arrive(0, "/slow")).collect();
    let each = |process: &mut Process, f: fn(&mut Stage, Ticket, Instant)| {
        for stream in &uploads {
            let (worker, _, At::Queue(ticket) | At::Backend(ticket)) = process.requests[stream];
            process.with(worker, |engine, _, now, _| {
                f(engine.stage_mut(ticket.policy).unwrap(), ticket, now);
            });
        }
    };
    each(&mut process, |stage, ticket, _| stage.body_follows(ticket));
    serve_three(&mut process, 2_000, "/");
    assert!(goes_on(&mut process));

    // An answer in the step in which requests become silent would reset their number.
    process.run_for(500 * MS);
    each(&mut process, Stage::sent);
    serve_three(&mut process, 2_000, "/");
    assert!(!goes_on(&mut process));
}

#[test]
fn an_edit_that_reorders_types_gives_no_type_the_fault_of_another() {
    let mut ordered = by_value(16);
    let mut fast = ordered.stages[0].types[0].clone();
    fast.name = "fast".to_owned();
    fast.matches[0].path = Some(PathMatch {
        kind: PathMatchKind::Exact,
        value: "/fast".to_owned(),
    });
    ordered.stages[0].types.insert(1, fast);
    let mut process = Process::new(1, &ordered);
    hang(&mut process, 1, 8_000);
    ordered.stages[0].types.swap(0, 1);
    process.configure(&ordered);
    process.refused.clear();
    for _ in 0..10 {
        process.arrive(0, "/fast");
        process.arrive(0, "/");
    }
    assert_eq!(process.refused, []);
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

/// The type that hangs usually needs one or two slots, and hardly ever more than eight. The other
/// type leaves about ten of the twelve slots to it.
#[test]
fn a_type_of_which_nothing_is_answered_gets_no_more_slots_until_an_answer() {
    let mut process = Process::new(1, &by_value(12));
    for _ in 0..100 {
        let stream = process.arrive(0, "/slow");
        process.run_for(20 * MS);
        process.finish(stream, Outcome::Completed);
    }
    let mut hung = Vec::new();
    for _ in 0..15 {
        hung.push(process.arrive(0, "/slow"));
        let other = process.arrive(0, "/");
        process.run_for(10 * MS);
        assert!(matches!(process.requests[&other].2, At::Backend(_)));
        process.finish(other, Outcome::Completed);
    }
    let waiting = |process: &Process| {
        let all = process.requests.values();
        all.filter(|(_, _, at)| matches!(at, At::Queue(_))).count()
    };
    assert!(
        (4..=7).contains(&waiting(&process)),
        "{}",
        waiting(&process)
    );
    process.finish(hung.remove(14), Outcome::Abandoned);
    // The waiting requests get the slots of requests that are answered.
    for stream in hung.drain(..3) {
        process.finish(stream, Outcome::Completed);
    }
    assert_eq!(waiting(&process), 0);
    assert_eq!(process.refused, []);
    for stream in hung {
        process.finish(stream, Outcome::Completed);
    }
    process.assert_nothing_booked();
}

/// Returns a process with parked requests of `/slow`, which hangs.
fn with_parked_requests(config: &FilterConfig) -> Process {
    let mut process = Process::new(1, config);
    for _ in 0..100 {
        let stream = process.arrive(0, "/slow");
        process.run_for(20 * MS);
        process.finish(stream, Outcome::Completed);
    }
    park(&mut process);
    process
}

/// Sends requests of `/slow`, which hangs, until some are parked.
fn park(process: &mut Process) {
    for _ in 0..15 {
        process.arrive(0, "/slow");
        let other = process.arrive(0, "/");
        process.run_for(10 * MS);
        process.finish(other, Outcome::Completed);
    }
    assert!(process.queued().len() > 1);
    assert_eq!(process.gauge("queue_length"), 0, "they are parked");
}

/// The type was answered after these requests were sent, so they don't count as unanswered.
#[test]
fn the_end_of_a_request_from_before_the_last_answer_lets_no_others_pass() {
    for (begun, outcome) in [
        (true, Outcome::Completed),
        (true, Outcome::Abandoned),
        (false, Outcome::Abandoned),
    ] {
        let mut config = by_value(14);
        config.stages[0].measure = Measure::FirstByte;
        let mut process = Process::new(1, &config);
        for _ in 0..100 {
            let streams = ["/slow", "/", "/", "/"].map(|path| process.arrive(0, path));
            process.run_for(20 * MS);
            for stream in streams {
                process.finish(stream, Outcome::Completed);
            }
        }
        let early = process.arrive(0, "/slow");
        process.run_for(10 * MS);
        if begun {
            process.first_byte(early);
        }
        let answered = process.arrive(0, "/slow");
        process.run_for(10 * MS);
        process.finish(answered, Outcome::Completed);
        park(&mut process);
        let waiting = process.queued();
        process.finish(early, outcome);
        assert_eq!(process.queued(), waiting, "{begun} {outcome:?}");
        assert_eq!(process.gauge("queue_length"), 0);
    }
}

/// A dry run sends all waiting requests to the backend, and they then count as unanswered.
#[test]
fn the_end_of_requests_that_an_edit_sent_leaves_the_others_unanswered() {
    let mut edited = by_value(14);
    let mut process = with_parked_requests(&edited);
    let parked = process.queued();
    for mode in [crate::config::Mode::DryRun, crate::config::Mode::Enforce] {
        edited.stages[0].mode = mode;
        process.configure(&edited);
    }
    for stream in parked {
        process.finish(stream, Outcome::Abandoned);
    }
    let next = process.arrive(0, "/slow");
    assert_eq!(process.queued(), [next]);
    assert_eq!(process.gauge("queue_length"), 0);
}

/// Parked requests are in no queue, so an edit has to find them separately.
#[test]
fn an_edit_that_ends_waiting_lets_all_pass_that_wait_for_an_answer() {
    let mut edited = by_value(14);
    let mut process = with_parked_requests(&edited);
    edited.stages[0].mode = crate::config::Mode::DryRun;
    process.configure(&edited);
    assert!(process.queued().is_empty());
}

/// An edit discards the numbers of unanswered requests, so nothing bars parked requests any more.
#[test]
fn an_edit_of_the_types_lets_all_pass_that_wait_for_an_answer() {
    let mut process = with_parked_requests(&by_value(14));
    let mut edited = by_value(20);
    let mut first = edited.stages[0].types[0].clone();
    first.name = "first".into();
    first.matches =
        serde_json::from_str(r#"[{"path":{"type":"Exact","value":"/first"}}]"#).unwrap();
    edited.stages[0].types.insert(0, first);
    process.configure(&edited);
    process.run_for(10 * MS);
    assert!(process.queued().is_empty());
    assert_eq!(process.refused, []);
}

/// At each end of a request, parked requests are checked once per type rather than one by one.
#[test]
fn the_end_of_a_request_costs_one_look_for_each_type_that_waits_for_an_answer() {
    let mut process = with_parked_requests(&by_value(14));
    let other = process.arrive(0, "/");
    let looks = |process: &Process| {
        let engine = process.workers[0].as_ref().unwrap();
        engine.policies[0].stage.judged_unanswered()
    };
    let before = looks(&process);
    process.finish(other, Outcome::Completed);
    assert_eq!(looks(&process) - before, 1);
}

/// Streams last longer than their last objective, which is for their first byte. A stream that has
/// begun is not silent.
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
            let stage = engine.stage_mut(ticket.policy).unwrap();
            stage.first_byte(host, now, ticket, Outcome::Completed)
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

/// Counts the requests in the backend. Returns the number of requests that hold a slot, and the
/// number of requests that released their slot early.
pub(super) fn held(process: &Process) -> (u64, u64) {
    let (mut held, mut freed) = (0, 0);
    let policies = process.workers.iter().flatten();
    let policies = policies.flat_map(|engine| &engine.policies);
    for request in policies.flat_map(|policy| policy.stage.requests.iter()) {
        if matches!(request.phase, Phase::Running { .. }) {
            match request.freed {
                Some(_) => freed += 1,
                None => held += 1,
            }
        }
    }
    (held, freed)
}

/// Sends a request to upstream host `host`, and returns its stream.
pub(super) fn arrive_at(process: &mut Process, worker: usize, host: u8) -> u32 {
    let stream = process.arrive(worker, "/");
    process.hosts.insert(stream, Upstream::at(&[host]));
    stream
}

/// Answers 40 requests at `host` after 20 ms each, on all workers in turn.
fn answer(process: &mut Process, host: u8) {
    for at in 0..40 {
        let stream = arrive_at(process, at % process.workers.len(), host);
        process.run_for(20 * MS);
        process.finish(stream, Outcome::Completed);
    }
}

/// Returns a process of `workers`, and a request on its second worker that hangs at host 0 while
/// host `other` answers other requests.
fn with_a_hung_request(workers: usize, parallelism: u32, other: u8) -> (Process, u32) {
    let mut process = Process::new(workers, &by_value(parallelism));
    answer(&mut process, other);
    answer(&mut process, other);
    let hung = arrive_at(&mut process, 1, 0);
    answer(&mut process, other);
    (process, hung)
}

#[test]
fn a_request_at_a_host_that_hangs_gives_its_slot_back_once() {
    let ends = [Outcome::Completed, Outcome::Failed, Outcome::Abandoned];
    for outcome in ends.into_iter().chain([Outcome::Unmeasured]) {
        let (mut process, hung) = with_a_hung_request(2, 2, 1);
        assert_eq!(held(&process), (0, 1));
        assert_eq!(process.gauge("slots_in_use"), 0);
        process.configure(&by_value(3));
        process.configure(&config(2, |_| {}));
        process.run_for(50 * MS);
        assert_eq!(process.gauge("slots_in_use"), 0, "after edits");
        process.finish(hung, outcome);
        process.assert_nothing_booked();
    }
}

#[test]
fn a_slot_that_was_given_back_goes_to_a_waiter_of_any_worker() {
    let (mut process, _) = with_a_hung_request(2, 2, 1);
    let hung: Vec<u32> = (0..2).map(|_| arrive_at(&mut process, 1, 0)).collect();
    let waiting = arrive_at(&mut process, 0, 1);
    assert_eq!(process.queued(), [waiting]);
    process.run_for(50 * MS);
    assert!(process.queued().is_empty());
    process.finish(waiting, Outcome::Completed);
    assert_eq!((held(&process), process.in_backend()), ((0, 3), 3));
    for stream in hung {
        process.finish(stream, Outcome::Failed);
    }
    process.assert_nothing_booked();
}

#[test]
fn a_request_keeps_its_slot_where_its_host_is_the_only_one_or_is_not_known() {
    let (mut process, hung) = with_a_hung_request(2, 2, 0);
    assert_eq!(held(&process), (1, 0));
    process.finish(hung, Outcome::Completed);
    process.hosts.clear();
    process.arrive(1, "/");
    answer(&mut process, 1);
    assert_eq!(held(&process), (1, 0));
}

#[test]
fn requests_of_a_host_that_answers_after_all_take_their_slots_again() {
    let (mut process, hung) = with_a_hung_request(2, 4, 1);
    let later = arrive_at(&mut process, 1, 0);
    process.run_for(50 * MS);
    assert_eq!(held(&process), (0, 2));
    process.finish(hung, Outcome::Completed);
    assert_eq!(held(&process), (1, 0));
    assert_eq!(process.gauge("slots_in_use"), 1);
    // Host 0 is trusted after its answer.
    answer(&mut process, 1);
    answer(&mut process, 1);
    assert_eq!(held(&process), (1, 0));
    process.finish(later, Outcome::Completed);
    process.assert_nothing_booked();
}

/// A Pod that is gone never answers. As many such hosts as can be suspected at once have requests
/// that fail, while a slow request of another type keeps hosts watched.
#[test]
fn hosts_that_are_gone_are_forgotten_while_any_request_is_overtaken() {
    let mut process = Process::new(1, &by_value(40));
    for _ in 0..40 {
        let other = process.arrive(0, "/slow");
        process.run_for(20 * MS);
        process.finish(other, Outcome::Completed);
    }
    answer(&mut process, 2);
    process.arrive(0, "/slow");
    let gone: Vec<u32> = (10..26)
        .map(|host| arrive_at(&mut process, 0, host))
        .collect();
    answer(&mut process, 2);
    for stream in gone {
        process.finish(stream, Outcome::Failed);
    }
    for _ in 0..14 {
        answer(&mut process, 2);
    }
    assert_eq!(process.gauge("slots_in_use"), 1, "the slow request");
    arrive_at(&mut process, 0, 1);
    answer(&mut process, 2);
    assert_eq!(held(&process), (1, 1));
}

/// The host may answer these requests after all, and then they take their slots again.
#[test]
fn a_host_is_not_forgotten_while_it_has_requests_without_slots() {
    let (mut process, hung) = with_a_hung_request(2, 4, 1);
    let later = arrive_at(&mut process, 1, 0);
    process.run_for(Duration::from_secs(12));
    assert_eq!(held(&process), (0, 2));
    process.finish(hung, Outcome::Completed);
    assert_eq!(held(&process), (1, 0));
    process.finish(later, Outcome::Completed);
    process.assert_nothing_booked();
}

/// If no other host answers, the backend as a whole may hang.
#[test]
fn requests_keep_their_slots_while_no_host_answers() {
    let mut process = Process::new(2, &by_value(2));
    answer(&mut process, 1);
    answer(&mut process, 1);
    let streams: Vec<u32> = (0..2).map(|at| arrive_at(&mut process, at, 0)).collect();
    process.run_for(20 * 100 * MS);
    assert_eq!(held(&process), (2, 0));
    for stream in streams {
        process.finish(stream, Outcome::Failed);
    }
    process.assert_nothing_booked();
}

#[test]
fn no_host_is_asked_for_while_none_is_overtaken() {
    let mut process = Process::new(2, &by_value(2));
    answer(&mut process, 1);
    answer(&mut process, 1);
    let watches = |process: &Process| {
        let stages = process
            .workers
            .iter()
            .flatten()
            .flat_map(|engine| &engine.policies);
        stages.filter(|policy| policy.stage.watches_hosts()).count()
    };
    let slow = arrive_at(&mut process, 0, 1);
    process.run_for(190 * MS);
    assert_eq!(watches(&process), 0);
    process.run_for(20 * MS);
    assert_eq!(watches(&process), 1);
    process.finish(slow, Outcome::Completed);
    process.run_for(Duration::from_secs(11));
    assert_eq!(watches(&process), 0);
}

#[test]
fn a_worker_that_dies_has_given_a_slot_back_once() {
    let (mut process, hung) = with_a_hung_request(3, 2, 1);
    let lost = arrive_at(&mut process, 1, 1);
    assert_eq!(process.gauge("slots_in_use"), 1);
    process.workers[1] = None;
    for stream in [hung, lost] {
        process.requests.remove(&stream);
    }
    process.run_for(Duration::from_secs(11));
    assert_eq!(process.gauge("workers_lost"), 1);
    process.assert_nothing_booked();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The gauge of slots in use equals the number of requests that hold one, after any ends and
    /// edits, with up to three hosts. With one host, the backend never has more than P requests.
    #[test]
    fn slots_are_conserved_and_one_host_never_has_more_than_p(
        hosts in 1_u8..4,
        steps in prop::collection::vec((0_u8..8, any::<prop::sample::Index>()), 0..150)
    ) {
        let other = u8::from(hosts > 1);
        let (mut process, _) = with_a_hung_request(3, 4, other);
        for (step, at) in steps {
            let all: Vec<u32> = process.requests.keys().copied().collect();
            match step {
                0..=2 => {
                    let host = at.index(usize::from(hosts)) as u8;
                    arrive_at(&mut process, at.index(3), host);
                }
                3 | 4 if !all.is_empty() => {
                    // The newest requests are answered first.
                    let stream = all[all.len() - 1 - at.index(all.len().min(2))];
                    process.finish(stream, Outcome::Completed);
                }
                5 if !all.is_empty() => {
                    let outcomes = [Outcome::Failed, Outcome::Abandoned, Outcome::Unmeasured];
                    process.finish(all[at.index(all.len())], outcomes[at.index(3)]);
                }
                6 if hosts > 1 => {
                    let mut config = by_value(1 + at.index(5) as u32);
                    let tokens = r#"{"budget":10,"output":{"otherwise":3}}"#;
                    let tokens = (at.index(2) == 0).then(|| serde_json::from_str(tokens).unwrap());
                    config.stages[0].tokens = tokens;
                    process.configure(&config);
                }
                _ => process.run_for(50 * MS * (1 + at.index(10) as u32)),
            }
            process.settle();
            prop_assert_eq!(process.gauge("slots_in_use"), held(&process).0);
            let tokens = process.host.value("headgate.policy.ns/p.tokens_in_use");
            prop_assert_eq!(tokens.unwrap_or(0), super::tokens::held(&process));
            prop_assert_eq!(process.gauge("queue_length"), process.queued().len() as u64);
            prop_assert!(hosts > 1 || process.in_backend() <= 4);
        }
        let all: Vec<u32> = process.requests.keys().copied().collect();
        for stream in all {
            process.finish(stream, Outcome::Completed);
            process.settle();
        }
        process.assert_nothing_booked();
    }
}

/// The 90th percentile of this type is beyond its last objective, so its requests are silent only
/// after twice the type's usual time.
#[test]
fn a_type_that_is_often_late_and_then_hangs_is_found_by_its_silence() {
    let mut process = Process::new(1, &by_value(16));
    for _ in 0..15 {
        let streams: Vec<u32> = (0..4).map(|_| process.arrive(0, "/slow")).collect();
        process.run_for(150 * MS);
        for stream in &streams[1..] {
            process.finish(*stream, Outcome::Completed);
        }
        process.run_for(550 * MS);
        process.finish(streams[0], Outcome::Completed);
    }
    let reason = |(_, reason): &(u32, Reason)| *reason == Reason::Unresponsive;
    assert!(!process.refused.iter().any(reason));
    for _ in 0..4 {
        process.arrive(0, "/slow");
    }
    for at in 0..200 {
        let other = process.arrive(0, "/");
        process.run_for(10 * MS);
        process.finish(other, Outcome::Completed);
        if at == 60 {
            process.arrive(0, "/slow");
            assert!(!process.refused.iter().any(reason), "late, but as usual");
        }
    }
    process.arrive(0, "/slow");
    assert!(process.refused.iter().any(reason), "{:?}", process.refused);
}
