//! Ranks of types and classes by value delivered per slot time, and the cut through them.

use std::time::Duration;

use super::delivery::{self, Delivery};
use super::{Cell, Kind, ValueCut};
use crate::request::TypeId;
use crate::service_times::{Estimate, Objective};

/// The part of more valuable types' slack that other types may use.
const CEILING: f64 = 0.9;
/// The part of the slots in use, beyond the first, up to which the most valuable types have no
/// ceiling. The rest of the slots drain the queue while a ceiling holds the other types back.
const UNBOUNDED: f64 = 0.5;
/// The least ratio at which two values per slot time count as equal.
pub(super) const EQUAL: f64 = 0.9;
/// The part of the slots for types that are cut entirely.
pub(super) const PROBES: f64 = 0.005;
/// The part of the slots for types that are cut entirely and whose answers mostly fail. It is
/// larger than [`PROBES`], because such a type may have recovered.
const PROBES_OF_FAILING: f64 = 0.02;
/// The part of all value, divided by the number of active cells, up to which a cell's value is
/// negligible. The slack of such a cell is not protected.
const NEGLIGIBLE: f64 = 0.01;

impl ValueCut {
    /// Updates each type's costs from its deliveries, and judges whether it is broken.
    pub(super) fn judge(&mut self) {
        let Self {
            kinds,
            deliveries,
            cells,
            classes,
            ..
        } = self;
        let any_broken = deliveries.iter().any(Delivery::is_broken);
        let fastest = deliveries.iter().filter_map(|d| d.fastest(self.stepped));
        let delay = fastest.reduce(f64::min).unwrap_or(0.0);
        let is_victim = |kind: &Kind, delivery: &Delivery| {
            kind.objectives
                .is_some_and(|(_, last)| delivery.is_victim(delay, last))
        };
        for (kind, delivery) in kinds.iter_mut().zip(deliveries.iter()) {
            kind.part = if is_victim(kind, delivery) {
                1.0
            } else {
                delivery.part()
            };
            kind.mean = delivery.slot_time(kind.measured);
            kind.cold = kind.unmeasured && !delivery.tells_slot_time();
            let may_be_victim = any_broken || delivery.recovers();
            kind.own_time = if may_be_victim && !kind.cold && kind.own_time > 0.0 {
                kind.own_time.min(kind.mean)
            } else {
                kind.mean
            };
            (kind.has_fault, kind.is_broken) = (delivery.is_broken(), false);
        }
        let arrives = |of: &[Cell]| of.iter().any(|cell| cell.rate > 0.0);
        self.longest = (cells.chunks(*classes).zip(kinds.iter()))
            .filter(|(of, _)| arrives(of))
            .map(|(_, kind)| if kind.cold { f64::INFINITY } else { kind.mean })
            .fold(0.0, f64::max);
        if !any_broken {
            return;
        }
        let best = |kind: usize| {
            let of = &cells[kind * *classes..(kind + 1) * *classes];
            let active = of.iter().filter(|cell| cell.rate > 0.0);
            active
                .map(|cell| kinds[kind].density(cell))
                .reduce(f64::max)
        };
        let densities: Vec<Option<f64>> = (0..kinds.len()).map(best).collect();
        for at in 0..kinds.len() {
            let (this, own) = (&deliveries[at], densities[at].unwrap_or(0.0));
            let is_before = |(other, density): (&Delivery, &Option<f64>)| {
                density.is_some_and(|density| {
                    if other.is_broken() {
                        this.broke_before(other)
                    } else {
                        density > own
                    }
                })
            };
            kinds[at].is_broken = this.is_broken()
                && !is_victim(&kinds[at], this)
                && deliveries.iter().zip(&densities).any(is_before);
        }
        let works =
            |(at, cell): (usize, &Cell)| (!kinds[at / *classes].is_broken).then_some(cell.rate);
        let rates = cells.iter().enumerate().filter_map(works);
        self.working = rates.sum::<f64>().min(self.slots);
    }

