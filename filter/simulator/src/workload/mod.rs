//! What arrives: when ([`Process`], [`Rate`]), of which types, and how long the backend works on it
//! ([`ServiceTime`]).
//!
//! People write it as a [`file`](mod@file), or have it [`recorded`].
//!
//! All of a request is drawn when it arrives, whatever becomes of it, so every strategy under one seed
//! meets the very same traffic.

mod arrivals;
pub(crate) mod dice;
pub mod file;
pub mod recorded;
pub(crate) mod request;
mod service_time;
mod traffic;

use std::time::Duration;

use headgate_core::strategy::TypeId;

pub(crate) use arrivals::Pace;
pub use arrivals::{Bursts, Process};
pub use service_time::{Branches, Empirical, LogNormal, Pareto, ServiceTime, ServiceTimeError};
pub(crate) use traffic::Traffic;

use crate::source::{Request, Source};

/// Why a mix can't be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// No type, or only types without a share.
    #[error("no type has a share of the requests; at least one above 0")]
    Empty,
    /// A share that is none.
    #[error("share {0}; a number of at least 0")]
    Share(f64),
    /// A distribution that can't be.
    #[error(transparent)]
    ServiceTime(#[from] ServiceTimeError),
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
    pub service_time: ServiceTime,
    /// The class of its requests, 0 for the highest.
    pub class: u8,
    /// What its requests say they cost; 0 says nothing.
    pub cost: u32,
    /// The time that its requests give themselves.
    pub timeout: Option<Duration>,
}

impl TypeLoad {
    /// A type whose requests say nothing of themselves.
    #[must_use]
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

/// How many requests arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// In multiples of the rate that keeps every slot busy, P / mean service time.
    Factor(f64),
    /// Requests per second.
    PerSecond(f64),
}

/// A mix of types that arrive by one process.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    types: Vec<TypeLoad>,
    /// Shares of the types so far, ending with 1.
    cumulative: Vec<f64>,
    mean_ms: f64,
    process: Process,
}

impl Workload {
    /// A mix of these types, by a Poisson process.
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

    /// This mix by another process.
    #[must_use]
    pub fn by(mut self, process: Process) -> Self {
        self.process = process;
        self
    }

    /// How its requests arrive.
    #[must_use]
    pub fn process(&self) -> Process {
        self.process
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

    /// One of its requests, which arrives at `at`, ns.
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

    /// An endless stream of its requests.
    #[must_use]
    pub fn steady(&self, per_second: f64, seed: u64) -> impl Source + '_ {
        Traffic::steady(self, per_second, seed)
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
