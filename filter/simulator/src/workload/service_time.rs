//! How long the backend works on a request.
//!
//! What overload does depends on the tail of these times as much as on their mean, so a workload can have
//! whatever shape was measured: the usual families by numbers that people have at hand (a mean and a
//! percentile rather than μ and σ), or the measured times themselves.

use std::fmt;

use rand_distr::{Distribution as _, Exp1, StandardNormal};

use super::dice::Dice;

/// Standard normal quantile at 0.9.
const Z_90: f64 = 1.281_551_565_544_6;
/// Longest time that is drawn, ms: a day.
const LONGEST_MS: f64 = 86_400_000.0;

/// Why a distribution can't be.
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
    /// Always the same.
    Constant(f64),
    /// Exponential with this mean: M/M/P, as textbooks have it.
    Exponential(f64),
    /// Lognormal, "which approximates those of real production queries" (Bouncer §5.3).
    LogNormal(LogNormal),
    /// One of several exponential distributions: hits and misses of a cache.
    Hyperexponential(Branches),
    /// Pareto: a tail without an end.
    Pareto(Pareto),
    /// Measured.
    Empirical(Empirical),
}

impl ServiceTime {
    /// Mean, ms.
    #[must_use]
    pub fn mean_ms(&self) -> f64 {
        match self {
            Self::Constant(mean) | Self::Exponential(mean) => *mean,
            Self::LogNormal(times) => times.mean_ms(),
            Self::Hyperexponential(times) => times.mean_ms,
            Self::Pareto(times) => times.mean_ms,
            Self::Empirical(times) => times.mean_ms,
        }
    }

    /// Draws a time, ns.
    pub(super) fn draw(&self, dice: &mut Dice) -> u64 {
        let ms = match self {
            Self::Constant(mean) => *mean,
            Self::Exponential(mean) => exponential(*mean, dice),
            // By far the most usual, and always below what fits.
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
                Ms(times.mean_ms),
                Ms(times.median_ms)
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
                let (count, mean) = (times.steps.len(), Ms(times.mean_ms));
                write!(f, "{count} measured values, mean {mean} ms")
            }
        }
    }
}

/// A time with as many decimals as say something.
struct Ms(f64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", (self.0 * 1e3).round() / 1e3)
    }
}

/// A lognormal distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormal {
    mean_ms: f64,
    median_ms: f64,
    sigma: f64,
}

impl LogNormal {
    /// By mean and median, ms: μ = ln median, σ² = 2 ln(mean / median). Equal mean and median make every
    /// time the same.
    ///
    /// # Errors
    /// When no lognormal distribution has them.
    pub fn new(mean_ms: f64, median_ms: f64) -> Result<Self, ServiceTimeError> {
        let possible = median_ms > 0.0 && mean_ms >= median_ms && mean_ms.is_finite();
        if !possible {
            return ServiceTimeError::new(format!(
                "mean {mean_ms} ms and median {median_ms} ms; both above 0, the mean not below the median"
            ));
        }
        Ok(Self {
            mean_ms,
            median_ms,
            sigma: (2.0 * (mean_ms / median_ms).ln()).sqrt(),
        })
    }

    /// By mean and 90th percentile, ms. ln(p90 / mean) = zσ − σ²/2 with z = 1.28, of whose two solutions
    /// the one with the lighter tail is taken.
    ///
    /// # Errors
    /// When no lognormal distribution has them: above e^(z²/2) = 2.27 times the mean there is no p90.
    pub fn by_mean_and_p90(mean_ms: f64, p90_ms: f64) -> Result<Self, ServiceTimeError> {
        let (highest, ratio) = ((Z_90 * Z_90 / 2.0).exp(), p90_ms / mean_ms);
        let possible = mean_ms > 0.0 && (1.0..=highest).contains(&ratio);
        if !possible {
            return ServiceTimeError::new(format!(
                "mean {mean_ms} ms and p90 {p90_ms} ms; the p90 of a lognormal distribution is 1 to \
                 {highest:.2} times its mean here; give the median where it is not"
            ));
        }
        let sigma = Z_90 - (Z_90 * Z_90 - 2.0 * ratio.ln()).max(0.0).sqrt();
        Ok(Self {
            mean_ms,
            median_ms: mean_ms / (sigma * sigma / 2.0).exp(),
            sigma,
        })
    }

