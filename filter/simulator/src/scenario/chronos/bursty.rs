//! Figures 4 to 6: the five approaches of Table 2 under the bursty workload of §5.1.

use super::measures::{Estimate, largest, longest_above, mean_delay, refused_pct};
use super::model::{self, Approach, BURST_S, END_S, TARGET_S};
use crate::clients::threads::Sample;
use crate::parallel;
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Claim, Compared, Figure, Group, Level, Record, Report, Series, Style, Table,
    TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;

/// Runs of each approach in the paper.
const SEEDS: u32 = 10;
/// What is shown begins here: before, the database starts (§5.1).
const SHOWN_S: u64 = 100;
/// S_v and T_v of Table 1.
const OVERSHOOT_S: f64 = 2.5;
const SETTLING_S: usize = 10;
/// A mean this far above S_t still holds it: 2%, as a loop has settled that is within 2%.
const HELD: f64 = 1.02;

/// Times of an experiment, s; shorter than the paper's where a smaller size was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    shown: u64,
    burst: u64,
    end: u64,
}

impl Times {
    fn of(size: &Size) -> Self {
        let part = super::part(size);
        let scaled = |seconds: u64| ((seconds as f64 * part) as u64).max(1);
        Self {
            shown: scaled(SHOWN_S),
            burst: scaled(BURST_S),
            end: scaled(END_S),
        }
    }

    fn low(self) -> std::ops::Range<usize> {
        self.shown as usize..self.burst as usize
    }

    fn high(self) -> std::ops::Range<usize> {
        self.burst as usize + 1..self.end as usize
    }

    fn all(self) -> std::ops::Range<usize> {
        self.shown as usize..self.end as usize
    }
}

/// Runs of all approaches.
pub(super) struct Runs {
    times: Times,
    /// By approach, then by seed.
    runs: Vec<Vec<Vec<Sample>>>,
}

impl Runs {
    pub(super) fn make(size: &Size, progress: &dyn Progress) -> Result<Self, SimulationError> {
        let times = Times::of(size);
        let seeds = size.seeds.unwrap_or(SEEDS).max(1) as usize;
        let approaches = Approach::ALL;
        progress.expect((approaches.len() * seeds) as u64 * times.end);
        let mut all = parallel::map(approaches.len() * seeds, size.threads, |at| {
            let approach = approaches[at / seeds];
            let seed = size.seed.wrapping_add((at % seeds) as u64);
            let habits = model::bursty(approach, times.burst);
            let (samples, _) = model::run(approach, &habits, times.end, seed)?;
            progress.done(times.end);
            Ok(samples)
        })?;
        let mut runs = Vec::new();
        while !all.is_empty() {
            let rest = all.split_off(seeds.min(all.len()));
            runs.push(std::mem::replace(&mut all, rest));
        }
        Ok(Self { times, runs })
    }

    fn of(&self, approach: Approach) -> &[Vec<Sample>] {
        let at = Approach::ALL.iter().position(|a| *a == approach);
        at.and_then(|at| self.runs.get(at))
            .map_or(&[], Vec::as_slice)
    }

    fn estimate(&self, approach: Approach, value: impl Fn(&[Sample]) -> f64) -> Estimate {
        let values: Vec<f64> = self.of(approach).iter().map(|run| value(run)).collect();
        Estimate::of(&values)
    }

    fn setup(&self, report: &mut Report, size: &Size) {
        let Times { shown, burst, end } = self.times;
        report.setup("clients", "1200, closed loop; 60% stock queries");
        report.setup(
            "inter-request time",
            format!("3.5 to 4 s; from {burst} s on 0.1 to 0.5 s, until {end} s"),
        );
        report.setup("S_t, sampling period", "2 s, 1 s");
        report.setup("shown", format!("from {shown} s on"));
        report.setup(
            "runs",
            format!(
                "{} of each approach, seeds from {}",
                self.of(Approach::Open).len(),
                size.seed
            ),
        );
    }

