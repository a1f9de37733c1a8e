//! The local policy, which shares a process's resources among workflows (Wisp Alg. 1 line 1, §4.3).
//!
//! In each interval, a policy gets the demand of each workflow and the cost of its requests. The
//! policy returns the rate at which the process can serve the workflow, in requests/s. This rate is
//! σ before the limits of downstream processes. For any input, a rate is a number, not negative,
//! and not below the workflow's guarantee. While the cost of its requests is unknown, a workflow
//! has no limit. While P is unlimited, slots limit no rate. Only guarantees of
//! [`StaticGuarantees`] and a second resource do.

mod bottleneck_fairness;
mod dominant_resource;
mod probing;
mod static_guarantees;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use bottleneck_fairness::BottleneckFairness;
pub(crate) use dominant_resource::DominantResource;
pub(crate) use static_guarantees::StaticGuarantees;

use super::WorkflowId;
use super::dominant::RESOURCES;
use headgate_core::config::SharingConfig;

/// The capacity of a process, and how much of it is in use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Capacity {
    /// P, the number of slots. It is infinite for no limit.
    pub(crate) slots: f64,
    /// The utilization of each resource, as a moving average, ratio 0..=1.
    pub(crate) utilization: [f64; RESOURCES],
    /// The number of configured intervals since the policy last ran.
    pub(crate) intervals: f64,
}

impl Capacity {
    /// Whether the number of slots is unlimited.
    fn has_all_slots(&self) -> bool {
        self.slots >= f64::INFINITY
    }
}

/// The load of a workflow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// The workflow.
    pub(crate) workflow: WorkflowId,
    /// λ, the arrival rate including refused requests, requests/s.
    pub(crate) demand: f64,
    /// The rate that the called processes accept according to the last run, requests/s. It is
    /// infinite for no limit. This process admits no more than this rate.
    pub(crate) downstream: f64,
    /// The cost of a request, in slot-seconds and in units of the second resource. `None` as long
    /// as no workflow has measurements.
    pub(crate) cost: Option<[f64; RESOURCES]>,
    /// Whether the workflow's requests make no calls.
    pub(crate) leaf: bool,
    /// The workflow's weight in fair shares, above 0.
    pub(crate) weight: f64,
    /// The rate that is always admitted, requests/s.
    pub(crate) guarantee: f64,
}

impl Load {
    /// Returns the arrival rate, limited to the rate that downstream processes accept, requests/s.
    fn admissible(&self) -> f64 {
        number(self.demand.min(self.downstream))
    }
}

/// The minimum cost of a request, s or units, which keeps rates finite.
const LEAST_COST: f64 = 1e-6;

/// Returns `x` as a finite number. A negative value or NaN counts as 0.
fn number(x: f64) -> f64 {
    if x > 0.0 { x.min(1e15) } else { 0.0 }
}

/// A local policy.
#[derive(Debug)]
pub(crate) enum Sharing {
    /// Static throughput guarantees.
    StaticGuarantees(StaticGuarantees),
    /// Bottleneck fairness over the slots.
    BottleneckFairness(BottleneckFairness),
    /// Dominant resource fairness over two resources.
    DominantResource(Box<DominantResource>),
}

/// A policy's state for a workflow from one run to the next.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// The workflow's rate, requests/s, or `None` if the workflow is new.
    pub(crate) rate: Option<f64>,
    /// Whether the demand was near the rate or above it. The real demand may then be higher by any
    /// amount.
    pub(crate) wants_more: bool,
}

impl Sharing {
    /// Creates the policy of `config`.
    pub(crate) fn new(config: &SharingConfig) -> Self {
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

    /// Runs line 1. Sets `rates[i]`, requests/s, for `loads[i]`. A rate is infinite for no limit.
    /// `memory` is indexed by workflow, and must have an entry for each of `loads`.
    pub(crate) fn run(
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

/// Returns the number of intervals that passed. It is at most 10, so that rates don't jump after a
/// long pause.
pub(crate) fn intervals(elapsed: Duration, interval: Duration) -> f64 {
    (elapsed.as_secs_f64() / interval.as_secs_f64().max(1e-6)).min(10.0)
}

#[cfg(test)]
mod tests;
