//! Many runs on all cores: each experiment once per seed.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use headgate_core::config::StageConfig;

use crate::progress::Progress;
use crate::results::{Row, average, rows};
use crate::simulation::{Simulation, SimulationError};
use crate::workload::{Rate, Workload};

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

/// What a run gave.
type Outcome = Result<Vec<Row>, SimulationError>;

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
        let runs = self.runs(experiments.len());
        progress.expect(self.expected(experiments));
        let next = AtomicUsize::new(0);
        let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new((0..runs).map(|_| None).collect());
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= runs {
                    return;
                }
                let outcome = self.run_one(experiments, at);
                progress.done(outcome.as_ref().map_or(0, |o| o.simulated));
                let outcome = outcome.map(|o| rows(self.names(), &o));
                if outcome.is_err() {
                    // The others needn't begin.
                    next.store(runs, Ordering::Relaxed);
                }
                if let Ok(mut outcomes) = outcomes.lock() {
                    outcomes[at] = Some(outcome);
                }
            }
        };
        let threads = self
            .threads
            .or_else(|| thread::available_parallelism().ok())
            .map_or(1, NonZeroUsize::get);
        thread::scope(|scope| {
            for _ in 0..threads.min(runs) {
                scope.spawn(work);
            }
        });
        let outcomes = outcomes.into_inner().map_err(|_| SimulationError::Lost)?;
        // An error explains why runs are missing.
        let mut all = Vec::with_capacity(runs);
        let mut missing = false;
        for outcome in outcomes {
            match outcome {
                Some(outcome) => all.push(outcome?),
                None => missing = true,
            }
        }
        if missing {
            return Err(SimulationError::Lost);
        }
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
    ) -> Result<crate::results::Outcome, SimulationError> {
        let seeds = self.seeds as usize;
        let Experiment { stage, rate } = &experiments[at / seeds];
        Simulation {
            stage,
            workload: self.workload,
            per_second: self.workload.per_second(*rate, stage.parallelism),
            warm_up: self.warm_up,
            requests: self.requests,
            seed: self.seed.wrapping_add((at % seeds) as u64),
        }
        .run()
    }
}
