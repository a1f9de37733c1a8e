//! A flash crowd: 3 users, then suddenly 1000 (Figure 10).

use super::service::{self, names, users};
use super::stage::{Control, stage};
use super::trial::{Seen, Service, Trial, run};
use super::{claim, intervals, mean, scaled, stays, words};
use crate::clients::users::{Habits, Stay};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Level, Record, Report, Series, Style, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;

/// Users before and after the spike, and in it.
const FEW: u64 = 3;
const MANY: u64 = 1_000;
/// The figure's spike begins after 20 intervals of 5 s, and takes 60, s.
const BEGIN_S: u64 = 100;
const END_S: u64 = 400;
/// Time in which the crowd arrives, s: up to 16 machines start their users one after the other (§4.1).
const ARRIVAL_S: u64 = 60;
/// s.
const LENGTH_S: u64 = 600;
/// §4.4: "a 90th-percentile response time target of 1 second".
const TARGET_S: u64 = 1;
/// The limit of the server that the controller is compared with.
const CONNECTIONS: u32 = 128;

/// Times of a spike, s.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spike {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) length: u64,
}

impl Spike {
    pub(super) fn of(size: &Size) -> Self {
        Self {
            begin: scaled(size, BEGIN_S),
            end: scaled(size, END_S),
            length: scaled(size, LENGTH_S),
        }
    }

    /// Those who are always there, and those of the spike.
    pub(super) fn stays(self) -> Vec<Stay> {
        let mut all = stays(FEW, 0, 0, 1, u64::MAX);
        all.extend(stays(
            MANY - FEW,
            0,
            self.begin,
            ARRIVAL_S.min(self.end - self.begin),
            self.end,
        ));
        all
    }

    /// Intervals of the spike but its first two fifths, in which the crowd arrives and those are served who
    /// came in before the controller had an answer.
    pub(super) fn settled(self) -> std::ops::Range<usize> {
        intervals(self.begin + 2 * (self.end - self.begin) / 5, self.end)
    }

    pub(super) fn during(self) -> std::ops::Range<usize> {
        intervals(self.begin, self.end)
    }

    pub(super) fn setup(self, report: &mut Report) {
        report.setup(
            "users",
            format!("{FEW}; {MANY} from {} s to {} s", self.begin, self.end),
        );
    }

    pub(super) fn events(self) -> Vec<Level> {
        vec![
            Level::new(self.begin as f64, "load spike"),
            Level::new(self.end as f64, "spike ends"),
        ]
    }
}

