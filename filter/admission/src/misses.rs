//! Class admission by a server that allows all senders together K misses for each receiver in each
//! period (centralized Aequitas §3.1).
//!
//! ```text
//! period k = ⌊t / T⌋: when it changes, all counts are 0
//! a call misses its target in its class     m[receiver] += 1
//! a call requests a class                   runs in it while m[receiver] < K, else in the lowest
//! ```
//!
//! Each receiver has a bucket of K tokens, which is filled at the beginning of each period. Each
//! miss takes one token. The method has no probability and no memory beyond the period. After the
//! K-th miss *all* senders are downgraded until the period ends, including those that send little.
//! The effect is immediate, but the paper finds the method too aggressive.
//!
//! The paper leaves T open. A target at percentile π allows K misses of T · λ calls, so T = K / ((1
//! − π) · λ) with λ the calls/s to a receiver in the class. The paper's words "fail to miss" must
//! mean "fail to meet".

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::Duration;

use headgate_strategies::request::ClassId;
use headgate_strategies::time::{Instant, nanos};

use crate::law::ChannelLaw;
use crate::{Completion, Limits, Scope, class_of};

/// The misses of the current period. `D` is a receiver.
#[derive(Debug, Clone)]
pub struct Misses<D> {
    law: ChannelLaw,
    /// K, the number of misses allowed in a period.
    allowed: NonZeroU32,
    /// T, the period, ns.
    period: u64,
    scope: Scope,
    /// The maximum number of entries in `missed`.
    capacity: usize,
    /// k, the number of the current period.
    current: u64,
    missed: HashMap<(D, ClassId), u32>,
}

impl<D: Copy + Eq + Hash> Misses<D> {
    /// Creates the state. It allows `allowed` misses in each `period`, which is at least 1 ns. If
    /// more than [`Limits::channels`] receivers have misses in one period, the misses of further
    /// receivers aren't counted.
    pub fn new(
        law: ChannelLaw,
        allowed: NonZeroU32,
        period: Duration,
        scope: Scope,
        limits: Limits,
    ) -> Self {
        Self {
            law,
            allowed,
            period: nanos(period).max(1),
            scope,
            capacity: limits.channels,
            current: 0,
            missed: HashMap::new(),
        }
    }

    /// Returns the class in which a call to `destination` that requests class `wanted` must run. It
    /// is `wanted` or the lowest class. The result may change with any miss, and at the end of the
    /// period ([`Misses::period_end`]).
    pub fn class_for(&mut self, now: Instant, destination: D, wanted: ClassId) -> ClassId {
        self.roll(now);
        let missed = self
            .missed
            .get(&(destination, class_of(self.scope, wanted)));
        if self.law.promises(wanted) && missed.is_none_or(|m| *m < self.allowed.get()) {
            wanted
        } else {
            self.law.lowest()
        }
    }

    /// Records a completed call of any sender to `destination`.
    pub fn completed(&mut self, now: Instant, destination: D, call: &Completion) {
        if self.law.missed(call) {
            self.missed(now, destination, call.class, 1);
        }
    }

    /// Records that `calls` calls to `destination` in `class` missed their target.
    pub fn missed(&mut self, now: Instant, destination: D, class: ClassId, calls: u32) {
        self.roll(now);
        if calls == 0 || !self.law.promises(class) {
            return;
        }
        let key = (destination, class_of(self.scope, class));
        if let Some(missed) = self.missed.get_mut(&key) {
            *missed = missed.saturating_add(calls);
        } else if self.missed.len() < self.capacity {
            self.missed.insert(key, calls);
        }
    }

    /// Returns the end of the period that contains `now`.
    pub fn period_end(&self, now: Instant) -> Instant {
        let next = now.as_nanos() / self.period + 1;
        Instant::from_nanos(next.saturating_mul(self.period))
    }

    fn roll(&mut self, now: Instant) {
        let current = now.as_nanos() / self.period;
        if current != self.current {
            self.current = current;
            self.missed.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Settings;

    const HIGH: ClassId = ClassId(0);
    const MEDIUM: ClassId = ClassId(1);
    const LOW: ClassId = ClassId(2);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn call(class: ClassId, latency_us: u64) -> Completion {
        Completion {
            class,
            latency: Duration::from_micros(latency_us),
            size: 7,
        }
    }

    fn misses(scope: Scope, channels: usize) -> Misses<u32> {
        let limits = Limits {
            channels,
            ..Limits::default()
        };
        Misses::new(
            ChannelLaw::try_from(Settings::new(vec![14, 25])).unwrap(),
            NonZeroU32::new(5).unwrap(),
            Duration::from_millis(25),
            scope,
            limits,
        )
    }

    #[test]
    fn the_fifth_miss_is_the_last_that_a_period_grants() {
        let mut state = misses(Scope::Destination, 100);
        for miss in 0..7 {
            let expected = if miss < 5 { HIGH } else { LOW };
            assert_eq!(state.class_for(at(1), 1, HIGH), expected, "after {miss}");
            state.completed(at(1), 1, &call(HIGH, 15));
        }
        // Neither a call within its target nor one of the lowest class is a miss.
        (0..9).for_each(|_| state.completed(at(1), 2, &call(HIGH, 14)));
        (0..9).for_each(|_| state.completed(at(1), 2, &call(LOW, 9_999)));
        assert_eq!(state.class_for(at(1), 2, HIGH), HIGH);
        assert_eq!(state.class_for(at(24), 1, HIGH), LOW);
        assert_eq!(state.period_end(at(24)), at(25));
        // All receivers may have K misses again in the next period, regardless of the one that is
        // read first.
        assert_eq!(state.class_for(at(25), 1, HIGH), HIGH);
        state.completed(at(50), 1, &call(HIGH, 15));
        assert_eq!(state.missed.len(), 1);
    }

    #[test]
    fn the_scope_says_whose_misses_count() {
        for (scope, medium) in [(Scope::Destination, LOW), (Scope::Class, MEDIUM)] {
            let mut state = misses(scope, 100);
            (0..5).for_each(|_| state.completed(at(1), 1, &call(HIGH, 15)));
            assert_eq!(state.class_for(at(1), 1, HIGH), LOW);
            assert_eq!(state.class_for(at(1), 1, MEDIUM), medium);
            assert_eq!(state.class_for(at(1), 1, LOW), LOW);
        }
    }

    proptest! {
        /// Exactly those calls are downgraded that a list of all misses would downgrade. The state
        /// is bounded, and calls whose channel doesn't fit are admitted.
        #[test]
        fn counts_every_period_by_itself(
            steps in prop::collection::vec((0_u32..4, 0_u8..3, 1_u64..40, 0_u64..9), 1..300),
            capacity in 0_usize..12,
        ) {
            let mut state = misses(Scope::Class, capacity);
            let mut all = Vec::new();
            let mut ms = 0;
            for (destination, class, latency, later) in steps {
                ms += later;
                let class = ClassId(class);
                let missed = all.iter().filter(|m| **m == (ms / 25, destination, class)).count();
                let ran = state.class_for(at(ms), destination, class);
                if class == LOW || (missed >= 5 && capacity >= 8) {
                    prop_assert_eq!(ran, LOW);
                } else if missed < 5 {
                    prop_assert_eq!(ran, class);
                }
                prop_assert!(state.missed.len() <= capacity);
                state.completed(at(ms), destination, &call(class, latency));
                if class < LOW && latency > [14, 25][usize::from(class.0)] {
                    all.push((ms / 25, destination, class));
                }
            }
        }
    }
}
