//! The cost of a request by its size: t = a + b · size, fitted while requests are answered.
//!
//! One type may cover small and very large requests. A histogram of its times then says little
//! about either, so with `cost` there is a second one, of the ratios t ÷ estimate. A percentile of
//! a request's processing time is its own estimate times that percentile of the ratios. The ratios
//! also correct errors of the line: their mean is the factor by which it is wrong on average.
//!
//! **The fit** is recursive least squares with forgetting, of relative errors: e = t ÷ estimate − 1
//! against the shares f of a and b in the estimate. The obvious fit of absolute errors follows the
//! largest requests, whose scatter alone exceeds the cost of small ones. With x, z the relative
//! corrections of a and b and P the covariance of their errors:
//!
//! ```text
//! e ≈ f_a x + f_b z      (x, z) = P f e / (1 + r)      r = fᵀ P f
//! P ← P + (r' − r) / r² · P f fᵀ P                     r' = r / (λ (1 + r))
//! ```
//!
//! That is the update of least squares with λ = 0.99, but it forgets only in the direction about
//! which the sample has information (Kulhavý's directional forgetting). Exponential forgetting in
//! all directions loses b while all requests are of one size, and P grows without bound. Here r
//! tends to (1 − λ) / λ along the sizes that arrive, and P stays unchanged along the others: a size
//! that no longer gets through, because it is refused, keeps its estimate.
//!
//! **Bounds.** a, b ≥ 0: a correction that crosses zero ends there, and the other coefficient takes
//! its most likely value given that. A coefficient near zero can grow again, since corrections are
//! relative to 5% of the mean estimate at least. An error counts as 4 at most, so one answer,
//! however slow, moves a known estimate by a few percent. The variances in P are at most their
//! initial values. An estimate is used only while r ≤ 0.05, its relative variance if that of t is
//! 1: after some 20 samples of one size, and for no size far beyond the measured ones.
//!
//! **Workers** replay their samples into one shared record of each type, by compare-and-swap. If
//! each fitted its own, the shared histogram would mix ratios of different lines, and a worker with
//! few requests of a type would have no line.
//!
//! Left out: sizes that are known only after the answer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ServiceTimes;
use super::table::{Row, Settings};
use crate::config::StageConfig;
use crate::host::{HostError, Shared};
use crate::request::{Attributes, TypeId};
use crate::shared;
use crate::time::Instant;

/// λ, the forgetting factor.
const KEPT: f64 = 0.99;
/// The largest error that counts, ratio.
const MOST_ERROR: f64 = 4.0;
/// The largest relative variance at which an estimate is used.
const MOST_VARIANCE: f64 = 0.05;
/// The bounds of a variance.
const VARIANCE: (f64, f64) = (1e-9, 1.0);
/// Corrections of a and of b · usual size are relative to at least this part of the mean estimate.
const PROPORTIONAL: f64 = 0.05;
/// The least estimate, as a part of the mean estimate.
const LEAST_PART: f64 = 1e-4;
/// The bounds of times, s.
const TIME: (f64, f64) = (1e-9, 86_400.0);
/// The largest size that a sample counts with, as a multiple of the usual size.
const MOST_SIZE: f64 = 20.0;
/// The largest number of a worker's samples between two exchanges. Further ones are dropped.
const FRESH: usize = 1_024;

/// The line of one type.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Line {
    /// a, s.
    fixed: f64,
    /// b, s for each unit of size.
    per_size: f64,
    /// The usual size, at least 1; 0 before the first sample.
    size: f64,
    /// P: the variance of x, the covariance, the variance of z.
    covariance: [f64; 3],
}

crate::shared::record!(Line, 11);

impl Line {
    fn mean(&self) -> f64 {
        (self.fixed + self.per_size * self.size).max(TIME.0)
    }

    fn time(&self, size: f64) -> f64 {
        let time = self.fixed + self.per_size * size;
        time.max(LEAST_PART * self.mean()).min(TIME.1)
    }

