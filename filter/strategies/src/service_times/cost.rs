//! The cost of a request by its size and its output, t = a + b · size + c · output. It is fitted
//! while requests are answered.
//!
//! One type may cover small and very large requests. A histogram of its times then says little
//! about either. So with `cost` there is a second histogram, of the ratios t ÷ estimate. A
//! percentile of a request's processing time is its own estimate times that percentile of the
//! ratios. The ratios also correct errors of the plane: their mean is the factor by which the plane
//! is wrong on average.
//!
//! **The output** is the number of output tokens if the policy has a budget of tokens. Otherwise it
//! is 0, and t = a + b · size. The output is only known at the end of a response. The fit uses the
//! actual output. An estimate uses the output that is expected at the request's arrival, from its
//! maximum and the outputs of its type. The time to the first byte doesn't depend on the output,
//! but the time for which a stream holds its slot does.
//!
//! **The fit** is recursive least squares with forgetting, of relative errors. It fits e = t ÷
//! estimate − 1 to the shares f of a, b and c in the estimate. A fit of absolute errors would
//! follow the largest requests, because their scatter alone exceeds the cost of small ones. Let x,
//! y, z be the relative corrections of a, b and c, and P the covariance of their errors:
//!
//! ```text
//! e ≈ f_a x + f_b y + f_c z      (x, y, z) = P f e / (1 + r)      r = fᵀ P f
//! P ← P + (r' − r) / r² · P f fᵀ P                     r' = r / (λ (1 + r))
//! ```
//!
//! That is the update of least squares with λ = 0.99, but it forgets only in the direction about
//! which the sample has information (Kulhavý's directional forgetting). Exponential forgetting in
//! all directions loses b while all requests are of one size, and P grows without bound. Here r
//! tends to (1 − λ) / λ along the sizes that arrive. P stays unchanged along the others, so a size
//! that is always refused keeps its estimate. If outputs are always the same, or a multiple of the
//! sizes, only their sum with the other terms is learnt. That is sufficient for such requests.
//!
//! **Bounds.** a, b and c are at least 0. A correction that crosses zero ends at zero, and the
//! other coefficients get their most likely values under that condition. A coefficient near zero
//! can grow again, because corrections are relative to 5% of the mean estimate at least. An error
//! counts as 4 at most, so one answer, however slow, moves a known estimate by a few percent. The
//! variances in P are at most their initial values. An estimate is used only while r ≤ 0.05, where
//! r is the relative variance of the estimate if that of t is 1. That is so after about 20 samples
//! of one size, and for no size far beyond the measured ones.
//!
//! **Workers** replay their samples into one shared record of each type, by compare-and-swap. If
//! each worker fitted its own plane, the shared histogram would mix ratios of different planes, and
//! a worker with few requests of a type would have no plane.

use std::array;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ServiceTimes;
use super::table::{Row, Settings};
use crate::config::{Measure, StageConfig};
use crate::host::{HostError, Shared};
use crate::request::{Attributes, TypeId};
use crate::shared;

/// λ, the forgetting factor.
const KEPT: f64 = 0.99;
/// The largest relative error of a sample. Larger errors are clamped to it.
const MOST_ERROR: f64 = 4.0;
/// The largest relative variance at which an estimate is used.
const MOST_VARIANCE: f64 = 0.05;
/// The least relative variance that a sample can lower.
const LEAST_VARIANCE: f64 = 1e-30;
/// The bounds of a variance.
const VARIANCE: (f64, f64) = (1e-9, 1.0);
/// The least time to which a correction is relative, as a part of the mean estimate.
const PROPORTIONAL: f64 = 0.05;
/// The least estimate, as a part of the mean estimate.
const LEAST_PART: f64 = 1e-4;
/// The bounds of processing times and coefficients, s.
const TIME: (f64, f64) = (1e-9, 86_400.0);
/// The largest size and the largest output with which a sample counts, as multiples of the usual
/// values.
const MOST_TIMES: f64 = 20.0;
/// The largest number of a worker's samples between two exchanges. Further samples are dropped.
const FRESH: usize = 1_024;

/// The number of coefficients: a, b and c.
const FACTORS: usize = 3;

/// The size and the output of a request, on which its cost depends.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Amounts {
    size: u32,
    output: u32,
}

impl Amounts {
    /// Returns the factors by which a, b and c are multiplied in an estimate.
    fn factors(self) -> [f64; FACTORS] {
        [1.0, self.size.into(), self.output.into()]
    }
}

/// The plane t = a + b · size + c · output of one type.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Plane {
    /// a, b and c. They are in s, in s for each unit of size, and in s for each token of output.
    coefficients: [f64; FACTORS],
    /// The usual factors, each at least 1. They are 0 before the first sample.
    usual: [f64; FACTORS],
    /// P, the covariance of the errors of x, y and z.
    covariance: [[f64; FACTORS]; FACTORS],
}

crate::shared::record!(Plane, 17);

impl Plane {
    fn mean(&self) -> f64 {
        dot(&self.coefficients, &self.usual).max(TIME.0)
    }

