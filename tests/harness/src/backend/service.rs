//! Service times with a lognormal distribution. Two numbers that are easy to measure of a real
//! service define it: the mean and the median.

use std::time::Duration;

use anyhow::{Result, bail};
use rand::rngs::SmallRng;
use rand_distr::{Distribution, LogNormal};

use super::ServiceType;

/// Service times of one path prefix.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) prefix: String,
    seconds: Draw,
}

#[derive(Debug)]
enum Draw {
    Constant(f64),
    LogNormal(LogNormal<f64>),
}

impl Service {
    pub(super) fn new(config: &ServiceType, scale: f64) -> Result<Self> {
        let (mean, median) = (
            config.mean.as_secs_f64() * scale,
            config.median.as_secs_f64() * scale,
        );
        let seconds = if mean == median {
            Draw::Constant(mean)
        } else if median > 0.0 && median < mean {
            // A lognormal distribution has the median e^mu and the mean e^(mu + sigma^2 / 2).
            let sigma = (2.0 * (mean / median).ln()).sqrt();
            Draw::LogNormal(LogNormal::new(median.ln(), sigma)?)
        } else {
            let ServiceType {
                prefix,
                mean,
                median,
            } = config;
            bail!("{prefix}: median {median:?}; give one above 0 and at most the mean {mean:?}");
        };
        Ok(Self {
            prefix: config.prefix.clone(),
            seconds,
        })
    }

    pub(super) fn draw(&self, rng: &mut SmallRng) -> Duration {
        match &self.seconds {
            Draw::Constant(seconds) => Duration::from_secs_f64(*seconds),
            Draw::LogNormal(distribution) => Duration::from_secs_f64(distribution.sample(rng)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn draws_have_the_mean_and_median_asked_for() {
        let (mean, median) = (Duration::from_micros(12_130), Duration::from_micros(7_400));
        let config = ServiceType {
            prefix: "/".into(),
            mean,
            median,
        };
        let service = Service::new(&config, 2.0).unwrap();
        let mut rng = SmallRng::seed_from_u64(7);
        let mut drawn: Vec<f64> = (0..200_000)
            .map(|_| service.draw(&mut rng).as_secs_f64())
            .collect();
        let measured = drawn.iter().sum::<f64>() / drawn.len() as f64;
        drawn.sort_by(f64::total_cmp);
        assert!((measured / 0.024_26 - 1.0).abs() < 0.02, "mean {measured}");
        assert!(
            (drawn[100_000] / 0.014_8 - 1.0).abs() < 0.02,
            "median {}",
            drawn[100_000]
        );
    }

    #[test]
    fn a_median_above_the_mean_is_refused() {
        let config = ServiceType {
            prefix: "/".into(),
            mean: Duration::from_millis(1),
            median: Duration::from_millis(2),
        };
        assert!(Service::new(&config, 1.0).is_err());
    }
}
