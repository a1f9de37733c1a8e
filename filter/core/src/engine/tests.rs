//! Tests of rules that apply across the workers of one process, in deterministic time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use headgate_strategies::reason::Reason;

use super::*;
use crate::config::{AcceptFractionConfig, FilterConfig, Logic, Objective, StrategyConfig};
use crate::memory::{Fault, MemoryHost, MemoryRequest};
use crate::stage::{ORDER_TOLERANCE, UNRESPONSIVE_AFTER};

mod backlog_control;
mod broken;
mod deadlines;
mod dry_run;
mod edits;
mod found;
mod local;
mod offered;
mod retries;
mod sampling;
mod sizes;
mod streams;
mod tokens;

/// An engine with stages only.
type Engine = super::Engine;

pub(super) fn config(parallelism: u32, change: impl FnOnce(&mut StageConfig)) -> FilterConfig {
    let json = format!(
        r#"{{"revision":"r","stages":[{{"policy":"ns/p","parallelism":{parallelism},
        "queue":{{"max_length":100,"timeout_us":1000000}},
        "strategy":{{"type":"MaxQueueLength"}},
        "service_times":{{"interval_us":1000000,"min_samples":10}},
        "types":[{{"name":"slow","matches":[{{"path":{{"type":"Exact","value":"/slow"}}}}]}},
                 {{"name":"default"}}]}}]}}"#
    );
    let mut config = FilterConfig::from_json(json.as_bytes()).unwrap();
    change(&mut config.stages[0]);
    config
}

/// The position of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum At {
    Queue(Ticket),
    Backend(Ticket),
}

/// Decides whether a request that goes to the backend is measured.
fn sample(engine: &mut Engine, ticket: Ticket) {
    if let Some(stage) = engine.stage_mut(ticket.policy) {
        stage.sample(ticket);
    }
}

/// A process of several workers, and its backend.
struct Process {
    host: MemoryHost,
    now: Instant,
    workers: Vec<Option<Engine>>,
    requests: BTreeMap<u32, (usize, Instant, At)>,
    refused: Vec<(u32, Reason)>,
    /// The time after which the request refused last may come back.
    retry_after: Duration,
    started: Vec<u32>,
    next_stream: u32,
    /// The upstream hosts of requests. Requests without an entry have no upstream host.
    hosts: BTreeMap<u32, Upstream>,
}

impl Process {
    fn new(workers: usize, config: &FilterConfig) -> Self {
        let mut this = Self {
            host: MemoryHost::new(),
            now: Instant::from_nanos(1_000_000_000_000),
            workers: Vec::new(),
            requests: BTreeMap::new(),
            refused: Vec::new(),
            retry_after: Duration::ZERO,
            started: Vec::new(),
            next_stream: 1,
            hosts: BTreeMap::new(),
        };
        for n in 0..workers {
            this.workers.push(Some(Engine::new(n as u64 + 1)));
        }
        this.configure(config);
        // All workers join, and learn of the others.
        for n in 0..workers {
            let stream = this.arrive(n, "/");
            this.finish(stream, Outcome::Unmeasured);
        }
        this.run_for(Duration::from_millis(200));
        this.started.clear();
        this
    }

    fn with<T>(
        &mut self,
        worker: usize,
        f: impl FnOnce(&mut Engine, &MemoryHost, Instant, &mut Vec<Action>) -> T,
    ) -> Option<T> {
        let mut actions = Vec::new();
        let engine = self.workers[worker].as_mut()?;
        let result = f(engine, &self.host, self.now, &mut actions);
        for action in actions {
            match action {
                Action::Resume { stream, .. } => {
                    // A stage that only observes dequeues requests that are already in the backend.
                    let (_, _, place) = self.requests.get_mut(&stream).unwrap();
                    let At::Queue(pass) = *place else {
                        panic!("{stream} resumed twice")
                    };
                    *place = At::Backend(pass);
                    sample(engine, pass);
                    self.started.push(stream);
                }
                Action::Refuse { stream, refusal } => {
                    self.requests.remove(&stream).unwrap();
                    self.refused.push((stream, refusal.reason));
                    self.retry_after = refusal.retry_after;
                }
                Action::Send { .. } => panic!("no call was delayed"),
            }
        }
        Some(result)
    }

    fn was_refused(&mut self, stream: u32, refusal: &Refusal) {
        self.refused.push((stream, refusal.reason));
        self.retry_after = refusal.retry_after;
    }

    fn configure(&mut self, config: &FilterConfig) {
        for worker in 0..self.workers.len() {
            self.with(worker, |engine, host, now, actions| {
                engine.configure(host, now, config, actions).unwrap();
            });
        }
    }

    fn arrive(&mut self, worker: usize, path: &'static str) -> u32 {
        self.arrive_with(worker, path, None)
    }

    fn arrive_with(
        &mut self,
        worker: usize,
        path: &'static str,
        deadline: Option<Duration>,
    ) -> u32 {
        self.arrive_as(worker, &MemoryRequest::get(path), deadline)
    }

