//! Starvation avoidance around a strategy: only where that refuses some types more than others.

use headgate_core::config::StarvationAvoidance;

use super::super::Problems;
use super::super::window::{SECOND_IN_HUNDREDTHS, window};
use crate::api::{self, ControlScopeType, StarvationAvoidanceType, StrategyType};
use crate::validate::path::Path;

pub(super) fn starvation_avoidance(
    strategy: &api::Strategy,
    at: &Path,
    problems: &mut Problems,
) -> Option<StarvationAvoidance> {
    let avoidance = strategy.starvation_avoidance.as_ref()?;
    if let Some(alike) = treats_types_alike(strategy) {
        problems.add(
            at.clone(),
            format!("given with type {alike}; leave it out or use type Bouncer"),
        );
    }
    Some(match avoidance.kind {
        StarvationAvoidanceType::AcceptanceAllowance => {
            if avoidance.helping_the_underserved.is_some() {
                mismatch("helpingTheUnderserved", "AcceptanceAllowance", at, problems);
            }
            acceptance_allowance(
                avoidance.acceptance_allowance.as_ref(),
                &at.field("acceptanceAllowance"),
                problems,
            )
        }
        StarvationAvoidanceType::HelpingTheUnderserved => {
            if avoidance.acceptance_allowance.is_some() {
                mismatch("acceptanceAllowance", "HelpingTheUnderserved", at, problems);
            }
            helping_the_underserved(
                avoidance.helping_the_underserved.as_ref(),
                &at.field("helpingTheUnderserved"),
                problems,
            )
        }
    })
}

/// The strategy, where it refuses all types alike, so that none can starve more than another.
fn treats_types_alike(strategy: &api::Strategy) -> Option<&'static str> {
    match strategy.kind {
        StrategyType::Bouncer => None,
        StrategyType::MaxQueueLength => Some("MaxQueueLength, which treats all types alike"),
        StrategyType::MaxQueueWait => {
            let settings = strategy.max_queue_wait.as_ref();
            let has_limits = settings.is_some_and(|s| !s.limits.is_empty());
            (!has_limits).then_some("MaxQueueWait without limits, which treats all types alike")
        }
        StrategyType::AcceptFraction => Some("AcceptFraction, which treats all types alike"),
        StrategyType::ResponseTimeController => {
            let settings = strategy.response_time_controller.as_ref();
            let scope = settings.map(|s| s.scope).unwrap_or_default();
            (scope == ControlScopeType::Policy)
                .then_some("ResponseTimeController and scope Policy, which treats all types alike")
        }
        StrategyType::BacklogControl => Some("BacklogControl, which has one bound for all types"),
    }
}

fn mismatch(field: &str, kind: &str, at: &Path, problems: &mut Problems) {
    problems.add(
        at.field(field),
        format!("given with type {kind}; leave it out or change the type"),
    );
}

fn acceptance_allowance(
    settings: Option<&api::AcceptanceAllowance>,
    at: &Path,
    problems: &mut Problems,
) -> StarvationAvoidance {
    let settings = settings.cloned().unwrap_or_default();
    let allowance = problems.real(
        at.field("allowance"),
        settings.allowance,
        0.1,
        |a| (0.0..=1.0).contains(&a),
        "a share of a type's requests, 0 to 1",
    );
    let (window_us, step_us) = window(
        settings.window.as_ref(),
        settings.step.as_ref(),
        SECOND_IN_HUNDREDTHS,
        at,
        problems,
    );
    StarvationAvoidance::AcceptanceAllowance {
        allowance,
        window_us,
        step_us,
    }
}

fn helping_the_underserved(
    settings: Option<&api::HelpingTheUnderserved>,
    at: &Path,
    problems: &mut Problems,
) -> StarvationAvoidance {
    let settings = settings.cloned().unwrap_or_default();
    let alpha = problems.real(
        at.field("alpha"),
        settings.alpha,
        1.0,
        |a| a > 0.0 && a <= 1.0,
        "a probability above 0, at most 1",
    );
    let (window_us, step_us) = window(
        settings.window.as_ref(),
        settings.step.as_ref(),
        SECOND_IN_HUNDREDTHS,
        at,
        problems,
    );
    StarvationAvoidance::HelpingTheUnderserved {
        alpha,
        window_us,
        step_us,
    }
}
