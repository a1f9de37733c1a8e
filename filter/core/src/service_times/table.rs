//! Statistics for decisions: one row for each type, with the objectives that it is compared with.

use std::time::Duration;

use super::record::{Record, Window};
use crate::config::{self, HistogramWindow, StageConfig};

/// A response time objective, as decisions use it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// Percentile, 0 < p < 100.
    pub percentile: f64,
    /// Response time that `percentile` percent of the type's requests must not exceed.
    pub response_time: Duration,
}

impl From<&config::Objective> for Objective {
    fn from(wire: &config::Objective) -> Self {
        Self {
            percentile: wire.percentile,
            response_time: Duration::from_micros(wire.objective_us),
        }
    }
}

/// A query type.
#[derive(Debug, Clone, PartialEq)]
pub struct TypeSettings {
    /// Its name, unique in the stage.
    pub name: String,
    /// Its objectives, ascending by percentile.
    pub objectives: Vec<Objective>,
}

/// The parameters of measuring and of estimates.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Length of the window that estimates are from.
    pub interval: Duration,
    /// Steps by which the window passes an interval. 1: not overlapping, dual buffers.
    pub steps: u32,
    /// Samples that a histogram needs before it is used.
    pub min_samples: u32,
    /// By [`TypeId`](crate::request::TypeId); the last is `default`.
    pub types: Vec<TypeSettings>,
}

impl Settings {
    /// The settings of a stage.
    #[must_use]
    pub fn from_config(config: &StageConfig) -> Self {
        let types = config.types.iter().map(|kind| TypeSettings {
            name: kind.name.clone(),
            objectives: kind.slo.iter().map(Objective::from).collect(),
        });
        let interval_us = config.service_times.interval_us;
        let steps = match config.service_times.window {
            HistogramWindow::DualBuffer => 1,
            HistogramWindow::Sliding { step_us } => interval_us.checked_div(step_us).unwrap_or(1),
        };
        Self {
            interval: Duration::from_micros(interval_us),
            steps: u32::try_from(steps).unwrap_or(1),
            min_samples: config.service_times.min_samples,
            types: types.collect(),
        }
    }
}

/// Percentile of processing times that leaves a request which has no more time little chance (Wisp
/// §4.3).
const LITTLE_CHANCE: f64 = 10.0;

/// The source of an [`Estimate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The type's own histogram.
    Own,
    /// The histogram over all types; the objectives are those of `default` (App. A).
    General,
    /// Nothing: too little was measured so far of anything.
    None,
}

/// Processing time of a type, at the percentiles that its decisions need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate<'a> {
    /// The histogram that it comes from.
    pub source: Source,
    /// Mean time for which a slot is held; zero with [`Source::None`].
    pub mean: Duration,
    /// One for each of `objectives`; empty with [`Source::None`].
    pub quantiles: &'a [Duration],
    /// The objectives for response times: the type's own with [`Source::Own`], else those of
    /// `default`.
    pub objectives: &'a [Objective],
    /// A quantile misses its objective even without queue wait.
    pub condemned: bool,
    /// Mean of the type's first samples, while they are too few for a histogram of its own; `None`
    /// as well with fewer than [`PRELIMINARY`](Estimate::PRELIMINARY).
    pub preliminary: Option<Duration>,
    /// If set, `quantiles` are ratios: 1 s is one of this many seconds.
    pub unit: Option<f64>,
}

impl<'a> Estimate<'a> {
    /// The least samples whose mean shows a type's cost beside others, though not yet the scatter
    /// of its times.
    pub const PRELIMINARY: u64 = 20;

    /// Returns the processing time at each of the percentiles.
    pub fn times(&self) -> impl Iterator<Item = Duration> + Clone + use<'a> {
        let unit = self.unit;
        let time = move |quantile: &Duration| unit.map_or(*quantile, |unit| quantile.mul_f64(unit));
        self.quantiles.iter().map(time)
    }

    /// Whether it comes from the type's own histogram.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.source == Source::Own
    }
}

/// A row of the table that decisions read. The last row is the general histogram's.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// Part of the shared key.
    pub(super) name: String,
    pub(super) objectives: Vec<Objective>,
    pub(super) quantiles: Vec<Duration>,
    pub(super) mean: Duration,
    pub(super) mean_residual: Duration,
    /// Processing time that nine in ten readable samples exceed.
    tenth: Duration,
    /// The same, or that of the samples since if they are faster; zero before the first generation.
    pub(super) at_least: Duration,
    /// Generation of the readable histogram that this row shows; `None` before the first.
    pub(super) generation: Option<u64>,
    /// Some quantile misses its objective even without any queue wait.
    pub(super) condemned: bool,
    /// Mean of the first samples; `None` once `generation` is set.
    pub(super) preliminary: Option<Duration>,
    /// Whether, as far as this worker knows, the end of a step changes the record.
    pub(super) moving: bool,
    /// Whether a look at the record is planned.
    pub(super) planned: bool,
}

impl Row {
    pub(super) fn new(name: String, objectives: Vec<Objective>) -> Self {
        let quantiles = Vec::with_capacity(objectives.len());
        Self {
            name,
            objectives,
            quantiles,
            ..Self::default()
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.generation.is_some()
    }

    /// Takes over the readable part of `record`. Returns whether it has changed.
    pub(super) fn adopt(&mut self, record: &Record, window: &Window) -> bool {
        self.moving = record.is_moving(window);
        let news = self.generation != Some(record.generation) && self.read(record);
        // A type that is refused for its long estimate gets few samples, so the first must count.
        let latest = record.populating.quantile(LITTLE_CHANCE);
        self.at_least = latest.map_or(self.tenth, |latest| latest.min(self.tenth));
        news
    }

    /// Reads the histogram of `record`; false if it is empty.
    fn read(&mut self, record: &Record) -> bool {
        let readable = record.readable();
        let Some(mean) = readable.mean() else {
            let populating = &record.populating;
            let enough = populating.count() >= Estimate::PRELIMINARY;
            self.preliminary = populating.mean().filter(|_| enough);
            return false;
        };
        self.generation = Some(record.generation);
        self.preliminary = None;
        self.mean = mean;
        self.mean_residual = readable.mean_residual();
        self.tenth = readable.quantile(LITTLE_CHANCE).unwrap_or_default();
        let quantile = |o: &Objective| readable.quantile(o.percentile).unwrap_or(mean);
        self.quantiles.clear();
        self.quantiles.extend(self.objectives.iter().map(quantile));
        let mut pairs = self.quantiles.iter().zip(&self.objectives);
        self.condemned = pairs.any(|(quantile, o)| *quantile > o.response_time);
        true
    }
}
