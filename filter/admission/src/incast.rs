//! Admit probabilities that a server decides by the *average* incast delay at each receiver
//! (centralized Aequitas §3.2).
//!
//! The latency of a call has two parts. The round trip depends on the pair of sender and receiver.
//! The incast delay is caused by all senders together at the receiver. It is the wait in the
//! receiver's queue, and the wait for the congestion window that this queue keeps small. The server
//! averages the incast delay over all senders and adds each sender's own round trip again:
//!
//! ```text
//! I[receiver] = w · I[receiver] + (1 − w) · (ℓ − RTT)          I starts with the first call's
//! p[sender, receiver, class] moves by the law, with RTT + I in place of ℓ
//! ```
//!
//! With w = 0 the method is [`Distributed`] with one average for all senders. The closer w is to 1,
//! the less a single miss changes I. The law then compares a mean with a target for the 99.9th
//! percentile, so a w near 1 admits everything and loses the target.
//!
//! Reports of many calls ([`Incast::completed_together`]) contain only the mean of their latencies.
//! Targets then hold for the mean, for any w. For reports, w is the weight that is left after a
//! second. A weight per call would reduce the average to the last report, because ten calls at w =
//! 0.5 leave 0.5¹⁰ of the past.
//!
//! The paper uses w twice, as the weight of the past and as a factor before the incast delay. Here
//! w is only the weight of the past. The paper doesn't say how RTT is measured. Here each report
//! contains the RTT, which counts as at most the latency.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::Duration;

use headgate_config::ConfigError;
use headgate_config::admission_law::check_smoothing;
use headgate_strategies::request::ClassId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::{Instant, nanos};

use crate::law::ChannelLaw;
use crate::recent::Recent;
use crate::{Completion, Distributed, Limits, Scope, class_of};

/// Admit probabilities of all senders. `S` is a sender, `D` a receiver.
#[derive(Debug, Clone)]
pub struct Incast<S, D> {
    /// w, the weight of the past, 0 ≤ w < 1.
    past: f64,
    scope: Scope,
    /// I, the average incast delay, by receiver and class.
    delays: Recent<(D, ClassId), Average>,
    channels: Distributed<(S, D)>,
}

#[derive(Debug, Clone, Copy)]
struct Average {
    delay_ns: f64,
    /// The weight of the average at `at`, in calls.
    calls: f64,
    at: Instant,
}

impl<S: Copy + Eq + Hash, D: Copy + Eq + Hash> Incast<S, D> {
    /// Creates the state. `past` is w, the ratio of its weight that the average keeps. It is a
    /// ratio per call for [`Incast::completed`], and per second for [`Incast::completed_together`].
    ///
    /// # Errors
    /// [`ConfigError`] unless 0 ≤ `past` < 1.
    pub fn new(
        law: ChannelLaw,
        past: f64,
        scope: Scope,
        limits: Limits,
    ) -> Result<Self, ConfigError> {
        check_smoothing(past)?;
        Ok(Self {
            past,
            scope,
            delays: Recent::new(limits),
            channels: Distributed::new(law, limits),
        })
    }

    /// Returns the number of channels for which memory is allocated.
    pub(crate) fn capacity(&self) -> usize {
        self.channels.capacity()
    }

    /// Returns the class in which a call from `source` to `destination` that requests class
    /// `wanted` must run. It is `wanted` or the lowest class.
    pub fn class_for(
        &mut self,
        now: Instant,
        source: S,
        destination: D,
        wanted: ClassId,
        rng: &mut Rng,
    ) -> ClassId {
        self.channels
            .class_for(now, (source, destination), wanted, rng)
    }

    /// Records a completed call from `source` to `destination`. `round_trip` is the round-trip time
    /// between the two.
    pub fn completed(
        &mut self,
        now: Instant,
        source: S,
        destination: D,
        call: &Completion,
        round_trip: Duration,
    ) {
        let average = |_, past| (past, 1.0);
        self.completed_by(now, source, destination, call, round_trip, average);
    }

    /// Records `calls` calls from `source` to `destination` that completed since the last report.
    /// `mean` contains their mean latency and, as its size, the cost of those that missed their
    /// target. The calls count as `calls` samples of the average. They lower the probability at
    /// most once, by the cost of the misses, and only if the average misses the target as well.
    ///
    /// ```text
    /// m = wᵗ · m                                     t seconds since the last report of any sender
    /// I = (m · I + n · mean(ℓ − RTT)) / (m + n)      n calls
    /// m = m + n
    /// ```
    pub fn completed_together(
        &mut self,
        now: Instant,
        source: S,
        destination: D,
        mean: &Completion,
        round_trip: Duration,
        calls: NonZeroU32,
    ) {
        let calls = f64::from(calls.get());
        let average = |known: Average, past: f64| {
            // With `past` = 0, earlier reports of the same instant must lose their weight too. 0⁰
            // is 1, so the time is at least the smallest positive number.
            let seconds = now.since(known.at).as_secs_f64().max(f64::MIN_POSITIVE);
            let kept = known.calls * past.powf(seconds);
            (kept / (kept + calls), kept + calls)
        };
        self.completed_by(now, source, destination, mean, round_trip, average);
    }

