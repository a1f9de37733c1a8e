//! The local policy: the sharing of a process's resources among workflows (Wisp Alg. 1 line 1,
//! §4.3).
//!
//! Once an interval, a policy gets the demand of each workflow and the cost of its requests. It
//! returns the requests/s that the process can take of it: σ, before the limits of downstream
//! processes. For any input, a rate is never negative or not a number, and never below the
//! workflow's guarantee. While the cost of requests is unknown, they have no limit.

mod bottleneck_fairness;
mod dominant_resource;
mod probing;
mod static_guarantees;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use bottleneck_fairness::BottleneckFairness;
pub use dominant_resource::DominantResource;
pub use static_guarantees::StaticGuarantees;

use super::WorkflowId;
use super::dominant::RESOURCES;
use headgate_core::config::SharingConfig;

/// The capacity of a process: slots, and units/s of a second resource if any.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// P.
    pub slots: f64,
    /// The part in use of each resource: a moving average, ratio 0..=1.
    pub utilization: [f64; RESOURCES],
    /// Configured intervals that passed since the policy ran last.
    pub intervals: f64,
}

/// The load of a workflow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// The workflow.
    pub workflow: WorkflowId,
    /// λ: the arrival rate, requests/s, refused ones included.
    pub demand: f64,
    /// Requests/s that the processes it calls take, as of the last run; infinite for no limit. More
    /// than that is not admitted here.
    pub downstream: f64,
    /// Slot-seconds of a request, and units of the second resource; `None` as long as nothing at
    /// all was measured.
    pub cost: Option<[f64; RESOURCES]>,
    /// Whether its requests make no calls.
    pub leaf: bool,
    /// Its weight in fair shares, above 0.
    pub weight: f64,
    /// Requests/s that are always admitted.
    pub guarantee: f64,
}

impl Load {
    /// Returns its use if all admissible requests were admitted, requests/s.
    fn admissible(&self) -> f64 {
        number(self.demand.min(self.downstream))
    }
}

/// A cost below this is measured as nothing, s or units: rates stay finite.
const LEAST_COST: f64 = 1e-6;

/// Returns `x` as a finite number; a negative value or NaN counts as 0.
fn number(x: f64) -> f64 {
    if x > 0.0 { x.min(1e15) } else { 0.0 }
}

/// One of the policies.
#[derive(Debug)]
pub enum Sharing {
    /// See [`StaticGuarantees`].
    StaticGuarantees(StaticGuarantees),
    /// See [`BottleneckFairness`].
    BottleneckFairness(BottleneckFairness),
    /// See [`DominantResource`].
    DominantResource(Box<DominantResource>),
}

/// A policy's state of a workflow from one run to the next.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Its rate, requests/s; `None` if it is new.
    pub rate: Option<f64>,
    /// Whether it asked for about its rate or more, and so may want any amount.
    pub wants_more: bool,
}

impl Sharing {
    /// The policy of `config`.
    #[must_use]
    pub fn new(config: &SharingConfig) -> Self {
        match *config {
            SharingConfig::StaticGuarantees => Self::StaticGuarantees(StaticGuarantees::default()),
            SharingConfig::BottleneckFairness {
                probe,
                max_utilization,
            } => Self::BottleneckFairness(BottleneckFairness::new(probe, max_utilization)),
            SharingConfig::DominantResource {
                probe,
                max_utilization,
                ref resource,
            } => {
                let policy = DominantResource::new(probe, max_utilization, resource.capacity);
                Self::DominantResource(Box::new(policy))
            }
        }
    }

    /// Line 1: sets `rates[i]`, requests/s, of `loads[i]`; infinite: no limit. `memory` is indexed
    /// by workflow, and has a place for each of `loads`.
    pub fn run(
        &mut self,
        capacity: &Capacity,
        loads: &[Load],
        memory: &mut [Memory],
        rates: &mut Vec<f64>,
    ) {
        rates.clear();
        match self {
            Self::StaticGuarantees(policy) => policy.run(capacity, loads, rates),
            Self::BottleneckFairness(policy) => policy.run(capacity, loads, memory, rates),
            Self::DominantResource(policy) => policy.run(capacity, loads, memory, rates),
        }
    }
}

/// Intervals that passed, as a policy counts them: a long pause is no reason to raise rates by a
/// leap.
#[must_use]
pub fn intervals(elapsed: Duration, interval: Duration) -> f64 {
    (elapsed.as_secs_f64() / interval.as_secs_f64().max(1e-6)).min(10.0)
}

#[cfg(test)]
mod tests;