    /// Fills the budget, and sets f, the ceiling and the rival of each cell.
    pub(super) fn fill(&mut self) {
        let Self {
            kinds,
            cells,
            order,
            classes,
            ..
        } = self;
        let kind_of = |cell: u32| &kinds[cell as usize / *classes];
        let density = |cells: &[Cell], cell: u32| kind_of(cell).density(&cells[cell as usize]);
        // This closure returns the value of the requests that arrive in a second.
        let asked = |cells: &[Cell], cell: u32| {
            let (kind, cell) = (kind_of(cell), &cells[cell as usize]);
            cell.rate * cell.value / kind.work().max(1e-9)
        };
        order.sort_unstable_by(|&a, &b| {
            let by_density = density(cells, b).total_cmp(&density(cells, a));
            by_density.then(a.cmp(&b))
        });
        let (mut set_aside, mut floors, mut value, mut active) = (0.0, 0.0, 0.0, 0.0);
        // The number of slots that all types demand.
        let mut all = 0.0;
        for &at in order.iter() {
            let (kind, cell) = (kind_of(at), &cells[at as usize]);
            if kind.is_broken {
                set_aside += cell
                    .rate
                    .min(delivery::probes(self.slots, self.working, 0.0));
            } else if kind.has_no_rank() {
                set_aside += cell.rate;
            } else {
                floors += kind.floor * cell.rate;
            }
            all += cell.rate;
            if kind.competes() && cell.rate > 0.0 {
                value += asked(cells, at);
                active += 1.0;
            }
        }
        self.floors_fit = floors <= self.slots;
        let negligible = NEGLIGIBLE * value / f64::max(active, 1.0);
        let mut budget = (self.rho * self.slots - set_aside - floors).max(0.0);
        let (mut tightest, mut loosest): (f64, Option<(f64, TypeId)>) = (f64::INFINITY, None);
        let mut is_short = self.is_short;
        let unbounded = UNBOUNDED * (self.slots.min(all) - 1.0).max(0.0);
        // The number of slots that the types up to the current group demand.
        let mut asked_for = set_aside + floors;
        let mut rest: &[u32] = order;
        while let Some(&first) = rest.first() {
            let limit = EQUAL * density(cells, first);
            let equals = rest
                .partition_point(|&at| density(cells, at) >= limit)
                .max(1);
            let (group, lower) = rest.split_at(equals);
            rest = lower;
            let wanted: f64 = group
                .iter()
                .filter(|&&at| !kind_of(at).is_apart())
                .map(|&at| cells[at as usize].rate * (1.0 - kind_of(at).floor))
                .sum();
            asked_for += wanted;
            let fraction = if budget <= 0.0 {
                0.0
            } else if wanted <= budget {
                1.0
            } else {
                budget / wanted
            };
            is_short |= fraction < 1.0 && wanted > 0.0;
            // After a partial admission, any remaining budget is a rounding error.
            budget = if fraction < 1.0 { 0.0 } else { budget - wanted };
            for &at in group {
                let (kind, cell) = (kind_of(at), &mut cells[at as usize]);
                let admitted = if kind.is_apart() { 1.0 } else { fraction };
                cell.admitted = admitted;
                cell.above = admitted >= 1.0;
                cell.ceiling = if asked_for <= unbounded {
                    f64::INFINITY
                } else {
                    CEILING * tightest
                };
                cell.rival = loosest
                    .filter(|(slack, _)| kind.slack.is_none_or(|own| own < *slack))
                    .map(|(_, rival)| rival);
            }
            for &at in group {
                let kind = kind_of(at);
                let worth = asked(cells, at);
                let Some(slack) = kind.slack.filter(|_| kind.competes()) else {
                    continue;
                };
                if worth > negligible {
                    tightest = tightest.min(slack);
                    if loosest.is_none_or(|(most, _)| slack > most) {
                        let id = at as usize / *classes;
                        loosest = Some((slack, TypeId(u16::try_from(id).unwrap_or(u16::MAX))));
                    }
                }
            }
        }
        if !is_short {
            for cell in cells.iter_mut() {
                (cell.ceiling, cell.rival) = (f64::INFINITY, None);
            }
        }
        self.probe();
    }

