//! `spec.strategy`: the strategy, and the rule that settings belong to it.

mod accept_fraction;
mod backlog_control;
mod bouncer;
mod max_queue_wait;
mod response_time_controller;
mod starvation_avoidance;

use headgate_core::config::{ServiceTimesConfig, StageConfig, StarvationAvoidance, StrategyConfig};

use super::Problems;
use crate::validate::path::Path;
use crate::validate::schema::Place;
use crate::{AdmissionPolicySpec, StrategyType};

/// `spec.strategy` in the filter's types.
pub(super) struct Strategy {
    pub(super) config: StrategyConfig,
    pub(super) service_times: ServiceTimesConfig,
    pub(super) starvation_avoidance: Option<StarvationAvoidance>,
}

pub(super) fn strategy(spec: &AdmissionPolicySpec, at: &Path, problems: &mut Problems) -> Strategy {
    let strategy = &spec.strategy;
    refuse_settings_of_others(strategy, at, problems);
    Strategy {
        config: config(spec, at, problems),
        service_times: bouncer::service_times(strategy, &at.field("bouncer"), problems),
        starvation_avoidance: starvation_avoidance::starvation_avoidance(
            strategy,
            &at.field("starvationAvoidance"),
            problems,
        ),
    }
}

fn config(spec: &AdmissionPolicySpec, at: &Path, problems: &mut Problems) -> StrategyConfig {
    let strategy = &spec.strategy;
    let types: Vec<&str> = spec.types.iter().map(|t| t.name.as_str()).collect();
    match strategy.kind {
        StrategyType::Bouncer => {
            let settings = strategy.accept_fraction.as_ref();
            let capacity = settings
                .map(|s| accept_fraction::config(Some(s), &at.field("acceptFraction"), problems));
            bouncer::config(strategy.bouncer.as_ref(), capacity)
        }
        StrategyType::MaxQueueLength => StrategyConfig::MaxQueueLength,
        StrategyType::MaxQueueWait => max_queue_wait::config(
            strategy.max_queue_wait.as_ref(),
            &types,
            &at.field("maxQueueWait"),
            problems,
        ),
        StrategyType::AcceptFraction => StrategyConfig::AcceptFraction(accept_fraction::config(
            strategy.accept_fraction.as_ref(),
            &at.field("acceptFraction"),
            problems,
        )),
        StrategyType::ResponseTimeController => {
            response_time_controller::config(spec, &at.field("responseTimeController"), problems)
        }
        StrategyType::BacklogControl => {
            backlog_control::config(spec, &at.field("backlogControl"), problems)
        }
    }
}

/// Adds warnings about settings that are valid but seldom intended.
pub(super) fn warnings(stage: &StageConfig, noted: &mut Problems) {
    accept_fraction::warnings(stage, noted);
    response_time_controller::warnings(stage, noted);
}

/// Returns the other type with which the settings of `owner` have an effect.
fn used_by(owner: StrategyType) -> Option<StrategyType> {
    (owner == StrategyType::AcceptFraction).then_some(StrategyType::Bouncer)
}

fn refuse_settings_of_others(strategy: &crate::Strategy, at: &Path, problems: &mut Problems) {
    let blocks = [
        ("bouncer", strategy.bouncer.is_some(), StrategyType::Bouncer),
        (
            "maxQueueWait",
            strategy.max_queue_wait.is_some(),
            StrategyType::MaxQueueWait,
        ),
        (
            "acceptFraction",
            strategy.accept_fraction.is_some(),
            StrategyType::AcceptFraction,
        ),
        (
            "responseTimeController",
            strategy.response_time_controller.is_some(),
            StrategyType::ResponseTimeController,
        ),
        (
            "backlogControl",
            strategy.backlog_control.is_some(),
            StrategyType::BacklogControl,
        ),
    ];
    for (field, given, owner) in blocks {
        let other = used_by(owner);
        if given && owner != strategy.kind && other != Some(strategy.kind) {
            problems.other_type(at.field(field), strategy.kind, owner, other);
        }
    }
}

pub(super) fn schema(spec: &mut Place<'_>) {
    bouncer::schema(&mut spec.at("strategy.bouncer"));
    max_queue_wait::schema(spec);
    accept_fraction::schema(&mut spec.at("strategy.acceptFraction"));
    response_time_controller::schema(spec);
    backlog_control::schema(spec);
    let mut strategy = spec.at("strategy");
    starvation_avoidance::schema(&mut strategy);
    for (field, owner) in [
        ("bouncer", StrategyType::Bouncer),
        ("maxQueueWait", StrategyType::MaxQueueWait),
        ("acceptFraction", StrategyType::AcceptFraction),
        (
            "responseTimeController",
            StrategyType::ResponseTimeController,
        ),
        ("backlogControl", StrategyType::BacklogControl),
    ] {
        strategy.settings_of(owner, used_by(owner), field);
    }
}
