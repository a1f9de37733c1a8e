//! What stands behind the stage, as far as events tell: jobs go in, and each comes out at some time.
//!
//! [`Servers`] is the backend that Bouncer assumes: P servers, a request each. [`SharedProcessor`] is one
//! whose requests share what there is and hinder each other, such as a database, [`Staged`] puts
//! thread pools before it, [`Network`] is a service of workers, pools and cores, [`Paced`] one that changes, [`Faulty`]
//! one that breaks, and [`Endpoints`] several of these.

mod endpoints;
mod faulty;
mod network;
mod paced;
mod servers;
mod shared;
mod staged;

use crate::source::Request;

pub use endpoints::Endpoints;
pub use faulty::{Effect, Fault, Faulty};
pub use network::{Network, Step};
pub use paced::Paced;
pub use servers::Servers;
pub use shared::SharedProcessor;
pub use staged::Staged;

/// A modelled service. Times are ns since the start and never go back.
pub trait Backend {
    /// Takes a job, to work on now or later. `job` is free to be used again when [`Backend::end`] has
    /// given it back.
    fn take(&mut self, now: u64, job: u32, request: &Request);

    /// The work of a request that is to be answered in this quality, ratio. A service that doesn't know of
    /// qualities does what it always does.
    fn work(&self, request: &Request, _quality: f64) -> u64 {
        request.processing
    }

    /// When the next job ends if none comes before; `u64::MAX` when there is none.
    fn next_end(&self) -> u64;

    /// Ends the job of [`Backend::next_end`], at that time.
    fn end(&mut self, now: u64) -> Option<u32>;

    /// Whether the job that [`Backend::end`] gave back last failed.
    fn failed(&self) -> bool {
        false
    }

    /// What is at work at the moment, as a number of servers.
    fn busy(&self) -> u32;

    /// Servers in all, for utilization.
    fn servers(&self) -> u32;

    /// A request was refused. A service that refuses by itself has work with that, too.
    fn refused(&mut self, _now: u64) {}
}
