//! The workers' shared state of a controller, in the record of [`Controlled`].
//!
//! [`Controlled`]: crate::strategy::Controlled

use serde::{Deserialize, Serialize};

use crate::time::Instant;

/// A controller: one class of one type, or of all types.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Controller {
    /// Tokens the bucket gets, requests/s.
    pub(super) rate: f64,
    /// `cur`: the smoothed percentile of response times, s; `None` before the first.
    pub(super) current: Option<f64>,
    /// Whether `current` has been lowered by idle time since it was last measured.
    pub(super) aged: bool,
    /// Whether the last run found the target missed.
    pub(super) missing: bool,
    /// Runs that missed the target while no lower class had anything to give (lc).
    pub(super) runs_in_vain: f64,
    /// Quality that the application should deliver, ratio.
    pub(super) quality: f64,
    /// The time at which quality was last raised, s.
    pub(super) raised: f64,
    /// Whether quality didn't do, so that the rate is enforced. Without degradation it always is.
    pub(super) at_the_door: bool,
    /// Requests refused since the last run, over all workers.
    pub(super) refused: f64,
    /// The last run, s.
    pub(super) ran: f64,
    /// The time at which a worker last had a request of this controller, s.
    pub(super) busy: f64,
    /// Tokens in the bucket of the process; negative when workers spent more than there was.
    pub(super) level: f64,
    /// Arrivals lately, over all workers: each weighs less the older it is.
    pub(super) arrivals: f64,
    /// The time of `level` and `arrivals`, s.
    pub(super) accounted: f64,
}

crate::shared::record!((u64, Vec<Controller>), 7);

impl Controller {
    /// Whether all its numbers are finite: a non-finite one would stay in all later ones.
    pub(super) fn is_finite(&self) -> bool {
        self.numbers().iter().all(|number| number.is_finite())
    }

    pub(super) fn numbers(&self) -> [f64; 11] {
        [
            self.rate,
            self.current.unwrap_or(0.0),
            self.runs_in_vain,
            self.quality,
            self.raised,
            self.refused,
            self.ran,
            self.busy,
            self.level,
            self.arrivals,
            self.accounted,
        ]
    }
}

/// Seconds since the clock's epoch: to the microsecond for centuries.
pub(super) fn seconds(now: Instant) -> f64 {
    now.as_nanos() as f64 / 1e9
}