    fn arrive_as(
        &mut self,
        worker: usize,
        request: &impl RequestView,
        deadline: Option<Duration>,
    ) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 1;
        let admission = self.with(worker, |engine, host, now, actions| {
            engine.arrive(host, now, stream, request, deadline, actions)
        });
        match admission {
            None | Some(Err(_) | Ok(Decision::PassBy)) => {}
            Some(Ok(Decision::Forward(pass))) => {
                self.with(worker, |engine, _, _, _| sample(engine, pass));
                self.requests
                    .insert(stream, (worker, self.now, At::Backend(pass)));
                self.started.push(stream);
            }
            Some(Ok(Decision::Hold(pass))) => {
                self.requests
                    .insert(stream, (worker, self.now, At::Queue(pass)));
            }
            Some(Ok(Decision::Refuse(refusal))) => self.was_refused(stream, &refusal),
        }
        stream
    }

    /// Ends a request as `headgate_core::http::Inbound` does.
    fn finish(&mut self, stream: u32, outcome: Outcome) {
        let Some((worker, _, At::Queue(pass) | At::Backend(pass))) = self.requests.remove(&stream)
        else {
            return;
        };
        let at = self.hosts.remove(&stream);
        let at = at.filter(|_| outcome == Outcome::Completed);
        self.with(worker, |engine, host, now, actions| {
            let stage = engine.stage_mut(pass.policy).filter(|s| s.watches_hosts());
            if let (Some(at), Some(stage)) = (at, stage) {
                stage.answered_by(host, now, pass, at).unwrap();
            }
            let stage = engine.stage(pass.policy);
            let outcome = match stage.is_some_and(|stage| !stage.wants_answer(pass)) {
                true if outcome != Outcome::Abandoned => Outcome::Unsampled,
                _ => outcome,
            };
            engine.finish(host, now, pass, outcome, actions).unwrap();
        });
    }

    /// Delivers wake-ups until none is left.
    fn settle(&mut self) {
        let (mut again, mut rounds) = (true, 0);
        while again {
            again = false;
            rounds += 1;
            assert!(rounds < 1_000, "workers wake each other forever");
            for worker in 0..self.workers.len() {
                let id = self.workers[worker].as_ref().and_then(Engine::worker);
                if id.is_some_and(|id| self.host.take_wakes(id) > 0) {
                    again = true;
                    self.with(worker, |engine, host, now, actions| {
                        engine.woken(host, now, actions).unwrap();
                    });
                }
            }
        }
    }

    fn pass_time(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    /// Advances the time in ticks of 10 ms.
    fn run_for(&mut self, span: Duration) {
        for _ in 0..span.as_millis() / 10 {
            self.pass_time(Duration::from_millis(10));
            let hosts = std::mem::take(&mut self.hosts);
            for worker in 0..self.workers.len() {
                self.with(worker, |engine, host, now, actions| {
                    engine.tick(host, now, actions).unwrap();
                    while let Some((ticket, stream)) = engine.suspects().pop() {
                        if let Some(&at) = hosts.get(&stream) {
                            engine.at_host(host, now, ticket, at, actions).unwrap();
                        }
                    }
                });
            }
            self.hosts = hosts;
            self.settle();
        }
    }

    fn in_backend(&self) -> usize {
        self.requests
            .values()
            .filter(|(_, _, at)| matches!(at, At::Backend(_)))
            .count()
    }

    fn queued(&self) -> Vec<u32> {
        let queued = |(&stream, (_, _, at)): (&u32, &(usize, Instant, At))| {
            matches!(at, At::Queue(_)).then_some(stream)
        };
        self.requests.iter().filter_map(queued).collect()
    }

    fn gauge(&self, name: &str) -> u64 {
        let packed = || self.gauge("queue_packed");
        match name {
            // Return the values on which decisions are based, not the values published at the last
            // tick.
            "queue_length" => return packed() >> 44,
            "queued_work_us" => return packed() & ((1 << 44) - 1),
            _ => {}
        }
        self.host
            .value(&format!("headgate.policy.ns/p.{name}"))
            .unwrap()
    }

    /// Serves 30 requests to `/slow` of 20 ms each, and waits until they count.
    fn learn_slow(&mut self) {
        for _ in 0..30 {
            let stream = self.arrive(0, "/slow");
            self.pass_time(Duration::from_millis(20));
            self.finish(stream, Outcome::Completed);
        }
        self.run_for(Duration::from_secs(3));
    }

    fn assert_nothing_booked(&self) {
        for name in ["slots_in_use", "queue_length", "queued_work_us"] {
            assert_eq!(self.gauge(name), 0, "{name}");
        }
        let tokens = self.host.value("headgate.policy.ns/p.tokens_in_use");
        assert_eq!(tokens.unwrap_or(0), 0, "tokens_in_use");
    }
}

