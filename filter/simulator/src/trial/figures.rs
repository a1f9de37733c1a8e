//! The results of a trial as curves over the load or over time.

use super::rows::{CaseRows, TypeRow, average};
use super::{CaseOutcome, Offered, Trial};
use crate::report::{Axis, Figure, Level, Series, Style};

/// A value in a type's results that a curve can show.
type Value = fn(&TypeRow) -> Option<f64>;

pub(super) fn figures(
    trial: &Trial,
    results: &[CaseRows],
    runs: &[Vec<CaseOutcome>],
) -> Vec<Figure> {
    let over_load = over_load(trial, results);
    let over_time = over_time(trial, results, runs);
    [over_load, over_time].concat()
}

/// Returns the figures over the load, if several loads were run.
fn over_load(trial: &Trial, results: &[CaseRows]) -> Vec<Figure> {
    let x = match &trial.plan.offered {
        Offered::Phases { .. } | Offered::Clients { .. } => return Vec::new(),
        Offered::Loads { .. } => "load, multiples of full load",
        Offered::Recorded { .. } => "speed, multiples of the recorded rate",
    };
    if results.len() < 2 {
        return Vec::new();
    }
    let mut sorted: Vec<&CaseRows> = results.iter().collect();
    sorted.sort_by(|a, b| a.factor.total_cmp(&b.factor));
    let points: Vec<(f64, &[TypeRow])> = sorted.iter().map(|c| (c.factor, &c.rows[..])).collect();
    let mut figures = by_type(trial, &Axis::new(x), &points);
    figures.push(Figure {
        title: "Utilization".to_owned(),
        x: Axis::new(x),
        y: Axis::new("slots in use, ratio").between(0.0, 1.0),
        series: vec![Series::new(
            "utilization",
            Style::Line,
            points
                .iter()
                .map(|(x, rows)| (*x, rows.last().map(|all| all.utilization))),
        )],
        ..Figure::default()
    });
    figures
}

/// Returns the figures of rejections and response times of each type.
fn by_type(trial: &Trial, x: &Axis, points: &[(f64, &[TypeRow])]) -> Vec<Figure> {
    let all_zero = points
        .iter()
        .all(|(_, rows)| rows.iter().all(|r| r.rejected_pct == 0.0));
    let mut rejected = Axis::new("rejected, %");
    rejected.to = all_zero.then_some(1.0);
    let mut figures = vec![Figure {
        title: "Rejections".to_owned(),
        x: x.clone(),
        y: rejected,
        series: curves(points, |row| Some(row.rejected_pct)),
        ..Figure::default()
    }];
    for (percentile, value) in [
        (50.0, (|row| row.at(50.0)) as Value),
        (90.0, |row| row.at(90.0)),
    ] {
        figures.push(Figure {
            title: format!("Response times at p{percentile}"),
            x: x.clone(),
            y: Axis::new("response time of served requests, ms"),
            series: curves(points, value),
            levels: objectives(trial, points, percentile),
            ..Figure::default()
        });
    }
    figures
}

/// Returns one curve for each type, and a dashed curve for all types together.
fn curves(points: &[(f64, &[TypeRow])], value: Value) -> Vec<Series> {
    let rows = points.first().map_or(&[][..], |(_, rows)| rows);
    let curve = |(at, row): (usize, &TypeRow)| {
        let points = points
            .iter()
            .map(|(x, rows)| (*x, rows.get(at).and_then(value)));
        let style = match row.kind {
            Some(_) => Style::Line,
            None => Style::Dashed,
        };
        Series::new(row.name.clone(), style, points).coloured(at)
    };
    rows.iter().enumerate().map(curve).collect()
}

