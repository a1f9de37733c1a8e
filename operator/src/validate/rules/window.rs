//! Sliding windows: D in steps of Δ.

use std::time::Duration as Span;

use super::{HOUR, MILLISECOND, Problems, SECOND, micros};
use crate::api::Duration;
use crate::validate::path::Path;

/// The filter keeps one bucket for each step.
const MAX_STEPS: u64 = 10_000;
const BOUNDS: (Span, Span) = (MILLISECOND, HOUR);

/// Defaults of D and Δ.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    window: Span,
    step: Span,
}

/// What starvation avoidance counts over (Bouncer §4).
pub(super) const SECOND_IN_HUNDREDTHS: Defaults = Defaults {
    window: SECOND,
    step: Span::from_millis(10),
};

/// What means are taken over (Bouncer §5.2.2).
pub(super) const MINUTE_IN_SECONDS: Defaults = Defaults {
    window: Span::from_secs(60),
    step: SECOND,
};

/// D and Δ in µs: `window` and `step` of the settings at `at`.
pub(super) fn window(
    window: Option<&Duration>,
    step: Option<&Duration>,
    defaults: Defaults,
    at: &Path,
    problems: &mut Problems,
) -> (u64, u64) {
    let known = problems.0.len();
    let window_us = problems.setting(&at.field("window"), window, defaults.window, BOUNDS);
    let step_us = problems.setting(&at.field("step"), step, defaults.step, BOUNDS);
    let steps = window_us.checked_div(step_us).unwrap_or(0);
    if problems.0.len() == known && !(2..=MAX_STEPS).contains(&steps) {
        let text = |us| Duration::from(Span::from_micros(us));
        let (window, step) = (text(window_us), text(step_us));
        problems.add(
            at.field("window"),
            format!("{window} in steps of {step}; the window holds 2 to {MAX_STEPS} steps"),
        );
    }
    match problems.0.len() == known {
        true => (window_us, step_us),
        false => (micros(defaults.window), micros(defaults.step)),
    }
}
