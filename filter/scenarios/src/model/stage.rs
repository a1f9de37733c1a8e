//! The simulation study of Bouncer (§5.3), with open traffic before a stage with P servers.

use std::time::Duration;

use headgate_core::config::StageConfig;
use headgate_simulator::backend::Servers;
use headgate_simulator::results::ALL;
use headgate_simulator::trial::Offered;
use headgate_simulator::workload::file::{Problem, WorkloadFile};
use headgate_simulator::{Rate, Run, SimulationError, Until};
use headgate_strategies::strategy::TypeId;
use serde::Deserialize;

use super::Amount;
use crate::measured::Measured;

/// The parameters of a Bouncer experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Stage {
    stage: StageConfig,
    /// The workload, with one load.
    workload: WorkloadFile,
    /// The time before results count, s.
    warm_up: f64,
}

impl Stage {
    pub(super) fn run(&self, amount: &Amount, seed: u64) -> Result<Measured, SimulationError> {
        let wrong =
            |problems: &[Problem]| SimulationError::Results(format!("the workload: {problems:?}"));
        let plan = self
            .workload
            .plan(&self.stage, None)
            .map_err(|problems| wrong(&problems))?;
        let Offered::Loads { workload, loads } = plan.offered else {
            return Err(wrong(&[]));
        };
        let slots = self.stage.parallelism;
        let load = loads.first().copied().unwrap_or(Rate::Factor(1.0));
        let kinds: Vec<TypeId> = workload.types().iter().map(|kind| kind.kind).collect();
        let run = Run {
            stage: &self.stage,
            kinds: &kinds,
            warm_up: Duration::from_secs_f64(self.warm_up),
            until: Until::Requests(amount.requests),
            // The strategy and the traffic must not share random numbers.
            seed: !seed,
        };
        let mut traffic = workload.steady(workload.per_second(load, slots), seed);
        let outcome = run.with(&mut traffic, Servers::new(slots))?;
        let names = workload.types().iter().map(|kind| kind.name.as_str());
        let (mut measured, mut least) = (Measured::default(), f64::INFINITY);
        let all = outcome.all();
        let results = names.zip(&outcome.types);
        for (kind, result) in results.chain(all.iter().map(|all| (ALL, all))) {
            let rejected_pct = result.rejected_pct();
            measured.note(kind, "rejected_pct", rejected_pct);
            measured.note(kind, "rt_p50_ms", result.response_time_ms(0.5));
            measured.note(kind, "rt_p90_ms", result.response_time_ms(0.9));
            measured.note(kind, "utilization", outcome.utilization);
            least = least.min(100.0 - rejected_pct);
        }
        measured.note(ALL, "least_accepted_pct", least);
        let full = workload.per_second(Rate::Factor(1.0), slots);
        let backend = format!("{slots} slots; full load is {full:.0} requests/s");
        measured.words.push(("backend".to_owned(), backend));
        for kind in workload.types() {
            let share = 100.0 * workload.share_of(kind);
            let text = format!("{share:.0}% of requests; {}", kind.service_time);
            measured.words.push((kind.name.clone(), text));
        }
        Ok(measured)
    }
}
