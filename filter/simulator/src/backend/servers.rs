//! P servers with a FIFO queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Backend;
use crate::source::Request;

/// P servers with a FIFO queue. The queue stays empty if the stage holds requests (`queue.mode:
/// Hold`); otherwise it is the only queue.
#[derive(Debug)]
pub struct Servers {
    servers: u32,
    /// The ends of service, ns, with the jobs.
    ends: BinaryHeap<Reverse<(u64, u32)>>,
    /// The waiting jobs, with their work, ns.
    waiting: VecDeque<(u32, u64)>,
}

impl Servers {
    /// Returns this number of idle servers.
    #[must_use]
    pub fn new(servers: u32) -> Self {
        Self {
            servers,
            ends: BinaryHeap::new(),
            waiting: VecDeque::new(),
        }
    }
}

impl Backend for Servers {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        if self.busy() < self.servers {
            self.ends
                .push(Reverse((now.saturating_add(request.processing), job)));
        } else {
            self.waiting.push_back((job, request.processing));
        }
    }

    fn next_end(&self) -> u64 {
        self.ends.peek().map_or(u64::MAX, |Reverse((at, _))| *at)
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        let Reverse((_, job)) = self.ends.pop()?;
        if let Some((next, processing)) = self.waiting.pop_front() {
            self.ends
                .push(Reverse((now.saturating_add(processing), next)));
        }
        Some(job)
    }

    fn busy(&self) -> u32 {
        // The number fits: at most `servers` jobs run.
        self.ends.len() as u32
    }

    fn servers(&self) -> u32 {
        self.servers
    }
}
