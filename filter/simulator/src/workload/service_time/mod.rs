//! Service times: the time that the backend works on a request.
//!
//! The effect of overload depends on the tail of these times as much as on their mean, so a
//! workload can have any measured shape. A distribution is one of the usual families, given by
//! familiar numbers (a mean and a percentile rather than μ and σ), or the measured times
//! themselves.

mod empirical;
mod log_normal;
#[cfg(test)]
mod tests;

use std::fmt;

use rand_distr::{Distribution as _, Exp1};

use super::dice::Dice;
pub use empirical::Empirical;
pub use log_normal::LogNormal;

/// The longest time that is drawn, ms: a day.
const LONGEST_MS: f64 = 86_400_000.0;

/// The reason why a distribution is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ServiceTimeError(String);

impl ServiceTimeError {
    fn new<T>(message: impl Into<String>) -> Result<T, Self> {
        Err(Self(message.into()))
    }
}

/// A distribution of service times, all in ms.
#[derive(Debug, Clone, PartialEq)]
pub enum ServiceTime {
    /// A constant time.
    Constant(f64),
    /// Exponential with this mean: the service times of M/M/P.
    Exponential(f64),
    /// Lognormal, "which approximates those of real production queries" (Bouncer §5.3).
    LogNormal(LogNormal),
    /// One of several exponential distributions, such as hits and misses of a cache.
    Hyperexponential(Branches),
    /// Pareto, with a heavy tail.
    Pareto(Pareto),
    /// Measured times.
    Empirical(Empirical),
}

impl ServiceTime {
    /// Returns the mean, ms.
    pub fn mean_ms(&self) -> f64 {
        match self {
            Self::Constant(mean) | Self::Exponential(mean) => *mean,
            Self::LogNormal(times) => times.mean_ms(),
            Self::Hyperexponential(times) => times.mean_ms,
            Self::Pareto(times) => times.mean_ms,
            Self::Empirical(times) => times.mean_ms(),
        }
    }

    /// Draws a time, ns.
    pub(crate) fn draw(&self, dice: &mut Dice) -> u64 {
        let ms = match self {
            Self::Constant(mean) => *mean,
            Self::Exponential(mean) => exponential(*mean, dice),
            // Lognormal is the most frequent case, and its times need no limit.
            Self::LogNormal(times) => return times.draw(dice),
            Self::Hyperexponential(times) => times.draw(dice),
            Self::Pareto(times) => times.draw(dice),
            Self::Empirical(times) => times.draw(dice),
        };
        (ms.min(LONGEST_MS) * 1e6) as u64
    }
}

fn exponential(mean: f64, dice: &mut Dice) -> f64 {
    let unit: f64 = Exp1.sample(dice);
    mean * unit
}

impl fmt::Display for ServiceTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(mean) => write!(f, "always {} ms", Ms(*mean)),
            Self::Exponential(mean) => write!(f, "exponential, mean {} ms", Ms(*mean)),
            Self::LogNormal(times) => write!(
                f,
                "lognormal, mean {} ms, median {} ms",
                Ms(times.mean_ms()),
                Ms(times.median_ms())
            ),
            Self::Hyperexponential(times) => {
                let (count, mean) = (times.branches.len(), Ms(times.mean_ms));
                write!(f, "hyperexponential of {count}, mean {mean} ms")
            }
            Self::Pareto(times) => {
                let (mean, shape) = (Ms(times.mean_ms), times.shape);
                write!(f, "Pareto, mean {mean} ms, shape {shape}")
            }
            Self::Empirical(times) => {
                let (count, mean) = (times.len(), Ms(times.mean_ms()));
                write!(f, "{count} measured values, mean {mean} ms")
            }
        }
    }
}

/// A time, displayed with its significant decimals.
struct Ms(f64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", (self.0 * 1e3).round() / 1e3)
    }
}

/// Branches of a hyperexponential distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Branches {
    /// The cumulative shares (the last is 1), and the means, ms.
    branches: Vec<(f64, f64)>,
    mean_ms: f64,
}

impl Branches {
    /// Returns the branches with these shares, relative to each other, and these means, ms.
    ///
    /// # Errors
    /// If there are no branches, or if a branch's share or mean is not above 0.
    pub fn new(branches: &[(f64, f64)]) -> Result<Self, ServiceTimeError> {
        let positive = |x: f64| x > 0.0 && x.is_finite();
        if branches.is_empty() || !branches.iter().all(|(s, m)| positive(*s) && positive(*m)) {
            return ServiceTimeError::new(
                "no branch, or a branch without share or mean; at least one branch, with share \
                 and mean above 0",
            );
        }
        let total: f64 = branches.iter().map(|(share, _)| share).sum();
        let mut sum = 0.0;
        let branch = |(share, mean): &(f64, f64)| {
            sum += share / total;
            (sum, *mean)
        };
        Ok(Self {
            mean_ms: branches.iter().map(|(s, m)| s / total * m).sum(),
            branches: branches.iter().map(branch).collect(),
        })
    }

    fn draw(&self, dice: &mut Dice) -> f64 {
        let place = dice.unit();
        let upto = |(upto, _): &&(f64, f64)| place < *upto;
        let branch = self.branches.iter().find(upto).or(self.branches.last());
        exponential(branch.map_or(self.mean_ms, |(_, mean)| *mean), dice)
    }
}

/// A Pareto distribution: P(t > x) = (least / x)^shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pareto {
    mean_ms: f64,
    shape: f64,
    least_ms: f64,
}

impl Pareto {
    /// Returns the distribution with this mean, ms, and shape. With a shape of 2 or less the
    /// variance is infinite, with 1 or less also the mean.
    ///
    /// # Errors
    /// If the mean is not above 0, or the shape not above 1.
    pub fn new(mean_ms: f64, shape: f64) -> Result<Self, ServiceTimeError> {
        let possible = mean_ms > 0.0 && mean_ms.is_finite() && shape > 1.0 && shape.is_finite();
        if !possible {
            return ServiceTimeError::new(format!(
                "mean {mean_ms} ms and shape {shape}; a mean above 0, a shape above 1"
            ));
        }
        Ok(Self {
            mean_ms,
            shape,
            least_ms: mean_ms * (shape - 1.0) / shape,
        })
    }

    fn draw(&self, dice: &mut Dice) -> f64 {
        // The value is above 0, so that no time is infinite.
        let tail = 1.0 - dice.unit();
        self.least_ms * tail.powf(-1.0 / self.shape)
    }
}
