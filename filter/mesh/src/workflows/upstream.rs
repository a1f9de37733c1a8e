//! The split of an announced rate among the callers, in proportion to their demands (Wisp §4.1.1).
//!
//! The demand, min(σ, λ), is split in proportion to the measured demand of each process. The unused
//! rest of σ is split evenly, so that all processes have the same room to grow:
//!
//! ```text
//! σᵢ = min(σ, λ) · ((1 − ε) · dᵢ / Σd + ε / n) + max(0, σ − λ) / n        Σ σᵢ = σ
//! ```
//!
//! A purely proportional split would keep a throttled process at its previous share. The demand of
//! a process is measured after its own limiter has limited it. So any split would reproduce itself,
//! and a new process would stay at 0. Because the part ε is split evenly, the shares of backlogged
//! processes converge.
//!
//! An unknown process gets σ / (n + 1) until the next interval. Requests that name no process count
//! as one process, [`super::ProcessId::UNKNOWN`], because clients that don't use rates are a part
//! of the demand, too.
//!
//! Memory is bounded to [`PER_WORKFLOW`] processes of a workflow and [`TOTAL`] pairs in all (see
//! [`super::pairs`]). Processes beyond these bounds get the rate of unknown processes.

use std::time::Duration;

use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use super::estimates::{is_amount, keep_requests};
use super::measurements::CallerKey;
use super::pairs::{Pair, Pairs};
use super::{ProcessId, WorkflowId};

/// The maximum number of processes of one workflow.
pub(crate) const PER_WORKFLOW: usize = 1024;
/// The maximum number of pairs of a workflow and a process.
pub(crate) const TOTAL: usize = 8192;
/// ε, the ratio of the demand that is split evenly.
pub(crate) const EVEN: f64 = 0.05;
/// The time without requests after which a process gets no share.
pub(crate) const SILENT: Duration = Duration::from_secs(10);

/// A process that sends requests of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Caller {
    pub(super) key: CallerKey,
    /// The moving sum of requests that the process sent.
    pub(super) sent: f64,
    /// The time at which the last request was counted.
    pub(super) last: Instant,
    /// The rate at which the process may send, requests/s.
    pub(super) rate: f64,
}

impl Pair for Caller {
    type Key = CallerKey;
    const PER_WORKFLOW: usize = PER_WORKFLOW;
    const TOTAL: usize = TOTAL;

    fn new(key: CallerKey, now: Instant) -> Self {
        Self {
            key,
            sent: 0.0,
            last: now,
            rate: f64::INFINITY,
        }
    }

    fn key(&self) -> CallerKey {
        self.key
    }

    fn workflow(key: CallerKey) -> WorkflowId {
        key.0
    }

    fn last_seen(&self) -> Option<Instant> {
        Some(self.last)
    }

    fn is_valid(&self) -> bool {
        is_amount(self.sent) && self.rate >= 0.0
    }
}

/// The upstream processes, in ascending order of workflow and process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Upstream {
    pub(super) entries: Pairs<Caller>,
}

impl Upstream {
    /// Begins an interval. Multiplies the counts of earlier intervals by `keep`, and drops silent
    /// processes.
    pub(crate) fn decay(&mut self, keep: f64, now: Instant) {
        self.entries.begin();
        self.entries.retain(|e| now.since(e.last) <= SILENT);
        for processes in self
            .entries
            .chunk_by_mut(|one, other| one.key.0 == other.key.0)
        {
            let sent = processes.iter().map(|entry| entry.sent).sum();
            let keep = keep_requests(keep, sent);
            for entry in processes {
                entry.sent *= keep;
            }
        }
    }

    /// Counts requests that a process sent.
    pub(crate) fn sent(&mut self, key: CallerKey, count: u64, now: Instant) {
        if count == 0 {
            return;
        }
        if let Some(entry) = self.entries.entry(key, now) {
            entry.sent += count as f64;
            entry.last = now;
        }
    }

    /// Splits `rate` (σ, requests/s) of a workflow whose arrival rate is `demand` (λ, requests/s)
    /// among its callers.
    pub(crate) fn split(&mut self, workflow: WorkflowId, rate: f64, demand: f64) {
        let range = self.entries.range(workflow);
        let processes = &mut self.entries[range];
        let count = processes.len() as f64;
        let sent: f64 = processes.iter().map(|entry| entry.sent).sum();
        let asked = rate.min(demand.max(0.0));
        let free = if rate > asked { rate - asked } else { 0.0 };
        for entry in processes {
            let part = if sent > 0.0 {
                entry.sent / sent
            } else {
                1.0 / count
            };
            entry.rate = asked * ((1.0 - EVEN) * part + EVEN / count) + free / count;
        }
    }

    /// Returns the rate at which an unknown process may send requests of a workflow with rate
    /// `rate`, requests/s.
    pub(crate) fn newcomer(&self, workflow: WorkflowId, rate: f64) -> f64 {
        rate / (self.entries.range(workflow).len() + 1) as f64
    }

