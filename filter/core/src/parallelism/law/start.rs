//! The start of a law: slots double until they stretch service times.
//!
//! A stage of the start ends with one of these, with z = 2 standard errors to spare:
//!
//! ```text
//! d = ln pt − mean ln pt of the type's first requests, with at most 4 slots     of requests that had waited
//! mean d + z σ < ln 1.6        P doubles
//! mean d − z σ > ½ ln 1.6      P / S, S = Σ pt / Σ reference pt within 1..=3; the start is over
//! neither for long             the nearer of the two
//! ```
//!
//! By Little's law S is the number of requests in flight over those in service. Where requests are refused, hardly any
//! wait: then those that found a free slot count, too.
//!
//! σ is the error of the samples and of the reference. Eight requests of variance 0.4 are added to the samples, because
//! the first answers after a doubling are short ones and too much alike. A backend without a limit in reach keeps
//! requests waiting for no longer than the start takes, which is some service times per doubling. A dry run holds no
//! requests and has no other part.

use super::{COMPARABLE, CONFIDENCE, Law, OVERLOADED, View, reach_at_first};
use crate::time::Instant;

/// Standard errors between an estimate and its threshold: more than elsewhere, because a start asks after every exchange.
const START_CONFIDENCE: f64 = 2.0;
/// S above which a start ends.
const START_STRETCH: f64 = 1.6;
/// S beyond which a start doesn't go back: far fewer slots did not stretch service times.
const FURTHEST_BACK: f64 = 3.0;
/// Requests without which a start doesn't move; so many more, of this variance of the logarithm, are taken for seen.
const FEWEST_TO_START: f64 = 8.0;
const VARIANCE: f64 = 0.4;
const MOST_TO_START: f64 = 64.0;
/// Requests from which S is told at the end of a start.
const FEWEST_TO_END: f64 = 24.0;
/// Time after which a stage of a start that has not decided is the last one, ns.
const LONGEST_STAGE: f64 = 2e9;
/// Part of the slots that has to be in use for a start to double them because of refusals.
const USED: f64 = 0.5;

impl Law {
    /// Doubles the slots while that doesn't stretch service times.
    pub(super) fn start(&mut self, now: Instant, view: &View) {
        let elapsed = (now.as_nanos() as f64 - self.block_began).max(1.0);
        // By Little's law; what has not ended yet is missing.
        let in_flight = self.times[1] * 1e9 / elapsed;
        let mut full = self.full;
        if self.base > COMPARABLE
            && self.refused > OVERLOADED * (self.ended + self.refused)
            && in_flight > USED * self.base
        {
            // Requests are refused instead of kept waiting: all say what so many slots do to service times.
            (full.iter_mut().zip(self.spare)).for_each(|(sum, spare)| *sum += spare);
        }
        let [samples, sum, squares, inverse] = full;
        if samples < self.base.clamp(FEWEST_TO_START, MOST_TO_START) {
            return;
        }
        let mean = sum / samples;
        let own = squares - samples * mean * mean;
        let variance = (own + FEWEST_TO_START * VARIANCE) / (samples + FEWEST_TO_START);
        // So many, and as many of the reference, tell 1.6 from 1 with z = 1.3.
        let enough = 2.0 * variance * (CONFIDENCE / START_STRETCH.ln()).powi(2);
        let is_last = elapsed > LONGEST_STAGE;
        if self.base <= COMPARABLE && samples < 2.0 * enough * inverse && !is_last {
            return;
        }
        let error = START_CONFIDENCE * (variance * (1.0 + inverse) / samples).sqrt();
        let middle = 0.75 * START_STRETCH.ln();
        let is_undecided =
            is_last || samples > 4.0 * enough.max(self.base.clamp(FEWEST_TO_START, MOST_TO_START));
        if mean + error < START_STRETCH.ln() || is_undecided && mean < middle {
            self.go(self.base * 2.0, now, view);
        } else if is_undecided
            || samples >= FEWEST_TO_END && mean - error > START_STRETCH.ln() / 2.0
        {
            // A dry run has no slots to move: it goes on with what stretches and what doesn't.
            self.starting = f64::from(u8::from(!view.enforced));
            // Short requests that wait in the backend have the mean of logarithms overrate the stretch.
            let [_, pt, reference, ..] = self.times;
            let stretch = if reference > 0.0 {
                pt / reference
            } else {
                mean.exp()
            };
            let target = (self.base / stretch.clamp(1.0, FURTHEST_BACK)).ceil();
            self.reach = reach_at_first(target);
            self.go(target, now, view);
        }
    }
}
