//! Sources of requests: the part of a simulation that decides the arrivals.
//!
//! In an open source (a Poisson process, a recorded trace), the next arrival is independent of the
//! outcome of the last. In a closed loop it isn't: a client thinks after each answer, and overload
//! control has to be judged with clients that react to refusals. Both implement one trait, and a
//! simulation is generic over it, so that an open source doesn't pay for a closed loop.

use std::time::Duration;

use headgate_core::refusal::Reason;

/// A request that arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// The arrival time, ns since the start.
    pub at: u64,
    /// Index into the simulation's types.
    pub kind: usize,
    /// The backend's work for it, ns.
    pub processing: u64,
    /// Tokens of its prompt, for a language model.
    pub prompt: u32,
    /// Tokens of its answer.
    pub output: u32,
    /// The most tokens of its answer that its header allows; 0 without one.
    pub most_output: u32,
    /// The source's id of the request or of its client, returned with the answer.
    pub client: u32,
    /// Its class, 0 for the highest.
    pub class: u8,
    /// The cost in its header; 0 without one.
    pub cost: u32,
    /// Its deadline, relative to the arrival.
    pub deadline: Option<Duration>,
    /// Whether it repeats a request that failed or was refused.
    pub is_retry: bool,
}

impl Request {
    /// Returns a first attempt without class, cost or deadline.
    #[must_use]
    pub fn new(at: u64, kind: usize, processing: u64) -> Self {
        Self {
            at,
            kind,
            processing,
            prompt: 0,
            output: 0,
            most_output: 0,
            client: 0,
            class: 0,
            cost: 0,
            deadline: None,
            is_retry: false,
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The backend answered it.
    Served,
    /// The stage refused it, on arrival or after a wait that was too long.
    Refused,
    /// The backend failed it: an error, or no answer in time.
    Failed,
}

/// The answer that a client receives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// The outcome of the request.
    pub ending: Ending,
    /// The hint on the response: the ratio of requests that the stage currently refuses; 0 without
    /// a hint.
    pub rejection_rate: f64,
    /// The rate up to which requests of this type are admitted, requests/s; `None` if the strategy
    /// sets none.
    pub admission_rate: Option<f64>,
    /// The quality with which the service was asked to answer, ratio; `None` if none was requested.
    pub quality: Option<f64>,
}

/// Clients, open or closed loop.
///
/// The times of arrivals never decrease: [`Source::peek`] returns no time before the last request
/// that was taken, nor before the last answer.
pub trait Source {
    /// Returns the time of the next arrival, ns since the start; `None` if none is known now. A
    /// closed loop may have one again after an answer.
    fn peek(&self) -> Option<u64>;

    /// Returns the request announced by [`Source::peek`]. `None` means that it doesn't arrive after
    /// all; [`Source::peek`] then returns another time.
    fn take(&mut self) -> Option<Request>;

    /// Called when the request leaves the stage for the backend at `at`, ns (point 2 of Bouncer's
    /// Figure 1).
    fn forwarded(&mut self, _request: &Request, _at: u64) {}

    /// Called when the first byte of the response arrives at `at`, ns, if the service streams its
    /// responses.
    fn begun(&mut self, _request: &Request, _at: u64) {}

    /// Called when the stage refuses the request, before [`Source::answered`].
    fn refused(&mut self, _request: &Request, _reason: Reason) {}

    /// Called when the request ends at `at`, ns.
    fn answered(&mut self, _request: &Request, _at: u64, _answer: Answer) {}
}
