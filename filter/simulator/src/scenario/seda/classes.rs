//! Two classes of users, without (Figure 14) and with service differentiation (Figure 15).
//!
//! 128 users of low priority from the beginning; 128 of high priority from t = 100 to t = 200, in the
//! figures' unit of 5 s.

use super::service::{self, names, users};
use super::stage::{Control, stage};
use super::trial::{Seen, Service, Trial, run};
use super::{Curve, INTERVAL_S, claim, intervals, mean, scaled, stays, words};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Compared, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;

const USERS: u64 = 128;
/// Classes as numbered here: 0 is the higher.
const HIGH: u8 = 0;
const LOW: u8 = 1;
/// In seconds, though the figures count intervals.
const BEGIN_S: u64 = 100 * INTERVAL_S;
const END_S: u64 = 200 * INTERVAL_S;
const LENGTH_S: u64 = 250 * INTERVAL_S;
const TARGET_S: u64 = 10;
const SEEDS: u32 = 3;
/// Percent rejected while both are there: low, high.
const FIGURE_14: [f64; 2] = [55.5, 57.6];
const FIGURE_15: [f64; 2] = [87.9, 48.8];

pub(super) fn figure(
    differentiated: bool,
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let (begin, end, length) = (
        scaled(size, BEGIN_S),
        scaled(size, END_S),
        scaled(size, LENGTH_S),
    );
    let mut all = stays(USERS, LOW, 0, 30.min(begin), u64::MAX);
    all.extend(stays(USERS, HIGH, begin, 1, end));
    let trial = |classes: usize| -> Result<Trial, SimulationError> {
        Ok(Trial {
            service: Service::Arashi,
            stage: stage(&names(), classes, Control::PerStage(TARGET_S)),
            habits: users()?,
            stays: all.clone(),
            length,
        })
    };
    report.setup("service", service::ARASHI_IN_WORDS);
    report.setup(
        "users",
        format!("{USERS} of low priority; {USERS} of high priority from {begin} s to {end} s"),
    );
    report.setup(
        "target",
        format!("90th percentile {TARGET_S} s, for both classes"),
    );
    // What there is without, to compare with.
    let trials = match differentiated {
        true => vec![trial(2)?, trial(1)?],
        false => vec![trial(1)?],
    };
    let runs = run(&trials, size, SEEDS, progress)?;
    report.setup(
        "runs",
        format!(
            "{} of each, seeds from {}; figures show the first",
            runs[0].len(),
            size.first_seed()
        ),
    );
    let both = intervals(begin, end);
    let refused = |which: usize, class: u8| {
        mean(&runs[which], |s| {
            s.classes[usize::from(class)].refused_pct(both.clone())
        })
    };
    let p90 = |which: usize, class: u8| {
        mean(&runs[which], |s| {
            s.classes[usize::from(class)].response_time(both.clone(), 0.9)
        })
    };
    let served = |which: usize, class: u8| {
        mean(&runs[which], |s| {
            Some(s.classes[usize::from(class)].served(both.clone()) as f64)
        })
    };
    let paper = if differentiated { FIGURE_15 } else { FIGURE_14 };
    let row = |(class, label, paper): (u8, &str, f64)| TableRow {
        label: label.to_owned(),
        cells: vec![
            Cell::number(p90(0, class), 2),
            Cell::Compared(Compared {
                ours: refused(0, class),
                decimals: 1,
                expected: paper,
                printed: paper.to_string(),
                within: None,
            }),
            Cell::number(served(0, class).map(|n| n / (end - begin).max(1) as f64), 1),
        ],
    };
    report.tables.push(Table {
        title: "While both classes are there".to_owned(),
        columns: ["class", "90th percentile, s", "rejected, %", "served/s"]
            .map(str::to_owned)
            .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: [(LOW, "low", paper[0]), (HIGH, "high", paper[1])]
                .map(row)
                .to_vec(),
        }],
    });
    let count = (length / INTERVAL_S) as usize;
    let first = runs[0].first();
    let curve = |class: u8, value: &dyn Fn(&Seen, usize) -> Curve| {
        first
            .map(|s| value(s, usize::from(class)))
            .unwrap_or_default()
    };
    let times = |class| {
        curve(class, &|s, c| {
            s.classes[c].curve(count, |a, i| a.response_time(i, 0.9))
        })
    };
    let rejections = |class| {
        curve(class, &|s, c| {
            s.classes[c].curve(count, |a, i| a.refused_pct(i))
        })
    };
    let events = vec![
        Level::new(begin as f64, "high priority comes"),
        Level::new(end as f64, "and leaves"),
    ];
    let classes = [(LOW, "low priority"), (HIGH, "high priority")];
    report.figures.push(Figure {
        title: "90th percentile response time".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("90th percentile response time, s"),
        series: classes
            .map(|(class, name)| {
                Series::new(name, Style::Line, times(class)).coloured(usize::from(class))
            })
            .to_vec(),
        levels: vec![Level::new(TARGET_S as f64, "target")],
        events: events.clone(),
        ..Figure::default()
    });
    report.figures.push(Figure {
        title: "Rejections".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("rejected, %").between(0.0, 100.0),
        series: classes
            .map(|(class, name)| {
                Series::new(name, Style::Line, rejections(class)).coloured(usize::from(class))
            })
            .to_vec(),
        events,
        ..Figure::default()
    });
    let (low, high) = (
        refused(0, LOW).unwrap_or_default(),
        refused(0, HIGH).unwrap_or_default(),
    );
    report.claims = match differentiated {
        false => vec![claim(
            "without differentiation both classes are rejected alike",
            "55.5%, 57.6%",
            format!("low {low:.1}%, high {high:.1}%"),
            (low - high).abs() < 10.0,
        )],
        true => {
            let before = refused(1, HIGH).unwrap_or_default();
            vec![
                claim(
                    "low priority is rejected far more than high priority",
                    "87.9%, 48.8%",
                    format!("low {low:.1}%, high {high:.1}%"),
                    low > high + 20.0,
                ),
                claim(
                    "high priority is rejected less than without differentiation",
                    "48.8% instead of 57.6%",
                    format!("{high:.1}% instead of {before:.1}%"),
                    high < before,
                ),
                claim(
                    "low priority is rejected more than without differentiation",
                    "87.9% instead of 55.5%",
                    format!("{low:.1}% instead of {}", words(refused(1, LOW), 1, "%")),
                    Some(low) > refused(1, LOW),
                ),
            ]
        }
    };
    for (class, name) in classes {
        for ((time, p90), (_, refused)) in times(class).into_iter().zip(rejections(class)) {
            let row = Record::new()
                .with("class", name)
                .with("time_s", time)
                .with("rt_p90_s", p90)
                .with("rejected_pct", refused);
            report.rows.push(row);
        }
    }
    Ok(report)
}