    /// Rows for programs: one for each approach.
    fn rows(&self) -> Vec<Record> {
        let times = self.times;
        let row = |approach: Approach| {
            let all = self.estimate(approach, |run| mean_delay(run, times.all()));
            let data = |of: fn(&Sample) -> u64| {
                let sum = |run: &[Sample]| run.iter().map(of).sum::<u64>() as f64;
                self.estimate(approach, sum).mean
            };
            let high = |value: &dyn Fn(&[Sample]) -> f64| self.estimate(approach, value).mean;
            Record::new()
                .with("strategy", approach.name())
                .with("delay_s", Some(all.mean))
                .with("delay_ci90_s", all.half)
                .with(
                    "delay_low_s",
                    Some(high(&|run| mean_delay(run, times.low()))),
                )
                .with(
                    "delay_burst_s",
                    Some(high(&|run| mean_delay(run, times.high()))),
                )
                .with("largest_s", Some(high(&|run| largest(run, times.high()).0)))
                .with(
                    "rejected_pct",
                    Some(high(&|run| refused_pct(run, times.high()))),
                )
                .with("data", Some(data(|s| s.data)))
                .with("timely_data", Some(data(|s| s.timely)))
        };
        Approach::ALL.into_iter().map(row).collect()
    }
}

fn claim(text: &str, paper: &str, ours: String, holds: bool) -> Claim {
    Claim {
        text: text.to_owned(),
        paper: paper.to_owned(),
        ours,
        holds,
    }
}

