//! What to do about an elasticity: the estimate of the number of slots, and how it moves.
//!
//! Four parts, in the order in which a backend meets them.
//!
//! **Start.** From few slots the number doubles whenever requests waited for one and the slots did not stretch
//! service times, with z = 2 standard errors to spare:
//!
//! ```text
//! d = ln pt − mean ln pt of the type's first requests, with at most 4 slots     of requests that had waited
//! mean d + z σ < ln 1.6        P doubles
//! mean d − z σ > ½ ln 1.6      P / S, S = Σ pt / Σ reference pt within 1..=3; the start is over
//! neither for long             the nearer of the two
//! ```
//!
//! Where requests are refused, hardly any wait: by then those that found a free slot count, too.
//!
//! By Little's law S is the number of requests in flight over those in service. σ is that of the samples and of the
//! reference, and counts eight requests of
//! variance 0.4 that nobody sent: the first answers after a doubling are the short ones, and too much alike. A
//! backend without a limit in reach keeps nobody waiting for longer than the start takes, some service times per
//! doubling. A dry run, which holds nobody, has no other part.
//!
//! **Knee.** With the slots full and `e_up`, `e_down` as in [`super::elasticity`]; z = 1.3, 2 where P rests:
//!
//! ```text
//! e_up   + z σ < 0.8      more slots add throughput        P grows to the level above
//! e_down − z σ > 0.75     fewer slots lose hardly any      P shrinks to the level below
//! both sharp, neither     the knee                         P rests, and the schedule's reach shrinks to 12%
//! not sharp (σ > 0.7)     nobody knows                     P stays, and the reach grows to 50%
//! ```
//!
//! N sleeping workers have e = 0 up to N slots and e ≥ 1 above: P = N. A core that is shared has 1 throughout. Two
//! things keep a question that is asked every block from being answered by chance. Throughput is concave in the
//! slots, so where `e_up` seems less than `e_down` both are taken for measurements of one number (isotonic
//! regression). And growing starts from what is to be expected of any backend, e = 0.7 ± 0.5; where P rests, what
//! looks like room for more slots, but not by two standard errors, first widens the reach. The first move stops short of the level, those
//! that follow in the same direction further each time (the reach up to ±50%, the move up to 1.6 and twice of it), so
//! that twice or half of the right number is a matter of some ten blocks.
//!
//! **Sharing.** A single core gives its throughput to one request as well as to five (e = 1 throughout), but with
//! one slot a long request keeps the short ones waiting for all of its time, while three share the core and let
//! them pass. That is worth a slot or two above the knee, if the backend *shares* itself. A queue in it would not
//! help: there, a slot more adds the same wait to short and long requests, so that the elasticity of short types
//! exceeds that of long ones by far, while sharing stretches all alike. So with up to [`SHARED`] slots
//!
//! ```text
//! (e_short − e_long) + z σ < 0.5    one more slot
//! (e_short − e_long) − z σ < 0.3    not fewer, whatever e_down says
//! ```
//!
//! for types shorter and longer than the mean, and only while service times leave room in the objectives.
//!
//! **Jump.** Far above the knee elasticities are hard to see: service times are long and vary with what happens
//! to be in the queue. But when capacity halves it shows at once, at an unchanged P: S > 1.5 three times in a row, of
//! at least 60 requests each. P = 1.1 · (requests in flight) / S then. If S stays, requests were not waiting: the
//! service itself got slower. P returns, today's times become the reference, and the next such attempt is at least
//! 10 s, 20 s … 60 s off. And where requests are refused, because of service times that miss an objective by
//! themselves, while less than 70% of the slots are in use, P becomes 1.2 times the number in use: slots that are
//! not filled can't be learned from.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::dither::{BLOCK, Dither};
use super::elasticity::{Estimate, Moments, Slope, Sums};
use crate::time::{Instant, nanos};

/// Slots that are worth having on a backend that shares itself, whatever its throughput needs. Where long
/// requests take half of the slots' time, all of five slots are held by long ones 3% of the time.
pub const SHARED: u32 = 3;

