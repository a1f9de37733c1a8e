//! Runs of meshes: each as often as there are seeds, on all cores.

use std::time::Duration;

use super::{Graph, Load, Run, Seen, Setup};
use crate::parallel::in_parallel;
use crate::progress::Progress;
use crate::scenario::Size;
use crate::simulation::SimulationError;

/// A run to make.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) graph: Graph,
    pub(crate) loads: Vec<Load>,
    pub(crate) setup: Setup,
    /// s.
    pub(crate) length: f64,
    /// Time between two looks at the processes.
    pub(crate) sample_every: Duration,
    /// Requests of clients after which it ends earlier.
    pub(crate) requests: u64,
}

impl Trial {
    /// A run of so many s, looked at every second.
    pub(crate) fn new(graph: &Graph, loads: &[Load], setup: Setup, length: f64) -> Self {
        Self {
            graph: graph.clone(),
            loads: loads.to_vec(),
            setup,
            length,
            sample_every: Duration::from_secs(1),
            requests: u64::MAX,
        }
    }

    pub(crate) fn run(&self, seed: u64) -> Result<Seen, SimulationError> {
        let run = Run {
            graph: &self.graph,
            loads: &self.loads,
            setup: &self.setup,
            until: Duration::from_secs_f64(self.length),
            sample_every: self.sample_every,
            requests: self.requests,
            seed,
        };
        run.make()
    }
}

/// Runs of each trial, each with the seeds of `size`, or `seeds` of them: by trial, then by seed.
pub(crate) fn run(
    trials: &[Trial],
    size: &Size,
    seeds: u32,
    progress: &dyn Progress,
) -> Result<Vec<Vec<Seen>>, SimulationError> {
    let seeds = size.seeds.unwrap_or(seeds).max(1) as usize;
    // Nobody knows how many requests closed loops will send; the bar goes by simulated seconds.
    let expected: u64 = trials.iter().map(|trial| trial.length as u64).sum();
    progress.expect(expected * seeds as u64);
    let mut seen = in_parallel(size.threads, trials.len() * seeds, |at| {
        let seed = size.first_seed().wrapping_add((at % seeds) as u64);
        let trial = &trials[at / seeds];
        let seen = trial.run(seed)?;
        progress.done(trial.length as u64);
        Ok(seen)
    })?;
    let mut runs = Vec::with_capacity(trials.len());
    while !seen.is_empty() {
        let rest = seen.split_off(seeds.min(seen.len()));
        runs.push(std::mem::replace(&mut seen, rest));
    }
    Ok(runs)
}

/// Mean over runs of what there is.
pub(crate) fn mean(runs: &[Seen], value: impl Fn(&Seen) -> Option<f64>) -> Option<f64> {
    crate::results::mean(runs.iter().filter_map(value))
}
