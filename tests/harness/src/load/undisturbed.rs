//! Repeats runs that the machine disturbed, as shown by the harness's own lateness.
//!
//! When other programs take the processors, requests leave late and services end late. A
//! percentile, a ratio or a goodput of such a run describes the machine rather than the subject of
//! the measurement. A wider bound on the results would hide real faults as well. So a run with a
//! late harness is repeated, whatever its results, and the bound stays the same. If the machine
//! disturbs every run, the error is [`TooBusy`], not a missed bound.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::record::Sample;
use super::report::LoadReport;
use crate::backend::BackendStats;
use crate::quantiles::{Durations, Quantiles};

/// The number of runs after which the machine counts as too busy.
const TRIES: usize = 6;

/// Ratio of an objective by which the harness may be late at its own 99th percentile, 0..=1. When
/// other programs take all processors, the mean is about a seventh of that percentile, so means,
/// medians and 90th percentiles of response times change by a few percent of the objective.
const SHARE_OF_OBJECTIVE: f64 = 0.2;

/// Returns the accepted lateness of the harness for measurements against `objective`, a response
/// time or service time.
pub fn tolerable(objective: Duration) -> Duration {
    objective.mul_f64(SHARE_OF_OBJECTIVE)
}

/// The lateness of the harness itself during a run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Lateness {
    /// 99th percentile of the delay of requests after they fell due, ms. 0 without a load
    /// generator.
    pub generator_ms: f64,
    /// 99th percentile of the delay of the ends of services after their time, ms. 0 without a
    /// backend.
    pub backend_ms: f64,
}

impl Lateness {
    /// Returns the lateness that a load and its backend report.
    pub fn of(report: &LoadReport, backend: &BackendStats) -> Self {
        Self {
            generator_ms: report.lateness_ms.p99,
            backend_ms: backend.late_ms.p99,
        }
    }

    /// Returns the lateness that a backend reports, for tests that send requests one by one.
    pub fn of_backend(backend: &BackendStats) -> Self {
        Self {
            generator_ms: 0.0,
            backend_ms: backend.late_ms.p99,
        }
    }

    fn within(&self, bound: Duration) -> bool {
        self.generator_ms.max(self.backend_ms) <= bound.as_secs_f64() * 1e3
    }
}

/// Returns the delay of these requests after they fell due.
pub fn lateness<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Quantiles {
    let mut late = Durations::new();
    for sample in samples {
        late.record(sample.late);
    }
    late.summary()
}

/// Pauses between requests that a test sends one by one, with the delay of the ends of the pauses.
#[derive(Debug, Default)]
pub struct Pauses {
    late: Durations,
}

impl Pauses {
    /// Sleeps for `time`.
    pub fn pause(&mut self, time: Duration) {
        let started = Instant::now();
        std::thread::sleep(time);
        self.late.record(started.elapsed().saturating_sub(time));
    }

    /// Returns the lateness that the pauses caused.
    pub fn lateness(&self) -> Lateness {
        Lateness {
            generator_ms: self.late.quantile_ms(0.99),
            backend_ms: 0.0,
        }
    }
}

/// A discarded run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Discarded {
    /// The lateness for which the run was discarded.
    pub lateness: Lateness,
    /// The use of the processors during the run, if the system reports it.
    pub processors: Option<Processors>,
}

impl fmt::Display for Discarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lateness {
            generator_ms,
            backend_ms,
        } = self.lateness;
        write!(
            f,
            "the load generator was {generator_ms:.1} ms late and the backend {backend_ms:.1} ms \
             (p99)"
        )?;
        match self.processors {
            Some(Processors { busy, stolen }) => write!(
                f,
                ", processors {:.0}% busy, {:.0}% taken by other machines",
                100.0 * busy,
                100.0 * stolen
            ),
            None => Ok(()),
        }
    }
}

/// The error that the machine disturbed every run.
#[derive(Debug)]
pub struct TooBusy {
    /// The largest accepted lateness of the harness.
    pub bound: Duration,
    /// All runs, which were discarded.
    pub discarded: Vec<Discarded>,
}

impl fmt::Display for TooBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the machine is too busy to measure: in each of {} runs the harness was more than \
             {:.1} ms late",
            self.discarded.len(),
            self.bound.as_secs_f64() * 1e3
        )?;
        for (index, run) in self.discarded.iter().enumerate() {
            write!(f, "; run {}: {run}", index + 1)?;
        }
        Ok(())
    }
}

impl std::error::Error for TooBusy {}

