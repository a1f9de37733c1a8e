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

use super::{
    BACK_OFF, CONFIDENCE, Jump, Law, OVERLOADED, STRETCHED, Stretched, View, add, reach_at_first,
};
use crate::time::{Instant, nanos};

/// The least S of the blocks before a jump. The errors of the samples and of the reference are
/// subtracted from S first.
const SURELY_STRETCHED: f64 = 1.4;
/// The number of consecutive stretched blocks before a jump. It is also the number of blocks before
/// the effect of the jump is judged.
const STRETCHED_BLOCKS: u32 = 3;
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
        let elapsed = nanos(now.since(self.watched_since)).max(1) as f64;
        self.watched_since = now;
        self.stretch = pt / reference;
        if let Some(jump) = &mut self.jump {
            if jump.blocks > 0 {
                jump.blocks -= 1;
                return false;
            }
            let jump = *jump;
            self.jump = None;
            if self.stretch <= jump.stretch.sqrt() {
                self.back_off = BACK_OFF.0;
                return false;
            }
            self.rebased = self.rebased.wrapping_add(1);
            self.back_off = (2 * self.back_off).min(BACK_OFF.1);
            self.no_jump_before = now + self.back_off;
            self.go(jump.from, now, view);
            return true;
        }
        // This follows from Little's law. Weighted samples may overestimate the number of requests
        // in flight, but it is at most the number of slots.
        let in_flight = (pt * 1e9 / elapsed).min(self.base);
        let is_full = in_flight > 0.7 * self.base;
        let (ended, refused) = (
            std::mem::take(&mut self.ended),
            std::mem::take(&mut self.refused),
        );
        let is_idle = view.condemned
            && in_flight < IDLE * self.base
            && refused > OVERLOADED * (ended + refused);
        let is_stretched = is_full && self.stretch > STRETCHED;
        if !(is_idle || is_stretched) || now < self.no_jump_before {
            self.stretched = Stretched::default();
            return false;
        }
        self.stretched.blocks = self.stretched.blocks.saturating_add(1);
        add(&mut self.stretched.times, [pt, reference, doubt, squares]);
        let target = if is_full {
            (1.1 * in_flight / self.stretch).round().max(1.0)
        } else {
            (1.2 * in_flight).ceil().max(1.0)
        };
        let [pt, reference, doubt, squares] = self.stretched.times;
        let surely = (pt - CONFIDENCE * squares.sqrt()) / (reference + doubt);
        if self.stretched.blocks < STRETCHED_BLOCKS
            || target >= self.base
            || is_full && surely < SURELY_STRETCHED
        {
            return false;
        }
        if is_full {
            self.jump = Some(Jump {
                from: self.base,
                stretch: self.stretch,
                blocks: STRETCHED_BLOCKS,
            });
        } else {
            // Requests are refused because of service times while slots are unused. So P becomes
            // slightly more than the number of slots in use.
            self.no_jump_before = now + BACK_OFF.0;
        }
        (self.reach, self.resting) = (reach_at_first(target), false);
        self.go(target, now, view);
        true
    }
}
