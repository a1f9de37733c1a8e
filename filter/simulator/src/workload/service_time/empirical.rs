//! Service times that are drawn from measured times.

use super::ServiceTimeError;
use crate::workload::dice::Dice;

/// A distribution of measured times, or of a histogram of measured times.
#[derive(Debug, Clone, PartialEq)]
pub struct Empirical {
    /// Ranges of times with their cumulative shares; the last share is 1.
    steps: Vec<Bin>,
    mean_ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Bin {
    share: f64,
    from_ms: f64,
    to_ms: f64,
}

impl Empirical {
    /// Returns a distribution of exactly these times, ms. Each time is as frequent as it is in
    /// `values`.
    ///
    /// # Errors
    /// If no time is above 0, or a time is negative.
    pub fn of_values(values: &[f64]) -> Result<Self, ServiceTimeError> {
        let steps: Vec<(f64, f64, f64)> = values.iter().map(|v| (*v, *v, 1.0)).collect();
        Self::new(&steps)
    }

    /// Returns a distribution from buckets in ascending order, each an upper bound, ms, and a
    /// share. The first bucket begins at 0, and each further bucket at the end of the bucket
    /// before. The times in a bucket are distributed uniformly.
    ///
    /// # Errors
    /// If bounds don't ascend, or if no bucket has a share above 0.
    pub fn of_histogram(buckets: &[(f64, f64)]) -> Result<Self, ServiceTimeError> {
        let mut from = 0.0;
        let mut steps = Vec::with_capacity(buckets.len());
        for (to, share) in buckets {
            if *to <= from {
                return ServiceTimeError::new(format!(
                    "a bucket up to {to} ms after one up to {from} ms; bounds in ascending order"
                ));
            }
            steps.push((from, *to, *share));
            from = *to;
        }
        Self::new(&steps)
    }

    fn new(steps: &[(f64, f64, f64)]) -> Result<Self, ServiceTimeError> {
        let bad = |(from, to, share): &(f64, f64, f64)| {
            let sound = |x: f64| x >= 0.0 && x.is_finite();
            !(sound(*from) && sound(*to) && sound(*share))
        };
        if steps.iter().any(bad) {
            return ServiceTimeError::new("a time or a share below 0; 0 or more");
        }
        let total: f64 = steps.iter().map(|(.., share)| share).sum();
        let middle = |(from, to, share): &(f64, f64, f64)| (from + to) / 2.0 * share / total;
        let mean_ms = steps.iter().map(middle).sum();
        // If all shares are 0, the mean is NaN.
        let positive = mean_ms > 0.0;
        if !positive {
            return ServiceTimeError::new("no time above 0; at least one time above 0");
        }
        let mut sum = 0.0;
        let step = |(from_ms, to_ms, share): &(f64, f64, f64)| {
            sum += share / total;
            Bin {
                share: sum,
                from_ms: *from_ms,
                to_ms: *to_ms,
            }
        };
        Ok(Self {
            mean_ms,
            steps: steps.iter().map(step).collect(),
        })
    }

    /// Returns the mean, ms.
    pub fn mean_ms(&self) -> f64 {
        self.mean_ms
    }

    /// Returns the number of values or buckets.
    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn draw(&self, dice: &mut Dice) -> f64 {
        let place = dice.unit();
        let at = self.steps.partition_point(|step| step.share <= place);
        let step = self.steps[at.min(self.steps.len() - 1)];
        step.from_ms + (step.to_ms - step.from_ms) * dice.unit()
    }
}
