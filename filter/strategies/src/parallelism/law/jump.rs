//! Jumps of P after a loss of capacity, which raises service times at once although P is unchanged.
//!
//! Far above the knee elasticities are hard to see, because service times are long and vary with
//! the mix of requests in the queue. But S = Σ pt / Σ reference pt rises. P jumps when S > 1.5
//! three times in a row, with at least 60 requests each time:
//!
//! ```text
//! P = 1.1 · (requests in flight) / S
//! ```
//!
//! If S doesn't fall after the jump, the requests were not waiting in the backend. Then the service
//! itself has become slower, so P returns to its old value, and current service times become the
//! references. The next such attempt is at least 10 s, 20 s … 60 s later.
//!
//! Unused slots give no information. If requests are refused because service times alone miss an
//! objective, and less than 70% of the slots are in use, P becomes 1.2 times the number of slots in
//! use.

use super::{BACK_OFF, CONFIDENCE, Law, OVERLOADED, STRETCHED, View, reach_at_first};
use crate::time::Instant;

/// The least S of the blocks before a jump. The errors of the samples and of the reference are
/// subtracted from S first.
const SURELY_STRETCHED: f64 = 1.4;
/// The number of consecutive stretched blocks before a jump. It is also the number of blocks before
/// the effect of the jump is judged.
const STRETCHED_BLOCKS: f64 = 3.0;
/// The part of the slots in use below which P counts as too large, if requests are refused.
const IDLE: f64 = 0.7;
/// The least number of samples for S. Blocks with fewer samples are merged.
const FEWEST_SAMPLES: f64 = 60.0;

impl Law {
    /// Judges the stretch of a block, and jumps if necessary. Returns whether P has changed.
    pub(super) fn jump(&mut self, now: Instant, view: &View) -> bool {
        let [samples, pt, reference, doubt, squares] = self.times;
        if samples < FEWEST_SAMPLES || reference <= 0.0 {
            return false;
        }
        self.times = [0.0; 5];
        let elapsed = (now.as_nanos() as f64 - self.watched_since).max(1.0);
        self.watched_since = now.as_nanos() as f64;
        self.stretch = pt / reference;
        if self.jumped_from > 0.0 {
            self.judged_in -= 1.0;
            if self.judged_in >= 0.0 {
                return false;
            }
            let from = std::mem::take(&mut self.jumped_from);
            if self.stretch <= self.jumped_at.sqrt() {
                self.back_off = BACK_OFF.0;
                return false;
            }
            self.rebased += 1.0;
            self.back_off = (2.0 * self.back_off).min(BACK_OFF.1);
            self.no_jump_before = now.as_nanos() as f64 + self.back_off;
            self.go(from, now, view);
            return true;
        }
        // This follows from Little's law. Weighted samples may overestimate the number of requests
        // in flight, but it is at most the number of slots.
        let in_flight = (pt * 1e9 / elapsed).min(self.base);
        let is_full = in_flight > 0.7 * self.base;
        let is_stretched =
            self.stretch > STRETCHED && (now.as_nanos() as f64) >= self.no_jump_before;
        let (ended, refused) = (
            std::mem::take(&mut self.ended),
            std::mem::take(&mut self.refused),
        );
        let is_idle = view.condemned
            && in_flight < IDLE * self.base
            && refused > OVERLOADED * (ended + refused)
            && (now.as_nanos() as f64) >= self.no_jump_before;
        if !(is_idle || is_full && is_stretched) {
            self.stretched_blocks = 0.0;
            return false;
        }
        if self.stretched_blocks == 0.0 {
            self.run_times = [0.0; 4];
        }
        let run = self.run_times.iter_mut();
        for (sum, of_block) in run.zip([pt, reference, doubt, squares]) {
            *sum += of_block;
        }
        self.stretched_blocks += 1.0;
        let target = if is_full {
            (1.1 * in_flight / self.stretch).round().max(1.0)
        } else {
            (1.2 * in_flight).ceil().max(1.0)
        };
        let [pt, reference, doubt, squares] = self.run_times;
        let surely = (pt - CONFIDENCE * squares.sqrt()) / (reference + doubt);
        if self.stretched_blocks < STRETCHED_BLOCKS
            || target >= self.base
            || is_full && surely < SURELY_STRETCHED
        {
            return false;
        }
        if !is_full {
            // Requests are refused because of service times while slots are unused. So P becomes
            // slightly more than the number of slots in use.
            (self.reach, self.resting) = (reach_at_first(target), 0.0);
            self.no_jump_before = now.as_nanos() as f64 + BACK_OFF.0;
            self.go(target, now, view);
            return true;
        }
        (self.jumped_from, self.jumped_at, self.judged_in) =
            (self.base, self.stretch, STRETCHED_BLOCKS);
        (self.reach, self.resting) = (reach_at_first(target), 0.0);
        self.go(target, now, view);
        true
    }
}
