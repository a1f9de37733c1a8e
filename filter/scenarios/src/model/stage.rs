//! The simulation study of Bouncer (§5.3), with open traffic before a stage with P servers.

use std::time::Duration;

use headgate_core::config::StageConfig;
use headgate_simulator::results::{ALL, rows};
use headgate_simulator::trial::Offered;
use headgate_simulator::workload::file::{Problem, WorkloadFile};
use headgate_simulator::{Rate, Simulation, SimulationError};
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
        let simulation = Simulation {
            stage: &self.stage,
            workload: &workload,
            per_second: workload.per_second(load, slots),
            warm_up: Duration::from_secs_f64(self.warm_up),
            requests: amount.requests,
            seed,
        };
        let outcome = simulation.run()?;
        let names = workload.types().iter().map(|kind| kind.name.as_str());
        let (mut measured, mut least) = (Measured::default(), f64::INFINITY);
        for row in rows(names, &outcome) {
            measured.note(&row.kind, "rejected_pct", row.rejected_pct);
            measured.note(&row.kind, "rt_p50_ms", row.rt_p50_ms);
            measured.note(&row.kind, "rt_p90_ms", row.rt_p90_ms);
            measured.note(&row.kind, "utilization", row.utilization);
            least = least.min(100.0 - row.rejected_pct);
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
