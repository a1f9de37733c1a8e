//! The stock trading database of Chronos §5.1 and its clients, a closed loop of 1200 threads.
//!
//! The paper gives the clients (1200 threads, 60% stock queries, inter-request times and the times
//! of their changes), the formulas of §3.1, the sampling period, S_t, and the number of data
//! accesses of FC-D in 900 s, 18.68 M. It gives neither the sizes in the formulas nor the capacity
//! of the database. These values are chosen here:
//!
//! - A stock query has 1 to 30 companies, a portfolio 1 to 119 items, and a row the size 1 (§3.1:
//!   "the row size is considered uniform"). The mean is 59 data accesses in a request.
//! - The database has 4 worker threads, which share two cores (the paper's laptop). The threads are
//!   the slots of Headgate's stage, whose queue is the ready queue. An access takes 83.5 µs, and
//!   12% more if all threads work. The 12% cover locks, aborts and cache misses together. The
//!   capacity is then 21,400 accesses/s, with which FC-D makes 18.7 M accesses. The 1200 threads
//!   demand 18,900 accesses/s at the low rate, and up to 236,000 in the burst.
//! - A refusal costs the work of one access, in which the server parses the request, looks up its
//!   size, and answers.
//! - The updates of stock quotes are part of the time of accesses.
//!
//! The paper explains its differences in *total* data (Figure 6) by contention that grows with the
//! number of waiting requests. The model lacks that contention, so a database that is always busy
//! makes equally many accesses under any policy.

use std::ops::Range;
use std::time::Duration;

use headgate_core::config::StageConfig;
use headgate_mesh::smoothing::Smoothing;
use headgate_simulator::backend::Cores;
use headgate_simulator::clients::ClosedLoop;
use headgate_simulator::clients::threads::{
    Habits, Phase, Sample, TRANSACTIONS, Threads as Clients,
};
use headgate_simulator::{Run, SimulationError, Until};
use headgate_strategies::strategy::TypeId;
use serde::Deserialize;

use super::Amount;
use crate::measured::{ALL, Measured, deviation, mean};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = SECOND / 1_000;
const COMPANIES: u32 = 30;
const PORTFOLIO: u32 = 119;
const CORES: u32 = 2;
/// The work of a data access, ns.
const ACCESS: f64 = 83_500.0;
/// σ, the contention, of [`Cores::new`].
const CONTENTION: f64 = 0.04;
/// The sampling period, ns.
const PERIOD: u64 = SECOND;
/// S_t, the target delay, ns.
const TARGET: u64 = 2 * SECOND;
/// S_v of Table 1, the largest delay that is allowed while the delay overshoots its target, s.
const OVERSHOOT_S: f64 = 2.5;

/// The parameters of a Chronos experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Threads {
    stage: StageConfig,
    threads: u32,
    /// The start of each phase, s, and the range of inter-request times in it, ms.
    phases: Vec<(u64, [u64; 2])>,
    /// t_a and t_b, the range of delays of FC-TS (§3.2), ms.
    smoothing: Option<[u64; 2]>,
    /// The length of the run, s.
    length: u64,
    /// The start of the results shown, s. The database starts earlier (§5.1).
    shown: u64,
    /// Whether to measure results over time, too.
    #[serde(default)]
    curves: bool,
}

impl Threads {
    pub(super) fn run(&self, amount: &Amount, seed: u64) -> Result<Measured, SimulationError> {
        let scaled = |seconds: u64| ((seconds as f64 * amount.part) as u64).max(1);
        let samples = self.samples(amount, seed)?;
        let mut measured = Measured::default();
        let (shown, end) = (scaled(self.shown) as usize, samples.len());
        let burst = self
            .phases
            .get(1)
            .map_or(end, |(from, _)| scaled(*from) as usize);
        // In the periods from `late` on, the control loop has settled.
        let late = burst + end.saturating_sub(burst) / 6;
        let mut note = |metric: &str, value: Option<f64>| measured.note(ALL, metric, value);
        note("delay_s", mean(delays(&samples, shown..end)));
        note("delay_low_s", mean(delays(&samples, shown..burst)));
        note("delay_burst_s", mean(delays(&samples, burst + 1..end)));
        note(
            "largest_s",
            delays(&samples, burst + 1..end).reduce(f64::max),
        );
        note(
            "longest_above_s",
            Some(longest_above(&samples, burst + 1..end, OVERSHOOT_S) as f64),
        );
        note(
            "deviation_s",
            deviation(&delays(&samples, late..end).collect::<Vec<_>>()),
        );
        let part = within(&samples, burst + 1..end);
        let refused: f64 = part.iter().map(|s| f64::from(s.refused)).sum();
        let served: f64 = part.iter().map(|s| f64::from(s.served)).sum();
        note(
            "rejected_pct",
            Some(100.0 * refused / (refused + served).max(1.0)),
        );
        let (data, timely) = samples
            .iter()
            .fold((0, 0), |(d, t), s| (d + s.data, t + s.timely));
        note("data", Some(data as f64));
        note("timely_data", Some(timely as f64));
        note(
            "timely_pct",
            Some(100.0 * timely as f64 / (data as f64).max(1.0)),
        );
        if self.curves {
            draw(&mut measured, &samples);
            measured.events = vec![(burst as f64, "burst begins".to_owned())];
        }
        Ok(measured)
    }

