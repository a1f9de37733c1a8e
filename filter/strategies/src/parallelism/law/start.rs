//! The start of a law that closed after few answers: slots double until they stretch service times.
//!
//! At that time neither the references nor the number of working slots are known. With S = Σ pt / Σ
//! reference pt over requests that started in a stage of the start, and z = 1.3 standard errors,
//! the stage ends in one of these ways:
//!
//! ```text
//! S + z σ < 1.6       P doubles
//! S − z σ > 1.3       P / S, S within 1..=3; the start is over
//! neither for long    the nearer of the two
//! idle for long       the law opens again
//! ```
//!
//! By Little's law S is the ratio of requests in flight to requests in service.

use std::time::Duration;

use super::{CONFIDENCE, Law, Limit, View, reach_at_first};
use crate::time::{Instant, nanos};

/// The number of slots at the beginning of a start.
pub(super) const FIRST: f64 = 4.0;
/// The value of S below which slots double.
const DOUBLE: f64 = 1.6;
/// The value of S above which a start ends.
const END: f64 = 1.3;
/// The largest divisor of P at the end of a start. Half as many slots did not stretch service
/// times, so a larger divisor is not plausible.
const FURTHEST_BACK: f64 = 3.0;
/// The least and the largest number of samples before a start decides. Between these bounds, the
/// number of samples is the number of slots.
const FEWEST: (f64, f64) = (8.0, 64.0);
/// An undecided stage ends with this multiple of the samples before a decision, or after
/// [`LONGEST_STAGE`].
const UNDECIDED: f64 = 8.0;
const LONGEST_STAGE: Duration = Duration::from_secs(2);
/// The part of the slots that must be in use before they are doubled.
const USED: f64 = 0.5;

impl Law {
    /// Ends the current stage of the start if its samples suffice. Either doubles the slots for the
    /// next stage or ends the start, by the rules in the head of this module.
    pub(super) fn start(&mut self, now: Instant, view: &View) {
        let [samples, pt, reference, doubt, squares] = self.times;
        if samples <= 0.0 {
            // Requests from before this stage still hold the slots.
            self.block_began = now;
        }
        let enough = self.base.clamp(FEWEST.0, FEWEST.1);
        let elapsed = now.since(self.block_began);
        let is_last = samples > UNDECIDED * enough || elapsed > LONGEST_STAGE;
        if samples < enough || reference <= 0.0 {
            // The load that closed the law is over. A stage that went on with the next load would
            // seem to leave its slots unused.
            if elapsed > LONGEST_STAGE && view.in_flight <= 0.0 {
                self.lift(now, view);
            }
            return;
        }
        // This follows from Little's law. It leaves out the requests that have not ended yet.
        let is_used = pt * 1e9 / nanos(elapsed).max(1) as f64 > USED * self.base;
        let error = CONFIDENCE * squares.sqrt();
        let most = (pt + error) / (reference - doubt).max(0.1 * reference);
        let least = (pt - error) / (reference + doubt);
        let stretch = pt / reference;
        let is_less = stretch < 0.5 * (DOUBLE + END);
        if is_used && (most < DOUBLE || is_last && is_less) {
            self.go(2.0 * self.base, now, view);
        } else if least > END || is_last {
            self.limit = Limit::Closed;
            let target = (self.base / stretch.clamp(1.0, FURTHEST_BACK)).ceil();
            self.reach = reach_at_first(target);
            self.go(target, now, view);
        }
    }
}
