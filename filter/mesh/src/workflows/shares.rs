//! Weighted max-min fair shares of one resource (Wisp §4.3), by water filling.
//!
//! All shares grow together, each in proportion to its weight, until its claimant's demand is met
//! or the resource is used up (D. Bertsekas and R. Gallager, Data Networks, 2nd ed., §6.5.2). With
//! the water level L:
//!
//! ```text
//! xᵢ(L) = clamp(L · gᵢ, fᵢ, dᵢ)        F(L) = Σ xᵢ(L) = capacity
//! ```
//!
//! gᵢ is the *growth*, which is the weight for max-min fairness. fᵢ is a *floor*, which is a
//! guarantee, capped at the demand. dᵢ is the *demand*. F is piecewise linear, so bisection over
//! its sorted corners finds the level. The same table gives the share that a claimant would have
//! with unlimited demand, given the others' actual demands. A process announces that share to its
//! callers, which may then send more. A look-up takes O(log n), and the table O(n log n).
//!
//! If the floors alone exceed the capacity, all claimants get their floors.

/// One claimant's claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Claim {
    /// The growth of the share with the level, 0 or more.
    pub(crate) growth: f64,
    /// The guaranteed share, regardless of the capacity. It is limited by the demand.
    pub(crate) floor: f64,
    /// The demand. It is infinite for an unlimited demand.
    pub(crate) demand: f64,
}

impl Claim {
    /// Returns xᵢ(L), the share at `level`.
    fn at(&self, level: f64) -> f64 {
        // Without this case, an infinite level times a growth of 0 would be NaN.
        let grown = if self.growth > 0.0 {
            level * self.growth
        } else {
            0.0
        };
        grown.max(self.floor).min(self.demand)
    }

    /// Returns the share at `level` with unlimited demand.
    fn unbounded_at(&self, level: f64) -> f64 {
        Self {
            demand: f64::INFINITY,
            ..*self
        }
        .at(level)
    }

    /// Returns the levels between which the share grows, or `None` if the share never grows.
    fn grows(&self) -> Option<(f64, f64)> {
        let (begin, end) = (self.floor / self.growth, self.demand / self.growth);
        (self.growth > 0.0 && begin < end && begin.is_finite()).then_some((begin, end))
    }
}

/// A level at which the slope of F changes.
#[derive(Debug, Clone, Copy, Default)]
struct Corner {
    level: f64,
    /// F, the sum of all shares, at this level.
    used: f64,
    /// The slope of F from this level on. While the table is built, it is the change of the slope.
    slope: f64,
}

/// The table of corners, and the water level. The buffers are reused from one filling to the next.
#[derive(Debug, Default)]
pub(crate) struct WaterFill {
    capacity: f64,
    claims: Vec<Claim>,
    corners: Vec<Corner>,
    level: f64,
}

impl WaterFill {
    /// Divides `capacity` among `claims`. All numbers must be 0 or more, and all except demands
    /// must be finite.
    pub(crate) fn fill(&mut self, capacity: f64, claims: impl Iterator<Item = Claim>) {
        self.capacity = capacity;
        self.claims.clear();
        self.claims.extend(claims);
        self.corners.clear();
        // The use at every level includes the floors.
        let floors = self.claims.iter().map(|claim| claim.at(0.0)).sum();
        self.corners.push(Corner::default());
        for claim in &self.claims {
            let Some((begin, end)) = claim.grows() else {
                continue;
            };
            let mut corner = |level: f64, slope| {
                if level.is_finite() {
                    self.corners.push(Corner {
                        level,
                        used: 0.0,
                        slope,
                    });
                }
            };
            corner(begin, claim.growth);
            corner(end, -claim.growth);
        }
        self.corners
            .sort_unstable_by(|a, b| a.level.total_cmp(&b.level));
        let mut before = Corner {
            used: floors,
            ..Corner::default()
        };
        for corner in &mut self.corners {
            corner.used = before.used + before.slope * (corner.level - before.level);
            corner.slope = (before.slope + corner.slope).max(0.0);
            before = *corner;
        }
        self.level = self.solve(None);
    }

    /// Returns the water level. It is infinite if all demands are met.
    pub(crate) fn level(&self) -> f64 {
        self.level
    }

    /// Returns the share of the claim at this index.
    #[cfg(test)]
    pub(crate) fn share(&self, claim: usize) -> f64 {
        self.claims[claim].at(self.level)
    }

    /// Returns the level that results if this claim has unlimited demand, given the others' actual
    /// demands.
    pub(crate) fn level_if_unbounded(&self, claim: usize) -> f64 {
        self.solve(Some(&self.claims[claim]))
    }

