//! Dominant resource fairness over two resources (A. Ghodsi et al., "Dominant Resource Fairness",
//! NSDI '11, §4.1). Wisp §4.3 names it among its policies.
//!
//! A request of workflow i uses rᵢₖ of resource k, whose capacity is Cₖ a second. Its *dominant
//! share* at x requests/s is the largest ratio of a resource that the workflow uses, x · sᵢ with sᵢ
//! = maxₖ rᵢₖ / Cₖ. Progressive filling raises all dominant shares together, in proportion to their
//! weights, until a resource is used up. The workflows that use this resource stop there. The
//! others continue with the other resource. Let the level L be the dominant share divided by the
//! weight. Then progressive filling is, for each resource, the water filling of [`super::shares`]
//! with growth wᵢ · rᵢₖ / sᵢ:
//!
//! ```text
//! xᵢ(L) = clamp(L · wᵢ / sᵢ, guaranteeᵢ, λᵢ)        Fₖ(L) = Σ xᵢ(L) · rᵢₖ = Cₖ
//! ```
//!
//! The resource with the lower level is used up first. The rest of the other resource is then
//! shared among the workflows that use only the other resource.

use super::shares::{Claim, WaterFill};

/// The number of resources.
pub(crate) const RESOURCES: usize = 2;

/// One workflow's claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DominantClaim {
    /// The weight of the workflow, above 0.
    pub(crate) weight: f64,
    /// The guarantee of the workflow, requests/s.
    pub(crate) floor: f64,
    /// The demand of the workflow, requests/s. It is infinite for an unlimited demand.
    pub(crate) demand: f64,
    /// r, the cost of a request in each resource, in the resource's units, 0 or more.
    pub(crate) cost: [f64; RESOURCES],
}

/// The dominant shares of a number of claims. The buffers are reused from one filling to the next.
#[derive(Debug, Default)]
pub(crate) struct DominantShares {
    claims: Vec<DominantClaim>,
    capacity: [f64; RESOURCES],
    /// The filling of each resource without regard to the other resource.
    fills: [WaterFill; RESOURCES],
    /// The filling of each resource by the claims that use only this resource, after the other
    /// resource is used up.
    rest: [WaterFill; RESOURCES],
}

impl DominantShares {
    /// Divides `capacity` (units/s) among `claims`. All numbers must be 0 or more, and all except
    /// demands must be finite.
    pub(crate) fn fill(
        &mut self,
        capacity: [f64; RESOURCES],
        claims: impl Iterator<Item = DominantClaim>,
    ) {
        // If a resource has no capacity, any use of the resource is a nearly infinite share.
        self.capacity = capacity.map(|c| c.max(f64::MIN_POSITIVE));
        self.claims.clear();
        self.claims.extend(claims);
        let capacity = self.capacity;
        for (k, fill) in self.fills.iter_mut().enumerate() {
            let claims = self.claims.iter();
            fill.fill(capacity[k], claims.map(|c| c.of(k, &capacity)));
        }
        for k in 0..RESOURCES {
            let other = 1 - k;
            let level = self.fills[other].level();
            if level >= self.fills[k].level() {
                continue;
            }
            let stopped: f64 = self
                .claims
                .iter()
                .filter(|claim| claim.cost[other] > 0.0)
                .map(|claim| claim.at(level, &capacity) * claim.cost[k])
                .sum();
            let rest = self.claims.iter().map(|claim| {
                if claim.cost[other] > 0.0 {
                    NOTHING
                } else {
                    claim.of(k, &capacity)
                }
            });
            self.rest[k].fill((capacity[k] - stopped).max(0.0), rest);
        }
    }

    /// Returns the rate of the claim at this index, requests/s.
    #[cfg(test)]
    fn rate(&self, claim: usize) -> f64 {
        let level = self.level(claim, WaterFill::level);
        self.claims[claim].at(level, &self.capacity)
    }

