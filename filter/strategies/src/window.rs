//! A sliding window of the requests received and accepted, per query type (Bouncer §4, with
//! duration D and step Δ).
//!
//! Both starvation avoidance strategies compare acceptance ratios over the last D. The window is a
//! ring with the counts of each (step, type), and each type has running sums. Counting is O(1), and
//! a step costs O(types).
//!
//! The window consists of the current step, even if it has just started, and the D/Δ − 1 steps
//! before it.
//!
//! The memory is 8 bytes for each type, and 8 bytes for each (step, type). If the number of these
//! pairs, types × D/Δ, exceeds [`MAX_ENTRIES`] (1 MB), Δ is lengthened. For example, 1,024 types
//! get at most 128 steps, and 4 types get up to 10,000 steps.

use std::time::Duration;

use crate::request::TypeId;
use crate::time::{Instant, nanos};

/// The largest number of entries in the ring.
const MAX_ENTRIES: u64 = 1 << 17;

/// The integer form of an acceptance ratio of 1. Ratios are added up as integers, so that a running
/// sum stays exact.
const RATIO_ONE: u64 = 1 << 32;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    received: u32,
    accepted: u32,
}

impl Counts {
    fn fixed_ratio(self) -> u64 {
        (u64::from(self.accepted) * RATIO_ONE)
            .checked_div(u64::from(self.received))
            .unwrap_or(0)
    }
}

/// A sliding window of requests received and accepted, per query type.
#[derive(Debug, Default)]
pub struct Window {
    step_nanos: u64,
    steps: u64,
    /// The time of the first request, from which steps are counted.
    origin: Option<Instant>,
    /// The number of the current step.
    step: u64,
    /// The counts by step, then by type.
    ring: Vec<Counts>,
    /// The counts of the whole window, by type.
    sums: Vec<Counts>,
    /// The sum of the types' acceptance ratios, in the integer form of [`RATIO_ONE`].
    ratios: u64,
    /// The number of types with requests in the window.
    active: u32,
}

impl Window {
    /// Creates a window of `duration` in steps of `step` for `types` types. An argument of zero
    /// counts as one type, or as 1 ns.
    pub fn new(types: usize, duration: Duration, step: Duration) -> Self {
        let types = types.clamp(1, 1 << 16);
        let duration = nanos(duration).max(1);
        let most = (MAX_ENTRIES / types as u64).max(1);
        let steps = (duration / nanos(step).max(1)).clamp(1, most);
        Self {
            step_nanos: duration.div_ceil(steps),
            steps,
            ring: vec![Counts::default(); steps as usize * types],
            sums: vec![Counts::default(); types],
            ..Self::default()
        }
    }

    /// Returns AR = aqc / rqc of a type, 0..=1, or `None` without requests in the window.
    pub fn acceptance_ratio(&self, kind: TypeId) -> Option<f64> {
        let Counts { received, accepted } = *self.sums.get(kind.0 as usize)?;
        (received > 0).then(|| f64::from(accepted) / f64::from(received))
    }

    /// Returns the unweighted mean of AR over all types with requests in the window, or `None` if
    /// no type has requests.
    pub fn average_acceptance_ratio(&self) -> Option<f64> {
        (self.active > 0).then(|| self.ratios as f64 / RATIO_ONE as f64 / f64::from(self.active))
    }

    /// Advances the window to `now` and drops entries older than D. A clock that stepped back has
    /// no effect.
    pub fn advance(&mut self, now: Instant) {
        let origin = *self.origin.get_or_insert(now);
        let step = nanos(now.since(origin)) / self.step_nanos;
        let gone = step.saturating_sub(self.step).min(self.steps);
        for passed in 1..=gone {
            // An empty window has nothing to drop, however many steps are gone.
            if self.active == 0 {
                break;
            }
            let first = self.place(self.step + passed, 0);
            for kind in 0..self.sums.len() {
                let old = std::mem::take(&mut self.ring[first + kind]);
                if old.received > 0 {
                    self.change_sum(kind, |sum| {
                        sum.received -= old.received;
                        sum.accepted -= old.accepted;
                    });
                }
            }
        }
        self.step = self.step.max(step);
    }

    /// Counts a request that was decided at `now`. Unknown types are ignored.
    pub fn count(&mut self, now: Instant, kind: TypeId, accepted: bool) {
        self.add(now, kind, 1, u64::from(accepted));
    }

    /// Counts `received` requests that were decided around `now`, of which `accepted` were
    /// accepted. Unknown types are ignored.
    pub fn add(&mut self, now: Instant, kind: TypeId, received: u64, accepted: u64) {
        self.advance(now);
        let kind = usize::from(kind.0);
        let Some(sum) = self.sums.get(kind) else {
            return;
        };
        let room = u64::from(u32::MAX - sum.received);
        let (Ok(received), Ok(accepted)) = (u32::try_from(received), u32::try_from(accepted))
        else {
            return;
        };
        if u64::from(received) > room || accepted > received {
            return;
        }
        let add = |counts: &mut Counts| {
            counts.received += received;
            counts.accepted += accepted;
        };
        let place = self.place(self.step, kind);
        add(&mut self.ring[place]);
        self.change_sum(kind, add);
    }

