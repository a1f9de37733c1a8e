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

/// Notes settings that are valid and yet seldom intended.
pub(super) fn warnings(stage: &StageConfig, noted: &mut Problems) {
    accept_fraction::warnings(stage, noted);
    response_time_controller::warnings(stage, noted);
}

/// Whether the settings of `owner` have an effect beside type `kind`.
fn is_used(owner: StrategyType, kind: StrategyType) -> bool {
    owner == kind || (owner, kind) == (StrategyType::AcceptFraction, StrategyType::Bouncer)
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
        if given && !is_used(owner, strategy.kind) {
            problems.other_type(at.field(field), strategy.kind, owner);
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
    let bouncer = StrategyType::Bouncer;
    for (field, owner, other) in [
        ("bouncer", bouncer, None),
        ("maxQueueWait", StrategyType::MaxQueueWait, None),
        (
            "acceptFraction",
            StrategyType::AcceptFraction,
            Some(bouncer),
        ),
        (
            "responseTimeController",
            StrategyType::ResponseTimeController,
            None,
        ),
        ("backlogControl", StrategyType::BacklogControl, None),
    ] {
        let other = other.map(|other: StrategyType| other.to_string());
        strategy.settings_of(&owner.to_string(), other.as_deref(), field);
    }
}
