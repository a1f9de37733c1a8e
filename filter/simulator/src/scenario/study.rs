//! What can be run by name.

use std::num::NonZeroUsize;

use crate::progress::Progress;
use crate::report::Report;
use crate::simulation::SimulationError;

/// An experiment that can be run by its name.
pub trait Study: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;

    /// One line: the paper and the caption.
    fn title(&self) -> &str;

    /// Runs it. The same `size`, whatever its `threads`, gives the same report.
    ///
    /// # Errors
    /// [`SimulationError`].
    fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError>;
}

/// How much to simulate. What is `None` is as large as in the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// Requests of each run that count.
    pub requests: Option<u64>,
    /// Runs of each experiment, each with a seed of its own.
    pub seeds: Option<u32>,
    /// The first seed, 1 where nobody says; the next ones follow.
    pub seed: Option<u64>,
    /// Threads; all cores by default.
    pub threads: Option<NonZeroUsize>,
}

impl Size {
    /// The part of the paper's times that this asks for, if a run there sends about `full` requests: at least `least`.
    pub(super) fn part(&self, full: f64, least: f64) -> f64 {
        let asked = self.requests.map_or(1.0, |requests| requests as f64 / full);
        asked.clamp(least, 1.0)
    }

    /// The seed of the first run.
    pub(crate) fn first_seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }
}
