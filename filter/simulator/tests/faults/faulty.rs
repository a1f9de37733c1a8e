//! A backend of workers with a FIFO queue, in which some requests fail.
//!
//! A [`Fault`] defines the effect on requests of one type that start within a span of time. A
//! request without an answer within the route's timeout fails, whether it waits or is in service.
//! The request frees its worker, because the proxy resets the stream and the service cancels the
//! request.

use std::collections::VecDeque;
use std::time::Duration;

use headgate_simulator::backend::Backend;
use headgate_simulator::source::Request;
use headgate_strategies::time::nanos;

/// The effect of a fault on a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Effect {
    /// The request is never answered.
    Hangs,
    /// The service time is multiplied by this factor.
    Slow(f64),
    /// The answer is an error, after this time.
    Errors(Duration),
}

/// A fault of the backend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    /// Index into the workload's types; `None` for all types.
    pub(crate) kind: Option<usize>,
    /// One in this many requests is affected. With 1, all requests are affected.
    pub(crate) one_in: u64,
    /// The start and the end of the fault, ns. The fault affects requests that start in between.
    pub(crate) span: (u64, u64),
    /// The effect on these requests.
    pub(crate) effect: Effect,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    id: u32,
    /// The end of the job's service, ns; `u64::MAX` if the service never ends.
    ends: u64,
    /// The end of the route's timeout, ns.
    expires: u64,
    /// Whether the job's answer is an error.
    errs: bool,
    /// The job's work, ns.
    work: u64,
}

impl Job {
    fn over(&self) -> u64 {
        self.ends.min(self.expires)
    }
}

/// Workers with a FIFO queue, and the faults.
#[derive(Debug)]
pub(crate) struct Faulty {
    workers: usize,
    timeout: u64,
    faults: Vec<Fault>,
    running: Vec<Job>,
    waiting: VecDeque<Job>,
    taken: u64,
    failed: bool,
}

impl Faulty {
    /// Returns a backend with this number of workers, behind a route with this timeout.
    pub(crate) fn new(workers: u32, timeout: Duration, faults: &[Fault]) -> Self {
        Self {
            workers: workers as usize,
            timeout: nanos(timeout),
            faults: faults.to_vec(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            taken: 0,
            failed: false,
        }
    }

    /// Assigns free workers to waiting jobs.
    fn start(&mut self, now: u64) {
        while self.running.len() < self.workers {
            let Some(job) = self.waiting.pop_front() else {
                return;
            };
            self.running.push(Job {
                ends: now.saturating_add(job.work),
                ..job
            });
        }
    }
}

impl Backend for Faulty {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.taken += 1;
        let breaks = |fault: &&Fault| {
            fault.kind.is_none_or(|kind| kind == request.kind)
                && self.taken.is_multiple_of(fault.one_in.max(1))
                && (fault.span.0..fault.span.1).contains(&now)
        };
        let effect = self.faults.iter().find(breaks).map(|fault| fault.effect);
        let work = match effect {
            None => request.processing,
            Some(Effect::Hangs) => u64::MAX,
            Some(Effect::Slow(factor)) => (request.processing as f64 * factor) as u64,
            Some(Effect::Errors(after)) => nanos(after),
        };
        self.waiting.push_back(Job {
            id: job,
            ends: u64::MAX,
            expires: now.saturating_add(self.timeout),
            errs: matches!(effect, Some(Effect::Errors(_))),
            work,
        });
        self.start(now);
    }

    fn next_end(&self) -> u64 {
        let jobs = self.running.iter().chain(&self.waiting);
        jobs.map(Job::over).min().unwrap_or(u64::MAX)
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        let is_over = |job: &Job| job.over() <= now;
        let job = if let Some(at) = self.running.iter().position(is_over) {
            self.running.swap_remove(at)
        } else {
            let at = self.waiting.iter().position(is_over)?;
            self.waiting.remove(at)?
        };
        self.failed = job.errs || job.expires < job.ends;
        self.start(now);
        Some(job.id)
    }

    fn failed(&self) -> bool {
        self.failed
    }

    fn busy(&self) -> u32 {
        // The number fits into 32 bits, because at most `workers` jobs run.
        self.running.len() as u32
    }

    fn servers(&self) -> u32 {
        self.workers as u32
    }
}
