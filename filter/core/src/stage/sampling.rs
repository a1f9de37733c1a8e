//! Sampling of the requests to measure. All requests are measured, up to a rate beyond which more
//! samples add no precision.
//!
//! Measuring an answer costs more host calls than deciding on its request: one to check whether the
//! backend sent the answer, and a record in each of three distributions. At thousands of answers
//! per second of one type, a sample gives the same percentiles. The budget of samples is per type,
//! so a rare type is always measured, however busy the other types are. Slots never depend on the
//! sampling.
//!
//! The sample is drawn when a request goes to the backend, so it doesn't depend on the outcome. A
//! request counts as late while it is unanswered, and a client may leave before the answer. If the
//! sample were drawn from the answers, all such requests would count, but only a part of those that
//! are answered in time. With 8,000 requests per second, of which 10% are late, half of the
//! outcomes would be late.
//!
//! One request is drawn of each block of consecutive requests, and counts for all of them. The more
//! of the budget is used, the longer are the blocks, so a type's samples have about equal weights.
//! If a sample counted for all that were skipped before it, one answer in each tick would count for
//! nearly all. The request is drawn at random, because hosts or clients may take turns.
//!
//! The error of an estimated percentile p depends on the number of samples beyond it. So a type
//! with an objective for a high percentile has a larger budget: per second, [`BEYOND`] samples are
//! beyond its highest percentile. In one window of a second, the estimate of a p90 then lies
//! between the actual p88 and p92 in two of three windows.

use headgate_strategies::request::TypeId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

use crate::config::TypeConfig;

/// The least number of requests per second that are measured for each type on each worker. Types
/// with fewer are measured fully.
pub const SAMPLES_PER_SECOND: u32 = 200;
/// The largest number of requests per second that are measured for each type on each worker.
const MOST: f64 = 800.0;
/// The number of samples per second that are beyond the highest percentile of an objective, unless
/// that needs more than [`MOST`] samples.
const BEYOND: f64 = 20.0;
/// The largest budget that a type may accumulate, s. Blocks have one request while more than half
/// of it is left. So bursts of rare types are measured fully.
const BURST: f64 = 2.0;

/// Returns the number of requests of `kind` to measure per second.
fn rate(kind: &TypeConfig) -> f64 {
    let percentiles = kind.slo.iter().chain(&kind.tpot).map(|of| of.percentile);
    let highest = percentiles.fold(0.0, f64::max);
    let needed = (BEYOND / (1.0 - highest / 100.0)).round();
    needed.clamp(SAMPLES_PER_SECOND.into(), MOST)
}

#[derive(Debug, Clone, Copy)]
struct Budget {
    /// The number of samples per second.
    rate: f64,
    left: f64,
    /// The number of requests in the block.
    size: u32,
    /// The number of these that came so far.
    seen: u32,
    /// The number of requests before the one that is drawn.
    before: u32,
}

impl Budget {
    /// Returns the size of a block that begins now.
    fn size(&self) -> u32 {
        (BURST * self.rate / self.left.max(1.0)) as u32
    }
}

/// The budgets of samples, by type.
#[derive(Debug)]
pub(super) struct Sampling {
    budgets: Vec<Budget>,
    refilled: Instant,
}

impl Sampling {
    pub(super) fn new(types: &[TypeConfig]) -> Self {
        let budget = |kind| Budget {
            rate: rate(kind),
            left: BURST * rate(kind),
            size: 0,
            seen: 0,
            before: 0,
        };
        Self {
            budgets: types.iter().map(budget).collect(),
            refilled: Instant::default(),
        }
    }

