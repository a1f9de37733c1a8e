//! Cores that all requests share.
//!
//! Each of n requests advances at `min(1, c/n) / (1 + σ (n − 1))` of full speed on c cores:
//! processor sharing, slowed down by serial work.
//!
//! All requests advance at the same speed. So one number is enough, which is the work done for each
//! request since the beginning. A request ends when that number has grown by the request's work. An
//! event costs O(log n). A list of each request's remaining work would cost O(n).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Backend;
use crate::source::Request;

/// An amount of work, ns, with a total order.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Work(f64);

impl Eq for Work {}

impl PartialOrd for Work {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Work {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A processor that all requests share, as in a web server or a database.
#[derive(Debug, Default)]
pub struct Cores {
    cores: u32,
    serial: f64,
    /// The jobs. A job ends when `attained` reaches its number.
    jobs: BinaryHeap<Reverse<(Work, u32)>>,
    attained: f64,
    now: u64,
    /// The work of a refusal, ns.
    refusal: f64,
    /// Pending work with priority over the requests', ns.
    overhead: f64,
}

impl Cores {
    /// Returns a processor with this number of cores. Serial work σ, such as locks, aborts and
    /// cache misses, slows requests down.
    pub fn new(cores: u32, serial: f64) -> Self {
        Self {
            cores,
            serial,
            ..Self::default()
        }
    }

    /// Returns this service with refusals of its own. Each refusal costs this work, ns, which is
    /// done before all other work.
    #[must_use]
    pub fn refusing_at(self, work: f64) -> Self {
        Self {
            refusal: work,
            ..self
        }
    }

    /// Adds a job with this work, ns.
    pub(super) fn start(&mut self, now: u64, job: u32, work: u64) {
        self.pass_to(now);
        let end = self.attained + work as f64;
        self.jobs.push(Reverse((Work(end), job)));
    }

    fn pass_to(&mut self, now: u64) {
        let passed = now.saturating_sub(self.now) as f64;
        let overhead = self.overhead.min(passed);
        self.overhead -= overhead;
        self.attained += (passed - overhead) * self.speed();
        if self.jobs.is_empty() {
            // A reset when the cores are idle preserves precision.
            self.attained = 0.0;
        }
        self.now = self.now.max(now);
    }

    /// Returns the speed of each job: work per unit of time.
    fn speed(&self) -> f64 {
        let n = self.jobs.len().max(1) as f64;
        (f64::from(self.cores) / n).min(1.0) / (1.0 + self.serial * (n - 1.0))
    }
}

impl Backend for Cores {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.start(now, job, request.processing);
    }

    fn next_end(&self) -> u64 {
        let Some(Reverse((end, _))) = self.jobs.peek() else {
            return u64::MAX;
        };
        let left = (end.0 - self.attained).max(0.0) / self.speed();
        // The sum is of whole numbers, because a sum of floats would lose the last digits.
        self.now
            .saturating_add((left + self.overhead).ceil() as u64)
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        self.pass_to(now);
        let Reverse((_, job)) = self.jobs.pop()?;
        Some(job)
    }

    fn busy(&self) -> u32 {
        self.cores.min(self.jobs.len() as u32)
    }

    fn servers(&self) -> u32 {
        self.cores
    }

    fn refused(&mut self, now: u64) {
        self.pass_to(now);
        self.overhead += self.refusal / f64::from(self.cores);
    }
}
