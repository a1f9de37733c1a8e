//! Models of the service behind the stage, reduced to events: the start and the end of jobs.
//!
//! [`Servers`] are the P servers with one request each that Bouncer assumes. [`Cores`] are a
//! database whose requests share the capacity and slow each other down. [`Staged`] has thread pools
//! in front of [`Cores`]. The model of a language model server, whose answers are streams, is part
//! of the benchmark `llm` in the crate of the end-to-end tests.

mod cores;
mod servers;
mod staged;

use crate::source::Request;

pub use cores::Cores;
pub use servers::Servers;
pub use staged::Staged;

/// A model of a service. Times are ns since the start and never decrease.
pub trait Backend {
    /// Takes a job, to run now or later. `job` can be reused once [`Backend::end`] has returned it.
    fn take(&mut self, now: u64, job: u32, request: &Request);

    /// Returns the work of a request, ns, at this quality of the answer, a ratio. A service without
    /// qualities ignores the quality.
    fn work(&self, request: &Request, _quality: f64) -> u64 {
        request.processing
    }

    /// Returns the time of the service's next event if no other job arrives before, such as the end
    /// of a job or of one of its steps. `u64::MAX` without jobs.
    fn next_end(&self) -> u64;

    /// Runs the event of [`Backend::next_end`] at `now`. Returns the job that the event ends;
    /// `None` if the event doesn't end a job.
    fn end(&mut self, now: u64) -> Option<u32>;

    /// Returns the next job whose response began in the event that [`Backend::end`] last ran;
    /// `None` if no job is left. A job whose response begins and ends in one event is left out. A
    /// service whose responses aren't streams returns no jobs.
    fn begun(&mut self) -> Option<u32> {
        None
    }

    /// Returns the next job whose response has grown in the event that [`Backend::end`] last ran,
    /// and the number of its output tokens; `None` if no job is left.
    fn wrote(&mut self) -> Option<(u32, u32)> {
        None
    }

    /// Whether the job that [`Backend::end`] last returned failed.
    fn failed(&self) -> bool {
        false
    }

    /// Returns the index of the endpoint that serves this job, or served this job until now; `None`
    /// if the service has no endpoints.
    fn endpoint(&self, _job: u32) -> Option<u32> {
        None
    }

    /// Returns the current work, as a number of busy servers.
    fn busy(&self) -> u32;

    /// Returns the number of servers, for utilization.
    fn servers(&self) -> u32;

    /// Records a refused request. A service that refuses requests itself spends work on the
    /// refusal.
    fn refused(&mut self, _now: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time at which each of these jobs (start and work, ns) ends.
    fn ends(mut backend: impl Backend, jobs: &[(u64, u64)]) -> Vec<u64> {
        let mut ends = vec![0; jobs.len()];
        let mut next = 0;
        loop {
            let arrival = jobs.get(next).map_or(u64::MAX, |job| job.0);
            let end = backend.next_end();
            if arrival == u64::MAX && end == u64::MAX {
                return ends;
            }
            if end <= arrival {
                if let Some(job) = backend.end(end) {
                    ends[job as usize] = end;
                }
            } else {
                backend.take(
                    arrival,
                    next as u32,
                    &Request::new(arrival, 0, jobs[next].1),
                );
                next += 1;
            }
        }
    }

    #[test]
    fn workers_that_sleep_are_servers() {
        let two = Servers::new(2);
        assert_eq!(
            ends(two, &[(0, 100), (10, 100), (20, 100), (30, 10)]),
            [100, 110, 200, 120]
        );
    }

    #[test]
    fn cores_are_shared_by_the_jobs() {
        // The first job runs alone for 100 ns. Then both jobs run at half speed for 400 ns. Then
        // the second job runs alone.
        assert_eq!(
            ends(Cores::new(1, 0.0), &[(0, 300), (100, 500)]),
            [500, 800]
        );
        assert_eq!(
            ends(Cores::new(2, 0.0), &[(0, 300), (100, 500)]),
            [300, 600]
        );
    }

    #[test]
    fn requests_that_hinder_each_other_are_slower_than_their_share() {
        let found = ends(Cores::new(2, 0.5), &[(0, 300), (0, 300)]);
        assert_eq!(found, [450, 450]);
    }

    #[test]
    fn refusals_take_time_from_the_requests() {
        let mut processor = Cores::new(2, 0.0).refusing_at(100.0);
        processor.start(0, 0, 300);
        processor.refused(10);
        processor.refused(20);
        assert_eq!(processor.next_end(), 400);
        assert_eq!(processor.end(400), Some(0));
    }

    #[test]
    fn work_is_conserved_over_a_million_events() {
        let jobs: Vec<(u64, u64)> = (0..200_000).map(|i| (i * 1_000, 900 + i % 199)).collect();
        let total: u64 = jobs.iter().map(|j| j.1).sum();
        let found = ends(Cores::new(1, 0.0), &jobs);
        let last = found.iter().max().unwrap();
        // The processor is busy without a pause from some time on, so the last end includes all
        // accumulated rounding.
        assert!(
            *last >= total && *last < total + 2_000_000,
            "{last} {total}"
        );
    }
}
