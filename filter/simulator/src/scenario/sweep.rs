//! Strategies under the same traffic, along a row of loads or of values of a parameter: what all tables and
//! figures of the Bouncer paper are.

mod show;

use std::time::Duration;

use super::{Paper, Size, Study};
use crate::batch::{Batch, Experiment};
use crate::progress::Progress;
use crate::report::{Claim, Record, Report, words};
use crate::results::Row;
use crate::simulation::SimulationError;
use crate::workload::Workload;

/// Bouncer §5.3: "Each simulation run produces 1.5 million queries".
const REQUESTS: u64 = 1_500_000;
/// Bouncer, Table 3: "the average of 5 simulation runs".
const SEEDS: u32 = 5;

/// What changes from one point of a series to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// The load, in multiples of the rate that keeps all slots busy.
    Factor,
    /// A parameter of the strategy.
    Parameter,
}

/// What a figure or table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Percent.
    Rejected,
    /// ms.
    MedianResponseTime,
    /// 90th percentile, ms.
    P90ResponseTime,
    /// Ratio.
    Utilization,
}

impl Metric {
    /// Its value in `row`; `None` where nothing was served.
    #[must_use]
    pub fn of(self, row: &Row) -> Option<f64> {
        match self {
            Self::Rejected => Some(row.rejected_pct),
            Self::MedianResponseTime => row.rt_p50_ms,
            Self::P90ResponseTime => row.rt_p90_ms,
            Self::Utilization => Some(row.utilization),
        }
    }

    /// Its unit, at the end of a title.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Rejected => ", %",
            Self::MedianResponseTime | Self::P90ResponseTime => ", ms",
            Self::Utilization => "",
        }
    }

    /// Its name and unit.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Rejected => "rejected, %",
            Self::MedianResponseTime => "median response time, ms",
            Self::P90ResponseTime => "p90 response time, ms",
            Self::Utilization => "utilization",
        }
    }
}

/// An experiment of a series.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// On the sweep's axis.
    pub x: f64,
    /// What is run.
    pub experiment: Experiment,
}

/// One strategy along the axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name, made of those in `AdmissionPolicy`.
    pub strategy: &'static str,
    /// In ascending order.
    pub points: Vec<Point>,
}

/// An experiment of a paper.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Its name on the command line.
    pub name: &'static str,
    /// Paper and caption.
    pub title: &'static str,
    /// What the points of a series differ in.
    pub axis: Axis,
    /// The strategies.
    pub series: Vec<Series>,
    /// What the paper shows of them: which number of which types.
    pub shown: Vec<(Metric, &'static str)>,
    /// The paper's cells, where it prints numbers.
    pub paper: Option<Paper>,
    /// What the paper says of the result in words, held against it.
    pub claims: fn(&Findings<'_>) -> Vec<Claim>,
    /// Reference lines: of which metric, where, and what.
    pub levels: &'static [(Metric, f64, &'static str)],
    /// Where the vertical axis of figures ends; `None` above all values.
    pub top: Option<f64>,
    /// What to see in the figures.
    pub caption: &'static str,
    /// What to know before believing the numbers.
    pub notes: Vec<&'static str>,
    /// What arrives.
    pub workload: Workload,
    /// Time before results count.
    pub warm_up: Duration,
}

/// A row of results with its place in the sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepRow {
    /// Name of the series.
    pub strategy: &'static str,
    /// Its place on the axis.
    pub x: f64,
    /// The results.
    pub row: Row,
}

/// Rows of results, to ask for numbers.
#[derive(Debug, Clone, Copy)]
pub struct Findings<'a>(pub &'a [SweepRow]);

impl Findings<'_> {
    /// The number of this strategy and type at every place of the axis.
    #[must_use]
    pub fn curve(&self, strategy: &str, metric: Metric, kind: &str) -> Vec<(f64, Option<f64>)> {
        let wanted = |row: &&SweepRow| row.strategy == strategy && row.row.kind == kind;
        let rows = self.0.iter().filter(wanted);
        rows.map(|row| (row.x, metric.of(&row.row))).collect()
    }

    /// The number at `x`.
    #[must_use]
    pub fn at(&self, strategy: &str, metric: Metric, kind: &str, x: f64) -> Option<f64> {
        let curve = self.curve(strategy, metric, kind);
        let here = |(place, _): &&(f64, Option<f64>)| (place - x).abs() < 1e-9;
        curve.iter().find(here).and_then(|(_, y)| *y)
    }

    /// The smallest and largest number from `x` on.
    #[must_use]
    pub fn range(&self, strategy: &str, metric: Metric, kind: &str, from: f64) -> (f64, f64) {
        let curve = self.curve(strategy, metric, kind).into_iter();
        let values = curve.filter(|(x, _)| *x >= from - 1e-9).filter_map(|p| p.1);
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    }
}

impl Sweep {
    /// All experiments, series by series.
    #[must_use]
    pub fn experiments(&self) -> Vec<Experiment> {
        self.series
            .iter()
            .flat_map(|series| series.points.iter().map(|point| point.experiment.clone()))
            .collect()
    }

    /// Puts the results of [`Sweep::experiments`] into their places.
    #[must_use]
    pub fn rows(&self, results: Vec<Vec<Row>>) -> Vec<SweepRow> {
        let places = self
            .series
            .iter()
            .flat_map(|series| series.points.iter().map(|point| (series.strategy, point.x)));
        places
            .zip(results)
            .flat_map(|((strategy, x), rows)| {
                rows.into_iter()
                    .map(move |row| SweepRow { strategy, x, row })
            })
            .collect()
    }

    /// A row for programs.
    fn record(&self, row: &SweepRow) -> Record {
        let axis = match self.axis {
            Axis::Factor => "factor",
            Axis::Parameter => "parameter",
        };
        let place = Record::new()
            .with("strategy", row.strategy)
            .with(axis, row.x);
        row.row.onto(place)
    }

    /// Shows `rows`, with what the paper has beside them.
    #[must_use]
    pub fn report(&self, rows: &[SweepRow]) -> Report {
        let mut report = show::report(self, rows);
        report.claims = (self.claims)(&Findings(rows));
        report.notes = self.notes.iter().map(|note| (*note).to_owned()).collect();
        report.rows = rows.iter().map(|row| self.record(row)).collect();
        report
    }
}

impl Study for Sweep {
    fn name(&self) -> &str {
        self.name
    }

    fn title(&self) -> &str {
        self.title
    }

    fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError> {
        let batch = Batch {
            workload: &self.workload,
            warm_up: self.warm_up,
            requests: size.requests.unwrap_or(REQUESTS),
            seed: size.seed.unwrap_or(1),
            seeds: size.seeds.unwrap_or(SEEDS),
            threads: size.threads,
        };
        let results = batch.run(&self.experiments(), progress)?;
        let mut report = self.report(&self.rows(results));
        let runs = words::runs(batch.seeds, Some(batch.requests), batch.seed);
        let warm_up = self.warm_up.as_secs_f64();
        report.setup("runs", format!("{runs}, after {warm_up} s of warm-up"));
        Ok(report)
    }
}
