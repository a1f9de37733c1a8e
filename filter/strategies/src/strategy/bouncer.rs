//! Bouncer refuses each request that would miss its objective, at its arrival (Bouncer §3, Alg. 1).
//!
//! The estimated response time at each of the type's percentiles is the mean queue wait plus the
//! processing time at that percentile (Eq. 3 and 4, for any set of percentiles):
//!
//! ```text
//! ert_p(Q) = ewt_mean + pt_p(Type(Q))        reject if ert_p(Q) > SLO_p for any p
//! ```
//!
//! The wait comes from the stage (Eq. 2), and the processing times come from
//! [`crate::service_times`]. A cold type is judged by the general histogram and the objectives of
//! `default` (Appendix A). Before the first measurements, everything is admitted.
//!
//! [`Logic`] determines whether one missed percentile is enough for a refusal (Alg. 1) or all must
//! be missed. The paper names other logical expressions as future work (§7). With `All` a type
//! keeps at least one of its objectives, and is refused less.
//!
//! An estimate equal to its objective meets the objective, because a request is refused only if it
//! is "expected to surpass" it.
//!
//! One exception to Alg. 1 ensures that a type is not refused permanently because of its own old
//! histogram. If that histogram misses an objective [by
//! itself](crate::service_times::Estimate::condemned), a request that finds no queue is admitted.
//! No other request waits because of this request, and nothing else can refresh the histogram.
//!
//! If the cost of a type depends on the size, each request is judged by its own estimate. If that
//! estimate alone misses an objective, other requests of the type keep the histogram fresh. So the
//! exception is limited to slots that other requests leave free, and to one request in ten. One in
//! ten is enough to detect that the size costs less than before. The value cut ignores such a
//! request, as it ignores refusals of a condemned type.
//!
//! With `shed_by_value`, which is on by default, two things are added. [`ValueCut`] decides before
//! Alg. 1. Under overload it refuses the requests of the least value per slot time, even requests
//! that would meet their objectives. And Alg. 1 refuses because of an objective only if the type's
//! [`ErrorBudget`] for this objective is spent.
//!
//! Two things are left out: the paper's ξ (the paper assumes 0), and the remaining time of requests
//! in service, which Eq. 2 doesn't count either.

use std::time::Duration;

use super::value_cut::Admitted;
use super::{Admission, Controlled, ErrorBudget, ValueCut, View};
use crate::config::{Logic, StageConfig};
use crate::reason::Reason;
use crate::request::{Attributes, ClassId, TypeId};
use crate::rng::Rng;
use crate::service_times::{Estimate, Objective, ServiceTimes};

/// The part of the slots that stays free for requests above the cut, and the least number of these
/// free slots.
const SPARE: (f64, f64) = (0.25, 3.0);
/// The part of the requests that is admitted while no request waits, although their size alone
/// misses an objective.
const PROBED: f64 = 0.1;

/// Bouncer's basic formulation, optionally with shedding by value.
#[derive(Debug, Default)]
pub struct Bouncer {
    logic: Logic,
    /// Whether a type's cost depends on the size.
    by_size: bool,
    /// The parts for shedding by value, or `None` for the paper's Bouncer.
    pub(super) by_value: Option<ByValue>,
}

/// The parts that shedding by value adds to Alg. 1.
#[derive(Debug)]
pub(super) struct ByValue {
    /// The value cut, which decides before Alg. 1.
    pub(super) cut: ValueCut,
    pub(super) budget: ErrorBudget,
}

impl Bouncer {
    /// Creates the strategy of a checked configuration. `logic` determines whether it refuses
    /// requests that miss any, or only those that miss all of their objectives.
    pub(super) fn new(config: &StageConfig, logic: Logic, sheds_by_value: bool) -> Self {
        let by_value = || {
            let objectives = config.types.iter().map(|kind| kind.slo.len()).max();
            ByValue {
                cut: ValueCut::from_config(config),
                budget: ErrorBudget::new(config.types.len(), objectives.unwrap_or(0)),
            }
        };
        Self {
            logic,
            by_size: config.types.iter().any(|kind| kind.cost.is_some()),
            by_value: sheds_by_value.then(by_value),
        }
    }

    /// Decides by Alg. 1.
    fn judge(&self, request: &Attributes, view: &View<'_>, rng: &mut Rng) -> Result<(), Reason> {
        let estimate = view.service_times.estimate_of(request);
        let may_try = |rng: &mut Rng| {
            let is_of_type = !estimate.is_late_by_size();
            let is_idle = view.queue_length == 0 && view.slots_in_use == 0;
            is_of_type || is_idle || has_room(view) || rng.chance(PROBED)
        };
        if estimate.condemned && view.queue_wait.is_zero() && may_try(rng) {
            return Ok(());
        }
        let misses = |(at, (exceeds, objective)): (usize, (bool, &Objective))| {
            let is_covered = |by_value: &ByValue| {
                let percentile = objective.percentile;
                by_value.budget.covers(request.kind, at, percentile)
            };
            exceeds && !self.by_value.as_ref().is_some_and(is_covered)
        };
        let mut objectives = exceeded(&estimate, view)
            .zip(estimate.objectives)
            .enumerate();
        match objectives.clone().find(|objective| misses(*objective)) {
            Some((_, (_, first))) if self.logic == Logic::Any || objectives.all(misses) => {
                Err(Reason::Objective(first.percentile))
            }
            _ => Ok(()),
        }
    }
}

