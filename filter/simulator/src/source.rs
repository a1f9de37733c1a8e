//! Sources of requests: the part of a simulation that decides the arrivals.
//!
//! In an open source (a Poisson process, a recorded trace), the next arrival is independent of the
//! outcome of the last request. In a closed loop, a client thinks after each answer before it sends
//! the next request. Overload control has to be judged with clients that react to refusals. Both
//! kinds implement one trait, and a simulation is generic over the trait, so that an open source
//! has no cost for closed loops.

use std::time::Duration;

use headgate_strategies::reason::Reason;

/// A request that arrives.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Request {
    /// The arrival time, ns since the start.
    pub at: u64,
    /// Index into the simulation's types.
    pub kind: usize,
    /// The backend's work for the request, ns.
    pub processing: u64,
    /// Tokens of the prompt, for a language model.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// The maximum number of tokens of the answer, from the request's header; 0 without a header.
    pub most_output: u32,
    /// The source's id of the request or of its client, returned with the answer.
    pub client: u32,
    /// The request's class, 0 for the highest.
    pub class: u8,
    /// The cost in the request's header; 0 without a header.
    pub cost: u32,
    /// The request's deadline, relative to the arrival.
    pub deadline: Option<Duration>,
    /// Whether the request repeats a request that failed or was refused.
    pub is_retry: bool,
}

impl Request {
    /// Returns a first attempt without class, cost or deadline.
    pub fn new(at: u64, kind: usize, processing: u64) -> Self {
        Self {
            at,
            kind,
            processing,
            ..Self::default()
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The backend answered the request.
    Served,
    /// The stage refused the request, on arrival or after a wait that was too long.
    Refused,
    /// The request failed at the backend, by an error or because no answer came in time.
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
    /// Returns the time of the next arrival, ns since the start; `None` if no arrival is known now.
    /// A closed loop may have an arrival again after an answer.
    fn peek(&self) -> Option<u64>;

    /// Returns the request announced by [`Source::peek`]. `None` means that the request doesn't
    /// arrive after all. In this case, [`Source::peek`] returns another time from now on.
    fn take(&mut self) -> Option<Request>;

    /// Handles a request that leaves the stage for the backend at `at`, ns (point 2 of Bouncer's
    /// Figure 1).
    fn forwarded(&mut self, _request: &Request, _at: u64) {}

    /// Handles the arrival of the first byte of the response at `at`, ns, if the service streams
    /// its responses.
    fn begun(&mut self, _request: &Request, _at: u64) {}

    /// Handles the refusal of the request by the stage, before [`Source::answered`].
    fn refused(&mut self, _request: &Request, _reason: Reason) {}

    /// Handles the end of the request at `at`, ns.
    fn answered(&mut self, _request: &Request, _at: u64, _answer: Answer) {}
}
