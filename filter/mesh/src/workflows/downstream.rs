//! The downstream processes of a process, with the number of calls to each and the rate that it
//! announced.
//!
//! These formulas hold for each workflow, service and process (Wisp Alg. 1, lines 2 to 5):
//!
//! ```text
//! α = calls / requests completed       σ_d ← GetRates(d) / α
//! limit = min over services D of Q(σ_d (d ∈ D), q)
//! ```
//!
//! Calls are the answered calls of the application. Envoy's own retries happen behind the filter
//! and aren't counted.
//!
//! A rate that isn't renewed expires after its time to live. So a process that has ended, or a path
//! that loses announcements, limits no workflow. The local limits remain. A sender with a rate of
//! one request in ten seconds gets an announcement at most once in ten seconds. So a low rate is
//! valid for the time of [`RENEWALS`] requests, up to [`LONGEST`] times the configured time to
//! live.
//!
//! A process that was called recently and announces no rate counts as unlimited, because it may not
//! run Headgate. A process that was not called for the time to live is ignored. The exception is a
//! service of which another process announced a rate so low that the rate is valid for longer than
//! the time to live.
//!
//! An answer names no process if it was lost or the process doesn't run Headgate. Calls with such
//! an answer count for the service. They are attributed to the known processes in proportion to
//! their known calls.
//!
//! Memory is bounded to [`PER_WORKFLOW`] processes of a workflow and [`TOTAL`] pairs in all (see
//! [`super::pairs`]). A pair beyond these bounds is skipped, and tried again when the pair is next
//! seen.

use std::time::Duration;

use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use super::estimates::is_amount;
use super::measurements::CalleeKey;
use super::pairs::{Pair, Pairs};
use super::quantile::quantile;
use super::{ProcessId, ServiceId, WorkflowId};

/// The maximum number of processes of one workflow.
pub(crate) const PER_WORKFLOW: usize = 256;
/// The maximum number of pairs of a workflow and a process.
pub(crate) const TOTAL: usize = 8192;
/// The number of requests at an announced rate that may pass before the rate expires.
pub(crate) const RENEWALS: f64 = 4.0;
/// The longest validity of a low rate, as a multiple of the time to live.
pub(crate) const LONGEST: u32 = 10;
/// The time without a call or an announced rate after which a process is removed.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// The moving sum of calls up to which a process counts as not called.
const NO_CALLS: f64 = 1e-6;

/// A process that requests of a workflow call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Callee {
    pub(super) key: CalleeKey,
    /// The moving sum of answered calls, over the same window as the sum of completed requests.
    pub(super) calls: f64,
    /// The time at which the last call was counted.
    pub(super) called: Option<Instant>,
    /// The rate that the process announced to this process, requests/s, and the time of the
    /// announcement. The rate is infinite without a limit.
    pub(super) heard: Option<(f64, Instant)>,
}

impl Pair for Callee {
    type Key = CalleeKey;
    const PER_WORKFLOW: usize = PER_WORKFLOW;
    const TOTAL: usize = TOTAL;

    fn new(key: CalleeKey, _now: Instant) -> Self {
        Self {
            key,
            calls: 0.0,
            called: None,
            heard: None,
        }
    }

    fn key(&self) -> CalleeKey {
        self.key
    }

    fn workflow(key: CalleeKey) -> WorkflowId {
        key.0
    }

    fn last_seen(&self) -> Option<Instant> {
        self.called.max(self.heard.map(|(_, at)| at))
    }

    fn is_valid(&self) -> bool {
        is_amount(self.calls) && self.heard.is_none_or(|(rate, _)| rate >= 0.0)
    }
}

/// The downstream processes, in ascending order of workflow, service and process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Downstream {
    pub(super) entries: Pairs<Callee>,
    /// A buffer for the rates of one service.
    #[serde(skip)]
    rates: Vec<f64>,
}

/// The limit that a workflow's downstream services set. It is the smallest Q.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limit {
    /// The rate of the workflow in this process, requests/s.
    pub(crate) rate: f64,
    /// The service that limits.
    pub(crate) service: ServiceId,
}

impl Downstream {
    /// Counts calls. Use this function after [`Downstream::decay`].
    pub(crate) fn called(&mut self, key: CalleeKey, count: u64, now: Instant) {
        if count == 0 {
            return;
        }
        if let Some(entry) = self.entries.entry(key, now) {
            entry.calls += count as f64;
            entry.called = Some(now);
        }
    }

