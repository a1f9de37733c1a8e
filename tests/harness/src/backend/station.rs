//! The queueing station: P servers, one FIFO queue, and one timekeeper thread for all servers.
//!
//! A server that only sleeps needs no thread of its own. The timekeeper holds the ends of all
//! running services in a heap and sleeps until the first end. So P = 100 costs one wake-up per
//! completion, where P threads would cost three context switches. A free server is taken (by an
//! arrival, or by the timekeeper at a completion) under one lock. So never more than P servers are
//! busy, and no server is free while a request waits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::sync::oneshot;

use super::service::Service;
use super::stats::Counts;
use super::{Arrival, BackendConfig, BackendStats, Fault, FaultKind, OnDisconnect};
use crate::clock;

/// The largest number of arrivals with `x-seq` that are kept.
const MAX_ARRIVALS: usize = 1_000_000;

/// P servers and their FIFO queue.
#[derive(Debug)]
pub struct Station {
    on_disconnect: OnDisconnect,
    one_processor: bool,
    types: Vec<Service>,
    state: Mutex<State>,
    /// Notifies the timekeeper of a new first end, or of the stop.
    wake: Condvar,
}

#[derive(Debug)]
struct State {
    workers: usize,
    next_id: u64,
    /// Waiting requests by id. Ids grow in the order of arrival, so this map is a FIFO queue that
    /// also allows removal from the middle.
    queue: BTreeMap<u64, Waiting>,
    running: HashMap<u64, Running>,
    /// The ends of running services, in terms of `progress`. Ids that are no longer in `running`
    /// are stale.
    ends: BinaryHeap<Reverse<(Duration, u64)>>,
    progress: Progress,
    faults: Vec<Fault>,
    rng: SmallRng,
    counts: Counts,
    stopped: bool,
}

/// The service time that a request would have received since the station's start. One processor is
/// shared evenly by all n requests in service, so progress is then n times slower than real time.
#[derive(Debug)]
struct Progress {
    one_processor: bool,
    done: Duration,
    at: Instant,
}

impl Progress {
    /// Advances the progress to `now` and returns it. `running` is the number of requests in
    /// service since the last call. The call must come before this number changes.
    fn advance(&mut self, now: Instant, running: usize) -> Duration {
        self.done += now.saturating_duration_since(self.at) / self.shares(running);
        self.at = self.at.max(now);
        self.done
    }

    /// Returns the time at which the progress reaches `end`, the end of a service, if `running`
    /// stays the same.
    fn when(&self, end: Duration, running: usize) -> Instant {
        self.at + end.saturating_sub(self.done) * self.shares(running)
    }

    fn shares(&self, running: usize) -> u32 {
        if self.one_processor {
            u32::try_from(running).unwrap_or(u32::MAX).max(1)
        } else {
            1
        }
    }
}

#[derive(Debug)]
struct Waiting {
    kind: usize,
    arrived: Instant,
    /// The service time. `None` if the request hangs until it is released.
    service: Option<Duration>,
    done: oneshot::Sender<Served>,
}

#[derive(Debug)]
struct Running {
    kind: usize,
    started: Instant,
    wait: Duration,
    service: Option<Duration>,
    /// The channel of the client. `None` once the client has left.
    done: Option<oneshot::Sender<Served>>,
}

/// The wait and the service time of a request.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    pub(super) wait: Duration,
    pub(super) service: Duration,
}

/// A request in the station. Dropping it before the end of service means that the client left.
#[derive(Debug)]
pub struct Ticket {
    station: Arc<Station>,
    id: u64,
    done: oneshot::Receiver<Served>,
    served: bool,
    /// The fault of the request, if its answer must differ.
    pub(super) fault: Option<Fault>,
}

impl Ticket {
    /// Waits for the end of service. Returns `None` if the backend stops first.
    pub async fn served(&mut self) -> Option<Served> {
        let result = (&mut self.done).await.ok();
        self.served = true;
        result
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.served {
            self.station.leave(self.id);
        }
    }
}

impl Station {
    /// Returns an idle station.
    ///
    /// # Errors
    /// If `config` is invalid.
    pub fn new(config: &BackendConfig) -> Result<Self> {
        super::check(config)?;
        let types = config
            .types
            .iter()
            .map(|t| Service::new(t, config.scale))
            .collect::<Result<Vec<_>>>()?;
        let state = State {
            workers: config.workers,
            next_id: 0,
            queue: BTreeMap::new(),
            running: HashMap::new(),
            ends: BinaryHeap::new(),
            progress: Progress {
                one_processor: config.one_processor,
                done: Duration::ZERO,
                at: Instant::now(),
            },
            faults: Vec::new(),
            rng: SmallRng::seed_from_u64(config.seed),
            counts: Counts::new(Instant::now(), types.len()),
            stopped: false,
        };
        Ok(Self {
            on_disconnect: config.on_disconnect,
            one_processor: config.one_processor,
            types,
            state: Mutex::new(state),
            wake: Condvar::new(),
        })
    }

