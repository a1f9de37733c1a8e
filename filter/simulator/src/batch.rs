//! Many runs on all cores: each experiment once per seed.

use std::num::NonZeroUsize;
use std::time::Duration;

use headgate_core::config::StageConfig;
use headgate_core::strategy::TypeId;

use crate::backend::Servers;
use crate::observe::Observed;
use crate::parallel::in_parallel;
use crate::progress::Progress;
use crate::results::{Outcome, Row, average, rows};
use crate::simulation::{Run, SimulationError, Until};
use crate::workload::{Rate, Traffic, Workload};

/// A stage under a rate of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// The stage.
    pub stage: StageConfig,
    /// How many requests arrive.
    pub rate: Rate,
}

/// How to run experiments.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// What arrives, in all experiments.
    pub workload: &'a Workload,
    /// Time before results count.
    pub warm_up: Duration,
    /// Requests of each run that count.
    pub requests: u64,
    /// The seed of the first run of an experiment; the next ones follow.
    pub seed: u64,
    /// Runs of each experiment.
    pub seeds: u32,
    /// Threads; all cores by default.
    pub threads: Option<NonZeroUsize>,
}

impl Batch<'_> {
    /// Runs of `experiments` experiments.
    #[must_use]
    pub fn runs(&self, experiments: usize) -> usize {
        experiments * self.seeds as usize
    }

    /// Requests that `experiments` will take, warm-up included, about.
    #[must_use]
    pub fn expected(&self, experiments: &[Experiment]) -> u64 {
        let of_one = |Experiment { stage, rate }: &Experiment| {
            let rate = self.workload.per_second(*rate, stage.parallelism);
            self.requests + (rate * self.warm_up.as_secs_f64()) as u64
        };
        let of_all: u64 = experiments.iter().map(of_one).sum();
        of_all * u64::from(self.seeds)
    }

    /// Runs all experiments.
    ///
    /// # Errors
    /// [`SimulationError`] of the first run that failed.
    pub fn run(
        &self,
        experiments: &[Experiment],
        progress: &dyn Progress,
    ) -> Result<Vec<Vec<Row>>, SimulationError> {
        progress.expect(self.expected(experiments));
        let runs = self.runs(experiments.len());
        let all = in_parallel(self.threads, runs, |at| {
            let outcome = self.run_one(experiments, at, progress)?;
            Ok(rows(self.names(), &outcome))
        })?;
        Ok(all
            .chunks(self.seeds.max(1) as usize)
            .map(average)
            .collect())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.workload.types().iter().map(|kind| kind.name.as_str())
    }

    fn run_one(
        &self,
        experiments: &[Experiment],
        at: usize,
        progress: &dyn Progress,
    ) -> Result<Outcome, SimulationError> {
        let seeds = self.seeds as usize;
        let Experiment { stage, rate } = &experiments[at / seeds];
        let seed = self.seed.wrapping_add((at % seeds) as u64);
        let per_second = self.workload.per_second(*rate, stage.parallelism);
        let kinds: Vec<TypeId> = self.workload.types().iter().map(|t| t.kind).collect();
        let run = Run {
            stage,
            kinds: &kinds,
            warm_up: self.warm_up,
            until: Until::Requests(self.requests),
            // The strategy's luck must not be that of the traffic.
            seed: !seed,
        };
        let traffic = Traffic::steady(self.workload, per_second, seed);
        let mut traffic = Observed::new(traffic, progress);
        run.with(&mut traffic, Servers::new(stage.parallelism))
    }
}