/// A cold type is judged by the objectives of `default`, whose percentiles may differ from its own.
#[test]
fn a_cold_type_is_refused_for_the_objective_that_it_was_judged_by() {
    let objective = |percentile, ms: u64| Objective {
        percentile,
        objective_us: ms * 1_000,
    };
    let config = config(1, |stage| {
        stage.strategy = StrategyConfig::Bouncer {
            logic: Logic::Any,
            shed_by_value: false,
            capacity: None,
        };
        stage.types[0].slo = vec![objective(99.0, 10_000)];
        stage.types[1].slo = vec![objective(50.0, 150)];
    });
    let mut process = Process::new(1, &config);
    for _ in 0..40 {
        let stream = process.arrive(0, "/");
        process.run_for(Duration::from_millis(100));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_secs(1));
    // One request runs, and one waits for it. A third request would wait for 100 ms and take 100
    // ms.
    process.arrive(0, "/");
    process.arrive(0, "/");
    let cold = process.arrive(0, "/slow");
    assert_eq!(process.refused, [(cold, Reason::Objective(50.0))]);
    assert_eq!(process.refused[0].1.to_string(), "slo_p50");
    process.run_for(Duration::from_millis(10));
    let rejected = |percentile| {
        let name = format!("type.slow.rq_rejected.reason.slo_{percentile}");
        process.gauge(&name)
    };
    assert_eq!((rejected("p50"), rejected("p99")), (1, 0));
}

/// The limit on utilization counts only requests that Bouncer admits. Other workers add these
/// arrivals to the demand that AcceptFraction compares with all slots.
#[test]
fn the_demand_beside_bouncer_is_what_bouncer_admits() {
    let config = config(1, |stage| {
        stage.strategy = StrategyConfig::Bouncer {
            logic: Logic::Any,
            shed_by_value: false,
            capacity: Some(AcceptFractionConfig {
                max_utilization: 1.0,
                units: Some(1_000.0),
                window_us: 1_000_000,
                step_us: 100_000,
            }),
        };
        for kind in &mut stage.types {
            kind.slo = vec![Objective {
                percentile: 50.0,
                objective_us: 150_000,
            }];
        }
    });
    let mut process = Process::new(1, &config);
    for _ in 0..60 {
        let stream = process.arrive(0, "/");
        process.run_for(Duration::from_millis(100));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_secs(1));
    let before = process.gauge("demand_received");
    // One request runs, and one waits for it. The other requests would wait for 100 ms and take 100
    // ms.
    for _ in 0..5 {
        process.arrive(0, "/");
    }
    assert_eq!(process.refused.len(), 3);
    process.run_for(Duration::from_millis(10));
    assert_eq!(process.gauge("demand_received") - before, 2);
}

/// Sets Bouncer Alg. 1 as the strategy of `stage`, with this objective at the median for each type.
fn decide_by_median(stage: &mut StageConfig, objective_us: u64) {
    stage.strategy = StrategyConfig::Bouncer {
        logic: Logic::Any,
        shed_by_value: false,
        capacity: None,
    };
    for kind in &mut stage.types {
        kind.slo = vec![Objective {
            percentile: 50.0,
            objective_us,
        }];
    }
}

/// Runs forty requests on one slot, each of which ends with `outcome` after `left`. With
/// `answered`, also runs forty requests that are answered after that time. Returns how many of six
/// simultaneous requests are then admitted, with an objective of 70 ms.
fn let_in_after(outcome: Outcome, left: Duration, answered: Option<Duration>) -> usize {
    let config = config(1, |stage| {
        decide_by_median(stage, 70_000);
    });
    let mut process = Process::new(1, &config);
    let mut ends = vec![(left, outcome)];
    ends.extend(answered.map(|time| (time, Outcome::Completed)));
    for _ in 0..40 {
        for &(time, outcome) in &ends {
            let stream = process.arrive(0, "/");
            process.pass_time(time);
            process.finish(stream, outcome);
        }
        process.run_for(Duration::from_millis(10));
    }
    process.run_for(Duration::from_secs(2));
    for _ in 0..6 {
        process.arrive(0, "/");
    }
    6 - process.refused.len()
}

#[test]
fn abandoned_and_timed_out_requests_count_as_lower_bounds_of_their_times() {
    let ms = Duration::from_millis;
    for outcome in [Outcome::Abandoned, Outcome::Failed] {
        // One request runs, and one waits, because a single request already takes longer than the
        // objective.
        assert_eq!(let_in_after(outcome, ms(100), None), 2);
        // Requests behind at most two others, which take 20 ms each, meet the objective.
        assert_eq!(let_in_after(outcome, ms(5), Some(ms(20))), 4);
        assert_eq!(let_in_after(outcome, ms(20), Some(ms(20))), 4);
        // For a type without its own mean, a time within the objective gives no information.
        assert_eq!(let_in_after(outcome, ms(60), None), 6);
    }
}