    /// Returns the level at which the capacity is used up. `free` is a claim to treat as unlimited.
    fn solve(&self, free: Option<&Claim>) -> f64 {
        let extra =
            |level: f64| free.map_or(0.0, |claim| claim.unbounded_at(level) - claim.at(level));
        let passed = self
            .corners
            .partition_point(|corner| corner.used + extra(corner.level) <= self.capacity);
        // The floors alone use up the capacity.
        let Some(corner) = passed.checked_sub(1).map(|at| self.corners[at]) else {
            return 0.0;
        };
        // Beyond this corner all claims except `free` grow along one line.
        let (used, slope, growth) = free.map_or((corner.used, corner.slope, 0.0), |claim| {
            let grows = claim
                .grows()
                .is_some_and(|(begin, end)| begin <= corner.level && corner.level < end);
            let own = if grows { claim.growth } else { 0.0 };
            let others = corner.used - claim.at(corner.level);
            (others, (corner.slope - own).max(0.0), claim.growth)
        });
        let left = self.capacity - used + slope * corner.level;
        let level = left / (slope + growth);
        // At this level `free` is still at its floor, which is more than its growth. So the others
        // get less.
        let level = match free {
            Some(claim) if level * growth < claim.floor => (left - claim.floor) / slope,
            _ => level,
        };
        // NaN comes from rounding. Without growth, the level is infinite (x / 0).
        if level.is_nan() {
            return f64::INFINITY;
        }
        level.max(corner.level)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(growth: f64, floor: f64, demand: f64) -> Claim {
        Claim {
            growth,
            floor,
            demand,
        }
    }

    fn shares(capacity: f64, claims: &[Claim]) -> Vec<f64> {
        let mut fill = WaterFill::default();
        fill.fill(capacity, claims.iter().copied());
        (0..claims.len()).map(|i| fill.share(i)).collect()
    }

    fn unbounded(capacity: f64, claims: &[Claim]) -> Vec<f64> {
        let mut fill = WaterFill::default();
        fill.fill(capacity, claims.iter().copied());
        (0..claims.len())
            .map(|i| fill.claims[i].unbounded_at(fill.level_if_unbounded(i)))
            .collect()
    }

    #[test]
    fn the_papers_example() {
        let claims = [400.0, 100.0, 100.0].map(|demand| claim(1.0, 0.0, demand));
        assert_eq!(shares(500.0, &claims), [300.0, 100.0, 100.0]);
        assert_eq!(unbounded(500.0, &claims), [300.0, 200.0, 200.0]);
        assert_eq!(shares(600.0, &claims), [400.0, 100.0, 100.0]);
        assert_eq!(unbounded(900.0, &claims), [700.0, 400.0, 400.0]);
    }

    #[test]
    fn weights_and_floors() {
        let inf = f64::INFINITY;
        let greedy = [claim(1.0, 0.0, inf), claim(3.0, 0.0, inf)];
        assert_eq!(shares(100.0, &greedy), [25.0, 75.0]);
        let guaranteed = [
            claim(1.0, 60.0, inf),
            claim(1.0, 0.0, inf),
            claim(1.0, 0.0, inf),
        ];
        assert_eq!(shares(100.0, &guaranteed), [60.0, 20.0, 20.0]);
        // The unused part of a guarantee goes to the other claimants.
        let idle = [claim(1.0, 60.0, 10.0), claim(1.0, 0.0, inf)];
        assert_eq!(shares(100.0, &idle), [10.0, 90.0]);
        assert_eq!(unbounded(100.0, &idle), [60.0, 90.0]);
        let too_many = [claim(1.0, 80.0, inf), claim(1.0, 50.0, inf)];
        assert_eq!(shares(100.0, &too_many), [80.0, 50.0]);
        assert_eq!(unbounded(100.0, &too_many), [80.0, 50.0]);
        assert_eq!(shares(0.0, &greedy), [0.0, 0.0]);
        assert_eq!(shares(10.0, &[]), [0.0; 0]);
    }

    fn any_claim() -> impl Strategy<Value = Claim> {
        let demand = prop_oneof![6 => 0.0..100.0_f64, 2 => Just(f64::INFINITY), 1 => Just(0.0)];
        let floor = prop_oneof![3 => Just(0.0), 1 => 0.0..50.0_f64];
        (0.01..10.0_f64, floor, demand).prop_map(|(g, f, d)| claim(g, f, d))
    }

    proptest! {
        #[test]
        fn max_min_fair(
            claims in prop::collection::vec(any_claim(), 1..30),
            capacity in 0.0..1_000.0_f64,
        ) {
            let shares = shares(capacity, &claims);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + a.abs().min(1e9));
            let floors: f64 = claims.iter().map(|c| c.floor.min(c.demand)).sum();
            let used: f64 = shares.iter().sum();
            for (claim, &share) in claims.iter().zip(&shares) {
                prop_assert!(share >= 0.0 && share <= claim.demand, "capped by its demand");
                prop_assert!(share >= claim.floor.min(claim.demand), "never below its floor");
            }
            // Work conservation means that the capacity is used up, or all demands are met.
            let satisfied = |i: usize| shares[i] >= claims[i].demand;
            let all = (0..claims.len()).all(satisfied);
            prop_assert!(
                near(used, capacity.max(floors)) || all && used <= capacity + 1e-6,
                "{} of {}",
                used,
                capacity
            );
            // Max-min fairness means that, relative to weights, a claimant with unmet demand has at
            // least as much as any other claimant above its floor. So its share could grow only at
            // the expense of claimants that have no more.
            for i in (0..claims.len()).filter(|&i| !satisfied(i)) {
                for j in 0..claims.len() {
                    let levels = (shares[i] / claims[i].growth, shares[j] / claims[j].growth);
                    prop_assert!(
                        levels.1 <= levels.0 * (1.0 + 1e-6) + 1e-6
                            || near(shares[j], claims[j].floor.min(claims[j].demand)),
                        "{} wants more, {} has {:?}", i, j, levels
                    );
                }
            }
        }

        #[test]
        fn the_share_without_a_bound_equals_that_of_filling_again(
            claims in prop::collection::vec(any_claim(), 1..30), capacity in 0.0..1_000.0_f64,
        ) {
            let quick = unbounded(capacity, &claims);
            for (i, &quick) in quick.iter().enumerate() {
                let mut claims = claims.clone();
                claims[i].demand = f64::INFINITY;
                let slow = shares(capacity, &claims)[i];
                prop_assert!(
                    (quick - slow).abs() <= 1e-6 * (1.0 + slow),
                    "{} {}: {} or {}",
                    i,
                    capacity,
                    quick,
                    slow
                );
            }
        }
    }
}
