//! Figure 5: the service delay period by period.

use super::{Runs, TARGET, claim};
use crate::clients::threads::Sample;
use crate::report::{
    Axis, Cell, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::scenario::chronos::measures::{largest, longest_above, refused_pct};
use crate::scenario::chronos::model::Approach;

/// S_v and T_v of Table 1.
const OVERSHOOT_S: f64 = 2.5;
const SETTLING_S: usize = 10;

/// Figure 5.
pub(in crate::scenario::chronos) fn figure_5(
    runs: &Runs,
    size: &Size,
    mut report: Report,
) -> Report {
    let times = runs.times;
    runs.setup(&mut report, size);
    let first = |approach: Approach| runs.of(approach).first().map_or(&[][..], Vec::as_slice);
    let mut figure = Figure {
        title: "Transient service delay (Figure 5), first run".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("service delay, s"),
        levels: vec![Level::new(TARGET, "S_t"), Level::new(OVERSHOOT_S, "S_v")],
        events: vec![Level::new(times.burst as f64, "burst begins")],
        ..Figure::default()
    };
    for approach in Approach::ALL {
        let points = (0_u32..)
            .map(f64::from)
            .zip(first(approach))
            .skip(times.shown as usize)
            .map(|(at, sample)| (at, sample.mean_delay()));
        figure
            .series
            .push(Series::new(approach.name(), Style::Line, points));
    }
    report.figures.push(figure);
    let row = |approach: Approach| {
        let of = |value: &dyn Fn(&[Sample]) -> f64| runs.estimate(approach, value);
        let spread = of(&|run| {
            let settled = times.burst as usize + times.end.saturating_sub(times.burst) as usize / 6;
            let delays: Vec<f64> = run[settled.min(run.len())..]
                .iter()
                .filter_map(Sample::mean_delay)
                .collect();
            let mean = delays.iter().sum::<f64>() / delays.len().max(1) as f64;
            let squares: f64 = delays.iter().map(|d| (d - mean).powi(2)).sum();
            (squares / delays.len().max(1) as f64).sqrt()
        });
        TableRow {
            label: approach.name().to_owned(),
            cells: vec![
                Cell::Text(of(&|run| largest(run, times.high()).0).show(2)),
                Cell::Text(of(&|run| longest_above(run, times.high(), OVERSHOOT_S) as f64).show(1)),
                Cell::Number(spread.mean, 3),
                Cell::Number(of(&|run| refused_pct(run, times.high())).mean, 1),
            ],
        }
    };
    report.tables.push(Table {
        title: "After the burst began".to_owned(),
        columns: [
            "approach",
            "largest s(k), s",
            "longest above S_v, s",
            "σ of s(k) once settled, s",
            "refused, %",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: Approach::ALL.into_iter().map(row).collect(),
        }],
    });
    let above = |approach| {
        let longest = |run: &[Sample]| longest_above(run, times.high(), OVERSHOOT_S) as f64;
        runs.estimate(approach, longest).mean
    };
    let most = |approach| {
        runs.estimate(approach, |run| largest(run, times.high()).0)
            .mean
    };
    report.claims = vec![
        claim(
            "overshoots of FC-D above S_v = 2.5 s decay within T_v = 10 s",
            "4.13 s, in 3 s",
            format!(
                "{:.2} s, in {:.0} s",
                most(Approach::FcD),
                above(Approach::FcD)
            ),
            above(Approach::FcD) <= SETTLING_S as f64,
        ),
        claim(
            "so do those of FC-TS",
            "2.88 s, in 3 s",
            format!(
                "{:.2} s, in {:.0} s",
                most(Approach::FcTs),
                above(Approach::FcTs)
            ),
            above(Approach::FcTs) <= SETTLING_S as f64,
        ),
        claim(
            "Open and AC stay above S_v for long",
            "",
            format!(
                "{:.0} s and {:.0} s",
                above(Approach::Open),
                above(Approach::Ac)
            ),
            above(Approach::Open).min(above(Approach::Ac)) > SETTLING_S as f64,
        ),
        claim(
            "FC-Q is better than AC and Open, and overshoots more than FC-D",
            "",
            format!(
                "{:.2} s, FC-D {:.2} s",
                most(Approach::FcQ),
                most(Approach::FcD)
            ),
            most(Approach::FcQ) > most(Approach::FcD) && most(Approach::FcQ) < most(Approach::Open),
        ),
    ];
    for approach in Approach::ALL {
        let row = |(at, sample): (usize, &Sample)| {
            Record::new()
                .with("strategy", approach.name())
                .with("time_s", at as f64)
                .with("delay_s", sample.mean_delay())
                .with("backlog", sample.backlog as f64)
                .with("served", f64::from(sample.served))
                .with("refused", f64::from(sample.refused))
        };
        report
            .rows
            .extend(first(approach).iter().enumerate().map(row));
    }
    report
}
