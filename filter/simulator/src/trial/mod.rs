//! A trial: the simulated effect of a policy on a workload.

mod figures;
mod ideal;
mod rows;
mod tables;

use std::time::Duration;

use headgate_core::config::{Mode, StageConfig};
use headgate_mesh::smoothing::Smoothing;
use headgate_strategies::strategy::TypeId;
use headgate_strategies::time::nanos;

use crate::Size;
use crate::backend::Servers;
use crate::clients::callers::Callers;
use crate::observe::{Observed, Timeline};
use crate::progress::Progress;
use crate::report::{Report, Subject};
use crate::results::Outcome;
use crate::simulation::{Run, SimulationError, Until};
use crate::source::Source;
use crate::workload::recorded::{Recording, rounded_up};
use crate::workload::{Pace, Rate, Traffic, Workload};
use rows::CaseRows;

/// Default number of requests of a run.
const REQUESTS: u64 = 200_000;
/// Default number of runs.
const SEEDS: u32 = 3;
/// Default warm-up, in which the engine learns the service times of all types.
const WARM_UP: Duration = Duration::from_secs(5);
/// Default warm-up if P is found automatically.
const WARM_UP_TO_FIND: Duration = Duration::from_secs(15);
/// The backend's parallelism if P is found automatically and no workload sets it.
const BACKEND: u32 = 16;
/// The longest run of a load, s of simulated time.
const YEAR_S: f64 = 365.0 * 86_400.0;
/// The largest number of points of a curve over time.
const MOST_BINS: u64 = 120;
/// The minimum length of a bin, ns: shorter bins have too few requests for a percentile.
const SHORTEST_BIN: u64 = 100_000_000;

/// The simulation that a file describes.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The arriving requests.
    pub offered: Offered,
    /// The backend's parallelism. It is also P, unless the policy finds P automatically.
    pub parallelism: Option<u32>,
    /// Requests of each run that count in its results.
    pub requests: Option<u64>,
    /// The number of runs of each case.
    pub seeds: Option<u32>,
    /// Seed of the first run.
    pub seed: Option<u64>,
    /// Time before results count.
    pub warm_up: Option<Duration>,
}

/// The arriving requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Offered {
    /// Several loads. Each load has its own runs.
    Loads {
        /// The mix of types.
        workload: Workload,
        /// The rates.
        loads: Vec<Rate>,
    },
    /// A load that changes over time.
    Phases {
        /// The mix of types.
        workload: Workload,
        /// The rates and their durations.
        phases: Vec<Phase>,
    },
    /// Requests of closed-loop clients.
    Clients {
        /// The mix of types.
        workload: Workload,
        /// The clients.
        clients: Clients,
    },
    /// Recorded requests.
    Recorded {
        /// The recorded requests.
        recording: Recording,
        /// Speeds, in multiples of the recorded speed.
        speeds: Vec<f64>,
    },
}

/// Closed-loop clients, which think before they send again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clients {
    /// The number of clients.
    pub count: u32,
    /// Think time between an answer, or a refusal, and the next request; above 0.
    pub think: Duration,
    /// The additional delay after an answer that reports refusals.
    pub smoothing: Option<Smoothing>,
}

/// A span of time with one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// The length of the phase.
    pub duration: Duration,
    /// The rate of arrivals.
    pub rate: Rate,
}

impl Offered {
    /// Returns the mix of types; `None` for a recording.
    fn workload(&self) -> Option<&Workload> {
        match self {
            Self::Loads { workload, .. }
            | Self::Phases { workload, .. }
            | Self::Clients { workload, .. } => Some(workload),
            Self::Recorded { .. } => None,
        }
    }
}

impl Plan {
    /// Returns a plan that replays a recording at its own speed.
    pub fn replay(recording: Recording) -> Self {
        Self {
            offered: Offered::Recorded {
                recording,
                speeds: vec![1.0],
            },
            parallelism: None,
            requests: None,
            seeds: None,
            seed: None,
            warm_up: None,
        }
    }
}

