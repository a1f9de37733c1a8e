//! Settings of `Bouncer`.

use std::time::Duration as Span;

use headgate_core::config::{
    HistogramWindow, MAX_HISTOGRAM_STEPS, ServiceTimesConfig, StrategyConfig,
};

use super::super::{HOUR, Problems, SECOND};
use crate::api::{self, BouncerSettings, Duration, HistogramWindowType};
use crate::validate::path::Path;

const INTERVAL: (Span, Span) = (Span::from_millis(10), HOUR);
const STEP_DEFAULT: Span = Span::from_millis(100);
const STEP: (Span, Span) = (Span::from_millis(10), HOUR);
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
        window: window(&settings.window, interval_us, &at.field("window"), problems),
    }
}

fn window(
    window: &api::HistogramWindow,
    interval_us: u64,
    at: &Path,
    problems: &mut Problems,
) -> HistogramWindow {
    let at = at.field("step");
    if window.kind == HistogramWindowType::DualBuffer {
        if window.step.is_some() {
            let problem = "given with type DualBuffer; leave it out or use type Sliding";
            problems.add(at, problem);
        }
        return HistogramWindow::DualBuffer;
    }
    let known = problems.0.len();
    let step_us = problems.setting(&at, window.step.as_ref(), STEP_DEFAULT, STEP);
    let steps = interval_us / step_us.max(1);
    let is_whole = interval_us.is_multiple_of(step_us);
    let most = MAX_HISTOGRAM_STEPS as u64;
    if problems.0.len() == known && !(is_whole && (2..=most).contains(&steps)) {
        let text = |us| Duration::from(Span::from_micros(us));
        let (step, interval) = (text(step_us), text(interval_us));
        problems.add(
            at,
            format!("{step}; 2 to {most} whole steps make the interval of {interval}"),
        );
    }
    HistogramWindow::Sliding { step_us }
}
