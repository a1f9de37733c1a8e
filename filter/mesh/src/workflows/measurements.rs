//! The measurements of a process's workflows. Each worker collects its own. Once an interval, the
//! worker adds them to those in the record of all workers ([`super::record`]), on which Algorithm 1
//! runs.
//!
//! Pairs with other processes are bounded ([`MAX_PAIRS`]). Requests and calls of further pairs
//! count for [`ProcessId::UNKNOWN`]. The rates of further pairs are dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use headgate_core::config::MAX_WORKFLOWS;
use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use super::{ProcessId, ServiceId, WorkflowId};

/// The maximum number of pairs of a workflow and another process, in each direction.
pub(super) const MAX_PAIRS: usize = 4096;

/// A workflow, and a process that its requests call, with the service of the process.
pub type CalleeKey = (WorkflowId, ServiceId, ProcessId);
/// A workflow, and a process that sends its requests.
pub type CallerKey = (WorkflowId, ProcessId);

/// The measurements of one workflow.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The number of requests that arrived, including refused ones.
    pub offered: u64,
    /// The number of requests that ended after holding a slot, with or without an answer.
    pub completed: u64,
    /// The sum of the service times of these requests.
    pub service: Duration,
    /// The number of these requests whose use of the second resource is known.
    pub reported: u64,
    /// The sum of that use, in the resource's units.
    pub resource: f64,
    /// The number of completed requests that were answered.
    pub answered: u64,
    /// The sum of the times from admission by the rate limiter to the end, over answered requests.
    pub completion: Duration,
    /// The number of answered requests that entered the mesh here.
    pub entered: u64,
    /// The sum of the elapsed times of requests that entered here, including all calls below them.
    pub elapsed: Duration,
    /// The sum of the work of requests that entered here, including all calls below them.
    pub work: Duration,
}

impl Measured {
    /// Marks the workflow as used.
    pub(super) fn touch(&mut self) {
        // Without `entered`, the sum has no other effect.
        self.work = self.work.max(Duration::from_nanos(1));
    }

    fn add(&mut self, more: &Self) {
        self.offered = self.offered.saturating_add(more.offered);
        self.completed = self.completed.saturating_add(more.completed);
        self.service = self.service.saturating_add(more.service);
        self.reported = self.reported.saturating_add(more.reported);
        self.resource += more.resource;
        self.answered = self.answered.saturating_add(more.answered);
        self.completion = self.completion.saturating_add(more.completion);
        self.entered = self.entered.saturating_add(more.entered);
        self.elapsed = self.elapsed.saturating_add(more.elapsed);
        self.work = self.work.saturating_add(more.work);
    }
}

/// The measurements of all workflows.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Measurements {
    /// The slot time in use.
    pub busy: Duration,
    /// The measurements by workflow id.
    pub(super) workflows: Vec<Measured>,
    /// The numbers of calls to downstream processes. [`ProcessId::UNKNOWN`] is the process of calls
    /// whose answer named none.
    pub(super) calls: HashMap<CalleeKey, u64>,
    /// The rates that downstream processes announced, requests/s, and the times of the
    /// announcements. A rate is infinite without a limit.
    pub(super) heard: HashMap<CalleeKey, (f64, Instant)>,
    /// The numbers of arrivals from upstream processes, including refused requests. Requests that
    /// name no process count for [`ProcessId::UNKNOWN`].
    pub(super) arrivals: HashMap<CallerKey, u64>,
}

/// Adds `n` to the sum of `key`. If `key` is new and the map is full, adds `n` to the sum of
/// `otherwise`.
fn count<K: Eq + Hash>(sums: &mut HashMap<K, u64>, key: K, otherwise: K, n: u64) {
    let full = sums.len() >= MAX_PAIRS;
    let key = if full && !sums.contains_key(&key) {
        otherwise
    } else {
        key
    };
    let sum = sums.entry(key).or_default();
    *sum = sum.saturating_add(n);
}

impl Measurements {
    /// Returns the measurements of a workflow, to which the caller may add. An id beyond the
    /// maximum counts for the workflow [`OTHER`](super::OTHER).
    pub fn workflow(&mut self, workflow: WorkflowId) -> &mut Measured {
        let known = workflow.0 <= MAX_WORKFLOWS;
        let at = usize::from(if known { workflow.0 } else { 0 });
        if at >= self.workflows.len() {
            self.workflows.resize(at + 1, Measured::default());
        }
        &mut self.workflows[at]
    }

    /// Counts `n` answered calls.
    pub fn called(&mut self, callee: CalleeKey, n: u64) {
        let unknown = (callee.0, callee.1, ProcessId::UNKNOWN);
        count(&mut self.calls, callee, unknown, n);
    }

    /// Records a rate that `callee` announced at the time `at`, requests/s. Of several rates, the
    /// latest counts.
    pub fn heard(&mut self, callee: CalleeKey, rate: f64, at: Instant) {
        if self.heard.len() >= MAX_PAIRS && !self.heard.contains_key(&callee) {
            return;
        }
        let latest = self.heard.entry(callee).or_insert((rate, at));
        if at >= latest.1 {
            *latest = (rate, at);
        }
    }

    /// Counts `n` arrivals.
    pub fn arrived(&mut self, caller: CallerKey, n: u64) {
        let unknown = (caller.0, ProcessId::UNKNOWN);
        count(&mut self.arrivals, caller, unknown, n);
    }

    /// Adds the measurements of a worker.
    pub(super) fn add(&mut self, more: &Self) {
        self.busy = self.busy.saturating_add(more.busy);
        let workflows = self.workflows.len().max(more.workflows.len());
        self.workflows.resize(workflows, Measured::default());
        for (sum, more) in self.workflows.iter_mut().zip(&more.workflows) {
            sum.add(more);
        }
        for (&key, &n) in &more.calls {
            self.called(key, n);
        }
        for (&key, &(rate, at)) in &more.heard {
            self.heard(key, rate, at);
        }
        for (&key, &n) in &more.arrivals {
            self.arrived(key, n);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.workflows.is_empty()
            && self.calls.is_empty()
            && self.heard.is_empty()
            && self.arrivals.is_empty()
            && self.busy.is_zero()
    }

    /// Removes all measurements, and keeps the memory.
    pub fn clear(&mut self) {
        self.busy = Duration::ZERO;
        self.workflows.clear();
        self.calls.clear();
        self.heard.clear();
        self.arrivals.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkflowId = WorkflowId(7);

    #[test]
    fn pairs_are_bounded_and_none_is_lost() {
        let mut measured = Measurements::default();
        for n in 1..=2 * MAX_PAIRS as u64 {
            measured.arrived((W, ProcessId(n)), 1);
            measured.called((W, ServiceId(1), ProcessId(n)), 1);
        }
        assert!(measured.arrivals.len() <= MAX_PAIRS + 1);
        let sum: u64 = measured.arrivals.values().sum();
        assert_eq!(sum, 2 * MAX_PAIRS as u64);
        let sum: u64 = measured.calls.values().sum();
        assert_eq!(sum, 2 * MAX_PAIRS as u64);
    }
}
