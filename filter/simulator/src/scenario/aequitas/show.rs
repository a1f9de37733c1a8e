//! The report of an experiment.

use std::time::Duration;

use super::measure::{Bound, Found, Number};
use super::{Curve, Expected, Experiment, Run};
use crate::fabric::{Pattern, Seen, Setup};
use crate::report::{
    Axis, Cell, Claim, Figure, Group, Record, Report, Series, Style, Subject, Table, TableRow,
    words,
};
use crate::scenario::Size;

const CLASSES: [&str; 3] = ["high", "medium", "low"];

pub(super) fn report(
    experiment: &Experiment,
    runs: &[Vec<Seen>],
    size: &Size,
    length: Duration,
) -> Report {
    let found = Found { experiment, runs };
    let subject = Subject::Scenario(experiment.name.to_owned());
    let mut report = Report::new(subject, experiment.title);
    setup(&mut report, experiment.setup, length);
    let seeds = runs.first().map_or(0, Vec::len) as u32;
    report.setup("runs", words::runs(seeds, None, size.first_seed()));
    report.tables.push(table(&found));
    report.claims = experiment.claims.iter().map(|c| claim(&found, c)).collect();
    report.notes = experiment.notes.iter().map(|n| (*n).to_owned()).collect();
    let firsts: Vec<(&Run, &Seen)> = experiment
        .runs
        .iter()
        .zip(runs)
        .filter(|(run, _)| run.shown)
        .filter_map(|(run, seeds)| Some((run, seeds.first()?)))
        .collect();
    for curve in experiment.curves {
        report.figures.push(figure(experiment, *curve, &firsts));
    }
    for (run, seen) in &firsts {
        rows(&mut report, experiment, run, seen);
    }
    for run in experiment.runs {
        report.rows.push(summary(&found, run));
    }
    report
}

fn setup(report: &mut Report, setup: &Setup, length: Duration) {
    let pattern = match setup.pattern {
        Pattern::AllToAll { burst, calls, idle } => format!(
            "each calls all others: bursts of {calls} calls at a load of {burst}, idle for {idle} of their time"
        ),
        Pattern::Incast { load } => {
            format!("all call the last, each at a load of {load}")
        }
    };
    report.setup("hosts", format!("{}; {pattern}", setup.hosts));
    let numbers = |all: &[f64]| {
        let all: Vec<String> = all.iter().map(f64::to_string).collect();
        all.join(":")
    };
    let mixes: Vec<String> = setup.mixes.iter().map(|mix| numbers(mix)).collect();
    let weights: Vec<f64> = setup.weights.iter().copied().map(f64::from).collect();
    report.setup(
        "calls",
        format!("{} bytes; classes {}", setup.call_bytes, mixes.join(", ")),
    );
    report.setup(
        "ports",
        format!(
            "100 Gb/s, weights {}, {} bytes",
            numbers(&weights),
            setup.buffer_bytes
        ),
    );
    let targets: Vec<String> = setup.targets_us.iter().map(u64::to_string).collect();
    report.setup(
        "targets",
        format!(
            "{} µs, windows of the {}th percentile",
            targets.join(", "),
            setup.percentile
        ),
    );
    report.setup(
        "length",
        format!(
            "{} s; latencies after the first third",
            length.as_secs_f64()
        ),
    );
}

fn table(found: &Found<'_>) -> Table {
    let columns = found.experiment.columns;
    let row = |run: &Run| TableRow {
        label: run.name.to_owned(),
        cells: columns
            .iter()
            .map(|(_, quantity, decimals)| {
                let number = Number {
                    run: run.name,
                    quantity: *quantity,
                };
                Cell::number(found.number(number), *decimals)
            })
            .collect(),
    };
    let heads = columns.iter().map(|(head, ..)| (*head).to_owned());
    Table {
        title: format!("Figure {}", found.experiment.figure),
        columns: std::iter::once("method".to_owned()).chain(heads).collect(),
        groups: vec![Group {
            title: String::new(),
            rows: found.experiment.runs.iter().map(row).collect(),
        }],
    }
}