#[test]
fn slots_go_to_the_longest_waiting_of_all_workers() {
    let mut process = Process::new(4, &config(1, |_| {}));
    let first = process.arrive(0, "/");
    let mut expected = Vec::new();
    for n in 0..12 {
        process.pass_time(ORDER_TOLERANCE + Duration::from_micros(1));
        expected.push(process.arrive((n * 7 + 1) % 4, "/"));
    }
    assert_eq!(process.queued(), expected);
    let mut running = first;
    for &next in &expected {
        process.finish(running, Outcome::Completed);
        process.settle();
        assert_eq!(
            process.started.last(),
            Some(&next),
            "in order of arrival, whoever freed the slot"
        );
        running = next;
    }
    process.finish(running, Outcome::Completed);
    process.assert_nothing_booked();
}

#[test]
fn a_worker_keeps_its_slot_for_a_waiter_of_its_own_that_is_hardly_later() {
    let mut process = Process::new(2, &config(1, |_| {}));
    let running = process.arrive(0, "/");
    let _other = process.arrive(1, "/");
    process.pass_time(ORDER_TOLERANCE);
    let own = process.arrive(0, "/");
    process.finish(running, Outcome::Completed);
    assert_eq!(
        process.started.last(),
        Some(&own),
        "without a wake-up in between"
    );
}

#[test]
fn a_lost_wake_up_costs_a_tick_and_no_slot() {
    let mut process = Process::new(2, &config(1, |_| {}));
    let running = process.arrive(0, "/");
    let waiting = process.arrive(1, "/");
    process.host.inject(Fault::WakeIsLost, 1);
    process.finish(running, Outcome::Completed);
    process.settle();
    assert_eq!(process.queued(), [waiting]);
    process.run_for(Duration::from_millis(10));
    assert_eq!(process.started.last(), Some(&waiting));
}

#[test]
fn a_worker_that_does_not_react_is_passed_over() {
    let mut process = Process::new(2, &config(1, |_| {}));
    let running = process.arrive(0, "/");
    let stuck = process.arrive(1, "/");
    process.pass_time(Duration::from_millis(5));
    let own = process.arrive(0, "/");
    process.finish(running, Outcome::Completed);
    assert_eq!(process.in_backend(), 0, "left to worker 1, which was first");
    // Worker 1 doesn't run. Worker 0's next tick finds it unresponsive.
    process.pass_time(UNRESPONSIVE_AFTER);
    process.with(0, |engine, host, now, actions| {
        engine.tick(host, now, actions).unwrap();
    });
    assert_eq!(process.started.last(), Some(&own));
    assert_eq!(process.queued(), [stuck]);
}

#[test]
fn slots_that_get_free_at_once_do_not_wait_for_one_wake_up_after_the_other() {
    let mut process = Process::new(3, &config(6, |_| {}));
    let running: Vec<u32> = (0..6).map(|_| process.arrive(0, "/")).collect();
    for worker in [1, 2] {
        process.arrive(worker, "/");
        process.pass_time(2 * ORDER_TOLERANCE);
    }
    let own: Vec<u32> = (0..20).map(|_| process.arrive(0, "/")).collect();
    process.started.clear();
    for stream in running {
        process.finish(stream, Outcome::Unmeasured);
    }
    assert_eq!(
        process.started,
        own[..4],
        "two slots are left to workers 1 and 2, which don't run yet"
    );
    process.settle();
    assert_eq!(process.in_backend(), 6);
    assert_eq!(process.queued(), own[4..]);
}

/// A failing backend answers at once. Such answers must not count as fast service.
#[test]
fn errors_free_their_slot_and_are_not_learned_from() {
    let objective = Objective {
        percentile: 50.0,
        objective_us: 50_000,
    };
    let mut process = Process::new(1, &config(2, |s| s.types[1].slo = vec![objective]));
    let served = |process: &mut Process, time: u64, outcome| {
        for _ in 0..40 {
            let stream = process.arrive(0, "/");
            process.pass_time(Duration::from_millis(time));
            process.finish(stream, outcome);
        }
    };
    served(&mut process, 20, Outcome::Completed);
    served(&mut process, 1, Outcome::Failed);
    process.run_for(Duration::from_secs(2));
    let of_type = |name: &str| process.gauge(&format!("type.default.{name}"));
    assert_eq!(of_type("rq_completed"), 40);
    assert_eq!(of_type("rq_failed"), 40);
    assert_eq!(
        of_type("rq_slo_met.objective.p50"),
        40,
        "an error meets no objective"
    );
    let measured = "headgate.policy.ns/p.type.default.processing_time_us";
    assert_eq!(process.host.recorded(measured), Some((40, 40 * 20_000)));
    process.assert_nothing_booked();
    for _ in 0..3 {
        process.arrive(0, "/");
    }
    let work = process.gauge("queued_work_us");
    assert!(
        work.abs_diff(20_000) < 500,
        "the one that waits takes {work} µs"
    );
}

#[test]
fn queued_work_of_a_slow_service_counts_in_full() {
    let mut process = Process::new(1, &config(10, |s| s.queue.timeout_us = 3_600_000_000));
    let minute = Duration::from_secs(60);
    for _ in 0..2 {
        let running: Vec<u32> = (0..10).map(|_| process.arrive(0, "/slow")).collect();
        process.pass_time(minute);
        for stream in running {
            process.finish(stream, Outcome::Completed);
        }
    }
    process.run_for(Duration::from_secs(2));
    for _ in 0..20 {
        process.arrive(0, "/slow");
    }
    let work = Duration::from_micros(process.gauge("queued_work_us"));
    assert!(work.abs_diff(10 * minute) < minute / 5, "10 wait: {work:?}");
}

