//! Tests of the shares of fair queues over several workers. Neither clients that give up nor
//! expensive requests can change the shares.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_core::config::{Discipline, Flow, TokenCost};
use headgate_core::stage::Outcome;
use headgate_strategies::time::Instant;
use proptest::prelude::*;

use super::process::{A, B, Process, Sent, config, ms};

fn drr(quantum_us: u64, weight_of_a: f64) -> Discipline {
    Discipline::Drr {
        by: Flow::Type,
        quantum_us,
        weights: [("a".to_owned(), weight_of_a)].into(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Two flows always wait, on any workers. The services divided by the weights then differ by at
    /// most a quantum plus the quotient of the largest cost and the smaller weight.
    #[test]
    fn backlogged_flows_share_by_weight_over_all_workers(
        workers in 1_usize..=4,
        weight in prop::sample::select(vec![0.25, 0.5, 1.0, 2.0, 5.0]),
        quantum_us in 1_000_u64..20_000,
        at in prop::collection::vec((0_usize..4, 0_usize..4), 10),
    ) {
        let mut process = Process::new(workers, &config(1, &drr(quantum_us, weight)));
        let mut running = process.arrive(0, A);
        // The flow of each stream.
        let mut flows: BTreeMap<u32, usize> = BTreeMap::new();
        for (n, (a, b)) in at.iter().cycle().take(80).enumerate() {
            process.pass(ms(u64::from(n % 2 == 0)));
            flows.insert(process.arrive(a % workers, A), 0);
            flows.insert(process.arrive(b % workers, B), 1);
        }
        let mut served = [0.0_f64; 2];
        let mut takes = ms(1);
        for n in 0..60 {
            process.pass(takes);
            process.finish(running, Outcome::Unmeasured);
            process.settle();
            running = *process.started.last().unwrap();
            let flow = flows[&running];
            takes = if flow == 0 { ms(1) } else { ms(10) };
            served[flow] += if flow == 0 { 1.0 / weight } else { 10.0 };
            // The client of the flow that was served sends another request.
            let (a, b) = at[n % at.len()];
            let (sent, worker) = if flow == 0 { (A, a) } else { (B, b) };
            flows.insert(process.arrive(worker % workers, sent), flow);
            let quantum = quantum_us as f64 / 1e3;
            let bound = quantum + 10.0 / weight.min(1.0);
            let apart = (served[0] - served[1]).abs();
            prop_assert!(apart <= bound * 1.02, "{apart} ms apart after {n}, at most {bound}");
        }
    }
}

/// Type `a` sends twenty times its share, and most of its clients give up before their turn. Both
/// types get their shares at all times.
#[test]
fn a_flow_whose_clients_give_up_keeps_its_share() {
    for workers in [1, 2] {
        let mut process = Process::new(workers, &config(1, &drr(10_000, 1.0)));
        let (mut running, mut began) = (process.arrive(0, B), 0);
        let mut given_up: Vec<(u64, u32)> = Vec::new();
        let mut flows: BTreeMap<u32, usize> = BTreeMap::new();
        let mut served = [0_u64; 2];
        for now in 1..=4_000_u64 {
            process.pass(ms(1));
            let worker = now as usize % workers;
            // The load is 10 slots of `a` and two slots of `b`. The clients of `a` wait for at most
            // 50 ms.
            for _ in 0..10 {
                let stream = process.arrive(worker, A);
                flows.insert(stream, 0);
                given_up.push((now + 50, stream));
            }
            if now % 5 == 0 && process.queued().iter().filter(|s| flows[s] == 1).count() < 4 {
                flows.insert(process.arrive(worker, B), 1);
            }
            while given_up.first().is_some_and(|(at, _)| *at <= now) {
                let (_, stream) = given_up.remove(0);
                if process.queued().contains(&stream) {
                    process.finish(stream, Outcome::Unmeasured);
                }
            }
            let takes = if flows.get(&running) == Some(&0) {
                1
            } else {
                10
            };
            if now >= began + takes {
                began = now;
                process.finish(running, Outcome::Unmeasured);
                process.settle();
                running = *process.started.last().unwrap();
                let flow = flows[&running];
                served[flow] += if flow == 0 { 1 } else { 10 };
            }
            if now % 10 == 0 {
                process.tick();
                process.settle();
            }
            if now % 200 == 0 {
                let share = served[0] as f64 / (served[0] + served[1]) as f64;
                let kept = (0.4..0.6).contains(&share);
                assert!(kept, "{share} of the time on {workers} until {now} ms");
                served = [0; 2];
            }
        }
    }
}

/// Requests of two workflows always wait. Requests of `long` are of type `a`, have 4 tokens and
/// take 1 ms. Requests of `short` are of type `b`, have 1 token and take 10 ms.
#[test]
fn workflows_get_as_many_tokens_as_each_other_where_turns_are_by_tokens() {
    for workers in [1, 2] {
        let discipline = Discipline::Wfq {
            by: Flow::Workflow,
            weights: BTreeMap::new(),
            tokens: Some(TokenCost {
                input: 1.0,
                output: 0.0,
            }),
        };
        let mut config = config(1, &discipline);
        let stage = &mut config.stages[0];
        stage.workflows = serde_json::from_str(
            r#"{"identify":[{"type":"Baggage","key":"workflow"}],"quantile":0.5,
            "interval_us":100000,"rate_ttl_us":1000000,"max_workflows":10,"max_queue_length":1000,
            "sharing":{"type":"BottleneckFairness","probe":20.0,"max_utilization":0.9}}"#,
        )
        .unwrap();
        for kind in &mut stage.types {
            kind.cost = serde_json::from_str(r#"{"size":{"header":"x-size"}}"#).unwrap();
        }
        let [long, short] = [(A, "workflow=long"), (B, "workflow=short")]
            .map(|(sent, baggage)| Sent { baggage, ..sent });
        let mut process = Process::new(workers, &config);
        let mut running = process.arrive(0, long);
        let mut is_long = BTreeMap::from([(running, true)]);
        let (mut began, mut served) = (0, [0_u64; 2]);
        for now in 1..=5_000_u64 {
            process.pass(ms(1));
            let worker = now as usize % workers;
            let waiting = process.queued();
            for (sent, by_long) in [(long, true), (short, false)] {
                if waiting.iter().filter(|s| is_long[s] == by_long).count() < 20 {
                    is_long.insert(process.arrive(worker, sent), by_long);
                }
            }
            let takes = if is_long[&running] { 1 } else { 10 };
            if now >= began + takes {
                began = now;
                process.finish(running, Outcome::Completed);
                process.settle();
                running = *process.started.last().unwrap();
                if now > 1_000 {
                    served[usize::from(is_long[&running])] += if is_long[&running] { 4 } else { 1 };
                }
            }
            if now % 10 == 0 {
                process.tick();
                process.settle();
            }
        }
        let [short, long] = served.map(|tokens| tokens as f64);
        let share = long / (short + long);
        let kept = (0.45..0.55).contains(&share);
        assert!(kept, "{share} of the tokens on {workers} workers");
    }
}

/// Returns the numbers of host calls of an arrival, of an end whose slot goes to the next request,
/// and of a client leaving the queue.
fn calls(discipline: &Discipline) -> [u64; 3] {
    let mut process = Process::new(1, &config(1, discipline));
    let running = process.arrive(0, A);
    process.arrive(0, B);
    let counted = |process: &mut Process, step: &mut dyn FnMut(&mut Process)| {
        let before = process.host.calls();
        step(process);
        process.host.calls() - before
    };
    let mut last = 0;
    // The first request of a type defines the gauge of its flow, so it is not counted.
    process.arrive(0, A);
    let arrives = counted(&mut process, &mut |process| last = process.arrive(0, A));
    let leaves = counted(&mut process, &mut |p| p.finish(last, Outcome::Unmeasured));
    let starts = counted(&mut process, &mut |p| {
        p.finish(running, Outcome::Unmeasured);
    });
    [arrives, starts, leaves]
}

#[test]
fn turns_cost_four_host_calls_and_three_and_two() {
    let (fifo, drr) = (Discipline::Fifo, drr(10_000, 1.0));
    let (fifo, drr) = (calls(&fifo), calls(&drr));
    let [arrives, starts, leaves]: [u64; 3] = std::array::from_fn(|at| drr[at] - fifo[at]);
    assert_eq!((arrives, leaves), (4, 2));
    assert!(starts <= 3, "{starts}");
}

#[test]
fn a_request_that_finds_a_slot_free_takes_no_turn() {
    let calls = |discipline: &Discipline| {
        let mut process = Process::new(1, &config(1, discipline));
        let before = process.host.calls();
        let stream = process.arrive(0, A);
        process.finish(stream, Outcome::Unmeasured);
        process.host.calls() - before
    };
    assert_eq!(calls(&drr(10_000, 1.0)), calls(&Discipline::Fifo));
}

/// The tenants, whose requests are of one type. In most tests, the requests of tenant 0 take a
/// hundred times as long as those of the others.
const TENANTS: [Sent; 3] = [
    tenant("high", "workflow=dear"),
    tenant("low", "workflow=tenant-1397"),
    // The FNV-1a hash of this name equals the hash of the name above, folded to 1,024 values.
    tenant("low", "workflow=tenant-3561"),
];

const fn tenant(class: &'static str, baggage: &'static str) -> Sent {
    Sent {
        class,
        baggage,
        ..A
    }
}

/// A backend with four slots, and tenants that each keep a number of requests in progress.
struct Backend {
    process: Process,
    workers: usize,
    arrivals: usize,
    /// The requests in the backend by end time and stream, with the tenant and the service time,
    /// µs.
    ends: BTreeMap<(Instant, u32), (usize, u64)>,
    tenants: BTreeMap<u32, usize>,
    seen: usize,
    next_tick: Instant,
    /// The time that a wake-up takes. `next_wake_up` is the time at which the next wake-up arrives.
    wake_up: Duration,
    next_wake_up: Option<Instant>,
    /// The sum of service times by tenant, µs.
    served_us: [u64; 3],
}

impl Backend {
    const SLOTS: u32 = 4;
    const UNDER_WAY: usize = 16;

    fn new(workers: usize, discipline: &Discipline, tenants: usize) -> Self {
        let process = Process::new(workers, &config(Self::SLOTS, discipline));
        let mut this = Self {
            next_tick: process.now,
            wake_up: Duration::ZERO,
            next_wake_up: None,
            process,
            workers,
            arrivals: 0,
            ends: BTreeMap::new(),
            tenants: BTreeMap::new(),
            seen: 0,
            served_us: [0; 3],
        };
        for n in 0..tenants * Self::UNDER_WAY {
            this.arrive(n % tenants);
        }
        this
    }

    fn arrive(&mut self, tenant: usize) {
        self.arrivals += 1;
        // Connections are distributed unevenly.
        let worker = self.arrivals * self.arrivals / 7 % self.workers;
        let stream = self.process.arrive(worker, TENANTS[tenant]);
        self.tenants.insert(stream, tenant);
    }

    /// Runs for `span` with requests that take `us` µs, by tenant. Returns each tenant's ratio of
    /// the slots' time.
    fn run(&mut self, span: Duration, us: [u64; 3]) -> [f64; 3] {
        let until = self.process.now + span;
        self.served_us = [0; 3];
        loop {
            let started = self.process.started[self.seen..].to_vec();
            self.seen += started.len();
            for stream in started {
                let tenant = self.tenants[&stream];
                let end = self.process.now + Duration::from_micros(us[tenant]);
                self.ends.insert((end, stream), (tenant, us[tenant]));
            }
            let end = self.ends.first_key_value().map(|(key, _)| *key);
            let due = [
                Some(self.next_tick),
                self.next_wake_up,
                end.map(|(at, _)| at),
            ];
            let next = due.into_iter().flatten().min().unwrap_or(until);
            if next >= until {
                break;
            }
            self.process.pass(next.since(self.process.now));
            match end {
                Some(key) if key.0 == next => {
                    let (tenant, us) = self.ends.remove(&key).unwrap();
                    self.served_us[tenant] += us;
                    self.process.finish(key.1, Outcome::Completed);
                    self.tenants.remove(&key.1);
                    self.arrive(tenant);
                }
                _ if self.next_tick == next => {
                    self.next_tick = self.next_tick + ms(10);
                    self.process.tick();
                }
                _ => {}
            }
            if self.wake_up.is_zero() || self.next_wake_up == Some(next) {
                self.next_wake_up = None;
                self.process.settle();
            } else {
                self.next_wake_up.get_or_insert(next + self.wake_up);
            }
        }
        let all: u64 = self.served_us.iter().sum();
        self.served_us.map(|us| us as f64 / all as f64)
    }
}

fn fair(by: Flow, weights: &[(&str, f64)]) -> [Discipline; 2] {
    let weights: BTreeMap<String, f64> = weights.iter().map(|(n, w)| ((*n).into(), *w)).collect();
    let drr = Discipline::Drr {
        by,
        quantum_us: 10_000,
        weights: weights.clone(),
    };
    let wfq = Discipline::Wfq {
        by,
        weights,
        tokens: None,
    };
    [drr, wfq]
}

#[test]
fn a_tenant_with_expensive_requests_gets_only_its_share_of_the_slots_time() {
    let by_class = fair(Flow::Class, &[("high", 3.0)]).map(|d| (d, 0.75));
    let by_workflow = fair(Flow::Workflow, &[("dear", 3.0)]).map(|d| (d, 0.75));
    let alike = fair(Flow::Workflow, &[]).map(|d| (d, 0.5));
    for (discipline, share) in by_class.into_iter().chain(by_workflow).chain(alike) {
        for workers in [1, 3] {
            let mut backend = Backend::new(workers, &discipline, 2);
            // In this time the tenants pay for requests that were served before their costs were
            // known.
            backend.run(ms(10_000), [100_000, 1_000, 0]);
            for _ in 0..3 {
                let [dear, ..] = backend.run(ms(4_000), [100_000, 1_000, 0]);
                let near = (dear - share).abs() < 0.05;
                assert!(
                    near,
                    "{dear} of the time under {discipline:?}, {workers} workers"
                );
            }
        }
    }
}

/// A tenant whose requests become expensive doesn't profit from their earlier low cost for long.
#[test]
fn a_tenant_whose_requests_become_expensive_is_charged_for_them() {
    for discipline in fair(Flow::Workflow, &[]) {
        for workers in [1, 3] {
            let mut backend = Backend::new(workers, &discipline, 2);
            backend.run(ms(3_000), [1_000, 1_000, 0]);
            let all = backend.run(ms(8_000), [100_000, 1_000, 0]);
            let after = backend.run(ms(4_000), [100_000, 1_000, 0]);
            let near = |[dear, ..]: [f64; 3]| (dear - 0.5).abs() < 0.06;
            assert!(
                near(all) && near(after),
                "{all:?}, {after:?}: {discipline:?}, {workers}"
            );
        }
    }
}

/// A worker that doesn't answer its wake-up is skipped for a request whose turn is ten rounds
/// later. The rounds in between still belong to the waiting flows.
#[test]
fn a_request_that_is_served_before_its_turn_moves_no_round() {
    let mut process = Process::new(2, &config(1, &drr(1_000, 1.0)));
    let running = process.arrive(0, A);
    let later = process.arrive(0, B);
    process.arrive(1, A);
    process.finish(running, Outcome::Unmeasured);
    process.pass(ms(3));
    process.arrive(0, B);
    assert_eq!(process.started.last(), Some(&later));
    let round = process.gauge("drr_round");
    assert!(round <= 2, "in round {round}");
}

/// A worker takes a while to wake up. If several slots become free in the meantime, or if the
/// wake-up takes too long, other workers serve their own waiters before their turn. The other flows
/// must not lose their turns thereby.
#[test]
fn shares_are_kept_where_workers_are_slow_to_wake_up() {
    for discipline in fair(Flow::Workflow, &[]) {
        for wake_up in [50, 300, 1_000, 4_000].map(Duration::from_micros) {
            for workers in [2, 3] {
                let mut backend = Backend::new(workers, &discipline, 2);
                backend.wake_up = wake_up;
                backend.run(ms(10_000), [500_000, 5_000, 0]);
                let [dear, ..] = backend.run(ms(20_000), [500_000, 5_000, 0]);
                assert!(
                    (0.42..0.58).contains(&dear),
                    "{dear} of the time under {discipline:?}, {workers} workers, {wake_up:?}"
                );
            }
        }
    }
}

/// Three workflows are three flows, for any names. With a hash of names into 1,024 flows, a client
/// that knows the hash could choose a name that shares the flow of another name.
#[test]
fn no_workflow_shares_anothers_turn() {
    for discipline in fair(Flow::Workflow, &[]) {
        let mut backend = Backend::new(2, &discipline, 3);
        backend.run(ms(2_000), [1_000; 3]);
        let shares = backend.run(ms(4_000), [1_000; 3]);
        let near = shares.iter().all(|share| (share - 1.0 / 3.0).abs() < 0.03);
        assert!(near, "{shares:?} under {discipline:?}");
    }
}
