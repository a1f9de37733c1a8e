//! More and more users (Figures 8 and 9).

use super::service::{self, names, users};
use super::stage::{Control, stage};
use super::trial::{Seen, Service, Trial, run};
use super::{claim, intervals, mean, scaled, stays, words};
use crate::clients::series::Series as Answers;
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Compared, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;

const LOADS: [u64; 8] = [8, 16, 32, 64, 128, 256, 512, 1_024];
pub(super) const SEEDS: u32 = 3;
/// s.
pub(super) const TARGET_S: u64 = 10;
/// §4.3: "for about 15 minutes … after an initial warm-up period of about 20 seconds". Here the users come
/// during the warm-up, and 1024 need longer than 20 s for the first login.
const WARM_UP_S: u64 = 60;
const LENGTH_S: u64 = 960;
/// By how much a percentile may exceed the target and still be said to meet it. The paper allows nothing;
/// this is for the model's noise.
const NEAR: f64 = 1.1;

/// Figure 9, s: without control and with, for 16 users, then for 1024.
const FIGURE_9: [[f64; 4]; 7] = [
    [0.83, 0.59, 0.86, 3.84],
    [1.73, 0.57, 365.0, 5.75],
    [2.37, 0.58, 116.0, 9.28],
    [0.70, 0.30, 30.1, 3.87],
    [1.00, 0.28, 11.3, 6.85],
    [1.00, 0.47, 10.6, 6.07],
    [8.17, 9.92, 19.6, 18.1],
];
/// Times of an experiment, s.
pub(super) struct Times {
    warm_up: u64,
    length: u64,
}

impl Times {
    pub(super) fn of(size: &Size) -> Self {
        let length = scaled(size, LENGTH_S);
        Self {
            warm_up: WARM_UP_S.min(length / 2),
            length,
        }
    }

    pub(super) fn shown(&self) -> std::ops::Range<usize> {
        intervals(self.warm_up, self.length)
    }

    pub(super) fn trial(&self, count: u64, control: Control) -> Result<Trial, SimulationError> {
        Ok(Trial {
            service: Service::Arashi,
            stage: stage(&names(), 1, control),
            habits: users()?,
            stays: stays(count, 0, 0, self.warm_up, u64::MAX),
            length: self.length,
        })
    }

    pub(super) fn setup(&self, report: &mut Report, size: &Size) {
        report.setup("service", service::ARASHI_IN_WORDS);
        report.setup(
            "time",
            format!("{} s, of which {} s of warm-up", self.length, self.warm_up),
        );
        report.setup("target", format!("90th percentile {TARGET_S} s"));
        report.setup(
            "runs",
            format!(
                "{} of each, seeds from {}",
                size.seeds.unwrap_or(SEEDS).max(1),
                size.first_seed()
            ),
        );
    }
}

pub(super) fn p90(answers: &Answers, shown: std::ops::Range<usize>) -> Option<f64> {
    answers.response_time(shown, 0.9)
}