/// Whether slots are free beyond [`SPARE`]. With such slots, no request has to be refused in favour
/// of others, although the cut's budget follows the end of an overload only after seconds.
fn has_room(view: &View<'_>) -> bool {
    let spare = (SPARE.0 * f64::from(view.parallelism)).ceil().max(SPARE.1);
    view.queue_length == 0 && f64::from(view.slots_in_use) + spare < f64::from(view.parallelism)
}

/// Returns an iterator that says, for each objective, whether the estimated response time (Eq. 3
/// and 4) exceeds the objective.
fn exceeded<'a>(
    estimate: &Estimate<'a>,
    view: &View<'_>,
) -> impl Iterator<Item = bool> + Clone + use<'a> {
    let wait = view.queue_wait;
    let pairs = estimate.times().zip(estimate.objectives);
    pairs.map(move |(quantile, objective)| wait + quantile > objective.response_time)
}

impl Admission for Bouncer {
    fn decide(
        &mut self,
        request: &Attributes,
        view: &View<'_>,
        rng: &mut Rng,
    ) -> Result<(), Reason> {
        if let Some(ByValue { cut, budget }) = &mut self.by_value {
            budget.begin();
            match cut.admits(request, view.now, rng) {
                // A large request would take the tokens that requests above the cut are about to
                // need, even while slots are free.
                Admitted::No if request.tokens > 0 || !has_room(view) || !cut.is_calm(view.now) => {
                    return Err(Reason::Value);
                }
                Admitted::No => {}
                Admitted::Broken => return Err(Reason::Unresponsive),
                Admitted::Probe => return Ok(()),
                Admitted::Yes => {}
            }
        }
        let mut decision = self.judge(request, view, rng);
        if let Some(ByValue { cut, budget }) = &mut self.by_value {
            let meets = decision.is_ok();
            if !cut.is_below_ceiling(request, view.queue_wait, view.rival_wait) {
                decision = Err(Reason::Value);
            }
            let estimate = view.service_times.estimate_of(request);
            // If the request's size alone makes it late, its refusal isn't lost value, because a
            // lower cut would not help it.
            if !estimate.is_late_by_size() {
                cut.decided(request, view.now, meets, decision.is_ok());
            }
            if decision.is_ok() {
                budget.admitted(request.kind, exceeded(&estimate, view));
            }
        }
        decision
    }

    fn needs_slots_in_use(&self, queue_length: u32, _work: u64) -> bool {
        queue_length == 0 && (self.by_size || self.value_cut().is_some_and(ValueCut::cuts))
    }

    fn withdrawn(&mut self, _request: &Attributes) {
        if let Some(ByValue { budget, .. }) = &mut self.by_value {
            budget.withdrawn();
        }
    }

    fn entered(&mut self, kind: TypeId, _class: ClassId) {
        if let Some(ByValue { cut, .. }) = &mut self.by_value {
            cut.entered(kind);
        }
    }

    fn left(&mut self, kind: TypeId, _class: ClassId) {
        if let Some(ByValue { cut, .. }) = &mut self.by_value {
            cut.left(kind);
        }
    }

    fn controlled_mut(&mut self) -> Option<&mut dyn Controlled> {
        self.value_cut_mut().map(|cut| cut as &mut dyn Controlled)
    }

    fn value_cut(&self) -> Option<&ValueCut> {
        self.by_value.as_ref().map(|by_value| &by_value.cut)
    }

    fn value_cut_mut(&mut self) -> Option<&mut ValueCut> {
        self.by_value.as_mut().map(|by_value| &mut by_value.cut)
    }

    /// Returns the time until the estimate meets the missed objective again, until the cut follows
    /// arrivals, or until a broken type gets a further probe.
    fn retry_after(
        &self,
        request: &Attributes,
        reason: Reason,
        queue_wait: Duration,
        service_times: &ServiceTimes,
    ) -> Duration {
        match reason {
            Reason::Value => return queue_wait.max(ValueCut::HORIZON),
            Reason::Unresponsive => return queue_wait.max(ValueCut::PAUSE),
            _ => {}
        }
        let estimate = service_times.estimate_of(request);
        let mut pairs = estimate.times().zip(estimate.objectives);
        let missed = pairs.find(|(_, target)| reason == Reason::Objective(target.percentile));
        missed.map_or(queue_wait, |(quantile, target)| {
            (queue_wait + quantile).saturating_sub(target.response_time)
        })
    }
}