/// Returns a line for each objective, with the names of its types if the types' objectives differ.
fn objectives(trial: &Trial, points: &[(f64, &[TypeRow])], percentile: f64) -> Vec<Level> {
    let rows = points.first().map_or(&[][..], |(_, rows)| rows);
    let mut levels: Vec<(f64, Vec<&str>)> = Vec::new();
    for row in rows {
        let Some(ms) = trial.objective(row.kind, percentile) else {
            continue;
        };
        match levels.iter_mut().find(|(at, _)| *at == ms) {
            Some((_, names)) => names.push(&row.name),
            None => levels.push((ms, vec![&row.name])),
        }
    }
    let several = levels.len() > 1;
    let level = |(at, names): (f64, Vec<&str>)| match several {
        true => Level::new(at, format!("objective of {}", names.join(", "))),
        false => Level::new(at, "objective"),
    };
    levels.into_iter().map(level).collect()
}

/// Returns the figures over time, if the load changes over time.
fn over_time(trial: &Trial, results: &[CaseRows], runs: &[Vec<CaseOutcome>]) -> Vec<Figure> {
    let several = runs.len() > 1;
    let mut all = Vec::new();
    for (runs, case) in runs.iter().zip(results) {
        let of_runs: Vec<Vec<(f64, Vec<TypeRow>)>> =
            runs.iter().filter_map(|run| curve(trial, run)).collect();
        let Some(first) = of_runs.first() else {
            continue;
        };
        let bin = |(at, (x, _)): (usize, &(f64, Vec<TypeRow>))| {
            let same = of_runs.iter().filter_map(|bins| bins.get(at));
            let rows: Vec<Vec<TypeRow>> = same.map(|(_, rows)| rows.clone()).collect();
            (*x, average(&rows))
        };
        let bins: Vec<(f64, Vec<TypeRow>)> = first.iter().enumerate().map(bin).collect();
        let points: Vec<(f64, &[TypeRow])> = bins.iter().map(|(x, rows)| (*x, &rows[..])).collect();
        let mut figures = vec![offered(&points)];
        figures.extend(by_type(trial, &Axis::new("time, s"), &points));
        for figure in &mut figures {
            figure.events = phases(trial);
            figure.title.push_str(" over time");
            if several {
                figure
                    .title
                    .push_str(&format!(" at {} × the recorded rate", case.factor));
            }
        }
        all.extend(figures);
    }
    all
}

/// Returns the middles of the bins, s since the warm-up, with the results of each bin.
fn curve(trial: &Trial, run: &CaseOutcome) -> Option<Vec<(f64, Vec<TypeRow>)>> {
    let timeline = run.curve.as_ref()?;
    let (begin, _) = timeline.span(0);
    let bin = |bin: usize| {
        let (from, to) = timeline.span(bin);
        let middle = (from as f64 + to as f64) / 2.0 - begin as f64;
        (middle / 1e9, trial.bin(timeline, bin))
    };
    Some((0..timeline.len()).map(bin).collect())
}

fn offered(points: &[(f64, &[TypeRow])]) -> Figure {
    let curve = |value: fn(&TypeRow) -> f64| {
        let points = points.iter();
        points
            .map(|(x, rows)| (*x, rows.last().map(value)))
            .collect::<Vec<_>>()
    };
    let accepted = |all: &TypeRow| all.offered * (1.0 - all.rejected_pct / 100.0);
    Figure {
        title: "Requests".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("requests/s"),
        series: vec![
            Series::new("offered", Style::Dashed, curve(|all| all.offered)),
            Series::new("served", Style::Line, curve(accepted)),
        ],
        ..Figure::default()
    }
}

/// Returns the starts of all phases except the first.
fn phases(trial: &Trial) -> Vec<Level> {
    let Offered::Phases { phases, .. } = &trial.plan.offered else {
        return Vec::new();
    };
    let mut at = 0.0;
    let mut events = Vec::new();
    for (i, phase) in phases.iter().enumerate() {
        if i > 0 {
            events.push(Level::new(at, format!("phase {}", i + 1)));
        }
        at += phase.duration.as_secs_f64();
    }
    events
}
