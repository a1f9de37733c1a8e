//! Tables of both controllers in cases on which the controllers weren't tuned: few slots, answers
//! that come together, and a step from next to no load. The page about strategies describes the
//! tables.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use headgate_core::config::StrategyConfig;
use headgate_simulator::backend::Servers;
use headgate_simulator::{Answer, Backend, Ending, Outcome, Request, Run, Source, Until};
use headgate_strategies::rng::Rng;
use headgate_strategies::strategy::TypeId;
use headgate_strategies::time::nanos;

use crate::strategies::{OVERLOADS, adaptive, backlog, mean, one_type, under};

/// Seeds that were not used to choose the constants.
const SEEDS: std::ops::RangeInclusive<u64> = 11..=15;
const SECOND: f64 = 1e9;

/// Returns the least and the largest value over [`SEEDS`].
fn over_seeds(value: impl Fn(u64) -> f64) -> String {
    let values: Vec<f64> = SEEDS.map(value).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{least:.2} to {most:.2}")
}

/// Poisson arrivals with processing times that are exponential or constant. Each entry of `rates`
/// is the end of a rate, s, and the rate, requests/s.
struct Steps {
    rates: Vec<(f64, f64)>,
    processing_ms: f64,
    is_constant: bool,
    next: Option<u64>,
    rng: Rng,
    /// Arrival, ns, and the time in the stage, ms; `None` for a refusal.
    ended: Vec<(u64, Option<f64>)>,
}

impl Steps {
    fn new(rates: &[(f64, f64)], (processing_ms, is_constant): (f64, bool), seed: u64) -> Self {
        let mut steps = Self {
            rates: rates.to_vec(),
            processing_ms,
            is_constant,
            next: Some(0),
            rng: Rng::new(seed),
            ended: Vec::new(),
        };
        steps.draw();
        steps
    }

    fn exponential(&mut self) -> f64 {
        -(1.0 - self.rng.next_f64()).ln()
    }

    /// Draws the next arrival, in units of the rate's mean gap, so that a step acts at once.
    fn draw(&mut self) {
        let mut left = self.exponential();
        let mut now = self.next.unwrap_or_default() as f64 / SECOND;
        self.next = None;
        for (until, rate) in self.rates.iter().copied() {
            let room = rate * (until - now).max(0.0);
            if left < room {
                now += left / rate;
                self.next = Some((now * SECOND) as u64);
                return;
            }
            left -= room;
            now = now.max(until);
        }
    }

    /// Returns the ratio of requests that arrived from `from` to `until`, s, and were refused, and
    /// the quantile `q` of the times of the requests that were served, ms.
    fn within(&self, (from, until): (f64, f64), q: f64) -> (f64, f64) {
        let span = (from * SECOND) as u64..(until * SECOND) as u64;
        let of_span = self.ended.iter().filter(|(at, _)| span.contains(at));
        let times: Vec<Option<f64>> = of_span.map(|(_, time)| *time).collect();
        let mut served: Vec<f64> = times.iter().copied().flatten().collect();
        served.sort_by(f64::total_cmp);
        let rank = (q * served.len() as f64) as usize;
        let refused = 1.0 - served.len() as f64 / times.len() as f64;
        (refused, served.get(rank).copied().unwrap_or(f64::NAN))
    }
}

impl Source for Steps {
    fn peek(&self) -> Option<u64> {
        self.next
    }

    fn take(&mut self) -> Option<Request> {
        let at = self.next?;
        let times = if self.is_constant {
            1.0
        } else {
            self.exponential()
        };
        self.draw();
        let processing = (times * self.processing_ms * 1e6) as u64;
        Some(Request::new(at, 0, processing))
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) {
        let time = (at - request.at) as f64 / 1e6;
        let served = answer.ending == Ending::Served;
        self.ended.push((request.at, served.then_some(time)));
    }
}

/// A service that answers all of its requests together, at each multiple of a time.
struct Batches {
    every: u64,
    servers: u32,
    /// The end of each job, ns, and the job.
    jobs: Vec<(u64, u32)>,
}

impl Backend for Batches {
    fn take(&mut self, now: u64, job: u32, _: &Request) {
        self.jobs.push(((now / self.every + 1) * self.every, job));
    }

    fn next_end(&self) -> u64 {
        self.jobs.first().map_or(u64::MAX, |(end, _)| *end)
    }

    fn end(&mut self, _: u64) -> Option<u32> {
        // A job never ends before a job that was taken earlier.
        (!self.jobs.is_empty()).then(|| self.jobs.remove(0).1)
    }

    fn busy(&self) -> u32 {
        self.jobs.len() as u32
    }

    fn servers(&self) -> u32 {
        self.servers
    }
}

/// Runs a stage of `slots` until `until`, s, and measures from 10 s on.
fn run(
    slots: u32,
    strategy: &StrategyConfig,
    source: &mut Steps,
    backend: impl Backend,
    until: f64,
) -> Outcome {
    let stage = one_type(slots, strategy);
    let run = Run {
        stage: &stage,
        kinds: &[TypeId(0)],
        warm_up: Duration::from_secs(10),
        until: Until::Time(Duration::from_secs_f64(until)),
        seed: 1,
    };
    run.with(source, backend).unwrap()
}

