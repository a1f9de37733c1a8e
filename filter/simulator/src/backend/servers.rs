//! Servers that each work on one request.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Backend;
use crate::source::Request;

/// A number of servers with a FIFO queue. The queue stays empty if the stage holds requests
/// (`queue.mode: Hold`). Otherwise, this queue is the only queue.
#[derive(Debug)]
pub struct Servers {
    servers: u32,
    /// The waiting jobs, with their work, ns.
    waiting: VecDeque<(u32, u64)>,
    /// The ends of the jobs in service, ns.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Servers {
    /// Returns this number of servers.
    pub fn new(servers: u32) -> Self {
        Self {
            servers,
            waiting: VecDeque::new(),
            ends: BinaryHeap::new(),
        }
    }

    /// Assigns free servers to waiting jobs.
    fn fill(&mut self, now: u64) {
        while self.busy() < self.servers
            && let Some((job, work)) = self.waiting.pop_front()
        {
            self.ends.push(Reverse((now.saturating_add(work), job)));
        }
    }
}

impl Backend for Servers {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.waiting.push_back((job, request.processing));
        self.fill(now);
    }

    fn next_end(&self) -> u64 {
        self.ends.peek().map_or(u64::MAX, |Reverse((at, _))| *at)
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        let Reverse((_, job)) = self.ends.pop()?;
        self.fill(now);
        Some(job)
    }

    fn busy(&self) -> u32 {
        self.ends.len() as u32
    }

    fn servers(&self) -> u32 {
        self.servers
    }
}
