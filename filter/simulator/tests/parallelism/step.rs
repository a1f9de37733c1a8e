//! Steps from a calm load to an overload, with P found: the most requests in the backend.

use std::cell::Cell;

use headgate_simulator::Request;
use headgate_simulator::backend::{Backend, Paced, Step};

use crate::service::{Found, Kind, NATURAL, PAPER, PAPER_NATURAL, Service, UNFILTERED};
use crate::{CORES, SLEEP};

/// A backend that records the most jobs that it had at once.
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

type Row = (
    &'static str,
    &'static [Kind],
    u32,
    &'static [(f64, Step)],
    f64,
);
const ROWS: &[Row] = &[
    ("20 workers, own objectives", PAPER_NATURAL, 20, SLEEP, 20.0),
    ("16 workers, natural", NATURAL, 16, SLEEP, 16.0),
    ("16 workers, paper", PAPER, 16, SLEEP, 16.0),
    ("4 cores, natural", NATURAL, u32::MAX, CORES, 4.0),
];

#[test]
#[ignore = "prints a table"]
fn steps() {
    for &(name, kinds, workers, steps, capacity) in ROWS {
        for load in [1.2, 1.5, 2.0] { if std::env::var_os("DBG").is_some() {eprintln!("== {name} {load}");}
            let mut peaks = Vec::new();
            let mut good = [0.0; 2];
            let mut unfiltered = 0;
            for seed in 0..if std::env::var_os("DBG").is_some() {1} else {12} {
                let service = Service {
                    load,
                    calm: 3,
                    seconds: 8,
                    warm_up: 3,
                    seed,
                    shed_by_value: true,
                    ..Service::new(kinds, workers, steps, capacity)
                };
                let (most, found) = run(&service, None);
                peaks.push(most);
                good[0] += found.goodput;
                good[1] += service.run(Some(capacity as u32)).goodput;
                unfiltered += run(&service, Some(UNFILTERED)).0 / 12;
            }
            peaks.sort_unstable();
            println!(
                "{name:28} {load:.1} good {:.3} of P given, unfiltered {unfiltered} {peaks:?}",
                good[0] / good[1]
            );
        }
    }
}