fn claim(found: &Found<'_>, expected: &Expected) -> Claim {
    let value = found.value(expected.value);
    let Bound(least, most) = expected.bound;
    let holds = value.is_some_and(|value| (least..=most).contains(&value));
    let ours = value.map_or_else(|| "nothing".to_owned(), |value| format!("{value:.3}"));
    let (ours, holds) = match expected.not_reproduced {
        Some(why) if !holds => (format!("{ours}; not reproduced: {why}"), None),
        _ => (ours, Some(holds)),
    };
    Claim {
        text: expected.text.to_owned(),
        paper: expected.paper.to_owned(),
        ours,
        holds,
    }
}

fn figure(experiment: &Experiment, curve: Curve, runs: &[(&Run, &Seen)]) -> Figure {
    let (what, axis) = match curve {
        Curve::OverallAdmission => (
            "Overall admission",
            Axis::new("admitted, ratio").between(0.0, 1.0),
        ),
        Curve::HostAdmission => (
            "Admission by host",
            Axis::new("admitted, ratio").between(0.0, 1.0),
        ),
        Curve::HostThroughput => ("Throughput by host", Axis::new("in the high class, Gb/s")),
    };
    let mut series = Vec::new();
    for (run, seen) in runs {
        let at = |n: usize| (n as f64 + 1.0) * seen.interval;
        let mut add = |name: String, values: Vec<Option<f64>>| {
            let points = values.into_iter().enumerate().map(|(n, y)| (at(n), y));
            series.push(Series::new(name, Style::Line, points));
        };
        match curve {
            Curve::OverallAdmission => add(run.name.to_owned(), seen.overall_admission()),
            Curve::HostAdmission => {
                (0..2).for_each(|host| add(host_name(run, host), seen.admission(host)));
            }
            Curve::HostThroughput => (0..2).for_each(|host| {
                let values = seen.throughput(host).into_iter().map(Some);
                add(host_name(run, host), values.collect());
            }),
        }
    }
    Figure {
        title: format!("{what} (Figure {})", experiment.figure),
        x: Axis::new("time, s"),
        y: axis,
        series,
        ..Figure::default()
    }
}

fn host_name(run: &Run, host: usize) -> String {
    format!("{}, host {}", run.name, host + 1)
}

/// Rows for programs, of one run: what its curves show.
fn rows(report: &mut Report, experiment: &Experiment, run: &Run, seen: &Seen) {
    let row = |interval: usize| {
        Record::new()
            .with("figure", experiment.figure)
            .with("method", run.name)
            .with("time_s", (interval as f64 + 1.0) * seen.interval)
    };
    if experiment.curves.contains(&Curve::OverallAdmission) {
        let values = seen.overall_admission().into_iter().enumerate();
        let rows = values.map(|(n, value)| row(n).with("admitted", value));
        report.rows.extend(rows);
    }
    if experiment.curves.contains(&Curve::HostAdmission) {
        for host in 0..2_usize {
            let values = seen.admission(host).into_iter().zip(seen.throughput(host));
            let rows = values.enumerate().map(|(n, (admitted, gbps))| {
                row(n)
                    .with("host", host as u64 + 1)
                    .with("admitted", admitted)
                    .with("throughput_gbps", gbps)
            });
            report.rows.extend(rows);
        }
    }
}

/// A row for programs, of one method: the latencies.
fn summary(found: &Found<'_>, run: &Run) -> Record {
    use super::measure::Quantity::{Settled, TailLatency, Target};
    let number = |quantity| {
        found.number(Number {
            run: run.name,
            quantity,
        })
    };
    let setup = found.experiment.setup;
    let mut row = Record::new()
        .with("figure", found.experiment.figure)
        .with("method", run.name)
        .with("settled_s", number(Settled));
    // Of two classes, the second is the lowest.
    let lowest = setup.weights.len().saturating_sub(1);
    for class in 0..setup.weights.len() {
        let name = CLASSES[if class == lowest { 2 } else { class.min(1) }];
        row = row.with(format!("p999_{name}_us"), number(TailLatency(class)));
        if class < lowest {
            row = row.with(format!("target_{name}_us"), number(Target(class)));
        }
    }
    row
}
