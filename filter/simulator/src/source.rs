//! Sources of requests: the side of a simulation that decides which requests arrive, and when.
//!
//! An open source (a Poisson process, a recorded trace) knows its next arrival independent of the
//! outcome of the last. A closed loop does not: a client thinks about its next request when it has
//! the answer to the last, and overload control is judged by the reaction of refused clients. Both
//! implement one trait, and a simulation is generic over it, so that an open source doesn't pay for
//! the needs of a closed one.

use std::time::Duration;

/// A request that arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Arrival time, ns since the start.
    pub at: u64,
    /// Index into the simulation's types.
    pub kind: usize,
    /// Its work for the backend, ns.
    pub processing: u64,
    /// The source's id of the request or of its client; returned with the answer.
    pub client: u32,
    /// Its class, 0 for the highest.
    pub class: u8,
    /// The cost in its header; 0 without one.
    pub cost: u32,
    /// Its own deadline.
    pub deadline: Option<Duration>,
}

impl Request {
    /// Returns a request without class, cost or deadline.
    #[must_use]
    pub fn new(at: u64, kind: usize, processing: u64) -> Self {
        Self {
            at,
            kind,
            processing,
            client: 0,
            class: 0,
            cost: 0,
            deadline: None,
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The backend answered it.
    Served,
    /// The stage refused it, at its arrival or after it had waited too long.
    Refused,
    /// The backend failed it: an error, or no answer in time.
    Failed,
}

/// The answer that a client receives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// The outcome of the request.
    pub ending: Ending,
    /// The hint on the response: ratio of the requests that the stage refuses at the moment; 0
    /// without a hint.
    pub rejection_rate: f64,
    /// The rate up to which such requests are admitted, requests/s; `None` if the strategy sets
    /// none.
    pub admission_rate: Option<f64>,
    /// The quality in which the service was to answer, ratio; `None` if none was requested.
    pub quality: Option<f64>,
}

/// Clients, open or closed loop.
///
/// Arrivals must not go back in time: [`Source::peek`] is never before the last request that was
/// taken, nor before the last answer.
pub trait Source {
    /// Returns the time of the next arrival, ns since the start; `None` if none is known at the
    /// moment. A closed loop may have one again after an answer.
    fn peek(&self) -> Option<u64>;

    /// Returns the request that [`Source::peek`] announced. `None` means that it doesn't arrive
    /// after all; then [`Source::peek`] returns another time.
    fn take(&mut self) -> Option<Request>;

    /// Notes that the request leaves the stage for the backend at `at`, ns (point 2 of Bouncer's
    /// Figure 1).
    fn forwarded(&mut self, _request: &Request, _at: u64) {}

    /// Notes the end of the request at `at`, ns.
    fn answered(&mut self, _request: &Request, _at: u64, _answer: Answer) {}
}
