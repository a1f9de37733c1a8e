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

use std::time::Duration;

use crate::request::TypeId;
use crate::time::Instant;

/// The number of requests per second that are measured for each type on each worker. Types with
/// fewer are measured fully.
pub const SAMPLES_PER_SECOND: u32 = 800;
/// The largest budget that a type may accumulate. It is the budget of one second, so that bursts of
/// rare types are measured fully.
const BURST: u32 = SAMPLES_PER_SECOND;

#[derive(Debug, Clone, Copy)]
struct Budget {
    left: u32,
    /// The number of requests that were skipped since the last measured one.
    skipped: u32,
}

/// The budgets of samples, by type.
#[derive(Debug)]
pub(super) struct Sampling {
    budgets: Vec<Budget>,
    refilled: Instant,
}

impl Sampling {
    pub(super) fn new(types: usize) -> Self {
        Self {
            budgets: vec![
                Budget {
                    left: BURST,
                    skipped: 0,
                };
                types
            ],
            refilled: Instant::default(),
        }
    }

    /// Decides by the type's budget whether to measure a request. Returns the number of requests
    /// that the measured one counts for: itself, and those skipped before it. Returns `None` if the
    /// request is skipped.
    pub(super) fn take(&mut self, kind: TypeId) -> Option<u32> {
        let Some(budget) = self.budgets.get_mut(kind.0 as usize) else {
            return Some(1);
        };
        if budget.left == 0 {
            budget.skipped = budget.skipped.saturating_add(1);
            return None;
        }
        budget.left -= 1;
        Some(std::mem::take(&mut budget.skipped).saturating_add(1))
    }

    /// Whether few requests of `kind` were sampled in the last second, compared with the budget.
    pub(super) fn has_room(&self, kind: TypeId) -> bool {
        let budget = self.budgets.get(usize::from(kind.0));
        budget.is_none_or(|budget| budget.left >= BURST / 2)
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
        let mut sampling = Sampling::new(2);
        let (busy, rare) = (TypeId(0), TypeId(1));
        let (mut measured, mut rare_measured, mut stood_for) = (0, 0, 0);
        for ms in 1..=10_000u64 {
            if ms % 10 == 0 {
                sampling.refill(Instant::from_nanos(ms * 1_000_000));
                rare_measured += sampling.take(rare).unwrap_or(0);
            }
            for weight in (0..5).filter_map(|_| sampling.take(busy)) {
                measured += 1;
                stood_for += weight;
            }
        }
        assert_eq!(rare_measured, 1_000);
        // All answers are counted, except those since the last sample.
        assert!((49_900..=50_000).contains(&stood_for), "{stood_for}");
        assert!(
            (8_000..=8_800).contains(&measured),
            "{measured} of 50,000 in 10 s"
        );
    }
}