    /// Returns the units of x and z.
    fn units(&self) -> [f64; 2] {
        let least = PROPORTIONAL * self.mean();
        let per_size = self.per_size.max(least / self.size.max(1.0));
        [self.fixed.max(least), per_size]
    }

    /// Returns P f and r for `size`.
    fn direction(&self, size: f64) -> ([f64; 2], f64) {
        let time = self.time(size);
        let [fixed, per_size] = self.units();
        let shares = [fixed / time, per_size * size / time];
        let [p, q, s] = self.covariance;
        let product = [p * shares[0] + q * shares[1], q * shares[0] + s * shares[1]];
        let variance = shares[0] * product[0] + shares[1] * product[1];
        (product, variance)
    }

    /// Returns the estimate for `size`, s; `None` while there are too few samples of such sizes.
    fn estimate(&self, size: u32) -> Option<f64> {
        let size = f64::from(size);
        let is_known = self.size > 0.0 && self.direction(size).1 <= MOST_VARIANCE;
        is_known.then(|| self.time(size))
    }

    fn learn(&mut self, size: u32, time: Duration) {
        let (size, time) = (f64::from(size), time.as_secs_f64().clamp(TIME.0, TIME.1));
        if self.size <= 0.0 {
            // One sample can't separate a and b. A b that is too small is corrected sooner.
            *self = Self {
                fixed: 0.9 * time,
                per_size: 0.1 * time / size.max(1.0),
                size: size.max(1.0),
                covariance: [VARIANCE.1, 0.0, VARIANCE.1],
            };
            return;
        }
        let error = (time / self.time(size) - 1.0).min(MOST_ERROR);
        let (product, variance) = self.direction(size);
        let units = self.units();
        let gain = error / (1.0 + variance);
        let [p, q, s] = self.covariance;
        let mut fixed = self.fixed + units[0] * product[0] * gain;
        let mut per_size = self.per_size + units[1] * product[1] * gain;
        if fixed < 0.0 {
            per_size -= units[1] * (q / p) * (fixed / units[0]);
            fixed = 0.0;
        }
        if per_size < 0.0 {
            fixed -= units[0] * (q / s) * (per_size / units[1]);
            per_size = 0.0;
        }
        self.fixed = fixed.clamp(0.0, TIME.1);
        self.per_size = per_size.clamp(0.0, TIME.1);
        // The least corrections depend on the usual size. Until its estimate is known, use the
        // geometric mean, which finds the order of magnitude; after that one distant size moves it
        // little.
        let size = size.clamp(1.0, MOST_SIZE * self.size);
        self.size = match self.direction(self.size).1 > MOST_VARIANCE {
            true => (self.size * size).sqrt(),
            false => self.size + (1.0 - KEPT) * (size - self.size),
        };
        if variance > 0.0 {
            let change = (1.0 / (KEPT * (1.0 + variance)) - 1.0) / variance;
            let [p, s] = [(p, product[0]), (s, product[1])].map(|(before, part)| {
                (before + change * part * part).clamp(VARIANCE.0, VARIANCE.1)
            });
            let most = (p * s).sqrt();
            let q = (q + change * product[0] * product[1]).clamp(-most, most);
            self.covariance = [p, q, s];
        }
    }
}

/// The costs of a stage's types on one worker.
#[derive(Debug)]
pub(super) struct Costs {
    /// By type: the name of the shared record, and the line when it was last read; `None` without
    /// `cost`.
    lines: Vec<Option<(String, Line)>>,
    /// Samples that aren't in the shared lines yet.
    fresh: Vec<(TypeId, u32, Duration)>,
    /// The type at which the next exchange continues.
    turn: usize,
    /// The ratios t ÷ estimate, stored as times: 1 s for a ratio of 1.
    ratios: Box<ServiceTimes>,
}

