//! Estimated and actual waits under every discipline at overload.
//!
//! The mix is that of Bouncer's Table 1 on ten slots, with Poisson arrivals and lognormal
//! processing times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use headgate_strategies::request::{Attributes, ClassId, TypeId};
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

use crate::config::{Discipline, FilterConfig, Flow, Logic, StageConfig, StrategyConfig};
use crate::decision::{Action, Decision, PolicyId, Ticket};
use crate::memory::MemoryHost;
use crate::stage::{Outcome, Stage};
use crate::stats::StageStats;
use crate::workers::Membership;

const P: u32 = 10;
/// The name of each type, its share, and the mean and median of its processing times, ms.
const TYPES: [(&str, f64, f64, f64); 4] = [
    ("fast", 0.4, 1.16, 0.38),
    ("mediumfast", 0.2, 2.53, 1.14),
    ("mediumslow", 0.3, 12.13, 7.40),
    ("slow", 0.1, 20.05, 12.51),
];
const MEAN_MS: f64 = 6.614;

fn drr(by: Flow) -> Discipline {
    Discipline::Drr {
        by,
        quantum_us: 10_000,
        weights: BTreeMap::new(),
    }
}

fn wfq(by: Flow) -> Discipline {
    Discipline::Wfq {
        by,
        weights: BTreeMap::new(),
        tokens: None,
    }
}

fn all() -> Vec<Discipline> {
    vec![
        Discipline::Fifo,
        Discipline::Edf,
        Discipline::Lstf,
        Discipline::Sjf,
        Discipline::Srtf,
        Discipline::Lasf,
        Discipline::Slack,
        Discipline::Priority,
        drr(Flow::Type),
        drr(Flow::Class),
        wfq(Flow::Type),
        wfq(Flow::Class),
    ]
}

/// Returns the configuration of a stage with the paper's objectives and defaults. A full queue
/// takes 100 ms.
fn stage(strategy: StrategyConfig, discipline: Discipline) -> StageConfig {
    let kind = |name: &str| {
        let method = (name != "default").then(|| format!(r#""matches":[{{"method":"{name}"}}],"#));
        format!(
            r#"{{"name":"{name}",{}"slo":[{{"percentile":50,"objective_us":18000}},
            {{"percentile":90,"objective_us":50000}}]}}"#,
            method.unwrap_or_default()
        )
    };
    let kinds: Vec<String> = TYPES.iter().map(|t| kind(t.0)).collect();
    let json = format!(
        r#"{{"stages":[{{"policy":"ns/p","parallelism":{P},
        "queue":{{"max_length":150,"timeout_us":1000000}},"strategy":{{"type":"MaxQueueLength"}},
        "types":[{},{}],
        "classes":[{{"name":"gold","matches":[{{"method":"PUT"}}]}},{{"name":"rest"}}]}}]}}"#,
        kinds.join(","),
        kind("default"),
    );
    let config = FilterConfig::from_json(json.as_bytes()).unwrap();
    let mut stage = config.stages.into_iter().next().unwrap();
    stage.strategy = strategy;
    stage.queue.discipline = discipline;
    stage
}

#[derive(Debug, Clone, Copy, Default)]
struct Waits {
    requests: f64,
    estimated: f64,
    actual: f64,
    expired: f64,
}

impl Waits {
    fn means(&self) -> (f64, f64) {
        let n = self.requests.max(1.0);
        (self.estimated / n, self.actual / n)
    }
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    kind: usize,
    class: usize,
    arrived: Instant,
    estimate: Duration,
}

/// A backend with P servers behind a stage.
struct World {
    host: MemoryHost,
    workers: Vec<(Membership, Stage)>,
    rng: Rng,
    now: u64,
    next_tick: u64,
    next_stream: u32,
    waiting: BTreeMap<u32, Waiting>,
    /// The worker, the ticket and the processing time in ns of each stream.
    tickets: BTreeMap<u32, (usize, Ticket, u64)>,
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    actions: Vec<Action>,
    counts: bool,
    /// The waits by type, and by class.
    types: [Waits; 4],
    classes: [Waits; 2],
}

