//! Statistics for decisions. There is one row for each type, with the objectives that the type is
//! compared with.

use std::time::Duration;

use super::record::{Record, Window};
use crate::config::{self, HistogramWindow, StageConfig};

/// A response time objective in the form that decisions use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// The percentile, in percent, 0 < p < 100.
    pub percentile: f64,
    /// The response time that `percentile` percent of the type's requests must not exceed.
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
    /// The length of the window from which estimates come.
    pub interval: Duration,
    /// The number of steps in an interval, by which the window advances. With 1 step, windows don't
    /// overlap (dual buffers).
    pub steps: u32,
    /// The least number of samples with which a histogram is used.
    pub min_samples: u32,
    /// The types, by [`TypeId`](crate::request::TypeId). The last is `default`.
    pub types: Vec<TypeSettings>,
}

impl Settings {
    /// Returns the settings of a stage.
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

/// The percentile of processing times that decides whether a request has a chance. A request with
/// less time left than this percentile has little chance (Wisp §4.3).
const LITTLE_CHANCE: f64 = 10.0;

/// The source of an [`Estimate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The type's own histogram.
    Own,
    /// The histogram over all types. The objectives are those of `default` (App. A).
    General,
    /// No histogram has enough samples yet.
    None,
}

/// The processing time of a type, at the percentiles that decisions on it need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate<'a> {
    /// The histogram from which the estimate comes.
    pub source: Source,
    /// The mean time for which a slot is held. It is zero with [`Source::None`].
    pub mean: Duration,
    /// The processing time at the percentile of each of `objectives`, or a ratio (see `unit`). It
    /// is empty with [`Source::None`].
    pub quantiles: &'a [Duration],
    /// The objectives for response times. They are the type's own with [`Source::Own`], and
    /// otherwise those of `default`.
    pub objectives: &'a [Objective],
    /// Whether a quantile misses its objective even without queue wait.
    pub condemned: bool,
    /// The mean of the type's first samples, while these are too few for a histogram of its own. It
    /// is `None` with fewer than [`PRELIMINARY`](Estimate::PRELIMINARY) samples.
    pub preliminary: Option<Duration>,
    /// The time by which `quantiles` must be multiplied, s. If it is set, `quantiles` are ratios,
    /// and 1 s is a ratio of 1.
    pub unit: Option<f64>,
}

impl<'a> Estimate<'a> {
    /// The least number of samples whose mean shows a type's cost relative to others. They are too
    /// few to show the scatter of its times.
    pub const PRELIMINARY: u64 = 20;

    /// Returns the processing time at the percentile of each objective.
    pub fn times(&self) -> impl Iterator<Item = Duration> + Clone + use<'a> {
        let unit = self.unit;
        let time = move |quantile: &Duration| unit.map_or(*quantile, |unit| quantile.mul_f64(unit));
        self.quantiles.iter().map(time)
    }

    /// Whether the size of the request makes it miss an objective even without queue wait.
    pub fn is_late_by_size(&self) -> bool {
        self.unit.is_some() && self.condemned
    }

    /// Whether the estimate comes from the type's own histogram.
    pub fn is_own(&self) -> bool {
        self.source == Source::Own
    }
}

/// A row of the table that decisions read. The last row is that of the general histogram.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// The row's part of the shared key.
    pub(super) name: String,
    pub(super) objectives: Vec<Objective>,
    pub(super) quantiles: Vec<Duration>,
    pub(super) mean: Duration,
    pub(super) mean_residual: Duration,
    /// The processing time that nine in ten readable samples exceed.
    tenth: Duration,
    /// The minimum of `tenth` and the same percentile of the newest samples. It is zero before the
    /// first generation.
    pub(super) at_least: Duration,
    /// The generation of the readable histogram that this row has, or `None` before the first.
    pub(super) generation: Option<u64>,
    /// Whether a quantile misses its objective even without queue wait.
    pub(super) condemned: bool,
    /// The mean of the first samples. It is `None` once `generation` is set.
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
        // A type that is refused because of a long estimate gets few samples, so even the first of
        // them are used.
        let latest = record.populating.quantile(LITTLE_CHANCE);
        self.at_least = latest.map_or(self.tenth, |latest| latest.min(self.tenth));
        news
    }

    /// Reads the histogram of `record`. Returns false if the histogram is empty.
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
