//! Compares Algorithms 1 to 3 with the paper's results: cells of Tables 3, 4 and 5 of the Bouncer
//! paper, from a discrete event simulation of its §5.3 with this crate's decisions and histograms.
//!
//! The available text of the paper's Table 1 lacks the medians; those here reproduce Table 3's
//! basic rows. The tolerances cover that, and the random histograms of a type that is near its
//! objective. They are narrow enough that each algorithm fails with another's formula (see
//! [`the_cells_tell_the_algorithms_apart`]).

// Clippy doesn't treat helpers outside of `#[test]` functions as tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::f64::consts::TAU;
use std::time::Duration;

use crate::memory::MemoryHost;
use headgate_strategies::request::Attributes;
use headgate_strategies::rng::Rng;
use headgate_strategies::service_times::{Objective, ServiceTimes, Settings, TypeSettings};
use headgate_strategies::strategy::avoidance::Rule;
use headgate_strategies::strategy::{
    AcceptanceAllowance, Avoidance, Bouncer, HelpingTheUnderserved, Strategy, TypeId, View,
};
use headgate_strategies::time::Instant;
use headgate_strategies::window::Window;

/// P.
const PARALLELISM: u32 = 100;
/// Name, share, mean and median processing time (ms).
const TYPES: [(&str, f64, f64, f64); 4] = [
    ("fast", 0.4, 1.16, 0.38),
    ("medium-fast", 0.2, 2.53, 1.14),
    ("medium-slow", 0.3, 12.13, 7.40),
    ("slow", 0.1, 20.05, 12.51),
];
const FAST: usize = 0;
const MEDIUM_FAST: usize = 1;
const MEDIUM_SLOW: usize = 2;
const SLOW: usize = 3;
const REQUESTS: u32 = 200_000;
const WARM_UP: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(10);

/// Rejected percent by type and of all requests, and the utilization of the slots (ratio).
struct Outcome {
    rejected: [f64; 4],
    of_all: f64,
    utilization: f64,
}

struct Traffic {
    rng: Rng,
    /// Requests per nanosecond.
    rate: f64,
    now: f64,
}

impl Traffic {
    fn new(load: f64, seed: u64) -> Self {
        let mean_ms: f64 = TYPES.iter().map(|(_, share, mean, _)| share * mean).sum();
        let rate = load * f64::from(PARALLELISM) / (mean_ms * 1e6);
        Self {
            rng: Rng::new(seed),
            rate,
            now: 0.0,
        }
    }

    /// Returns arrival, type and processing time of the next request.
    fn next(&mut self) -> (Instant, usize, Duration) {
        self.now -= (1.0 - self.rng.next_f64()).ln() / self.rate;
        let mut share = self.rng.next_f64();
        let of = |(_, part, _, _): &(&str, f64, f64, f64)| {
            share -= part;
            share < 0.0
        };
        let kind = TYPES.iter().position(of).unwrap_or(SLOW);
        let (_, _, mean, median) = TYPES[kind];
        let sigma = (2.0 * (mean / median).ln()).sqrt();
        let radius = (-2.0 * (1.0 - self.rng.next_f64()).ln()).sqrt();
        let normal = radius * (TAU * self.rng.next_f64()).cos();
        let millis = median * (sigma * normal).exp();
        (
            Instant::from_nanos(self.now as u64),
            kind,
            Duration::from_secs_f64(millis / 1e3),
        )
    }
}

fn service_times() -> ServiceTimes {
    let objective = |percentile, ms| Objective {
        percentile,
        response_time: Duration::from_millis(ms),
    };
    let names = TYPES.iter().map(|t| t.0).chain(["default"]);
    let types = names.map(|name| TypeSettings {
        name: name.to_owned(),
        objectives: vec![objective(50.0, 18), objective(90.0, 50)],
    });
    ServiceTimes::new(Settings {
        interval: Duration::from_secs(1),
        steps: 1,
        min_samples: 50,
        types: types.collect(),
    })
}

/// A request in the queue or in a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Job {
    done: Instant,
    kind: usize,
    processing: Duration,
}

