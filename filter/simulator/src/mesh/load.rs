//! Clients of a mesh.

use std::time::Duration;

use crate::workload::ServiceTime;
use crate::workload::dice::Dice;

use super::graph::Graph;

/// Requests of clients with the same behaviour.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The requests, sent in this order and repeated, as in the replay of a trace; not empty.
    pub trace: Vec<Item>,
    /// The arrival process of the requests.
    pub arrivals: Arrivals,
    /// The start, ns since the start of the run.
    pub from: u64,
    /// The end, ns since the start of the run.
    pub until: u64,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Index of the request's workflow.
    pub workflow: usize,
    /// The request's size, if the workflow's tasks depend on a size.
    pub size: u32,
    /// The request's end-to-end deadline; `None` for the workflow's deadline.
    pub deadline: Option<Duration>,
}

/// The arrival process of requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// Poisson arrivals at this rate, requests/s.
    Poisson(f64),
    /// Evenly spaced arrivals at this rate, requests/s.
    Even(f64),
    /// A closed loop of this number of clients. After each answer, refusal or timeout, a client
    /// thinks for a time of this distribution, then sends the next request.
    Closed(u32, ServiceTime),
}

impl Load {
    /// Returns requests of this workflow for as long as the run lasts.
    pub fn new(workflow: usize, arrivals: Arrivals) -> Self {
        let item = Item {
            workflow,
            size: 1,
            deadline: None,
        };
        Self::replay(vec![item], arrivals)
    }

    /// Returns the requests of a trace, which is not empty.
    pub fn replay(trace: Vec<Item>, arrivals: Arrivals) -> Self {
        Self {
            trace,
            arrivals,
            from: 0,
            until: u64::MAX,
        }
    }

    /// Returns this load from `from` to `until`, s.
    #[must_use]
    pub fn between(mut self, from: f64, until: f64) -> Self {
        (self.from, self.until) = ((from * 1e9) as u64, (until * 1e9) as u64);
        self
    }

    /// Returns the number of concurrent senders.
    pub(super) fn senders(&self) -> u32 {
        match self.arrivals {
            Arrivals::Poisson(_) | Arrivals::Even(_) => 1,
            Arrivals::Closed(clients, _) => clients,
        }
    }

    /// Returns the time of a sender's first request. The clients of a closed loop start at
    /// different times.
    pub(super) fn first(&self, dice: &mut Dice) -> u64 {
        match &self.arrivals {
            Arrivals::Poisson(_) | Arrivals::Even(_) => self.next(self.from, dice),
            Arrivals::Closed(_, think) => {
                let spread = think.mean_ms().max(10.0) * 1e6;
                self.from + (spread * dice.unit()) as u64
            }
        }
    }

    /// Returns the time of the next request: after the request at `at`, or in a closed loop after
    /// the answer at `at`.
    pub(super) fn next(&self, at: u64, dice: &mut Dice) -> u64 {
        let gap = match &self.arrivals {
            Arrivals::Poisson(rate) => (-(1.0 - dice.unit()).ln() / rate * 1e9) as u64,
            Arrivals::Even(rate) => (1e9 / rate) as u64,
            Arrivals::Closed(_, think) => think.draw(dice),
        };
        at.saturating_add(gap)
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.arrivals, Arrivals::Closed(..))
    }
}

/// Returns the partition of a request, drawn at random.
pub(super) fn partition(graph: &Graph, workflow: usize, dice: &mut Dice) -> usize {
    match graph.workflows[workflow].partitions.len() {
        0 | 1 => 0,
        n => below(n, dice),
    }
}

/// Returns a random number below `n`.
pub(super) fn below(n: usize, dice: &mut Dice) -> usize {
    ((dice.unit() * n as f64) as usize).min(n - 1)
}