/// Calls `run` until its harness is late by no more than `bound`. Each call gets the discarded runs
/// before it. They are also printed on standard error.
///
/// # Errors
/// [`TooBusy`] after several disturbed runs, or the first error of `run`.
pub fn undisturbed<T>(
    bound: Duration,
    mut run: impl FnMut(&[Discarded]) -> Result<(T, Lateness)>,
) -> Result<T> {
    let mut discarded = Vec::new();
    while discarded.len() < TRIES {
        let before = Ticks::now();
        let (result, lateness) = run(&discarded)?;
        if lateness.within(bound) {
            return Ok(result);
        }
        let processors = before.zip(Ticks::now()).and_then(|(a, b)| b.since(&a));
        let this = Discarded {
            lateness,
            processors,
        };
        eprintln!("    run {} discarded: {this}", discarded.len() + 1);
        discarded.push(this);
    }
    Err(TooBusy { bound, discarded }.into())
}

/// The use of all processors over some time, ratios 0..=1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Processors {
    /// Ratio of the time in which the processors ran anything, or would have without other virtual
    /// machines.
    pub busy: f64,
    /// Ratio of the time that other virtual machines took.
    pub stolen: f64,
}

/// The first line of `/proc/stat`, in ticks since the system started.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ticks {
    total: u64,
    idle: u64,
    stolen: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses `cpu user nice system idle iowait irq softirq steal …`. The fields after `steal` are
    /// also counted in earlier fields, so they are left out.
    fn parse(text: &str) -> Option<Self> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = numbers
            .split_whitespace()
            .take(8)
            .map_while(|n| n.parse().ok())
            .collect();
        let &[_, _, _, idle, waiting, _, _, stolen] = ticks.as_slice() else {
            return None;
        };
        Some(Self {
            total: ticks.iter().sum(),
            idle: idle + waiting,
            stolen,
        })
    }

    fn since(&self, earlier: &Self) -> Option<Processors> {
        let total = self.total.checked_sub(earlier.total).filter(|t| *t > 0)? as f64;
        Some(Processors {
            busy: 1.0 - self.idle.saturating_sub(earlier.idle) as f64 / total,
            stolen: self.stolen.saturating_sub(earlier.stolen) as f64 / total,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_millis(5);

    fn late(generator_ms: f64, backend_ms: f64) -> Lateness {
        Lateness {
            generator_ms,
            backend_ms,
        }
    }

    #[test]
    fn a_disturbed_run_is_repeated_and_reported_to_the_next_one() {
        let runs = [
            late(5.1, 0.1),
            late(0.1, 90.0),
            late(5.0, 5.0),
            late(0.0, 0.0),
        ];
        let mut next = runs.iter().zip(1..);
        let mut told = 0;
        let result = undisturbed(BOUND, |discarded| {
            told = discarded.len();
            let (&lateness, number) = next.next().unwrap();
            Ok((number, lateness))
        });
        assert_eq!((result.unwrap(), told), (3, 2));
    }

    #[test]
    fn a_machine_that_always_disturbs_is_too_busy_which_is_no_missed_bound() {
        let mut runs = 0;
        let result = undisturbed(BOUND, |_| {
            runs += 1;
            Ok(((), late(7.3, 1.0)))
        });
        let error = result.unwrap_err();
        assert_eq!(runs, TRIES);
        assert_eq!(
            error.downcast_ref::<TooBusy>().unwrap().discarded.len(),
            TRIES
        );
        let said = error.to_string();
        assert!(
            said.contains("too busy") && said.contains("5.0 ms") && said.contains("7.3 ms"),
            "{said}"
        );
    }

    #[test]
    fn a_run_that_fails_is_not_repeated() {
        let mut runs = 0;
        let result: Result<()> = undisturbed(BOUND, |_| {
            runs += 1;
            anyhow::bail!("no Envoy")
        });
        let error = result.unwrap_err();
        assert_eq!((runs, error.to_string().as_str()), (1, "no Envoy"));
    }

    #[test]
    fn processors_are_busy_when_neither_idle_nor_waiting() {
        let at = |line: &str| Ticks::parse(line).unwrap();
        let before = at("cpu  100 0 50 800 40 0 10 0 7 7\ncpu0 1 2 3 4 5 6 7 8\n");
        let after = at("cpu  130 10 60 840 50 0 10 100 9 9\n");
        let shares = after.since(&before).unwrap();
        assert!((shares.busy - 0.75).abs() < 1e-9, "{shares:?}");
        assert!((shares.stolen - 0.5).abs() < 1e-9, "{shares:?}");
        assert_eq!(before.since(&before), None);
        assert_eq!(Ticks::parse("cpu 1 2 3"), None);
    }
}