    fn time(&self, factors: &[f64; FACTORS]) -> f64 {
        let time = dot(&self.coefficients, factors);
        time.max(LEAST_PART * self.mean()).min(TIME.1)
    }

    /// Returns the times to which the corrections x, y and z are relative, in the units of a, b and
    /// c.
    fn units(&self) -> [f64; FACTORS] {
        let least = PROPORTIONAL * self.mean();
        array::from_fn(|at| self.coefficients[at].max(least / self.usual[at].max(1.0)))
    }

    /// Returns P f and r for these factors.
    fn direction(&self, factors: &[f64; FACTORS]) -> ([f64; FACTORS], f64) {
        let (time, units) = (self.time(factors), self.units());
        let shares = array::from_fn(|at| units[at] * factors[at] / time);
        let product = self.covariance.map(|row| dot(&row, &shares));
        // Rounding may make a variance of zero slightly negative.
        (product, dot(&shares, &product).max(0.0))
    }

    /// Returns the estimate for these amounts, s. Returns `None` while there are too few samples
    /// like them.
    fn estimate(&self, amounts: Amounts) -> Option<f64> {
        let factors = amounts.factors();
        let is_known = self.usual[0] > 0.0 && self.direction(&factors).1 <= MOST_VARIANCE;
        is_known.then(|| self.time(&factors))
    }

    fn learn(&mut self, amounts: Amounts, time: Duration) {
        let (factors, time) = (amounts.factors(), time.as_secs_f64().clamp(TIME.0, TIME.1));
        if self.usual[0] <= 0.0 {
            *self = Self::of_one(factors, time);
            return;
        }
        let error = (time / self.time(&factors) - 1.0).min(MOST_ERROR);
        let (product, variance) = self.direction(&factors);
        self.correct(&product, error / (1.0 + variance));
        // The least corrections depend on the usual factors. Until the estimate of the usual
        // factors is known, the geometric mean finds their order of magnitude. After that, one
        // distant size moves them little.
        let is_new = self.direction(&self.usual).1 > MOST_VARIANCE;
        for (usual, factor) in self.usual.iter_mut().zip(factors) {
            let factor = factor.clamp(1.0, MOST_TIMES * *usual);
            *usual = match is_new {
                true => (*usual * factor).sqrt(),
                false => *usual + (1.0 - KEPT) * (factor - *usual),
            };
        }
        if variance > LEAST_VARIANCE {
            self.forget(&product, variance);
        }
    }

    /// Returns the plane after the first sample. A single sample can't separate the coefficients.
    /// Later samples correct coefficients that are too small sooner than those that are too large.
    fn of_one(factors: [f64; FACTORS], time: f64) -> Self {
        let part = |factor: f64| {
            if factor > 0.0 {
                0.1 * time / factor
            } else {
                0.0
            }
        };
        let mut coefficients = factors.map(part);
        coefficients[0] = 0.0;
        coefficients[0] = time - dot(&coefficients, &factors);
        Self {
            coefficients,
            usual: factors.map(|factor| factor.max(1.0)),
            covariance: array::from_fn(|row| {
                array::from_fn(|at| if row == at { VARIANCE.1 } else { 0.0 })
            }),
        }
    }

    /// Adds the corrections P f `gain`.
    fn correct(&mut self, product: &[f64; FACTORS], gain: f64) {
        let units = self.units();
        for at in 0..FACTORS {
            self.coefficients[at] += units[at] * product[at] * gain;
        }
        for at in 0..FACTORS {
            let below = self.coefficients[at].min(0.0) / units[at];
            let row = self.covariance[at];
            for other in 0..FACTORS {
                self.coefficients[other] -= units[other] * row[other] / row[at] * below;
            }
        }
        self.coefficients = self.coefficients.map(|of| of.clamp(0.0, TIME.1));
    }

    /// Updates P after a sample with this P f and r.
    fn forget(&mut self, product: &[f64; FACTORS], variance: f64) {
        let change = (1.0 / (KEPT * (1.0 + variance)) - 1.0) / variance;
        let mut p = self.covariance;
        for (row, one) in p.iter_mut().zip(product) {
            for (entry, other) in row.iter_mut().zip(product) {
                *entry += change * one * other;
            }
        }
        // The same multiple of a row and of its column keeps P a covariance.
        let scale = |at: usize| (VARIANCE.1 / p[at][at].max(VARIANCE.1)).sqrt();
        let own = |at: usize| p[at][at].clamp(VARIANCE.0, VARIANCE.1);
        self.covariance = array::from_fn(|row| {
            array::from_fn(|at| {
                let most = (own(row) * own(at)).sqrt();
                match row == at {
                    true => own(at),
                    false => (p[row][at] * scale(row) * scale(at)).clamp(-most, most),
                }
            })
        });
    }
}

