//! What a process measured in one control interval, summed over its workers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Instant;
use crate::workflows::{ProcessId, ServiceId, WorkflowId};

/// What [`super::Adaptation::run`] is told. In each slice an id may appear more than once, as when
/// several workers measured: sums add up, and of several rates of a process the one that was heard
/// last counts.
#[derive(Debug, Clone, Copy)]
pub struct Interval<'a> {
    /// When it ended.
    pub now: Instant,
    /// How long it was: since the run before.
    pub elapsed: Duration,
    /// P: slots of the process.
    pub slots: f64,
    /// Slot time in use, slot-seconds: at most `slots · elapsed`.
    pub busy: f64,
    /// What was used of the second resource, in its units; 0 without one.
    pub resource_used: f64,
    /// By workflow.
    pub workflows: &'a [Measured],
    /// Calls to downstream processes.
    pub calls: &'a [Calls],
    /// Rates that downstream processes announced.
    pub heard: &'a [Heard],
    /// Arrivals by upstream process. Those that name none count as one, [`ProcessId::UNKNOWN`].
    pub upstream: &'a [UpstreamDemand],
}

/// What one workflow did in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Which.
    pub workflow: WorkflowId,
    /// Requests that arrived, those that were refused included: λ.
    pub offered: u64,
    /// Of these, requests that went on to the backend.
    pub admitted: u64,
    /// Requests that ended in the interval after they had been in a slot.
    pub completed: u64,
    /// Time that these spent in their slots, added up.
    pub service: Duration,
    /// Time from their admission by the rate limiter to their end, added up.
    pub completion: Duration,
    /// What they used of the second resource, in its units, added up.
    pub resource: f64,
}

/// Calls that requests of a workflow made to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Whose.
    pub workflow: WorkflowId,
    /// The service that the process belongs to.
    pub service: ServiceId,
    /// The process called; [`ProcessId::UNKNOWN`] where no answer told.
    pub process: ProcessId,
    /// How many.
    pub count: u64,
}

/// A rate that a downstream process announced to this one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// Of which workflow.
    pub workflow: WorkflowId,
    /// The service that the process belongs to.
    pub service: ServiceId,
    /// Who said it.
    pub process: ProcessId,
    /// Requests/s of the workflow that it takes from this process; infinite: it has no limit.
    /// Anything that is no rate (negative, not a number) is passed over.
    pub rate: f64,
    /// When it was heard.
    pub at: Instant,
}

/// Requests that an upstream process sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamDemand {
    /// Of which workflow.
    pub workflow: WorkflowId,
    /// By whom.
    pub process: ProcessId,
    /// How many arrived, those that were refused included.
    pub offered: u64,
}
