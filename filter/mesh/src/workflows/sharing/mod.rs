//! The local policy, which shares a process's resources among workflows (Wisp Alg. 1 line 1, §4.3).
//!
//! In each interval, a policy gets the demand of each workflow and the cost of its requests. The
//! policy returns the rate at which the process can serve the workflow, in requests/s. This rate is
//! σ before the limits of downstream processes. For any input, a rate is a number, not negative,
//! and not below the workflow's guarantee. While the cost of its requests is unknown, a workflow
//! has no limit. While P is unlimited, slots limit no rate. Only static guarantees and a second
//! resource do.

mod fairness;
mod static_guarantees;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::WorkflowId;
use super::dominant::RESOURCES;
use fairness::Fairness;
use headgate_core::config::{MAX_QUANTITY, SharingConfig};

/// The capacity of a process, and how much of it is in use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Capacity {
    /// P, the number of slots. It is infinite without a limit.
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

/// The load of a workflow, and its rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Load {
    /// The workflow.
    pub(crate) workflow: WorkflowId,
    /// λ, the arrival rate including refused requests, requests/s.
    pub(crate) demand: f64,
    /// The rate that the called processes accept according to the last run, requests/s. It is
    /// infinite without a limit. This process admits no more than this rate.
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
    /// The policy's state from the last run.
    pub(crate) memory: Memory,
    /// The result: the rate at which the process can serve the workflow, requests/s. It is infinite
    /// for no limit.
    pub(crate) rate: f64,
}

impl Load {
    /// Returns the arrival rate, limited to the rate that downstream processes accept, requests/s.
    fn admissible(&self) -> f64 {
        number(self.demand.min(self.downstream))
    }

    /// Returns the cost of a request as valid numbers, or `None` if the cost is unknown.
    fn cost(&self) -> Option<[f64; RESOURCES]> {
        let [slots, resource] = self.cost?;
        Some([number(slots).max(LEAST_COST), number(resource)])
    }

    /// Returns the weight, limited to a range that is safe in calculations.
    fn weight(&self) -> f64 {
        if self.weight.is_nan() {
            1.0
        } else {
            self.weight.clamp(1e-3, 1e3)
        }
    }
}

/// The minimum cost of a request, s or units, which keeps rates finite.
const LEAST_COST: f64 = 1e-6;

/// Returns `x` as a finite number. A negative value or NaN counts as 0.
fn number(x: f64) -> f64 {
    if x > 0.0 { x.min(MAX_QUANTITY) } else { 0.0 }
}

/// A local policy.
#[derive(Debug)]
pub(crate) enum Sharing {
    /// Static throughput guarantees.
    StaticGuarantees,
    /// Bottleneck fairness or dominant resource fairness.
    Fairness(Box<Fairness>),
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
        let (probe, max_utilization, resource) = match *config {
            SharingConfig::StaticGuarantees => return Self::StaticGuarantees,
            SharingConfig::BottleneckFairness {
                probe,
                max_utilization,
            } => (probe, max_utilization, None),
            SharingConfig::DominantResource {
                probe,
                max_utilization,
                ref resource,
            } => (probe, max_utilization, Some(resource.capacity)),
        };
        Self::Fairness(Box::new(Fairness::new(probe, max_utilization, resource)))
    }

    /// Runs line 1. Sets the rates of `loads`.
    pub(crate) fn run(&mut self, capacity: &Capacity, loads: &mut [Load]) {
        match self {
            Self::StaticGuarantees => static_guarantees::run(capacity, loads),
            Self::Fairness(policy) => policy.run(capacity, loads),
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
