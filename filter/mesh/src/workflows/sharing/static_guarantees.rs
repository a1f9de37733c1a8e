//! Static throughput guarantees (Wisp §4.3). Some users have a minimum, and the others best effort
//! (§3.1).
//!
//! A workflow with a guarantee gets exactly the guaranteed rate, for any demand. Workflows without
//! a guarantee share the slot time that the guarantees leave, in proportion to their weights. The
//! sum of weights is over the workflows without a guarantee that send requests:
//!
//! ```text
//! σ = guarantee        or        σ = (P − Σ guarantee · c) · w / Σ w / c
//! ```
//!
//! Even if the guarantees need all slots, the other workflows get the ratio [`BEST_EFFORT`] of the
//! slots, so they are never excluded completely.

use super::{Capacity, Load, number};

/// The minimum ratio of the slots for workflows without a guarantee.
const BEST_EFFORT: f64 = 0.01;
/// The arrival rate, requests/s, up to which a workflow doesn't count in the others' shares.
const SENDS: f64 = 0.01;

pub(super) fn run(capacity: &Capacity, loads: &mut [Load]) {
    let slots = match capacity.has_all_slots() {
        true => f64::INFINITY,
        false => number(capacity.slots),
    };
    let mut taken = 0.0;
    let mut weights = 0.0;
    for load in &*loads {
        if load.guarantee > 0.0 {
            taken += number(load.guarantee) * load.cost().map_or(0.0, |[slots, _]| slots);
        } else if load.demand > SENDS {
            weights += load.weight();
        }
    }
    let left = (slots - taken).max(slots * BEST_EFFORT);
    for load in loads {
        load.rate = if load.guarantee > 0.0 {
            number(load.guarantee)
        } else if let Some([cost, _]) = load.cost() {
            let own = load.weight();
            let all = match load.demand > SENDS {
                true => weights,
                false => weights + own,
            };
            left * own / all / cost
        } else {
            f64::INFINITY
        };
    }
}
