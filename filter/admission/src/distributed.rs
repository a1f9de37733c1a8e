//! Class admission in which each sender decides for itself, with an admit probability for each
//! receiver and class (Aequitas, Algorithm 1).
//!
//! ```text
//! a call requests class q      runs in q with probability p[receiver, q], else in the lowest class
//! it completes in class q      p[receiver, q] moves by the law (`law`)
//! ```
//!
//! Calls that ran in the lowest class give no information about the class that they requested, and
//! change nothing. Senders share fairly without communication. Each sender lowers its probability
//! when its own calls miss, and a sender with more calls misses more often. So all senders converge
//! to the same rate of admitted calls, or stay below it with p = 1.
//!
//! Only channels with p < 1 take memory. A channel that [`Limits`] evicts returns to p = 1.

use std::hash::Hash;

use headgate_strategies::request::ClassId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

use crate::law::{Change, ChannelLaw};
use crate::recent::Recent;
use crate::{Completion, Limits};

/// Admit probabilities of one sender. `D` is a receiver.
#[derive(Debug, Clone)]
pub struct Distributed<D> {
    law: ChannelLaw,
    below_one: Recent<(D, ClassId), Channel>,
}

#[derive(Debug, Clone, Copy)]
struct Channel {
    /// The admit probability p, with floor ≤ p < 1.
    probability: f64,
    /// The start of the window.
    since: Instant,
}

impl<D: Copy + Eq + Hash> Distributed<D> {
    /// Creates the state, in which all probabilities are 1.
    pub fn new(law: ChannelLaw, limits: Limits) -> Self {
        Self {
            law,
            below_one: Recent::new(limits),
        }
    }

    /// Returns the law of the probabilities.
    pub fn law(&self) -> &ChannelLaw {
        &self.law
    }

    /// Returns the number of channels for which memory is allocated.
    pub(crate) fn capacity(&self) -> usize {
        self.below_one.capacity()
    }

    /// Returns the class in which a call to `destination` that requests class `wanted` must run. It
    /// is `wanted` or the lowest class.
    pub fn class_for(
        &mut self,
        now: Instant,
        destination: D,
        wanted: ClassId,
        rng: &mut Rng,
    ) -> ClassId {
        if !self.law.promises(wanted) {
            return self.law.lowest();
        }
        let channel = self.below_one.get(now, (destination, wanted));
        let probability = channel.map_or(1.0, |channel| channel.probability);
        // A number is drawn at p = 1 as well, so that this channel's state doesn't change the
        // numbers that other channels draw.
        if rng.chance(probability) {
            wanted
        } else {
            self.law.lowest()
        }
    }

    /// Records a completed call to `destination`.
    pub fn completed(&mut self, now: Instant, destination: D, call: &Completion) {
        let key = (destination, call.class);
        let known = self.below_one.get(now, key).copied();
        // At p = 1 the end of a window changes nothing, so the window always begins now.
        let channel = known.unwrap_or(Channel {
            probability: 1.0,
            since: now,
        });
        let probability = match self.law.change(channel.since, now, call) {
            Change::None => return,
            Change::Increase(by) => channel.probability + by,
            Change::Decrease(by) => (channel.probability - by).max(self.law.min_probability()),
        };
        if probability < 1.0 {
            let since = now;
            let channel = Channel { probability, since };
            self.below_one.insert(now, key, channel);
        } else {
            self.below_one.remove(key);
        }
    }