#[test]
fn a_dead_workers_slots_come_back_after_its_lease() {
    let mut process = Process::new(3, &config(2, |_| {}));
    let lost: Vec<u32> = (0..2).map(|_| process.arrive(1, "/")).collect();
    let also_lost = process.arrive(1, "/");
    process.pass_time(Duration::from_millis(5));
    let waiting = process.arrive(0, "/");
    process.workers[1] = None;
    for stream in lost.into_iter().chain([also_lost]) {
        process.requests.remove(&stream);
    }
    process.run_for(Duration::from_millis(500));
    assert_eq!(
        process.queued(),
        [waiting],
        "its slots are in the backend for all we know"
    );
    process.run_for(Duration::from_secs(10));
    // The waiting request was refused after the queue.timeout of 1 s. New requests must find the
    // released slots.
    let new: Vec<u32> = (0..2).map(|_| process.arrive(2, "/")).collect();
    assert!(new.iter().all(|stream| process.started.contains(stream)));
    for stream in new {
        process.finish(stream, Outcome::Completed);
    }
    process.assert_nothing_booked();
    assert_eq!(process.gauge("workers_lost"), 1);
}

#[test]
fn a_client_that_leaves_the_queue_leaves_no_trace() {
    let mut process = Process::new(2, &config(1, |_| {}));
    let running = process.arrive(0, "/");
    let gone: Vec<u32> = (0..50).map(|n| process.arrive(n % 2, "/")).collect();
    for stream in gone {
        process.finish(stream, Outcome::Unmeasured);
    }
    assert_eq!(process.gauge("queue_length"), 0);
    process.finish(running, Outcome::Completed);
    process.run_for(Duration::from_millis(10));
    process.assert_nothing_booked();
    assert_eq!(process.gauge("type.default.rq_abandoned"), 50);
}

/// The time after which a client leaves says little about the wait of those that stay.
#[test]
fn clients_that_leave_at_once_make_no_estimated_wait_shorter() {
    let config = config(1, |stage| {
        stage.queue.discipline = crate::config::Discipline::Slack;
        stage.queue.timeout_us = 60_000_000;
    });
    let mut process = Process::new(1, &config);
    process.learn_slow();
    for _ in 0..6 {
        process.arrive(0, "/slow");
    }
    let wait = |process: &Process| {
        let request = Attributes::of(headgate_strategies::request::TypeId(0));
        let stage = process.stage(0);
        let wait = stage.expected_wait(&process.host, process.now, &request);
        wait.unwrap()
    };
    let before = wait(&process);
    assert!(before > Duration::from_millis(90), "{before:?}");
    for _ in 0..100 {
        let stream = process.arrive(0, "/slow");
        process.pass_time(Duration::from_millis(1));
        process.finish(stream, Outcome::Abandoned);
    }
    assert_eq!(wait(&process), before);
}

#[test]
fn the_queue_never_exceeds_its_length() {
    // This strategy doesn't depend on the length of the queue.
    const MAX_QUEUE_WAIT: &str = r#"{"type":"MaxQueueWait","limit_us":1000000,
        "window_us":1000000,"step_us":100000}"#;
    let config = config(1, |stage| {
        stage.queue.max_length = 3;
        stage.strategy = serde_json::from_str(MAX_QUEUE_WAIT).unwrap();
    });
    let mut process = Process::new(2, &config);
    let running = process.arrive(0, "/");
    let _waiting: Vec<u32> = (0..3).map(|n| process.arrive(n % 2, "/")).collect();
    let refused = process.arrive(0, "/");
    assert_eq!(process.refused, [(refused, Reason::QueueFull)]);
    process.finish(running, Outcome::Completed);
    process.settle();
    process.arrive(1, "/");
    assert_eq!(process.refused.len(), 1, "there is room again");
}

#[test]
fn waiting_ends_at_the_requests_deadline_or_the_queues_timeout() {
    let mut process = Process::new(1, &config(1, |_| {}));
    let running = process.arrive(0, "/");
    let own = process.arrive_with(0, "/", Some(Duration::from_millis(40)));
    let timeout = process.arrive_with(0, "/", Some(Duration::from_secs(60)));
    process.run_for(Duration::from_millis(50));
    assert_eq!(process.refused, [(own, Reason::Deadline)]);
    process.run_for(Duration::from_secs(1));
    assert_eq!(
        process.refused,
        [(own, Reason::Deadline), (timeout, Reason::QueueTimeout)]
    );
    assert_eq!(process.gauge("queue_length"), 0);
    process.finish(running, Outcome::Completed);
    process.assert_nothing_booked();
}

