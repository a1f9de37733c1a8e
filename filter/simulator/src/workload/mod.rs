//! Workloads: the arrival process ([`Process`], [`Rate`]), the types, and the service times
//! ([`ServiceTime`]) of requests.
//!
//! A workload comes from a [`file`](mod@file) or is [`recorded`].
//!
//! All properties of a request are drawn at its arrival, independent of its outcome, so that one
//! seed gives every strategy the same traffic.

mod arrivals;
pub(crate) mod dice;
pub mod file;
pub mod recorded;
pub(crate) mod request;
mod service_time;
mod traffic;

use std::time::Duration;

use headgate_strategies::strategy::TypeId;

pub(crate) use arrivals::Pace;
pub use arrivals::{Bursts, Process};
pub use service_time::{Branches, Empirical, LogNormal, Pareto, ServiceTime, ServiceTimeError};
pub(crate) use traffic::Traffic;

use crate::source::{Request, Source};

/// The reason why a mix is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// There is no type with a share above 0.
    #[error("no type has a share of the requests; at least one above 0")]
    Empty,
    /// A share is negative or not finite.
    #[error("share {0}; a number of at least 0")]
    Share(f64),
    /// A distribution is invalid.
    #[error(transparent)]
    ServiceTime(#[from] ServiceTimeError),
}

/// A request type.
#[derive(Debug, Clone, PartialEq)]
pub struct TypeLoad {
    /// The type's name in results.
    pub name: String,
    /// The stage's type for the requests of this type.
    pub kind: TypeId,
    /// The type's weight among the requests, relative to the other types.
    pub share: f64,
    /// The backend's service time for one request.
    pub service_time: ServiceTime,
    /// The class of the type's requests, 0 for the highest.
    pub class: u8,
    /// The cost in the header of the type's requests; 0 without a header.
    pub cost: u32,
    /// The deadline of the type's requests; `None` for no deadline.
    pub timeout: Option<Duration>,
}

impl TypeLoad {
    /// Returns a type whose requests have no class, cost or deadline.
    pub fn new(
        name: impl Into<String>,
        kind: TypeId,
        share: f64,
        service_time: impl Into<ServiceTime>,
    ) -> Self {
        Self {
            name: name.into(),
            kind,
            share,
            service_time: service_time.into(),
            class: 0,
            cost: 0,
            timeout: None,
        }
    }
}

/// The arrival rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Multiples of full load: the rate that keeps every slot busy, P / mean service time.
    Factor(f64),
    /// Requests per second.
    PerSecond(f64),
}

/// A mix of types with a common arrival process.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    types: Vec<TypeLoad>,
    /// The cumulative shares of the types; the last is 1.
    cumulative: Vec<f64>,
    mean_ms: f64,
    process: Process,
}

impl Workload {
    /// Returns a mix of these types that arrive as a Poisson process.
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
            process: Process::Poisson,
        })
    }

    /// Returns this mix with another arrival process.
    #[must_use]
    pub fn by(mut self, process: Process) -> Self {
        self.process = process;
        self
    }

    /// Returns the arrival process.
    pub fn process(&self) -> Process {
        self.process
    }

    /// Returns the types.
    pub fn types(&self) -> &[TypeLoad] {
        &self.types
    }

    /// Returns the ratio of requests that are of type `kind`.
    pub fn share_of(&self, kind: &TypeLoad) -> f64 {
        let total: f64 = self.types.iter().map(|kind| kind.share).sum();
        kind.share / total
    }

    /// Returns the mean service time over all types, ms.
    pub fn mean_ms(&self) -> f64 {
        self.mean_ms
    }

    /// Returns a random request that arrives at `at`, ns.
    pub(crate) fn request(&self, at: u64, dice: &mut dice::Dice) -> Request {
        let share = dice.unit();
        let mut upto = self.cumulative.iter();
        let kind = upto.position(|upto| share < *upto);
        let kind = kind.unwrap_or(self.types.len() - 1);
        let of = &self.types[kind];
        Request {
            class: of.class,
            cost: of.cost,
            deadline: of.timeout,
            ..Request::new(at, kind, of.service_time.draw(dice))
        }
    }

    /// Returns an endless stream of requests at a constant rate.
    pub fn steady(&self, per_second: f64, seed: u64) -> impl Source + '_ {
        Traffic::new(self, vec![(u64::MAX, per_second)], seed)
    }

    /// Returns `rate` in requests per second, for `parallelism` slots.
    pub fn per_second(&self, rate: Rate, parallelism: u32) -> f64 {
        match rate {
            Rate::Factor(factor) => factor * f64::from(parallelism) * 1e3 / self.mean_ms,
            Rate::PerSecond(rate) => rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_mixes_are_refused() {
        assert_eq!(Workload::new(Vec::new()), Err(WorkloadError::Empty));
        let kind = |share| TypeLoad::new("a", TypeId(0), share, ServiceTime::Constant(1.0));
        assert_eq!(
            Workload::new(vec![kind(-1.0)]),
            Err(WorkloadError::Share(-1.0))
        );
        assert_eq!(Workload::new(vec![kind(0.0)]), Err(WorkloadError::Empty));
    }
}
