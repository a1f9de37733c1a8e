//! Closed loops: a fixed number of clients, each of which waits for its answer, thinks, and goes on.
//!
//! This is how the papers load their services, and it decides what overload means: a slow service is asked
//! less, and a refused client comes back. [`ClosedLoop`] keeps the clients' times; what they send and how
//! long they think is a [`Behaviour`]: [`users::Users`] as in SEDA §4.1, [`threads::Threads`] as in Chronos
//! §5.1, [`callers::Callers`] as a workload has them.

pub(crate) mod callers;
mod chance;
pub mod series;
pub mod threads;
pub mod users;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::source::{Answer, Request, Source};

/// What a client does when its time has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wake {
    /// It sends a request and waits for the answer.
    Send(Request),
    /// It waits until then, ns since the start; later than now.
    Later(u64),
    /// It leaves for good.
    Leave,
}

/// What clients do.
pub trait Behaviour {
    /// `client` wakes up at `at`, ns since the start.
    fn wake(&mut self, client: u32, at: u64) -> Wake;

    /// The request has left the stage's queue for the backend.
    fn forwarded(&mut self, _request: &Request, _at: u64) {}

    /// The answer has come, at `at`; returns when the client wakes up next, not before `at`.
    fn answered(&mut self, request: &Request, at: u64, answer: Answer) -> u64;
}

/// Clients as a source of requests. [`Request::client`] must be the client's number.
#[derive(Debug)]
pub struct ClosedLoop<B> {
    behaviour: B,
    /// Those who think: until when, and who.
    thinking: BinaryHeap<Reverse<(u64, u32)>>,
    waiting: u32,
    gone: u32,
}

impl<B: Behaviour> ClosedLoop<B> {
    /// Clients 0, 1, … that wake up first at these times, ns.
    pub fn new(behaviour: B, starts: impl IntoIterator<Item = u64>) -> Self {
        let first = starts.into_iter().zip(0..).map(Reverse);
        Self {
            behaviour,
            thinking: first.collect(),
            waiting: 0,
            gone: 0,
        }
    }

    /// The clients.
    pub fn behaviour(&self) -> &B {
        &self.behaviour
    }

    /// Those who think, wait for an answer, and have left.
    #[must_use]
    pub fn census(&self) -> (usize, u32, u32) {
        (self.thinking.len(), self.waiting, self.gone)
    }
}

impl<B: Behaviour> Source for ClosedLoop<B> {
    fn peek(&self) -> Option<u64> {
        self.thinking.peek().map(|Reverse((at, _))| *at)
    }

    fn take(&mut self) -> Option<Request> {
        let Reverse((at, client)) = self.thinking.pop()?;
        match self.behaviour.wake(client, at) {
            Wake::Send(request) => {
                self.waiting += 1;
                return Some(request);
            }
            Wake::Later(later) => self.thinking.push(Reverse((later.max(at + 1), client))),
            Wake::Leave => self.gone += 1,
        }
        None
    }

    fn forwarded(&mut self, request: &Request, at: u64) {
        self.behaviour.forwarded(request, at);
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) {
        self.waiting -= 1;
        let next = self.behaviour.answered(request, at, answer);
        self.thinking.push(Reverse((next.max(at), request.client)));
    }
}

#[cfg(test)]
mod tests;