/// Standard errors between an estimate and its threshold.
const CONFIDENCE: f64 = 1.3;
/// The same for fewer slots at the knee: the question is asked again every block, and being wrong costs throughput.
const CONFIDENCE_AT_REST: f64 = 2.0;
/// The same for a start, which asks after every exchange.
const START_CONFIDENCE: f64 = 2.0;
/// Elasticities below which P grows and above which it shrinks. A core that is shared has 1 exactly.
const GROW: f64 = 0.8;
const SHRINK: f64 = 0.75;
/// Reach of the schedule at the knee and at most, ratio to P.
const REACH: (f64, f64) = (0.12, 0.5);
/// Reach after a start or a jump.
const REACH_AT_FIRST: f64 = 0.3;
/// Slots of which a few make such a difference to service times that it takes a wide reach to see it.
const FEW: f64 = 12.0;
/// Blocks after which an undecided law reaches further.
const UNDECIDED: f64 = 16.0;
/// Standard errors below which an elasticity says something, and below which it says all that there is to say.
const SHARP: f64 = 0.7;
const CERTAIN: f64 = 0.2;
/// Throughput that may be spent on time below the knee, ratio.
const LOSS: f64 = 0.03;
/// Blocks in this time count, ns, but no fewer and no more than these; those before anything is decided, and those before sharing is.
const MEMORY: f64 = 6e9;
const BLOCKS: (f64, f64) = (24.0, 60.0);
const FEWEST_BLOCKS: f64 = 4.0;
const FEWEST_TO_SHARE: f64 = 10.0;
/// Most that a move down may take, ratio.
const STEP_DOWN: f64 = 0.2;
/// S above which a start ends, and above which slots are too many.
const START_STRETCH: f64 = 1.6;
const STRETCHED: f64 = 1.5;
/// S above which growing needs more confidence.
const SUSPECT: f64 = 1.3;
/// Least S of the blocks before a jump, less the errors of the samples and of the reference.
const SURELY_STRETCHED: f64 = 1.4;
/// S beyond which a start doesn't go back: far fewer slots did not stretch service times.
const FURTHEST_BACK: f64 = 3.0;
/// Blocks in a row that are stretched before a jump, and after it before its effect is judged.
const STRETCHED_BLOCKS: f64 = 3.0;
/// Slots of a start up to which service times become the reference.
const COMPARABLE: f64 = 4.0;
/// Requests without which a start doesn't move; so many more, of this variance of the logarithm, are taken for seen.
const FEWEST_TO_START: f64 = 8.0;
const VARIANCE: f64 = 0.4;
const MOST_TO_START: f64 = 64.0;
/// Requests from which S is told at the end of a start.
const FEWEST_TO_END: f64 = 24.0;
/// Time after which a stage of a start that has not decided is the last one, ns.
const LONGEST_STAGE: f64 = 2e9;
/// Part of the requests refused, and part of the slots in use, at which slots are too many.
const OVERLOADED: f64 = 0.05;
const IDLE: f64 = 0.7;
/// Part of the slots that has to be in use for a start to double them because of refusals.
const USED: f64 = 0.5;
/// Samples that it takes to tell S; blocks with fewer are put together.
const FEWEST_SAMPLES: f64 = 60.0;
/// Pause after a jump that was wrong, ns.
const BACK_OFF: (f64, f64) = (5e9, 60e9);
/// Shortest and longest slot of the schedule, ns.
const SLOT: (f64, f64) = (20e6, 1e9);
/// Requests that a slot of the schedule should see.
const REQUESTS_PER_SLOT: f64 = 8.0;

