//! The control law of P, the number of slots, by the elasticity of service times.
//!
//! The law has five parts, in the order in which they apply to a backend. The law is [`open`] until
//! objectives are about to be missed. If it has few measurements then, a [`start`] doubles a small
//! number of slots. The [`knee`] moves P to the point beyond which more slots only add waiting.
//! [`sharing`] keeps a slot or two above the knee if short requests overtake long ones. A [`jump`]
//! follows a sudden loss of capacity.

mod jump;
mod knee;
mod open;
mod sharing;
mod start;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::dither::{BLOCK, Dither};
use super::elasticity::{Estimate, Moments, Sums, add};
use crate::time::{Instant, as_nanos, nanos};

/// The distance from a threshold beyond which an estimate is significant, standard errors.
const CONFIDENCE: f64 = 1.3;
/// The reach of the schedule at the knee, and its maximum, as ratios to P.
const REACH: (f64, f64) = (0.12, 0.5);
/// The reach after the law closed or jumped, as a ratio to P.
const REACH_AT_FIRST: f64 = 0.3;
/// The number of slots up to which the schedule needs a wide reach for a visible effect on service
/// times.
const FEW: f64 = 12.0;
/// The fraction of the throughput that time below the knee may cost.
const LOSS: f64 = 0.03;
/// The age up to which blocks count, ns.
const MEMORY: f64 = 6e9;
/// The least and the largest number of blocks that count.
const BLOCKS: (f64, f64) = (24.0, 60.0);
/// The value of S above which there are too many slots.
const STRETCHED: f64 = 1.5;
/// The part of refused requests above which a backend counts as overloaded.
const OVERLOADED: f64 = 0.05;
/// The pause after a jump to the slots in use, and the longest pause after a wrong jump. The pause
/// after the first wrong jump is twice the former.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// The lengths of the shortest and the longest slot of the schedule, ns.
const SLOT: (f64, f64) = (20e6, 1e9);
/// The least time over which the rate of requests is measured.
const RATE_TIME: Duration = Duration::from_millis(500);
/// The number of requests that a slot of the schedule should contain.
const REQUESTS_PER_SLOT: f64 = 8.0;

/// A worker's measurements since it last shared them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Fresh {
    /// The epoch of the schedule under which the measurements were taken.
    pub epoch: u64,
    /// The number of requests that ended.
    pub requests: f64,
    /// The number of refused requests.
    pub refused: f64,
    /// Sums over requests that started under this schedule. They are the number of samples, Σ pt
    /// (s), Σ reference pt (s), Σ of the references' standard errors (s), and Σ pt² (s²).
    pub times: [f64; 5],
    /// The number of samples, the number of answers for which they count, and the lateness of these
    /// answers ([`open`]).
    pub late: [f64; 3],
    /// The slot time that refused requests would have taken, s.
    pub shed: f64,
    /// The regression's sums, over requests that had waited.
    pub sums: Sums,
    /// The sums of requests of short and of long types. In these, u is the logarithm of the level
    /// relative to the base, and d is 0.
    pub by_length: [Sums; 2],
}

/// The state of the stage on the worker that runs the law.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct View {
    /// The mean service time, s.
    pub mean: f64,
    /// Whether, for at least 7 of 10 requests, service times take at most 60% of the objectives.
    pub room: bool,
    /// Whether some types take more than twice as long as others.
    pub mixed: bool,
    /// Whether a type's service time alone misses an objective.
    pub condemned: bool,
    /// Whether a type is broken.
    pub broken: bool,
    /// Whether the worker has had no answers for long, or never. It then knows no times of types,
    /// and perhaps no mean.
    pub is_quiet: bool,
    /// Whether requests are held while no slot is free.
    pub enforced: bool,
    /// The number of slots in use.
    pub in_flight: f64,
    /// The number of requests that wait for a slot.
    pub queued: f64,
    /// The shortest last objective among the types that aren't rare and can keep it, as a slot
    /// time, s. It is infinite without objectives.
    pub shortest: f64,
    /// The least and the largest number of slots.
    pub bounds: (u32, u32),
    /// The offset from the process's clock to a clock that all processes share.
    pub wall_clock_offset: Duration,
}

/// The limit on the slots in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
enum Limit {
    /// There is no limit, or only a ceiling ([`open`]).
    #[default]
    Open,
    /// Slots double until service times are stretched ([`start`]).
    Starting,
    /// P is the limit.
    Closed,
}