    /// Divides the slots for probes among the cells that are cut entirely. A cell that demands
    /// less than an equal part gets what it demands, so the parts of others aren't smaller because
    /// of cells with hardly any traffic.
    fn probe(&mut self) {
        let is_cut = |cell: &&Cell| cell.admitted <= 0.0;
        let slots = PROBES * self.slots;
        let equal = slots / f64::max(self.cells.iter().filter(is_cut).count() as f64, 1.0);
        let (mut left, mut others) = (slots, 0.0);
        for cell in self.cells.iter().filter(is_cut) {
            if cell.rate < equal {
                left -= cell.rate;
            } else {
                others += 1.0;
            }
        }
        for (at, cell) in self.cells.iter_mut().enumerate() {
            let more = if self.deliveries[at / self.classes].fails() {
                PROBES_OF_FAILING / PROBES
            } else {
                1.0
            };
            if cell.admitted <= 0.0 {
                cell.admitted = match cell.rate < equal {
                    true => 1.0,
                    false => (more * left / others / cell.rate).min(1.0),
                };
            }
        }
    }
}

impl Kind {
    /// Whether the type's refusals count as lost value and its slack bounds the wait of less
    /// valuable types.
    pub(super) fn competes(&self) -> bool {
        self.own && !self.condemned && !self.is_broken
    }

    /// Returns the state of a type with these `objectives` and this `estimate`, updated from
    /// `before`.
    pub(super) fn new(
        estimate: &Estimate<'_>,
        objectives: &[Objective],
        floor: f64,
        before: &Self,
    ) -> Self {
        let own = estimate.is_own();
        let slack = |(quantile, objective): (&Duration, &Objective)| {
            objective.response_time.as_secs_f64() - quantile.as_secs_f64()
        };
        let pairs = estimate.quantiles.iter().zip(estimate.objectives);
        let last = estimate.quantiles.last().zip(estimate.objectives.last());
        let late = last.filter(|(quantile, last)| own && **quantile > last.response_time);
        let measured = (estimate.preliminary.unwrap_or(estimate.mean)).as_secs_f64();
        let secs = |objective: &Objective| objective.response_time.as_secs_f64();
        Self {
            measured,
            slack: pairs
                .map(slack)
                .reduce(f64::min)
                .filter(|_| own && !estimate.condemned),
            unmeasured: !own && estimate.preliminary.is_none(),
            own,
            condemned: own && estimate.condemned,
            late: late.map_or(0.0, |(quantile, _)| quantile.as_secs_f64()),
            floor: floor.clamp(0.0, 1.0),
            objectives: objectives
                .first()
                .map(secs)
                .zip(objectives.last().map(secs)),
            ..*before
        }
    }

    /// Returns the cost of a request as slot time, s: the larger of its slot time and the
    /// equivalent of its tokens. The part for requests that don't reach the backend is subtracted.
    /// For a broken type, the processing time counts in place of both, because its requests hold
    /// their slots until a timeout. The averages of work must not keep such times after the type
    /// has recovered.
    pub(super) fn work(&self) -> f64 {
        let time = match self.has_fault {
            true => self.measured,
            false => self.mean.max(self.tokens),
        };
        time * (1.0 - self.unused)
    }

    /// Whether neither the slot time nor the tokens of a request are known.
    pub(super) fn has_no_rank(&self) -> bool {
        self.cold && self.tokens <= 0.0
    }

    /// Whether the type's work is set aside and the type is admitted regardless of the budget.
    fn is_apart(&self) -> bool {
        self.has_no_rank() || self.is_broken
    }

    /// Returns the value that a request of this type delivers per slot time, 1/s.
    pub(super) fn density(&self, cell: &Cell) -> f64 {
        self.part * cell.value / self.own_time.max(self.tokens).max(1e-9)
    }
}
