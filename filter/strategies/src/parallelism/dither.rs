//! The schedule that varies the number of slots around the estimate.
//!
//! ```text
//! P(t) = base        in slots of the schedule that are not drawn
//!        base + up   in 2 of 5
//!        base − down in 5·q of 5; q is the share of time that may be spent below
//! ```
//!
//! The effect of more slots can only be estimated from service times with more slots and with
//! fewer. A comparison of one minute with the minute before would mix that effect with all other
//! changes: load, mix, caches, neighbours. So the number of slots changes several times a second.
//! Every block of five slots of the schedule has its own random order. Only service times within
//! one block are compared.
//!
//! The schedule is a function of the time and of the policy's name, so no exchange is needed. All
//! workers of a process change P at the same moment. So do all proxies in front of a backend, if
//! their clocks agree. That matters, because a proxy that changes P alone measures the elasticity
//! times its own share of the requests in flight. With three proxies out of step, none of them
//! measures a full backend, and each raises its P.

use std::time::Duration;

use crate::rng::Rng;
use crate::time::{Instant, nanos};

/// The number of the schedule's slots in a block.
pub const BLOCK: u64 = 5;
/// The number of slots in a block in which P is above the estimate.
const ABOVE: u64 = 2;
/// The largest number of the schedule's slots that a request may span. Longer requests are not
/// used.
const LONGEST: u64 = 64;

/// The parts of a request's time above and below the base, ratios 0..=1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Exposure {
    /// The part with `up` more slots.
    pub above: f64,
    /// The part with `down` fewer slots.
    pub below: f64,
}

/// The schedule's parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dither {
    /// The estimate, slots.
    pub base: u32,
    /// The number of slots by which P rises above `base`.
    pub up: u32,
    /// The number of slots by which P falls below `base`. It is less than `base`.
    pub down: u32,
    /// q, the share of time below the base, ratio 0..=0.4.
    pub below: f64,
    /// The length of a slot of the schedule.
    pub slot: Duration,
    /// The offset from the process's clock to a clock that all processes share.
    pub offset: Duration,
    /// The seed of the schedule's random orders.
    pub seed: u64,
}

impl Dither {
    /// Returns the number of slots at `now`.
    pub fn level(&self, now: Instant) -> u32 {
        match self.side(self.index(now)) {
            1 => self.base.saturating_add(self.up),
            -1 => self.base - self.down.min(self.base.saturating_sub(1)),
            _ => self.base,
        }
    }

    /// Returns the number of the block at `now`.
    pub fn block(&self, now: Instant) -> u64 {
        self.index(now) / BLOCK
    }

    /// Returns the parts of a request's time, from `start` to `end`, above and below the base.
    /// Returns `None` if the request ran too long, or its time is zero.
    pub fn exposure(&self, start: Instant, end: Instant) -> Option<Exposure> {
        let slot = nanos(self.slot).max(1);
        let (first, last) = (self.index(start), self.index(end));
        if last - first.min(last) > LONGEST {
            return None;
        }
        let life = end.since(start).as_secs_f64();
        if life <= 0.0 {
            return None;
        }
        let mut seen = Exposure::default();
        for index in first..=last {
            let edge = |index: u64| Instant::from_nanos(index.saturating_mul(slot)) - self.offset;
            let from = start.max(edge(index));
            let to = end.min(edge(index + 1));
            let part = to.since(from).as_secs_f64() / life;
            match self.side(index) {
                1 => seen.above += part,
                -1 => seen.below += part,
                _ => {}
            }
        }
        Some(seen)
    }

    /// Returns ln of the ratio between the levels above and at the base, or 0 without a level
    /// above.
    pub fn ln_up(&self) -> f64 {
        (f64::from(self.base.saturating_add(self.up)) / f64::from(self.base.max(1))).ln()
    }

    /// Returns ln of the ratio between the levels at the base and below, or 0 without a level
    /// below.
    pub fn ln_down(&self) -> f64 {
        (f64::from(self.base.max(1)) / f64::from((self.base - self.down.min(self.base)).max(1)))
            .ln()
    }

    fn index(&self, now: Instant) -> u64 {
        (now + self.offset).as_nanos() / nanos(self.slot).max(1)
    }

    /// Returns 1 in a slot of the schedule above the base, −1 below it, and 0 at the base.
    fn side(&self, index: u64) -> i8 {
        if self.up == 0 && self.down == 0 {
            return 0;
        }
        let block = index / BLOCK;
        let mut rng = Rng::new(self.seed ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Round to whole slots at random, so that the mean is right.
        let wanted = self.below * BLOCK as f64;
        let below = wanted.floor() as u64 + u64::from(rng.chance(wanted.fract()));
        // The place of this slot of the schedule in the order drawn for its block (Fisher–Yates).
        let mut order: [u64; BLOCK as usize] = std::array::from_fn(|at| at as u64);
        for at in (1..order.len()).rev() {
            order.swap(at, (rng.next_u64() % (at as u64 + 1)) as usize);
        }
        let place = order.get((index % BLOCK) as usize).copied().unwrap_or(0);
        if place < below {
            -1
        } else if place < below + ABOVE {
            1
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dither(below: f64) -> Dither {
        Dither {
            base: 10,
            up: 4,
            down: 3,
            below,
            slot: Duration::from_millis(20),
            offset: Duration::ZERO,
            seed: 7,
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn every_block_has_its_shares_in_an_order_of_its_own() {
        let dither = dither(0.2);
        let mut orders = std::collections::BTreeSet::new();
        for block in 0..200 {
            let mut levels: Vec<u32> = (0..5)
                .map(|n| dither.level(at(block * 100 + n * 20)))
                .collect();
            orders.insert(levels.clone());
            levels.sort_unstable();
            assert_eq!(levels, [7, 10, 10, 14, 14]);
        }
        // There are 5! / (2! 2!) orders.
        assert_eq!(orders.len(), 30);
    }

    #[test]
    fn the_share_below_is_kept_on_average() {
        let dither = dither(0.05);
        let below = (0..10_000)
            .filter(|n| dither.level(at(n * 20)) == 7)
            .count();
        assert!((400..600).contains(&below), "{below} of 10,000");
    }

    #[test]
    fn exposure_is_the_time_at_each_level() {
        let dither = dither(0.4);
        for (start, end) in [(3, 17), (13, 55), (0, 1_000), (1_995, 2_301)] {
            let seen = dither.exposure(at(start), at(end)).unwrap();
            let life = (end - start) as f64;
            let share = |level| {
                (start..end)
                    .filter(|&ms| dither.level(at(ms)) == level)
                    .count() as f64
                    / life
            };
            assert!((seen.above - share(14)).abs() < 1e-9, "{start} {end}");
            assert!((seen.below - share(7)).abs() < 1e-9, "{start} {end}");
        }
        assert_eq!(dither.exposure(at(0), at(60_000)), None);
        assert_eq!(dither.exposure(at(5), at(5)), None);
    }

    #[test]
    fn one_slot_has_no_level_below() {
        let one = Dither {
            base: 1,
            down: 3,
            ..dither(0.4)
        };
        assert!((0..100).all(|n| one.level(at(n * 20)) >= 1));
        assert!(one.ln_down().abs() < 1e-12);
    }
}
