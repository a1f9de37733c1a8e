//! Bottleneck fairness over the slots (Wisp §4.3, after J. Mace et al., "Retro", NSDI '15).
//!
//! The capacity is P · u, where u is the allowed ratio of slot time in use. A request costs c
//! slot-seconds.
//!
//! ```text
//! fair = max-min share of P · u / c, with unlimited demand beside the others' actual demands
//! overloaded, or no leaf:   σ = fair
//! otherwise:                σ ← min(σ + β · spare part of P · u, fair)
//! ```
//!
//! The paper has a load for each local resource (thread pools, connections, locks). Here slots are
//! the only resource. The time in which a request holds a slot while it waits for its own calls
//! counts.
//!
//! For throttled workflows, σ is their max-min share. The other workflows have room to grow. A rate
//! of exactly their current demand would throttle these workflows as soon as their demand grows,
//! and turn a measurement into a limit. If several of these workflows grow at the same time, they
//! exceed the capacity for an interval, and then get shares again.
//!
//! P · u rather than P is shared, because at full utilization the queue in front of the slots grows
//! without limit. The paper's example (§4.1.2), which has no queues, has u = 1.

use super::probing::{Probing, cost, weight};
use super::{Capacity, Load, Memory, number};
use crate::workflows::shares::{Claim, WaterFill};

/// Bottleneck fairness with its parameters and buffers.
#[derive(Debug)]
pub(crate) struct BottleneckFairness {
    probing: Probing,
    shares: WaterFill,
}

impl BottleneckFairness {
    /// Creates the policy. `probe` is β, the increase of a rate in an interval if all of the
    /// capacity is spare, requests/s. `max_utilization` is u, the allowed ratio of slot time in
    /// use.
    pub(crate) fn new(probe: f64, max_utilization: f64) -> Self {
        Self {
            probing: Probing::new(probe, max_utilization),
            shares: WaterFill::default(),
        }
    }

    pub(super) fn run(
        &mut self,
        capacity: &Capacity,
        loads: &[Load],
        memory: &mut [Memory],
        rates: &mut Vec<f64>,
    ) {
        if capacity.has_all_slots() {
            // Once P is known, rates begin with its shares, not with rates from before.
            memory.fill(Memory::default());
            rates.extend(loads.iter().map(|_| f64::INFINITY));
            return;
        }
        let state = self.probing.state(capacity, [capacity.slots], loads);
        let claims = loads.iter().map(|load| {
            // If the cost of requests is unknown, it counts as 0.
            let cost = cost(load).map_or(0.0, |[slots, _]| slots);
            let demand = state.demand(load, &mut memory[usize::from(load.workflow.0)]);
            Claim {
                growth: weight(load),
                floor: number(load.guarantee) * cost,
                demand: if cost > 0.0 { demand * cost } else { 0.0 },
            }
        });
        self.shares.fill(state.usable[0], claims);
        rates.extend(loads.iter().enumerate().map(|(i, load)| {
            let fair =
                cost(load).map_or(0.0, |[slots, _]| self.shares.share_if_unbounded(i) / slots);
            state.rate(load, &mut memory[usize::from(load.workflow.0)], fair)
        }));
    }
}
