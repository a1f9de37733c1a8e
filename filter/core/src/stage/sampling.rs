//! Which answers are measured: all of them, up to a rate at which more add nothing.
//!
//! Measuring an answer costs more host calls than deciding about its request: whether it came from the
//! backend at all, and a record in each of three distributions. At thousands of answers a second of one
//! type a sample of them gives the same percentiles. The budget is per type, so a rare type is always
//! measured however busy the others are; slots and decisions never depend on it.

use std::time::Duration;

use crate::strategy::TypeId;
use crate::time::Instant;

/// Answers per second, type and worker that are measured at least; slower types are measured fully.
pub const SAMPLES_PER_SECOND: u32 = 800;
/// Budget that a type may save up: a second's, so that bursts of rare types are measured fully, too.
const BURST: u32 = SAMPLES_PER_SECOND;

/// Budgets by type.
#[derive(Debug)]
pub(super) struct Sampling {
    budgets: Vec<u32>,
    refilled: Instant,
}

impl Sampling {
    pub(super) fn new(types: usize) -> Self {
        Self {
            budgets: vec![BURST; types],
            refilled: Instant::default(),
        }
    }

    /// Takes one answer of the type out of its budget; false when there is none left.
    pub(super) fn take(&mut self, kind: TypeId) -> bool {
        match self.budgets.get_mut(kind.0 as usize) {
            Some(0) => false,
            Some(budget) => {
                *budget -= 1;
                true
            }
            None => true,
        }
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
            *budget = (*budget + refill).min(BURST);
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
        let (mut measured, mut rare_measured) = (0, 0);
        for ms in 1..=10_000u64 {
            if ms % 10 == 0 {
                sampling.refill(Instant::from_nanos(ms * 1_000_000));
                rare_measured += u32::from(sampling.take(rare));
            }
            measured += (0..5).map(|_| u32::from(sampling.take(busy))).sum::<u32>();
        }
        assert_eq!(rare_measured, 1_000);
        assert!(
            (8_000..=8_800).contains(&measured),
            "{measured} of 50,000 in 10 s"
        );
    }
}
