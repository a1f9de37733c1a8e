//! The admission stage: `parallelism`, `queue`, `strategy`.

use std::time::Duration as Span;

use headgate_core::config::{
    HistogramWindow, Logic, MAX_PARALLELISM, MAX_QUEUE_LENGTH, QueueConfig, ServiceTimesConfig,
    StageConfig, StarvationAvoidance, StrategyConfig,
};

use super::types::{excluded, types};
use super::{Problems, shadow};
use crate::api::{self, AdmissionPolicySpec, Duration, StarvationAvoidanceType, StrategyType};
use crate::validate::path::Path;
use crate::validate::policy::Slots;

const SECOND: Span = Span::from_secs(1);
const HOUR: Span = Span::from_secs(3600);
const MAX_QUEUE_DEFAULT: u32 = 800;
const MAX_SAMPLES: u32 = 1_000_000;

/// Checks the spec and says what it means. `parallelism` of the stage is that of one endpoint.
pub(crate) fn stage(
    spec: &AdmissionPolicySpec,
    policy: String,
    generation: i64,
    problems: &mut Problems,
) -> (StageConfig, Slots) {
    let root = Path::default().field("spec");
    let slots = parallelism(&spec.parallelism, &root.field("parallelism"), problems);
    let queue = queue(&spec.queue, &root.field("queue"), problems);
    let at = root.field("strategy");
    let service_times = service_times(&spec.strategy, &at, problems);
    let strategy = strategy(&spec.strategy);
    let starvation_avoidance = starvation_avoidance(&spec.strategy, &at, problems);
    let needs_objectives = spec.strategy.kind == StrategyType::Bouncer;
    let types = types(
        &spec.types,
        needs_objectives,
        &root.field("types"),
        problems,
    );
    let excluded = excluded(&spec.exclude, &root.field("exclude"), problems);
    shadow::check(spec, &root, problems);
    let stage = StageConfig {
        policy,
        generation,
        routes: Vec::new(),
        mode: spec.mode.into(),
        parallelism: slots.for_endpoints(1),
        queue,
        measure: spec.measure.into(),
        service_times,
        strategy,
        starvation_avoidance,
        types,
        classes: Vec::new(),
        excluded,
    };
    (stage, slots)
}

fn parallelism(parallelism: &api::Parallelism, at: &Path, problems: &mut Problems) -> Slots {
    let bounds = (1, MAX_PARALLELISM);
    match (parallelism.total, parallelism.per_endpoint) {
        (total @ Some(_), None) => {
            Slots::Total(problems.number(at.field("total"), total, 1, bounds))
        }
        (None, each @ Some(_)) => {
            Slots::PerEndpoint(problems.number(at.field("perEndpoint"), each, 1, bounds))
        }
        (Some(total), Some(each)) => {
            problems.add(
                at.clone(),
                format!("total {total} and perEndpoint {each}; give one of them"),
            );
            Slots::Total(1)
        }
        (None, None) => {
            problems.add(
                at.clone(),
                "empty; total or perEndpoint, such as {total: 20}",
            );
            Slots::Total(1)
        }
    }
}

fn queue(queue: &api::Queue, at: &Path, problems: &mut Problems) -> QueueConfig {
    let timeout_bounds = (Span::from_millis(1), HOUR);
    QueueConfig {
        mode: queue.mode.into(),
        discipline: queue.discipline.into(),
        max_length: problems.number(
            at.field("maxLength"),
            queue.max_length,
            MAX_QUEUE_DEFAULT,
            (0, MAX_QUEUE_LENGTH),
        ),
        timeout_us: problems.setting(
            &at.field("timeout"),
            queue.timeout.as_ref(),
            SECOND,
            timeout_bounds,
        ),
    }
}

fn strategy(strategy: &api::Strategy) -> StrategyConfig {
    match strategy.kind {
        StrategyType::Bouncer => StrategyConfig::Bouncer {
            logic: Logic::default(),
        },
        StrategyType::MaxQueueLength => StrategyConfig::MaxQueueLength,
    }
}

