//! Statistics for decisions: one row for each type, with the objectives that it is compared with.

use std::time::Duration;

use super::record::{Record, Window};
use crate::config::{self, HistogramWindow, StageConfig};

/// A response time objective in the form that decisions use.
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
    /// The type's name, unique in the stage.
    pub name: String,
    /// The type's objectives, ascending by percentile.
    pub objectives: Vec<Objective>,
}

/// The parameters of measurements and estimates.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Length of the window from which estimates come.
    pub interval: Duration,
    /// The number of steps in an interval, by which the window advances. 1: windows don't overlap
    /// (dual buffers).
    pub steps: u32,
    /// The least number of samples with which a histogram is used.
    pub min_samples: u32,
    /// By [`TypeId`](crate::request::TypeId); the last is `default`.
    pub types: Vec<TypeSettings>,
}

impl Settings {
    /// Returns the settings of a stage.
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

/// The percentile of processing times below which a request's remaining time leaves it little
/// chance (Wisp §4.3).
const LITTLE_CHANCE: f64 = 10.0;

/// The source of an [`Estimate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The type's own histogram.
    Own,
    /// The histogram over all types; the objectives are those of `default` (App. A).
    General,
    /// No histogram has enough samples yet.
    None,
}

/// Processing time of a type, at the percentiles that its decisions need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate<'a> {
    /// The histogram that it comes from.
    pub source: Source,
    /// Mean time for which a slot is held; zero with [`Source::None`].
    pub mean: Duration,
    /// The processing time at the percentile of each of `objectives` (see `unit`); empty with
    /// [`Source::None`].
    pub quantiles: &'a [Duration],
    /// The objectives for response times: the type's own with [`Source::Own`], otherwise those of
    /// `default`.
    pub objectives: &'a [Objective],
    /// Whether a quantile misses its objective even without queue wait.
    pub condemned: bool,
    /// Mean of the type's first samples, while these are too few for its own histogram. `None` with
    /// fewer than [`PRELIMINARY`](Estimate::PRELIMINARY) samples.
    pub preliminary: Option<Duration>,
    /// If set, `quantiles` are ratios, as times: 1 s is a ratio of 1, which is this many seconds.
    pub unit: Option<f64>,
}

impl<'a> Estimate<'a> {
    /// The least number of samples whose mean shows a type's cost relative to others. They are too
    /// few to show the scatter of its times.
    pub const PRELIMINARY: u64 = 20;

    /// Returns the processing time at each of the percentiles.
    pub fn times(&self) -> impl Iterator<Item = Duration> + Clone + use<'a> {
        let unit = self.unit;
        let time = move |quantile: &Duration| unit.map_or(*quantile, |unit| quantile.mul_f64(unit));
        self.quantiles.iter().map(time)
    }

    /// Whether the estimate comes from the type's own histogram.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.source == Source::Own
    }
}

/// A row of the table that decisions read. The last row is for the general histogram.
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
    /// The minimum of `tenth` and the same percentile of the newest samples; zero before the first
    /// generation.
    pub(super) at_least: Duration,
    /// Generation of the readable histogram that this row has; `None` before the first.
    pub(super) generation: Option<u64>,
    /// Whether a quantile misses its objective even without queue wait.
    pub(super) condemned: bool,
    /// Mean of the first samples; `None` once `generation` is set.
    pub(super) preliminary: Option<Duration>,
    /// Whether the end of a step changes the record, as of this worker's last read.
    pub(super) moving: bool,
    /// Whether a visit to the record is planned.
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

    /// Adopts the readable part of `record`. Returns whether it has changed.
    pub(super) fn adopt(&mut self, record: &Record, window: &Window) -> bool {
        self.moving = record.is_moving(window);
        let news = self.generation != Some(record.generation) && self.read(record);
        // A type that is refused because of a long estimate gets few samples, so use even the first
        // ones.
        let latest = record.populating.quantile(LITTLE_CHANCE);
        self.at_least = latest.map_or(self.tenth, |latest| latest.min(self.tenth));
        news
    }

    /// Reads the histogram of `record`; returns false if it is empty.
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
