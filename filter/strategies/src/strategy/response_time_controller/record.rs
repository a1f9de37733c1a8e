//! The state of a controller that all workers share, in the record of [`Controlled`].
//!
//! [`Controlled`]: crate::strategy::Controlled

use serde::{Deserialize, Serialize};

/// A controller for one class of one type, or for one class of all types.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Controller {
    /// The rate at which the bucket gets tokens, requests/s.
    pub(super) rate: f64,
    /// `cur`, the smoothed percentile of response times, s. It is `None` before the first.
    pub(super) current: Option<f64>,
    /// Whether idle time has lowered `current` since the last sample.
    pub(super) aged: bool,
    /// Whether the target was missed in the last run.
    pub(super) missing: bool,
    /// lc, the number of runs that missed the target while all lower classes were at their least
    /// rate. Without a given adj_i, lc counts target times instead of runs.
    pub(super) runs_in_vain: f64,
    /// The quality that the application should deliver, ratio.
    pub(super) quality: f64,
    /// The time at which quality was last raised, s.
    pub(super) raised: f64,
    /// Whether the rate is enforced because the lowest quality didn't suffice. Without degradation
    /// the rate is always enforced.
    pub(super) at_the_door: bool,
    /// The number of requests refused since the last run, over all workers.
    pub(super) refused: f64,
    /// The time of the last run, s.
    pub(super) ran: f64,
    /// The time at which a worker last had a request of this controller, s.
    pub(super) busy: f64,
    /// The tokens in the process's bucket. The number is negative if workers spent more tokens than
    /// the bucket had.
    pub(super) level: f64,
    /// The recent arrivals over all workers, with weights that decrease with age.
    pub(super) arrivals: f64,
    /// The time for which `level` and `arrivals` are valid, s.
    pub(super) accounted: f64,
    /// The recent answers over all workers. This number and the next two decay.
    pub(super) answers: f64,
    /// The number of late ones of these answers less the number of the others.
    pub(super) late: f64,
    /// The time in which these answers came, s.
    pub(super) span: f64,
    /// The highest recent throughput, requests/s.
    pub(super) best: f64,
}

crate::shared::record!((u64, Vec<Controller>), 14);

impl Controller {
    /// Returns x, the throughput of about the last target time, requests/s, or `None` without
    /// answers.
    pub(super) fn throughput(&self) -> Option<f64> {
        let measured = self.answers > 0.0 && self.span > 0.0;
        measured.then(|| self.answers / self.span)
    }
}
