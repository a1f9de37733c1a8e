//! A batch of response times for the controller. It has up to `nreq` samples, and then yields their
//! percentile (SEDA §3.2, the monitor of Figure 3).
//!
//! The monitor "records up to nreq response-time samples and calculates the 90th-percentile sample
//! by sorting the samples and taking the (0.9 × nreq)-th". A busy stage measures only one of
//! several answers, and such a sample has a weight. A percentile must never come from very few
//! samples. So a batch isn't complete before it has [`LEAST_SAMPLES`], or `nreq` if that is less.

use std::time::Duration;

/// The least number of samples for a meaningful percentile. With 20 samples, two are above the 90th
/// percentile.
const LEAST_SAMPLES: u64 = 20;
/// The largest number of percentiles between two ticks. Further percentiles are dropped. A stage
/// measures about 800 answers a second on a worker, so usually two or three percentiles occur.
const WAITING: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Sample {
    /// The response time, µs. It saturates after 71 minutes.
    micros: u32,
    weight: u32,
}

/// The batch of one controller on one worker.
#[derive(Debug)]
pub(super) struct Batch {
    /// The percentile as a ratio.
    percentile: f64,
    /// nreq, the number of requests in a batch.
    requests: u64,
    samples: Vec<Sample>,
    weight: u64,
    /// The percentiles of complete batches, s.
    complete: Vec<f64>,
}

impl Batch {
    /// Creates an empty batch. `percentile` is in percent, and `requests` must be above 0.
    pub(super) fn new(percentile: f64, requests: u32) -> Self {
        Self {
            percentile: percentile / 100.0,
            requests: u64::from(requests),
            samples: Vec::with_capacity(requests as usize),
            weight: 0,
            complete: Vec::with_capacity(WAITING),
        }
    }

    /// Adds a response time that counts as `weight` responses.
    pub(super) fn add(&mut self, response_time: Duration, weight: u32) {
        let micros = u32::try_from(response_time.as_micros()).unwrap_or(u32::MAX);
        let weight = weight.max(1);
        self.samples.push(Sample { micros, weight });
        self.weight += u64::from(weight);
        let enough = LEAST_SAMPLES.min(self.requests);
        if self.weight >= self.requests && self.samples.len() as u64 >= enough {
            let sample = self.partial();
            if let Some(sample) = sample.filter(|_| self.complete.len() < WAITING) {
                self.complete.push(sample);
            }
            self.restart();
        }
    }

    /// Returns the percentiles of the batches completed since [`Batch::clear`], s, oldest first.
    pub(super) fn complete(&self) -> &[f64] {
        &self.complete
    }

    /// Returns the percentile of the incomplete batch, s, or `None` if the batch is empty.
    pub(super) fn partial(&mut self) -> Option<f64> {
        self.at(self.percentile)
    }

    /// Returns the median of the incomplete batch, s, or `None` if the batch is empty.
    pub(super) fn median(&mut self) -> Option<f64> {
        self.at(0.5)
    }

    fn at(&mut self, ratio: f64) -> Option<f64> {
        self.samples.sort_unstable();
        // This is the nearest rank. The margin is for products like 0.07 × 100.
        let rank = ratio * self.weight as f64 - 1e-9;
        let mut below = 0;
        let at = self.samples.iter().find(|sample| {
            below += u64::from(sample.weight);
            below as f64 >= rank
        });
        at.map(|sample| f64::from(sample.micros) / 1e6)
    }

    /// Whether the current batch has any samples.
    pub(super) fn is_begun(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Removes the percentiles of complete batches.
    pub(super) fn clear(&mut self) {
        self.complete.clear();
    }

    /// Discards the samples, and starts a new batch.
    pub(super) fn restart(&mut self) {
        self.samples.clear();
        self.weight = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn takes_the_nreq_times_0_9_th_sample() {
        let mut batch = Batch::new(90.0, 100);
        for n in (1..=100).rev() {
            assert!(batch.complete().is_empty());
            batch.add(ms(n), 1);
        }
        assert_eq!(batch.complete(), [0.090]);
        assert!(!batch.is_begun());
        for (n, expected) in [(1, 7), (2, 9), (3, 9)] {
            batch.restart();
            [7, 9, 8][..n].iter().for_each(|&n| batch.add(ms(n), 1));
            assert_eq!(batch.partial(), Some(expected as f64 / 1e3));
        }
    }

    #[test]
    fn a_sample_counts_with_its_weight() {
        let mut batch = Batch::new(50.0, 1_000);
        batch.add(ms(1), 5);
        batch.add(ms(2), 4);
        assert_eq!(batch.partial(), Some(0.001));
        batch.add(ms(3), 2);
        assert_eq!(batch.partial(), Some(0.002));
    }

    #[test]
    fn no_percentile_of_a_handful() {
        let mut batch = Batch::new(90.0, 100);
        for n in 1..=19 {
            batch.add(ms(n), 50);
        }
        assert!(batch.complete().is_empty());
        batch.add(ms(20), 50);
        assert_eq!(batch.complete(), [0.018]);
        // A smaller batch may be configured.
        let mut small = Batch::new(90.0, 3);
        (1..=6).for_each(|n| small.add(ms(n), 9));
        assert_eq!(small.complete(), [0.003, 0.006]);
    }

    #[test]
    fn without_ticks_it_does_not_grow() {
        let mut batch = Batch::new(90.0, 2);
        let capacities = (batch.samples.capacity(), batch.complete.capacity());
        for n in 0..1_000 {
            batch.add(ms(n), 1);
        }
        assert_eq!(
            (batch.samples.capacity(), batch.complete.capacity()),
            capacities
        );
        assert_eq!(batch.complete().len(), WAITING);
        batch.clear();
        assert!(batch.complete().is_empty());
    }
}