    /// Returns the measurements of the server's monitor, by period.
    pub(super) fn samples(
        &self,
        amount: &Amount,
        seed: u64,
    ) -> Result<Vec<Sample>, SimulationError> {
        let scaled =
            |seconds: u64| ((seconds as f64 * amount.part) as u64).max(u64::from(seconds > 0));
        let phase = |(from, [low, high]): &(u64, [u64; 2])| Phase {
            from: scaled(*from) * SECOND,
            think: (low * MS, high * MS),
        };
        let habits = Habits {
            threads: self.threads,
            phases: self.phases.iter().map(phase).collect(),
            smoothing: self.smoothing.map(|[least, most]| Smoothing {
                least: Duration::from_millis(least),
                most: Duration::from_millis(most),
            }),
            companies: COMPANIES,
            portfolio: PORTFOLIO,
            access: ACCESS,
        };
        let length = scaled(self.length);
        let kinds: Vec<TypeId> = (0..).take(TRANSACTIONS.len()).map(TypeId).collect();
        let mut clients = Clients::new(&habits, PERIOD, TARGET, seed);
        let starts = clients.starts();
        let mut clients = ClosedLoop::new(clients, starts);
        let run = Run {
            stage: &self.stage,
            kinds: &kinds,
            warm_up: Duration::ZERO,
            until: Until::Time(Duration::from_secs(length)),
            // The strategy and the clients must not share random numbers.
            seed: !seed,
        };
        let database = Cores::new(CORES, CONTENTION).refusing_at(ACCESS);
        run.with(&mut clients, database)?;
        let samples = clients.behaviour().samples();
        Ok(samples[..samples.len().min(length as usize)].to_vec())
    }
}

/// Adds the delay s(k) and its inputs over time to the curves. `headgate sysid` can read these
/// curves as a trace.
pub(super) fn draw(measured: &mut Measured, samples: &[Sample]) {
    let mut draw = |metric: &str, value: fn(&Sample) -> Option<f64>| {
        let points = (0_u32..).map(f64::from).zip(samples.iter().map(value));
        measured.draw(ALL, metric, points);
    };
    draw("delay_s", Sample::mean_delay);
    draw("backlog", |sample| Some(sample.backlog as f64));
    draw("served", |sample| Some(f64::from(sample.served)));
    draw("refused", |sample| Some(f64::from(sample.refused)));
}

/// Yields s(k) of the periods in which requests were served, s.
pub(super) fn delays(samples: &[Sample], periods: Range<usize>) -> impl Iterator<Item = f64> {
    within(samples, periods)
        .iter()
        .filter_map(Sample::mean_delay)
}

/// Returns the length of the longest run of consecutive periods, within a range, with s(k) above
/// `limit`.
pub(super) fn longest_above(samples: &[Sample], periods: Range<usize>, limit: f64) -> usize {
    let (mut longest, mut current) = (0, 0);
    for sample in within(samples, periods) {
        let above = sample.mean_delay().is_some_and(|delay| delay > limit);
        current = if above { current + 1 } else { 0 };
        longest = longest.max(current);
    }
    longest
}

fn within(samples: &[Sample], periods: Range<usize>) -> &[Sample] {
    let end = periods.end.min(samples.len());
    &samples[periods.start.min(end)..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overshoots_are_found() {
        let sample = |delay: f64| Sample {
            served: 1,
            delay,
            ..Sample::default()
        };
        let samples = [1.0, 3.0, 3.5, 2.6, 1.0, 2.7].map(sample);
        assert_eq!(longest_above(&samples, 0..6, 2.5), 3);
        assert_eq!(longest_above(&samples, 4..60, 2.5), 1);
        assert_eq!(delays(&samples, 0..6).reduce(f64::max), Some(3.5));
        assert_eq!(deviation(&[1.0, 3.0]), Some(1.0));
    }
}