/// What a worker measured since it last shared it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fresh {
    /// The schedule that it was measured under.
    pub epoch: f64,
    /// Requests that ended, and those refused.
    pub requests: f64,
    /// See `requests`.
    pub refused: f64,
    /// Of those that started under this schedule: samples, Σ pt and Σ reference pt, s, Σ of the references' standard
    /// errors, s, Σ pt², s².
    pub times: [f64; 5],
    /// Of those that had waited for a slot: samples, Σ d and Σ d², with d = ln (pt / reference pt), Σ 1 / n with n
    /// requests that references are of.
    pub full: [f64; 4],
    /// The same of those that found a free slot.
    pub spare: [f64; 4],
    /// Of those that had waited: the regression's sums.
    pub sums: Sums,
    /// Of those that had waited, short and long types: n, Σx, Σy, Σx², Σxy.
    pub by_length: [[f64; 5]; 2],
}

/// What the worker that runs the law knows of the stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    /// Mean service time, s.
    pub mean: f64,
    /// Service times take up less than 60% of the objectives, for 7 of 10 requests.
    pub room: bool,
    /// There are types twice as long as others.
    pub mixed: bool,
    /// There is a type whose service time alone misses an objective.
    pub condemned: bool,
    /// Requests are held while no slot is free.
    pub enforced: bool,
    /// Fewest and most slots.
    pub bounds: (u32, u32),
}

/// The state that the workers share. Times are in ns.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Law {
    epoch: f64,
    starting: f64,
    base: f64,
    reach: f64,
    resting: f64,
    run: f64,
    slot: f64,
    /// What to add to times for the schedule, so that all processes have the same.
    offset: f64,
    block: f64,
    block_began: f64,
    /// What `times` are since.
    watched_since: f64,
    /// Times that the reference was replaced by today's times.
    rebased: f64,
    /// Σ ln of the factors that the reference was multiplied by.
    ln_scale: f64,
    /// Requests per ns, and what is counted towards it.
    rate: f64,
    counted: f64,
    counted_since: f64,
    /// Requests that ended and that were refused in this block.
    ended: f64,
    refused: f64,
    stretch: f64,
    stretched_blocks: f64,
    /// Of `times`, the sums over these blocks, without samples.
    run_times: [f64; 4],
    /// Base before a jump, 0 for none, S then, and blocks until it is judged.
    jumped_from: f64,
    jumped_at: f64,
    judged_in: f64,
    back_off: f64,
    no_jump_before: f64,
    times: [f64; 5],
    full: [f64; 4],
    spare: [f64; 4],
    sums: Sums,
    by_length: [[f64; 5]; 2],
    moments: Moments,
    slopes: [Slope; 2],
}

impl Law {
    /// Begins with so many slots.
    #[must_use]
    pub fn new(now: Instant, slots: u32, wall_clock_offset: Duration) -> Self {
        Self {
            starting: 1.0,
            base: f64::from(slots),
            reach: REACH_AT_FIRST,
            slot: 40e6,
            offset: nanos(wall_clock_offset) as f64,
            stretch: 1.0,
            back_off: BACK_OFF.0,
            counted_since: now.as_nanos() as f64,
            ..Self::default()
        }
    }

