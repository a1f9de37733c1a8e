//! Stages to test and measure strategies with.

use headgate_core::config::{
    Logic, Measure, Mode, Objective, QueueConfig, StageConfig, StarvationAvoidance, StrategyConfig,
    TypeConfig,
};

/// P of [`stage`].
pub(crate) const PARALLELISM: u32 = 8;
/// Longest queue of [`stage`].
pub(crate) const MAX_QUEUE: u32 = 100;

/// Bouncer with the defaults: histograms swap every second and need 50 samples.
pub(crate) const BOUNCER: StrategyConfig = StrategyConfig::Bouncer { logic: Logic::Any };

/// Bouncer's starvation avoidance: none, Alg. 2 with A = 0.1, Alg. 3 with α = 1. D = 1 s, Δ = 10 ms.
pub(crate) fn starvation_avoidances() -> [Option<StarvationAvoidance>; 3] {
    let (window_us, step_us) = (1_000_000, 10_000);
    [
        None,
        Some(StarvationAvoidance::AcceptanceAllowance {
            allowance: 0.1,
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
        matches: Vec::new(),
        slo: slo.to_vec(),
    };
    StageConfig {
        policy: "default/search".into(),
        generation: 1,
        routes: Vec::new(),
        mode: Mode::Enforce,
        parallelism: PARALLELISM,
        queue: QueueConfig {
            mode: Default::default(),
            discipline: Default::default(),
            max_length: MAX_QUEUE,
            timeout_us: 1_000_000,
        },
        measure: Measure::LastByte,
        service_times: Default::default(),
        strategy,
        starvation_avoidance,
        types: types.into_iter().map(kind).collect(),
        classes: Vec::new(),
        excluded: Vec::new(),
    }
}
