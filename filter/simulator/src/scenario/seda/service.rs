//! The services of SEDA §4, modelled.
//!
//! **Arashi** (§4.1), the e-mail service: seven request types, each with a stage of its own, over one
//! database. The text tells of the request types, of 20 ms of think time, of the pause of 5 s before a
//! refused user logs in again, and of the bottleneck ("listing the contents of an entire folder requires a
//! significant number of database accesses"). It has neither the Markov chain of the users nor what a
//! request costs. Chosen here, so that without control the model comes near to Figure 9:
//!
//! - Work, lognormal: with 16 users all are in the back end at once and share it, so that response times
//!   are work × 16. Figure 9's column for 16 users, divided by 16 and by what the 90th percentile is to
//!   the mean, is each type's mean.
//! - Pages: a user logs in, lists folders, lists the messages of one, and reads, deletes and moves some;
//!   now and then goes back to the folders, seldom searches ("comprising less than 1%") or logs in anew.
//!   Of all stages, listing folders has the most work (visits × work), so at 1024 users all wait there,
//!   as in Figure 9, where it is the slowest by far.
//! - 64 threads a stage, and one core (the paper's machine), 0.1% slower for each request that competes.
//!
//! **The benchmark of §4.5**: one stage, bound by the processor, whose work is in proportion to the quality
//! of the answer. The text has neither the work nor what its clients do after a refusal. Chosen: 150 ms at
//! full quality, so that 1000 users wait minutes; 20 ms of think time, after a refusal, too: only then can
//! 99% of the requests be refused, as the paper reports.

use crate::backend::{Backend, SharedProcessor, Staged};
use crate::clients::users::{Habits, Page};
use crate::source::Request;
use crate::workload::{LogNormal, WorkloadError};

/// Second, ns.
pub(super) const SECOND: u64 = 1_000_000_000;
/// The intervals of the paper's figures.
pub(super) const INTERVAL: u64 = 5 * SECOND;

/// Request types of Arashi: name, mean work in ms, and what comes next, in percent.
const ARASHI: [(&str, f64, [u32; 7]); 7] = [
    ("login", 24.0, [0, 100, 0, 0, 0, 0, 0]),
    ("list folders", 53.0, [2, 4, 68, 20, 0, 6, 0]),
    ("list msgs", 68.0, [2, 12, 6, 74, 3, 2, 1]),
    ("show msg", 21.0, [3, 20, 9, 46, 13, 8, 1]),
    ("delete", 29.0, [1, 24, 15, 50, 10, 0, 0]),
    ("refile", 29.0, [1, 24, 15, 50, 0, 10, 0]),
    ("search", 240.0, [0, 10, 20, 70, 0, 0, 0]),
];
/// σ of ln work that mean / median = 1.5 gives: 0.9.
const MEAN_TO_MEDIAN: f64 = 1.5;
const THREADS: u32 = 64;
const CONTENTION: f64 = 0.001;

/// Names of Arashi's request types.
pub(super) fn names() -> [&'static str; 7] {
    ARASHI.map(|(name, ..)| name)
}

/// Arashi's users.
pub(super) fn users() -> Result<Habits, WorkloadError> {
    let page = |(name, work, next): &(&'static str, f64, [u32; 7])| -> Result<Page, WorkloadError> {
        Ok(Page {
            name,
            work: LogNormal::new(*work, work / MEAN_TO_MEDIAN)?,
            next: next
                .iter()
                .map(|percent| f64::from(*percent) / 100.0)
                .collect(),
        })
    };
    Ok(Habits {
        pages: ARASHI.iter().map(page).collect::<Result<_, _>>()?,
        think: SECOND / 50,
        after_refusal: 5 * SECOND,
        connections: None,
    })
}

/// Arashi's stages and database.
pub(super) fn arashi() -> Staged {
    Staged::new(SharedProcessor::new(1, CONTENTION), ARASHI.map(|_| THREADS))
}

/// Work of the benchmark of §4.5 at full quality, ms, and σ = 0.3 of its logarithm.
const BENCHMARK_MS: f64 = 150.0;
const BENCHMARK_MEAN_TO_MEDIAN: f64 = 1.046;
/// Lowest quality of the benchmark, ratio.
pub(super) const MIN_QUALITY: f64 = 0.04;

/// Clients of the benchmark.
pub(super) fn clients() -> Result<Habits, WorkloadError> {
    Ok(Habits {
        pages: vec![Page {
            name: "page",
            work: LogNormal::new(BENCHMARK_MS, BENCHMARK_MS / BENCHMARK_MEAN_TO_MEDIAN)?,
            next: vec![1.0],
        }],
        think: SECOND / 50,
        after_refusal: SECOND / 50,
        connections: None,
    })
}

/// The benchmark's only stage: one processor, whose work is in proportion to the quality.
#[derive(Debug)]
pub(super) struct Benchmark(Staged);

impl Benchmark {
    pub(super) fn new() -> Self {
        Self(Staged::new(SharedProcessor::new(1, 0.0), [THREADS]))
    }
}

impl Backend for Benchmark {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.0.take(now, job, request);
    }

    fn work(&self, request: &Request, quality: f64) -> u64 {
        (request.processing as f64 * quality) as u64
    }

    fn next_end(&self) -> u64 {
        self.0.next_end()
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        self.0.end(now)
    }

    fn busy(&self) -> u32 {
        self.0.busy()
    }

    fn servers(&self) -> u32 {
        self.0.servers()
    }
}

/// For the setup of reports.
pub(super) const ARASHI_IN_WORDS: &str = "e-mail, 7 request types with a stage of 64 threads each over one shared back end; users log in again 5 s \
     after a rejection";
