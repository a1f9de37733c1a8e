//! Rules for sliding windows: D in steps of Δ.

use std::time::Duration as Span;

use super::{At, HOUR, MILLISECOND, SECOND, Time, micros};
use crate::Duration;
use crate::validate::schema::{self as cel, Place, Rule};

/// The most steps: the filter keeps one bucket for each.
const MAX_STEPS: u64 = 10_000;
const BOUNDS: (Span, Span) = (MILLISECOND, HOUR);

/// The defaults and bounds of D and Δ.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sliding {
    window: Time,
    step: Time,
}

const fn sliding(window: Span, step: Span) -> Sliding {
    Sliding {
        window: Time {
            default: window,
            bounds: BOUNDS,
        },
        step: Time {
            default: step,
            bounds: BOUNDS,
        },
    }
}

/// The window of the counts of starvation avoidance (Bouncer §4).
pub(super) const SECOND_IN_HUNDREDTHS: Sliding = sliding(SECOND, Span::from_millis(10));

/// The window of means (Bouncer §5.2.2).
pub(super) const MINUTE_IN_SECONDS: Sliding = sliding(Span::from_secs(60), SECOND);

/// Returns D and Δ in µs: `window` and `step` of the settings at `at`.
pub(super) fn window(
    window: Option<&Duration>,
    step: Option<&Duration>,
    of: Sliding,
    at: &At<'_>,
) -> (u64, u64) {
    let known = at.found();
    let window_us = at.field("window").time(window, &of.window);
    let step_us = at.field("step").time(step, &of.step);
    let steps = window_us.checked_div(step_us).unwrap_or(0);
    if at.found() == known && !(2..=MAX_STEPS).contains(&steps) {
        let text = |us| Duration::from(Span::from_micros(us));
        let (window, step) = (text(window_us), text(step_us));
        at.field("window").add(format!(
            "{window} in steps of {step}; the window holds 2 to {MAX_STEPS} steps"
        ));
    }
    match at.found() == known {
        true => (window_us, step_us),
        false => (micros(of.window.default), micros(of.step.default)),
    }
}

/// Adds the schema of `window` and `step` of the settings at `at`.
pub(super) fn schema(at: &mut Place<'_>, of: &Sliding) {
    at.at("window").time(&of.window);
    at.at("step").time(&of.step);
    let ms = |field: &str| format!("duration(self.{field}).getMilliseconds()");
    let (window, step) = (ms("window"), ms("step"));
    let right = format!(
        "{} && {}",
        cel::right_time("self.window", &of.window),
        cel::right_time("self.step", &of.step)
    );
    at.rule(
        Rule::value(
            format!("!({right}) || ({window} / {step} >= 2 && {window} / {step} <= {MAX_STEPS})"),
            &cel::format("%s in steps of %s", &["self.window", "self.step"]),
            format!("the window holds 2 to {MAX_STEPS} steps"),
        )
        .on(".window"),
    );
}
