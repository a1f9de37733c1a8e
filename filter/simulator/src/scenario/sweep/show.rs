//! A sweep's results as tables and figures.

use super::{Axis, Findings, Metric, Series, Sweep, SweepRow};
use crate::report::{
    Axis as FigureAxis, Cell, Compared, Figure, Group, Level, Report, Series as Curve, Style,
    Subject, Table, TableRow,
};
use crate::results::ALL;
use crate::scenario::PaperCell;

/// Points that a cell of `slow` may differ from the paper's.
const SLOW_TOLERANCE: f64 = 3.0;
/// Points that a cell of `ALL` may differ from the paper's.
const ALL_TOLERANCE: f64 = 1.0;

pub(super) fn report(sweep: &Sweep, rows: &[SweepRow]) -> Report {
    let findings = Findings(rows);
    let mut report = Report::new(Subject::Scenario(sweep.name.to_owned()), sweep.title);
    setup(&mut report, sweep);
    report.tables = match by_strategy(sweep) {
        true => vec![table_of_types(sweep, &findings)],
        false => sweep
            .shown
            .iter()
            .map(|shown| table_of_strategies(sweep, &findings, *shown))
            .collect(),
    };
    report.figures = sweep
        .shown
        .iter()
        .filter(|shown| has_something(sweep, &findings, **shown))
        .map(|shown| figure(sweep, &findings, *shown))
        .collect();
    report
}

fn setup(report: &mut Report, sweep: &Sweep) {
    let types: Vec<String> = sweep
        .workload
        .types()
        .iter()
        .map(|kind| {
            let share = 100.0 * sweep.workload.share_of(kind);
            format!("{} {share:.0}% ({})", kind.name, kind.service_time)
        })
        .collect();
    report.setup("types", types.join(", "));
    if let Some(experiment) = sweep.experiments().first() {
        let slots = experiment.stage.parallelism;
        let full = sweep
            .workload
            .per_second(crate::workload::Rate::Factor(1.0), slots);
        report.setup(
            "backend",
            format!("{slots} slots; full load is {full:.0} requests/s"),
        );
    }
}

/// Whether the rows of a strategy stand together: where the paper prints them so, and where strategies
/// differ in their places on the axis.
fn by_strategy(sweep: &Sweep) -> bool {
    let places = |series: &Series| series.points.iter().map(|p| p.x).collect::<Vec<_>>();
    let first = sweep.series.first().map(places);
    sweep.paper.is_some() || sweep.series.iter().any(|s| Some(places(s)) != first)
}

fn table_of_types(sweep: &Sweep, findings: &Findings<'_>) -> Table {
    let one_metric = sweep
        .shown
        .iter()
        .all(|(metric, _)| *metric == sweep.shown[0].0);
    let head = |(metric, kind): &(Metric, &str)| match one_metric {
        true => (*kind).to_owned(),
        false => format!("{kind}: {}", metric.label()),
    };
    let metric = sweep.shown.first().map_or("", |(metric, _)| metric.label());
    let columns = std::iter::once(axis_head(sweep.axis).to_owned());
    let mut title = if one_metric { metric } else { "results" }.to_owned();
    if sweep.paper.is_some() {
        title.push_str(", and in brackets the paper's (-0-: not one in any run)");
    }
    Table {
        title,
        columns: columns.chain(sweep.shown.iter().map(head)).collect(),
        groups: sweep
            .series
            .iter()
            .map(|series| group(sweep, findings, series))
            .collect(),
    }
}

fn group(sweep: &Sweep, findings: &Findings<'_>, series: &Series) -> Group {
    let row = |x: f64| TableRow {
        label: x.to_string(),
        cells: sweep
            .shown
            .iter()
            .map(|(metric, kind)| {
                let ours = findings.at(series.strategy, *metric, kind, x);
                let paper = sweep.paper.as_ref();
                let paper = paper.and_then(|paper| paper.cell(series.strategy, kind, x));
                match (ours, paper) {
                    (Some(_), Some(paper)) => Cell::Compared(compared(kind, ours, paper)),
                    _ => Cell::number(ours, decimals(*metric)),
                }
            })
            .collect(),
    };
    Group {
        title: series.strategy.to_owned(),
        rows: series.points.iter().map(|point| row(point.x)).collect(),
    }
}