impl World {
    fn new(config: &StageConfig, workers: u64) -> Self {
        let host = MemoryHost::new();
        let worker = |n| {
            let membership = Membership::join(Instant::default(), n, &host).unwrap();
            let stats = StageStats::new(&host, config).unwrap();
            let (policy, config) = (PolicyId(0), config.clone());
            let stage = Stage::new(policy, config, stats, &membership, n, &host).unwrap();
            (membership, stage)
        };
        Self {
            workers: (1..=workers).map(worker).collect(),
            host,
            rng: Rng::new(3),
            now: 0,
            next_tick: 0,
            next_stream: 0,
            waiting: BTreeMap::new(),
            tickets: BTreeMap::new(),
            ends: BinaryHeap::new(),
            actions: Vec::new(),
            counts: false,
            types: Default::default(),
            classes: Default::default(),
        }
    }

    fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// Returns an exponentially distributed number with mean 1.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.rng.next_f64()).ln()
    }

    fn normal(&mut self) -> f64 {
        let (a, b) = (self.exponential(), self.rng.next_f64());
        (2.0 * a).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    fn run(&mut self, factor: f64, seconds: f64) {
        let gap_ns = MEAN_MS * 1e6 / (factor * f64::from(P));
        let until = self.now + (seconds * 1e9) as u64;
        loop {
            let arrival = self.now + (self.exponential() * gap_ns) as u64;
            self.run_until(arrival.min(until));
            if arrival >= until {
                return;
            }
            self.arrive();
        }
    }

    fn run_until(&mut self, until: u64) {
        loop {
            let end = self.ends.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let next = end.min(self.next_tick);
            if next > until {
                self.now = until;
                return;
            }
            self.now = next;
            let now = self.at();
            if end == next {
                let Reverse((_, stream)) = self.ends.pop().unwrap();
                let (worker, ticket, _) = self.tickets.remove(&stream).unwrap();
                self.workers[worker]
                    .1
                    .finish(
                        &self.host,
                        now,
                        ticket,
                        Outcome::Completed,
                        &mut self.actions,
                    )
                    .unwrap();
            } else {
                self.next_tick += 10_000_000;
                for (membership, stage) in &mut self.workers {
                    let changes = membership.tick(now, &self.host).unwrap();
                    stage
                        .tick(&self.host, now, membership, &changes, &mut self.actions)
                        .unwrap();
                }
            }
            self.act();
        }
    }

    fn arrive(&mut self) {
        let mut share = self.rng.next_f64();
        let kind = TYPES
            .iter()
            .position(|t| {
                share -= t.1;
                share < 0.0
            })
            .unwrap_or(3);
        // A tenth of the requests of all types are gold.
        let class = usize::from(!self.rng.chance(0.1));
        let (_, _, mean, median) = TYPES[kind];
        let sigma = (2.0 * (mean / median).ln()).sqrt();
        let processing = (median * 1e6 * (sigma * self.normal()).exp()) as u64;
        let attributes = Attributes {
            class: ClassId(class as u8),
            ..Attributes::of(TypeId(kind as u16))
        };
        let now = self.at();
        let worker = (self.rng.next_u64() % self.workers.len() as u64) as usize;
        let stage = &mut self.workers[worker].1;
        let estimate = stage.expected_wait(&self.host, now, &attributes).unwrap();
        self.next_stream += 1;
        let stream = self.next_stream;
        let decision = stage
            .arrive(&self.host, now, stream, &attributes, &mut self.actions)
            .unwrap();
        match decision {
            Decision::Forward(ticket) => {
                self.tickets.insert(stream, (worker, ticket, processing));
                self.ends.push(Reverse((self.now + processing, stream)));
            }
            Decision::Hold(ticket) => {
                self.tickets.insert(stream, (worker, ticket, processing));
                if self.counts {
                    let waiting = Waiting {
                        kind,
                        class,
                        arrived: now,
                        estimate,
                    };
                    self.waiting.insert(stream, waiting);
                }
            }
            Decision::PassBy | Decision::Refuse(_) => {}
        }
        self.act();
    }

    fn act(&mut self) {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Resume { stream, .. } => {
                    let (_, _, processing) = self.tickets[&stream];
                    self.ends.push(Reverse((self.now + processing, stream)));
                    self.left(stream, false);
                }
                Action::Refuse { stream, .. } => {
                    self.tickets.remove(&stream);
                    self.left(stream, true);
                }
                Action::Send { .. } => panic!("no call was delayed"),
            }
        }
        let mut woken = false;
        let now = self.at();
        for (membership, stage) in &mut self.workers {
            if self.host.take_wakes(membership.id()) > 0 {
                stage.woken(&self.host, now, &mut self.actions).unwrap();
                woken = true;
            }
        }
        if woken {
            self.act();
        }
    }

    fn left(&mut self, stream: u32, expired: bool) {
        let Some(waiting) = self.waiting.remove(&stream) else {
            return;
        };
        let actual = self.at().since(waiting.arrived).as_secs_f64() * 1e3;
        for waits in [
            &mut self.types[waiting.kind],
            &mut self.classes[waiting.class],
        ] {
            waits.requests += 1.0;
            waits.estimated += waiting.estimate.as_secs_f64() * 1e3;
            waits.actual += actual;
            waits.expired += f64::from(u8::from(expired));
        }
    }
}