    /// Records calls with a known mean latency. `average` maps the known average and w to the
    /// weight of the known average and the new average's number of calls.
    fn completed_by(
        &mut self,
        now: Instant,
        source: S,
        destination: D,
        mean: &Completion,
        round_trip: Duration,
        average: impl FnOnce(Average, f64) -> (f64, f64),
    ) {
        if !self.channels.law().promises(mean.class) {
            return;
        }
        let round_trip = round_trip.min(mean.latency);
        let delay = nanos(mean.latency - round_trip) as f64;
        let key = (destination, class_of(self.scope, mean.class));
        let first = Average {
            delay_ns: delay,
            calls: 0.0,
            at: now,
        };
        let known = self.delays.get(now, key).copied().unwrap_or(first);
        let (past, calls) = average(known, self.past);
        let incast = past * known.delay_ns + (1.0 - past) * delay;
        self.delays.insert(
            now,
            key,
            Average {
                delay_ns: incast,
                calls,
                at: now,
            },
        );
        let averaged = Completion {
            latency: round_trip + Duration::from_nanos(incast.round() as u64),
            ..*mean
        };
        self.channels
            .completed(now, (source, destination), &averaged);
    }

    /// Records calls from `source` to `destination` in `class`, of cost `size`, that were refused
    /// for lack of room or not answered in time. They are misses without a known latency, so the
    /// average leaves them out.
    pub fn failed(&mut self, now: Instant, source: S, destination: D, class: ClassId, size: u32) {
        let miss = Completion {
            class,
            latency: Duration::MAX,
            size,
        };
        self.channels.completed(now, (source, destination), &miss);
    }

