//! MaxQWT accepts requests only while the estimated queue wait is within a limit (Bouncer §5.2.2).
//!
//! ```text
//! ewt_mean = l · pt_mavg / P        accept if ewt_mean ≤ T        (Eq. 5)
//! ```
//!
//! l is the queue's length and `pt_mavg` the mean processing time over all types in a sliding
//! window. With one T, the strategy ignores types. With a limit per type (§5.5), a slow type can
//! have a shorter wait. If these limits are tuned, the result comes close to Bouncer.
//!
//! The estimate is Eq. 5, because the paper compares Bouncer with Eq. 5. It isn't the stage's own
//! estimate (Eq. 2, by the types of the waiting requests). Before any measurement all requests are
//! admitted.

use std::time::Duration;

use super::{Admission, View};
use crate::demand::Demand;
use crate::reason::Reason;
use crate::request::{Attributes, Served};
use crate::rng::Rng;
use crate::time::Instant;

/// A strategy that accepts if `l · pt_mavg / P ≤ T`.
#[derive(Debug)]
pub(super) struct MaxQueueWait {
    /// The limit T, by type.
    limits: Vec<Duration>,
    demand: Demand,
}

impl MaxQueueWait {
    /// Creates the strategy. `limits` has T for each type, and `demand` measures `pt_mavg`.
    pub(super) fn new(limits: Vec<Duration>, demand: Demand) -> Self {
        Self { limits, demand }
    }
}

impl Admission for MaxQueueWait {
    fn decide(
        &mut self,
        request: &Attributes,
        view: &View<'_>,
        _rng: &mut Rng,
    ) -> Result<(), Reason> {
        let mean = self.demand.mean_processing().unwrap_or_default();
        let wait = mean.saturating_mul(view.queue_length) / view.parallelism.max(1);
        let limit = self
            .limits
            .get(request.kind.0 as usize)
            .or(self.limits.last());
        if limit.is_some_and(|limit| wait > *limit) {
            Err(Reason::QueueWait)
        } else {
            Ok(())
        }
    }

    fn demand_mut(&mut self) -> Option<&mut Demand> {
        Some(&mut self.demand)
    }

    fn completed(&mut self, served: &Served, now: Instant) {
        self.demand.completed(now, served.slot, served.weight);
    }

    fn tick(&mut self, now: Instant) {
        self.demand.add(now, 0, 0, 0);
    }
}