    /// Yields the processes and the rates at which they may send, requests/s.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkflowId, ProcessId, f64)> + '_ {
        self.entries.iter().map(|e| (e.key.0, e.key.1, e.rate))
    }

    /// Removes the entries of a workflow.
    pub(crate) fn forget(&mut self, workflow: WorkflowId) {
        self.entries.retain(|entry| entry.key.0 != workflow);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const W: WorkflowId = WorkflowId(3);

    impl Upstream {
        /// Returns the rate at which a process may send requests of a workflow with rate `rate`,
        /// requests/s.
        fn announced(&self, workflow: WorkflowId, process: ProcessId, rate: f64) -> f64 {
            let mut known = self.iter();
            let own = known.find(|(w, p, _)| (*w, *p) == (workflow, process));
            own.map_or_else(|| self.newcomer(workflow, rate), |(_, _, rate)| rate)
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(1_000_000 + ms * 1_000_000)
    }

    #[test]
    fn in_proportion_to_demand_with_room_for_all() {
        let mut up = Upstream::default();
        let rate = |up: &Upstream, process| up.announced(W, ProcessId(process), 100.0);
        assert_eq!(rate(&up, 1), 100.0, "no other process");
        up.sent((W, ProcessId(1)), 90, at(0));
        up.sent((W, ProcessId(2)), 10, at(0));
        up.sent((WorkflowId(4), ProcessId(1)), 10, at(0));
        up.split(W, 100.0, 1_000.0);
        assert!((rate(&up, 1) - 88.0).abs() < 1e-9);
        assert!((rate(&up, 2) - 12.0).abs() < 1e-9);
        assert!((rate(&up, 3) - 100.0 / 3.0).abs() < 1e-9);
        // The demand is 20 requests/s. Both processes share the other 80 requests/s.
        up.split(W, 100.0, 20.0);
        assert!((rate(&up, 1) - 57.6).abs() < 1e-9);
        assert!((rate(&up, 2) - 42.4).abs() < 1e-9);
        up.split(W, f64::INFINITY, 20.0);
        assert_eq!(rate(&up, 1), f64::INFINITY);
        assert_eq!(up.newcomer(W, f64::INFINITY), f64::INFINITY);
    }

    /// Processes that send at their rates, up to their demands, converge to fair shares.
    #[test]
    fn throttled_processes_meet_in_the_middle() {
        let mut up = Upstream::default();
        let wanted = [1_000.0_f64, 1_000.0, 10.0];
        let mut sent = [90.0_f64, 10.0, 0.0];
        for interval in 0..2_000 {
            let now = at(interval * 100);
            up.decay(0.9, now);
            for (process, sent) in sent.iter().enumerate() {
                let count = (sent * 1_000.0).round() as u64;
                up.sent((W, ProcessId(process as u64)), count, now);
            }
            up.split(W, 100.0, sent.iter().sum());
            for (process, sent) in sent.iter_mut().enumerate() {
                *sent = up
                    .announced(W, ProcessId(process as u64), 100.0)
                    .min(wanted[process]);
            }
        }
        assert!((sent[0] - sent[1]).abs() < 1.0, "{sent:?}");
        assert!((sent[2] - 10.0).abs() < 0.5, "{sent:?}");
        assert!(sent.iter().sum::<f64>() > 98.0, "{sent:?}");
    }

    #[test]
    fn the_silent_are_forgotten_and_floods_are_bounded() {
        let mut up = Upstream::default();
        up.sent((W, ProcessId(1)), 1, at(0));
        up.sent((W, ProcessId(2)), 1, at(5_000));
        up.decay(0.9, at(10_001));
        assert_eq!(up.entries.len(), 1);
        for n in 0..5_000 {
            if n % 10 == 0 {
                up.decay(1.0, at(10_001 + n));
            }
            up.sent((W, ProcessId(n)), 1, at(10_001 + n));
        }
        assert_eq!(up.entries.len(), PER_WORKFLOW);
        for n in 0..20_000 {
            let workflow = WorkflowId((n % 100) as u16);
            if n % 10 == 0 {
                up.decay(1.0, at(20_000));
            }
            up.sent((workflow, ProcessId(n)), 1, at(20_000 + n));
            assert!(up.entries.len() <= TOTAL);
        }
        assert!(up.entries.is_sorted_by_key(|e| e.key));
        up.forget(W);
        assert!(up.entries.range(W).is_empty());
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_rate(
            sent in prop::collection::vec(0..1_000_u64, 1..100),
            rate in 0.0..1e6_f64,
            demand in 0.0..1e6_f64,
        ) {
            let mut up = Upstream::default();
            for (process, &sent) in sent.iter().enumerate() {
                up.sent((W, ProcessId(process as u64)), sent, at(0));
            }
            prop_assume!(!up.entries.is_empty());
            up.split(W, rate, demand);
            let sum: f64 = up.iter().map(|(_, _, rate)| rate).sum();
            prop_assert!((sum - rate).abs() <= 1e-9 * rate, "{} of {}", sum, rate);
            prop_assert!(up.iter().all(|(_, _, rate)| rate >= 0.0 && rate.is_finite()));
        }
    }
}
