//! The results of a run of Algorithm 1, which all workers of a process use.

use std::time::Duration;

use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use super::limiter::Level;
use super::{ProcessId, WorkflowId};

/// The results for a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct WorkflowResults {
    pub(super) workflow: WorkflowId,
    /// σ and the limiter's level, or `None` for no limit.
    pub(super) level: Option<Level>,
    /// The mean time of a request from admission to end.
    pub(super) completion: Option<Duration>,
    /// The mean elapsed time and work of requests that enter the mesh here, including all calls
    /// below them.
    pub(super) totals: Option<(Duration, Duration)>,
    /// Whether the workflow's requests call other processes.
    pub(super) calls: bool,
    /// The rate that an unknown upstream process may send, requests/s, or `None` for no limit.
    pub(super) newcomers: Option<f64>,
}

/// The results of a run, which hold until the next run.
#[derive(Debug, Default, PartialEq, Clone, Serialize, Deserialize)]
pub(super) struct Published {
    pub(super) at: Instant,
    /// Results by workflow, ascending.
    pub(super) rows: Vec<WorkflowResults>,
    /// The rates that upstream processes may send, requests/s, in ascending order of workflow and
    /// process.
    pub(super) announced: Vec<(WorkflowId, ProcessId, f64)>,
}

impl Published {
    pub(super) fn row(&self, workflow: WorkflowId) -> Option<&WorkflowResults> {
        let at = self
            .rows
            .binary_search_by_key(&workflow, |row| row.workflow);
        self.rows.get(at.ok()?)
    }

    pub(super) fn level(&self, workflow: WorkflowId) -> Option<Level> {
        self.row(workflow)?.level
    }

    /// Returns the rate of `workflow` that `upstream` may send, requests/s, or `None` for no limit.
    pub(super) fn announced(&self, workflow: WorkflowId, upstream: ProcessId) -> Option<f64> {
        let key = (workflow, upstream);
        let at = self
            .announced
            .binary_search_by_key(&key, |&(w, p, _)| (w, p));
        match at {
            Ok(at) => self.announced.get(at).map(|&(_, _, rate)| rate),
            Err(_) => self.row(workflow)?.newcomers,
        }
    }
}
