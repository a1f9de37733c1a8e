//! A running load, with its progress, and the backend's counts over the counted span.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::run::Progress;
use crate::backend::{Backend, BackendStats};
use crate::load::{self, LoadReport, LoadSpec, Running, Sample};

/// The interval of progress reports.
const REPORT: Duration = Duration::from_millis(200);

/// An observed load.
pub(super) struct Watch<'a> {
    running: Running,
    started: Instant,
    backend: &'a Backend,
    /// The start of the counted span, after the start of the load.
    from: Duration,
    before: Option<BackendStats>,
    after: Option<BackendStats>,
    /// The largest number of requests in the backend before the counted span, and the largest
    /// number in the span.
    most: (usize, usize),
}

/// The results of an observed load.
pub(super) struct Watched {
    pub(super) samples: Vec<Sample>,
    /// Share of the backend's slots in use in the counted span, ratio 0..=1.
    pub(super) utilization: f64,
    /// The largest number of requests in the backend before the counted span, and the largest
    /// number in the span.
    pub(super) most: (usize, usize),
    /// The backend's counts over the whole load.
    pub(super) backend: BackendStats,
}

impl<'a> Watch<'a> {
    /// Starts a load whose counted span begins at `from`.
    pub(super) fn start(spec: LoadSpec, backend: &'a Backend, from: Duration) -> Result<Self> {
        let running = load::start(spec)?;
        Ok(Self {
            running,
            started: Instant::now(),
            backend,
            from,
            before: None,
            after: None,
            most: (0, 0),
        })
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until the load has run for `end`, and reports progress. The counted span ends when the
    /// first call returns.
    pub(super) fn until(&mut self, end: Duration, progress: &mut dyn Progress) -> Result<()> {
        let begun = self.now();
        while self.now() < end {
            if self.before.is_none() && self.now() >= self.from {
                self.before = Some(self.backend.stats());
                self.most.0 = self.backend.take_peak_in_flight();
            }
            if self.running.is_finished() && self.now() + Duration::from_secs(1) < end {
                bail!("the load ended early");
            }
            let left = end.saturating_sub(self.now());
            std::thread::sleep(left.min(REPORT));
            progress.tick(self.now() - begun, &at_the_moment(&self.running.snapshot()));
        }
        if self.after.is_none() {
            self.after = Some(self.backend.stats());
            self.most.1 = self.backend.take_peak_in_flight();
        }
        Ok(())
    }

    /// Waits for the last answers.
    pub(super) fn finish(self) -> Result<Watched> {
        let (_, samples) = self.running.wait_with_samples()?;
        let (Some(before), Some(after)) = (self.before, self.after) else {
            bail!("the load was too short to count anything");
        };
        Ok(Watched {
            samples,
            utilization: after.utilization_since(&before),
            most: self.most,
            backend: self.backend.stats(),
        })
    }
}

/// Describes the last half second that is complete. The current bin and the one before would be
/// misleading, because their answers are still arriving.
fn at_the_moment(report: &LoadReport) -> String {
    let settled = report.total.series.len().saturating_sub(2);
    let Some(bin) = report.total.series[..settled].last() else {
        return String::new();
    };
    let per_second = |count: u64| count as f64 / report.bin_seconds;
    format!(
        "{:>5.0} offered/s  {:>5.0} answered/s  {:>5.0} refused/s  p90 {:>6.0} ms",
        per_second(bin.offered),
        per_second(bin.ok),
        per_second(bin.refused),
        bin.p90_ms
    )
}