    /// Decides whether to measure a request of `kind`. Returns the number of requests that it
    /// counts for, or 0 if it isn't measured.
    pub(super) fn draw(&mut self, kind: TypeId, rng: &mut Rng) -> u32 {
        let Some(budget) = self.budgets.get_mut(usize::from(kind.0)) else {
            return 1;
        };
        let size = budget.size();
        // A block ends early when the budget has grown. On average, the requests drawn so far count
        // for as many as came.
        if budget.seen >= budget.size || size < budget.size {
            let before = match size {
                1 => 0,
                _ => (rng.next_f64() * f64::from(size)) as u32,
            };
            (budget.size, budget.seen, budget.before) = (size, 0, before);
        }
        budget.seen += 1;
        if budget.seen != budget.before + 1 {
            return 0;
        }
        budget.left = (budget.left - 1.0).max(0.0);
        budget.size
    }

    /// Returns the number of requests of `kind` of which one is measured now.
    pub(super) fn one_in(&self, kind: TypeId) -> u32 {
        let budget = self.budgets.get(usize::from(kind.0));
        budget.map_or(1, Budget::size)
    }

    /// Whether all requests of `kind` that begin now would be measured.
    pub(super) fn has_room(&self, kind: TypeId) -> bool {
        self.one_in(kind) <= 1
    }

    /// Refills the budgets for the time since the last call.
    pub(super) fn refill(&mut self, now: Instant) {
        let elapsed = now.since(self.refilled).as_secs_f64();
        self.refilled = now;
        for Budget { rate, left, .. } in &mut self.budgets {
            *left = (*left + elapsed * *rate).min(BURST * *rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Objective;

    /// Returns a type with objectives for these percentiles.
    fn kind(percentiles: &[f64]) -> TypeConfig {
        let objective = |&percentile: &f64| Objective {
            percentile,
            objective_us: 1,
        };
        TypeConfig {
            slo: percentiles.iter().map(objective).collect(),
            ..TypeConfig::default()
        }
    }

    #[test]
    fn a_higher_percentile_needs_more_samples() {
        let rates = [&[][..], &[50.0], &[50.0, 90.0], &[95.0], &[99.0, 50.0]];
        let rates = rates.map(|percentiles| rate(&kind(percentiles)));
        assert_eq!(rates, [200.0, 200.0, 200.0, 400.0, 800.0]);
    }

    #[test]
    fn a_busy_type_is_sampled_and_a_rare_one_measured_fully() {
        let (mut sampling, mut rng) = (Sampling::new(&[kind(&[]), kind(&[])]), Rng::new(1));
        let (busy, rare) = (TypeId(0), TypeId(1));
        let (mut measured, mut rare_measured, mut stood_for, mut most) = (0, 0, 0, 0);
        for ms in 1..=10_000u64 {
            if ms % 10 == 0 {
                sampling.refill(Instant::from_nanos(ms * 1_000_000));
                rare_measured += sampling.draw(rare, &mut rng);
            }
            for _ in 0..5 {
                let weight = sampling.draw(busy, &mut rng);
                measured += u32::from(weight > 0);
                stood_for += weight;
                most = most.max(weight);
            }
        }
        assert_eq!(rare_measured, 1_000);
        assert!((49_500..=50_500).contains(&stood_for), "{stood_for}");
        assert!(
            (2_000..=2_400).contains(&measured),
            "{measured} of 50,000 in 10 s"
        );
        // The mean weight is 50,000 / 2,000.
        assert!(most <= 32, "{most}");
    }

    #[test]
    fn a_type_that_is_no_longer_busy_is_measured_fully_again() {
        let (mut sampling, mut rng) = (Sampling::new(&[kind(&[])]), Rng::new(1));
        let kind = TypeId(0);
        for _ in 0..3 {
            assert!(sampling.has_room(kind));
            for _ in 0..SAMPLES_PER_SECOND {
                assert_eq!(sampling.draw(kind, &mut rng), 1);
            }
            assert!(!sampling.has_room(kind));
            (0..1_000_000).for_each(|_| _ = sampling.draw(kind, &mut rng));
            assert_eq!(sampling.budgets[0].left, 0.0);
            for _ in 0..2 {
                sampling.refill(sampling.refilled + Duration::from_secs(1));
            }
        }
    }
}