    /// Returns the index of the type of a path, the type with the longest matching prefix.
    pub fn classify(&self, path: &str) -> Option<usize> {
        let matching = self
            .types
            .iter()
            .enumerate()
            .filter(|(_, t)| path.starts_with(&t.prefix));
        matching.max_by_key(|(_, t)| t.prefix.len()).map(|(i, _)| i)
    }

    /// Adds a request. `service` overrides the drawn service time.
    pub fn enter(
        self: &Arc<Self>,
        kind: usize,
        path: &str,
        service: Option<Duration>,
        seq: Option<u64>,
    ) -> Ticket {
        let now = Instant::now();
        let (sender, done) = oneshot::channel();
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        let drawn = service.unwrap_or_else(|| self.types[kind].draw(&mut state.rng));
        let (service, fault) = match state.strike(path) {
            Some(fault) if fault.kind == FaultKind::Hang => (None, None),
            Some(fault) if fault.kind == FaultKind::Slow => {
                (Some(drawn + Duration::from_millis(fault.delay_ms)), None)
            }
            fault => (Some(drawn), fault),
        };
        state.counts.received += 1;
        state.counts.types[kind].received += 1;
        if let Some(seq) = seq.filter(|_| state.counts.arrivals.len() < MAX_ARRIVALS) {
            let since = now.saturating_duration_since(state.counts.since);
            let at_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
            state.counts.arrivals.push(Arrival { seq, at_us });
        }
        state.queue.insert(
            id,
            Waiting {
                kind,
                arrived: now,
                service,
                done: sender,
            },
        );
        self.fill(&mut state, now);
        let (queued, busy) = (state.queue.len(), state.running.len());
        state.counts.observe(queued, busy);
        Ticket {
            station: Arc::clone(self),
            id,
            done,
            served: false,
            fault,
        }
    }

    /// Assigns free servers to the first requests in the queue.
    fn fill(&self, state: &mut State, now: Instant) {
        let first_end = state.first_end();
        while state.running.len() < state.workers {
            let Some((id, waiting)) = state.queue.pop_first() else {
                break;
            };
            let busy = state.running.len();
            state.counts.integrate(now, busy);
            let done = state.progress.advance(now, busy);
            let wait = now.saturating_duration_since(waiting.arrived);
            state.counts.types[waiting.kind].wait.record(wait);
            if let Some(service) = waiting.service {
                state.ends.push(Reverse((done + service, id)));
            }
            let running = Running {
                kind: waiting.kind,
                started: now,
                wait,
                service: waiting.service,
                done: Some(waiting.done),
            };
            state.running.insert(id, running);
        }
        if state.first_end() != first_end {
            self.wake.notify_one();
        }
    }

    /// Handles a client that leaves before its request is served.
    fn leave(&self, id: u64) {
        let mut state = self.lock();
        let state = &mut *state;
        if state.queue.remove(&id).is_some() {
            state.counts.cancelled_queued += 1;
            return;
        }
        let Some(running) = state.running.get_mut(&id) else {
            return;
        };
        state.counts.cancelled_in_service += 1;
        // A hanging request is cancelled with any configuration, because it would never end.
        if self.on_disconnect == OnDisconnect::Finish && running.service.is_some() {
            running.done = None;
            return;
        }
        let now = Instant::now();
        let busy = state.running.len();
        state.counts.integrate(now, busy);
        state.progress.advance(now, busy);
        state.running.remove(&id);
        self.fill(state, now);
        // With one processor, the other requests now end earlier.
        self.wake.notify_one();
    }