/// Runs `check` for every discipline at 1.2 and 1.5 times the full load.
fn each(strategy: &StrategyConfig, workers: u64, check: fn(&Discipline, f64, &World)) {
    for discipline in all() {
        for factor in [1.2, 1.5] {
            let mut world = World::new(&stage(strategy.clone(), discipline.clone()), workers);
            world.run(factor, 3.0);
            world.counts = true;
            world.run(factor, 6.0);
            check(&discipline, factor, &world);
        }
    }
}

/// Asserts that the mean estimate of each type and class with many requests is close to the mean
/// wait. The bound is 10% and 1.5 ms. If some requests expired, it is 20%, because their full wait
/// is not known.
fn assert_near(discipline: &Discipline, factor: f64, world: &World) {
    for waits in world.types.iter().chain(&world.classes) {
        let (estimated, actual) = waits.means();
        let bound = if waits.expired > 0.01 * waits.requests {
            0.2 * actual
        } else {
            0.1 * actual + 1.5
        };
        let near = (estimated - actual).abs() <= bound;
        assert!(
            near || waits.requests < 250.0,
            "{discipline:?} at {factor}: {estimated} for {actual} ms, {waits:?}"
        );
    }
}

#[test]
fn estimates_are_near_the_waits_in_a_full_queue() {
    for workers in [1, 4] {
        each(&StrategyConfig::MaxQueueLength, workers, assert_near);
    }
}

#[test]
fn estimates_are_near_the_waits_of_those_whom_bouncer_admits() {
    let bouncer = StrategyConfig::Bouncer {
        logic: Logic::Any,
        shed_by_value: false,
        capacity: None,
    };
    each(&bouncer, 3, assert_near);
}

/// Checks estimates half a second after a jump of the load, and after its return. Requests that
/// overtake the queue are not judged by the queue's length, but requests in the queue are.
#[test]
fn estimates_follow_a_change_of_load() {
    let passes_by = |discipline: &Discipline| {
        let by_size = matches!(discipline, Discipline::Sjf | Discipline::Srtf);
        by_size || [drr(Flow::Type), wfq(Flow::Type)].contains(discipline)
    };
    for discipline in all() {
        let config = stage(StrategyConfig::MaxQueueLength, discipline.clone());
        let mut world = World::new(&config, 1);
        world.run(0.9, 4.0);
        world.counts = true;
        for factor in [1.5, 1.5, 0.98, 0.98, 0.98] {
            world.types = Default::default();
            world.run(factor, 0.5);
            let (estimated, actual) = world.types[0].means();
            let bound = if passes_by(&discipline) {
                1.0
            } else {
                // By the end of a long wait, the queue has changed.
                0.35 * actual + 3.0
            };
            let near = (estimated - actual).abs() <= bound;
            assert!(
                near,
                "{discipline:?} at {factor}: {estimated} for {actual} ms"
            );
        }
    }
}
