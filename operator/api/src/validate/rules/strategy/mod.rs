//! `spec.strategy`: the strategy, and the rule that only the strategy's own settings may be given.

mod accept_fraction;
mod backlog_control;
mod bouncer;
mod max_queue_wait;
mod response_time_controller;
mod starvation_avoidance;

use headgate_core::config::{ServiceTimesConfig, StageConfig, StarvationAvoidance, StrategyConfig};

use super::requirement::{Rules, only};
use super::{At, Table, window};
use crate::validate::rules::schema::SchemaField;
use crate::{AdmissionPolicySpec, StrategyType};

/// The tables of strategies' fields, each with its place below `spec`.
pub(super) static TABLES: &[(&str, Table)] = fields! {
    "strategy.bouncer" => bouncer::FIELDS,
    "strategy.maxQueueWait" => max_queue_wait::FIELDS,
    "strategy.maxQueueWait" => window::MINUTE_IN_SECONDS,
    "strategy.acceptFraction" => accept_fraction::FIELDS,
    "strategy.acceptFraction" => window::MINUTE_IN_SECONDS,
    "strategy.responseTimeController" => response_time_controller::FIELDS,
    "strategy.backlogControl" => backlog_control::FIELDS,
    "strategy.starvationAvoidance" => starvation_avoidance::FIELDS,
    "strategy.starvationAvoidance.acceptanceAllowance" => window::SECOND_IN_HUNDREDTHS,
    "strategy.starvationAvoidance.helpingTheUnderserved" => window::SECOND_IN_HUNDREDTHS,
};

/// The tables of strategies' requirements on several fields, each with its place below `spec`.
pub(super) static REQUIREMENTS: &[(&str, Rules)] = fields! {
    "strategy" => BLOCKS,
    "strategy.bouncer.window" => bouncer::REQUIREMENTS,
    "" => max_queue_wait::REQUIREMENTS,
    "" => response_time_controller::REQUIREMENTS,
    "" => backlog_control::REQUIREMENTS,
    "" => starvation_avoidance::REQUIREMENTS,
};

/// The strategy to which each block of settings belongs.
static BLOCKS: Rules = fields! {
    "" => only!("bouncer", "type", "Bouncer"),
    "" => only!("maxQueueWait", "type", "MaxQueueWait"),
    // Bouncer may also have these settings, which limit utilization.
    "" => only!("acceptFraction", "type", "AcceptFraction" or "Bouncer"),
    "" => only!("responseTimeController", "type", "ResponseTimeController"),
    "" => only!("backlogControl", "type", "BacklogControl"),
};

/// `spec.strategy` in the filter's types.
pub(super) struct Strategy {
    pub(super) config: StrategyConfig,
    pub(super) service_times: ServiceTimesConfig,
    pub(super) starvation_avoidance: Option<StarvationAvoidance>,
}

pub(super) fn strategy(spec: &AdmissionPolicySpec, at: &At<'_>) -> Strategy {
    let strategy = &spec.strategy;
    Strategy {
        config: config(spec, at),
        service_times: bouncer::service_times(strategy, &at.field("bouncer")),
        starvation_avoidance: starvation_avoidance::starvation_avoidance(
            strategy,
            &at.field("starvationAvoidance"),
        ),
    }
}

fn config(spec: &AdmissionPolicySpec, at: &At<'_>) -> StrategyConfig {
    let strategy = &spec.strategy;
    match strategy.kind {
        StrategyType::Bouncer => {
            let given = at.field("acceptFraction");
            let capacity = given.is_given().then(|| accept_fraction::config(&given));
            bouncer::config(strategy.bouncer.as_ref(), capacity, &at.field("bouncer"))
        }
        StrategyType::MaxQueueLength => StrategyConfig::MaxQueueLength,
        StrategyType::MaxQueueWait => max_queue_wait::config(&at.field("maxQueueWait")),
        StrategyType::AcceptFraction => {
            StrategyConfig::AcceptFraction(accept_fraction::config(&at.field("acceptFraction")))
        }
        StrategyType::ResponseTimeController => {
            response_time_controller::config(spec, &at.field("responseTimeController"))
        }
        StrategyType::BacklogControl => backlog_control::config(spec, &at.field("backlogControl")),
    }
}

/// Adds warnings about settings that are valid but seldom intended.
pub(super) fn warnings(stage: &StageConfig, spec: &At<'_>) {
    accept_fraction::warnings(stage, spec);
    max_queue_wait::warnings(stage, spec);
    response_time_controller::warnings(stage, spec);
}

pub(super) fn schema(spec: &mut SchemaField<'_>) {
    bouncer::schema(&mut spec.at("strategy.bouncer"));
    response_time_controller::schema(spec);
    for settings in [
        "strategy.maxQueueWait",
        "strategy.acceptFraction",
        "strategy.starvationAvoidance.acceptanceAllowance",
        "strategy.starvationAvoidance.helpingTheUnderserved",
    ] {
        window::schema(&mut spec.at(settings));
    }
}