/// A period in which an open law is at its ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct AtCeiling {
    /// The length of the period, s.
    secs: f64,
    /// The sums of `times` over the period.
    ended: [f64; 5],
}

/// Consecutive blocks with stretched service times.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
struct Stretched {
    /// The number of blocks.
    blocks: u32,
    /// The sums of `times` over the blocks, without samples.
    times: [f64; 4],
}

/// A jump whose effect is not judged yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Jump {
    /// P before the jump.
    from: f64,
    /// S at the jump.
    stretch: f64,
    /// The number of blocks until the jump is judged.
    blocks: u32,
}

/// The state that the workers share.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Law {
    epoch: u64,
    limit: Limit,
    /// P. While the law is open, the recent maximum of slots in use.
    base: f64,
    /// The P at rest that was found before the law opened.
    found: Option<f64>,
    /// The moving average of the lateness of answers.
    late: f64,
    /// The number of answers so far.
    answers: f64,
    /// The slot time that refused requests would have taken since the law last decided whether to
    /// open, s. It is used only while P is limited.
    shed: f64,
    /// The time at which the slots in use were last read. It is used only while P is limited.
    looked: Instant,
    /// The time at which the law opened.
    opened: Instant,
    /// The time for which the law was open before it closed, s.
    lasted: f64,
    /// While the law is open, a decaying Σ of the references of requests that ended, s. Otherwise Σ
    /// of slots in use × time, s.
    work: f64,
    /// The time that `work` covers, s.
    watched: f64,
    /// The recent maximum of work that ended, in slots.
    peak: f64,
    /// The number of slots that may be in use while the law is open, or `None` without a ceiling.
    ceiling: Option<f64>,
    /// The mean service time before the ceiling was reached, s.
    turn: f64,
    /// The period since the ceiling was reached, or `None` below the ceiling.
    at_ceiling: Option<AtCeiling>,
    /// The largest part of P by which the schedule goes above P.
    reach: f64,
    /// Whether P is at the knee.
    resting: bool,
    /// The number of consecutive moves in the same direction, negative for moves down.
    run: i64,
    /// The length of a slot of the schedule.
    #[serde(with = "as_nanos")]
    slot: Duration,
    /// The offset that the schedule adds to its times, so that all processes have the same
    /// schedule.
    #[serde(with = "as_nanos")]
    offset: Duration,
    /// The number of the current block.
    block: u64,
    /// The time at which the current block began.
    block_began: Instant,
    /// The start of the measurements in `times`.
    watched_since: Instant,
    /// The number of times that current times replaced the references.
    rebased: u32,
    /// The sum of ln of the factors by which the references were multiplied.
    ln_scale: f64,
    /// The number of requests per ns.
    rate: f64,
    /// The number of requests since `counted_since`, from which the next `rate` follows.
    counted: f64,
    counted_since: Instant,
    /// The number of requests that ended in this block.
    ended: f64,
    /// The number of requests that were refused in this block.
    refused: f64,
    /// S, the factor by which service times are stretched.
    stretch: f64,
    stretched: Stretched,
    jump: Option<Jump>,
    #[serde(with = "as_nanos")]
    back_off: Duration,
    no_jump_before: Instant,
    times: [f64; 5],
    sums: Sums,
    by_length: [Sums; 2],
    moments: Moments,
    slopes: [Moments; 2],
}

crate::shared::record!(Law, 20);

impl Law {
    /// Creates an open law. `slots` is the assumed number of slots that the backend can use.
    pub fn new(now: Instant, slots: u32, wall_clock_offset: Duration) -> Self {
        Self {
            opened: now,
            base: f64::from(slots),
            reach: REACH_AT_FIRST,
            slot: Duration::from_millis(40),
            offset: wall_clock_offset,
            stretch: 1.0,
            back_off: BACK_OFF.0,
            counted_since: now,
            watched_since: now,
            ..Self::default()
        }
    }

    /// Whether the values of a decoded record are plausible.
    pub fn is_sound(&self) -> bool {
        self.base.is_finite() && self.base >= 1.0 && self.ln_scale.is_finite()
    }

    /// Whether a start is in progress, in which slots double until service times are stretched.
    pub fn is_starting(&self) -> bool {
        self.limit == Limit::Starting
    }

    /// Returns the estimate, in slots.
    pub fn slots(&self) -> u32 {
        self.base as u32
    }

