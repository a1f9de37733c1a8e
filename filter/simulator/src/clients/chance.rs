//! Random choices of clients.

use std::f64::consts::TAU;

use headgate_mesh::smoothing::Smoothing;
use headgate_strategies::time::nanos;

use crate::workload::LogNormal;
use crate::workload::dice::Dice;

impl Dice {
    /// Returns a time drawn uniformly between two times, ns.
    pub(super) fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        low + ((high.saturating_sub(low)) as f64 * self.unit()) as u64
    }

    /// Returns the additional delay of a client that received this rejection rate, ns.
    pub(super) fn smoothed(&mut self, smoothing: &Smoothing, rejection_rate: f64) -> u64 {
        let delay = smoothing.delay(rejection_rate, &mut self.0);
        delay.map_or(0, nanos)
    }

    /// Returns a random number from 1 to `most`.
    pub(super) fn up_to(&mut self, most: u32) -> u32 {
        1 + (f64::from(most) * self.unit()) as u32
    }

    /// Returns a random index. `weights` are the probabilities of the indices, with a sum of 1.
    pub(super) fn index(&mut self, weights: &[f64]) -> usize {
        let mut left = self.unit();
        let taken = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        taken.unwrap_or(weights.len().saturating_sub(1))
    }

    /// Returns a time drawn from this distribution, ns.
    pub(super) fn time(&mut self, times: &LogNormal) -> u64 {
        // This is the Box–Muller method. 1 − u is never 0, because u is below 1.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (TAU * self.unit()).cos();
        let sigma = (2.0 * (times.mean_ms() / times.median_ms()).ln()).sqrt();
        (times.median_ms() * 1e6 * (sigma * normal).exp()) as u64
    }
}