/// A policy under a workload.
#[derive(Debug, Clone)]
pub struct Trial {
    stage: StageConfig,
    /// The backend's parallelism.
    slots: u32,
    plan: Plan,
    subject: Subject,
    notes: Vec<String>,
}

/// Traffic that is simulated once per seed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Case {
    /// Requests per second; the mean if the rate changes.
    per_second: f64,
    /// The load in multiples of full load, or for a recording, in multiples of the recorded rate.
    factor: f64,
}

/// A run of a case.
struct CaseOutcome {
    outcome: Outcome,
    /// Outcomes by phase.
    phases: Option<Timeline>,
    /// Outcomes by bins of equal length.
    curve: Option<Timeline>,
}

impl Trial {
    /// Returns the trial of `stage` under `plan`. `policy` and `workload` are the names of their
    /// files or objects, for the report.
    pub fn new(mut stage: StageConfig, policy: &str, plan: Plan, workload: &str) -> Self {
        let mut notes = Vec::new();
        let slots = match (plan.parallelism, &stage.auto_parallelism, &plan.offered) {
            (Some(said), _, _) => said,
            (None, None, _) => stage.parallelism,
            (None, Some(_), Offered::Recorded { recording, .. }) => recording.most_in_flight(),
            (None, Some(_), _) => BACKEND,
        };
        if stage.auto_parallelism.is_none() {
            stage.parallelism = slots;
        } else if plan.parallelism.is_none() {
            notes.push(format!(
                "the policy has no fixed parallelism, so the simulated backend has {slots} slots; \
                 `parallelism` in a workload file changes this number"
            ));
        }
        if stage.mode == Mode::DryRun {
            notes.push(
                "the policy has mode DryRun; the results are those of mode Enforce".to_owned(),
            );
            stage.mode = Mode::Enforce;
        }
        if stage.workflows.take().is_some() {
            notes.push(
                "the policy has workflows, whose rates depend on the other services of a mesh: \
                 the simulation of one service ignores them, and --mesh includes them"
                    .to_owned(),
            );
        }
        if stage.types.iter().any(|kind| !kind.tpot.is_empty()) {
            notes.push(
                "the policy has objectives for the time per output token (tpot): the simulation \
                 ignores them, because a workload has no tokens"
                    .to_owned(),
            );
        }
        if let Offered::Recorded { recording, .. } = &plan.offered {
            notes.extend(recording.notes());
        }
        Self {
            stage,
            slots,
            plan,
            subject: Subject::Policy {
                policy: policy.to_owned(),
                workload: workload.to_owned(),
            },
            notes,
        }
    }