    /// Counts the latest request of this type as not accepted, because it was refused for another
    /// reason.
    pub fn withdraw(&mut self, kind: TypeId) {
        let kind = usize::from(kind.0);
        let place = self.place(self.step, kind);
        if kind < self.sums.len() && self.ring[place].accepted > 0 {
            self.ring[place].accepted -= 1;
            self.change_sum(kind, |sum| sum.accepted -= 1);
        }
    }

    /// Returns the index of a type's counts in the ring.
    fn place(&self, step: u64, kind: usize) -> usize {
        (step % self.steps) as usize * self.sums.len() + kind
    }

    fn change_sum(&mut self, kind: usize, change: impl FnOnce(&mut Counts)) {
        let counts = &mut self.sums[kind];
        let before = *counts;
        change(counts);
        self.ratios = self.ratios + counts.fixed_ratio() - before.fixed_ratio();
        self.active = self.active + u32::from(counts.received > 0) - u32::from(before.received > 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const A: TypeId = TypeId(0);
    const B: TypeId = TypeId(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(7 * MS + ms * MS)
    }

    fn window(types: usize) -> Window {
        Window::new(types, Duration::from_secs(1), Duration::from_millis(10))
    }

    #[test]
    fn forgets_after_its_duration_and_not_before() {
        let mut w = window(2);
        w.count(at(0), A, true);
        w.count(at(5), A, false);
        w.count(at(500), B, false);
        w.advance(at(999));
        assert_eq!(w.acceptance_ratio(A), Some(0.5));
        assert_eq!(w.average_acceptance_ratio(), Some(0.25));
        w.advance(at(1000));
        assert_eq!(w.acceptance_ratio(A), None);
        assert_eq!(w.average_acceptance_ratio(), Some(0.0));
        w.advance(at(1500));
        assert_eq!(w.average_acceptance_ratio(), None);
    }

    #[test]
    fn a_withdrawn_acceptance_counts_as_a_rejection() {
        let mut w = window(2);
        w.count(at(0), A, true);
        w.count(at(0), A, true);
        w.withdraw(A);
        assert_eq!(w.acceptance_ratio(A), Some(0.5));
        w.withdraw(A);
        w.withdraw(A);
        w.withdraw(B);
        assert_eq!(w.acceptance_ratio(A), Some(0.0));
        w.advance(at(1000));
        assert_eq!(w.average_acceptance_ratio(), None);
    }

    #[test]
    fn a_clock_that_steps_back_neither_panics_nor_forgets() {
        let mut w = window(1);
        w.count(at(5_000), A, true);
        w.count(at(4_000), A, false);
        w.count(Instant::from_nanos(0), A, false);
        assert!((w.acceptance_ratio(A).unwrap() - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_gap_of_years_empties_it() {
        let mut w = window(1);
        w.count(at(0), A, true);
        let later = at(1000 * 3600 * 24 * 365 * 3);
        w.count(later, A, false);
        assert_eq!(w.acceptance_ratio(A), Some(0.0));
        w.advance(later + Duration::from_secs(1));
        assert_eq!(w.acceptance_ratio(A), None);
    }

    #[test]
    fn many_types_get_longer_steps_rather_than_more_memory() {
        let w = Window::new(1024, Duration::from_secs(1), Duration::from_micros(100));
        assert!(w.steps * 1024 <= MAX_ENTRIES);
        assert!(w.steps * w.step_nanos >= 1_000_000_000);
        assert_eq!(
            Window::new(1024, Duration::from_secs(1), Duration::from_millis(10)).steps,
            100
        );
    }

    #[test]
    fn unknown_types_are_ignored() {
        let mut w = window(1);
        w.count(at(0), B, true);
        assert_eq!(w.acceptance_ratio(B), None);
        assert_eq!(w.average_acceptance_ratio(), None);
    }

    proptest! {
        /// Compares the window with a simple model, a list of all arrivals.
        #[test]
        fn counts_what_a_list_counts(
            events in prop::collection::vec(
                (0_u64..60, 0_u16..5, any::<bool>(), prop::bool::weighted(0.1)),
                1..400,
            ),
        ) {
            let mut w = window(5);
            let mut all = Vec::new();
            let mut now = 0;
            for (gap, kind, accepted, withdrawn) in events {
                now += gap;
                w.count(at(now), TypeId(kind), accepted);
                if accepted && withdrawn {
                    w.withdraw(TypeId(kind));
                }
                all.push((now, kind, accepted && !withdrawn));
                // Steps start at the first request.
                let step = |ms: u64| (ms - all[0].0) / 10;
                let mut ratios = Vec::new();
                for kind in 0..5 {
                    let seen: Vec<bool> = all
                        .iter()
                        .filter(|(t, k, _)| *k == kind && step(*t) + 100 > step(now))
                        .map(|(_, _, accepted)| *accepted)
                        .collect();
                    let ratio = (!seen.is_empty())
                        .then(|| seen.iter().filter(|a| **a).count() as f64 / seen.len() as f64);
                    prop_assert_eq!(w.acceptance_ratio(TypeId(kind)), ratio);
                    ratios.extend(ratio);
                }
                let average = ratios.iter().sum::<f64>() / ratios.len() as f64;
                prop_assert!((w.average_acceptance_ratio().unwrap() - average).abs() < 1e-8);
            }
        }
    }
}
