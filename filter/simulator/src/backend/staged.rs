//! A service of stages (SEDA §2): each request type has a thread pool with its own queue, and all
//! threads share one processor.
//!
//! With these queues, one type of request can be slow while other types are quick, because a queue
//! only grows in front of a stage whose threads are too slow. The model leaves out the stages that
//! read and write packets, which are never the bottleneck, and pools whose size changes.

use std::collections::VecDeque;

use super::{Backend, Cores};
use crate::source::Request;

/// A service of stages: one thread pool for each request type, over one processor.
#[derive(Debug)]
pub struct Staged {
    processor: Cores,
    pools: Vec<Pool>,
    /// The index of the pool of each job.
    pool_of: Vec<u16>,
    degrades: bool,
}

#[derive(Debug)]
struct Pool {
    /// The number of idle threads.
    idle: u32,
    /// The waiting jobs, with their work, ns.
    queue: VecDeque<(u32, u64)>,
}

impl Staged {
    /// Returns a service with this number of threads for each request type, by [`Request::kind`].
    pub fn new(processor: Cores, threads: impl IntoIterator<Item = u32>) -> Self {
        let pool = |threads: u32| Pool {
            idle: threads.max(1),
            queue: VecDeque::new(),
        };
        Self {
            processor,
            pools: threads.into_iter().map(pool).collect(),
            pool_of: Vec::new(),
            degrades: false,
        }
    }

    /// Returns this service with work in proportion to the answer's quality (SEDA §4.5).
    #[must_use]
    pub fn degrading(mut self) -> Self {
        self.degrades = true;
        self
    }
}

impl Backend for Staged {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        let at = job as usize;
        if self.pool_of.len() <= at {
            self.pool_of.resize(at + 1, 0);
        }
        self.pool_of[at] = request.kind as u16;
        let pool = &mut self.pools[request.kind];
        if pool.idle > 0 {
            pool.idle -= 1;
            self.processor.take(now, job, request);
        } else {
            pool.queue.push_back((job, request.processing));
        }
    }

    fn work(&self, request: &Request, quality: f64) -> u64 {
        match self.degrades {
            true => (request.processing as f64 * quality) as u64,
            false => request.processing,
        }
    }

    fn next_end(&self) -> u64 {
        self.processor.next_end()
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        let job = self.processor.end(now)?;
        let pool = &mut self.pools[usize::from(self.pool_of[job as usize])];
        match pool.queue.pop_front() {
            Some((next, work)) => self.processor.start(now, next, work),
            None => pool.idle += 1,
        }
        Some(job)
    }

    fn busy(&self) -> u32 {
        self.processor.busy()
    }

    fn servers(&self) -> u32 {
        self.processor.servers()
    }

    fn refused(&mut self, now: u64) {
        self.processor.refused(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_keeps_its_own_type_waiting_and_no_other() {
        let mut service = Staged::new(Cores::new(1, 0.0), [1, 1]);
        let request = |kind, work| Request::new(0, kind, work);
        service.take(0, 0, &request(0, 100));
        service.take(0, 1, &request(0, 100));
        service.take(0, 2, &request(1, 100));
        // Jobs 0 and 2 share the processor. Then job 1 runs alone.
        let mut order = Vec::new();
        while service.next_end() < u64::MAX {
            let at = service.next_end();
            order.push((service.end(at).unwrap(), at));
        }
        assert_eq!(order, [(0, 200), (2, 200), (1, 300)]);
    }
}
