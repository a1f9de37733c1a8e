//! Settings of `AcceptFraction`.

use headgate_core::config::StrategyConfig;

use super::super::Problems;
use super::super::window::{MINUTE_IN_SECONDS, window};
use crate::api::AcceptFractionSettings;
use crate::validate::path::Path;

const MAX_UTILIZATION_DEFAULT: f64 = 0.95;

pub(super) fn config(
    settings: Option<&AcceptFractionSettings>,
    at: &Path,
    problems: &mut Problems,
) -> StrategyConfig {
    let settings = settings.cloned().unwrap_or_default();
    let max_utilization = problems.real(
        at.field("maxUtilization"),
        settings.max_utilization,
        MAX_UTILIZATION_DEFAULT,
        |u| u > 0.0 && u <= 1.0,
        "the share of the slots that may be in use, above 0, at most 1",
    );
    let (window_us, step_us) = window(
        settings.window.as_ref(),
        settings.step.as_ref(),
        MINUTE_IN_SECONDS,
        at,
        problems,
    );
    StrategyConfig::AcceptFraction {
        max_utilization,
        window_us,
        step_us,
    }
}
