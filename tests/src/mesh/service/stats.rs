//! The counts of a service, with which tests compare the stats of proxies and clients.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::plan::ServiceConfig;
use crate::backend::BackendStats;

/// The largest number of workflows that are counted by name.
const MAX_WORKFLOWS: usize = 100;
/// The name under which all other workflows are counted.
const OTHER: &str = "_other";

/// The counts of a service process since its start or the last reset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceStats {
    /// The name of the process.
    pub process: String,
    /// The time in which the requests were counted, s.
    pub seconds: f64,
    /// Requests by path of the operation.
    pub operations: BTreeMap<String, OperationStats>,
    /// Requests by workflow. `_other` has those of all workflows beyond a hundred, and an empty
    /// name has those without a workflow.
    pub workflows: BTreeMap<String, OperationStats>,
    /// Calls by service.
    pub calls: BTreeMap<String, CallStats>,
    /// The number of threads in use, if threads are limited.
    pub threads_busy: Option<usize>,
    /// The counts of the workers.
    pub workers: BackendStats,
}

impl ServiceStats {
    /// Returns the requests received per second.
    pub fn received_rps(&self) -> f64 {
        self.rps(self.operations.values().map(|o| o.received).sum())
    }

    /// Returns the requests of one workflow received per second.
    pub fn workflow_rps(&self, workflow: &str) -> f64 {
        self.rps(self.workflows.get(workflow).map_or(0, |w| w.received))
    }

    fn rps(&self, count: u64) -> f64 {
        if self.seconds > 0.0 {
            count as f64 / self.seconds
        } else {
            0.0
        }
    }
}

/// The outcomes of some requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OperationStats {
    /// The number of requests received.
    pub received: u64,
    /// The number of requests that were answered with 200.
    pub completed: u64,
    /// The number of requests that failed because a call failed.
    pub failed: u64,
    /// The number of all requests whose caller left before the answer. They are wasted work.
    pub abandoned: u64,
}

/// The outcomes of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CallStats {
    /// The number of calls sent.
    pub sent: u64,
    /// The number of calls that were answered with 2xx.
    pub ok: u64,
    /// The number of calls that Headgate refused, on either side.
    pub refused: u64,
    /// The number of calls with another answer, or without an answer.
    pub failed: u64,
    /// The number of calls that timed out.
    pub timed_out: u64,
}

/// The outcome of a request or of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Ok,
    Refused,
    Failed,
    TimedOut,
}

/// The counts since the start or the last reset.
#[derive(Debug)]
pub(super) struct Tally {
    since: Instant,
    operations: BTreeMap<String, OperationStats>,
    workflows: BTreeMap<String, OperationStats>,
    calls: BTreeMap<String, CallStats>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            operations: BTreeMap::new(),
            workflows: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }
}

impl Tally {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Updates the counts of a request's operation and of its workflow.
    pub(super) fn request(
        &mut self,
        operation: &str,
        workflow: &str,
        change: impl Fn(&mut OperationStats),
    ) {
        change(self.operations.entry(operation.to_owned()).or_default());
        let known = self.workflows.len() < MAX_WORKFLOWS || self.workflows.contains_key(workflow);
        let name = if known { workflow } else { OTHER };
        change(self.workflows.entry(name.to_owned()).or_default());
    }

    /// Counts a call that ended.
    pub(super) fn call(&mut self, service: &str, end: End) {
        let counts = self.calls.entry(service.to_owned()).or_default();
        counts.sent += 1;
        match end {
            End::Ok => counts.ok += 1,
            End::Refused => counts.refused += 1,
            End::Failed => counts.failed += 1,
            End::TimedOut => counts.timed_out += 1,
        }
    }

    pub(super) fn report(
        &self,
        config: &ServiceConfig,
        workers: BackendStats,
        threads_busy: Option<usize>,
    ) -> ServiceStats {
        ServiceStats {
            process: config.process.clone(),
            seconds: self.since.elapsed().as_secs_f64(),
            operations: self.operations.clone(),
            workflows: self.workflows.clone(),
            calls: self.calls.clone(),
            threads_busy,
            workers,
        }
    }
}