    /// By median and 90th percentile, ms: σ = ln(p90 / median) / z.
    ///
    /// # Errors
    /// When no lognormal distribution has them.
    pub fn by_median_and_p90(median_ms: f64, p90_ms: f64) -> Result<Self, ServiceTimeError> {
        let sigma = (p90_ms / median_ms).ln() / Z_90;
        let mean_ms = median_ms * (sigma * sigma / 2.0).exp();
        let possible = median_ms > 0.0 && sigma >= 0.0 && mean_ms < LONGEST_MS;
        if !possible {
            return ServiceTimeError::new(format!(
                "median {median_ms} ms and p90 {p90_ms} ms; both above 0, the p90 not below the median"
            ));
        }
        Ok(Self {
            mean_ms,
            median_ms,
            sigma,
        })
    }

    /// Mean, ms.
    #[must_use]
    pub fn mean_ms(&self) -> f64 {
        self.mean_ms
    }

    /// Median, ms.
    #[must_use]
    pub fn median_ms(&self) -> f64 {
        self.median_ms
    }

    /// 90th percentile, ms.
    #[must_use]
    pub fn p90_ms(&self) -> f64 {
        self.median_ms * (self.sigma * Z_90).exp()
    }

    fn draw(&self, dice: &mut Dice) -> u64 {
        let normal: f64 = StandardNormal.sample(dice);
        (self.median_ms * 1e6 * (self.sigma * normal).exp()) as u64
    }
}

impl From<LogNormal> for ServiceTime {
    fn from(times: LogNormal) -> Self {
        Self::LogNormal(times)
    }
}

/// Branches of a hyperexponential distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Branches {
    /// Shares so far, ending with 1, and means, ms.
    branches: Vec<(f64, f64)>,
    mean_ms: f64,
}

impl Branches {
    /// By shares, relative to each other, and means, ms.
    ///
    /// # Errors
    /// Without a branch, or with one that has no share or no mean above 0.
    pub fn new(branches: &[(f64, f64)]) -> Result<Self, ServiceTimeError> {
        let positive = |x: f64| x > 0.0 && x.is_finite();
        if branches.is_empty() || !branches.iter().all(|(s, m)| positive(*s) && positive(*m)) {
            return ServiceTimeError::new("at least one branch, all with share and mean above 0");
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
    /// By mean, ms, and shape; a shape of 2 or less has no variance, of 1 or less no mean.
    ///
    /// # Errors
    /// For a mean that is not above 0, and a shape that is not above 1.
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
        // Above 0, so that no time is infinite.
        let tail = 1.0 - dice.unit();
        self.least_ms * tail.powf(-1.0 / self.shape)
    }
}

/// Measured times, or a histogram of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Empirical {
    /// From the end of one step to the end of the next, with the share so far, ending with 1.
    steps: Vec<Step>,
    mean_ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    share: f64,
    from_ms: f64,
    to_ms: f64,
}

impl Empirical {
    /// Exactly these times, ms, each as often as it is there.
    ///
    /// # Errors
    /// Without a time above 0, or with one below.
    pub fn of_values(values: &[f64]) -> Result<Self, ServiceTimeError> {
        let steps: Vec<(f64, f64, f64)> = values.iter().map(|v| (*v, *v, 1.0)).collect();
        Self::new(&steps)
    }

