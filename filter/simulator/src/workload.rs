//! What arrives: a mix of request types, their service times, and how many a second.
//!
//! Arrivals are a Poisson process, service times lognormal, as in Bouncer §5.3 ("which approximates those
//! of real production queries"). Both are drawn when a request arrives, whatever becomes of it, so every
//! strategy under one seed meets the very same traffic.

use headgate_core::rng::Rng;
use headgate_core::strategy::TypeId;
use rand::TryRng;
use rand_distr::{Distribution as _, Exp1, StandardNormal};

use crate::source::{Request, Source};

/// Standard normal quantile at 0.9.
const Z_90: f64 = 1.281_551_565_544_6;

/// Why a workload can't be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// No type, or only types without a share.
    #[error("no type has a share of the requests; at least one above 0")]
    Empty,
    /// A share that is none.
    #[error("share {0}; a number of at least 0")]
    Share(f64),
    /// A mean that no lognormal distribution with this median has.
    #[error("mean {mean} ms and median {median} ms; both above 0, the mean not below the median")]
    ServiceTime {
        /// ms.
        mean: f64,
        /// ms.
        median: f64,
    },
}

/// A lognormal distribution of service times.
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
    /// [`WorkloadError::ServiceTime`].
    pub fn new(mean_ms: f64, median_ms: f64) -> Result<Self, WorkloadError> {
        let possible = median_ms > 0.0 && mean_ms >= median_ms && mean_ms.is_finite();
        if !possible {
            return Err(WorkloadError::ServiceTime {
                mean: mean_ms,
                median: median_ms,
            });
        }
        Ok(Self {
            mean_ms,
            median_ms,
            sigma: (2.0 * (mean_ms / median_ms).ln()).sqrt(),
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

    /// Draws a time, ns.
    fn draw(&self, dice: &mut Dice) -> u64 {
        let normal: f64 = StandardNormal.sample(dice);
        (self.median_ms * 1e6 * (self.sigma * normal).exp()) as u64
    }
}

impl std::fmt::Display for LogNormal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mean, median) = (self.mean_ms, self.median_ms);
        write!(f, "lognormal, mean {mean} ms, median {median} ms")
    }
}

/// A request type.
#[derive(Debug, Clone, PartialEq)]
pub struct TypeLoad {
    /// Its name in results.
    pub name: String,
    /// What the stage takes its requests for.
    pub kind: TypeId,
    /// Its part of the requests, relative to the other types' parts.
    pub share: f64,
    /// How long the backend works on one.
    pub service_time: LogNormal,
}

/// How many requests arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// In multiples of the rate that keeps every slot busy, P / mean service time.
    Factor(f64),
    /// Requests per second.
    PerSecond(f64),
}

/// A mix of types.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    types: Vec<TypeLoad>,
    /// Shares of the types so far, ending with 1.
    cumulative: Vec<f64>,
    mean_ms: f64,
}

impl Workload {
    /// A mix of these types.
    ///
    /// # Errors
    /// [`WorkloadError::Share`], [`WorkloadError::Empty`].
    pub fn new(types: Vec<TypeLoad>) -> Result<Self, WorkloadError> {
        let bad = |share: f64| !(share >= 0.0 && share.is_finite());
        if let Some(kind) = types.iter().find(|kind| bad(kind.share)) {
            return Err(WorkloadError::Share(kind.share));
        }
        let total: f64 = types.iter().map(|kind| kind.share).sum();
        if total <= 0.0 {
            return Err(WorkloadError::Empty);
        }
        let mut sum = 0.0;
        let mut add = |kind: &TypeLoad| {
            sum += kind.share / total;
            sum
        };
        let cumulative = types.iter().map(&mut add).collect();
        let mean_ms = types
            .iter()
            .map(|kind| kind.share / total * kind.service_time.mean_ms())
            .sum();
        Ok(Self {
            types,
            cumulative,
            mean_ms,
        })
    }

    /// The types.
    #[must_use]
    pub fn types(&self) -> &[TypeLoad] {
        &self.types
    }

    /// Part of the requests that are of `kind`, ratio.
    #[must_use]
    pub fn share_of(&self, kind: &TypeLoad) -> f64 {
        let total: f64 = self.types.iter().map(|kind| kind.share).sum();
        kind.share / total
    }

    /// Mean service time over all types, ms.
    #[must_use]
    pub fn mean_ms(&self) -> f64 {
        self.mean_ms
    }

