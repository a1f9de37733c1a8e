//! A processor that all requests share, such as that of a service's database.
//!
//! Each of n requests on c cores advances at min(1, c/n) / (1 + κ (n − 1)) of full speed. This is
//! egalitarian processor sharing, slowed down by contention (locks, aborts, cache misses), which is
//! κ times the number of other requests.
//!
//! All requests advance at the same speed. So one number is enough, the work done for each since
//! the beginning: a request ends when that number has grown by its work. An event costs O(log n); a
//! list of each request's remaining work would cost O(n).

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::Backend;
use crate::source::Request;

/// A processor that all requests share, with contention.
#[derive(Debug)]
pub struct SharedProcessor {
    cores: u32,
    contention: f64,
    /// The work of a refusal, ns.
    refusal: f64,
    /// Pending work with priority over the requests', ns.
    overhead: f64,
    /// The work done so far for a request present from the beginning, ns.
    attained: f64,
    /// The time of `attained`, ns.
    now: u64,
    /// Jobs, by the value of `attained` at their end.
    jobs: BinaryHeap<Reverse<Job>>,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    end: f64,
    job: u32,
}

impl Ord for Job {
    fn cmp(&self, other: &Self) -> Ordering {
        self.end
            .total_cmp(&other.end)
            .then(self.job.cmp(&other.job))
    }
}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Job {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Job {}

impl SharedProcessor {
    /// Returns a processor with this number of cores and this κ.
    #[must_use]
    pub fn new(cores: u32, contention: f64) -> Self {
        Self {
            cores: cores.max(1),
            contention,
            refusal: 0.0,
            overhead: 0.0,
            attained: 0.0,
            now: 0,
            jobs: BinaryHeap::new(),
        }
    }

    /// Returns a service that refuses requests itself: each refusal costs this work, ns, which is
    /// done before all other work.
    #[must_use]
    pub fn refusing_at(self, work: f64) -> Self {
        Self {
            refusal: work,
            ..self
        }
    }

    /// Returns the work per time of each request.
    fn speed(&self) -> f64 {
        let n = self.jobs.len().max(1) as f64;
        let share = (f64::from(self.cores) / n).min(1.0);
        share / (1.0 + self.contention * (n - 1.0))
    }

    fn pass_to(&mut self, now: u64) {
        let passed = now.saturating_sub(self.now) as f64;
        let overhead = self.overhead.min(passed);
        self.overhead -= overhead;
        self.attained += (passed - overhead) * self.speed();
        self.now = self.now.max(now);
        if self.jobs.is_empty() {
            // A reset when the processor is idle preserves precision.
            self.attained = 0.0;
        }
    }

    /// Starts a job with this work, ns.
    pub fn start(&mut self, now: u64, job: u32, work: u64) {
        self.pass_to(now);
        let end = self.attained + work as f64;
        self.jobs.push(Reverse(Job { end, job }));
    }
}

impl Backend for SharedProcessor {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.start(now, job, request.processing);
    }

    fn next_end(&self) -> u64 {
        let Some(Reverse(first)) = self.jobs.peek() else {
            return u64::MAX;
        };
        let left = (first.end - self.attained).max(0.0) / self.speed() + self.overhead;
        self.now.saturating_add(left.ceil() as u64)
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        self.pass_to(now);
        self.jobs.pop().map(|Reverse(first)| first.job)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time at which each of these jobs (start and work, ns) ends.
    fn ends(mut processor: SharedProcessor, jobs: &[(u64, u64)]) -> Vec<u64> {
        let mut ends = vec![0; jobs.len()];
        let mut end = |processor: &mut SharedProcessor| {
            let at = processor.next_end();
            if let Some(job) = processor.end(at) {
                ends[job as usize] = at;
            }
        };
        for (job, (start, work)) in (0..).zip(jobs) {
            while processor.next_end() <= *start {
                end(&mut processor);
            }
            processor.start(*start, job, *work);
        }
        while processor.next_end() < u64::MAX {
            end(&mut processor);
        }
        ends
    }

    #[test]
    fn those_who_are_there_share_alike() {
        // The first job runs alone for 100 ns, both at half speed for 400, the second alone for the
        // rest.
        let found = ends(SharedProcessor::new(1, 0.0), &[(0, 300), (100, 500)]);
        assert_eq!(found, [500, 800]);
        let two_cores = ends(SharedProcessor::new(2, 0.0), &[(0, 300), (100, 500)]);
        assert_eq!(two_cores, [300, 600]);
    }

    #[test]
    fn contention_slows_down_all_who_are_there() {
        let found = ends(SharedProcessor::new(2, 0.5), &[(0, 300), (0, 300)]);
        assert_eq!(found, [450, 450]);
    }

    #[test]
    fn refusals_take_time_from_the_requests() {
        let mut processor = SharedProcessor::new(2, 0.0).refusing_at(100.0);
        processor.start(0, 0, 300);
        processor.refused(10);
        processor.refused(20);
        assert_eq!(processor.next_end(), 400);
    }

    #[test]
    fn work_is_conserved_over_a_million_events() {
        let jobs: Vec<(u64, u64)> = (0..200_000).map(|i| (i * 1_000, 900 + i % 199)).collect();
        let total: u64 = jobs.iter().map(|j| j.1).sum();
        let found = ends(SharedProcessor::new(1, 0.0), &jobs);
        let last = found.iter().max().unwrap();
        // The processor is busy without a pause from some time on, so the last end includes all
        // accumulated rounding.
        assert!(
            *last >= total && *last < total + 2_000_000,
            "{last} {total}"
        );
    }
}