    /// Returns the rate that the claim would have with unlimited demand, given the other claims'
    /// actual demands, requests/s. The rate is infinite if the claim uses no resource.
    pub(crate) fn rate_if_unbounded(&self, claim: usize) -> f64 {
        let level = self.level(claim, |fill| fill.level_if_unbounded(claim));
        let claim = DominantClaim {
            demand: f64::INFINITY,
            ..self.claims[claim]
        };
        claim.at(level, &self.capacity)
    }

    /// Returns the level at which a claim stops growing. `of` returns the level of a filling.
    fn level(&self, claim: usize, of: impl Fn(&WaterFill) -> f64) -> f64 {
        match self.claims[claim].cost.map(|cost| cost > 0.0) {
            [true, true] => of(&self.fills[0]).min(of(&self.fills[1])),
            [false, false] => f64::INFINITY,
            only => {
                let k = usize::from(only[1]);
                let level = of(&self.fills[k]);
                // The other resource, which this claim doesn't use, is used up first. So the users
                // of the other resource leave a part of this resource.
                if level > self.fills[1 - k].level() {
                    of(&self.rest[k])
                } else {
                    level
                }
            }
        }
    }
}

const NOTHING: Claim = Claim {
    growth: 0.0,
    floor: 0.0,
    demand: 0.0,
};

impl DominantClaim {
    /// Returns s, the dominant share at one request/s.
    fn dominant(&self, capacity: &[f64; RESOURCES]) -> f64 {
        (self.cost[0] / capacity[0]).max(self.cost[1] / capacity[1])
    }

    /// Returns x(L), the rate at `level`, requests/s.
    fn at(&self, level: f64, capacity: &[f64; RESOURCES]) -> f64 {
        let grown = level * self.weight / self.dominant(capacity);
        // 0/0 means no growth, because the level is 0 and the claim uses no resource.
        let grown = if grown.is_nan() { 0.0 } else { grown };
        grown.max(self.floor).min(self.demand)
    }

