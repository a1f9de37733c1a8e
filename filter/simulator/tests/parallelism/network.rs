//! A backend of workers, in which a request passes through several steps while it holds a worker.
//!
//! A request waits in a FIFO for one of W workers. The request holds the worker while it passes
//! through steps. Each step is a part of the request's work:
//!
//! - [`Resource::Sleep`]: the step takes a time independent of other requests (a call to another
//!   service);
//! - [`Resource::Servers`]: the step needs one of K servers, with a FIFO (a pool of connections;
//!   with K = 1 a lock);
//! - [`Resource::Cores`]: the step shares c cores with other requests. Each of n requests advances
//!   at `min(1, c/n) / (1 + σ (n − 1) + κ n (n − 1))` of full speed: processor sharing, slowed down
//!   by serial work and by crosstalk between requests (Gunther's universal scalability law).
//!
//! With workers that sleep, this is a model of N servers, as [`Servers`]. With unlimited workers
//! over cores, it is a model of a web server or a database, as [`Cores`]. With three workers over
//! one core, it is a model of SQLite behind an async server. Capacity can change at any time
//! ([`Network::scale`]).
//!
//! All requests at the cores advance at the same speed. So one number is enough, which is the work
//! done for each request since the beginning. A request ends when that number has grown by the
//! request's work. An event costs O(log n). A list of each request's remaining work would cost
//! O(n).
//!
//! [`Servers`]: headgate_simulator::backend::Servers
//! [`Cores`]: headgate_simulator::backend::Cores

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The resource that a part of a request's work needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Resource {
    /// No resource. The part only takes time.
    Sleep,
    /// One of this number of servers.
    Servers(u32),
    /// A share of the cores.
    Cores {
        /// The number of cores, c.
        cores: f64,
        /// The serial work σ, ratio.
        serial: f64,
        /// The crosstalk κ, ratio.
        crosstalk: f64,
    },
}

impl Resource {
    /// Returns a resource of this number of cores, without serial work or crosstalk.
    pub(crate) const fn cores(cores: f64) -> Self {
        Self::Cores {
            cores,
            serial: 0.0,
            crosstalk: 0.0,
        }
    }
}

/// A time in ns with a total order.
#[derive(Debug, Clone, Copy, PartialEq)]
struct At(f64);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Job {
    work: f64,
    step: usize,
}

/// A step of the requests, with the step's ratio of the work and its current state.
#[derive(Debug)]
struct Station {
    part: f64,
    resource: Resource,
    busy: u32,
    queue: VecDeque<u32>,
    /// The jobs that share cores. A job ends when `attained` reaches its number.
    shared: BinaryHeap<Reverse<(At, u32)>>,
    attained: f64,
}

/// A backend of workers whose requests pass through steps.
#[derive(Debug, Default)]
pub(crate) struct Network {
    workers: u32,
    busy: u32,
    waiting: VecDeque<u32>,
    stations: Vec<Station>,
    jobs: Vec<Job>,
    ends: BinaryHeap<Reverse<(At, u32)>>,
    now: f64,
    capacity: u32,
}

impl Network {
    /// Returns a network with this number of workers and these steps, each with its ratio of the
    /// work. `u32::MAX` workers means one worker for every request. `capacity` is the work that the
    /// network can do per unit of time. Utilization is computed from `capacity`.
    pub(crate) fn new(workers: u32, steps: &[(f64, Resource)], capacity: u32) -> Self {
        let station = |&(part, resource): &(f64, Resource)| Station {
            part,
            resource,
            busy: 0,
            queue: VecDeque::new(),
            shared: BinaryHeap::new(),
            attained: 0.0,
        };
        Self {
            workers,
            stations: steps.iter().map(station).collect(),
            capacity,
            ..Self::default()
        }
    }

    /// Multiplies the numbers of workers, servers and cores by `factor`. The numbers of workers and
    /// servers are rounded and at least 1. Jobs in service continue.
    pub(crate) fn scale(&mut self, now: f64, factor: f64) {
        self.pass_to(now);
        let scaled = |number: u32| ((f64::from(number) * factor).round() as u32).max(1);
        if self.workers < u32::MAX {
            self.workers = scaled(self.workers);
        }
        for station in &mut self.stations {
            match &mut station.resource {
                Resource::Sleep => {}
                Resource::Servers(servers) => *servers = scaled(*servers),
                Resource::Cores { cores, .. } => *cores *= factor,
            }
        }
        self.fill(now);
    }

    /// Adds a job with this work, ns.
    pub(crate) fn start(&mut self, now: f64, job: u32, work: f64) {
        self.pass_to(now);
        let at = job as usize;
        if self.jobs.len() <= at {
            self.jobs.resize(at + 1, Job::default());
        }
        self.jobs[at] = Job { work, step: 0 };
        self.waiting.push_back(job);
        self.fill(now);
    }

    /// Returns the time of the next event, ns; infinite without events.
    pub(crate) fn next(&self) -> f64 {
        let slept = self.ends.peek().map(|Reverse((at, _))| at.0);
        let shared = self.stations.iter().filter_map(Station::left);
        let shared = shared.map(|left| self.now + left);
        shared.chain(slept).fold(f64::INFINITY, f64::min)
    }

