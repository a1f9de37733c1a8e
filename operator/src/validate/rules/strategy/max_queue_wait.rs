//! Settings of `MaxQueueWait`.

use std::time::Duration as Span;

use headgate_core::config::StrategyConfig;

use super::super::names::check_known;
use super::super::window::{MINUTE_IN_SECONDS, window};
use super::super::{HOUR, MILLISECOND, Problems};
use crate::api::MaxQueueWaitSettings;
use crate::validate::path::Path;

const LIMIT: (Span, Span) = (MILLISECOND, HOUR);

pub(super) fn config(
    settings: Option<&MaxQueueWaitSettings>,
    types: &[&str],
    at: &Path,
    problems: &mut Problems,
) -> StrategyConfig {
    let settings = settings.cloned().unwrap_or_default();
    if settings.limit.is_none() {
        let right = "the longest wait of a request that is let in, such as 10ms";
        problems.add(at.field("limit"), format!("missing; {right}"));
    }
    let limit_us = problems.setting(
        &at.field("limit"),
        settings.limit.as_ref(),
        MILLISECOND,
        LIMIT,
    );
    let limits = at.field("limits");
    check_known(settings.limits.keys(), "type", types, &limits, problems);
    let type_limits_us = settings.limits.iter().filter_map(|(name, limit)| {
        let us = problems.duration(&limits.key(name), limit, LIMIT.0, LIMIT.1)?;
        Some((name.clone(), us))
    });
    let type_limits_us = type_limits_us.collect();
    let (window_us, step_us) = window(
        settings.window.as_ref(),
        settings.step.as_ref(),
        MINUTE_IN_SECONDS,
        at,
        problems,
    );
    StrategyConfig::MaxQueueWait {
        limit_us,
        type_limits_us,
        window_us,
        step_us,
    }
}
