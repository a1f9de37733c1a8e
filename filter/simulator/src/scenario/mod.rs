//! The papers' experiments, with the numbers that the papers print.
//!
//! A scenario is some strategies under the same traffic, at a row of loads or of values of a parameter.
//! What the paper found is data beside it, so that nobody has to remember what was expected.

mod bouncer;
mod paper;

use std::time::Duration;

use serde::Serialize;

use crate::batch::Experiment;
use crate::results::{ALL, Row};
use crate::workload::Workload;

pub use paper::Paper;

/// Names of all scenarios.
pub const NAMES: [&str; 9] = [
    "bouncer-table3",
    "bouncer-table4",
    "bouncer-table5",
    "bouncer-fig6",
    "bouncer-fig7",
    "bouncer-fig8",
    "bouncer-fig9",
    "bouncer-fig10",
    "bouncer-fig14",
];

/// The scenario `name`; `None` for names that are not in [`NAMES`].
#[must_use]
pub fn by_name(name: &str) -> Option<Scenario> {
    bouncer::scenario(name)
}

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
            Self::Utilization => Some(row.utilization),
        }
    }

    /// Its name and unit.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Rejected => "rejected %",
            Self::MedianResponseTime => "rt p50 ms",
            Self::Utilization => "utilization",
        }
    }
}

/// An experiment of a series.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// On the scenario's axis.
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
pub struct Scenario {
    /// One of [`NAMES`].
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
    /// What the paper says of the result in words.
    pub claims: &'static [&'static str],
    /// What arrives.
    pub workload: Workload,
    /// Time before results count.
    pub warm_up: Duration,
}

/// A row of results with its place in the scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScenarioRow {
    /// Name of the series.
    pub strategy: &'static str,
    /// Where the axis is the load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Where the axis is a parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<f64>,
    /// The results.
    #[serde(flatten)]
    pub row: Row,
}

impl ScenarioRow {
    /// Its place on the axis.
    #[must_use]
    pub fn x(&self) -> f64 {
        self.factor.or(self.parameter).unwrap_or(f64::NAN)
    }
}

/// How far results are from the paper's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Comparison {
    /// Cells held against a bound.
    pub cells: usize,
    /// Those outside of it, in words.
    pub outside: Vec<String>,
}

/// Points that a cell of `slow` may differ.
const SLOW_TOLERANCE: f64 = 3.0;
/// Points that a cell of `ALL` may differ.
const ALL_TOLERANCE: f64 = 1.0;

impl Scenario {
    /// All experiments, series by series.
    #[must_use]
    pub fn experiments(&self) -> Vec<Experiment> {
        self.series
            .iter()
            .flat_map(|series| series.points.iter().map(|point| point.experiment.clone()))
            .collect()
    }

    /// Puts the results of [`Scenario::experiments`] into their places.
    #[must_use]
    pub fn rows(&self, results: Vec<Vec<Row>>) -> Vec<ScenarioRow> {
        let places = self
            .series
            .iter()
            .flat_map(|series| series.points.iter().map(|point| (series.strategy, point.x)));
        let on = |axis, x| (self.axis == axis).then_some(x);
        places
            .zip(results)
            .flat_map(|((strategy, x), rows)| {
                rows.into_iter().map(move |row| ScenarioRow {
                    strategy,
                    factor: on(Axis::Factor, x),
                    parameter: on(Axis::Parameter, x),
                    row,
                })
            })
            .collect()
    }

    /// Holds rejections against the paper's cells: `slow` within 3 points, `ALL` within 1, and none at
    /// all where the paper prints "-0-".
    #[must_use]
    pub fn compare(&self, rows: &[ScenarioRow]) -> Comparison {
        let mut comparison = Comparison::default();
        let Some(paper) = &self.paper else {
            return comparison;
        };
        for row in rows {
            let (kind, ours) = (row.row.kind.as_str(), row.row.rejected_pct);
            let Some(cell) = paper.cell(row.strategy, kind, row.x()) else {
                continue;
            };
            let bound = match (cell.none_at_all, kind) {
                (true, _) => 0.0,
                (false, "slow") => SLOW_TOLERANCE,
                (false, ALL) => ALL_TOLERANCE,
                _ => continue,
            };
            comparison.cells += 1;
            if (ours - cell.percent).abs() > bound {
                let (strategy, x) = (row.strategy, row.x());
                comparison.outside.push(format!(
                    "{strategy}, {kind}, at {x}: {ours:.2}, the paper has {cell}"
                ));
            }
        }
        comparison
    }
}