pub(super) fn figure_8(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let times = Times::of(size);
    times.setup(&mut report, size);
    let controls = [Control::None, Control::PerStage(TARGET_S)];
    let labels = ["no control", "per-stage control"];
    let trials = controls
        .iter()
        .flat_map(|control| LOADS.map(|load| times.trial(load, *control)))
        .collect::<Result<Vec<_>, _>>()?;
    let runs = run(&trials, size, SEEDS, progress)?;
    let of = |control: usize, load: usize| runs[control * LOADS.len() + load].as_slice();
    let overall = |control, load| mean(of(control, load), |s| p90(&s.classes[0], times.shown()));
    let refused = |control, load| {
        mean(of(control, load), |s| {
            s.classes[0].refused_pct(times.shown())
        })
    };

    let row = |(at, load): (usize, &u64)| TableRow {
        label: load.to_string(),
        cells: vec![
            Cell::number(overall(0, at), 2),
            Cell::number(overall(1, at), 2),
            Cell::number(refused(1, at), 1),
        ],
    };
    report.tables.push(Table {
        title: "90th percentile response time, s, and rejections (Figure 8)".to_owned(),
        columns: ["users", "no control", "per-stage control", "rejected, %"]
            .map(str::to_owned)
            .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: LOADS.iter().enumerate().map(row).collect(),
        }],
    });
    report
        .tables
        .push(figure_9(&times, &|control, load| of(control, load)));
    let curve = |value: &dyn Fn(usize) -> Option<f64>| -> Vec<(f64, Option<f64>)> {
        LOADS
            .iter()
            .enumerate()
            .map(|(at, load)| (*load as f64, value(at)))
            .collect()
    };
    report.figures.push(Figure {
        title: "90th percentile response time (Figure 8)".to_owned(),
        x: Axis::new("users").log(),
        y: Axis::new("90th percentile response time, s").log(),
        series: (0..2)
            .map(|c| Series::new(labels[c], Style::Line, curve(&|at| overall(c, at))).coloured(c))
            .collect(),
        levels: vec![Level::new(TARGET_S as f64, "target")],
        ..Figure::default()
    });
    report.figures.push(Figure {
        title: "Rejections with per-stage control (Figure 8)".to_owned(),
        x: Axis::new("users").log(),
        y: Axis::new("rejected, %").between(0.0, 100.0),
        series: vec![Series::new(labels[1], Style::Line, curve(&|at| refused(1, at))).coloured(1)],
        ..Figure::default()
    });

    let target = TARGET_S as f64;
    let last = LOADS.len() - 1;
    let met = (0..LOADS.len()).filter(|at| overall(1, *at).is_some_and(|t| t <= NEAR * target));
    let met: Vec<u64> = met.map(|at| LOADS[at]).collect();
    let types = |control: usize, load: usize, kind: usize| {
        mean(of(control, load), |s| p90(&s.pages[kind], times.shown()))
    };
    let missed: Vec<&str> = (0..names().len())
        .filter(|kind| types(1, last, *kind).is_some_and(|t| t > NEAR * target))
        .map(|kind| names()[kind])
        .collect();
    report.claims = vec![
        claim(
            "without control response times grow without bound",
            "365 s for list folders at 1024 users",
            format!("{} for list folders", words(types(0, last, 1), 0, " s")),
            types(0, last, 1).is_some_and(|t| t > 10.0 * target),
        ),
        claim(
            "control keeps them far below that at 1024 users",
            "",
            format!(
                "{} against {}",
                words(overall(1, last), 1, " s"),
                words(overall(0, last), 1, " s")
            ),
            overall(1, last) < overall(0, last).map(|t| t / 2.0),
        ),
        claim(
            "control meets the target of 10 s at every load",
            "",
            format!("at {met:?} users"),
            met.len() == LOADS.len(),
        ),
        claim(
            "at 1024 users only search exceeds the target",
            "search",
            if missed.is_empty() {
                "none".to_owned()
            } else {
                missed.join(", ")
            },
            missed.iter().all(|name| *name == "search"),
        ),
        claim(
            "rejections grow with the load",
            "",
            words(refused(1, last), 0, "%"),
            refused(1, 1) < refused(1, 4) && refused(1, 4) < refused(1, last),
        ),
    ];
    report.notes.push(
        "Why the target is missed at high loads: the law adds up to 1.8 requests/s every second until \
         response times tell it to stop, and those tell of it as late as they are long. With a target of \
         10 s the queue is tens of seconds long by then, and the rate swings. With a target of 1 s (seda-fig10) \
         it does so ten times less."
            .to_owned(),
    );
    for (c, label) in labels.iter().enumerate() {
        for (at, load) in LOADS.iter().enumerate() {
            for (kind, name) in names()
                .iter()
                .enumerate()
                .map(|(k, n)| (Some(k), *n))
                .chain([(None, "ALL")])
            {
                let seen = |s: &Seen| match kind {
                    Some(kind) => s.pages[kind].clone(),
                    None => s.classes[0].clone(),
                };
                let row = Record::new()
                    .with("strategy", *label)
                    .with("users", *load as f64)
                    .with("type", name)
                    .with(
                        "rejected_pct",
                        mean(of(c, at), |s| seen(s).refused_pct(times.shown())),
                    )
                    .with(
                        "rt_p90_s",
                        mean(of(c, at), |s| p90(&seen(s), times.shown())),
                    );
                report.rows.push(row);
            }
        }
    }
    Ok(report)
}

/// Figure 9: by type, at 16 and at 1024 users.
fn figure_9<'a>(times: &Times, of: &dyn Fn(usize, usize) -> &'a [Seen]) -> Table {
    let place = |users: u64| {
        LOADS
            .iter()
            .position(|load| *load == users)
            .unwrap_or_default()
    };
    let (few, many) = (place(16), place(1_024));
    let row = |(kind, name): (usize, &str)| {
        let cell = |control: usize, load: usize, paper: f64| {
            Cell::Compared(Compared {
                ours: mean(of(control, load), |s| p90(&s.pages[kind], times.shown())),
                decimals: 2,
                expected: paper,
                printed: paper.to_string(),
                within: None,
            })
        };
        let [few_none, few_control, many_none, many_control] = FIGURE_9[kind];
        TableRow {
            label: name.to_owned(),
            cells: vec![
                cell(0, few, few_none),
                cell(1, few, few_control),
                cell(0, many, many_none),
                cell(1, many, many_control),
            ],
        }
    };
    Table {
        title: "90th percentile response time by type, s (Figure 9)".to_owned(),
        columns: [
            "type",
            "16, no control",
            "16, control",
            "1024, no control",
            "1024, control",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: names().into_iter().enumerate().map(row).collect(),
        }],
    }
}
