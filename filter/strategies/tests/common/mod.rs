//! Stages for tests and benchmarks of strategies.
#![allow(dead_code)] // no test uses all of it

use headgate_config::{
    BacklogControlConfig, BacklogSignal, ClassConfig, ControlScope, CostConfig, DegradationConfig,
    Logic, Objective, QueueConfig, ResponseTimeControllerConfig, StageConfig, StarvationAvoidance,
    StrategyConfig, TypeConfig,
};

/// P of [`stage`].
pub(crate) const PARALLELISM: u32 = 8;
/// Longest queue of [`stage`].
pub(crate) const MAX_QUEUE: u32 = 100;

/// Bouncer as in the paper: nothing is shed by value. Histograms have the defaults: they swap every
/// second and need 50 samples.
pub(crate) const BOUNCER: StrategyConfig = StrategyConfig::Bouncer {
    logic: Logic::Any,
    shed_by_value: false,
    capacity: None,
};

/// Bouncer with shedding by value before Alg. 1.
pub(crate) const VALUE_CUT: StrategyConfig = StrategyConfig::Bouncer {
    logic: Logic::Any,
    shed_by_value: true,
    capacity: None,
};

/// Returns Bouncer's starvation avoidance: none, Alg. 2 with A = 0.1, and Alg. 3 with α = 1. D = 1
/// s, Δ = 10 ms.
pub(crate) fn starvation_avoidances() -> [Option<StarvationAvoidance>; 3] {
    let (window_us, step_us) = (1_000_000, 10_000);
    [
        None,
        Some(StarvationAvoidance::AcceptanceAllowance {
            allowance: 0.1,
            type_allowances: Default::default(),
            window_us,
            step_us,
        }),
        Some(StarvationAvoidance::HelpingTheUnderserved {
            alpha: 1.0,
            window_us,
            step_us,
        }),
    ]
}

/// SEDA's controllers with Figure 4's parameters, one for each type and class, with a target of 50
/// ms.
pub(crate) fn response_time_controller(
    types: usize,
    classes: usize,
    degradation: Option<DegradationConfig>,
) -> StrategyConfig {
    StrategyConfig::ResponseTimeController(ResponseTimeControllerConfig {
        degradation,
        ..ResponseTimeControllerConfig::figure_4(
            ControlScope::Type,
            vec![vec![50_000; classes]; types],
        )
    })
}

/// Quality falls to a tenth before admission control.
pub(crate) const DEGRADATION: DegradationConfig = DegradationConfig {
    min_quality: 0.1,
    decrease: 1.2,
    increase: 0.05,
    admission: true,
};

/// Two classes.
pub(crate) fn classes() -> Vec<ClassConfig> {
    let class = |name: &str| ClassConfig {
        name: name.into(),
        matches: Vec::new(),
        value: 1.0,
    };
    vec![class("gold"), class("rest")]
}

/// S_t = 20 ms, measured every 100 ms.
pub(crate) fn backlog_control(control: BacklogSignal) -> StrategyConfig {
    StrategyConfig::BacklogControl(BacklogControlConfig {
        target_us: 20_000,
        control,
        cost: CostConfig::Measured,
        period_us: 100_000,
        proportional_gain: None,
        integral_gain: None,
        max_backlog: None,
        hint: true,
    })
}

/// A stage whose types all have the objectives p50 = 18 ms, p90 = 50 ms.
pub(crate) fn stage<'a>(
    types: impl IntoIterator<Item = &'a str>,
    strategy: StrategyConfig,
    starvation_avoidance: Option<StarvationAvoidance>,
) -> StageConfig {
    let slo = [(50.0, 18_000), (90.0, 50_000)].map(|(percentile, objective_us)| Objective {
        percentile,
        objective_us,
    });
    let kind = |name: &str| TypeConfig {
        name: name.into(),
        slo: slo.to_vec(),
        ..TypeConfig::default()
    };
    StageConfig {
        policy: "default/search".into(),
        generation: 1,
        parallelism: PARALLELISM,
        queue: QueueConfig {
            max_length: MAX_QUEUE,
            timeout_us: 1_000_000,
            ..QueueConfig::default()
        },
        strategy,
        starvation_avoidance,
        types: types.into_iter().map(kind).collect(),
        ..StageConfig::default()
    }
}
