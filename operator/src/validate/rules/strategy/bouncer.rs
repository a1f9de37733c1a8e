//! Settings of `Bouncer`.

use std::time::Duration as Span;

use headgate_core::config::{ServiceTimesConfig, StrategyConfig};

use super::super::{HOUR, Problems, SECOND};
use crate::api::{self, BouncerSettings};
use crate::validate::path::Path;

const INTERVAL: (Span, Span) = (Span::from_millis(10), HOUR);
const MIN_SAMPLES_DEFAULT: u32 = 50;
const MAX_SAMPLES: u32 = 1_000_000;

pub(super) fn config(settings: Option<&BouncerSettings>) -> StrategyConfig {
    let logic = settings.map(|s| s.logic).unwrap_or_default();
    StrategyConfig::Bouncer {
        logic: logic.into(),
    }
}

/// How processing times are learned. Other strategies need them, too, for estimated waits and
/// Retry-After, but don't decide by their percentiles: they take the defaults.
pub(super) fn service_times(
    strategy: &api::Strategy,
    at: &Path,
    problems: &mut Problems,
) -> ServiceTimesConfig {
    let settings = strategy.bouncer.clone().unwrap_or_default();
    let interval_us = problems.setting(
        &at.field("interval"),
        settings.interval.as_ref(),
        SECOND,
        INTERVAL,
    );
    let min_samples = problems.number(
        at.field("minSamples"),
        settings.min_samples,
        MIN_SAMPLES_DEFAULT,
        (1, MAX_SAMPLES),
    );
    ServiceTimesConfig {
        interval_us,
        min_samples,
    }
}