pub(super) fn figure_10(
    size: &Size,
    progress: &dyn Progress,
    mut report: Report,
) -> Result<Report, SimulationError> {
    let spike = Spike::of(size);
    let labels = ["no control", "overload control", "128 connections"];
    let plain = users()?;
    let limited = Habits {
        connections: Some(CONNECTIONS),
        ..plain.clone()
    };
    let trial = |control: Control, habits: &Habits| Trial {
        service: Service::Arashi,
        stage: stage(&names(), 1, control),
        habits: habits.clone(),
        stays: spike.stays(),
        length: spike.length,
    };
    let trials = [
        trial(Control::None, &plain),
        trial(Control::PerStage(TARGET_S), &plain),
        trial(Control::None, &limited),
    ];
    report.setup("service", service::ARASHI_IN_WORDS);
    spike.setup(&mut report);
    report.setup("target", format!("90th percentile {TARGET_S} s"));
    let runs = run(&trials, size, 1, progress)?;
    let p90 = |which: usize, shown: std::ops::Range<usize>| {
        mean(&runs[which], |s| {
            s.classes[0].response_time(shown.clone(), 0.9)
        })
    };
    let refused = mean(&runs[1], |s| s.classes[0].refused_pct(spike.during())).unwrap_or_default();
    let timed_out = mean(&runs[2], |s| Some(s.timed_out as f64));

    let first = |which: usize| runs[which].first();
    let count = (spike.length / super::INTERVAL_S) as usize;
    let curve = |which: usize| {
        let seen =
            first(which).map(|s: &Seen| s.classes[0].curve(count, |a, i| a.response_time(i, 0.9)));
        seen.unwrap_or_default()
    };
    report.figures.push(Figure {
        title: "90th percentile response time (Figure 10)".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("90th percentile response time, s").log(),
        series: (0..3)
            .map(|w| Series::new(labels[w], Style::Line, curve(w)).coloured(w))
            .collect(),
        levels: vec![Level::new(TARGET_S as f64, "target")],
        events: spike.events(),
        ..Figure::default()
    });
    let rejections = first(1).map(|s| s.classes[0].curve(count, |a, i| a.refused_pct(i)));
    report.figures.push(Figure {
        title: "Rejections with overload control (Figure 10)".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("rejected, %").between(0.0, 100.0),
        series: vec![
            Series::new(labels[1], Style::Line, rejections.unwrap_or_default()).coloured(1),
        ],
        events: spike.events(),
        ..Figure::default()
    });
    let row = |which: usize| TableRow {
        label: labels[which].to_owned(),
        cells: vec![
            Cell::number(p90(which, spike.during()), 2),
            Cell::number(p90(which, spike.settled()), 2),
            Cell::number(
                mean(&runs[which], |s| s.classes[0].refused_pct(spike.during())),
                1,
            ),
            Cell::number(mean(&runs[which], |s| Some(s.timed_out as f64)), 0),
        ],
    };
    report.tables.push(Table {
        title: "During the spike".to_owned(),
        columns: [
            "",
            "90th percentile, s",
            "without its first two fifths, s",
            "rejected, %",
            "users whose connections timed out",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: (0..3).map(row).collect(),
        }],
    });
    let (none, with, limited) = (
        p90(0, spike.settled()),
        p90(1, spike.settled()),
        p90(2, spike.settled()),
    );
    report.claims = vec![
        claim(
            "without control response times grow enormously",
            "",
            words(none, 1, " s"),
            none.is_some_and(|t| t > 20.0 * TARGET_S as f64),
        ),
        claim(
            "with control they quickly stabilize and stay low, within the spikes of Figure 7",
            "4 s",
            words(with, 1, " s"),
            with.is_some_and(|t| t <= 4.0 * TARGET_S as f64) && with < none.map(|t| t / 10.0),
        ),
        claim(
            "with control about 70 to 80% of the requests are rejected during the spike",
            "70 to 80%",
            format!("{refused:.0}%"),
            (65.0..=85.0).contains(&refused),
        ),
        claim(
            "a limit of 128 connections leads to large response times",
            "",
            words(limited, 1, " s"),
            limited > with.map(|t| 5.0 * t),
        ),
        claim(
            "with that limit most of the 1000 users see a connection time out",
            "561",
            words(timed_out, 0, ""),
            timed_out.is_some_and(|users| users > 300.0),
        ),
    ];
    report.notes.push(
        "The first minute: rates start at 2000 requests/s (Figure 4) and fall by 1.2 a run, so the controller \
         needs some 30 s until it refuses anybody, and the crowd that came in by then is a minute's work. The \
         paper's figure shows no such rise; its rates must have started lower, which the text doesn't say."
            .to_owned(),
    );
    let seeds = runs[1].len();
    report.setup(
        "runs",
        format!(
            "{seeds} of each, seeds from {}; figures show the first",
            size.first_seed()
        ),
    );
    for (which, label) in labels.iter().enumerate() {
        let Some(seen) = first(which) else { continue };
        let times = curve(which);
        let rejected = seen.classes[0].curve(count, |a, i| a.refused_pct(i));
        for ((time, p90), (_, refused)) in times.into_iter().zip(rejected) {
            let row = Record::new()
                .with("strategy", *label)
                .with("time_s", time)
                .with("rt_p90_s", p90)
                .with("rejected_pct", refused);
            report.rows.push(row);
        }
    }
    Ok(report)
}
