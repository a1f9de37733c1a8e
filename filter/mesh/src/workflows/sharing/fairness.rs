//! Bottleneck fairness over the slots (Wisp §4.3, after J. Mace et al., "Retro", NSDI '15), and
//! dominant resource fairness over the slots and a second resource that the backend reports (Wisp
//! §4.3; Ghodsi et al., NSDI '11). With one resource, dominant resource fairness is bottleneck
//! fairness.
//!
//! The capacity is P · u, where u is the utilization of the slots from which the process is
//! overloaded. A request costs c slot-seconds.
//!
//! ```text
//! fair = max-min share of P · u / c, with unlimited demand beside the others' actual demands
//! overloaded, or no leaf:   σ = fair
//! otherwise:                σ ← min(σ + β · spare part of P · u, fair)
//! ```
//!
//! With a second resource, the shares are those of [`crate::workflows::dominant`]. The process is
//! then overloaded if one of the two resources is overloaded. The spare part is the spare part of
//! the scarcer resource.
//!
//! The paper has a load for each local resource (thread pools, connections, locks). Here slots are
//! the only resource that the proxy measures itself. The time in which a request holds a slot while
//! it waits for its own calls counts.
//!
//! For throttled workflows, σ is their max-min share. The other workflows have room to grow. A rate
//! of exactly their current demand would throttle these workflows as soon as their demand grows,
//! and turn a measurement into a limit. If several of these workflows grow at the same time, they
//! exceed the capacity for an interval, and then get shares again.
//!
//! P · u rather than P is shared, because at full utilization the queue in front of the slots grows
//! without limit. The paper's example (§4.1.2), which has no queues, has u = 1.

use super::{Capacity, LEAST_COST, Load, Memory, number};
use crate::workflows::dominant::{DominantClaim, DominantShares, RESOURCES};

/// The ratio of demand to rate from which a workflow's demand counts as unmet, because upstream
/// processes may have limited the requests to the rate.
const WANTS_MORE: f64 = 0.95;
/// The ratio of demand to rate below which a workflow's demand no longer counts as unmet. Between
/// the two ratios the state stays. Otherwise noise in λ could change the set of throttled
/// workflows, and with it all shares, from one interval to the next.
const WANTS_NO_MORE: f64 = 0.8;

/// The policy with its parameters and buffers.
#[derive(Debug)]
pub(crate) struct Fairness {
    /// β, the increase of a rate in an interval if all of the capacity is spare, requests/s.
    probe: f64,
    /// u, the utilization of each resource from which the process is overloaded, ratio.
    max_utilization: f64,
    /// The capacity of the second resource, units/s, or `None` for bottleneck fairness.
    resource: Option<f64>,
    shares: DominantShares,
}

/// The state of the process in an interval.
#[derive(Debug, Clone, Copy)]
struct IntervalState {
    /// The allowed use of each resource, units.
    usable: [f64; RESOURCES],
    /// Whether the use of a resource reaches the allowed use, or the demand for a resource exceeds
    /// the allowed use.
    overloaded: bool,
    /// The increase of rates in this interval, requests/s.
    rise: f64,
}

impl Fairness {
    pub(super) fn new(probe: f64, max_utilization: f64, resource: Option<f64>) -> Self {
        Self {
            probe: number(probe),
            max_utilization: number(max_utilization).clamp(0.01, 1.0),
            resource,
            shares: DominantShares::default(),
        }
    }

    pub(super) fn run(&mut self, capacity: &Capacity, loads: &mut [Load]) {
        if self.resource.is_none() {
            if capacity.has_all_slots() {
                // Once P is known, rates begin with its shares, not with rates from before.
                for load in loads {
                    (load.memory, load.rate) = (Memory::default(), f64::INFINITY);
                }
                return;
            }
            // The estimates may still contain the use of a resource that was configured earlier.
            for [_, resource] in loads.iter_mut().filter_map(|load| load.cost.as_mut()) {
                *resource = 0.0;
            }
        }
        let state = self.state(capacity, loads);
        let claims = loads.iter_mut().map(|load| DominantClaim {
            weight: load.weight(),
            floor: number(load.guarantee),
            demand: state.demand(load),
            cost: load.cost().unwrap_or([0.0; RESOURCES]),
        });
        self.shares.fill(state.usable, claims);
        for (i, load) in loads.iter_mut().enumerate() {
            load.rate = state.rate(load, self.shares.rate_if_unbounded(i));
        }
    }

    /// Computes the state of the process. A process is overloaded if the use of a resource reaches
    /// the allowed use, or if the demand for a resource exceeds the allowed use. The demand counts
    /// because refused requests use nothing. Rates increase by β times the spare ratio of the
    /// allowed use of the scarcest resource.
    fn state(&self, capacity: &Capacity, loads: &[Load]) -> IntervalState {
        let units = [capacity.slots, self.resource.unwrap_or(f64::INFINITY)];
        let usable = units.map(|units| number(units) * self.max_utilization);
        let resources = 1 + usize::from(self.resource.is_some());
        let mut overloaded = false;
        let mut spare: f64 = 1.0;
        for (k, &usable) in usable.iter().enumerate().take(resources) {
            let asked: f64 = loads
                .iter()
                .filter_map(|load| Some(load.admissible() * load.cost()?[k]))
                .sum();
            let utilization = number(capacity.utilization[k]);
            overloaded |= utilization >= self.max_utilization || asked > usable;
            let used = (utilization / self.max_utilization).max(asked / usable);
            // A resource without capacity has no spare part.
            spare = spare.min(if used.is_nan() { 0.0 } else { 1.0 - used });
        }
        IntervalState {
            usable,
            overloaded,
            rise: self.probe * spare.max(0.0) * number(capacity.intervals),
        }
    }
}

impl IntervalState {
    /// Returns the demand of `load` in fair shares, requests/s. Under overload, the demand is
    /// unlimited for a workflow that was limited to its rate. The measured demand of such a
    /// workflow is limited as well, and shares based on it would oscillate between cutting and
    /// probing.
    fn demand(&self, load: &mut Load) -> f64 {
        let demand = load.admissible();
        let memory = &mut load.memory;
        if let Some(rate) = memory.rate {
            let part = demand / rate;
            memory.wants_more = part >= WANTS_MORE || memory.wants_more && part >= WANTS_NO_MORE;
        }
        if self.overloaded && memory.wants_more {
            f64::INFINITY
        } else {
            demand
        }
    }

    /// Returns the rate of a workflow whose fair share under unlimited demand is `fair` requests/s.
    ///
    /// The rate of a leaf increases to the fair share step by step. So upstream processes have time
    /// to follow, and the effect of a step shows before the next step. The fair share is the upper
    /// bound of the rate, for which the paper gives no bound. Without a bound, a process with spare
    /// capacity would announce all of its capacity to every caller. With q above 0, it would then
    /// attract requests for processes without spare capacity. The rate of other workflows is the
    /// fair share at once. Downstream processes already probe, and two ramps in sequence would only
    /// take longer.
    fn rate(&self, load: &mut Load, fair: f64) -> f64 {
        let Some(cost) = load.cost() else {
            load.memory.rate = None;
            return f64::INFINITY;
        };
        let most = |k: usize| self.usable[k] / cost[k].max(LEAST_COST);
        let rate = match load.memory.rate {
            Some(rate) if load.leaf && !self.overloaded => (rate + self.rise).min(fair),
            _ => fair,
        };
        let rate = number(rate.min(most(0)).min(most(1))).max(number(load.guarantee));
        load.memory.rate = Some(rate);
        rate
    }
}