    /// Returns the probability that a call to `destination` that requests `class` runs in that
    /// class. The probability is 1 for the lowest class.
    pub fn probability(&self, now: Instant, destination: D, class: ClassId) -> f64 {
        let channel = self.below_one.peek(now, (destination, class));
        channel.map_or(1.0, |channel| channel.probability)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::Settings;
    use headgate_strategies::rng::Rng;

    const HIGH: ClassId = ClassId(0);
    const MEDIUM: ClassId = ClassId(1);
    const LOW: ClassId = ClassId(2);

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    fn distributed() -> Distributed<u32> {
        let law = ChannelLaw::try_from(Settings::new(vec![14, 25])).unwrap();
        Distributed::new(law, Limits::default())
    }

    fn call(class: ClassId, latency_us: u64, size: u32) -> Completion {
        Completion {
            class,
            latency: us(latency_us),
            size,
        }
    }

    /// Returns the probability in percent. It is rounded, because sums of hundredths are not exact.
    fn percent(state: &Distributed<u32>, now: Instant, class: ClassId) -> u64 {
        (state.probability(now, 1, class) * 100.0).round() as u64
    }

    #[test]
    fn probabilities_move_as_computed_by_hand() {
        let mut state = distributed();
        let p = |state: &Distributed<u32>, us| percent(state, at(us), HIGH);
        state.completed(at(0), 1, &call(HIGH, 15, 7));
        assert_eq!(p(&state, 0), 93);
        // The miss started the window, which ends after 14 ms. The window has not ended here, but
        // it has a microsecond later.
        state.completed(at(14_000), 1, &call(HIGH, 14, 7));
        assert_eq!(p(&state, 14_000), 93);
        state.completed(at(14_001), 1, &call(HIGH, 14, 7));
        assert_eq!(p(&state, 14_001), 94);
        // A miss in the middle of a window starts the window over.
        state.completed(at(28_000), 1, &call(HIGH, 15, 1));
        state.completed(at(28_002), 1, &call(HIGH, 14, 7));
        assert_eq!(p(&state, 28_002), 93);
        // Other classes and receivers have their own probabilities. Calls in the lowest class have
        // no effect.
        assert_eq!(percent(&state, at(28_002), MEDIUM), 100);
        state.completed(at(28_003), 1, &call(LOW, 9_999, 7));
        state.completed(at(28_003), 2, &call(HIGH, 15, 7));
        assert_eq!(p(&state, 28_003), 93);
        // The probability stops at the floor.
        (0..50).for_each(|_| state.completed(at(28_004), 1, &call(HIGH, 15, 7)));
        assert_eq!(p(&state, 28_004), 10);
        // An idle channel keeps its probability for a minute, and is then forgotten.
        assert_eq!(p(&state, 60_028_003), 10);
        assert_eq!(p(&state, 60_028_004), 100);
    }

    #[test]
    fn downgrades_to_the_lowest_class_only_and_never_from_it() {
        let mut state = distributed();
        let mut rng = Rng::new(1);
        for class in [HIGH, MEDIUM, LOW] {
            assert_eq!(state.class_for(at(0), 1, class, &mut rng), class);
        }
        assert_eq!(state.class_for(at(0), 1, ClassId(9), &mut rng), LOW);
        // The probability is now 0.3 = 1 − 10 · 0.07.
        (0..10).for_each(|_| state.completed(at(0), 1, &call(HIGH, 15, 7)));
        let ran: Vec<ClassId> = (0..100_000)
            .map(|_| state.class_for(at(1), 1, HIGH, &mut rng))
            .collect();
        assert!(ran.iter().all(|class| [HIGH, LOW].contains(class)));
        let kept = ran.iter().filter(|class| **class == HIGH).count();
        // The standard deviation of `kept` is 145.
        assert!(kept.abs_diff(30_000) < 750, "{kept}");
        assert_eq!(state.class_for(at(1), 1, MEDIUM, &mut rng), MEDIUM);
        assert_eq!(state.class_for(at(1), 2, HIGH, &mut rng), HIGH);
    }

    #[test]
    fn memory_is_bounded_and_channels_at_one_take_none() {
        let law = ChannelLaw::try_from(Settings::new(vec![14])).unwrap();
        let limits = Limits {
            channels: 100,
            ..Limits::default()
        };
        let mut state = Distributed::new(law, limits);
        for destination in 0..1_000 {
            state.completed(at(0), destination, &call(HIGH, 5, 1));
        }
        assert_eq!(state.below_one.len(), 0);
        for destination in 0..1_000 {
            state.completed(at(0), destination, &call(HIGH, 15, 1));
            assert!(state.below_one.len() <= 100);
        }
        assert!(state.probability(at(0), 999, HIGH) < 1.0);
        for window in 1..=2 {
            state.completed(at(window * 20_000), 999, &call(HIGH, 5, 1));
        }
        assert!(state.below_one.len() < 100);
        assert!((state.probability(at(40_000), 999, HIGH) - 1.0).abs() < 1e-12);
    }

    proptest! {
        /// The probabilities stay between the floor and 1. They equal those of the published
        /// algorithm, which has a state for every channel from the start.
        #[test]
        fn follows_the_published_algorithm(
            calls in prop::collection::vec(
                (0_u32..3, 0_u8..4, 1_u64..40, 0_u32..9, 0_u64..9_000),
                1..300,
            ),
        ) {
            let mut state = distributed();
            let mut model: BTreeMap<(u32, u8), (f64, u64)> = BTreeMap::new();
            let mut now = 0;
            for (destination, class, latency, size, later) in calls {
                now += later;
                state.completed(at(now), destination, &call(ClassId(class), latency, size));
                if class < 2 {
                    let (target, window) = [(14, 14_000), (25, 25_000)][usize::from(class)];
                    let (p, since) = model.entry((destination, class)).or_insert((1.0, 0));
                    if latency > target {
                        *p = (*p - 0.01 * f64::from(size.max(1))).max(0.1);
                        *since = now;
                    } else if now - *since > window {
                        *p = (*p + 0.01).min(1.0);
                        *since = now;
                    }
                }
                for ((destination, class), (p, _)) in &model {
                    let found = state.probability(at(now), *destination, ClassId(*class));
                    prop_assert!((found - p).abs() < 1e-9, "{found} instead of {p}");
                    prop_assert!((0.1..=1.0).contains(&found));
                }
            }
        }
    }
}
