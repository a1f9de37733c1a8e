//! Steps from a calm load to an overload, with P found.

use std::cell::Cell;

use headgate_simulator::Request;
use headgate_simulator::backend::{Backend, Paced, Step};

use crate::service::{Found, Kind, NATURAL, PAPER, PAPER_NATURAL, Service, UNFILTERED};
use crate::{CORES, SLEEP};

/// A backend that records the largest number of requests that it had at once.
struct Peak<'a, B> {
    inner: B,
    jobs: u32,
    most: &'a Cell<u32>,
}

impl<B: Backend> Backend for Peak<'_, B> {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.jobs += 1;
        self.most.set(self.most.get().max(self.jobs));
        self.inner.take(now, job, request);
    }

    fn work(&self, request: &Request, quality: f64) -> u64 {
        self.inner.work(request, quality)
    }

    fn next_end(&self) -> u64 {
        self.inner.next_end()
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        let ended = self.inner.end(now);
        self.jobs -= u32::from(ended.is_some());
        ended
    }

    fn busy(&self) -> u32 {
        self.inner.busy()
    }

    fn servers(&self) -> u32 {
        self.inner.servers()
    }
}

fn run(service: &Service, slots: Option<u32>) -> (u32, Found) {
    let most = Cell::new(0);
    let backend = Peak {
        inner: Paced::new(service.network(), &[], &[]),
        jobs: 0,
        most: &most,
    };
    let found = service.run_on(slots, backend);
    (most.get(), found)
}

/// Name, types, workers, steps, capacity, and the least ratio of answers in time to those with P
/// given.
type Row = (
    &'static str,
    &'static [Kind],
    u32,
    &'static [(f64, Step)],
    f64,
    f64,
);
const ROWS: &[Row] = &[
    (
        "20 workers, own objectives",
        PAPER_NATURAL,
        20,
        SLEEP,
        20.0,
        0.88,
    ),
    ("16 workers, natural", NATURAL, 16, SLEEP, 16.0, 0.92),
    ("16 workers, paper", PAPER, 16, SLEEP, 16.0, 0.925),
    ("4 cores, natural", NATURAL, u32::MAX, CORES, 4.0, 0.86),
];

/// After 3 s at 0.6 of the capacity, P found is compared with P given for 5 s. What the backend
/// takes in before the law closes is bounded by a part of what it takes in without a filter.
#[test]
fn a_step_to_overload_keeps_most_of_the_goodput() {
    for &(name, kinds, workers, steps, capacity, least) in ROWS {
        for load in [1.5, 2.0] {
            let (mut good, mut most) = ([0.0; 2], [0; 2]);
            for seed in 0..8 {
                let service = Service {
                    load,
                    calm: 3,
                    seconds: 8,
                    warm_up: 3,
                    seed,
                    shed_by_value: true,
                    ..Service::new(kinds, workers, steps, capacity)
                };
                let (peak, found) = run(&service, None);
                good[0] += found.goodput;
                good[1] += service.run(Some(capacity as u32)).goodput;
                most[0] += peak;
                most[1] += run(&service, Some(UNFILTERED)).0;
            }
            let part = good[0] / good[1];
            let peak = f64::from(most[0]) / f64::from(most[1]);
            println!("{name} at {load}: {part:.3} of P given, {peak:.3} of the peak");
            assert!(part >= least, "{name} at {load}: {part:.3}");
            assert!(peak <= 0.25, "{name} at {load}: {peak:.3} of the peak");
        }
    }
}

struct Trace<'a, B> {
    inner: B,
    jobs: u32,
    seen: &'a std::cell::RefCell<Vec<(u64, u32)>>,
}

impl<B: Backend> Backend for Trace<'_, B> {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.jobs += 1;
        self.seen.borrow_mut().push((now, self.jobs));
        self.inner.take(now, job, request);
    }
    fn work(&self, request: &Request, quality: f64) -> u64 {
        self.inner.work(request, quality)
    }
    fn next_end(&self) -> u64 {
        self.inner.next_end()
    }
    fn end(&mut self, now: u64) -> Option<u32> {
        let ended = self.inner.end(now);
        self.jobs -= u32::from(ended.is_some());
        ended
    }
    fn busy(&self) -> u32 {
        self.inner.busy()
    }
    fn servers(&self) -> u32 {
        self.inner.servers()
    }
}

#[test]
fn trace_of_a_spike() {
    for (name, kinds, workers, load) in [
        ("16 natural4", PAPER_NATURAL, 16u32, 3.0),
        ("8 equal", EQUAL, 8, 3.0),
        ("16 natural", NATURAL, 16, 3.0),
    ] {
        for fixed in [None, Some(workers)] {
            let mut all = [0.0; 60];
            let mut line = vec![0.0f64; 60];
            for seed in 0..6 {
                let service = Service {
                    load,
                    calm: 5,
                    seconds: 10,
                    warm_up: 5,
                    seed,
                    shed_by_value: true,
                    ..Service::new(kinds, workers, SLEEP, f64::from(workers))
                };
                let seen = std::cell::RefCell::new(Vec::new());
                let found = service.run_on(
                    fixed,
                    Trace {
                        inner: Paced::new(service.network(), &[], &[]),
                        jobs: 0,
                        seen: &seen,
                    },
                );
                for (s, g) in found.good.iter().enumerate().take(12) {
                    all[s] += f64::from(*g) / 6.0;
                }
                if seed == 0 {
                    let seen = seen.borrow();
                    let jobs: Vec<u32> = (0..60)
                        .map(|i| {
                            let from = 4_900_000_000 + i * 25_000_000;
                            seen.iter()
                                .filter(|(at, _)| *at >= from && *at < from + 25_000_000)
                                .map(|(_, jobs)| *jobs)
                                .max()
                                .unwrap_or(0)
                        })
                        .collect();
                    println!("{name} {fixed:?} jobs {jobs:?} slots {:?}", found.slots);
                }
                for (kind, times) in found.times.iter().enumerate() {
                    for (at, time) in times {
                        let limit = kinds[kind].4[1] * 1_000_000;
                        let end = at + time;
                        if *time <= limit && end >= 4_900_000_000 {
                            let bin = ((end - 4_900_000_000) / 50_000_000) as usize;
                            if bin < 60 {
                                line[bin] += 20.0 / 6.0;
                            }
                        }
                    }
                }
            }
            println!("{name} {fixed:?} good/s {:?}", &all[3..10].iter().map(|g| *g as u32).collect::<Vec<_>>());
            println!("   by 50 ms {:?}", line.iter().take(40).map(|g| *g as u32).collect::<Vec<_>>());
        }
    }
}

pub(crate) const EQUAL: &[Kind] = &[("fast", 1.0, 20.0, 19.9, [50, 150])];
