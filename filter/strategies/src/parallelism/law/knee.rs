//! The knee: the number of slots above which more slots only add waiting.
//!
//! The rules are for a stage with all slots in use. `e_up`, `e_down` and their standard errors σ
//! come from [`elasticity`](crate::parallelism::elasticity). z is 1.3, and 2 where P rests.
//!
//! ```text
//! e_up   + z σ < 0.8      more slots add throughput        P grows to the level above
//! e_down − z σ > 0.75     fewer slots lose hardly any      P shrinks to the level below
//! both sharp, neither     the knee                         P rests, and the reach shrinks to 12%
//! not sharp (σ > 0.7)     not known                        P stays, and the reach grows to 50%
//! ```
//!
//! A backend of N sleeping workers has e = 0 up to N slots and e ≥ 1 above, so P = N. A shared core
//! has e = 1 throughout.
//!
//! The law decides after every block. Three rules prevent decisions by chance. First, throughput is
//! concave in the number of slots. So if the estimate of `e_up` is less than the estimate of
//! `e_down`, both count as measurements of one number (isotonic regression). Second, a decision to
//! grow combines the estimate with the prior for any backend, e = 0.7 ± 0.5. Third, if P is at rest
//! and there seems to be room for more slots by less than two standard errors, the law first widens
//! the reach.
//!
//! The first move is shorter than the reach. Further moves in the same direction are longer each
//! time. The reach grows up to ±50%, and the move up to 1.6 times the reach downwards and 2 times
//! the reach upwards. From twice or half of the right number, P gets there within about ten blocks.

use super::sharing::SHARED;
use super::{CONFIDENCE, FEW, Law, REACH, View, mean, reach_at_first};
use crate::parallelism::dither::Dither;
use crate::parallelism::elasticity::{Estimate, Moments};
use crate::time::Instant;

/// The [`CONFIDENCE`] for fewer slots at the knee. It is higher, because the law decides again
/// after every block, and a wrong decision costs throughput.
const CONFIDENCE_AT_REST: f64 = 2.0;
/// The elasticity below which P grows. A shared core has exactly 1.
const GROW: f64 = 0.8;
/// The elasticity above which P shrinks.
const SHRINK: f64 = 0.75;
/// The number of blocks after which the law widens the reach if it has made no decision.
const UNDECIDED: f64 = 16.0;
/// The standard error below which an elasticity is usable.
const SHARP: f64 = 0.7;
/// The standard error below which an elasticity counts as exact.
const CERTAIN: f64 = 0.2;
const FEWEST_BLOCKS: f64 = 4.0;
/// The largest move down, ratio.
const STEP_DOWN: f64 = 0.2;
/// The value of S above which P grows only with more confidence.
const SUSPECT: f64 = 1.3;

impl Law {
    /// Moves P towards the knee if the measurements suffice for a decision.
    pub(super) fn knee(&mut self, dither: &Dither, now: Instant, view: &View) {
        if self.moments.blocks() < FEWEST_BLOCKS {
            return;
        }
        let Some((up, down)) = self.moments.elasticities(dither.ln_up(), dither.ln_down()) else {
            return;
        };
        let z = CONFIDENCE;
        let sure = if self.resting { CONFIDENCE_AT_REST } else { z };
        if up.value + z * up.error < -1.0 || down.value + z * down.error < -1.0 {
            // No backend gets faster with more requests, so other conditions have changed.
            self.moments = Moments::default();
            return;
        }
        // Throughput is concave in the number of slots, so elasticity doesn't fall with more slots.
        // If it seems to fall, both estimates are replaced by their mean.
        let (up, down) = if up.value < down.value && dither.down > 0 && dither.up > 0 {
            let both = mean(up, down);
            (both, both)
        } else {
            (up, down)
        };
        let doubt = if self.stretch > SUSPECT { 3.0 } else { z };
        let grows = up.value + doubt * up.error < GROW;
        let surely = up.value + CONFIDENCE_AT_REST * up.error < GROW;
        if grows && !surely && self.resting {
            // The reach at rest is too short for a decision, so widen it.
            (self.reach, self.resting) = (reach_at_first(self.base), false);
            return self.go(self.base, now, view);
        }
        let expected = up.with_prior();
        let grows = expected.value + doubt * expected.error < GROW || (surely && self.resting);
        let (share_more, share_all) = self.sharing(up, down, view);
        let bounded = Estimate {
            value: up.value.min(1.0),
            ..up
        };
        let both = mean(bounded, down);
        // P at rest is excluded, because at the knee the estimate above would bias the estimate
        // below.
        let far_above =
            !self.resting && both.value - 1.5 * z * both.error > 0.7 && down.value > 0.5;
        let shrinks =
            down.value - sure * down.error > SHRINK || (self.slots() > SHARED && far_above);
        if grows || share_more {
            let base = self.base;
            if grows {
                self.turn(1);
                let further = [0.75, 1.0, 1.3, 1.5, 2.0];
                let step = f64::from(dither.up) * further[self.run_length()];
                self.go(base + step.ceil(), now, view);
            } else {
                (self.run, self.resting) = (0, false);
                self.go(base + 1.0, now, view);
            }
            // The move itself changes service times, so scale the references.
            self.ln_scale += up.value.clamp(0.0, 1.0) * (self.base / base).ln();
        } else if shrinks && !share_all && dither.down > 0 {
            self.turn(-1);
            let further = [0.5, 1.0, 1.2, 1.4, 1.6];
            let step = f64::from(dither.down) * further[self.run_length()];
            // Limit the move, because too few slots cost throughput, and growing again takes longer
            // than shrinking.
            let most = if self.base > FEW { STEP_DOWN } else { 1.0 };
            let step = step.min(most * self.base);
            self.go((self.base - step.ceil()).max(1.0), now, view);
        } else {
            let is_sharp = up.error < SHARP && (down.error < SHARP || dither.down == 0);
            let is_knee = up.value - z * up.error > GROW
                && (down.value + z * down.error < SHRINK || dither.down == 0);
            if (is_sharp && is_knee) || (up.error < CERTAIN && down.error < CERTAIN) {
                self.rest(dither, now, view);
            } else if !self.resting && self.reach < REACH.1 && self.moments.blocks() >= UNDECIDED {
                self.reach = REACH.1;
                self.go(self.base, now, view);
            }
        }
    }

    /// Records a move in `direction`. Widens the reach if the move before had the same direction.
    fn turn(&mut self, direction: i64) {
        self.run = if self.run.signum() == direction {
            self.run.saturating_add(direction)
        } else {
            direction
        };
        if self.run.abs() > 1 || !self.resting {
            self.reach = (1.7 * self.reach).min(REACH.1);
        }
        self.resting = false;
    }

    fn run_length(&self) -> usize {
        self.run.unsigned_abs().clamp(1, 5) as usize - 1
    }

    /// Records that P is at the knee, and narrows the reach.
    fn rest(&mut self, dither: &Dither, now: Instant, view: &View) {
        self.run = 0;
        if self.resting && self.reach <= REACH.0 {
            return;
        }
        (self.reach, self.resting) = ((0.6 * self.reach).max(REACH.0), true);
        if (self.base * self.reach).round().max(1.0) as u32 != dither.up {
            self.go(self.base, now, view);
        }
    }
}
