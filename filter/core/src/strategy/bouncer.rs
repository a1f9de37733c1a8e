//! Bouncer: turn away at once whatever would miss its objective (Bouncer §3, Alg. 1).
//!
//! The estimated response time at each of the type's percentiles is the mean queue wait plus the
//! processing time at that percentile (Eq. 3 and 4, for any set of percentiles):
//!
//! ```text
//! ert_p(Q) = ewt_mean + pt_p(Type(Q))        reject if ert_p(Q) > SLO_p for any p
//! ```
//!
//! The wait comes from the stage (Eq. 2), the processing times from [`crate::service_times`]. A type that
//! is not warm yet is judged by the general histogram and the objectives of `default` (Appendix A); as
//! long as nothing at all was measured, everything is admitted.
//!
//! Whether any missed percentile is enough (Alg. 1) or all must be missed is [`Logic`]: the paper names
//! other logical expressions as future work (§7). With `All` a type keeps at least one of its objectives,
//! and is refused less.
//!
//! An estimate equal to its objective meets it: refused is what is "expected to surpass" it.
//!
//! One exception to Alg. 1 keeps a type from being shut out for good by its own old histogram: where that
//! misses an objective [by itself](crate::service_times::Estimate::condemned), a request that finds no
//! queue is admitted. Nobody waits for it, and nothing else can refresh the histogram.
//!
//! With `shed_by_value`, which is on by default, [`ValueCut`] decides ahead of Alg. 1: under overload it refuses the
//! requests that are worth least per slot time, also those that would meet their objectives.
//!
//! Left out on purpose: the paper's ξ (it assumes 0), and the remaining time of requests in service,
//! which Eq. 2 doesn't count either.

use std::time::Duration;

use super::{Admission, Controlled, ValueCut, View};
use crate::config::Logic;
use crate::refusal::Reason;
use crate::request::Attributes;
use crate::rng::Rng;
use crate::service_times::{Objective, ServiceTimes};

/// Bouncer's basic formulation, below a value cut.
#[derive(Debug, Default)]
pub struct Bouncer {
    logic: Logic,
    /// What is refused first; `None`: the paper's Bouncer.
    cut: Option<ValueCut>,
}

impl Bouncer {
    /// Refuses what misses any or all of its objectives, and before that what is below `cut`.
    #[must_use]
    pub fn new(logic: Logic, cut: Option<ValueCut>) -> Self {
        Self { logic, cut }
    }

    /// Alg. 1.
    fn judge(&self, request: &Attributes, view: &View<'_>) -> Result<(), Reason> {
        let estimate = view.service_times.estimate(request.kind);
        if estimate.condemned && view.queue_wait.is_zero() {
            return Ok(());
        }
        let misses = |(quantile, objective): (&Duration, &Objective)| {
            view.queue_wait + *quantile > objective.response_time
        };
        let mut pairs = estimate.quantiles.iter().zip(estimate.objectives);
        match pairs.clone().find(|pair| misses(*pair)) {
            Some((_, first)) if self.logic == Logic::Any || pairs.all(misses) => {
                Err(Reason::Objective(first.percentile))
            }
            _ => Ok(()),
        }
    }
}

impl Admission for Bouncer {
    fn decide(
        &mut self,
        request: &Attributes,
        view: &View<'_>,
        rng: &mut Rng,
    ) -> Result<(), Reason> {
        if let Some(cut) = &mut self.cut
            && !cut.admits(request, rng)
        {
            return Err(Reason::Value);
        }
        let mut decision = self.judge(request, view);
        if let Some(cut) = &mut self.cut {
            let meets = decision.is_ok();
            if !cut.is_below_ceiling(request, view.queue_wait, view.rival_wait) {
                decision = Err(Reason::Value);
            }
            cut.decided(request, meets, decision.is_ok());
        }
        decision
    }

    fn controlled_mut(&mut self) -> Option<&mut dyn Controlled> {
        self.cut.as_mut().map(|cut| cut as &mut dyn Controlled)
    }

    fn value_cut(&self) -> Option<&ValueCut> {
        self.cut.as_ref()
    }

    fn value_cut_mut(&mut self) -> Option<&mut ValueCut> {
        self.cut.as_mut()
    }

    /// Until the estimate at the objective that was missed is met again.
    fn retry_after(
        &self,
        request: &Attributes,
        reason: Reason,
        queue_wait: Duration,
        service_times: &ServiceTimes,
    ) -> Duration {
        if reason == Reason::Value {
            return queue_wait.max(ValueCut::HORIZON);
        }
        let estimate = service_times.estimate(request.kind);
        let mut pairs = estimate.quantiles.iter().zip(estimate.objectives);
        let missed = pairs.find(|(_, target)| reason == Reason::Objective(target.percentile));
        missed.map_or(queue_wait, |(quantile, target)| {
            (queue_wait + *quantile).saturating_sub(target.response_time)
        })
    }
}
