//! The knee: the number of slots above which more slots only add waiting.
//!
//! With the slots full and `e_up`, `e_down` as in [`elasticity`](crate::parallelism::elasticity); z
//! = 1.3, and 2 where P rests:
//!
//! ```text
//! e_up   + z σ < 0.8      more slots add throughput        P grows to the level above
//! e_down − z σ > 0.75     fewer slots lose hardly any      P shrinks to the level below
//! both sharp, neither     the knee                         P rests, and the reach shrinks to 12%
//! not sharp (σ > 0.7)     not known                        P stays, and the reach grows to 50%
//! ```
//!
//! N sleeping workers have e = 0 up to N slots and e ≥ 1 above: P = N. A core that is shared has 1
//! throughout.
//!
//! The question is asked every block. Two rules keep chance from answering it. Throughput is
//! concave in the slots, so if `e_up` seems less than `e_down`, both count as measurements of one
//! number (isotonic regression). And growing starts from the prior for any backend, e = 0.7 ± 0.5.
//! With P at rest, apparent room for more slots that isn't significant by two standard errors first
//! widens the reach.
//!
//! The first move stops short of the level, and those that follow in the same direction go further
//! each time (the reach up to ±50%, the move up to 1.6 and twice of it): twice or half of the right
//! number takes some ten blocks.

use super::sharing::SHARED;
use super::{CONFIDENCE, FEW, Law, REACH, View, mean, reach_at_first};
use crate::parallelism::dither::Dither;
use crate::parallelism::elasticity::{Estimate, Moments};
use crate::time::Instant;

/// The same for fewer slots at the knee: the question is asked again every block, and a wrong
/// answer costs throughput.
const CONFIDENCE_AT_REST: f64 = 2.0;
/// Elasticities below which P grows and above which it shrinks. A core that is shared has 1
/// exactly.
const GROW: f64 = 0.8;
const SHRINK: f64 = 0.75;
/// Blocks after which an undecided law reaches further.
const UNDECIDED: f64 = 16.0;
/// Standard errors below which an elasticity is usable, and below which it is as good as exact.
const SHARP: f64 = 0.7;
const CERTAIN: f64 = 0.2;
const FEWEST_BLOCKS: f64 = 4.0;
/// Most that a move down may take, ratio.
const STEP_DOWN: f64 = 0.2;
/// S above which growing needs more confidence.
const SUSPECT: f64 = 1.3;

impl Law {
    /// Moves towards the knee.
    pub(super) fn knee(&mut self, dither: &Dither, now: Instant, view: &View) {
        if self.moments.blocks() < FEWEST_BLOCKS {
            return;
        }
        let Some((up, down)) = self.moments.elasticities(dither.ln_up(), dither.ln_down()) else {
            return;
        };
        let z = CONFIDENCE;
        let sure = if self.resting > 0.0 {
            CONFIDENCE_AT_REST
        } else {
            z
        };
        if up.value + z * up.error < -1.0 || down.value + z * down.error < -1.0 {
            // No backend serves faster with more requests; something else changed.
            self.moments = Moments::default();
            return;
        }
        // Throughput is concave in the slots: elasticity doesn't fall with them. Where it seems to,
        // both measure one.
        let (up, down) = if up.value < down.value && dither.down > 0 && dither.up > 0 {
            let both = mean(up, down);
            (both, both)
        } else {
            (up, down)
        };
        let doubt = if self.stretch > SUSPECT { 3.0 } else { z };
        let grows = up.value + doubt * up.error < GROW;
        let surely = up.value + CONFIDENCE_AT_REST * up.error < GROW;
        if grows && !surely && self.resting > 0.0 {
            // The reach at rest is too short to tell: look closer, from further away.
            (self.reach, self.resting) = (reach_at_first(self.base), 0.0);
            return self.go(self.base, now, view);
        }
        let expected = up.with_prior();
        let grows =
            expected.value + doubt * expected.error < GROW || (surely && self.resting > 0.0);
        let (share_more, share_all) = self.sharing(up, down, view);
        let bounded = Estimate {
            value: up.value.min(1.0),
            ..up
        };
        let both = mean(bounded, down);
        // At the knee, the estimate above it would bias the one below.
        let far_above =
            self.resting <= 0.0 && both.value - 1.5 * z * both.error > 0.7 && down.value > 0.5;
        let shrinks =
            down.value - sure * down.error > SHRINK || (self.slots() > SHARED && far_above);
        if grows || share_more {
            let base = self.base;
            if grows {
                self.turn(1.0);
                let further = [0.75, 1.0, 1.3, 1.5, 2.0];
                let step = f64::from(dither.up) * further[self.run_length()];
                self.go(base + step.ceil(), now, view);
            } else {
                (self.run, self.resting) = (0.0, 0.0);
                self.go(base + 1.0, now, view);
            }
            // The move itself changes service times: that is no news about the backend.
            self.ln_scale += up.value.clamp(0.0, 1.0) * (self.base / base).ln();
        } else if shrinks && !share_all && dither.down > 0 {
            self.turn(-1.0);
            let further = [0.5, 1.0, 1.2, 1.4, 1.6];
            let step = f64::from(dither.down) * further[self.run_length()];
            // Too few slots cost their part of the throughput, and are left more slowly than too
            // many.
            let most = if self.base > FEW { STEP_DOWN } else { 1.0 };
            let step = step.min(most * self.base);
            self.go((self.base - step.ceil()).max(1.0), now, view);
        } else {
            let is_sharp = up.error < SHARP && (down.error < SHARP || dither.down == 0);
            let is_knee = up.value - z * up.error > GROW
                && (down.value + z * down.error < SHRINK || dither.down == 0);
            if (is_sharp && is_knee) || (up.error < CERTAIN && down.error < CERTAIN) {
                self.rest(dither, now, view);
            } else if self.resting <= 0.0
                && self.reach < REACH.1
                && self.moments.blocks() >= UNDECIDED
            {
                self.reach = REACH.1;
                self.go(self.base, now, view);
            }
        }
    }

    /// A move in this direction; one that follows another the same way reaches further.
    fn turn(&mut self, direction: f64) {
        self.run = if self.run * direction > 0.0 {
            self.run + direction
        } else {
            direction
        };
        if self.run.abs() > 1.0 || self.resting <= 0.0 {
            self.reach = (1.7 * self.reach).min(REACH.1);
        }
        self.resting = 0.0;
    }

    fn run_length(&self) -> usize {
        (self.run.abs() as usize).clamp(1, 5) - 1
    }

    /// P is at the knee: looks closer.
    fn rest(&mut self, dither: &Dither, now: Instant, view: &View) {
        self.run = 0.0;
        if self.resting > 0.0 && self.reach <= REACH.0 {
            return;
        }
        (self.reach, self.resting) = ((0.6 * self.reach).max(REACH.0), 1.0);
        if (self.base * self.reach).round().max(1.0) as u32 != dither.up {
            self.go(self.base, now, view);
        }
    }
}
