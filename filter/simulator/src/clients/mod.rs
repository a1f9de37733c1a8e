//! Closed loops: clients that each wait for their answer, think, and send their next request.
//!
//! The papers load their services with closed loops, which change the effect of overload: a slow
//! service receives fewer requests, and a refused client returns. [`ClosedLoop`] keeps the clients'
//! times. A [`Behaviour`] decides their requests and their think times: [`users::Users`] as in SEDA
//! §4.1, [`threads::Threads`] as in Chronos §5.1, [`callers::Callers`] as in a workload file.

pub(crate) mod callers;
mod chance;
pub mod series;
pub mod threads;
pub mod users;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::source::{Answer, Request, Source};

/// The action of a client that wakes up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wake {
    /// The client sends a request and waits for the answer.
    Send(Request),
    /// The client waits until this time, ns since the start, which is later than now.
    Later(u64),
    /// The client leaves permanently.
    Leave,
}

/// The behaviour of clients.
pub trait Behaviour {
    /// Returns the action of `client`, which wakes up at `at`, ns since the start.
    fn wake(&mut self, client: u32, at: u64) -> Wake;

    /// Handles the departure of the request from the stage's queue to the backend, at `at`.
    fn forwarded(&mut self, _request: &Request, _at: u64) {}

    /// Handles the answer at `at`. Returns the client's next wake-up time, not before `at`.
    fn answered(&mut self, request: &Request, at: u64, answer: Answer) -> u64;
}

/// Clients as a source of requests. [`Request::client`] must be the client's number.
#[derive(Debug)]
pub struct ClosedLoop<B> {
    behaviour: B,
    /// The thinking clients: the end of the think time, ns, and the client.
    thinking: BinaryHeap<Reverse<(u64, u32)>>,
}

impl<B: Behaviour> ClosedLoop<B> {
    /// Returns clients 0, 1, … with these first wake-up times, ns.
    pub fn new(behaviour: B, starts: impl IntoIterator<Item = u64>) -> Self {
        let first = starts.into_iter().zip(0..).map(Reverse);
        Self {
            behaviour,
            thinking: first.collect(),
        }
    }

    /// Returns the behaviour of the clients, with its results.
    pub fn behaviour(&self) -> &B {
        &self.behaviour
    }
}

impl<B: Behaviour> Source for ClosedLoop<B> {
    fn peek(&self) -> Option<u64> {
        self.thinking.peek().map(|Reverse((at, _))| *at)
    }

    fn take(&mut self) -> Option<Request> {
        let Reverse((at, client)) = self.thinking.pop()?;
        match self.behaviour.wake(client, at) {
            Wake::Send(request) => return Some(request),
            Wake::Later(later) => self.thinking.push(Reverse((later.max(at + 1), client))),
            Wake::Leave => {}
        }
        None
    }

    fn forwarded(&mut self, request: &Request, at: u64) {
        self.behaviour.forwarded(request, at);
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) {
        let next = self.behaviour.answered(request, at, answer);
        self.thinking.push(Reverse((next.max(at), request.client)));
    }
}

#[cfg(test)]
mod tests;