    /// Requests per second that `rate` means for `parallelism` slots.
    #[must_use]
    pub fn per_second(&self, rate: Rate, parallelism: u32) -> f64 {
        match rate {
            Rate::Factor(factor) => factor * f64::from(parallelism) * 1e3 / self.mean_ms,
            Rate::PerSecond(rate) => rate,
        }
    }
}

/// An endless stream of requests.
#[derive(Debug)]
pub(crate) struct Traffic<'a> {
    workload: &'a Workload,
    dice: Dice,
    /// Mean time between two requests, ns.
    gap: f64,
    now: f64,
    next: Request,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(workload: &'a Workload, per_second: f64, seed: u64) -> Self {
        let mut traffic = Self {
            workload,
            dice: Dice(Rng::new(seed)),
            gap: 1e9 / per_second,
            now: 0.0,
            next: Request::new(0, 0, 0),
        };
        traffic.next = traffic.draw();
        traffic
    }

    fn draw(&mut self) -> Request {
        let gap: f64 = Exp1.sample(&mut self.dice);
        self.now += self.gap * gap;
        let share = self.dice.0.next_f64();
        let kind = self
            .workload
            .cumulative
            .iter()
            .position(|upto| share < *upto)
            .unwrap_or(self.workload.types.len() - 1);
        let processing = self.workload.types[kind].service_time.draw(&mut self.dice);
        Request::new(self.now as u64, kind, processing)
    }
}

impl Source for Traffic<'_> {
    fn peek(&self) -> Option<u64> {
        Some(self.next.at)
    }

    fn take(&mut self) -> Option<Request> {
        let next = self.draw();
        Some(std::mem::replace(&mut self.next, next))
    }
}

/// The engine's generator, as the distributions want it.
#[derive(Debug)]
struct Dice(Rng);

impl TryRng for Dice {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        // The upper half is as good as the lower.
        Ok((self.0.next_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.0.next_u64().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str, share: f64, mean: f64, median: f64) -> TypeLoad {
        TypeLoad {
            name: name.into(),
            kind: TypeId(0),
            share,
            service_time: LogNormal::new(mean, median).unwrap(),
        }
    }

    #[test]
    fn traffic_has_the_rate_the_mix_and_the_service_times_that_were_asked_for() {
        let workload =
            Workload::new(vec![kind("a", 3.0, 2.0, 1.0), kind("b", 1.0, 8.0, 8.0)]).unwrap();
        assert!((workload.mean_ms() - 3.5).abs() < 1e-9);
        let rate = workload.per_second(Rate::Factor(1.5), 7);
        assert!((rate - 3_000.0).abs() < 1e-6);
        let mut traffic = Traffic::new(&workload, rate, 1);
        let drawn: Vec<Request> = (0..200_000).map_while(|_| traffic.take()).collect();
        assert!(drawn.is_sorted_by_key(|r| r.at));
        let seconds = drawn[drawn.len() - 1].at as f64 / 1e9;
        assert!((drawn.len() as f64 / seconds / rate - 1.0).abs() < 0.01);
        let mut a: Vec<f64> = drawn
            .iter()
            .filter(|r| r.kind == 0)
            .map(|r| r.processing as f64 / 1e6)
            .collect();
        assert!((a.len() as f64 / drawn.len() as f64 - 0.75).abs() < 0.01);
        a.sort_by(f64::total_cmp);
        let at = |share: f64| a[(a.len() as f64 * share) as usize];
        assert!((a.iter().sum::<f64>() / a.len() as f64 - 2.0).abs() < 0.04);
        assert!((at(0.5) - 1.0).abs() < 0.02);
        let p90 = workload.types()[0].service_time.p90_ms();
        assert!((at(0.9) / p90 - 1.0).abs() < 0.02, "{} {p90}", at(0.9));
        assert!(
            drawn
                .iter()
                .all(|r| r.kind == 0 || r.processing == 8_000_000)
        );
    }

    #[test]
    fn impossible_workloads_are_refused() {
        for (mean, median) in [(1.0, 2.0), (0.0, 0.0), (f64::NAN, 1.0), (1.0, -1.0)] {
            assert!(LogNormal::new(mean, median).is_err(), "{mean} {median}");
        }
        assert_eq!(Workload::new(Vec::new()), Err(WorkloadError::Empty));
        let negative = Workload::new(vec![kind("a", -1.0, 2.0, 1.0)]);
        assert_eq!(negative, Err(WorkloadError::Share(-1.0)));
    }
}