/// Rejections: `slow` within 3 points, `ALL` within 1, and none at all where the paper prints "-0-".
fn compared(kind: &str, ours: Option<f64>, paper: PaperCell) -> Compared {
    Compared {
        ours,
        decimals: 2,
        expected: paper.percent,
        printed: paper.to_string(),
        within: match (paper.none_at_all, kind) {
            (true, _) => Some(0.0),
            (false, "slow") => Some(SLOW_TOLERANCE),
            (false, ALL) => Some(ALL_TOLERANCE),
            _ => None,
        },
    }
}

fn table_of_strategies(
    sweep: &Sweep,
    findings: &Findings<'_>,
    (metric, kind): (Metric, &str),
) -> Table {
    let names = sweep.series.iter().map(|series| series.strategy.to_owned());
    let places = sweep.series.first().map_or(&[][..], |s| &s.points);
    let row = |x: f64| TableRow {
        label: x.to_string(),
        cells: sweep
            .series
            .iter()
            .map(|series| {
                let ours = findings.at(series.strategy, metric, kind, x);
                Cell::number(ours, decimals(metric))
            })
            .collect(),
    };
    Table {
        title: format!("{}{}", subject(metric, kind), metric.unit()),
        columns: std::iter::once(axis_head(sweep.axis).to_owned())
            .chain(names)
            .collect(),
        groups: vec![Group {
            title: String::new(),
            rows: places.iter().map(|point| row(point.x)).collect(),
        }],
    }
}

/// A figure of nothing but zeros shows nothing.
fn has_something(sweep: &Sweep, findings: &Findings<'_>, (metric, kind): (Metric, &str)) -> bool {
    let mut curves = sweep
        .series
        .iter()
        .flat_map(|series| findings.curve(series.strategy, metric, kind));
    curves.any(|(_, y)| y.is_some_and(|y| y != 0.0))
}

fn figure(sweep: &Sweep, findings: &Findings<'_>, (metric, kind): (Metric, &str)) -> Figure {
    let mut series = Vec::new();
    for (colour, of) in sweep.series.iter().enumerate() {
        let ours = findings.curve(of.strategy, metric, kind);
        series.push(Curve::new(of.strategy, Style::Line, ours).coloured(colour));
        let Some(paper) = &sweep.paper else { continue };
        let cells = of.points.iter().filter_map(|point| {
            let cell = paper.cell(of.strategy, kind, point.x)?;
            Some((point.x, Some(cell.percent)))
        });
        let name = format!("{}, the paper", of.strategy);
        series.push(Curve::new(name, Style::Paper, cells).coloured(colour));
    }
    let levels = sweep.levels.iter().filter(|(of, ..)| *of == metric);
    Figure {
        title: subject(metric, kind),
        x: FigureAxis::new(match sweep.axis {
            Axis::Factor => "load, multiples of full load",
            Axis::Parameter => "parameter of the strategy",
        }),
        y: FigureAxis {
            to: sweep.top,
            ..FigureAxis::new(metric.label())
        },
        caption: sweep.caption.to_owned(),
        series,
        levels: levels
            .map(|(_, at, label)| Level::new(*at, *label))
            .collect(),
        ..Figure::default()
    }
}

fn subject(metric: Metric, kind: &str) -> String {
    let what = match metric {
        Metric::Rejected => "Rejections",
        Metric::MedianResponseTime => "Median response time",
        Metric::P90ResponseTime => "90th percentile response time",
        Metric::Utilization => "Utilization",
    };
    match (metric, kind) {
        // The slots are everybody's.
        (Metric::Utilization, _) => what.to_owned(),
        (_, ALL) => format!("{what} over all types"),
        (_, kind) => format!("{what} of {kind}"),
    }
}

fn axis_head(axis: Axis) -> &'static str {
    match axis {
        Axis::Factor => "factor",
        Axis::Parameter => "parameter",
    }
}

fn decimals(metric: Metric) -> usize {
    match metric {
        Metric::Rejected => 2,
        Metric::MedianResponseTime | Metric::P90ResponseTime => 1,
        Metric::Utilization => 3,
    }
}
