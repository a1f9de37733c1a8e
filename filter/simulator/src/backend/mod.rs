//! Models of the service behind the stage, reduced to events: the start and the end of jobs.
//!
//! [`Network`] is a service of workers, pools and cores. It also models the P servers with one
//! request each that Bouncer assumes, and a database whose requests share the capacity and slow
//! each other down. [`Staged`] has thread pools in front of a [`Network`]. The model of a language
//! model server, whose answers are streams, is part of the benchmark `llm` in the crate of the
//! end-to-end tests.

mod network;
mod staged;

use crate::source::Request;

pub use network::{Network, Resource};
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