fn service_times(
    strategy: &api::Strategy,
    at: &Path,
    problems: &mut Problems,
) -> ServiceTimesConfig {
    if strategy.kind != StrategyType::Bouncer && strategy.bouncer.is_some() {
        let problem = "given with type MaxQueueLength; leave it out or use type Bouncer";
        problems.add(at.field("bouncer"), problem);
    }
    let settings = strategy.bouncer.clone().unwrap_or_default();
    let at = at.field("bouncer");
    let bounds = (Span::from_millis(10), HOUR);
    let interval_us = problems.setting(
        &at.field("interval"),
        settings.interval.as_ref(),
        SECOND,
        bounds,
    );
    let min_samples = problems.number(
        at.field("minSamples"),
        settings.min_samples,
        50,
        (1, MAX_SAMPLES),
    );
    ServiceTimesConfig {
        interval_us,
        min_samples,
        window: HistogramWindow::default(),
    }
}

fn starvation_avoidance(
    strategy: &api::Strategy,
    at: &Path,
    problems: &mut Problems,
) -> Option<StarvationAvoidance> {
    let avoidance = strategy.starvation_avoidance.as_ref()?;
    let at = at.field("starvationAvoidance");
    if strategy.kind == StrategyType::MaxQueueLength {
        problems.add(
            at.clone(),
            "given with type MaxQueueLength, which treats all types alike; leave it out or use type Bouncer",
        );
    }
    let mismatch = |given: bool, field: &str, kind: &str, problems: &mut Problems| {
        if given {
            problems.add(
                at.field(field),
                format!("given with type {kind}; leave it out or change the type"),
            );
        }
    };
    Some(match avoidance.kind {
        StarvationAvoidanceType::AcceptanceAllowance => {
            let given = avoidance.helping_the_underserved.is_some();
            mismatch(
                given,
                "helpingTheUnderserved",
                "AcceptanceAllowance",
                problems,
            );
            let at = at.field("acceptanceAllowance");
            let settings = avoidance.acceptance_allowance.clone().unwrap_or_default();
            let allowance = settings.allowance.unwrap_or(0.1);
            if !(0.0..=1.0).contains(&allowance) {
                let right = "a share of a type's requests, 0 to 1";
                problems.add(at.field("allowance"), format!("{allowance}; {right}"));
            }
            let (window_us, step_us) = window(
                settings.window.as_ref(),
                settings.step.as_ref(),
                &at,
                problems,
            );
            StarvationAvoidance::AcceptanceAllowance {
                allowance,
                window_us,
                step_us,
            }
        }
        StarvationAvoidanceType::HelpingTheUnderserved => {
            let given = avoidance.acceptance_allowance.is_some();
            mismatch(
                given,
                "acceptanceAllowance",
                "HelpingTheUnderserved",
                problems,
            );
            let at = at.field("helpingTheUnderserved");
            let settings = avoidance
                .helping_the_underserved
                .clone()
                .unwrap_or_default();
            let alpha = settings.alpha.unwrap_or(1.0);
            if !(alpha > 0.0 && alpha <= 1.0) {
                problems.add(
                    at.field("alpha"),
                    format!("{alpha}; a probability above 0, at most 1"),
                );
            }
            let (window_us, step_us) = window(
                settings.window.as_ref(),
                settings.step.as_ref(),
                &at,
                problems,
            );
            StarvationAvoidance::HelpingTheUnderserved {
                alpha,
                window_us,
                step_us,
            }
        }
    })
}

/// D and Δ in µs. The filter keeps one bucket for each step.
fn window(
    window: Option<&Duration>,
    step: Option<&Duration>,
    at: &Path,
    problems: &mut Problems,
) -> (u64, u64) {
    const MAX_STEPS: u64 = 10_000;
    let bounds = (Span::from_millis(1), HOUR);
    let known = problems.0.len();
    let window_us = problems.setting(&at.field("window"), window, SECOND, bounds);
    let step_us = problems.setting(&at.field("step"), step, Span::from_millis(10), bounds);
    let steps = window_us.checked_div(step_us).unwrap_or(0);
    if problems.0.len() == known && !(2..=MAX_STEPS).contains(&steps) {
        let text = |us| Duration::from(Span::from_micros(us));
        let (window, step) = (text(window_us), text(step_us));
        problems.add(
            at.field("window"),
            format!("{window} in steps of {step}; the window holds 2 to {MAX_STEPS} steps"),
        );
    }
    (window_us, step_us)
}
