//! The common part of bottleneck fairness and dominant resource fairness: the conditions for
//! overload and unmet demand, and the increase of rates (Wisp §4.3).

use super::{Capacity, LEAST_COST, Load, Memory, number};

/// The ratio of demand to rate from which a workflow's demand counts as unmet, because upstream
/// processes may have limited the requests to the rate.
const WANTS_MORE: f64 = 0.95;
/// The ratio of demand to rate below which a workflow's demand no longer counts as unmet. Between
/// the two ratios the state stays. Otherwise noise in λ could change the set of throttled
/// workflows, and with it all shares, from one interval to the next.
const WANTS_NO_MORE: f64 = 0.8;

/// The probing rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probing {
    probe: f64,
    max_utilization: f64,
}

/// The state of the process in an interval.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntervalState<const N: usize> {
    /// The allowed use of each resource, units.
    pub(super) usable: [f64; N],
    /// Whether the use of a resource reaches the allowed use, or the demand for a resource exceeds
    /// the allowed use.
    pub(super) overloaded: bool,
    /// The increase of rates in this interval, requests/s.
    rise: f64,
}

impl Probing {
    pub(super) fn new(probe: f64, max_utilization: f64) -> Self {
        Self {
            probe: number(probe),
            max_utilization: number(max_utilization).clamp(0.01, 1.0),
        }
    }

    /// Computes the state of the process. A process is overloaded if the use of a resource reaches
    /// the allowed use, or if the demand for a resource exceeds the allowed use. The demand counts
    /// because refused requests use nothing. Rates increase by β times the spare ratio of the
    /// allowed use of the scarcest resource.
    pub(super) fn state<const N: usize>(
        &self,
        capacity: &Capacity,
        units: [f64; N],
        loads: &[Load],
    ) -> IntervalState<N> {
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

impl<const N: usize> IntervalState<N> {
    /// Returns the demand of `load` in fair shares, requests/s. Under overload, the demand is
    /// unlimited for a workflow that was limited to its rate. The measured demand of such a
    /// workflow is limited as well, and shares based on it would oscillate between cutting and
    /// probing.
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
    /// The rate of a leaf increases to the fair share step by step. So upstream processes have time
    /// to follow, and the effect of a step shows before the next step. The fair share is the upper
    /// bound of the rate, for which the paper gives no bound. Without a bound, a process with spare
    /// capacity would announce all of its capacity to every caller. With q above 0, it would then
    /// attract requests for processes without spare capacity. The rate of other workflows is the
    /// fair share at once. Downstream processes already probe, and two ramps in sequence would only
    /// take longer.
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

/// Returns the cost of a request, or `None` if the cost is unknown.
pub(super) fn cost(load: &Load) -> Option<[f64; super::RESOURCES]> {
    let [slots, resource] = load.cost?;
    Some([number(slots).max(LEAST_COST), number(resource)])
}

/// Returns the weight of a workflow, limited to a range that is safe in calculations.
pub(super) fn weight(load: &Load) -> f64 {
    if load.weight.is_nan() {
        1.0
    } else {
        load.weight.clamp(1e-3, 1e3)
    }
}
