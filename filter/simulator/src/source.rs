//! Where requests come from: the side of a simulation that decides what arrives, and when.
//!
//! An open source (a Poisson process, a recorded trace) knows its next arrival whatever becomes of the
//! last one. A closed loop does not: a client thinks about its next request when it has the answer to the
//! last, and overload control is judged by what clients do when they are refused. Both are one trait, and
//! a simulation is generic over it, so that an open source pays nothing for what a closed one needs.

use std::time::Duration;

/// A request that arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Arrival, ns since the start.
    pub at: u64,
    /// Index into the simulation's types.
    pub kind: usize,
    /// What it asks of the backend, ns of work.
    pub processing: u64,
    /// The source's name for it or for who sent it; comes back with the answer.
    pub client: u32,
    /// Its class, 0 for the highest.
    pub class: u8,
    /// What its header says it costs; 0 says nothing.
    pub cost: u32,
    /// The time that it gives itself.
    pub deadline: Option<Duration>,
}

impl Request {
    /// A request without class, cost or deadline.
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

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The backend answered it.
    Served,
    /// It was turned away, at its arrival or after it had waited too long.
    Refused,
    /// The backend failed it: an error, or no answer in time.
    Failed,
}

/// What comes back to a client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// How the request ended.
    pub ending: Ending,
    /// The hint on the response: part of the requests that the stage refuses at the moment, ratio. 0 when
    /// it says nothing.
    pub rejection_rate: f64,
    /// The rate up to which requests like this one are admitted, requests/s; `None` where the strategy
    /// sets none.
    pub admission_rate: Option<f64>,
    /// The quality in which the service was told to answer, ratio; `None` when it wasn't told.
    pub quality: Option<f64>,
}

/// Clients, open or closed loop.
///
/// Arrivals must not go back in time: [`Source::peek`] is never before the last request that was taken,
/// nor before the last answer.
pub trait Source {
    /// When the next request arrives, ns since the start; `None` when, as far as is known now, none does.
    /// A closed loop may have one again after an answer.
    fn peek(&self) -> Option<u64>;

    /// The request that [`Source::peek`] announced, or `None` if, when the time has come, there is none
    /// after all; then [`Source::peek`] tells another time.
    fn take(&mut self) -> Option<Request>;

    /// The request leaves the stage for the backend at `at`, ns (point 2 of Bouncer's Figure 1).
    fn forwarded(&mut self, _request: &Request, _at: u64) {}

    /// The request ended at `at`, ns.
    fn answered(&mut self, _request: &Request, _at: u64, _answer: Answer) {}
}