impl Costs {
    /// Returns the costs of a stage with these `settings`; `None` if no type has `cost`.
    pub(super) fn from_config(config: &StageConfig, mut settings: Settings) -> Option<Self> {
        let lines = config.types.iter().map(|kind| {
            let header = &kind.cost.as_ref()?.size.header;
            // Another header may have another unit.
            Some((format!("cost/{}/{header}", kind.name), Line::default()))
        });
        let lines: Vec<_> = lines.collect();
        if lines.iter().all(Option::is_none) {
            return None;
        }
        for objective in settings.types.iter_mut().flat_map(|k| &mut k.objectives) {
            // Objectives don't apply to ratios.
            objective.response_time = Duration::MAX;
        }
        Some(Self {
            lines,
            fresh: Vec::with_capacity(FRESH),
            turn: 0,
            ratios: Box::new(ServiceTimes::new(settings)),
        })
    }

    fn line(&self, kind: TypeId) -> Option<&Line> {
        let line = self.lines.get(usize::from(kind.0))?;
        line.as_ref().map(|(_, line)| line)
    }

    /// Whether the cost of `kind` depends on the size.
    pub(super) fn has(&self, kind: TypeId) -> bool {
        self.line(kind).is_some()
    }

    /// Returns the estimate for `request`, s, and the statistics of its type's ratios; `None` while
    /// either is not known.
    pub(super) fn of(&self, request: &Attributes) -> Option<(f64, &Row)> {
        let time = self.line(request.kind)?.estimate(request.size?)?;
        let ratios = &self.ratios.rows[self.ratios.index(request.kind)];
        ratios.is_ready().then_some((time, ratios))
    }

    /// Records a processing time. Neither allocates nor calls the host.
    pub(super) fn record(&mut self, request: &Attributes, processing: Duration, weight: u32) {
        let (Some(size), Some(line)) = (request.size, self.line(request.kind)) else {
            return;
        };
        if let Some(expected) = line.estimate(size) {
            let ratio = (processing.as_secs_f64() / expected).clamp(0.0, TIME.1);
            let ratio = Duration::from_secs_f64(ratio);
            self.ratios.record(request.kind, ratio, weight);
        }
        if self.fresh.len() < FRESH {
            self.fresh.push((request.kind, size, processing));
        }
    }

    /// Shares samples of at most `most` types if that is `due` or many are pending, and syncs the
    /// ratios like [`ServiceTimes::sync`].
    ///
    /// # Errors
    /// [`HostError`].
    pub(super) fn share(
        &mut self,
        now: Instant,
        host: &impl Shared,
        prefix: &str,
        due: bool,
        most: usize,
    ) -> Result<(), HostError> {
        if due || self.fresh.len() >= FRESH / 2 {
            self.exchange(host, prefix, most)?;
        }
        let prefix = format!("{prefix}/ratios");
        match most {
            usize::MAX => self.ratios.flush(now, host, &prefix),
            _ => self.ratios.sync(now, host, &prefix),
        }
        .map(drop)
    }

    /// Replays this worker's samples into the shared lines of at most `most` types, and reads those
    /// lines.
    ///
    /// # Errors
    /// [`HostError::Call`]; samples that could not be shared stay here.
    fn exchange(&mut self, host: &impl Shared, prefix: &str, most: usize) -> Result<(), HostError> {
        for _ in 0..most.min(self.lines.len()) {
            let at = self.turn;
            self.turn = (at + 1) % self.lines.len();
            let (fresh, Some((name, line))) = (&mut self.fresh, &mut self.lines[at]) else {
                continue;
            };
            let is_own = |(kind, ..): &(TypeId, u32, Duration)| usize::from(kind.0) == at;
            let replayed = shared::change(host, &format!("{prefix}/{name}"), |line: &mut Line| {
                let own = fresh.iter().filter(|sample| is_own(sample));
                let replayed = own.map(|(_, size, time)| line.learn(*size, *time)).count();
                (replayed > 0, ())
            });
            match replayed {
                Ok((shared, ())) => *line = shared,
                Err(HostError::Conflict) => continue,
                Err(error) => return Err(error),
            }
            fresh.retain(|sample| !is_own(sample));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
