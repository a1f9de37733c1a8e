//! The size of a simulation.

use std::num::NonZeroUsize;

use serde::Deserialize;

use crate::parallel::in_parallel;
use crate::simulation::SimulationError;

/// The size of a simulation. Fields that are `None` have the value of the plan or the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// Requests of each run that count in its results.
    pub requests: Option<u64>,
    /// The number of runs of each case. Each run has its own seed.
    pub seeds: Option<u32>,
    /// The seed of a case's first run, 1 by default. Each further run has the next seed.
    pub seed: Option<u64>,
    /// The number of threads; all cores by default.
    pub threads: Option<NonZeroUsize>,
}

impl Size {
    /// Returns the seed of the first run.
    pub fn first_seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Runs each of `cases` cases once for each seed, on several threads. Returns the results by
    /// case, then by seed. `seeds` is the default number of seeds. The results don't depend on the
    /// number of threads.
    ///
    /// # Errors
    /// The error of the first failed run, in the order of cases and seeds.
    pub fn runs<T: Send>(
        &self,
        seeds: u32,
        cases: usize,
        run: impl Fn(usize, u64) -> Result<T, SimulationError> + Sync,
    ) -> Result<Vec<Vec<T>>, SimulationError> {
        let seeds = self.seeds.unwrap_or(seeds).max(1) as usize;
        let all = in_parallel(self.threads, cases * seeds, |at| {
            let seed = self.first_seed().wrapping_add((at % seeds) as u64);
            run(at / seeds, seed)
        })?;
        let mut all = all.into_iter();
        Ok((0..cases)
            .map(|_| all.by_ref().take(seeds).collect())
            .collect())
    }
}
