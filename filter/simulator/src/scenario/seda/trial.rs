//! One run of an experiment of SEDA §4, and many of them.

use std::time::Duration;

use headgate_core::config::StageConfig;
use headgate_core::strategy::TypeId;

use super::service::{Benchmark, INTERVAL, SECOND, arashi};
use crate::clients::ClosedLoop;
use crate::clients::series::Series;
use crate::clients::users::{Habits, Stay, Users};
use crate::parallel::in_parallel;
use crate::progress::Progress;
use crate::scenario::Size;
use crate::simulation::{Run, SimulationError, Until};

/// The service behind the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Arashi,
    Benchmark,
}

/// A run to make.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) service: Service,
    pub(super) stage: StageConfig,
    pub(super) habits: Habits,
    pub(super) stays: Vec<Stay>,
    /// s.
    pub(super) length: u64,
}

/// What the users of a run saw.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// By class.
    pub(super) classes: Vec<Series>,
    /// By request type.
    pub(super) pages: Vec<Series>,
    /// Users whose connections timed out.
    pub(super) timed_out: usize,
}

impl Trial {
    fn run(&self, seed: u64) -> Result<Seen, SimulationError> {
        let classes = self.stays.iter().map(|s| usize::from(s.class) + 1).max();
        let starts: Vec<u64> = self.stays.iter().map(|stay| stay.from).collect();
        let users = Users::new(&self.habits, &self.stays, INTERVAL, seed);
        let mut users = ClosedLoop::new(users, starts);
        let kinds: Vec<TypeId> = (0..).take(self.habits.pages.len()).map(TypeId).collect();
        let run = Run {
            stage: &self.stage,
            kinds: &kinds,
            warm_up: Duration::ZERO,
            until: Until::Time(Duration::from_nanos(self.length * SECOND)),
            // The strategy's luck must not be that of the users.
            seed: !seed,
        };
        match self.service {
            Service::Arashi => run.with(&mut users, arashi()),
            Service::Benchmark => run.with(&mut users, Benchmark::new()),
        }?;
        let users = users.behaviour();
        Ok(Seen {
            classes: (0..classes.unwrap_or_default())
                .map(|class| users.class(class as u8).clone())
                .collect(),
            pages: (0..self.habits.pages.len())
                .map(|page| users.page(page).clone())
                .collect(),
            timed_out: users.timed_out(),
        })
    }
}

/// Runs of each trial, each with the seeds of `size`, or `seeds` of them.
pub(super) fn run(
    trials: &[Trial],
    size: &Size,
    seeds: u32,
    progress: &dyn Progress,
) -> Result<Vec<Vec<Seen>>, SimulationError> {
    let seeds = size.seeds.unwrap_or(seeds).max(1) as usize;
    // Nobody knows how many requests users will send; the bar goes by simulated seconds.
    let expected: u64 = trials.iter().map(|trial| trial.length).sum();
    progress.expect(expected * seeds as u64);
    let mut seen = in_parallel(size.threads, trials.len() * seeds, |at| {
        let seed = size.first_seed().wrapping_add((at % seeds) as u64);
        let trial = &trials[at / seeds];
        let seen = trial.run(seed)?;
        progress.done(trial.length);
        Ok(seen)
    })?;
    let mut runs = Vec::with_capacity(trials.len());
    while !seen.is_empty() {
        let rest = seen.split_off(seeds.min(seen.len()));
        runs.push(std::mem::replace(&mut seen, rest));
    }
    Ok(runs)
}
