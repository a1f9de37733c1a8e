//! The common part of bottleneck fairness and dominant resource fairness: the conditions for
//! overload and for unmet demand, and the rise of rates (Wisp §4.3).

use super::{Capacity, LEAST_COST, Load, Memory, number};

/// The part of its rate from which on a workflow may want more: its upstream may have cut its
/// requests to the rate.
const WANTS_MORE: f64 = 0.95;
/// The part of its rate below which a workflow wants no more. In between its state stays, so that
/// noise in λ doesn't change the set of throttled workflows, and thereby all shares, from one
/// interval to the next.
const WANTS_NO_MORE: f64 = 0.8;

/// The rule, over N resources.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probing {
    probe: f64,
    max_utilization: f64,
}

/// The state of the process in an interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct State<const N: usize> {
    /// Units of each resource that may be in use.
    pub(super) usable: [f64; N],
    /// Whether the demand or the use exceeds that.
    pub(super) overloaded: bool,
    /// The rise of rates, requests/s.
    rise: f64,
}

impl Probing {
    pub(super) fn new(probe: f64, max_utilization: f64) -> Self {
        Self {
            probe: number(probe),
            max_utilization: number(max_utilization).clamp(0.01, 1.0),
        }
    }

    /// Computes the state. A process is overloaded if the use of or the demand for a resource
    /// exceeds the allowed use: refused requests use nothing, and yet show overload. A rate rises
    /// by β for each part of the allowed use that is spare, of the resource with the least to
    /// spare.
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
            // Of a resource without capacity, nothing is spare.
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
    /// Returns the requests/s that count as the demand of `load` in fair shares. Under overload, a
    /// workflow that was cut to its rate may want any amount: its current demand is cut as well,
    /// and shares by it would swing between cutting and probing.
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

    /// Returns the rate of a workflow whose fair share under unlimited demand is `fair` requests/s.
    ///
    /// The rate of a leaf rises towards that step by step, so that upstream processes have time to
    /// follow, and the effect of a step is seen before the next. It doesn't rise beyond (the paper
    /// names no bound). Otherwise a process with spare capacity would announce all of it to every
    /// caller, and with q above 0 attract requests for processes without any. The rate of other
    /// workflows is the fair share at once: downstream processes probe for them, and two ramps
    /// after each other would only take longer.
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

/// Returns the cost of a request, if known.
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
