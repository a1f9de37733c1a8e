//! Stages and traffic of Bouncer §5.3 and §5.5.

use std::collections::BTreeMap;

use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, ControlScope, CostConfig, DEFAULT_TYPE, Discipline,
    ErrorsConfig, HistogramWindow, Logic, MAX_QUEUE_LENGTH, Match, Measure, Mode, Objective,
    PathMatch, QueueConfig, QueueMode, ResponseTimeControllerConfig, ServiceTimesConfig,
    StageConfig, StarvationAvoidance, StrategyConfig, TypeConfig,
};
use headgate_core::strategy::TypeId;

use crate::workload::{LogNormal, TypeLoad, Workload, WorkloadError};

/// P.
pub(super) const PARALLELISM: u32 = 100;
/// Table 1: name, share, mean and median processing time, ms.
pub(super) const TYPES: [(&str, f64, f64, f64); 4] = [
    ("fast", 0.4, 1.16, 0.38),
    ("mediumfast", 0.2, 2.53, 1.14),
    ("mediumslow", 0.3, 12.13, 7.40),
    ("slow", 0.1, 20.05, 12.51),
];
/// Objectives of all types, ms.
const SLO: [(f64, u32); 2] = [(50.0, 18), (90.0, 50)];
/// L of MaxQL, requests.
const MAX_QUEUE: u32 = 400;
/// T of MaxQWT, µs.
const MAX_WAIT_US: u64 = 10_000;
/// Threshold of AcceptFraction.
pub(super) const MAX_UTILIZATION: f64 = 0.95;
pub(super) const SECOND_US: u64 = 1_000_000;
const MIN_SAMPLES: u32 = 50;

pub(super) fn workload() -> Result<Workload, WorkloadError> {
    let types = (0_u16..)
        .zip(TYPES)
        .map(|(id, (name, share, mean, median))| {
            let service_time = LogNormal::new(mean, median)?;
            Ok(TypeLoad::new(name, TypeId(id), share, service_time))
        });
    Workload::new(types.collect::<Result<_, WorkloadError>>()?)
}

pub(super) fn acceptance_allowance(allowance: f64) -> StarvationAvoidance {
    StarvationAvoidance::AcceptanceAllowance {
        allowance,
        window_us: SECOND_US,
        step_us: 10_000,
    }
}

pub(super) fn helping_the_underserved(alpha: f64) -> StarvationAvoidance {
    StarvationAvoidance::HelpingTheUnderserved {
        alpha,
        window_us: SECOND_US,
        step_us: 10_000,
    }
}

pub(super) fn bouncer(avoidance: Option<StarvationAvoidance>) -> StageConfig {
    StageConfig {
        starvation_avoidance: avoidance,
        ..stage(StrategyConfig::Bouncer {
            logic: Logic::Any,
            shed_by_value: false,
        })
    }
}

pub(super) fn max_queue_length() -> StageConfig {
    let mut stage = stage(StrategyConfig::MaxQueueLength);
    stage.queue.max_length = MAX_QUEUE;
    stage
}

pub(super) fn max_queue_wait(type_limits_us: BTreeMap<String, u64>) -> StageConfig {
    stage(StrategyConfig::MaxQueueWait {
        limit_us: MAX_WAIT_US,
        type_limits_us,
        window_us: 60 * SECOND_US,
        step_us: SECOND_US,
    })
}

pub(super) fn accept_fraction() -> StageConfig {
    stage(StrategyConfig::AcceptFraction {
        max_utilization: MAX_UTILIZATION,
        window_us: 60 * SECOND_US,
        step_us: SECOND_US,
    })
}

/// Each type's 90th percentile is held at its objective. Rates go up to twice the full load; the rest is
/// SEDA's Figure 4.
pub(super) fn response_time_controller() -> StageConfig {
    let target_us = u64::from(SLO[1].1) * 1_000;
    stage(StrategyConfig::ResponseTimeController(
        ResponseTimeControllerConfig {
            max_rate: 30_000.0,
            ..ResponseTimeControllerConfig::figure_4(
                ControlScope::Type,
                vec![vec![target_us]; TYPES.len() + 1],
            )
        },
    ))
}

/// The mean over all types is held at the objective of the median.
pub(super) fn backlog_control() -> StageConfig {
    stage(StrategyConfig::BacklogControl(BacklogControlConfig {
        target_us: u64::from(SLO[0].1) * 1_000,
        control: BacklogSignal::Backlog,
        cost: CostConfig::Measured,
        period_us: SECOND_US,
        proportional_gain: None,
        integral_gain: None,
        max_backlog: None,
        hint: false,
    }))
}

/// What the objectives leave for waiting: the least of objective − processing time over percentiles.
pub(super) fn wait_limits_by_type() -> BTreeMap<String, u64> {
    let limit = |(name, _, mean, median): &(&str, f64, f64, f64)| {
        let times = LogNormal::new(*mean, *median).ok()?;
        let [p50, p90] = SLO.map(|(_, ms)| f64::from(ms));
        let slack_ms = (p50 - times.median_ms()).min(p90 - times.p90_ms());
        Some(((*name).to_owned(), (slack_ms * 1e3) as u64))
    };
    TYPES.iter().filter_map(limit).collect()
}

/// §5.3 limits neither queue length nor wait, unless the strategy does.
fn stage(strategy: StrategyConfig) -> StageConfig {
    let kind = |name: &str| TypeConfig {
        name: name.to_owned(),
        matches: match name {
            DEFAULT_TYPE => Vec::new(),
            _ => vec![Match {
                path: Some(PathMatch::PathPrefix(format!("/q/{name}"))),
                ..Match::default()
            }],
        },
        slo: SLO
            .map(|(percentile, ms)| Objective {
                percentile,
                objective_us: u64::from(ms) * 1_000,
            })
            .to_vec(),
        value: 1.0,
    };
    StageConfig {
        policy: "default/simulated".to_owned(),
        generation: 1,
        routes: Vec::new(),
        mode: Mode::Enforce,
        parallelism: PARALLELISM,
        auto_parallelism: None,
        queue: QueueConfig {
            mode: QueueMode::Hold,
            discipline: Discipline::Fifo,
            max_length: MAX_QUEUE_LENGTH,
            timeout_us: 3_600 * SECOND_US,
        },
        measure: Measure::LastByte,
        errors: ErrorsConfig::default(),
        service_times: ServiceTimesConfig {
            interval_us: SECOND_US,
            min_samples: MIN_SAMPLES,
            window: HistogramWindow::DualBuffer,
        },
        strategy,
        starvation_avoidance: None,
        types: TYPES
            .iter()
            .map(|t| t.0)
            .chain([DEFAULT_TYPE])
            .map(kind)
            .collect(),
        classes: Vec::new(),
        workflows: None,
        excluded: Vec::new(),
    }
}
