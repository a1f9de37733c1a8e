//! How slot times depend on the slots in use, for the work that is offered.
//!
//! A request may keep its slot longer while other slots are in use: it shares processors, a disk or
//! a lock with their requests. Mean slot times then grow with the load, and arrival rate times mean
//! slot time isn't proportional to the arrival rate: in front of one core with P = 4, 0.6 of the
//! capacity keeps 1.4 slots busy, not 2.4. So offered work counts slot times as they are with all P
//! slots in use: the recent mean times
//!
//! ```text
//! f(P) / f(n')      f(n) = 1 + β (n − n̄)      within 1..=P/n'
//! ```
//!
//! where n is the mean of the slots in use when a request gets one and when it gives it back,
//! itself included, n̄ its mean and n' its recent mean, and β the slope of slot time ÷ mean slot
//! time of the type against n (least squares, with forgetting). The upper bound is that of Little's
//! law: what is admitted never asks for more than P slots. The means by which slot times are
//! divided have to be slow: those of the last second follow n, which hides the slope.
//!
//! **Measurements** (model of cores with processor sharing and a queue of 8; 60% × 2.4, 30% × 9 and
//! 10% × 60 ms). Offered work ÷ (P × load), at loads of 0.4, 0.6, 0.8 and 1.5:
//!
//! ```text
//!                            1 core, P = 4             4 cores, P = 16           4 cores, P = 4
//! mean slot times        0.40  0.53  0.68  0.96    0.26  0.29  0.40  0.98    0.99  0.99  0.99  1.00
//! requests start         0.90  0.93  0.95  0.99    0.44  0.68  0.89  0.99    0.99  0.99  0.99  1.00
//! start and end (this)   0.97  0.98  0.99  0.99    0.47  0.74  0.93  0.99    0.99  0.99  0.99  1.00
//! average over time      0.97  0.97  0.98  0.99    0.49  0.75  0.93  0.99    0.99  0.99  0.99  1.00
//! ```
//!
//! A line is wrong for four cores and sixteen slots: below four requests nothing is shared. The
//! mean of the requests that find all other slots in use would need no line, and has no samples at
//! low loads.

use std::time::Duration;

use crate::request::TypeId;

/// The numbers of samples after which the weight of one has fallen by e: of β, of a type's mean,
/// and of the recent n.
const SAMPLES: [f64; 3] = [4_000.0, 1_000.0, 100.0];
/// The weight of no dependence, slots² × samples.
const PRIOR: f64 = 100.0;
/// The largest ratio of a slot time to its mean that counts. A rare long one says little about β.
const LONGEST: f64 = 10.0;
/// The least f(n').
const LEAST: f64 = 0.1;

/// A mean with forgetting: the weight of its samples, and their sum.
#[derive(Debug, Default, Clone, Copy)]
struct Mean(f64, f64);

impl Mean {
    fn add(&mut self, sample: f64, weight: f64, samples: f64) -> f64 {
        let kept = (-weight / samples).exp();
        *self = Self(self.0 * kept + weight, self.1 * kept + weight * sample);
        self.1 / self.0
    }
}

/// The regression, on one worker.
#[derive(Debug)]
pub(super) struct Stretch {
    /// The slot times of each type, s.
    times: Vec<Mean>,
    /// n of recent requests.
    recent: Mean,
    /// Σ w, Σ w n, Σ w x, Σ w n² and Σ w n x, of x = slot time ÷ mean slot time.
    sums: [f64; 5],
}

impl Stretch {
    pub(super) fn new(types: usize) -> Self {
        Self {
            times: vec![Mean::default(); types],
            recent: Mean::default(),
            sums: [0.0; 5],
        }
    }

    /// Records the slot time of a request. `in_use` are the numbers of slots in use, with its own,
    /// when it got its slot and when it gave it back. The sample counts as `weight`.
    pub(super) fn record(&mut self, kind: TypeId, held: Duration, in_use: [u32; 2], weight: u32) {
        let Some(times) = self.times.get_mut(usize::from(kind.0)) else {
            return;
        };
        let held = held.as_secs_f64();
        let n = in_use.iter().map(|n| f64::from((*n).max(1))).sum::<f64>() / 2.0;
        let weight = f64::from(weight.max(1));
        let mean = times.add(held, weight, SAMPLES[1]);
        if mean <= 0.0 {
            return;
        }
        self.recent.add(n, weight, SAMPLES[2]);
        let x = (held / mean).min(LONGEST);
        let kept = (-weight / SAMPLES[0]).exp();
        for (sum, sample) in self.sums.iter_mut().zip([1.0, n, x, n * n, n * x]) {
            *sum = *sum * kept + weight * sample;
        }
    }

    /// Returns the mean slot time with `slots` in use ÷ the recent mean slot time.
    pub(super) fn at(&self, slots: u32) -> f64 {
        let [w, n, x, nn, nx] = self.sums;
        if w <= 0.0 {
            return 1.0;
        }
        let (slots, recent, mean) = (f64::from(slots), self.recent.1 / self.recent.0, n / w);
        let slope = (nx - n * x / w) / (nn - n * n / w + PRIOR);
        let time = |n: f64| 1.0 + slope * (n - mean);
        (time(slots) / time(recent).max(LEAST)).clamp(1.0, (slots / recent).max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records 12,000 requests, each with the slots in use and the slot time in ms that `next`
    /// gives.
    fn after(next: impl Fn(u32) -> (u32, u32)) -> Stretch {
        let mut stretch = Stretch::new(2);
        for at in 0..12_000 {
            let (in_use, ms) = next(at);
            // Two types, of which the second takes ten times as long.
            let kind = at % 5 / 4;
            let ms = ms * (1 + 9 * kind);
            let kind = TypeId(u16::try_from(kind).unwrap());
            stretch.record(kind, Duration::from_millis(ms.into()), [in_use; 2], 1);
        }
        stretch
    }

    #[test]
    fn without_samples_or_dependence_it_is_one() {
        assert!((Stretch::new(1).at(4) - 1.0).abs() < 1e-9);
        let stretch = after(|at| (1 + at % 4, 1 + at % 3));
        assert!((stretch.at(4) - 1.0).abs() < 0.05, "{}", stretch.at(4));
    }

    #[test]
    fn times_that_grow_with_the_slots_in_use_are_those_of_all_slots() {
        let stretch = after(|at| (1 + at % 3, 1 + at % 3));
        // One to three slots in use: with four, the time is twice the mean.
        assert!((1.9..=2.0).contains(&stretch.at(4)), "{}", stretch.at(4));
    }

    /// The recent mean already contains what a load of all slots does to slot times.
    #[test]
    fn at_full_load_it_is_one_at_once() {
        let mut stretch = after(|at| (1 + at % 3, 1 + at % 3));
        for _ in 0..500 {
            stretch.record(TypeId(0), Duration::from_millis(4), [4, 4], 1);
        }
        assert!((stretch.at(4) - 1.0).abs() < 0.05, "{}", stretch.at(4));
    }

    #[test]
    fn what_is_admitted_never_asks_for_more_than_all_slots() {
        let stretch = after(|at| (1 + at % 2, (1 + at % 2).pow(3)));
        assert!((stretch.at(3) - 2.0).abs() < 0.01, "{}", stretch.at(3));
        assert!((stretch.at(1) - 1.0).abs() < 1e-9);
    }
}