    /// Records an announced rate. The rate is ignored if it is invalid or older than the known
    /// rate.
    pub(crate) fn heard(&mut self, key: CalleeKey, rate: f64, at: Instant) {
        if rate.is_nan() || rate < 0.0 || key.2 == ProcessId::UNKNOWN {
            return;
        }
        if let Some(entry) = self.entries.entry(key, at)
            && entry.heard.is_none_or(|(_, known)| known <= at)
        {
            entry.heard = Some((rate, at));
        }
    }

    /// Begins an interval, and multiplies the calls of earlier intervals by `keep(workflow)`.
    pub(crate) fn decay(&mut self, keep: impl Fn(WorkflowId) -> f64) {
        self.entries.begin();
        for entry in self.entries.iter_mut() {
            entry.calls *= keep(entry.key.0);
        }
    }

    /// Drops expired rates, and processes without a rate that have not been called for long.
    /// Returns the number of expired rates.
    pub(crate) fn expire(&mut self, now: Instant, ttl: Duration) -> u64 {
        let mut expired = 0;
        for entry in self.entries.iter_mut() {
            if let Some((rate, at)) = entry.heard
                && now.since(at) > lifetime(rate, ttl)
            {
                entry.heard = None;
                expired += 1;
            }
        }
        self.entries.retain(|entry| {
            entry.heard.is_some()
                || entry
                    .called
                    .is_some_and(|at| now.since(at) <= FORGOTTEN.max(ttl))
        });
        expired
    }

    /// Removes the pairs of a workflow.
    pub(crate) fn forget(&mut self, workflow: WorkflowId) {
        self.entries.retain(|entry| entry.key.0 != workflow);
    }

    /// Removes the pairs of a service.
    pub(crate) fn forget_service(&mut self, service: ServiceId) {
        self.entries.retain(|entry| entry.key.1 != service);
    }

    /// Whether requests of the workflow have made no calls.
    pub(crate) fn is_leaf(&self, workflow: WorkflowId) -> bool {
        self.of(workflow)
            .iter()
            .all(|entry| entry.calls <= NO_CALLS)
    }

    /// Returns the smallest Q of the services that requests of `workflow` call (lines 2 to 5).
    /// `completed` is the moving sum of completed requests. `None` if no service has a known limit.
    pub(crate) fn limit(
        &mut self,
        workflow: WorkflowId,
        completed: f64,
        q: impl Fn(ServiceId) -> f64,
        now: Instant,
        ttl: Duration,
    ) -> Option<Limit> {
        if completed <= 0.0 {
            return None;
        }
        let mut rates = std::mem::take(&mut self.rates);
        let mut least: Option<Limit> = None;
        // Line 2 begins here: for all downstream services.
        for processes in self
            .of(workflow)
            .chunk_by(|one, other| one.key.1 == other.key.1)
        {
            let service = processes[0].key.1;
            let named = |entry: &&Callee| entry.key.2 != ProcessId::UNKNOWN;
            let all: f64 = processes.iter().map(|entry| entry.calls).sum();
            let known: f64 = processes.iter().filter(named).map(|e| e.calls).sum();
            // A low rate makes calls rare, and announcements come only with answers. So while a low
            // rate is in force, a process whose rate has expired counts as unlimited for longer.
            // Otherwise the low rate would be the only rate left, and every quantile would equal
            // the low rate.
            let lasts = |(rate, _): (f64, Instant)| lifetime(rate, ttl) > ttl;
            let lasting = processes.iter().filter_map(|p| p.heard).any(lasts);
            let there = if lasting { ttl * LONGEST } else { ttl };
            rates.clear();
            // Line 3 begins here: for all processes of the service.
            for process in processes.iter().filter(named) {
                if process.calls <= NO_CALLS {
                    continue;
                }
                if let Some((rate, _)) = process.heard {
                    // Line 4 divides by α, which includes this process's part of the calls whose
                    // answers named no process.
                    let amplification = process.calls * (all / known) / completed;
                    rates.push(rate / amplification);
                } else if process.called.is_some_and(|at| now.since(at) <= there) {
                    rates.push(f64::INFINITY);
                }
            }
            // Line 5 takes the quantile.
            if let Some(rate) = quantile(&mut rates, q(service))
                && rate.is_finite()
                && least.is_none_or(|least| rate < least.rate)
            {
                least = Some(Limit { rate, service });
            }
        }
        self.rates = rates;
        least
    }

    fn of(&self, workflow: WorkflowId) -> &[Callee] {
        &self.entries[self.entries.range(workflow)]
    }
}