#[test]
fn a_slot_is_not_spent_on_a_request_that_is_too_late() {
    let mut process = Process::new(1, &config(1, |_| {}));
    let running = process.arrive(0, "/");
    let late = process.arrive_with(0, "/", Some(Duration::from_millis(1)));
    process.pass_time(Duration::from_millis(2));
    process.finish(running, Outcome::Completed);
    assert_eq!(process.refused, [(late, Reason::Deadline)]);
    process.assert_nothing_booked();
}

#[test]
fn an_edit_keeps_waiting_requests_and_learned_times() {
    let mut process = Process::new(2, &config(1, |_| {}));
    process.learn_slow();
    let running = process.arrive(0, "/slow");
    let waiting = process.arrive(1, "/slow");
    assert_eq!(
        process.gauge("queued_work_us") / 1000,
        20,
        "the learned mean"
    );
    // The edit puts a new type before `slow`, and P grows.
    process.configure(&config(2, |stage| {
        let mut new = stage.types[0].clone();
        new.name = "new".into();
        stage.types.insert(0, new);
    }));
    process.settle();
    assert_eq!(
        process.started.last(),
        Some(&waiting),
        "P grew: nobody needs to wait"
    );
    let more = process.arrive(1, "/slow");
    assert_eq!(process.queued(), [more]);
    assert_eq!(
        process.gauge("queued_work_us") / 1000,
        20,
        "known under another number and name order"
    );
    for stream in [running, waiting, more] {
        process.finish(stream, Outcome::Completed);
        process.settle();
    }
    process.assert_nothing_booked();
}

#[test]
fn deletion_admits_all_requests_and_leaves_no_state() {
    let mut process = Process::new(2, &config(1, |_| {}));
    let all: Vec<u32> = (0..10).map(|n| process.arrive(n % 2, "/")).collect();
    process.configure(&FilterConfig::default());
    assert_eq!(process.queued(), [0u32; 0]);
    assert_eq!(process.in_backend(), 10);
    let untouched = process.arrive(0, "/");
    assert!(!process.requests.contains_key(&untouched), "passes by");
    for stream in all {
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_millis(10));
    process.assert_nothing_booked();
    // Restore the policy.
    process.configure(&config(1, |_| {}));
    let (first, second) = (process.arrive(0, "/"), process.arrive(1, "/"));
    assert_eq!((process.in_backend(), process.queued()), (1, vec![second]));
    process.finish(first, Outcome::Completed);
    process.settle();
    process.finish(second, Outcome::Completed);
    process.assert_nothing_booked();
}

#[test]
fn a_bad_configuration_changes_nothing() {
    let mut process = Process::new(1, &config(1, |_| {}));
    let bad = config(1, |stage| stage.parallelism = 0);
    process.with(0, |engine, host, now, actions| {
        let error = engine.configure(host, now, &bad, actions).unwrap_err();
        assert_eq!(error.field, "stages[0].parallelism");
        assert_eq!(engine.parallelism(PolicyId(0)), Some(1));
    });
    let (first, second) = (process.arrive(0, "/"), process.arrive(0, "/"));
    assert_eq!(process.queued(), [second]);
    process.finish(first, Outcome::Completed);
}

#[test]
fn dry_run_refuses_and_holds_nothing_but_counts_what_it_would() {
    let mut process = Process::new(
        1,
        &config(1, |stage| {
            stage.mode = crate::config::Mode::DryRun;
            stage.strategy = crate::config::StrategyConfig::Bouncer {
                logic: Default::default(),
                shed_by_value: false,
                capacity: None,
            };
            for kind in &mut stage.types {
                kind.slo.push(crate::config::Objective {
                    percentile: 50.0,
                    objective_us: 55_000,
                });
            }
        }),
    );
    process.learn_slow();
    let burst: Vec<u32> = (0..20).map(|_| process.arrive(0, "/slow")).collect();
    assert_eq!((process.in_backend(), process.refused.len()), (20, 0));
    for stream in burst {
        process.pass_time(Duration::from_millis(20));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_millis(20));
    // With a service time of 20 ms, waits of 0 and 20 ms meet the objective of 55 ms, and a wait of
    // 40 ms doesn't.
    assert_eq!(process.gauge("type.slow.rq_rejected"), 17);
    assert_eq!(process.gauge("type.slow.rq_rejected_enforced"), 0);
    assert_eq!(process.gauge("type.slow.rq_total"), 50);
    process.assert_nothing_booked();
}

#[test]
fn a_burst_spends_the_error_budget_of_its_type_and_no_more() {
    let process = |shed_by_value| {
        let mut process = Process::new(
            1,
            &config(1, |stage| {
                stage.strategy = StrategyConfig::Bouncer {
                    logic: Logic::Any,
                    shed_by_value,
                    capacity: None,
                };
                for kind in &mut stage.types {
                    kind.slo.push(Objective {
                        percentile: 90.0,
                        objective_us: 55_000,
                    });
                }
            }),
        );
        process.learn_slow();
        for _ in 0..20 {
            process.arrive(0, "/slow");
        }
        process
    };
    // With a service time of 20 ms, waits of 0 and 20 ms meet the objective of 55 ms, and a wait of
    // 40 ms doesn't.
    assert_eq!(process(false).refused.len(), 17);
    // The error budget allows 3.3% of the latest 100 requests to miss the objective.
    assert_eq!(process(true).refused.len(), 13);
}

