//! Tables, figures and claims of the study.

use super::super::stages::TYPES;
use super::{ALLOWANCE, Found, Order, RECOMMENDED, SlackOrder, Trial};
use crate::batch::Batch;
use crate::report::{
    Axis, Cell, Claim, Figure, Group, Level, Point, Record, Report, Series, Style, Subject, Table,
    TableRow,
};
use crate::results::Row;
use crate::scenario::Study as _;
use crate::scenario::bouncer::{FITTED, HELP, LIMITS, NOT_THE_PAPERS, OVERLOAD};
use crate::workload::Workload;

/// Objectives of all types, ms.
pub(super) const OBJECTIVES_MS: (f64, f64) = (18.0, 50.0);
/// Part of each type that is to be accepted, percent.
const LEAST_ACCEPTED: f64 = 30.0;
/// Points that the order may cost in rejections.
const EQUAL_REJECTIONS: f64 = 0.3;

pub(super) fn report(
    study: &SlackOrder,
    found: &[Found],
    batch: &Batch<'_>,
    workload: &Workload,
) -> Report {
    let mut report = Report::new(Subject::Scenario(study.name().to_owned()), study.title());
    let types = workload.types().iter();
    let types: Vec<String> = types
        .map(|kind| format!("{} ({})", kind.name, kind.service_time))
        .collect();
    report.setup("types", types.join(", "));
    report.setup(
        "objectives",
        format!("p50 {} ms, p90 {} ms", OBJECTIVES_MS.0, OBJECTIVES_MS.1),
    );
    report.setup(
        "runs",
        format!(
            "averages of {} runs of {} requests, seeds from {}, after a warm-up",
            batch.seeds, batch.requests, batch.seed
        ),
    );
    report.tables = vec![
        table(
            "at 1.5 times the full load",
            &at(found, OVERLOAD),
            |trial| match trial.parameter {
                Some(parameter) => format!("{} {parameter}", trial.strategy),
                None => trial.strategy.to_owned(),
            },
        ),
        table(
            "Bouncer+AcceptanceAllowance 0.3, by load",
            &recommended(found).collect::<Vec<_>>(),
            |trial| format!("× {}", trial.factor),
        ),
    ];
    let title = |who| format!("What the least served type gets, and what it costs: {who}");
    report.figures = vec![
        frontier(found, title("Bouncer"), |name| name.starts_with("Bouncer")),
        frontier(found, title("every strategy"), |_| true),
        by_load(found),
    ];
    report.claims = claims(found);
    report.notes = [FITTED, LIMITS, HELP, NOT_THE_PAPERS]
        .map(str::to_owned)
        .to_vec();
    report.rows = found.iter().flat_map(records).collect();
    report
}

/// What was found at this load.
fn at(found: &[Found], factor: f64) -> Vec<&Found> {
    found.iter().filter(|f| f.trial.factor == factor).collect()
}

/// The recommended strategy at all loads, in their order.
fn recommended(found: &[Found]) -> impl Iterator<Item = &Found> {
    let wanted =
        |f: &&Found| f.trial.strategy == RECOMMENDED && f.trial.parameter == Some(ALLOWANCE);
    let mut found: Vec<&Found> = found.iter().filter(wanted).collect();
    found.sort_by(|a, b| a.trial.factor.total_cmp(&b.trial.factor));
    found.into_iter()
}

fn at_overload(found: &[Found], order: Order) -> Option<&Found> {
    recommended(found).find(|f| f.trial.factor == OVERLOAD && f.trial.order == order)
}

fn table(title: &str, found: &[&Found], label: impl Fn(&Trial) -> String) -> Table {
    let mut columns = vec!["strategy".to_owned()];
    columns.extend(TYPES.map(|(name, ..)| format!("{name} p50/p90 ms")));
    columns.extend(
        [
            "least accepted %",
            "rejected %",
            "utilization",
            "objectives",
        ]
        .map(str::to_owned),
    );
    let row = |f: &Found| {
        let times = |row: &Row| match (row.rt_p50_ms, row.rt_p90_ms) {
            (Some(p50), Some(p90)) => Cell::Text(format!("{p50:.1}/{p90:.1}")),
            _ => Cell::Empty,
        };
        let mut cells: Vec<Cell> = f.types().map(times).collect();
        let kept = if f.keeps_objectives() {
            "kept"
        } else {
            "broken"
        };
        cells.extend([
            Cell::Number(f.least_accepted(), 1),
            Cell::Number(f.rejected(), 2),
            Cell::Number(f.utilization(), 3),
            Cell::Text(kept.to_owned()),
        ]);
        TableRow {
            label: label(&f.trial),
            cells,
        }
    };
    let group = |order: Order| Group {
        title: order.name().to_owned(),
        rows: found
            .iter()
            .filter(|f| f.trial.order == order)
            .map(|f| row(f))
            .collect(),
    };
    Table {
        title: title.to_owned(),
        columns,
        groups: Order::BOTH.map(group).to_vec(),
    }
}