    /// Ends services when their time is over. Runs until [`stop`](Self::stop).
    pub fn keep_time(&self) {
        clock::make_precise();
        let mut finished = Vec::new();
        let mut state = self.lock();
        while !state.stopped {
            let now = Instant::now();
            while let Some(first) = state.first_end() {
                if first > now {
                    break;
                }
                let Some(Reverse((_, id))) = state.ends.pop() else {
                    break;
                };
                if let Some(done) = self.finish(&mut state, id, now) {
                    finished.push(done);
                }
            }
            if !finished.is_empty() {
                // Waking the network thread is a system call. The lock is released first, because
                // the network thread needs it next.
                drop(state);
                for (done, served) in finished.drain(..) {
                    let _: Result<(), Served> = oneshot::Sender::send(done, served);
                }
                state = self.lock();
                continue;
            }
            state = match state.first_end() {
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    self.wake
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Ends one service. Returns the channel of its client and the times to send.
    fn finish(
        &self,
        state: &mut State,
        id: u64,
        now: Instant,
    ) -> Option<(oneshot::Sender<Served>, Served)> {
        let busy = state.running.len();
        state.progress.advance(now, busy);
        let running = state.running.remove(&id)?;
        let service = now.saturating_duration_since(running.started);
        state.counts.integrate(now, busy);
        state.counts.completed += 1;
        state.counts.types[running.kind].service.record(service);
        if let Some(drawn) = running.service.filter(|_| !self.one_processor) {
            state.counts.late.record(service.saturating_sub(drawn));
        }
        self.fill(state, now);
        running.done.map(|done| {
            (
                done,
                Served {
                    wait: running.wait,
                    service,
                },
            )
        })
    }

    pub(super) fn release(&self) -> usize {
        let mut state = self.lock();
        let now = Instant::now();
        let held: Vec<u64> = state
            .running
            .iter()
            .filter(|(_, r)| r.service.is_none())
            .map(|(&id, _)| id)
            .collect();
        for id in &held {
            if let Some((done, served)) = self.finish(&mut state, *id, now) {
                let _: Result<(), Served> = done.send(served);
            }
        }
        held.len()
    }

    pub(super) fn inject(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    pub(super) fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    pub(super) fn count_connection(&self) {
        self.lock().counts.connections += 1;
    }

    pub(super) fn count_upgrade(&self) {
        self.lock().counts.upgrades += 1;
    }

    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        self.lock().counts.arrivals.clone()
    }

    /// Resets the counts. Requests in the station stay.
    pub fn reset(&self) {
        let mut state = self.lock();
        state.counts = Counts::new(Instant::now(), self.types.len());
        let (queued, busy) = (state.queue.len(), state.running.len());
        state.counts.observe(queued, busy);
    }

    /// Changes the number of servers. Excess servers end after the requests that they serve.
    pub(super) fn set_workers(&self, workers: usize) {
        let mut state = self.lock();
        state.workers = workers;
        self.fill(&mut state, Instant::now());
    }

    /// Ends [`keep_time`](Self::keep_time).
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.wake.notify_one();
    }

    /// Returns the counts of the station since its start or the last reset.
    pub fn stats(&self) -> BackendStats {
        let mut state = self.lock();
        let (queued, busy) = (state.queue.len(), state.running.len());
        state.counts.integrate(Instant::now(), busy);
        let prefixes = self.types.iter().map(|t| t.prefix.as_str());
        let workers = state.workers;
        state.counts.report(workers, queued, busy, prefixes)
    }

    /// Returns the largest number of requests in the station at once since the last call.
    pub fn take_peak_in_flight(&self) -> usize {
        let mut state = self.lock();
        let now = state.queue.len() + state.running.len();
        std::mem::replace(&mut state.counts.peak_in_flight, now)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the time at which the next service ends.
    fn first_end(&mut self) -> Option<Instant> {
        while let Some(&Reverse((end, id))) = self.ends.peek() {
            if self.running.contains_key(&id) {
                return Some(self.progress.when(end, self.running.len()));
            }
            self.ends.pop();
        }
        None
    }

    /// Returns the fault for a request of `path`, and decrements its count.
    fn strike(&mut self, path: &str) -> Option<Fault> {
        let index = self
            .faults
            .iter()
            .position(|f| f.count > 0 && path.starts_with(&f.path))?;
        let fault = self.faults[index].clone();
        self.faults[index].count -= 1;
        if self.faults[index].count == 0 {
            self.faults.remove(index);
        }
        self.counts.faults += 1;
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_shared_by_those_in_service_and_workers_are_not() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let ends = |one_processor| {
            let mut progress = Progress {
                one_processor,
                done: Duration::ZERO,
                at: start,
            };
            // The first request of 30 ms is alone for 10 ms, and then shares the processor with a
            // second one of 30 ms.
            let first = progress.advance(start, 0) + ms(30);
            let second = progress.advance(start + ms(10), 1) + ms(30);
            let first_end = progress.when(first, 2);
            progress.advance(first_end, 2);
            // A thread that read its clock before another thread got the lock doesn't move the time
            // back.
            progress.advance(start, 1);
            (first_end - start, progress.when(second, 1) - start)
        };
        assert_eq!(ends(false), (ms(30), ms(40)));
        assert_eq!(ends(true), (ms(50), ms(60)));
    }
}