    /// Returns the claim to resource `k`, in units of that resource.
    fn of(&self, k: usize, capacity: &[f64; RESOURCES]) -> Claim {
        let cost = self.cost[k];
        if cost <= 0.0 {
            return NOTHING;
        }
        Claim {
            growth: self.weight * cost / self.dominant(capacity),
            floor: self.floor * cost,
            demand: self.demand * cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(cost: [f64; 2], demand: f64) -> DominantClaim {
        DominantClaim {
            weight: 1.0,
            floor: 0.0,
            demand,
            cost,
        }
    }

    fn shares(capacity: [f64; 2], claims: &[DominantClaim]) -> DominantShares {
        let mut shares = DominantShares::default();
        shares.fill(capacity, claims.iter().copied());
        shares
    }

    fn rates(capacity: [f64; 2], claims: &[DominantClaim]) -> Vec<f64> {
        let shares = shares(capacity, claims);
        (0..claims.len()).map(|i| shares.rate(i)).collect()
    }

    const INF: f64 = f64::INFINITY;

    #[test]
    fn the_example_of_the_paper() {
        // Ghodsi §4.1 has 9 CPUs, 18 GB, and tasks of ⟨1 CPU, 4 GB⟩ and ⟨3 CPUs, 1 GB⟩. The result
        // is 3 and 2 tasks.
        let claims = [claim([1.0, 4.0], INF), claim([3.0, 1.0], INF)];
        let found = rates([9.0, 18.0], &claims);
        assert!((found[0] - 3.0).abs() < 1e-9, "{found:?}");
        assert!((found[1] - 2.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_workflow_of_one_resource_continues_when_the_other_is_used_up() {
        let claims = [
            claim([1.0, 0.0], INF),
            claim([1.0, 1.0], INF),
            claim([0.0, 1.0], 2.0),
        ];
        // The first resource is used up at a dominant share of 0.5. The demand of claim 2 is met
        // before that.
        let found = rates([10.0, 10.0], &claims);
        assert_eq!(found, [5.0, 5.0, 2.0]);
        let found = rates([100.0, 10.0], &claims);
        assert_eq!(found, [92.0, 8.0, 2.0]);
        let shares = shares([100.0, 10.0], &claims);
        assert_eq!(shares.rate_if_unbounded(2), 5.0);
        assert_eq!(shares.rate_if_unbounded(0), 92.0);
        assert_eq!(rates([1.0, 1.0], &[claim([0.0, 0.0], 7.0)]), [7.0]);
    }

    fn any_claim() -> impl Strategy<Value = DominantClaim> {
        let cost = || prop_oneof![1 => Just(0.0), 4 => 0.01..10.0_f64];
        let demand = prop_oneof![3 => 0.0..50.0_f64, 2 => Just(INF)];
        let costs = [cost(), cost()];
        let floor = prop_oneof![4 => Just(0.0), 1 => 0.0..2.0_f64];
        (0.1..5.0_f64, floor, demand, costs)
            .prop_filter("uses something", |c| c.3[0] + c.3[1] > 0.0)
            .prop_map(|(weight, floor, demand, cost)| DominantClaim {
                weight,
                floor,
                demand,
                cost,
            })
    }

    proptest! {
        #[test]
        fn dominant_resource_fair(
            claims in prop::collection::vec(any_claim(), 1..20),
            capacity in [1.0..100.0_f64, 1.0..100.0_f64],
        ) {
            let rates = rates(capacity, &claims);
            let used = |k: usize| -> f64 {
                claims.iter().zip(&rates).map(|(c, rate)| c.cost[k] * rate).sum()
            };
            let floors = |k: usize| -> f64 {
                claims.iter().map(|c| c.cost[k] * c.floor.min(c.demand)).sum()
            };
            for k in 0..RESOURCES {
                prop_assert!(
                    used(k) <= capacity[k].max(floors(k)) * (1.0 + 1e-6) + 1e-6
                        || floors(1 - k) > capacity[1 - k]
                );
            }
            let full = |k: usize| used(k) >= capacity[k] * (1.0 - 1e-6);
            let weights: f64 = claims.iter().map(|c| c.weight).sum();
            let no_floors = claims.iter().all(|c| c.floor == 0.0);
            for (i, claim) in claims.iter().enumerate() {
                prop_assert!(rates[i] >= claim.floor.min(claim.demand) && rates[i] <= claim.demand);
                if rates[i] >= claim.demand {
                    continue;
                }
                // Pareto efficiency means that a workflow with unmet demand lacks a resource.
                prop_assert!((0..RESOURCES).any(|k| claim.cost[k] > 0.0 && full(k)), "{}", i);
                let level = rates[i] * claim.dominant(&capacity) / claim.weight;
                // The share guarantee (Ghodsi §3, sharing incentive) means that a workflow gets at
                // least its weight's part of a resource.
                if no_floors {
                    prop_assert!(level >= (1.0 - 1e-6) / weights, "{} of {}", level, weights);
                }
                // Backlogged users of the same resources have equal dominant shares divided by
                // weight, except for floors.
                for (j, other) in claims.iter().enumerate() {
                    let same =
                        (0..RESOURCES).all(|k| (other.cost[k] > 0.0) == (claim.cost[k] > 0.0));
                    if same && rates[j] > other.floor {
                        let theirs = rates[j] * other.dominant(&capacity) / other.weight;
                        prop_assert!(theirs <= level * (1.0 + 1e-6) + 1e-9, "{} {}", i, j);
                    }
                }
            }
        }

        #[test]
        fn more_demand_than_capacity_gains_no_more_than_announced(
            claims in prop::collection::vec(any_claim(), 1..20),
            capacity in [1.0..100.0_f64, 1.0..100.0_f64],
        ) {
            let before = shares(capacity, &claims);
            for i in 0..claims.len() {
                let mut claims = claims.clone();
                claims[i].demand = INF;
                let slow = rates(capacity, &claims)[i];
                let quick = before.rate_if_unbounded(i);
                prop_assert!(
                    (quick - slow).abs() <= 1e-6 * (1.0 + slow),
                    "{}: {} or {}",
                    i,
                    quick,
                    slow
                );
            }
        }
    }
}