/// Figure 4. The paper's numbers of the baselines are what "reduces the average delay by 109%, 75%, 61%"
/// makes of FC-D's 1.52 s.
pub(super) fn figure_4(runs: &Runs, size: &Size, mut report: Report) -> Report {
    let times = runs.times;
    let paper = |approach: Approach| match approach {
        Approach::Open => (3.18, "3.18"),
        Approach::Ac => (2.66, "2.66"),
        Approach::FcQ => (2.45, "2.45"),
        Approach::FcD => (1.52, "1.52 ± 0.07"),
        Approach::FcTs => (1.24, "1.24 ± 0.03"),
    };
    let delay = |approach: Approach, periods: std::ops::Range<usize>| {
        runs.estimate(approach, |run| mean_delay(run, periods.clone()))
    };
    let row = |approach: Approach| {
        let (expected, printed) = paper(approach);
        let all = delay(approach, times.all());
        TableRow {
            label: approach.name().to_owned(),
            cells: vec![
                Cell::Text(delay(approach, times.low()).show(2)),
                Cell::Text(delay(approach, times.high()).show(2)),
                Cell::Text(all.show(2)),
                Cell::Compared(Compared {
                    ours: Some(all.mean),
                    decimals: 2,
                    expected,
                    printed: printed.to_owned(),
                    within: None,
                }),
            ],
        }
    };
    runs.setup(&mut report, size);
    report.tables.push(Table {
        title: "Average service delay, s, with 90% confidence intervals".to_owned(),
        columns: [
            "approach",
            "before the burst",
            "in the burst",
            "all",
            "against the paper",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: Approach::ALL.into_iter().map(row).collect(),
        }],
    });
    let mut bars = Figure {
        title: "Average service delay (Figure 4)".to_owned(),
        x: Axis::new("approach: Open, AC, FC-Q, FC-D, FC-TS").between(0.5, 5.5),
        y: Axis::new("service delay, s"),
        levels: vec![Level::new(TARGET_S as f64, "S_t")],
        ..Figure::default()
    };
    let places = || (1..).map(f64::from).zip(Approach::ALL);
    let ours = places().map(|(x, a)| (x, Some(delay(a, times.all()).mean)));
    let printed = places().map(|(x, a)| (x, Some(paper(a).0)));
    bars.series
        .push(Series::new("ours", Style::Points, ours).coloured(0));
    bars.series
        .push(Series::new("paper", Style::Paper, printed).coloured(0));
    report.figures.push(bars);

    let target = TARGET_S as f64;
    let high = |approach: Approach| delay(approach, times.high());
    let worst = Approach::ALL
        .map(|approach| delay(approach, times.low()).mean)
        .into_iter()
        .fold(0.0, f64::max);
    report.claims = vec![
        claim(
            "before the burst all approaches keep to S_t = 2 s",
            "",
            format!("at most {worst:.2} s"),
            worst <= target,
        ),
        claim(
            "in the burst Open and AC miss S_t",
            "",
            format!(
                "{:.2} s and {:.2} s",
                high(Approach::Open).mean,
                high(Approach::Ac).mean
            ),
            high(Approach::Open).mean > target && high(Approach::Ac).mean > target,
        ),
        claim(
            "in the burst FC-D and FC-TS keep to S_t (within 2%)",
            "",
            format!(
                "{:.2} s and {:.2} s",
                high(Approach::FcD).mean,
                high(Approach::FcTs).mean
            ),
            high(Approach::FcD).mean <= HELD * target && high(Approach::FcTs).mean <= HELD * target,
        ),
        claim(
            "FC-D's average",
            "1.52 ± 0.07 s",
            format!("{} s", delay(Approach::FcD, times.all()).show(2)),
            (delay(Approach::FcD, times.all()).mean - 1.52).abs() <= 0.1,
        ),
        claim(
            "FC-Q misses S_t in the burst",
            "",
            format!("{:.2} s", high(Approach::FcQ).mean),
            high(Approach::FcQ).mean > target,
        ),
        claim(
            "FC-TS is below FC-D",
            "1.24 s, 1.52 s",
            format!(
                "{:.2} s, {:.2} s",
                delay(Approach::FcTs, times.all()).mean,
                delay(Approach::FcD, times.all()).mean
            ),
            delay(Approach::FcTs, times.all()).mean < delay(Approach::FcD, times.all()).mean,
        ),
    ];
    report.notes.push(
        "A loop that holds 2 s for the 600 s of the burst and has next to no delay in the 200 s before it \
         averages 1.5 s: that is the paper's number for FC-D."
            .to_owned(),
    );
    report.notes.push(
        "FC-Q is better here than in the paper, whose FC-Q was tuned for another load: its gains come from \
         measurements, as FC-D's do. What is left of the difference is in Figure 5."
            .to_owned(),
    );
    report.notes.push(
        "FC-TS: the delay that clients add counts. Its gain in the paper comes from contention that falls \
         with the load; this model has none outside of the workers."
            .to_owned(),
    );
    report.rows = runs.rows();
    report
}

