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

use std::time::Duration;

use headgate_strategies::request::TypeId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

/// The number of requests per second that are measured for each type on each worker. Types with
/// fewer are measured fully.
pub const SAMPLES_PER_SECOND: u32 = 800;
/// The largest budget that a type may accumulate, that of two seconds. While more than half of it
/// is left, a block has one request. So bursts of rare types are measured fully.
const BURST: u32 = 2 * SAMPLES_PER_SECOND;

#[derive(Debug, Clone, Copy)]
struct Budget {
    left: u32,
    /// The number of requests in the block.
    size: u32,
    /// The number of requests of the block that have come so far.
    seen: u32,
    /// The number of requests of the block before the one that is drawn.
    before: u32,
}

impl Budget {
    /// Returns the size of a block that begins now.
    fn size(&self) -> u32 {
        BURST / self.left.max(1)
    }
}

/// The budgets of samples, by type.
#[derive(Debug)]
pub(super) struct Sampling {
    budgets: Vec<Budget>,
    refilled: Instant,
}

impl Sampling {
    pub(super) fn new(types: usize) -> Self {
        let budget = Budget {
            left: BURST,
            size: 0,
            seen: 0,
            before: 0,
        };
        Self {
            budgets: vec![budget; types],
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
        budget.left = budget.left.saturating_sub(1);
        budget.size
    }

    /// Whether all requests of `kind` that begin now would be measured.
    pub(super) fn has_room(&self, kind: TypeId) -> bool {
        let budget = self.budgets.get(usize::from(kind.0));
        budget.is_none_or(|budget| budget.size() <= 1)
    }

    /// Refills the budgets for the time since the last call.
    pub(super) fn refill(&mut self, now: Instant) {
        let elapsed = now.since(self.refilled).min(Duration::from_secs(1));
        let refill = u32::try_from(elapsed.as_millis()).unwrap_or(0) * SAMPLES_PER_SECOND / 1000;
        if refill == 0 {
            return;
        }
        self.refilled = now;
        for budget in &mut self.budgets {
            budget.left = (budget.left + refill).min(BURST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_type_is_sampled_and_a_rare_one_measured_fully() {
        let (mut sampling, mut rng) = (Sampling::new(2), Rng::new(1));
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
            (8_000..=9_600).contains(&measured),
            "{measured} of 50,000 in 10 s"
        );
        // The mean weight is 50,000 / 8,000.
        assert!(most <= 8, "{most}");
    }

    #[test]
    fn a_type_that_is_no_longer_busy_is_measured_fully_again() {
        let (mut sampling, mut rng) = (Sampling::new(1), Rng::new(1));
        let kind = TypeId(0);
        for _ in 0..3 {
            assert!(sampling.has_room(kind));
            for _ in 0..SAMPLES_PER_SECOND {
                assert_eq!(sampling.draw(kind, &mut rng), 1);
            }
            assert!(!sampling.has_room(kind));
            (0..1_000_000).for_each(|_| _ = sampling.draw(kind, &mut rng));
            assert_eq!(sampling.budgets[0].left, 0);
            for _ in 0..2 {
                sampling.refill(sampling.refilled + Duration::from_secs(1));
            }
        }
    }
}