/// A stage with one FIFO queue and P slots (Figure 1).
struct Stage {
    host: MemoryHost,
    times: ServiceTimes,
    strategy: Strategy,
    rng: Rng,
    queue: VecDeque<Job>,
    queued: [u32; 4],
    slots: BinaryHeap<Reverse<Job>>,
    next_tick: Instant,
    worked: Duration,
}

impl Stage {
    /// Runs all events up to `now`.
    fn run_until(&mut self, now: Instant) {
        while let Some(Reverse(job)) = self.slots.peek() {
            let at = job.done;
            if at > now {
                break;
            }
            self.tick_until(at);
            let Some(Reverse(job)) = self.slots.pop() else {
                break;
            };
            self.times
                .record(TypeId(job.kind as u16), job.processing, 1);
            if let Some(next) = self.queue.pop_front() {
                self.queued[next.kind] -= 1;
                self.start(at, next);
            }
        }
        self.tick_until(now);
    }

    fn tick_until(&mut self, now: Instant) {
        while self.next_tick <= now {
            self.times.sync(self.next_tick, &self.host, "test").unwrap();
            self.strategy.tick(self.next_tick);
            self.next_tick = self.next_tick + TICK;
        }
    }

    fn start(&mut self, now: Instant, job: Job) {
        self.worked += job.processing;
        self.slots.push(Reverse(Job {
            done: now + job.processing,
            ..job
        }));
    }

    /// Decides about a request. Returns whether it is admitted.
    fn arrive(&mut self, now: Instant, kind: usize, processing: Duration) -> bool {
        self.run_until(now);
        let mean = |kind| self.times.mean(TypeId(kind)).unwrap_or_default();
        let work = (0..4)
            .map(|kind| mean(kind) * self.queued[kind as usize])
            .sum::<Duration>();
        let view = View {
            now,
            parallelism: PARALLELISM,
            slots_in_use: self.slots.len() as u32,
            queue_length: self.queue.len() as u32,
            queue_work: work.as_micros() as u64,
            work: mean(kind as u16).as_micros() as u64,
            queue_wait: work / PARALLELISM,
            rival_wait: Duration::ZERO,
            service_times: &self.times,
        };
        if self
            .strategy
            .decide(&Attributes::of(TypeId(kind as u16)), &view, &mut self.rng)
            != Ok(())
        {
            return false;
        }
        let job = Job {
            done: now,
            kind,
            processing,
        };
        if self.slots.len() < PARALLELISM as usize {
            self.start(now, job);
        } else {
            self.queued[kind] += 1;
            self.queue.push_back(job);
        }
        true
    }
}

fn simulate(strategy: Strategy, load: f64, seed: u64) -> Outcome {
    let mut traffic = Traffic::new(load, seed);
    let mut stage = Stage {
        host: MemoryHost::new(),
        times: service_times(),
        strategy,
        rng: Rng::new(!seed),
        queue: VecDeque::new(),
        queued: [0; 4],
        slots: BinaryHeap::new(),
        next_tick: Instant::default(),
        worked: Duration::ZERO,
    };
    let begin = Instant::default() + WARM_UP;
    let (mut received, mut rejected) = ([0_u32; 4], [0_u32; 4]);
    let mut end = begin;
    while received.iter().sum::<u32>() < REQUESTS {
        let (now, kind, processing) = traffic.next();
        let admitted = stage.arrive(now, kind, processing);
        if now < begin {
            stage.worked = Duration::ZERO;
        } else {
            received[kind] += 1;
            rejected[kind] += u32::from(!admitted);
            end = now;
        }
    }
    let percent = |part: u32, whole: u32| 100.0 * f64::from(part) / f64::from(whole);
    Outcome {
        rejected: [FAST, MEDIUM_FAST, MEDIUM_SLOW, SLOW].map(|k| percent(rejected[k], received[k])),
        of_all: percent(rejected.iter().sum(), received.iter().sum()),
        utilization: stage.worked.as_secs_f64()
            / (f64::from(PARALLELISM) * end.since(begin).as_secs_f64()),
    }
}

fn bouncer(rule: Option<Rule>) -> Strategy {
    let window = || Window::new(5, Duration::from_secs(1), Duration::from_millis(10));
    let avoidance = rule.map(|rule| Avoidance::new(rule, window()));
    Strategy {
        base: Box::new(Bouncer::default()),
        avoidance,
        capacity: None,
    }
}