/// Smallest acceptance of any type against overall rejections, at 1.5 times the full load.
fn frontier(found: &[Found], title: String, shown: impl Fn(&str) -> bool) -> Figure {
    let mut here = at(found, OVERLOAD);
    here.retain(|f| shown(f.trial.strategy));
    let mut names: Vec<&str> = here.iter().map(|f| f.trial.strategy).collect();
    names.dedup();
    let mut series = Vec::new();
    for order in Order::BOTH {
        for (colour, name) in names.iter().enumerate() {
            let points = here
                .iter()
                .filter(|f| f.trial.order == order && f.trial.strategy == *name)
                .map(|f| (f.rejected(), Some(f.least_accepted())));
            let style = match order {
                Order::Fifo => Style::Dashed,
                Order::Slack => Style::Line,
            };
            let title = format!("{name}, {}", order.name());
            series.push(Series::new(title, style, points).coloured(colour));
        }
    }
    let kept = here.iter().filter(|f| f.keeps_objectives());
    let mut inside = Series::new("all objectives kept", Style::Points, []);
    inside.points = kept
        .map(|f| Point {
            x: f.rejected(),
            y: Some(f.least_accepted()),
            label: String::new(),
        })
        .collect();
    inside.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    series.push(inside.coloured(names.len()));
    Figure {
        title,
        x: Axis::new("requests rejected over all types, %"),
        y: Axis::new("least accepted type, %"),
        series,
        caption: "Up and to the left is better. The order changes who waits, not who is let in, so the \
                  curves of one strategy lie on each other; what differs is where all objectives are kept."
            .into(),
        ..Figure::default()
    }
}

fn by_load(found: &[Found]) -> Figure {
    let curve = |order: Order, colour| {
        let slow = |f: &Found| {
            let row = f.types().find(|row| row.kind == "slow");
            (f.trial.factor, row.and_then(|row| row.rt_p50_ms))
        };
        let points = recommended(found)
            .filter(|f| f.trial.order == order)
            .map(slow);
        Series::new(order.name(), Style::Line, points).coloured(colour)
    };
    Figure {
        title: "Median response time of slow with an allowance of 0.3".into(),
        x: Axis::new("load, multiples of full load"),
        y: Axis::new("ms"),
        series: vec![curve(Order::Fifo, 0), curve(Order::Slack, 1)],
        levels: vec![Level::new(OBJECTIVES_MS.0, "objective")],
        ..Figure::default()
    }
}

fn claims(found: &[Found]) -> Vec<Claim> {
    let (Some(fifo), Some(slack)) = (
        at_overload(found, Order::Fifo),
        at_overload(found, Order::Slack),
    ) else {
        return Vec::new();
    };
    let worst =
        |f: &Found, time: fn(&Row) -> Option<f64>| f.types().filter_map(time).fold(0.0, f64::max);
    let worst = |f: &Found| {
        let p50 = worst(f, |row| row.rt_p50_ms);
        format!(
            "at most {p50:.1} and {:.1} ms",
            worst(f, |row| row.rt_p90_ms)
        )
    };
    let claim = |text: &str, aim: String, ours: String, holds: bool| Claim {
        text: text.to_owned(),
        paper: aim,
        ours,
        holds: Some(holds),
    };
    let (p50, p90) = OBJECTIVES_MS;
    let difference = (slack.rejected() - fifo.rejected()).abs();
    let inside = recommended(found).filter(|f| f.trial.order == Order::Slack);
    let outside: Vec<String> = inside
        .filter(|f| !f.keeps_objectives())
        .map(|f| format!("× {}", f.trial.factor))
        .collect();
    vec![
        claim(
            "with Slack and an allowance of 0.3 every type keeps both objectives at 1.5 times the full load",
            format!("{p50:.0} and {p90:.0} ms"),
            worst(slack),
            slack.keeps_objectives(),
        ),
        claim(
            "no type is accepted below 30%",
            format!("{LEAST_ACCEPTED:.0}%"),
            format!("{:.1}%", slack.least_accepted()),
            slack.least_accepted() >= LEAST_ACCEPTED,
        ),
        claim(
            "the backend stays busy",
            "0.99".into(),
            format!("{:.4}", slack.utilization()),
            slack.utilization() >= 0.99,
        ),
        claim(
            "the order costs no rejections",
            format!("{:.2}% with FIFO", fifo.rejected()),
            format!("{:.2}%", slack.rejected()),
            difference <= EQUAL_REJECTIONS,
        ),
        claim(
            "the same strategy breaks objectives in a FIFO (Figure 9)",
            format!("above {p50:.0} or {p90:.0} ms"),
            worst(fifo),
            !fifo.keeps_objectives(),
        ),
        claim(
            "with Slack it keeps them at every load up to twice the full load",
            "every load".into(),
            if outside.is_empty() {
                "every load".into()
            } else {
                format!("not at {}", outside.join(", "))
            },
            outside.is_empty(),
        ),
    ]
}

/// Rows for programs.
fn records(found: &Found) -> impl Iterator<Item = Record> + '_ {
    let trial = &found.trial;
    found.rows.iter().map(|row| {
        let place = Record::new()
            .with("strategy", trial.strategy)
            .with("discipline", trial.order.name())
            .with("factor", trial.factor)
            .with("parameter", trial.parameter);
        row.onto(place)
    })
}
