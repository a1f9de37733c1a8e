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
//! An estimate equal to its objective meets it: refused is what is "expected to surpass" it.
//!
//! One exception to Alg. 1 keeps a type from being shut out for good by its own old histogram: where that
//! misses an objective [by itself](crate::service_times::Estimate::condemned), a request that finds no
//! queue is admitted. Nobody waits for it, and nothing else can refresh the histogram.
//!
//! Left out on purpose: the paper's ξ (it assumes 0), and the remaining time of requests in service,
//! which Eq. 2 doesn't count either.

use std::time::Duration;

use super::{Admission, Reason, TypeId, Verdict, View};
use crate::rng::Rng;
use crate::service_times::Objective;

/// Bouncer's basic formulation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bouncer;

impl Admission for Bouncer {
    fn decide(&mut self, kind: TypeId, view: &View<'_>, _rng: &mut Rng) -> Verdict {
        let estimate = view.service_times.estimate(kind);
        if estimate.condemned && view.queue_wait.is_zero() {
            return Verdict::Admit;
        }
        let misses = |(quantile, objective): (&Duration, &Objective)| {
            view.queue_wait + *quantile > objective.response_time
        };
        match estimate
            .quantiles
            .iter()
            .zip(estimate.objectives)
            .position(misses)
        {
            None => Verdict::Admit,
            Some(at) => {
                // At most 16 objectives a type.
                Verdict::Refuse(Reason::Objective {
                    objective: at as u8,
                })
            }
        }
    }
}