/// 100 requests/s of 100 ms and 100 requests/s of 20 ms demand 12 slots. The cost of the slow
/// requests is known after 20 of them.
#[test]
fn the_value_cut_shows_the_rank_and_the_slots_that_a_type_asks_for() {
    let mut process = Process::new(2, &broken::by_value(16));
    assert_eq!(process.gauge("type.slow.value_per_slot_second_milli"), 0);
    let mut running: Vec<(u64, u32)> = Vec::new();
    for at in (0..8_000).step_by(10) {
        running.push((at + 100, process.arrive(0, "/slow")));
        running.push((at + 20, process.arrive(1, "/")));
        let over = |&mut (end, _): &mut (u64, u32)| end <= at;
        for (_, stream) in running.extract_if(.., over).collect::<Vec<_>>() {
            process.finish(stream, Outcome::Completed);
        }
        process.run_for(Duration::from_millis(10));
    }
    assert!(process.refused.is_empty());
    let is_near = |name: &str, wanted: u64| {
        let seen = process.gauge(name);
        assert!(seen.abs_diff(wanted) * 20 <= wanted, "{name}: {seen}");
    };
    is_near("type.slow.value_per_slot_second_milli", 10_000);
    is_near("type.default.value_per_slot_second_milli", 50_000);
    is_near("type.slow.value_slots_asked_milli", 10_000);
    is_near("type.default.value_slots_asked_milli", 2_000);
    assert_eq!(process.gauge("type.slow.value_admitted_permille"), 1_000);
    // The gauges of a renamed type, or of a value cut that is switched off, are reset.
    let mut edited = broken::by_value(16);
    edited.stages[0].types[0].name = "renamed".to_owned();
    process.configure(&edited);
    assert_eq!(process.gauge("type.slow.value_per_slot_second_milli"), 0);
    assert_eq!(process.gauge("type.slow.value_admitted_permille"), 0);
    assert_eq!(
        process.gauge("type.default.value_per_slot_second_milli"),
        50_000
    );
    edited.stages[0].strategy = StrategyConfig::Bouncer {
        logic: Logic::Any,
        shed_by_value: false,
        capacity: None,
    };
    process.configure(&edited);
    assert_eq!(process.gauge("type.default.value_per_slot_second_milli"), 0);
    assert_eq!(process.gauge("value_budget_permille"), 0);

    // The gauges of a policy that is removed while requests wait or run are reset, too.
    process.configure(&broken::by_value(16));
    process.run_for(Duration::from_millis(200));
    assert!(process.gauge("value_budget_permille") > 0);
    let last = process.arrive(0, "/slow");
    process.configure(&FilterConfig::default());
    process.run_for(Duration::from_secs(1));
    process.finish(last, Outcome::Completed);
    process.run_for(Duration::from_millis(100));
    assert_eq!(process.gauge("value_budget_permille"), 0);
}

#[test]
fn observing_holds_nothing_and_measures_the_backends_own_queue() {
    let mut process = Process::new(
        2,
        &config(1, |stage| {
            stage.queue.mode = crate::config::QueueMode::Observe;
        }),
    );
    let all: Vec<u32> = (0..4)
        .map(|n| {
            process.pass_time(Duration::from_nanos(16));
            process.arrive(n % 2, "/slow")
        })
        .collect();
    assert_eq!(process.in_backend(), 4, "nothing is held");
    assert_eq!(
        process.gauge("queue_length"),
        3,
        "of which three wait in the backend"
    );
    for stream in all {
        process.pass_time(Duration::from_millis(10));
        process.finish(stream, Outcome::Completed);
        process.settle();
    }
    let sum = |name: &str| {
        process
            .host
            .recorded(&format!("headgate.policy.ns/p.type.slow.{name}"))
            .unwrap()
    };
    assert_eq!(sum("processing_time_us"), (4, 40_000), "10 ms each");
    assert_eq!(sum("queue_wait_us"), (4, 60_000), "0 + 10 + 20 + 30 ms");
    process.assert_nothing_booked();
}

