//! [`Distributed`](headgate_admission::Distributed) for one receiver, with a state that all workers
//! of a process share.
//!
//! Each class has two of the host's numbers:
//!
//! ```text
//! missing   2²⁰ · (1 − p): a number that was never written is p = 1
//! since     start of the window, µs
//! ```
//!
//! A record with compare-and-swap would be exact. But each call would read the record and each miss
//! would change it, and misses come in bursts. Numbers need no lock, and a miss on one worker
//! affects the next call on any other. Simultaneous changes by two workers may leave p above 1 or
//! below the floor by a step. p is clamped when it is read, and the next change corrects it. Two
//! workers that see the end of the same window may both raise p.
//!
//! State is bounded by the configuration, so nothing is evicted. A channel that was not used for
//! the idle time of [`Limits`] after its window ended returns to p = 1.

use std::time::Duration;

use headgate_admission::{Change, ChannelLaw, Completion, Limits};
use headgate_strategies::host::{HostError, Number, Shared};
use headgate_strategies::request::ClassId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

/// The number of steps of a probability from 0 to 1.
const ONE: f64 = (1 << 20) as f64;

/// The admit probabilities of one receiver.
#[derive(Debug)]
pub(crate) struct SharedChannels {
    law: ChannelLaw,
    idle: Duration,
    /// Channels by class, without the lowest.
    channels: Vec<Channel>,
}

#[derive(Debug, Clone, Copy)]
struct Channel {
    missing: Number,
    since: Number,
}

/// The state of a channel when it was read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// The raw value of the number `missing`.
    raw: i64,
    /// 1 − p, clamped to 0 ..= 1 − floor, in steps.
    missing: i64,
    since: Instant,
}

/// Returns a probability as a number of steps.
pub(crate) fn steps(probability: f64) -> i64 {
    (probability * ONE).round() as i64
}

impl SharedChannels {
    /// Creates the channels. `name` maps a class to the prefix of the names of the class's numbers.
    ///
    /// # Errors
    /// [`HostError`] if the host refuses a number.
    pub(crate) fn new(
        host: &impl Shared,
        law: ChannelLaw,
        name: impl Fn(ClassId) -> String,
    ) -> Result<Self, HostError> {
        let channel = |class| {
            let name = name(ClassId(class));
            Ok(Channel {
                missing: host.number(&format!("{name}.missing"))?,
                since: host.number(&format!("{name}.since"))?,
            })
        };
        Ok(Self {
            channels: (0..law.lowest().0).map(channel).collect::<Result<_, _>>()?,
            idle: Limits::default().idle,
            law,
        })
    }

    /// Returns the law of the probabilities.
    pub(crate) fn law(&self) -> &ChannelLaw {
        &self.law
    }

    /// Returns the class in which a call that requests class `wanted` must run. It is `wanted` or
    /// the lowest class.
    ///
    /// # Errors
    /// [`HostError`]. The caller then sends the call unchanged.
    pub(crate) fn class_for(
        &self,
        host: &impl Shared,
        now: Instant,
        wanted: ClassId,
        rng: &mut Rng,
    ) -> Result<ClassId, HostError> {
        let admitted =
            self.law.promises(wanted) && rng.chance(self.probability(host, now, wanted)?);
        Ok(if admitted { wanted } else { self.law.lowest() })
    }

    /// Records a completed call. Returns the new probability of its class, or `None` if the
    /// probability didn't change.
    ///
    /// # Errors
    /// [`HostError`]. The call then doesn't count.
    pub(crate) fn completed(
        &self,
        host: &impl Shared,
        now: Instant,
        call: &Completion,
    ) -> Result<Option<f64>, HostError> {
        let Some(channel) = self.channels.get(usize::from(call.class.0)) else {
            return Ok(None);
        };
        let state = self.read(host, now, call.class, channel)?;
        // At p = 1 the end of a window changes nothing, so the window always begins now.
        let since = if state.missing == 0 { now } else { state.since };
        let missing = match self.law.change(since, now, call) {
            Change::None if state.raw == state.missing => return Ok(None),
            Change::None => state.missing,
            Change::Increase(by) => (state.missing - steps(by)).max(0),
            Change::Decrease(by) => (state.missing + steps(by)).min(self.most()),
        };
        host.set(channel.since, now.as_nanos() / 1_000)?;
        host.add_to(channel.missing, missing - state.raw)?;
        Ok(Some(probability(missing)))
    }

    /// Returns the probability that a call that requests `class` runs in that class. The
    /// probability is 1 for the lowest class.
    ///
    /// # Errors
    /// [`HostError`].
    pub(crate) fn probability(
        &self,
        host: &impl Shared,
        now: Instant,
        class: ClassId,
    ) -> Result<f64, HostError> {
        match self.channels.get(usize::from(class.0)) {
            Some(channel) => Ok(probability(self.read(host, now, class, channel)?.missing)),
            None => Ok(1.0),
        }
    }

    fn most(&self) -> i64 {
        steps(1.0 - self.law.min_probability())
    }