/// Figure 5.
pub(super) fn figure_5(runs: &Runs, size: &Size, mut report: Report) -> Report {
    let times = runs.times;
    runs.setup(&mut report, size);
    let first = |approach: Approach| runs.of(approach).first().map_or(&[][..], Vec::as_slice);
    let mut figure = Figure {
        title: "Transient service delay (Figure 5), first run".to_owned(),
        x: Axis::new("time, s"),
        y: Axis::new("service delay, s"),
        levels: vec![
            Level::new(TARGET_S as f64, "S_t"),
            Level::new(OVERSHOOT_S, "S_v"),
        ],
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

/// Figure 6.
pub(super) fn figure_6(runs: &Runs, size: &Size, mut report: Report) -> Report {
    runs.setup(&mut report, size);
    let total = |approach| {
        let sum = |run: &[Sample]| run.iter().map(|s| s.data).sum::<u64>() as f64;
        runs.estimate(approach, sum).mean
    };
    let timely = |approach| {
        let sum = |run: &[Sample]| run.iter().map(|s| s.timely).sum::<u64>() as f64;
        runs.estimate(approach, sum).mean
    };
    let all = total(Approach::FcD).max(1.0);
    let in_time = timely(Approach::FcD).max(1.0);
    let printed = |approach: Approach| match approach {
        Approach::FcD => ("1", "1", "18.68 M"),
        Approach::FcTs => ("1.37", "1.35", "25.18 M"),
        _ => ("0.65 to 0.88", "0.68 to 0.92", ""),
    };
    let row = |approach: Approach| {
        let (paper_timely, paper_total, paper_data) = printed(approach);
        TableRow {
            label: approach.name().to_owned(),
            cells: vec![
                Cell::Number(timely(approach) / in_time, 2),
                Cell::Text(paper_timely.to_owned()),
                Cell::Number(total(approach) / all, 2),
                Cell::Text(paper_total.to_owned()),
                Cell::Text(format!("{:.2} M", total(approach) / 1e6)),
                Cell::Text(paper_data.to_owned()),
                Cell::Number(100.0 * timely(approach) / total(approach).max(1.0), 0),
            ],
        }
    };
    report.tables.push(Table {
        title: "Data accesses, normalised to FC-D".to_owned(),
        columns: [
            "approach",
            "timely",
            "paper",
            "total",
            "paper",
            "accesses",
            "paper",
            "timely, %",
        ]
        .map(str::to_owned)
        .to_vec(),
        groups: vec![Group {
            title: String::new(),
            rows: Approach::ALL.into_iter().map(row).collect(),
        }],
    });
    let places = || (1..).map(f64::from).zip(Approach::ALL);
    report.figures.push(Figure {
        title: "Normalised data accesses (Figure 6)".to_owned(),
        x: Axis::new("approach: Open, AC, FC-Q, FC-D, FC-TS").between(0.5, 5.5),
        y: Axis::new("data accesses, FC-D = 1"),
        series: vec![
            Series::new(
                "timely",
                Style::Points,
                places().map(|(x, a)| (x, Some(timely(a) / in_time))),
            ),
            Series::new(
                "total",
                Style::Points,
                places().map(|(x, a)| (x, Some(total(a) / all))),
            ),
        ],
        ..Figure::default()
    });
    let least = |value: &dyn Fn(Approach) -> f64| {
        let baselines = [Approach::Open, Approach::Ac, Approach::FcQ];
        let gains = baselines.map(|a| 100.0 * (1.0 / value(a).max(1e-9) - 1.0));
        (
            gains.iter().copied().fold(f64::MAX, f64::min),
            gains.iter().copied().fold(f64::MIN, f64::max),
        )
    };
    let (low, high) = least(&|a| timely(a) / in_time);
    let (total_low, total_high) = least(&|a| total(a) / all);
    report.claims = vec![
        claim(
            "FC-D makes more timely accesses than Open and AC",
            "up to 53% more",
            format!(
                "{:.0}% and {:.0}% more",
                100.0 * (in_time / timely(Approach::Open).max(1.0) - 1.0),
                100.0 * (in_time / timely(Approach::Ac).max(1.0) - 1.0)
            ),
            in_time > 1.14 * timely(Approach::Open).max(timely(Approach::Ac)),
        ),
        claim(
            "and than FC-Q",
            "at least 14% more than any",
            format!("{low:.0}% to {high:.0}% more than the three"),
            low >= 14.0,
        ),
        claim(
            "FC-D makes more accesses in all",
            "9% to 48% more",
            format!("{total_low:.0}% to {total_high:.0}% more"),
            total_low >= 9.0,
        ),
        claim(
            "FC-D's accesses in 900 s",
            "18.68 M",
            format!("{:.2} M", all / 1e6),
            (all / 18.68e6 - 1.0).abs() < 0.1,
        ),
    ];
    report.notes.push(
        "The database of this model is busy all the time under every approach, so their totals are alike; \
         the paper's differ by contention that grows with what was let in."
            .to_owned(),
    );
    report.rows = runs.rows();
    report
}