    /// Returns the number of the schedule. It changes with every new schedule.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of times that current times replaced the references, and Σ ln of the
    /// factors by which references were multiplied.
    pub fn references(&self) -> (u32, f64) {
        (self.rebased, self.ln_scale)
    }

    /// Whether P is at the knee and service times are unchanged. Only then may references follow
    /// service times.
    pub fn is_settled(&self) -> bool {
        self.resting && self.stretch < STRETCHED
    }

    /// Returns the schedule.
    pub fn dither(&self, bounds: (u32, u32), seed: u64) -> Dither {
        let (least, most) = bounds;
        let base = if self.is_open() {
            self.ceiling(bounds)
        } else {
            self.slots().max(1)
        };
        let (mut up, mut down) = (0, 0);
        if self.limit == Limit::Closed {
            let step = (self.base * self.reach).round().max(1.0);
            let lower = (0.7 * step).round().max(1.0);
            up = (step as u32).min(most.saturating_sub(base));
            down = (lower as u32).min(base.saturating_sub(least.max(1)));
        }
        let below = match (down, self.resting) {
            (0, _) => 0.0,
            (_, true) => (LOSS * self.base / f64::from(up.max(1))).min(0.2),
            // With few slots, the effect is visible only after much time below.
            (_, false) if self.base <= FEW => 0.4,
            (_, false) => (LOSS * self.base / f64::from(down)).min(0.4),
        };
        Dither {
            base,
            up,
            down,
            below,
            slot: self.slot,
            offset: self.offset,
            seed,
        }
    }

    /// Adds a worker's measurements. Measurements under another schedule only count as load.
    pub fn add(&mut self, fresh: &Fresh) {
        self.counted += fresh.requests;
        self.ended += fresh.requests;
        self.refused += fresh.refused;
        self.shed += fresh.shed;
        if fresh.epoch != self.epoch {
            return;
        }
        self.answered(fresh.late);
        add(&mut self.times, fresh.times);
        self.sums.merge(&fresh.sums);
        for (sums, fresh) in self.by_length.iter_mut().zip(&fresh.by_length) {
            sums.merge(fresh);
        }
    }

    /// Leaves out the time before `until`, in which a worker was suspended.
    pub(super) fn leave_out(&mut self, until: Instant) {
        if self.counted_since < until {
            (self.counted, self.counted_since) = (0.0, until);
        }
        if self.watched_since < until {
            (self.times, self.watched_since) = ([0.0; 5], until);
        }
        self.looked = self.looked.max(until);
        self.block_began = self.block_began.max(until);
    }

    /// Runs the steps that are due.
    pub fn step(&mut self, now: Instant, view: &View, seed: u64) {
        self.count_rate(now);
        let (least, most) = view.bounds;
        let within = self.base.clamp(f64::from(least), f64::from(most));
        // The wall clock may be set, and the process's clock stops while the machine is suspended.
        let step = self.offset.abs_diff(view.wall_clock_offset);
        if within != self.base || step > self.slot / 2 {
            self.go(within, now, view);
        }
        match self.limit {
            Limit::Open => return self.watch(now, view),
            Limit::Starting if view.enforced => return self.start(now, view),
            Limit::Starting | Limit::Closed => {}
        }
        // A quiet worker sees no mixed types and no condemned type, and would take away the slots
        // for sharing. Another worker judges the block at its next look.
        if self.reopen(now, view) || !view.enforced || view.is_quiet {
            return;
        }
        let dither = self.dither(view.bounds, seed);
        let block = dither.block(now);
        if block == self.block {
            return;
        }
        self.moments.close(&self.sums);
        for (slope, sums) in self.slopes.iter_mut().zip(&self.by_length) {
            slope.close(sums);
            slope.keep(BLOCKS.0);
        }
        let kept = if self.resting {
            BLOCKS.0
        } else {
            (MEMORY / (nanos(self.slot) as f64 * BLOCK as f64)).clamp(BLOCKS.0, BLOCKS.1)
        };
        self.moments.keep(kept);
        (self.sums, self.by_length) = Default::default();
        (self.block, self.block_began) = (block, now);
        if !self.jump(now, view) {
            self.knee(&dither, now, view);
        }
    }

    fn count_rate(&mut self, now: Instant) {
        let elapsed = now.since(self.counted_since);
        if elapsed >= RATE_TIME {
            let rate = self.counted / nanos(elapsed) as f64;
            self.rate = if self.rate > 0.0 {
                0.5 * (self.rate + rate)
            } else {
                rate
            };
            (self.counted, self.counted_since) = (0.0, now);
        }
    }

