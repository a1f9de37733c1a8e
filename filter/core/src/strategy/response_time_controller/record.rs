//! What the workers share of a controller, as numbers in the record of [`Controlled`].
//!
//! [`Controlled`]: crate::strategy::Controlled

use crate::time::Instant;

/// Numbers a controller has in the record.
pub(super) const FIELDS: usize = 14;

/// A controller: one class of one type, or of all types.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// When quality was last raised, s.
    pub(super) raised: f64,
    /// Whether quality didn't do, so that the rate is enforced. Without degradation it always is.
    pub(super) at_the_door: bool,
    /// Requests refused since the last run, over all workers.
    pub(super) refused: f64,
    /// The last run, s.
    pub(super) ran: f64,
    /// When a worker last had a request of this controller, s.
    pub(super) busy: f64,
    /// Tokens in the bucket of the process; negative when workers spent more than there was.
    pub(super) level: f64,
    /// Arrivals lately, over all workers: each weighs less the older it is.
    pub(super) arrivals: f64,
    /// When `level` and `arrivals` were true, s.
    pub(super) accounted: f64,
}

impl Controller {
    /// Reads one from its part of the record.
    pub(super) fn read(part: &[f64; FIELDS]) -> Self {
        let &[
            rate,
            current,
            aged,
            missing,
            runs_in_vain,
            quality,
            raised,
            at_the_door,
            refused,
            ran,
            busy,
            level,
            arrivals,
            accounted,
        ] = part;
        Self {
            rate,
            // The record holds finite numbers only.
            current: (current >= 0.0).then_some(current),
            aged: aged > 0.0,
            missing: missing > 0.0,
            runs_in_vain,
            quality,
            raised,
            at_the_door: at_the_door > 0.0,
            refused,
            ran,
            busy,
            level,
            arrivals,
            accounted,
        }
    }

    /// Writes it to its part of the record.
    pub(super) fn write(&self, part: &mut [f64; FIELDS]) {
        *part = [
            self.rate,
            self.current.unwrap_or(-1.0),
            f64::from(self.aged),
            f64::from(self.missing),
            self.runs_in_vain,
            self.quality,
            self.raised,
            f64::from(self.at_the_door),
            self.refused,
            self.ran,
            self.busy,
            self.level,
            self.arrivals,
            self.accounted,
        ];
    }
}

/// Seconds since the clock's epoch: to the microsecond for centuries.
pub(super) fn seconds(now: Instant) -> f64 {
    now.as_nanos() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut numbers = [0.0; FIELDS];
        for (i, number) in numbers.iter_mut().enumerate() {
            *number = 0.5 + i as f64;
        }
        // Flags are 0 or 1.
        (numbers[2], numbers[3], numbers[7]) = (1.0, 0.0, 1.0);
        let mut written = [0.0; FIELDS];
        Controller::read(&numbers).write(&mut written);
        assert_eq!(written, numbers);
        let unmeasured = Controller {
            current: None,
            ..Controller::read(&numbers)
        };
        unmeasured.write(&mut written);
        assert_eq!(Controller::read(&written), unmeasured);
    }
}
