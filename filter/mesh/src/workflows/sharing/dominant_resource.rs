//! Dominant resource fairness over the slots and a second resource that the backend reports (Wisp
//! §4.3; Ghodsi et al., NSDI '11).
//!
//! The policy works like [`super::BottleneckFairness`], with the shares of
//! [`crate::workflows::dominant`]. The process is overloaded if one of the two resources is
//! overloaded. The spare part is the spare part of the scarcer resource.

use super::probing::{Probing, cost, weight};
use super::{Capacity, Load, Memory, number};
use crate::workflows::dominant::{DominantClaim, DominantShares, RESOURCES};

/// Dominant resource fairness with its parameters and buffers.
#[derive(Debug)]
pub(crate) struct DominantResource {
    probing: Probing,
    /// The capacity of the second resource, units/s.
    resource: f64,
    shares: DominantShares,
}

impl DominantResource {
    /// Creates the policy. `probe` is β, the increase of a rate in an interval if all of the
    /// capacity is spare, requests/s. `max_utilization` is the allowed ratio of each resource in
    /// use, and `resource` the capacity of the second resource, units/s.
    pub(crate) fn new(probe: f64, max_utilization: f64, resource: f64) -> Self {
        Self {
            probing: Probing::new(probe, max_utilization),
            resource: number(resource),
            shares: DominantShares::default(),
        }
    }

    pub(super) fn run(
        &mut self,
        capacity: &Capacity,
        loads: &[Load],
        memory: &mut [Memory],
        rates: &mut Vec<f64>,
    ) {
        let units = [capacity.slots, self.resource];
        let state = self.probing.state(capacity, units, loads);
        let claims = loads.iter().map(|load| {
            let demand = state.demand(load, &mut memory[usize::from(load.workflow.0)]);
            DominantClaim {
                weight: weight(load),
                floor: number(load.guarantee),
                demand,
                cost: cost(load).unwrap_or([0.0; RESOURCES]),
            }
        });
        self.shares.fill(state.usable, claims);
        rates.extend(loads.iter().enumerate().map(|(i, load)| {
            let fair = self.shares.rate_if_unbounded(i);
            state.rate(load, &mut memory[usize::from(load.workflow.0)], fair)
        }));
    }
}