#[test]
#[ignore = "prints a table"]
fn mean_delays_of_backlog_control() {
    for (slots, part) in [(20, 0.1), (20, 0.03), (5, 0.1), (20, 0.3)] {
        for target_ms in [50.0, 200.0, 1_000.0] {
            let cells = OVERLOADS.map(|load| {
                over_seeds(|seed| {
                    let times = (target_ms, part);
                    let outcome = under(load, slots, times, &backlog(target_ms), seed);
                    mean(&outcome) / target_ms
                })
            });
            println!(
                "{slots} slots, {part}, {target_ms} ms: {}",
                cells.join(", ")
            );
        }
    }
}

/// All slots get their answers together, every tenth or third of the target.
#[test]
#[ignore = "prints a table"]
fn answers_that_come_together() {
    for (slots, part) in [(20_u32, 0.1), (5, 0.1), (20, 0.3)] {
        for target_ms in [50.0, 200.0, 1_000.0] {
            let every = Duration::from_secs_f64(target_ms * part / 1e3);
            let until = 10.0 + (target_ms * 0.1).max(30.0);
            let batches = |load: f64, strategy: &StrategyConfig, seed| {
                let rate = load * f64::from(slots) / every.as_secs_f64();
                let mut source = Steps::new(&[(until, rate)], (1.0, true), seed);
                let backend = Batches {
                    every: nanos(every),
                    servers: slots,
                    jobs: Vec::new(),
                };
                let outcome = run(slots, strategy, &mut source, backend, until);
                (outcome, source)
            };
            let constant = |load: f64, strategy: &StrategyConfig, seed| {
                let rate = load * f64::from(slots) / every.as_secs_f64();
                let times = (target_ms * part, true);
                let mut source = Steps::new(&[(until, rate)], times, seed);
                let backend = Servers::new(slots);
                let outcome = run(slots, strategy, &mut source, backend, until);
                (outcome, source)
            };
            for load in [0.75, 0.9, 1.2, 1.5, 2.0] {
                let cell = |outcome: &Outcome, source: &Steps| {
                    let (refused, p90) = source.within((10.0, until), 0.9);
                    (p90 / target_ms, refused, outcome.utilization)
                };
                let seda = |seed| {
                    let (outcome, source) = batches(load, &adaptive(target_ms), seed);
                    cell(&outcome, &source)
                };
                let equal = |seed| {
                    let (outcome, source) = constant(load, &adaptive(target_ms), seed);
                    cell(&outcome, &source)
                };
                let chronos = |seed| {
                    let (outcome, _) = batches(load, &backlog(target_ms), seed);
                    mean(&outcome) / target_ms
                };
                println!(
                    "{slots} slots, {part}, {target_ms} ms, {load}: RTC p90 {}, refused {}, busy \
                     {}; equal times p90 {}, refused {}; BC mean {}",
                    over_seeds(|seed| seda(seed).0),
                    over_seeds(|seed| seda(seed).1),
                    over_seeds(|seed| seda(seed).2),
                    over_seeds(|seed| equal(seed).0),
                    over_seeds(|seed| equal(seed).1),
                    over_seeds(chronos),
                );
            }
        }
    }
}

/// The rate is five requests/s for a minute, and then a thousand.
#[test]
#[ignore = "prints a table"]
fn a_step_from_5_to_1_000_per_second() {
    const STEP: f64 = 60.0;
    for target_ms in [200.0, 1_000.0] {
        for capacity in [500.0, 800.0, 1_000.0, 2_000.0] {
            let processing_ms = target_ms * 0.1;
            let slots = (capacity * processing_ms / 1e3) as u32;
            for (name, strategy, q) in [
                ("RTC p90", adaptive(target_ms), 0.9),
                ("BC median", backlog(target_ms), 0.5),
            ] {
                let spans = [
                    (0.0, 60.0),
                    (60.0, 61.0),
                    (61.0, 63.0),
                    (63.0, 70.0),
                    (70.0, 100.0),
                ];
                let cells = spans.map(|span| {
                    let found = |seed| {
                        let rates = [(STEP, 5.0), (100.0, 1_000.0)];
                        let mut source = Steps::new(&rates, (processing_ms, false), seed);
                        let backend = Servers::new(slots);
                        run(slots, &strategy, &mut source, backend, 100.0);
                        source.within(span, q)
                    };
                    format!(
                        "{}-{} s: {}, refused {}",
                        span.0 - STEP,
                        span.1 - STEP,
                        over_seeds(|seed| found(seed).1 / target_ms),
                        over_seeds(|seed| found(seed).0),
                    )
                });
                println!(
                    "{target_ms} ms, {slots} slots, {capacity}/s, {name}: {}",
                    cells.join("; ")
                );
            }
        }
    }
}

/// Chronos §3.1: "less than 5KB of memory", of the estimator and the controller.
#[test]
fn the_controller_takes_less_memory_than_the_papers() {
    let bytes = std::mem::size_of::<headgate_strategies::strategy::BacklogControl>();
    assert!(bytes < 5_000, "{bytes}");
}
