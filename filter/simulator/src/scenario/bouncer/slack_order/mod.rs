//! Beyond the paper: starvation avoidance that breaks nobody's objectives.
//!
//! Both of the paper's strategies against starvation push the types that they help over their objectives
//! (Figure 9): in one FIFO a query of 12 ms waits as long as one of 0.4 ms, though it has 5 ms to spare
//! where the other has 17. With the queue in the order of latest start
//! ([`Discipline::Slack`](headgate_core::config::Discipline::Slack)) the same requests are let in, and
//! each waits for as long as its own objectives allow.
//!
//! The study runs every strategy at 1.5 times the full load with both orders, and the strategy that the
//! project recommends, Bouncer with an allowance of 0.3, along the loads. The frontier is what a
//! fleet may choose from: what the least served type gets, against what that costs in rejections over all.

mod show;

use headgate_core::config::{Discipline, StageConfig};

use super::stages::{
    accept_fraction, acceptance_allowance, backlog_control, bouncer, helping_the_underserved,
    max_queue_length, max_queue_wait, response_time_controller, wait_limits_by_type, workload,
};
use super::{OVERLOAD, WARM_UP};
use crate::batch::{Batch, Experiment};
use crate::progress::Progress;
use crate::report::Report;
use crate::results::{ALL, Row};
use crate::scenario::{Size, Study};
use crate::simulation::SimulationError;
use crate::workload::Rate;

const REQUESTS: u64 = 1_500_000;
const SEEDS: u32 = 5;
const ALLOWANCES: [f64; 8] = [0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
const ALPHAS: [f64; 5] = [0.1, 0.25, 0.5, 0.75, 1.0];
const LOADS: [f64; 8] = [1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0];
/// The allowance that is recommended.
const ALLOWANCE: f64 = 0.3;
const RECOMMENDED: &str = "Bouncer+AcceptanceAllowance";

/// A strategy and its parameter, under one order and load.
#[derive(Debug, Clone)]
struct Trial {
    strategy: &'static str,
    parameter: Option<f64>,
    order: Order,
    factor: f64,
    stage: StageConfig,
}

/// The orders that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Fifo,
    Slack,
}

impl Order {
    const BOTH: [Self; 2] = [Self::Fifo, Self::Slack];

    /// As in `queue.discipline`.
    fn name(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO",
            Self::Slack => "Slack",
        }
    }

    fn discipline(self) -> Discipline {
        match self {
            Self::Fifo => Discipline::Fifo,
            Self::Slack => Discipline::Slack,
        }
    }
}

/// A trial and what it gave.
struct Found {
    trial: Trial,
    rows: Vec<Row>,
}

impl Found {
    fn all(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == ALL)
    }

    fn types(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.kind != ALL)
    }

    /// Percent.
    fn rejected(&self) -> f64 {
        self.all().map_or(f64::NAN, |row| row.rejected_pct)
    }

    /// What the least served type gets, percent.
    fn least_accepted(&self) -> f64 {
        let accepted = self.types().map(|row| 100.0 - row.rejected_pct);
        accepted.fold(f64::INFINITY, f64::min)
    }

    fn utilization(&self) -> f64 {
        self.all().map_or(f64::NAN, |row| row.utilization)
    }

    /// Whether every type is inside both objectives.
    fn keeps_objectives(&self) -> bool {
        let within = |time: Option<f64>, objective| time.is_none_or(|ms| ms <= objective);
        self.types().all(|row| {
            within(row.rt_p50_ms, show::OBJECTIVES_MS.0)
                && within(row.rt_p90_ms, show::OBJECTIVES_MS.1)
        })
    }
}

/// The study `slack-order`.
#[derive(Debug, Clone, Copy)]
pub(in crate::scenario) struct SlackOrder;

impl Study for SlackOrder {
    fn name(&self) -> &str {
        "slack-order"
    }

    fn title(&self) -> &str {
        "Beyond Bouncer: FIFO against the order by latest start, at 1.5 times the full load"
    }

    fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError> {
        let workload = workload().map_err(|e| SimulationError::Results(e.to_string()))?;
        let trials = trials();
        let experiments: Vec<Experiment> = trials
            .iter()
            .map(|trial| Experiment {
                stage: trial.stage.clone(),
                rate: Rate::Factor(trial.factor),
            })
            .collect();
        let batch = Batch {
            workload: &workload,
            warm_up: WARM_UP,
            requests: size.requests.unwrap_or(REQUESTS),
            seed: size.seed.unwrap_or(1),
            seeds: size.seeds.unwrap_or(SEEDS),
            threads: size.threads,
        };
        let results = batch.run(&experiments, progress)?;
        let found: Vec<Found> = trials
            .into_iter()
            .zip(results)
            .map(|(trial, rows)| Found { trial, rows })
            .collect();
        Ok(show::report(self, &found, &batch, &workload))
    }
}

/// Every strategy with its parameters and both orders at [`OVERLOAD`], then the recommended one along
/// [`LOADS`].
fn trials() -> Vec<Trial> {
    let plain = |strategy, stage| (strategy, None, OVERLOAD, stage);
    let mut points = vec![plain("Bouncer", bouncer(None))];
    points.extend(ALLOWANCES.map(|a| {
        let stage = bouncer(Some(acceptance_allowance(a)));
        (RECOMMENDED, Some(a), OVERLOAD, stage)
    }));
    points.extend(ALPHAS.map(|alpha| {
        let stage = bouncer(Some(helping_the_underserved(alpha)));
        (
            "Bouncer+HelpingTheUnderserved",
            Some(alpha),
            OVERLOAD,
            stage,
        )
    }));
    points.extend([
        plain("MaxQueueLength", max_queue_length()),
        plain("MaxQueueWait", max_queue_wait([].into())),
        plain(
            "MaxQueueWait+TypeLimits",
            max_queue_wait(wait_limits_by_type()),
        ),
        plain("AcceptFraction", accept_fraction()),
        plain("ResponseTimeController", response_time_controller()),
        plain("BacklogControl", backlog_control()),
    ]);
    points.extend(LOADS.map(|load| {
        let stage = bouncer(Some(acceptance_allowance(ALLOWANCE)));
        (RECOMMENDED, Some(ALLOWANCE), load, stage)
    }));
    let both = |(strategy, parameter, factor, stage): (_, _, _, StageConfig)| {
        Order::BOTH.map(|order| {
            let mut stage = stage.clone();
            stage.queue.discipline = order.discipline();
            Trial {
                strategy,
                parameter,
                order,
                factor,
                stage,
            }
        })
    };
    points.into_iter().flat_map(both).collect()
}

#[cfg(test)]
mod tests {
    use super::super::stages::TYPES;
    use super::*;
    use crate::progress::Silent;

    /// Small, so only what holds by far.
    #[test]
    fn the_order_keeps_what_starvation_avoidance_breaks() {
        let size = Size {
            requests: Some(150_000),
            seeds: Some(1),
            ..Size::default()
        };
        let report = SlackOrder.run(&size, &Silent).unwrap();
        for claim in &report.claims {
            assert!(
                claim.holds == Some(true) || claim.text.starts_with("no type"),
                "{claim:?}"
            );
        }
        let trials = trials();
        assert_eq!(report.rows.len(), trials.len() * (TYPES.len() + 1));
    }
}