    /// Whether a record can be of a law.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let numbers = [self.base, self.slot, self.offset, self.epoch, self.ln_scale];
        numbers.iter().all(|number| number.is_finite()) && self.base >= 1.0
    }

    /// The estimate, slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.base as u32
    }

    /// Changes with the schedule.
    #[must_use]
    pub fn epoch(&self) -> f64 {
        self.epoch
    }

    /// How often references were replaced by today's times, and the ln of all factors for them.
    #[must_use]
    pub fn references(&self) -> (f64, f64) {
        (self.rebased, self.ln_scale)
    }

    /// Whether P is at the knee and service times are what they were, so that references may follow them.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.resting > 0.0 && self.stretch < STRETCHED
    }

    /// Whether today's times may be what later ones are compared with: more slots may be too many already. A type
    /// whose reference is not known yet has no choice once the start is over.
    #[must_use]
    pub fn is_comparable(&self, known: bool) -> bool {
        self.base <= COMPARABLE || (self.starting <= 0.0 && !known)
    }

    /// The schedule.
    #[must_use]
    pub fn dither(&self, bounds: (u32, u32), seed: u64) -> Dither {
        let (least, most) = bounds;
        let base = self.slots().max(1);
        let (mut up, mut down) = (0, 0);
        if self.starting <= 0.0 {
            let step = (self.base * self.reach).round().max(1.0);
            let lower = (0.7 * step).round().max(1.0);
            up = (step as u32).min(most.saturating_sub(base));
            down = (lower as u32).min(base.saturating_sub(least.max(1)));
        }
        let below = match (down, self.resting > 0.0) {
            (0, _) => 0.0,
            (_, true) => (LOSS * self.base / f64::from(up.max(1))).min(0.2),
            (_, false) => 0.4,
        };
        Dither {
            base,
            up,
            down,
            below,
            slot: Duration::from_nanos(self.slot as u64),
            offset: Duration::from_nanos(self.offset as u64),
            seed,
        }
    }

    /// Adds what a worker measured. What belongs to another schedule only counts as load.
    pub fn add(&mut self, fresh: &Fresh) {
        self.counted += fresh.requests;
        self.ended += fresh.requests;
        self.refused += fresh.refused;
        if fresh.epoch != self.epoch {
            return;
        }
        let sums = self
            .times
            .iter_mut()
            .chain(&mut self.full)
            .chain(&mut self.spare)
            .chain(&mut self.sums.of);
        let fresh_sums = fresh.times.iter().chain(&fresh.full).chain(&fresh.spare);
        let fresh_sums = fresh_sums.chain(&fresh.sums.of);
        for (sum, fresh) in sums.zip(fresh_sums) {
            *sum += fresh;
        }
        let lengths = self.by_length.iter_mut().flatten();
        for (sum, fresh) in lengths.zip(fresh.by_length.iter().flatten()) {
            *sum += fresh;
        }
    }

    /// Runs what is due.
    pub fn step(&mut self, now: Instant, view: &View, seed: u64) {
        self.count_rate(now);
        let (least, most) = view.bounds;
        let within = self.base.clamp(f64::from(least), f64::from(most));
        if within != self.base {
            self.go(within, now, view);
        }
        if self.starting > 0.0 {
            return self.start(now, view);
        }
        if !view.enforced {
            return;
        }
        let dither = self.dither(view.bounds, seed);
        let block = dither.block(now) as f64;
        if block == self.block {
            return;
        }
        self.moments.close(&self.sums);
        for (slope, sums) in self.slopes.iter_mut().zip(&self.by_length) {
            slope.close(sums);
            slope.keep(BLOCKS.0);
        }
        let kept = if self.resting > 0.0 {
            BLOCKS.0
        } else {
            (MEMORY / (self.slot * BLOCK as f64)).clamp(BLOCKS.0, BLOCKS.1)
        };
        self.moments.keep(kept);
        (self.sums, self.by_length) = (Sums::default(), [[0.0; 5]; 2]);
        (self.block, self.block_began) = (block, now.as_nanos() as f64);
        if !self.jump(now, view) {
            self.knee(&dither, now, view);
        }
    }

    fn count_rate(&mut self, now: Instant) {
        let elapsed = now.as_nanos() as f64 - self.counted_since;
        if elapsed >= 5e8 {
            let rate = self.counted / elapsed;
            self.rate = if self.rate > 0.0 {
                0.5 * (self.rate + rate)
            } else {
                rate
            };
            (self.counted, self.counted_since) = (0.0, now.as_nanos() as f64);
        }
    }

    /// Doubles the slots while that doesn't stretch service times.
    fn start(&mut self, now: Instant, view: &View) {
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

    /// Looks at the stretch of a block; whether it changed the slots.
    fn jump(&mut self, now: Instant, view: &View) -> bool {
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
        // By Little's law; samples may stand for more requests than one, but not for more than slots.
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
            // Requests are refused for the time that the backend takes, with slots to spare: learn with those in use.
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

    /// Moves towards the knee.
    fn knee(&mut self, dither: &Dither, now: Instant, view: &View) {
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
            // No backend serves faster the more requests it has; something else moved.
            self.moments = Moments::default();
            return;
        }
        // Throughput is concave in the slots: elasticity doesn't fall with them. Where it seems to, both measure one.
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
        // At the knee, what is measured above it would speak for what is measured below.
        let far_above =
            self.resting <= 0.0 && both.value - 1.5 * z * both.error > 0.7 && down.value > 0.5;
        // All is known that there is to know: what is more likely, before P rests.
        let certain = self.resting <= 0.0 && up.error < CERTAIN && down.error < CERTAIN;
        let shrinks = down.value - sure * down.error > SHRINK
            || (self.slots() > SHARED && (far_above || certain && down.value > SHRINK));
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
            // What the move itself does to service times is no news about the backend.
            self.ln_scale += up.value.clamp(0.0, 1.0) * (self.base / base).ln();
        } else if shrinks && !share_all && dither.down > 0 {
            self.turn(-1.0);
            let further = [0.5, 1.0, 1.2, 1.4, 1.6];
            let step = f64::from(dither.down) * further[self.run_length()];
            // Too few slots cost their part of the throughput, and are left more slowly than too many.
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

    /// Whether a slot more lets short requests pass long ones, and whether the slots that there are do.
    fn sharing(&self, up: Estimate, down: Estimate, view: &View) -> (bool, bool) {
        let [short, long] = [self.slopes[0].elasticity(), self.slopes[1].elasticity()];
        let (apart, error) = (short.value - long.value, short.error.hypot(long.error));
        let z = CONFIDENCE;
        let open =
            view.room && view.mixed && error < 100.0 && self.moments.blocks() >= FEWEST_TO_SHARE;
        (
            open && self.slots() < SHARED
                && apart + z * error < 0.5
                && up.value - z * up.error < 1.25,
            open && self.slots() <= SHARED
                && apart - z * error < 0.3
                && down.value - z * down.error < 1.1,
        )
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

    /// Begins a new schedule around so many slots.
    fn go(&mut self, slots: f64, now: Instant, view: &View) {
        let (least, most) = view.bounds;
        self.base = slots.clamp(f64::from(least.max(1)), f64::from(most));
        self.epoch += 1.0;
        if view.mean > 0.0 {
            let filled = if self.rate > 0.0 {
                REQUESTS_PER_SLOT / self.rate
            } else {
                0.0
            };
            let wanted = (1.5e9 * view.mean).max(filled);
            // Powers of two, so that proxies that measure a little differently have the same schedule.
            let doublings = (wanted.clamp(SLOT.0, SLOT.1) / SLOT.0).log2().round();
            self.slot = SLOT.0 * doublings.exp2();
        }
        (self.times, self.full, self.spare) = ([0.0; 5], [0.0; 4], [0.0; 4]);
        (self.ended, self.refused) = (0.0, 0.0);
        (self.sums, self.by_length) = (Sums::default(), [[0.0; 5]; 2]);
        (self.moments, self.slopes) = (Moments::default(), [Slope::default(); 2]);
        self.stretched_blocks = 0.0;
        self.block = self.dither(view.bounds, 0).block(now) as f64;
        self.block_began = now.as_nanos() as f64;
        self.watched_since = self.block_began;
    }
}

/// Reach after a start or a jump to so many slots.
fn reach_at_first(slots: f64) -> f64 {
    if slots <= FEW {
        REACH.1
    } else {
        REACH_AT_FIRST
    }
}

/// The mean of two estimates, weighted by what is known of each.
fn mean(a: Estimate, b: Estimate) -> Estimate {
    let weight = |estimate: Estimate| estimate.error.max(1e-3).powi(-2);
    let all = weight(a) + weight(b);
    Estimate {
        value: (a.value * weight(a) + b.value * weight(b)) / all,
        error: all.powf(-0.5),
    }
}