fn dot(one: &[f64; FACTORS], other: &[f64; FACTORS]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// The cost of a type.
#[derive(Debug)]
struct Cost {
    /// The name of the shared record.
    name: String,
    /// The plane when it was last read.
    plane: Plane,
    /// Whether the cost depends on the output.
    by_output: bool,
}

/// The costs of a stage's types on one worker.
#[derive(Debug)]
pub(super) struct Costs {
    /// The cost by type, `None` without `cost`.
    costs: Vec<Option<Cost>>,
    /// The samples that aren't in the shared planes yet.
    fresh: Vec<(TypeId, Amounts, Duration)>,
    /// The type at which the next exchange continues.
    turn: usize,
    /// The ratios t ÷ estimate, stored as times: 1 s for a ratio of 1.
    pub(super) ratios: Box<ServiceTimes>,
}

impl Costs {
    /// Returns the costs of a stage with these `settings`, either of slot times or of processing
    /// times. Returns `None` if no type has `cost`.
    pub(super) fn from_config(
        config: &StageConfig,
        mut settings: Settings,
        of_slots: bool,
    ) -> Option<Self> {
        let costs = config.types.iter().map(|kind| {
            let header = &kind.cost.as_ref()?.size.header;
            Some(Cost {
                // A size from another header may have another unit.
                name: format!("cost/{}/{header}", kind.name),
                plane: Plane::default(),
                by_output: of_slots || config.measure_of(kind) == Measure::LastByte,
            })
        });
        let costs: Vec<_> = costs.collect();
        if costs.iter().all(Option::is_none) {
            return None;
        }
        for objective in settings.types.iter_mut().flat_map(|k| &mut k.objectives) {
            // Objectives don't apply to ratios, so no ratio may miss them.
            objective.response_time = Duration::MAX;
        }
        Some(Self {
            costs,
            fresh: Vec::with_capacity(FRESH),
            turn: 0,
            ratios: Box::new(ServiceTimes::new(settings)),
        })
    }

    fn cost(&self, kind: TypeId) -> Option<&Cost> {
        self.costs.get(usize::from(kind.0))?.as_ref()
    }

    /// Returns the plane for `request`, and its size and output. Returns `None` if the request has
    /// no size, or its type no `cost`.
    fn amounts(&self, request: &Attributes) -> Option<(&Plane, Amounts)> {
        let cost = self.cost(request.kind)?;
        let amounts = Amounts {
            size: request.size?,
            output: if cost.by_output { request.output } else { 0 },
        };
        Some((&cost.plane, amounts))
    }

    /// Whether the cost of `kind` depends on the size.
    pub(super) fn has(&self, kind: TypeId) -> bool {
        self.cost(kind).is_some()
    }

    /// Returns the estimate for `request`, s, and the statistics of its type's ratios. Returns
    /// `None` while either is not known.
    pub(super) fn of(&self, request: &Attributes) -> Option<(f64, &Row)> {
        let (plane, amounts) = self.amounts(request)?;
        let time = plane.estimate(amounts)?;
        let ratios = &self.ratios.rows[self.ratios.index(request.kind)];
        ratios.is_ready().then_some((time, ratios))
    }

    /// Records the processing time of `request`, which had this `output`. The recorded ratio is the
    /// time divided by the estimate at the request's arrival, so that ratios include the scatter of
    /// outputs. The call neither allocates nor calls the host.
    pub(super) fn record(
        &mut self,
        request: &Attributes,
        output: u32,
        processing: Duration,
        weight: u32,
    ) {
        let Some((plane, amounts)) = self.amounts(request) else {
            return;
        };
        if let Some(expected) = plane.estimate(amounts) {
            let ratio = (processing.as_secs_f64() / expected).clamp(0.0, TIME.1);
            let ratio = Duration::from_secs_f64(ratio);
            self.ratios.record(request.kind, ratio, weight);
        }
        let had = Attributes { output, ..*request };
        if self.fresh.len() < FRESH
            && let Some((_, amounts)) = self.amounts(&had)
        {
            self.fresh.push((request.kind, amounts, processing));
        }
    }

    /// If that is `due` or many samples are pending, replays this worker's samples into the shared
    /// planes of at most `most` types, and reads those planes.
    ///
    /// # Errors
    /// [`HostError::Call`]; samples that could not be shared stay on this worker.
    pub(super) fn exchange(
        &mut self,
        host: &impl Shared,
        prefix: &str,
        due: bool,
        most: usize,
    ) -> Result<(), HostError> {
        if !due && self.fresh.len() < FRESH / 2 {
            return Ok(());
        }
        for _ in 0..most.min(self.costs.len()) {
            let at = self.turn;
            self.turn = (at + 1) % self.costs.len();
            let (fresh, Some(cost)) = (&mut self.fresh, &mut self.costs[at]) else {
                continue;
            };
            let is_own = |(kind, ..): &(TypeId, Amounts, Duration)| usize::from(kind.0) == at;
            let name = format!("{prefix}/{}", cost.name);
            let replayed = shared::change(host, &name, |plane: &mut Plane| {
                let own = fresh.iter().filter(|sample| is_own(sample));
                let replayed = own.map(|(_, of, time)| plane.learn(*of, *time)).count();
                (replayed > 0, ())
            });
            match replayed {
                Ok((shared, ())) => cost.plane = shared,
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
