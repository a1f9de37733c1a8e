//! How the processes of an experiment are controlled.

use std::collections::BTreeMap;

use headgate_core::config::{Discipline, Flow, SharingConfig, WorkflowSource, WorkflowsConfig};

use crate::mesh::{Clocks, Setup};

/// Part of the slots' time above which a process counts as overloaded.
pub(super) const MAX_UTILIZATION: f64 = 0.9;
/// β, requests/s.
pub(super) const PROBE: f64 = 10.0;
/// q.
pub(super) const QUANTILE: f64 = 0.5;
/// Requests of a workflow that a limiter's queue holds.
pub(super) const QUEUE: u32 = 100;

/// Rates by bottleneck fairness every 100 ms with q = 0.5, and deadlines that travel.
pub(super) fn rate_control(discipline: Discipline) -> Setup {
    Setup {
        discipline,
        deadlines: true,
        workflows: Some(rates(QUANTILE)),
        clocks: Clocks::default(),
    }
}

/// The workflows' configuration of every process.
pub(super) fn rates(quantile: f64) -> WorkflowsConfig {
    WorkflowsConfig {
        identify: vec![WorkflowSource::Header {
            name: headgate_core::workflow::HEADER.to_owned(),
        }],
        quantile,
        service_quantiles: BTreeMap::new(),
        interval_us: 100_000,
        rate_ttl_us: 1_000_000,
        sharing: SharingConfig::BottleneckFairness {
            probe: PROBE,
            max_utilization: MAX_UTILIZATION,
        },
        max_workflows: 100,
        max_queue_length: QUEUE,
        workflows: BTreeMap::new(),
        edge: false,
        peers: Vec::new(),
    }
}

/// Fair queues among workflows; the quantum is about what the cheapest requests cost.
pub(super) fn fair() -> Discipline {
    Discipline::Drr {
        by: Flow::Workflow,
        quantum_us: 5_000,
        weights: BTreeMap::new(),
    }
}

/// In words, for reports.
pub(super) fn in_words() -> String {
    in_words_with(QUEUE)
}

/// The same, with limiters' queues of this length.
pub(super) fn in_words_with(queue: u32) -> String {
    format!(
        "every 100 ms, q = {QUANTILE}, bottleneck fairness with β = {PROBE} requests/s and at most {:.0}% of the slots' \
         time, queues of the limiters at most {queue} requests of a workflow",
        MAX_UTILIZATION * 100.0
    )
}