    /// Runs the trial. `size` takes precedence over the plan.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError> {
        let amount = self.amount(size);
        self.refuse_long(&amount)?;
        let cases = self.cases();
        let expected: u64 = cases.iter().map(|case| self.expected(case, &amount)).sum();
        progress.expect(expected * u64::from(amount.seeds));
        let size = Size {
            seed: Some(amount.seed),
            ..*size
        };
        let runs = size.runs(amount.seeds, cases.len(), |case, seed| {
            self.run_case(&cases[case], seed, &amount, progress)
        })?;
        let results: Vec<CaseRows> = cases
            .iter()
            .zip(&runs)
            .flat_map(|(case, runs)| self.rows_of(case, runs))
            .collect();
        let mut report = Report::new(self.subject.clone(), self.title());
        self.describe(&mut report, &amount);
        report.tables = vec![tables::table(self, &results)];
        report.figures = figures::figures(self, &results, &runs);
        report.rows = results.iter().flat_map(|case| case.records(self)).collect();
        report.notes.clone_from(&self.notes);
        report.notes.extend(tables::hardly_answered(self, &results));
        Ok(report)
    }

    fn amount(&self, size: &Size) -> Amount {
        let plan = &self.plan;
        let default_seeds = match &plan.offered {
            Offered::Loads { .. } | Offered::Phases { .. } | Offered::Clients { .. } => SEEDS,
            // Recorded traffic is not random, only the strategy is.
            Offered::Recorded { .. } => 1,
        };
        let warm_up = match self.stage.auto_parallelism {
            None => WARM_UP,
            Some(_) => WARM_UP_TO_FIND,
        };
        Amount {
            requests: size.requests.or(plan.requests).unwrap_or(REQUESTS),
            seeds: size.seeds.or(plan.seeds).unwrap_or(default_seeds).max(1),
            seed: size.seed.or(plan.seed).unwrap_or(1),
            warm_up: plan.warm_up.unwrap_or(warm_up),
        }
    }

    /// Refuses loads whose runs would take years. Their simulation would hardly end, because the
    /// engine ticks while no request arrives.
    fn refuse_long(&self, amount: &Amount) -> Result<(), SimulationError> {
        let Offered::Loads { workload, loads } = &self.plan.offered else {
            return Ok(());
        };
        let requests = amount.requests;
        let least = requests as f64 / YEAR_S;
        for load in loads {
            let (field, value, unit) = match *load {
                Rate::Factor(factor) => ("load", factor, Rate::Factor(1.0)),
                Rate::PerSecond(rate) => ("rate", rate, Rate::PerSecond(1.0)),
            };
            let least = rounded_up(least / workload.per_second(unit, self.slots));
            if value < least {
                return Err(SimulationError::Long {
                    field,
                    value,
                    least,
                    requests,
                });
            }
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let slots = self.slots;
        let at = |workload: &Workload, per_second: f64| Case {
            per_second,
            factor: per_second / workload.per_second(Rate::Factor(1.0), slots),
        };
        match &self.plan.offered {
            Offered::Loads { workload, loads } => {
                let full = workload.per_second(Rate::Factor(1.0), slots);
                let case = |load: &Rate| {
                    let per_second = workload.per_second(*load, slots);
                    let factor = match load {
                        Rate::Factor(factor) => *factor,
                        Rate::PerSecond(rate) => rate / full,
                    };
                    Case { per_second, factor }
                };
                loads.iter().map(case).collect()
            }
            Offered::Phases { workload, phases } => {
                let seconds: f64 = phases.iter().map(|p| p.duration.as_secs_f64()).sum();
                let of = |p: &Phase| workload.per_second(p.rate, slots) * p.duration.as_secs_f64();
                vec![at(workload, phases.iter().map(of).sum::<f64>() / seconds)]
            }
            Offered::Clients { workload, clients } => {
                // This would be the rate if answers took no time. The actual rate is measured.
                let per_second = f64::from(clients.count) / clients.think.as_secs_f64();
                vec![at(workload, per_second)]
            }
            Offered::Recorded { recording, speeds } => {
                let per_second = recording.per_second();
                let case = |speed: &f64| Case {
                    per_second: per_second * speed,
                    factor: *speed,
                };
                speeds.iter().map(case).collect()
            }
        }
    }

    /// Returns the length of what is offered, ns; `None` if a number of requests is offered.
    fn length_ns(&self, case: &Case) -> Option<u64> {
        match &self.plan.offered {
            Offered::Loads { .. } | Offered::Clients { .. } => None,
            Offered::Phases { phases, .. } => {
                Some(phases.iter().map(|phase| nanos(phase.duration)).sum())
            }
            Offered::Recorded { recording, .. } => Some(recording.replay_ns(case.factor)),
        }
    }

    /// Returns the approximate number of requests of a run.
    fn expected(&self, case: &Case, amount: &Amount) -> u64 {
        let in_time = |seconds: f64| (case.per_second * seconds) as u64;
        let length = self.length_ns(case);
        let offered = length.map_or(amount.requests, |ns| in_time(ns as f64 / 1e9));
        offered + in_time(amount.warm_up.as_secs_f64())
    }

    /// Returns the names of the traffic's types, and the stage's types for them.
    fn kinds(&self) -> Vec<(&str, TypeId)> {
        if let Offered::Recorded { recording, .. } = &self.plan.offered {
            let types = recording.types().iter();
            return types.map(|(name, kind)| (name.as_str(), *kind)).collect();
        }
        let types = self.plan.offered.workload().map(Workload::types);
        let types = types.unwrap_or_default().iter();
        types.map(|kind| (kind.name.as_str(), kind.kind)).collect()
    }

    fn run_case(
        &self,
        case: &Case,
        seed: u64,
        amount: &Amount,
        progress: &dyn Progress,
    ) -> Result<CaseOutcome, SimulationError> {
        let kinds: Vec<TypeId> = self.kinds().into_iter().map(|(_, kind)| kind).collect();
        let (begin, length) = (nanos(amount.warm_up), self.length_ns(case));
        let run = Run {
            stage: &self.stage,
            kinds: &kinds,
            warm_up: amount.warm_up,
            until: match length {
                None => Until::Requests(amount.requests),
                // The run ends at a time, not when the source is exhausted, because requests served
                // after the last phase belong to no phase.
                Some(ns) => Until::Time(Duration::from_nanos(ns) + amount.warm_up),
            },
            // The strategy and the traffic must not share random numbers.
            seed: !seed,
        };
        let backend = Servers::new(self.slots);
        let phases = match &self.plan.offered {
            Offered::Phases { phases, .. } => Some(edges(begin, phases)),
            _ => None,
        };
        let curve = length.map(|ns| bins(begin, begin + ns));
        let timeline = |edges: Option<Vec<u64>>| edges.map(|e| Timeline::new(e, kinds.len()));
        let source: Box<dyn Source + '_> = match &self.plan.offered {
            Offered::Loads { workload, .. } => Box::new(workload.steady(case.per_second, seed)),
            Offered::Phases { workload, phases } => {
                let pace = self.pace(workload, phases, amount);
                Box::new(Traffic::new(workload, pace, seed))
            }
            Offered::Clients { workload, clients } => {
                Box::new(Callers::start(workload, clients, seed))
            }
            Offered::Recorded { recording, .. } => Box::new(recording.replay(case.factor, begin)),
        };
        let mut source = Observed::new(source, progress, [phases, curve].map(timeline));
        let outcome = run.with(&mut source, backend)?;
        let [phases, curve] = source.timelines();
        Ok(CaseOutcome {
            outcome,
            phases,
            curve,
        })
    }

    /// Returns the phases, after a warm-up at the rate of the first phase.
    fn pace(&self, workload: &Workload, phases: &[Phase], amount: &Amount) -> Pace {
        let rate = |phase: &Phase| workload.per_second(phase.rate, self.slots);
        let warm_up = phases
            .first()
            .map(|first| (nanos(amount.warm_up), rate(first)));
        let phases = phases
            .iter()
            .map(|phase| (nanos(phase.duration), rate(phase)));
        warm_up.into_iter().chain(phases).collect()
    }

    fn title(&self) -> String {
        let Subject::Policy { policy, workload } = &self.subject else {
            return String::new();
        };
        format!("{policy} under {workload}")
    }
}

/// The size of a trial, in which defaults have replaced the missing values.
#[derive(Debug, Clone, Copy)]
struct Amount {
    requests: u64,
    seeds: u32,
    seed: u64,
    warm_up: Duration,
}

/// Returns the edges of phases, ns.
fn edges(begin: u64, phases: &[Phase]) -> Vec<u64> {
    let mut edges = vec![begin];
    let mut at = begin;
    for phase in phases {
        at += nanos(phase.duration);
        edges.push(at);
    }
    edges
}

/// Returns the edges of bins whose length is a round number.
fn bins(begin: u64, end: u64) -> Vec<u64> {
    let least = ((end - begin) / MOST_BINS).max(SHORTEST_BIN);
    let power = 10_u64.pow(least.ilog10());
    let rounds = [1, 2, 5, 10].map(|factor| factor * power);
    let length = rounds.into_iter().find(|length| *length >= least);
    let length = length.unwrap_or(least);
    let mut edges: Vec<u64> = (0..)
        .map(|i| begin + i * length)
        .take_while(|at| *at < end)
        .collect();
    edges.push(end);
    edges
}

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod value_tests;