/// Returns the time for which a rate is valid without renewal.
fn lifetime(rate: f64, ttl: Duration) -> Duration {
    let longest = ttl * LONGEST;
    let renewals = RENEWALS / rate.max(f64::MIN_POSITIVE);
    Duration::try_from_secs_f64(renewals)
        .unwrap_or(longest)
        .clamp(ttl, longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflows::pairs::EVICTIONS;

    const TTL: Duration = Duration::from_secs(1);
    const W: WorkflowId = WorkflowId(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1_000_000 + ms * 1_000_000)
    }

    fn key(service: u16, process: u64) -> CalleeKey {
        (W, ServiceId(service), ProcessId(process))
    }

    fn limit(downstream: &mut Downstream, q: f64, now: Instant) -> Option<Limit> {
        downstream.expire(now, TTL);
        downstream.limit(W, 100.0, |_| q, now, TTL)
    }

    fn limited(rate: f64, service: u16) -> Option<Limit> {
        Some(Limit {
            rate,
            service: ServiceId(service),
        })
    }

    #[test]
    fn rates_by_amplification_quantile_and_service() {
        let mut down = Downstream::default();
        assert!(down.is_leaf(W));
        assert_eq!(limit(&mut down, 0.0, at(0)), None);
        for (process, calls, rate) in [(1, 100, 300.0), (2, 200, 400.0), (3, 50, 300.0)] {
            down.called(key(1, process), calls, at(0));
            down.heard(key(1, process), rate, at(0));
        }
        assert!(!down.is_leaf(W));
        // σ/α is 300, 200 and 600.
        assert_eq!(limit(&mut down, 0.0, at(0)), limited(200.0, 1));
        assert_eq!(limit(&mut down, 0.5, at(0)), limited(300.0, 1));
        assert_eq!(limit(&mut down, 1.0, at(0)), limited(600.0, 1));
        down.called(key(2, 9), 1_000, at(0));
        assert_eq!(limit(&mut down, 0.0, at(0)), limited(200.0, 1));
        down.heard(key(2, 9), 1_500.0, at(0));
        assert_eq!(limit(&mut down, 0.0, at(0)), limited(150.0, 2));
        // A process that was never called doesn't limit the workflow. An invalid rate doesn't
        // either.
        down.heard(key(3, 1), 1.0, at(0));
        down.heard(key(2, 9), -1.0, at(0));
        down.heard(key(2, 9), f64::NAN, at(0));
        assert_eq!(limit(&mut down, 0.0, at(0)), limited(150.0, 2));
        // Other workflows don't count.
        assert_eq!(down.limit(WorkflowId(0), 100.0, |_| 0.0, at(0), TTL), None);
        assert_eq!(down.limit(WorkflowId(2), 100.0, |_| 0.0, at(0), TTL), None);
    }

    #[test]
    fn rates_run_out_and_processes_vanish() {
        let mut down = Downstream::default();
        down.called(key(1, 1), 100, at(0));
        down.called(key(1, 2), 100, at(0));
        down.heard(key(1, 1), 100.0, at(0));
        down.heard(key(1, 2), 200.0, at(0));
        assert_eq!(limit(&mut down, 1.0, at(1_000)), limited(200.0, 1));
        // The second process is called and announces no further rate, so it has no known limit.
        down.called(key(1, 1), 100, at(1_500));
        down.called(key(1, 2), 100, at(1_500));
        down.heard(key(1, 1), 100.0, at(1_500));
        assert_eq!(down.expire(at(1_500), TTL), 1);
        assert_eq!(down.expire(at(1_500), TTL), 0);
        assert_eq!(limit(&mut down, 1.0, at(1_500)), None);
        assert_eq!(limit(&mut down, 0.0, at(1_500)), limited(50.0, 1));
        // The second process is no longer called, so it is ignored.
        down.called(key(1, 1), 100, at(2_600));
        down.heard(key(1, 1), 150.0, at(2_600));
        assert_eq!(limit(&mut down, 1.0, at(2_600)), limited(50.0, 1));
        // An announcement that is older than the known one is ignored.
        down.heard(key(1, 1), 1.0, at(2_500));
        assert_eq!(limit(&mut down, 1.0, at(2_600)), limited(50.0, 1));
        assert_eq!(limit(&mut down, 1.0, at(3_700)), None);
        assert_eq!(down.entries.len(), 2);
        assert_eq!(limit(&mut down, 1.0, at(120_000)), None);
        assert!(down.entries.is_empty());
    }

    #[test]
    fn low_rates_live_until_they_can_have_been_renewed() {
        assert_eq!(lifetime(100.0, TTL), TTL);
        assert_eq!(lifetime(1.0, TTL), TTL * 4);
        assert_eq!(lifetime(0.01, TTL), TTL * 10);
        assert_eq!(lifetime(0.0, TTL), TTL * 10);
        assert_eq!(lifetime(f64::INFINITY, TTL), TTL);
    }

    #[test]
    fn a_low_rate_that_outlives_the_others_does_not_outvote_them() {
        let mut down = Downstream::default();
        for (process, rate) in [(1, 0.01), (2, 50.0), (3, 60.0)] {
            down.called(key(1, process), 100, at(0));
            down.heard(key(1, process), rate, at(0));
        }
        assert_eq!(limit(&mut down, 0.5, at(0)), limited(50.0, 1));
        // No calls are made for a while.
        assert_eq!(limit(&mut down, 0.5, at(3_000)), None);
        assert_eq!(limit(&mut down, 0.0, at(3_000)), limited(0.01, 1));
    }

    #[test]
    fn a_low_rate_that_is_heard_first_does_not_outvote_the_others() {
        let mut down = Downstream::default();
        for (process, rate) in [(1, 0.01), (2, 50.0), (3, 60.0)] {
            down.called(key(1, process), 100, at(0));
            down.heard(key(1, process), rate, at(0));
        }
        assert_eq!(limit(&mut down, 0.5, at(0)), limited(50.0, 1));
        // No calls are made for a while. A call to the first process is then answered before calls
        // to the others.
        assert_eq!(limit(&mut down, 0.5, at(12_000)), None);
        for (process, seen) in [(2, 13_000), (3, 13_000), (1, 14_500)] {
            down.called(key(1, process), 10, at(seen));
        }
        down.heard(key(1, 1), 0.01, at(14_500));
        assert_eq!(limit(&mut down, 0.5, at(14_500)), None);
        assert!(limit(&mut down, 0.0, at(14_500)).is_some());
    }

    #[test]
    fn unanswered_calls_count_for_known_processes() {
        let mut down = Downstream::default();
        down.called(key(1, 1), 90, at(0));
        down.called((W, ServiceId(1), ProcessId::UNKNOWN), 10, at(0));
        down.heard(key(1, 1), 50.0, at(0));
        assert_eq!(limit(&mut down, 0.5, at(0)), limited(50.0, 1));
        // The answers of the second service name no process, as at a hop without Headgate.
        down.called((W, ServiceId(2), ProcessId::UNKNOWN), 1_000, at(0));
        assert_eq!(limit(&mut down, 0.5, at(0)), limited(50.0, 1));
    }

    #[test]
    fn processes_are_bounded_and_the_longest_silent_one_is_dropped() {
        let mut down = Downstream::default();
        for n in 0..10_000 {
            if n % 10 == 0 {
                down.decay(|_| 1.0);
            }
            down.called(key((n % 7) as u16, n + 1), 1, at(n));
            down.heard(key((n % 7) as u16, n + 1), 5.0, at(n));
        }
        assert_eq!(down.entries.len(), PER_WORKFLOW);
        let oldest = down.entries.iter().map(|e| e.called).min().unwrap();
        assert_eq!(oldest, Some(at(10_000 - PER_WORKFLOW as u64)));
        for n in 0..20_000_u64 {
            if n % 10 == 0 {
                down.decay(|_| 1.0);
            }
            let workflow = WorkflowId((n % 500) as u16);
            down.called((workflow, ServiceId(0), ProcessId(n)), 1, at(20_000 + n));
            assert!(down.entries.len() <= TOTAL);
        }
        // In one interval, new processes evict at most `EVICTIONS` others, and none that was last
        // seen at the same instant.
        let flood = |down: &mut Downstream, ms: u64, begin: u64| {
            let before: Vec<CalleeKey> = down.entries.iter().map(|e| e.key).collect();
            down.decay(|_| 1.0);
            for n in begin..begin + 1_000 {
                down.called((W, ServiceId(0), ProcessId(n)), 1, at(ms));
            }
            before
                .iter()
                .filter(|key| down.entries.binary_search_by(|e| e.key.cmp(key)).is_err())
                .count()
        };
        assert_eq!(flood(&mut down, 50_000, 1 << 32), EVICTIONS as usize);
        for _ in 0..40 {
            flood(&mut down, 50_000, 1 << 32);
        }
        assert_eq!(down.of(W).len(), PER_WORKFLOW);
        assert_eq!(flood(&mut down, 50_000, 1 << 33), 0);
        assert!(down.entries.is_sorted_by_key(|e| e.key));
        down.forget_service(ServiceId(0));
        down.forget(W);
        assert!(down.entries.is_empty());
    }
}
