//! Lognormal service times, defined by two of mean, median and p90.

use rand_distr::{Distribution as _, StandardNormal};

use super::{LONGEST_MS, ServiceTime, ServiceTimeError};
use crate::workload::dice::Dice;

/// The standard normal quantile at 0.9.
const Z_90: f64 = 1.281_551_565_544_6;

/// A lognormal distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormal {
    mean_ms: f64,
    median_ms: f64,
    sigma: f64,
}

impl LogNormal {
    /// Returns the distribution with this mean and median, ms: μ = ln median, σ² = 2 ln(mean /
    /// median). If mean and median are equal, all times are the same.
    ///
    /// # Errors
    /// If no lognormal distribution has this mean and median.
    pub fn new(mean_ms: f64, median_ms: f64) -> Result<Self, ServiceTimeError> {
        let possible = median_ms > 0.0 && mean_ms >= median_ms && mean_ms.is_finite();
        if !possible {
            return ServiceTimeError::new(format!(
                "mean {mean_ms} ms and median {median_ms} ms; both above 0, the mean not below the \
                 median"
            ));
        }
        Ok(Self {
            mean_ms,
            median_ms,
            sigma: (2.0 * (mean_ms / median_ms).ln()).sqrt(),
        })
    }

    /// Returns the distribution with this mean and 90th percentile, ms. ln(p90 / mean) = zσ − σ²/2
    /// with z = 1.28. Of the two solutions, the solution with the lighter tail is used.
    ///
    /// # Errors
    /// If p90 is not 1 to e^(z²/2) = 2.27 times the mean. No lognormal distribution has a greater
    /// p90, and distributions with a smaller p90 have a heavier tail.
    pub fn by_mean_and_p90(mean_ms: f64, p90_ms: f64) -> Result<Self, ServiceTimeError> {
        let (highest, ratio) = ((Z_90 * Z_90 / 2.0).exp(), p90_ms / mean_ms);
        let possible = mean_ms > 0.0 && (1.0..=highest).contains(&ratio);
        if !possible {
            return ServiceTimeError::new(format!(
                "mean {mean_ms} ms and p90 {p90_ms} ms; the p90 of a lognormal distribution is 1 \
                 to {highest:.2} times its mean here; otherwise give the median"
            ));
        }
        let sigma = Z_90 - (Z_90 * Z_90 - 2.0 * ratio.ln()).max(0.0).sqrt();
        Ok(Self {
            mean_ms,
            median_ms: mean_ms / (sigma * sigma / 2.0).exp(),
            sigma,
        })
    }

    /// Returns the distribution with this median and 90th percentile, ms: σ = ln(p90 / median) / z.
    ///
    /// # Errors
    /// If no lognormal distribution has this median and p90.
    pub fn by_median_and_p90(median_ms: f64, p90_ms: f64) -> Result<Self, ServiceTimeError> {
        let sigma = (p90_ms / median_ms).ln() / Z_90;
        let mean_ms = median_ms * (sigma * sigma / 2.0).exp();
        let possible = median_ms > 0.0 && sigma >= 0.0 && mean_ms < LONGEST_MS;
        if !possible {
            return ServiceTimeError::new(format!(
                "median {median_ms} ms and p90 {p90_ms} ms; both above 0, the p90 not below the \
                 median"
            ));
        }
        Ok(Self {
            mean_ms,
            median_ms,
            sigma,
        })
    }

    /// Returns the mean, ms.
    pub fn mean_ms(&self) -> f64 {
        self.mean_ms
    }

    /// Returns the median, ms.
    pub fn median_ms(&self) -> f64 {
        self.median_ms
    }

    /// Returns the 90th percentile, ms.
    pub fn p90_ms(&self) -> f64 {
        self.median_ms * (self.sigma * Z_90).exp()
    }

    pub(super) fn draw(&self, dice: &mut Dice) -> u64 {
        let normal: f64 = StandardNormal.sample(dice);
        (self.median_ms * 1e6 * (self.sigma * normal).exp()) as u64
    }
}

impl From<LogNormal> for ServiceTime {
    fn from(times: LogNormal) -> Self {
        Self::LogNormal(times)
    }
}