    /// Returns the probability that a call from `source` to `destination` that requests `class`
    /// runs in that class.
    pub fn probability(&self, now: Instant, source: S, destination: D, class: ClassId) -> f64 {
        self.channels.probability(now, (source, destination), class)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Settings;
    use headgate_strategies::rng::Rng;

    impl<S: Copy + Eq + Hash, D: Copy + Eq + Hash> Incast<S, D> {
        /// Returns the average incast delay at `destination` of calls in `class`.
        fn delay(&self, now: Instant, destination: D, class: ClassId) -> Option<Duration> {
            let key = (destination, class_of(self.scope, class));
            let incast = self.delays.peek(now, key)?.delay_ns;
            Some(Duration::from_nanos(incast.round() as u64))
        }
    }

    const HIGH: ClassId = ClassId(0);
    const MEDIUM: ClassId = ClassId(1);

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    fn law() -> ChannelLaw {
        ChannelLaw::try_from(Settings::new(vec![14, 25])).unwrap()
    }

    fn incast(past: f64, scope: Scope) -> Incast<u8, u8> {
        Incast::new(law(), past, scope, Limits::default()).unwrap()
    }

    fn call(class: ClassId, latency_us: u64) -> Completion {
        Completion {
            class,
            latency: us(latency_us),
            size: 7,
        }
    }

    #[test]
    fn averages_are_as_computed_by_hand() {
        let mut state = incast(0.5, Scope::Destination);
        // I is 2 µs, then (2 + 26)/2 = 14 µs. With a round trip of 4 µs, this average is a miss,
        // even for the sender whose call was fast.
        state.completed(at(1), 1, 9, &call(HIGH, 6), us(4));
        assert_eq!(state.delay(at(1), 9, HIGH), Some(us(2)));
        state.completed(at(2), 2, 9, &call(HIGH, 30), us(4));
        assert_eq!(state.delay(at(2), 9, MEDIUM), Some(us(14)));
        let p = |state: &Incast<u8, u8>, source| {
            (100.0 * state.probability(at(2), source, 9, HIGH)).round() as u64
        };
        assert_eq!([p(&state, 1), p(&state, 2)], [100, 93]);
        // A fast call is judged by the average (14 + 16)/2 = 15, which is a miss with a round trip
        // of 1 µs or more.
        state.completed(at(2), 1, 9, &call(HIGH, 17), us(1));
        assert_eq!([p(&state, 1), p(&state, 2)], [93, 93]);
        // A slow call after fast ones isn't a miss. The averages are 7.5, 3.75, 1.875, then (1.875
        // + 16)/2.
        (0..3).for_each(|_| state.completed(at(2), 3, 9, &call(HIGH, 4), us(4)));
        state.completed(at(2), 3, 9, &call(HIGH, 20), us(4));
        assert_eq!(p(&state, 3), 100);
        // Calls of the lowest class have no effect.
        state.completed(at(2), 3, 9, &call(ClassId(2), 9_999), us(4));
        assert_eq!(
            state.delay(at(2), 9, HIGH),
            Some(Duration::from_nanos(8_938))
        );
    }

    #[test]
    fn by_class_each_class_has_its_own_average() {
        let mut state = incast(0.5, Scope::Class);
        state.completed(at(1), 1, 9, &call(HIGH, 6), us(4));
        state.completed(at(1), 1, 9, &call(MEDIUM, 16), us(4));
        assert_eq!(state.delay(at(1), 9, HIGH), Some(us(2)));
        assert_eq!(state.delay(at(1), 9, MEDIUM), Some(us(12)));
        assert_eq!(state.delay(at(1), 8, MEDIUM), None);
    }

    #[test]
    fn calls_together_weigh_as_many_for_their_time_and_miss_once() {
        const SECOND: u64 = 1_000_000;
        let mut state = incast(0.5, Scope::Class);
        let batch = |latency_us, size| Completion {
            size,
            ..call(HIGH, latency_us)
        };
        let three = NonZeroU32::new(3).unwrap();
        let now = at(9 * SECOND);
        let p = |state: &Incast<u8, u8>| (100.0 * state.probability(now, 1, 9, HIGH)).round();
        let delay = |state: &Incast<u8, u8>| state.delay(now, 9, HIGH);
        // I = (10 + 6) / 2 = 8 µs. After a second, half of the weight is left, and I = (3 · 8 + 3 ·
        // 16) / 6 = 12 µs.
        state.completed_together(at(SECOND), 1, 9, &batch(12, 2), us(2), three);
        state.completed_together(at(SECOND), 2, 9, &batch(8, 0), us(2), three);
        assert_eq!(delay(&state), Some(us(8)));
        assert_eq!(p(&state), 100.0, "two missed, the average doesn't");
        state.completed_together(at(2 * SECOND), 1, 9, &batch(18, 2), us(2), three);
        assert_eq!(delay(&state), Some(us(12)));
        assert_eq!(p(&state), 100.0);
        state.completed_together(at(3 * SECOND), 1, 9, &batch(18, 2), us(4), three);
        assert_eq!(p(&state), 98.0);
        // Failed calls are misses for any average, but they aren't samples of the average.
        let before = delay(&state);
        state.failed(at(4 * SECOND), 1, 9, HIGH, 5);
        state.failed(at(4 * SECOND), 1, 9, ClassId(2), 5);
        assert_eq!(p(&state), 93.0);
        assert_eq!(delay(&state), before);
        // I = (3 · 10 + 1 · 4) / 4 = 8.5 µs.
        let mut state = incast(0.5, Scope::Class);
        state.completed_together(at(SECOND), 1, 9, &batch(12, 0), us(2), three);
        state.completed_together(at(SECOND), 2, 9, &batch(8, 0), us(4), NonZeroU32::MIN);
        assert_eq!(delay(&state), Some(Duration::from_nanos(8_500)));
    }

    /// Many small reports leave as much of the past as few large ones, since the weight is per
    /// second rather than per call.
    #[test]
    fn the_average_forgets_in_time() {
        let delay = |reports: u64, calls: u32| {
            let mut state = incast(0.5, Scope::Class);
            let calls = NonZeroU32::new(calls).unwrap();
            for (second, latency_us) in [(0, 10), (1, 20)] {
                for report in 0..reports {
                    let now = at(second * 1_000_000 + report);
                    let call = call(HIGH, latency_us);
                    state.completed_together(now, 1, 9, &call, us(0), calls);
                }
            }
            state.delay(at(1_000_000), 9, HIGH).unwrap().as_nanos()
        };
        // I = (10 / 2 + 20) / 1.5 µs.
        assert_eq!(delay(1, 100), 16_667);
        assert!(delay(100, 1).abs_diff(16_667) < 2);
    }

    #[test]
    fn the_weight_of_the_past_is_below_one() {
        for past in [1.0, -0.1, f64::NAN] {
            assert!(Incast::<u8, u8>::new(law(), past, Scope::Class, Limits::default()).is_err());
        }
    }

    proptest! {
        /// With `past` = 0, the algorithm makes the same draws and has exactly the same
        /// probabilities as the distributed algorithm, for any round trip.
        #[test]
        fn without_a_past_it_is_the_distributed_algorithm(
            calls in prop::collection::vec(
                (
                    0_u8..3,
                    0_u8..3,
                    0_u8..3,
                    1_u64..40_000,
                    0_u64..50_000,
                    0_u64..9_000_000,
                ),
                1..300,
            ),
            scope in prop::sample::select(vec![Scope::Destination, Scope::Class]),
        ) {
            let mut state = incast(0.0, scope);
            let mut baseline = Distributed::new(law(), Limits::default());
            let (mut ours, mut theirs) = (Rng::new(7), Rng::new(7));
            let mut now = 0;
            for (source, destination, class, latency, round_trip, later) in calls {
                now += later;
                let (now, wanted) = (Instant::from_nanos(now), ClassId(class));
                let ran = state.class_for(now, source, destination, wanted, &mut ours);
                prop_assert_eq!(
                    ran,
                    baseline.class_for(now, (source, destination), wanted, &mut theirs)
                );
                let call = Completion {
                    class: ran,
                    latency: Duration::from_nanos(latency),
                    size: 7,
                };
                state.completed(now, source, destination, &call, Duration::from_nanos(round_trip));
                baseline.completed(now, (source, destination), &call);
                let found = state.probability(now, source, destination, wanted);
                let expected = baseline.probability(now, (source, destination), wanted);
                prop_assert_eq!(found.to_bits(), expected.to_bits());
            }
        }
    }
}
