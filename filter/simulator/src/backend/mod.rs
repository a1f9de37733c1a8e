//! Models of the service behind the stage, reduced to events: the start and the end of jobs.
//!
//! [`Network`] is a service of workers, pools and cores. It also models the P servers with one
//! request each that Bouncer assumes, and a database whose requests share the capacity and slow
//! each other down. [`Staged`] has thread pools in front of one. A server of a language model,
//! whose answers are streams, is with the benchmark `llm`, in the end-to-end tests' crate.

mod network;
mod staged;

use crate::source::Request;

pub use network::{Network, Resource};
pub use staged::Staged;

/// A model of a service. Times are ns since the start and never decrease.
pub trait Backend {
    /// Takes a job, to run now or later. `job` can be reused once [`Backend::end`] has returned it.
    fn take(&mut self, now: u64, job: u32, request: &Request);

    /// Returns the work of a request that should be answered with this quality, ratio. A service
    /// without qualities ignores it.
    fn work(&self, request: &Request, _quality: f64) -> u64 {
        request.processing
    }

    /// Returns the time at which the next job ends if no other arrives before; `u64::MAX` if there
    /// are no jobs.
    fn next_end(&self) -> u64;

    /// Ends the job of [`Backend::next_end`], at that time. `None` if that event was not the end of
    /// a job.
    fn end(&mut self, now: u64) -> Option<u32>;

    /// Returns the next job whose response began by the event that [`Backend::end`] last ran, and
    /// whose end is or will be another event; `None` if there is no more. A service whose responses
    /// aren't streams has none.
    fn begun(&mut self) -> Option<u32> {
        None
    }

    /// Returns the next job whose response has grown by the event that [`Backend::end`] last ran,
    /// and its number of output tokens; `None` if there is no more.
    fn wrote(&mut self) -> Option<(u32, u32)> {
        None
    }

    /// Whether the job that [`Backend::end`] last returned failed.
    fn failed(&self) -> bool {
        false
    }

    /// Returns the index of the endpoint that has this job, or had it until now; `None` if the
    /// service has no endpoints.
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
