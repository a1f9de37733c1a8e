//! What bottleneck fairness and dominant resource fairness have in common: when a process counts as
//! overloaded, who wants more than it gets, and how rates rise again (Wisp §4.3).

use super::{Capacity, LEAST_COST, Load, Memory, number};

/// A workflow that asks for this part of its rate may want more: what it sends was cut to that by
/// its upstream.
const WANTS_MORE: f64 = 0.95;
/// It wants no more once it asks for less than this part. In between it is what it was, so that
/// noise in λ doesn't change who counts as throttled, and with that everybody's shares, from one
/// interval to the next.
const WANTS_NO_MORE: f64 = 0.8;

/// The rule, over N resources.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probing {
    probe: f64,
    max_utilization: f64,
}

/// How the process does.
#[derive(Debug, Clone, Copy)]
pub(super) struct State<const N: usize> {
    /// Of each resource, units that may be in use.
    pub(super) usable: [f64; N],
    /// What is asked for, or in use, exceeds that.
    pub(super) overloaded: bool,
    /// What rates rise by, requests/s.
    rise: f64,
}

impl Probing {
    pub(super) fn new(probe: f64, max_utilization: f64) -> Self {
        Self {
            probe: number(probe),
            max_utilization: number(max_utilization).clamp(0.01, 1.0),
        }
    }

    /// Overloaded is a process of whose resources one is in use for more than allowed, or asked
    /// for: requests that were refused use nothing, and yet show that there is too much. A rate
    /// rises by β for each part of the allowed use that is spare, of the resource that has least.
    pub(super) fn state<const N: usize>(
        &self,
        capacity: &Capacity,
        units: [f64; N],
        loads: &[Load],
    ) -> State<N> {
        let usable = units.map(|units| number(units) * self.max_utilization);
        let mut overloaded = false;
        let mut spare: f64 = 1.0;
        for (k, &usable) in usable.iter().enumerate() {
            let asked: f64 = loads
                .iter()
                .filter_map(|load| Some(load.admissible() * cost(load)?[k]))
                .sum();
            let utilization = number(capacity.utilization[k]);
            overloaded |= utilization >= self.max_utilization || asked > usable;
            let used = (utilization / self.max_utilization).max(asked / usable);
            // Of a resource that there is nothing of, nothing is spare.
            spare = spare.min(if used.is_nan() { 0.0 } else { 1.0 - used });
        }
        State {
            usable,
            overloaded,
            rise: self.probe * spare.max(0.0) * number(capacity.intervals),
        }
    }
}

impl<const N: usize> State<N> {
    /// Requests/s that `load` counts for in fair shares. While there is too little, one that was
    /// cut to its rate may want any amount: what it asks for now says nothing, and shares that
    /// believed it would swing between cutting and probing.
    pub(super) fn demand(&self, load: &Load, memory: &mut Memory) -> f64 {
        let demand = load.admissible();
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

    /// The rate of a workflow whose fair share, if it wants all that it can get, is `fair`
    /// requests/s.
    ///
    /// Of a leaf the rate rises towards that step by step, so that those upstream have time to
    /// follow, and what it causes is seen before the next step. It doesn't rise beyond (the paper
    /// names no bound): a process with room to spare would else announce all that it has to
    /// everybody, and with q above 0 pull requests to those that have none. Of others it is the
    /// fair share at once: those downstream probe for them, and two ramps after each other would
    /// only take longer.
    pub(super) fn rate(&self, load: &Load, memory: &mut Memory, fair: f64) -> f64 {
        let Some(cost) = cost(load) else {
            memory.rate = None;
            return f64::INFINITY;
        };
        let most = |k: usize| self.usable[k] / cost[k].max(LEAST_COST);
        let most = (0..N).map(most).fold(f64::INFINITY, f64::min);
        let rate = match memory.rate {
            Some(rate) if load.leaf && !self.overloaded => (rate + self.rise).min(fair),
            _ => fair,
        };
        let rate = number(rate.min(most)).max(number(load.guarantee));
        memory.rate = Some(rate);
        rate
    }
}

/// What a request costs, if that is known.
pub(super) fn cost(load: &Load) -> Option<[f64; super::RESOURCES]> {
    let [slots, resource] = load.cost?;
    Some([number(slots).max(LEAST_COST), number(resource)])
}

/// A weight to calculate with.
pub(super) fn weight(load: &Load) -> f64 {
    if load.weight.is_nan() {
        1.0
    } else {
        load.weight.clamp(1e-3, 1e3)
    }
}
