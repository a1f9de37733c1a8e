//! The measurements of a process in one control interval, summed over its workers.

use std::time::Duration;

use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use crate::workflows::{ProcessId, ServiceId, WorkflowId};

/// The input of [`super::Adaptation::run`]. An id may appear more than once in a slice, for example
/// if several workers measured it. The sums of the same id are added up. Of several rates of a
/// process, the latest counts.
#[derive(Debug, Clone, Copy)]
pub struct Interval<'a> {
    /// The end of the interval.
    pub now: Instant,
    /// The length of the interval, which is the time since the previous run.
    pub elapsed: Duration,
    /// P, the number of slots of the process. It is infinite for no limit.
    pub slots: f64,
    /// The slot time in use, slot-seconds, at most `slots · elapsed`.
    pub busy: f64,
    /// The used amount of the second resource, in its units, or 0 if the policy has none.
    pub resource_used: f64,
    /// Measurements by workflow.
    pub workflows: &'a [Measured],
    /// Calls to downstream processes.
    pub calls: &'a [Calls],
    /// Rates that downstream processes announced.
    pub heard: &'a [Heard],
    /// Arrivals by upstream process. All requests that name no process count for
    /// [`ProcessId::UNKNOWN`].
    pub upstream: &'a [UpstreamDemand],
}

/// One workflow's measurements in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The number of requests that arrived, including refused ones.
    pub offered: u64,
    /// The number of requests that ended in the interval after holding a slot, with or without an
    /// answer.
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
}

/// Calls that requests of a workflow made to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The service to which the process belongs.
    pub service: ServiceId,
    /// The called process, or [`ProcessId::UNKNOWN`] if no answer named it.
    pub process: ProcessId,
    /// The number of calls.
    pub count: u64,
}

/// A rate that a downstream process announced to this one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The service to which the process belongs.
    pub service: ServiceId,
    /// The announcing process.
    pub process: ProcessId,
    /// The rate of the workflow that the announcing process accepts from this process, requests/s.
    /// It is infinite for no limit. A rate that is negative or not a number is skipped.
    pub rate: f64,
    /// The time of the announcement.
    pub at: Instant,
}

/// Requests that an upstream process sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamDemand {
    /// The workflow.
    pub workflow: WorkflowId,
    /// The upstream process.
    pub process: ProcessId,
    /// The number of arrivals, including refused ones.
    pub offered: u64,
}
