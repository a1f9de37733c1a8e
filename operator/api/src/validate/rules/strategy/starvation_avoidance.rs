//! Starvation avoidance around a strategy: allowed only if the strategy refuses some types more
//! than others.

use std::ops::Bound::{Excluded, Included};

use headgate_core::config::StarvationAvoidance;

use super::super::window::{self, SECOND_IN_HUNDREDTHS, window};
use super::super::{At, Block, Real};
use crate::validate::schema::{Place, Rule, some};
use crate::{ControlScopeType, StarvationAvoidanceType, StrategyType};

const BLOCKS: [Block<StarvationAvoidanceType>; 2] = {
    use StarvationAvoidanceType as Kind;
    [
        ("acceptanceAllowance", Kind::AcceptanceAllowance, None),
        ("helpingTheUnderserved", Kind::HelpingTheUnderserved, None),
    ]
};
const ALLOWANCE: Real = Real {
    default: 0.1,
    bounds: (Included(0.0), Included(1.0)),
    right: "a share of a type's requests, 0 to 1",
};
const ALPHA: Real = Real {
    default: 1.0,
    bounds: (Excluded(0.0), Included(1.0)),
    right: "a probability above 0, at most 1",
};
const MAX_QUEUE_LENGTH: &str = "MaxQueueLength, which treats all types alike";
const MAX_QUEUE_WAIT: &str = "MaxQueueWait without limits, which treats all types alike";
const ACCEPT_FRACTION: &str = "AcceptFraction, which treats all types alike";
const RESPONSE_TIME_CONTROLLER: &str =
    "ResponseTimeController and scope Policy, which treats all types alike";
const BACKLOG_CONTROL: &str = "BacklogControl, which has one bound for all types";
const USE_BOUNCER: &str = "leave it out or use type Bouncer";

pub(super) fn starvation_avoidance(
    strategy: &crate::Strategy,
    at: &At<'_>,
) -> Option<StarvationAvoidance> {
    let avoidance = strategy.starvation_avoidance.as_ref()?;
    if let Some(alike) = treats_types_alike(strategy) {
        at.add(format!("given with type {alike}; {USE_BOUNCER}"));
    }
    let is_given = [
        avoidance.acceptance_allowance.is_some(),
        avoidance.helping_the_underserved.is_some(),
    ];
    at.only_blocks_of(avoidance.kind, BLOCKS, is_given);
    Some(match avoidance.kind {
        StarvationAvoidanceType::AcceptanceAllowance => {
            let settings = avoidance.acceptance_allowance.clone().unwrap_or_default();
            let at = at.field("acceptanceAllowance");
            let allowance = at.field("allowance").real(settings.allowance, &ALLOWANCE);
            let (length, step) = (settings.window.as_ref(), settings.step.as_ref());
            let (window_us, step_us) = window(length, step, SECOND_IN_HUNDREDTHS, &at);
            StarvationAvoidance::AcceptanceAllowance {
                allowance,
                window_us,
                step_us,
            }
        }
        StarvationAvoidanceType::HelpingTheUnderserved => {
            let settings = avoidance
                .helping_the_underserved
                .clone()
                .unwrap_or_default();
            let at = at.field("helpingTheUnderserved");
            let alpha = at.field("alpha").real(settings.alpha, &ALPHA);
            let (length, step) = (settings.window.as_ref(), settings.step.as_ref());
            let (window_us, step_us) = window(length, step, SECOND_IN_HUNDREDTHS, &at);
            StarvationAvoidance::HelpingTheUnderserved {
                alpha,
                window_us,
                step_us,
            }
        }
    })
}

/// Returns the strategy in words if it refuses all types alike, so that none can starve more than
/// another.
fn treats_types_alike(strategy: &crate::Strategy) -> Option<&'static str> {
    match strategy.kind {
        StrategyType::Bouncer => None,
        StrategyType::MaxQueueLength => Some(MAX_QUEUE_LENGTH),
        StrategyType::MaxQueueWait => {
            let settings = strategy.max_queue_wait.as_ref();
            let has_limits = settings.is_some_and(|s| !s.limits.is_empty());
            (!has_limits).then_some(MAX_QUEUE_WAIT)
        }
        StrategyType::AcceptFraction => Some(ACCEPT_FRACTION),
        StrategyType::ResponseTimeController => {
            let settings = strategy.response_time_controller.as_ref();
            let scope = settings.map(|s| s.scope).unwrap_or_default();
            (scope == ControlScopeType::Policy).then_some(RESPONSE_TIME_CONTROLLER)
        }
        StrategyType::BacklogControl => Some(BACKLOG_CONTROL),
    }
}

pub(super) fn schema(strategy: &mut Place<'_>) {
    let limits = some("self.maxQueueWait.limits");
    let without_limits = format!("!(has(self.maxQueueWait) && {limits})");
    let of_policy =
        "has(self.responseTimeController) && self.responseTimeController.scope == 'Policy'";
    for (kind, alike, condition) in [
        ("MaxQueueLength", MAX_QUEUE_LENGTH, "true"),
        ("MaxQueueWait", MAX_QUEUE_WAIT, without_limits.as_str()),
        ("AcceptFraction", ACCEPT_FRACTION, "true"),
        (
            "ResponseTimeController",
            RESPONSE_TIME_CONTROLLER,
            of_policy,
        ),
        ("BacklogControl", BACKLOG_CONTROL, "true"),
    ] {
        let rule =
            format!("!has(self.starvationAvoidance) || self.type != '{kind}' || !({condition})");
        strategy.rule(
            Rule::text(rule, format!("given with type {alike}; {USE_BOUNCER}"))
                .on(".starvationAvoidance")
                .forbidden(),
        );
    }
    let mut avoidance = strategy.at("starvationAvoidance");
    for (field, owner, other) in BLOCKS {
        avoidance.settings_of(owner, other, field);
        window::schema(&mut avoidance.at(field), &SECOND_IN_HUNDREDTHS);
    }
    avoidance
        .at("acceptanceAllowance.allowance")
        .real(&ALLOWANCE);
    avoidance.at("helpingTheUnderserved.alpha").real(&ALPHA);
}