fn basic(load: f64) -> Outcome {
    simulate(bouncer(None), load, 1)
}

fn allowance(a: f64, load: f64) -> Outcome {
    let rule = Rule::AcceptanceAllowance(AcceptanceAllowance::new(vec![a; TYPES.len()]));
    simulate(bouncer(Some(rule)), load, 2)
}

fn helping(alpha: f64, load: f64) -> Outcome {
    let rule = Rule::HelpingTheUnderserved(HelpingTheUnderserved::new(alpha));
    simulate(bouncer(Some(rule)), load, 3)
}

/// Asserts that an outcome is within `tolerance` points of the paper's percentages.
#[track_caller]
fn assert_cells(
    name: &str,
    found: &Outcome,
    medium_slow: f64,
    slow: f64,
    all: f64,
    tolerance: f64,
) {
    println!(
        "{name}: medium slow {:.2} (paper {medium_slow}), slow {:.2} ({slow}), all {:.2} ({all}), \
         utilization {:.3}",
        found.rejected[MEDIUM_SLOW], found.rejected[SLOW], found.of_all, found.utilization
    );
    assert_eq!(found.rejected[FAST], 0.0, "{name}: fast is never rejected");
    assert_eq!(
        found.rejected[MEDIUM_FAST], 0.0,
        "{name}: medium fast is never rejected"
    );
    let cells = [
        (
            "medium slow",
            found.rejected[MEDIUM_SLOW],
            medium_slow,
            tolerance,
        ),
        ("slow", found.rejected[SLOW], slow, tolerance),
        ("all", found.of_all, all, 1.0),
    ];
    for (row, found, paper, tolerance) in cells {
        let off = (found - paper).abs();
        assert!(
            off <= tolerance,
            "{name}: {row} rejected {found:.2}%, the paper has {paper}%"
        );
    }
    assert!(
        found.utilization > 0.97,
        "{name}: utilization {:.3}",
        found.utilization
    );
}

#[test]
fn table_3_basic() {
    assert_cells("basic 1.2×", &basic(1.2), 0.0, 53.63, 5.36, 4.0);
    assert_cells("basic 1.5×", &basic(1.5), 4.86, 98.46, 11.30, 2.5);
}

#[test]
fn table_3_acceptance_allowance() {
    assert_cells(
        "A = 0.1, 1.2×",
        &allowance(0.1, 1.2),
        0.02,
        53.58,
        5.36,
        4.0,
    );
    assert_cells(
        "A = 0.1, 1.5×",
        &allowance(0.1, 1.5),
        10.83,
        88.12,
        12.06,
        2.5,
    );
}

#[test]
fn table_3_helping_the_underserved() {
    assert_cells("α = 1.0, 1.2×", &helping(1.0, 1.2), 0.25, 53.21, 5.40, 4.0);
    assert_cells(
        "α = 1.0, 1.5×",
        &helping(1.0, 1.5),
        20.36,
        71.37,
        13.25,
        4.0,
    );
}

#[test]
fn table_4() {
    assert_cells(
        "A = 0.3, 1.5×",
        &allowance(0.3, 1.5),
        22.26,
        67.26,
        13.40,
        3.0,
    );
    let tight = allowance(0.01, 1.5);
    assert_cells("A = 0.01, 1.5×", &tight, 5.56, 97.21, 11.39, 2.5);
    assert!(tight.rejected[SLOW] <= 99.0, "the allowance is kept");
}

#[test]
fn table_5() {
    assert_cells("α = 0.1, 1.5×", &helping(0.1, 1.5), 7.07, 94.74, 11.59, 2.5);
    assert_cells(
        "α = 0.5, 1.5×",
        &helping(0.5, 1.5),
        14.19,
        82.38,
        12.50,
        2.5,
    );
}

/// If the tables were alike, the suite could not detect a strategy without effect.
#[test]
fn the_cells_tell_the_algorithms_apart() {
    let slow = |outcome: Outcome| outcome.rejected[SLOW];
    let (basic, allowance, helping) = (
        slow(basic(1.5)),
        slow(allowance(0.1, 1.5)),
        slow(helping(1.0, 1.5)),
    );
    assert!(
        basic > allowance + 6.0 && allowance > helping + 12.0,
        "{basic} {allowance} {helping}"
    );
}