    /// Starts a new schedule around `slots`.
    fn go(&mut self, slots: f64, now: Instant, view: &View) {
        let (least, most) = view.bounds;
        self.base = slots.clamp(f64::from(least.max(1)), f64::from(most));
        self.epoch = self.epoch.wrapping_add(1);
        self.offset = view.wall_clock_offset;
        // A worker without answers knows no mean.
        let mean = if view.mean > 0.0 {
            view.mean
        } else {
            self.turn
        };
        if mean > 0.0 {
            let filled = if self.rate > 0.0 {
                REQUESTS_PER_SLOT / self.rate
            } else {
                0.0
            };
            let wanted = (1.5e9 * mean).max(filled);
            // Powers of two give proxies with slightly different measurements the same schedule.
            let doublings = (wanted.clamp(SLOT.0, SLOT.1) / SLOT.0).log2().round();
            self.slot = Duration::from_nanos((SLOT.0 * doublings.exp2()) as u64);
        }
        self.times = [0.0; 5];
        (self.ended, self.refused) = (0.0, 0.0);
        (self.sums, self.by_length) = Default::default();
        (self.moments, self.slopes) = Default::default();
        self.stretched = Stretched::default();
        self.block = self.dither(view.bounds, 0).block(now);
        (self.block_began, self.watched_since) = (now, now);
    }
}

/// Returns the reach after the law closed or jumped to `slots`.
fn reach_at_first(slots: f64) -> f64 {
    if slots <= FEW {
        REACH.1
    } else {
        REACH_AT_FIRST
    }
}

/// Returns the mean of two estimates, weighted by their precision.
fn mean(a: Estimate, b: Estimate) -> Estimate {
    let weight = |estimate: Estimate| estimate.error.max(1e-3).powi(-2);
    let all = weight(a) + weight(b);
    Estimate {
        value: (a.value * weight(a) + b.value * weight(b)) / all,
        error: all.powf(-0.5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_answers_judges_no_block() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let view = View {
            enforced: true,
            in_flight: 3.0,
            bounds: (1, 64),
            ..View::default()
        };
        let quiet = View {
            is_quiet: true,
            ..view
        };
        let mut law = Law {
            limit: Limit::Closed,
            ..Law::new(at(0), 3, Duration::ZERO)
        };
        let mut sums = Sums::default();
        (0..10).for_each(|n| sums.add(f64::from(n % 2), 0.0, 0.0));
        law.add(&Fresh {
            sums,
            ..Fresh::default()
        });
        law.step(at(500), &quiet, 0);
        assert_eq!(law.moments.blocks(), 0.0);
        law.step(at(500), &view, 0);
        assert_eq!(law.moments.blocks(), 1.0);
    }

    #[test]
    fn a_worker_without_answers_closes_with_the_usual_schedule() {
        let view = View {
            is_quiet: true,
            enforced: true,
            in_flight: 12.0,
            bounds: (1, 64),
            ..View::default()
        };
        let mut law = Law {
            late: 2.0,
            answers: 1_000.0,
            turn: 1.0,
            ..Law::new(Instant::default(), 10, Duration::ZERO)
        };
        law.step(Instant::from_nanos(500_000_000), &view, 0);
        assert!(!law.is_open());
        // The requests take 1 s. Within shorter slots, their times don't show the level.
        assert!(law.slot > Duration::from_secs(1), "{:?}", law.slot);
    }

    #[test]
    fn a_pause_at_the_ceiling_closes_nothing() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        // Streams are in the backend. Short requests pause for a minute, and then take 34 ms
        // instead of 20.
        let view = View {
            mean: 0.02,
            enforced: true,
            in_flight: 25.0,
            shortest: 0.5,
            bounds: (1, 64),
            ..View::default()
        };
        let mut law = Law {
            answers: 1_000.0,
            ceiling: Some(29.0),
            at_ceiling: Some(AtCeiling::default()),
            turn: 0.02,
            ..Law::new(at(0), 25, Duration::ZERO)
        };
        (0..=600).for_each(|n| law.step(at(n * 100), &view, 0));
        law.add(&Fresh {
            times: [20.0, 20.0 * 0.034, 20.0 * 0.02, 0.002, 20.0 * 0.034 * 0.034],
            late: [20.0, 20.0, 0.0],
            ..Fresh::default()
        });
        law.step(at(60_100), &view, 0);
        assert!(law.is_open() && law.at_ceiling.is_some());
    }
}
