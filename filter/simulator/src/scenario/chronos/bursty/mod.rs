//! Figures 4 to 6: the five approaches of Table 2 under the bursty workload of §5.1.

mod delay;
mod throughput;
mod transient;

use super::measures::{Estimate, largest, mean_delay, refused_pct};
use super::model::{self, Approach, BURST_S, END_S, TARGET_S};
use crate::clients::threads::Sample;
use crate::parallel::in_parallel;
use crate::progress::Progress;
use crate::report::{Claim, Record, Report};
use crate::scenario::Size;
use crate::simulation::SimulationError;

pub(super) use delay::figure_4;
pub(super) use throughput::figure_6;
pub(super) use transient::figure_5;

/// Runs of each approach in the paper.
const SEEDS: u32 = 10;
/// What is shown begins here: before, the database starts (§5.1).
const SHOWN_S: u64 = 100;
/// S_t, s.
const TARGET: f64 = TARGET_S as f64;

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
        let mut all = in_parallel(size.threads, approaches.len() * seeds, |at| {
            let approach = approaches[at / seeds];
            let seed = size.first_seed().wrapping_add((at % seeds) as u64);
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
                size.first_seed()
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
        holds: Some(holds),
    }
}
