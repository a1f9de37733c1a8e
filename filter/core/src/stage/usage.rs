//! The part of its usual slot time for which a request holds its slot, by type.
//!
//! Envoy, or a filter behind this one, answers some requests itself, such as with a redirect or
//! because of a rate limit. These requests hold their slots for no time. Histograms have the times
//! of the backend's answers only, so their means overstate the work of a type with such requests:
//! 40 requests/s of 20 ms beside 300 redirects/s need 0.8 slots, not 6.8.
//!
//! `part_k` is an exponential average over the latest ends of requests of type k on this worker. A
//! request that ends without the backend counts min(1, held / mean), and any other counts 1. So
//! `part_k · mean_k` is the slot time of an arrival. While the type hangs, only requests that don't
//! reach the backend end, so the average doesn't move.
//!
//! The demand of AcceptFraction covers all types, in a longer window. So it doesn't use the part. A
//! request that ends without the backend counts there as served in the time for which it held its
//! slot.
//!
//! **Left out.** The wait of Alg. 1 doesn't use the part, because a queue exists only while slots
//! are full.

use std::time::Duration;

use headgate_strategies::request::TypeId;
use headgate_strategies::time::Instant;

use super::{Outcome, Stage};
use crate::requests::Request;

/// The weight of the newest end. The average covers about fifty requests.
const GAIN: f64 = 1.0 / 50.0;

/// The parts of all types.
#[derive(Debug)]
pub(super) struct Usage(Vec<f64>);

impl Usage {
    pub(super) fn new(types: usize) -> Self {
        Self(vec![1.0; types])
    }

    /// Returns the part of its usual slot time for which a request of `kind` holds its slot, ratio
    /// 0..=1.
    pub(super) fn of(&self, kind: TypeId) -> f64 {
        self.0.get(usize::from(kind.0)).copied().unwrap_or(1.0)
    }
}

impl Stage {
    /// Records the end of a request that held its slot for `held`.
    pub(super) fn used(
        &mut self,
        now: Instant,
        request: &Request,
        outcome: Outcome,
        held: Duration,
    ) {
        let kind = request.attributes.kind;
        let part = match outcome {
            Outcome::Unsampled => return,
            Outcome::Unmeasured => {
                if let Some(capacity) = &mut self.strategy.capacity {
                    capacity.served(now, held, request.weight);
                }
                let Some(mean) = self.service_times.mean_of(&request.attributes) else {
                    return;
                };
                (held.as_secs_f64() / mean.as_secs_f64()).min(1.0)
            }
            Outcome::Completed | Outcome::Failed | Outcome::Abandoned => 1.0,
        };
        let cut = self.strategy.base.value_cut_mut();
        if cut.as_ref().is_some_and(|cut| cut.hangs(kind)) {
            return;
        }
        let Some(average) = self.usage.0.get_mut(usize::from(kind.0)) else {
            return;
        };
        let weight = 1.0 - (1.0 - GAIN).powf(f64::from(request.weight));
        *average += weight * (part - *average);
        if let Some(cut) = cut {
            cut.set_usage(kind, *average);
        }
    }
}
