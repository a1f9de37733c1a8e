//! The backend's counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::quantiles::{Durations, Quantiles};

/// The backend's counts since its start or last reset.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BackendStats {
    /// Requests that the backend can serve at once.
    pub workers: usize,
    /// Requests that are in the backend now, received and not yet answered.
    pub in_flight: usize,
    /// Requests that wait for a worker now.
    pub queued: usize,
    /// Workers that are in use now.
    pub busy: usize,
    /// Largest `in_flight`.
    pub max_in_flight: usize,
    /// Largest `queued`.
    pub max_queued: usize,
    /// Largest `busy`.
    pub max_busy: usize,
    /// Requests received.
    pub received: u64,
    /// Requests whose service ended.
    pub completed: u64,
    /// Requests whose client left while they waited.
    pub cancelled_queued: u64,
    /// Requests whose client left while they were served.
    pub cancelled_in_service: u64,
    /// Requests affected by an injected fault.
    pub faults: u64,
    /// Upgraded connections (`101`), which bypass the queue.
    pub upgrades: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Time since the start or last reset, ms.
    pub elapsed_ms: f64,
    /// Sum over workers of the time in use, ms.
    pub busy_ms: f64,
    /// `busy_ms / (workers * elapsed_ms)`, ratio 0..=1.
    pub utilization: f64,
    /// Delay of the ends of services after their drawn times, ms, which is the error of the
    /// backend's clock.
    pub late_ms: Quantiles,
    /// Counts by path prefix.
    pub types: BTreeMap<String, TypeStats>,
}

impl BackendStats {
    /// Returns the utilization of the workers between `earlier` and these counts, ratio 0..=1.
    pub fn utilization_since(&self, earlier: &BackendStats) -> f64 {
        let elapsed = self.elapsed_ms - earlier.elapsed_ms;
        if elapsed > 0.0 {
            (self.busy_ms - earlier.busy_ms) / (elapsed * self.workers as f64)
        } else {
            0.0
        }
    }
}

/// Counts of one path prefix.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TypeStats {
    /// Requests received.
    pub received: u64,
    /// Time in a worker of completed requests, ms.
    pub service_ms: Quantiles,
    /// Wait for a worker of requests that got one, ms.
    pub wait_ms: Quantiles,
}

/// A request that carried `x-seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The value of the `x-seq` header.
    pub seq: u64,
    /// The time of the request's arrival, µs after the start or last reset.
    pub at_us: u64,
}

/// Accumulated counts.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) since: Instant,
    pub(super) max_in_flight: usize,
    /// The largest `in_flight` since it was last taken.
    pub(super) peak_in_flight: usize,
    pub(super) max_queued: usize,
    pub(super) max_busy: usize,
    pub(super) received: u64,
    pub(super) completed: u64,
    pub(super) cancelled_queued: u64,
    pub(super) cancelled_in_service: u64,
    pub(super) faults: u64,
    pub(super) upgrades: u64,
    pub(super) connections: u64,
    /// Integral of `busy` up to `integrated`.
    pub(super) busy_time: Duration,
    pub(super) integrated: Instant,
    pub(super) late: Durations,
    pub(super) types: Vec<TypeCounts>,
    pub(super) arrivals: Vec<Arrival>,
}

/// Counts of one path prefix.
#[derive(Debug, Clone, Default)]
pub(super) struct TypeCounts {
    pub(super) received: u64,
    pub(super) service: Durations,
    pub(super) wait: Durations,
}

impl Counts {
    pub(super) fn new(now: Instant, types: usize) -> Self {
        Self {
            since: now,
            max_in_flight: 0,
            peak_in_flight: 0,
            max_queued: 0,
            max_busy: 0,
            received: 0,
            completed: 0,
            cancelled_queued: 0,
            cancelled_in_service: 0,
            faults: 0,
            upgrades: 0,
            connections: 0,
            busy_time: Duration::ZERO,
            integrated: now,
            late: Durations::new(),
            types: vec![TypeCounts::default(); types],
            arrivals: Vec::new(),
        }
    }

    /// Adds the workers' time in use since the last call. Must run before `busy` changes.
    pub(super) fn integrate(&mut self, now: Instant, busy: usize) {
        let busy = u32::try_from(busy).unwrap_or(u32::MAX);
        self.busy_time += now.saturating_duration_since(self.integrated) * busy;
        self.integrated = now;
    }

    /// Returns the counts to show. [`integrate`](Self::integrate) must run first.
    pub(super) fn report<'a>(
        &self,
        workers: usize,
        queued: usize,
        busy: usize,
        prefixes: impl Iterator<Item = &'a str>,
    ) -> BackendStats {
        let to_ms = |time: Duration| time.as_secs_f64() * 1_000.0;
        let elapsed_ms = to_ms(self.integrated.saturating_duration_since(self.since));
        let (busy_ms, capacity_ms) = (to_ms(self.busy_time), elapsed_ms * workers as f64);
        let type_stats = |counts: &TypeCounts| TypeStats {
            received: counts.received,
            service_ms: counts.service.summary(),
            wait_ms: counts.wait.summary(),
        };
        BackendStats {
            workers,
            in_flight: queued + busy,
            queued,
            busy,
            max_in_flight: self.max_in_flight,
            max_queued: self.max_queued,
            max_busy: self.max_busy,
            received: self.received,
            completed: self.completed,
            cancelled_queued: self.cancelled_queued,
            cancelled_in_service: self.cancelled_in_service,
            faults: self.faults,
            upgrades: self.upgrades,
            connections: self.connections,
            elapsed_ms,
            busy_ms,
            utilization: if capacity_ms > 0.0 {
                busy_ms / capacity_ms
            } else {
                0.0
            },
            late_ms: self.late.summary(),
            types: prefixes
                .zip(&self.types)
                .map(|(p, c)| (p.to_owned(), type_stats(c)))
                .collect(),
        }
    }

    /// Updates the maxima. Must run after `queued` or `busy` changed.
    pub(super) fn observe(&mut self, queued: usize, busy: usize) {
        self.max_in_flight = self.max_in_flight.max(queued + busy);
        self.peak_in_flight = self.peak_in_flight.max(queued + busy);
        self.max_queued = self.max_queued.max(queued);
        self.max_busy = self.max_busy.max(busy);
    }
}