#[test]
fn a_failing_host_lets_requests_through() {
    let mut process = Process::new(1, &config(1, |_| {}));
    process.host.inject(Fault::MetricFails, 1);
    let stream = process.arrive(0, "/");
    assert!(process.refused.is_empty() && !process.requests.contains_key(&stream));
    process.run_for(Duration::from_millis(10));
    assert_eq!(process.gauge("rq_unmanaged"), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Arrive {
        worker: usize,
        deadline_ms: Option<u64>,
    },
    Complete(usize),
    Leave(usize),
    Pass {
        micros: u64,
    },
    Tick,
    Parallelism(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let deadline = prop::option::weighted(0.2, 1u64..50);
    let step = prop_oneof![
        6 => (0usize..3, deadline)
            .prop_map(|(worker, deadline_ms)| Step::Arrive { worker, deadline_ms }),
        4 => any::<usize>().prop_map(Step::Complete),
        2 => any::<usize>().prop_map(Step::Leave),
        4 => (1u64..5_000).prop_map(|micros| Step::Pass { micros }),
        1 => Just(Step::Tick),
        1 => (1u32..6).prop_map(Step::Parallelism),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// After any steps, there are never more than P requests in the backend, and no request waits
    /// while a slot is free. The bookings match the requests, and no booking remains at the end.
    #[test]
    fn slots_are_conserved_and_never_idle_beside_a_waiter(steps in steps()) {
        let mut p = 2;
        let mut process = Process::new(3, &config(p, |_| {}));
        let mut started_by: BTreeSet<u32> = BTreeSet::new();
        for step in steps {
            let before = process.in_backend();
            match step {
                Step::Arrive { worker, deadline_ms } => {
                    process.arrive_with(worker, "/", deadline_ms.map(Duration::from_millis));
                }
                Step::Complete(n) | Step::Leave(n) => {
                    let all: Vec<u32> = process.requests.keys().copied().collect();
                    if !all.is_empty() {
                        let outcome = if matches!(step, Step::Complete(_)) {
                            Outcome::Completed
                        } else {
                            Outcome::Unmeasured
                        };
                        process.finish(all[n % all.len()], outcome);
                    }
                }
                Step::Pass { micros } => process.pass_time(Duration::from_micros(micros)),
                Step::Tick => process.run_for(Duration::from_millis(10)),
                Step::Parallelism(new) => {
                    p = new;
                    process.configure(&config(p, |_| {}));
                }
            }
            process.settle();
            let in_backend = process.in_backend();
            prop_assert!(
                in_backend <= (p as usize).max(before),
                "{in_backend} in the backend, P is {p}"
            );
            prop_assert!(in_backend >= p as usize || process.queued().is_empty(),
                "{:?} wait while {in_backend} of {p} slots are in use", process.queued());
            prop_assert_eq!(process.gauge("slots_in_use"), in_backend as u64);
            prop_assert_eq!(process.gauge("queue_length"), process.queued().len() as u64);
            for stream in process.started.drain(..) {
                prop_assert!(started_by.insert(stream), "{stream} started twice");
            }
        }
        let all: Vec<u32> = process.requests.keys().copied().collect();
        for stream in all {
            process.finish(stream, Outcome::Completed);
            process.settle();
        }
        process.assert_nothing_booked();
    }
}

/// Returns the number of requests that `process` admits on `worker` before it refuses one for its
/// estimated wait.
fn admitted_until_refused(process: &mut Process, worker: usize) -> usize {
    let before = process.refused.len();
    for admitted in 0..=100 {
        process.arrive(worker, "/");
        if let Some((_, reason)) = process.refused.get(before) {
            assert_eq!(*reason, Reason::QueueWait);
            return admitted;
        }
    }
    panic!("nothing was refused");
}

#[test]
fn the_mean_of_all_is_known_to_a_late_worker_and_after_an_edit() {
    let limited_to = |limit_us| {
        config(1, |stage| {
            stage.strategy = StrategyConfig::MaxQueueWait {
                limit_us,
                type_limits_us: BTreeMap::new(),
                window_us: 60_000_000,
                step_us: 1_000_000,
            };
        })
    };
    let mut process = Process::new(1, &limited_to(450_000));
    for _ in 0..20 {
        let stream = process.arrive(0, "/");
        process.run_for(Duration::from_millis(100));
        process.finish(stream, Outcome::Completed);
    }
    process.run_for(Duration::from_millis(10));
    process.workers.push(Some(Engine::new(2)));
    process.configure(&limited_to(450_000));
    // One request runs, and five wait. With l = 5, l · 100 ms exceeds 450 ms (Eq. 5).
    assert_eq!(admitted_until_refused(&mut process, 1), 6);
    process.configure(&limited_to(750_000));
    assert_eq!(admitted_until_refused(&mut process, 1), 3);
    process.configure(&limited_to(950_000));
    assert_eq!(admitted_until_refused(&mut process, 0), 2);
}

#[test]
fn a_request_that_expires_in_the_queue_is_rejected_and_not_accepted() {
    let mut process = Process::new(1, &config(1, |_| {}));
    let running = process.arrive(0, "/slow");
    let next = process.arrive(0, "/slow");
    process.arrive(0, "/slow");
    process.run_for(Duration::from_millis(900));
    process.arrive(0, "/slow");
    process.run_for(Duration::from_millis(90));
    process.finish(running, Outcome::Completed);
    process.run_for(Duration::from_millis(1_100));
    let counted = ["total", "accepted", "rejected"];
    let counted = counted.map(|name| process.gauge(&format!("type.slow.rq_{name}")));
    assert_eq!(counted, [4, 2, 2]);
    process.finish(next, Outcome::Completed);
    process.assert_nothing_booked();
}
