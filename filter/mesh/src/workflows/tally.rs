//! A worker's measurements since the last time that it added them to the record of all workers
//! ([`super::record`]).
//!
//! Pairs with other processes are bounded ([`MAX_PAIRS`]). Requests and calls of further pairs
//! count for [`ProcessId::UNKNOWN`]. The rates of further pairs are dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use super::adaptation::{Calls, Heard, Measured, UpstreamDemand};
use super::{ProcessId, ServiceId, WorkflowId};

/// The maximum number of pairs of a workflow and another process that a worker counts, in each
/// direction.
pub(super) const MAX_PAIRS: usize = 4096;

/// Requests of a workflow that entered the mesh here and were served.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Entered {
    /// The number of requests.
    pub(super) requests: u64,
    /// The sum of the requests' elapsed times, including all calls below them.
    pub(super) service: Duration,
    /// The sum of the requests' work, including all calls below them.
    pub(super) work: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Measurements {
    pub(super) measured: Measured,
    pub(super) entered: Entered,
}

/// A worker's measurements since the last exchange.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The measurements by workflow.
    rows: Vec<Measurements>,
    /// The ids of the workflows with measurements.
    dirty: Vec<u16>,
    calls: HashMap<(WorkflowId, ServiceId, ProcessId), u64>,
    heard: HashMap<(WorkflowId, ServiceId, ProcessId), (f64, Instant)>,
    upstream: HashMap<(WorkflowId, ProcessId), u64>,
    /// The slot time in use.
    pub(super) busy: Duration,
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

impl Tally {
    /// Returns the row of a workflow, to which the caller may add measurements.
    pub(super) fn row(&mut self, workflow: WorkflowId) -> &mut Measurements {
        let at = usize::from(workflow.0);
        if at >= self.rows.len() {
            self.rows.resize(at + 1, Measurements::default());
        }
        let row = &mut self.rows[at];
        if *row == Measurements::default() {
            row.measured.workflow = workflow;
            self.dirty.push(workflow.0);
        }
        row
    }

    pub(super) fn called(
        &mut self,
        workflow: WorkflowId,
        service: ServiceId,
        process: ProcessId,
        n: u64,
    ) {
        let unknown = (workflow, service, ProcessId::UNKNOWN);
        count(&mut self.calls, (workflow, service, process), unknown, n);
    }

    pub(super) fn heard(&mut self, heard: &Heard) {
        let key = (heard.workflow, heard.service, heard.process);
        let full = self.heard.len() >= MAX_PAIRS;
        if full && !self.heard.contains_key(&key) {
            return;
        }
        let latest = self.heard.entry(key).or_insert((heard.rate, heard.at));
        if heard.at >= latest.1 {
            *latest = (heard.rate, heard.at);
        }
    }

    pub(super) fn arrived(&mut self, workflow: WorkflowId, upstream: ProcessId, n: u64) {
        let unknown = (workflow, ProcessId::UNKNOWN);
        count(&mut self.upstream, (workflow, upstream), unknown, n);
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Measurements> {
        let at = |&id: &u16| self.rows.get(usize::from(id));
        self.dirty.iter().filter_map(at)
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = Calls> {
        self.calls
            .iter()
            .map(|(&(workflow, service, process), &count)| Calls {
                workflow,
                service,
                process,
                count,
            })
    }

    pub(super) fn rates(&self) -> impl Iterator<Item = Heard> {
        self.heard
            .iter()
            .map(|(&(workflow, service, process), &(rate, at))| Heard {
                workflow,
                service,
                process,
                rate,
                at,
            })
    }

    pub(super) fn upstream(&self) -> impl Iterator<Item = UpstreamDemand> {
        self.upstream
            .iter()
            .map(|(&(workflow, process), &offered)| UpstreamDemand {
                workflow,
                process,
                offered,
            })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dirty.is_empty()
            && self.calls.is_empty()
            && self.heard.is_empty()
            && self.upstream.is_empty()
            && self.busy.is_zero()
    }

    pub(super) fn clear(&mut self) {
        for id in self.dirty.drain(..) {
            if let Some(row) = self.rows.get_mut(usize::from(id)) {
                *row = Measurements::default();
            }
        }
        self.calls.clear();
        self.heard.clear();
        self.upstream.clear();
        self.busy = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkflowId = WorkflowId(7);

    #[test]
    fn pairs_are_bounded_and_none_is_lost() {
        let mut tally = Tally::default();
        for n in 1..=2 * MAX_PAIRS as u64 {
            tally.arrived(W, ProcessId(n), 1);
            tally.called(W, ServiceId(1), ProcessId(n), 1);
        }
        assert!(tally.upstream().count() <= MAX_PAIRS + 1);
        let sum: u64 = tally.upstream().map(|d| d.offered).sum();
        assert_eq!(sum, 2 * MAX_PAIRS as u64);
        let sum: u64 = tally.calls().map(|c| c.count).sum();
        assert_eq!(sum, 2 * MAX_PAIRS as u64);
    }
}