    /// Runs the next event. Returns the job that the event ends, if any.
    pub(crate) fn advance(&mut self) -> Option<u32> {
        let now = self.next();
        if now.is_infinite() {
            return None;
        }
        let slept = self.ends.peek().is_some_and(|Reverse((at, _))| at.0 <= now);
        let is_over = |left: f64| self.now + left <= now;
        let ending = (self.stations.iter()).position(|station| station.left().is_some_and(is_over));
        self.pass_to(now);
        let job = if slept {
            self.ends.pop()
        } else {
            ending.and_then(|at| self.stations[at].shared.pop())
        };
        let Reverse((_, job)) = job?;
        let step = self.jobs[job as usize].step;
        let station = &mut self.stations[step];
        if matches!(station.resource, Resource::Servers(_)) {
            station.busy -= 1;
        }
        let left = step + 1 == self.stations.len();
        if left {
            self.busy -= 1;
        } else {
            self.jobs[job as usize].step = step + 1;
            self.enter(now, job);
        }
        self.fill(now);
        left.then_some(job)
    }

    /// Returns the current work, as a number of busy servers.
    pub(crate) fn busy(&self) -> u32 {
        self.busy.min(self.capacity)
    }

    /// Returns the number of servers, for utilization.
    pub(crate) fn servers(&self) -> u32 {
        self.capacity
    }

    fn pass_to(&mut self, now: f64) {
        let passed = (now - self.now).max(0.0);
        for station in &mut self.stations {
            station.attained += passed * station.speed();
            if station.shared.is_empty() {
                // A reset when the cores are idle preserves precision.
                station.attained = 0.0;
            }
        }
        self.now = self.now.max(now);
    }

    /// Assigns free workers and servers to waiting jobs.
    fn fill(&mut self, now: f64) {
        while self.busy < self.workers
            && let Some(job) = self.waiting.pop_front()
        {
            self.busy += 1;
            self.enter(now, job);
        }
        for station in &mut self.stations {
            let Resource::Servers(servers) = station.resource else {
                continue;
            };
            while station.busy < servers
                && let Some(job) = station.queue.pop_front()
            {
                station.busy += 1;
                let end = now + self.jobs[job as usize].work * station.part;
                self.ends.push(Reverse((At(end), job)));
            }
        }
    }

    /// Starts the job's current step. The caller must call [`Network::fill`] afterwards.
    fn enter(&mut self, now: f64, job: u32) {
        let Job { work, step } = self.jobs[job as usize];
        let station = &mut self.stations[step];
        let work = work * station.part;
        match station.resource {
            Resource::Sleep => self.ends.push(Reverse((At(now + work), job))),
            Resource::Servers(_) => station.queue.push_back(job),
            Resource::Cores { .. } => {
                let end = station.attained + work;
                station.shared.push(Reverse((At(end), job)));
            }
        }
    }
}

impl Station {
    /// Returns the time until the next job ends at the cores, ns; `None` without jobs.
    fn left(&self) -> Option<f64> {
        let Reverse((end, _)) = self.shared.peek()?;
        Some((end.0 - self.attained).max(0.0) / self.speed())
    }

    /// Returns the speed of each job at the cores: work per unit of time.
    fn speed(&self) -> f64 {
        let Resource::Cores {
            cores,
            serial,
            crosstalk,
        } = self.resource
        else {
            return 1.0;
        };
        let n = self.shared.len().max(1) as f64;
        (cores / n).min(1.0) / (1.0 + serial * (n - 1.0) + crosstalk * n * (n - 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time at which each of these jobs, with their work, ns, ends. All start at 0.
    fn ends(mut network: Network, jobs: &[f64]) -> Vec<f64> {
        for (job, work) in (0..).zip(jobs) {
            network.start(0.0, job, *work);
        }
        let mut ends = vec![0.0; jobs.len()];
        while network.next().is_finite() {
            let at = network.next();
            if let Some(job) = network.advance() {
                ends[job as usize] = at;
            }
        }
        ends
    }

    #[test]
    fn cores_are_shared_by_the_jobs_that_have_a_worker() {
        // The third job waits for a worker.
        let sqlite = Network::new(2, &[(1.0, Resource::cores(1.0))], 1);
        assert_eq!(ends(sqlite, &[100.0; 3]), [200.0, 200.0, 300.0]);
    }

    #[test]
    fn a_lock_lets_one_pass_at_a_time() {
        let lock = Network::new(8, &[(0.5, Resource::Sleep), (0.5, Resource::Servers(1))], 2);
        assert_eq!(ends(lock, &[100.0; 3]), [100.0, 150.0, 200.0]);
    }

    #[test]
    fn requests_that_hinder_each_other_are_slower_than_their_share() {
        let resource = Resource::Cores {
            cores: 2.0,
            serial: 0.5,
            crosstalk: 0.25,
        };
        // Each request runs at 1 / (1 + 0.5 + 0.25 · 2) = ½ of full speed.
        let hindered = Network::new(u32::MAX, &[(1.0, resource)], 2);
        assert_eq!(ends(hindered, &[300.0; 2]), [600.0, 600.0]);
    }

    #[test]
    fn lost_capacity_is_not_taken_from_jobs_in_service() {
        let mut four = Network::new(4, &[(1.0, Resource::Sleep)], 4);
        for job in 0..8 {
            four.start(0.0, job, 100.0);
        }
        four.scale(10.0, 0.5);
        let left: Vec<f64> = std::iter::from_fn(|| {
            let at = four.next();
            four.advance().map(|_| at)
        })
        .collect();
        assert_eq!(
            left,
            [100.0, 100.0, 100.0, 100.0, 200.0, 200.0, 300.0, 300.0]
        );
    }
}