    fn read(
        &self,
        host: &impl Shared,
        now: Instant,
        class: ClassId,
        channel: &Channel,
    ) -> Result<Reading, HostError> {
        let raw = host.get(channel.missing)?.cast_signed();
        // Most calls find p = 1, and needn't read the second number.
        if raw <= 0 {
            return Ok(Reading {
                raw,
                missing: 0,
                since: now,
            });
        }
        let since = Instant::from_nanos(host.get(channel.since)?.saturating_mul(1_000));
        let forgotten = now.since(since) >= self.law.window(class).saturating_add(self.idle);
        Ok(Reading {
            raw,
            missing: if forgotten { 0 } else { raw.min(self.most()) },
            since,
        })
    }
}

/// Returns the probability p, where `missing` is 1 − p in steps.
pub(crate) fn probability(missing: i64) -> f64 {
    1.0 - missing as f64 / ONE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use headgate_admission::{Distributed, Settings};

    use super::*;
    use crate::memory::MemoryHost;
    use headgate_strategies::rng::Rng;

    const HIGH: ClassId = ClassId(0);

    fn law() -> ChannelLaw {
        ChannelLaw::try_from(Settings::new(vec![14, 25])).unwrap()
    }

    fn channels(host: &MemoryHost) -> SharedChannels {
        SharedChannels::new(host, law(), |class| format!("s.{}", class.0)).unwrap()
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    fn call(class: u8, latency_us: u64, size: u32) -> Completion {
        Completion {
            class: ClassId(class),
            latency: Duration::from_micros(latency_us),
            size,
        }
    }

    proptest! {
        /// The probabilities of two workers that alternate equal those of one `Distributed`, up to
        /// rounding.
        #[test]
        fn workers_together_are_one_sender(
            calls in prop::collection::vec(
                (0_usize..2, 0_u8..3, 1_u64..40, 0_u32..9, 0_u64..9_000),
                1..300,
            ),
        ) {
            let host = MemoryHost::new();
            let workers = [channels(&host), channels(&host)];
            let mut rngs = [Rng::new(1), Rng::new(1)];
            let mut model = Distributed::new(law(), Limits::default());
            let mut us = 0;
            for (worker, class, latency, size, later) in calls {
                us += later;
                let (now, call) = (at(us), call(class, latency, size));
                let changed = workers[worker].completed(&host, now, &call).unwrap();
                model.completed(now, 1, &call);
                for class in (0..3).map(ClassId) {
                    let expected = model.probability(now, 1, class);
                    let found = workers[1 - worker].probability(&host, now, class).unwrap();
                    // Each of up to 300 changes is rounded to a step.
                    prop_assert!((found - expected).abs() < 2e-4, "{found} instead of {expected}");
                    if class == call.class && let Some(changed) = changed {
                        prop_assert!((changed - found).abs() < 1e-12);
                    }
                }
                let wanted = ClassId(class_of(us));
                let run = workers[worker].class_for(&host, now, wanted, &mut rngs[0]).unwrap();
                let p = workers[worker].probability(&host, now, wanted).unwrap();
                let kept = wanted < ClassId(2) && rngs[1].chance(p);
                if wanted == ClassId(2) {
                    prop_assert_eq!(run, ClassId(2));
                } else {
                    prop_assert_eq!(run, if kept { wanted } else { ClassId(2) });
                }
            }
        }
    }

    fn class_of(us: u64) -> u8 {
        u8::try_from(us % 3).unwrap()
    }

    #[test]
    fn concurrent_changes_by_workers_are_corrected() {
        let host = MemoryHost::new();
        let state = channels(&host);
        let p = |us| state.probability(&host, at(us), HIGH).unwrap();
        let missing = host.number("s.0.missing").unwrap();
        // Both workers have raised p for the end of the same window, which leaves p above 1.
        host.add_to(missing, -5_000).unwrap();
        assert!((p(0) - 1.0).abs() < 1e-12);
        state.completed(&host, at(1), &call(0, 15, 7)).unwrap();
        assert!((p(1) - 0.93).abs() < 1e-5, "{}", p(1));
        // Both workers have subtracted at the floor, which leaves p below the floor.
        host.add_to(missing, 2 << 20).unwrap();
        assert!((p(2) - 0.1).abs() < 1e-5, "{}", p(2));
        state.completed(&host, at(14_002), &call(0, 1, 7)).unwrap();
        assert!((p(14_002) - 0.11).abs() < 1e-5, "{}", p(14_002));
    }

    #[test]
    fn an_idle_channel_is_forgotten_after_its_window() {
        let host = MemoryHost::new();
        let state = channels(&host);
        let p = |us| state.probability(&host, at(us), HIGH).unwrap();
        for _ in 0..50 {
            state.completed(&host, at(0), &call(0, 15, 7)).unwrap();
        }
        assert!((p(60_013_999) - 0.1).abs() < 1e-5);
        assert!((p(60_014_000) - 1.0).abs() < 1e-12);
        // The channel was idle for the idle time, so the next call finds p = 1.
        let now = at(60_014_000);
        assert_eq!(state.completed(&host, now, &call(0, 1, 7)), Ok(Some(1.0)));
        let changed = state.completed(&host, now, &call(0, 15, 7)).unwrap();
        assert!((changed.unwrap() - 0.93).abs() < 1e-5);
    }
}