    /// By buckets in ascending order: upper bound, ms, and share. A bucket begins where the one before
    /// ends, the first at 0, and its times are spread evenly.
    ///
    /// # Errors
    /// When bounds don't ascend, or no bucket has a share.
    pub fn of_histogram(buckets: &[(f64, f64)]) -> Result<Self, ServiceTimeError> {
        let mut from = 0.0;
        let mut steps = Vec::with_capacity(buckets.len());
        for (to, share) in buckets {
            if *to <= from {
                return ServiceTimeError::new(format!(
                    "a bucket up to {to} ms after one up to {from} ms; bounds ascend"
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
            return ServiceTimeError::new("a time or a share below 0");
        }
        let total: f64 = steps.iter().map(|(.., share)| share).sum();
        let middle = |(from, to, share): &(f64, f64, f64)| (from + to) / 2.0 * share / total;
        let mean_ms = steps.iter().map(middle).sum();
        // Of shares that are all 0 it is no number.
        let positive = mean_ms > 0.0;
        if !positive {
            return ServiceTimeError::new("no time above 0; at least one");
        }
        let mut sum = 0.0;
        let step = |(from_ms, to_ms, share): &(f64, f64, f64)| {
            sum += share / total;
            Step {
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

    fn draw(&self, dice: &mut Dice) -> f64 {
        let place = dice.unit();
        let at = self.steps.partition_point(|step| step.share <= place);
        let step = self.steps[at.min(self.steps.len() - 1)];
        step.from_ms + (step.to_ms - step.from_ms) * dice.unit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(times: &ServiceTime) -> Vec<f64> {
        let mut dice = Dice::new(7);
        let mut drawn: Vec<f64> = (0..200_000)
            .map(|_| times.draw(&mut dice) as f64 / 1e6)
            .collect();
        drawn.sort_by(f64::total_cmp);
        drawn
    }

    fn mean(drawn: &[f64]) -> f64 {
        drawn.iter().sum::<f64>() / drawn.len() as f64
    }

    fn quantile(drawn: &[f64], q: f64) -> f64 {
        drawn[(drawn.len() as f64 * q) as usize]
    }

    #[test]
    fn what_is_drawn_has_the_mean_that_is_promised() {
        for times in [
            ServiceTime::Constant(3.0),
            ServiceTime::Exponential(3.0),
            LogNormal::new(3.0, 1.5).unwrap().into(),
            LogNormal::by_mean_and_p90(3.0, 6.0).unwrap().into(),
            LogNormal::by_median_and_p90(3.0, 9.0).unwrap().into(),
            ServiceTime::Hyperexponential(Branches::new(&[(9.0, 1.0), (1.0, 20.0)]).unwrap()),
            ServiceTime::Pareto(Pareto::new(3.0, 2.5).unwrap()),
            ServiceTime::Empirical(Empirical::of_values(&[1.0, 2.0, 9.0]).unwrap()),
            ServiceTime::Empirical(
                Empirical::of_histogram(&[(2.0, 5.0), (4.0, 0.0), (10.0, 5.0)]).unwrap(),
            ),
        ] {
            let drawn = mean(&sample(&times));
            let error = (drawn / times.mean_ms() - 1.0).abs();
            assert!(error < 0.03, "{times}: {drawn}");
        }
    }

    #[test]
    fn lognormal_times_have_the_percentiles_they_were_made_by() {
        let by_mean = LogNormal::by_mean_and_p90(3.0, 6.0).unwrap();
        let by_median = LogNormal::by_median_and_p90(3.0, 9.0).unwrap();
        for (times, p90) in [(by_mean, 6.0), (by_median, 9.0)] {
            assert!((times.p90_ms() / p90 - 1.0).abs() < 1e-9);
            let drawn = sample(&times.into());
            assert!((quantile(&drawn, 0.9) / p90 - 1.0).abs() < 0.02);
            assert!((quantile(&drawn, 0.5) / times.median_ms() - 1.0).abs() < 0.02);
        }
        let again = LogNormal::by_median_and_p90(by_mean.median_ms(), by_mean.p90_ms()).unwrap();
        assert!((again.mean_ms() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn measured_times_come_back() {
        let drawn = sample(&ServiceTime::Empirical(
            Empirical::of_values(&[4.0, 1.0, 1.0, 2.0]).unwrap(),
        ));
        assert_eq!((drawn[0], drawn[drawn.len() - 1]), (1.0, 4.0));
        let ones = drawn.iter().filter(|t| **t == 1.0).count() as f64;
        assert!((ones / drawn.len() as f64 - 0.5).abs() < 0.01);
    }

    #[test]
    fn a_tail_without_an_end_is_cut_at_a_day() {
        let times = ServiceTime::Pareto(Pareto::new(1e6, 1.000_1).unwrap());
        assert!(sample(&times).iter().all(|ms| *ms <= LONGEST_MS));
    }

    #[test]
    fn impossible_distributions_are_refused() {
        for (mean, median) in [(1.0, 2.0), (0.0, 0.0), (f64::NAN, 1.0), (1.0, -1.0)] {
            assert!(LogNormal::new(mean, median).is_err(), "{mean} {median}");
        }
        for (mean, p90) in [(1.0, 2.4), (1.0, 0.9), (0.0, 0.0), (f64::NAN, 1.0)] {
            assert!(
                LogNormal::by_mean_and_p90(mean, p90).is_err(),
                "{mean} {p90}"
            );
        }
        assert!(LogNormal::by_median_and_p90(2.0, 1.0).is_err());
        assert!(Pareto::new(1.0, 1.0).is_err());
        assert!(Branches::new(&[]).is_err());
        assert!(Branches::new(&[(1.0, 0.0)]).is_err());
        assert!(Empirical::of_values(&[]).is_err());
        assert!(Empirical::of_values(&[0.0]).is_err());
        assert!(Empirical::of_values(&[-1.0, 5.0]).is_err());
        assert!(Empirical::of_histogram(&[(2.0, 1.0), (1.0, 1.0)]).is_err());
    }
}
