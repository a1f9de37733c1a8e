//! Rules for sliding windows. A window of length D slides by Δ at a time.

use super::{At, HOUR, MILLISECOND, MINUTE, SECOND, Stored, Table, time};
use crate::Duration;
use crate::validate::rules::schema::{self as cel, Rule, SchemaField};

/// The largest number of steps. The filter keeps one bucket for each step.
const MAX_STEPS: u64 = 10_000;

/// The window of the counts of starvation avoidance (Bouncer §4).
pub(super) static SECOND_IN_HUNDREDTHS: Table = fields! {
    "window" => time(Stored(SECOND), MILLISECOND, HOUR),
    "step" => time(Stored(10.0 * MILLISECOND), MILLISECOND, HOUR),
};

/// The window of means (Bouncer §5.2.2).
pub(super) static MINUTE_IN_SECONDS: Table = fields! {
    "window" => time(Stored(MINUTE), MILLISECOND, HOUR),
    "step" => time(Stored(SECOND), MILLISECOND, HOUR),
};

/// Returns D and Δ in µs: `window` and `step` of the settings at `at`.
pub(super) fn window(at: &At<'_>) -> (u64, u64) {
    let known = at.found();
    let window_us = at.field("window").time();
    let step_us = at.field("step").time();
    let steps = window_us.checked_div(step_us).unwrap_or(0);
    if at.found() == known && !(2..=MAX_STEPS).contains(&steps) {
        let [window, step] = [window_us, step_us].map(Duration::of_micros);
        at.field("window").add(format!(
            "{window} in steps of {step}; the window holds 2 to {MAX_STEPS} steps"
        ));
    }
    (window_us, step_us)
}

/// Adds the schema of `window` and `step` of the settings at `at`.
pub(super) fn schema(at: &mut SchemaField<'_>) {
    let ms = |field: &str| format!("duration(self.{field}).getMilliseconds()");
    let (window, step) = (ms("window"), ms("step"));
    let right = format!("{} && {}", at.right("window"), at.right("step"));
    at.rule(
        Rule::value(
            format!("!({right}) || ({window} / {step} >= 2 && {window} / {step} <= {MAX_STEPS})"),
            &cel::format("%s in steps of %s", &["self.window", "self.step"]),
            format!("the window holds 2 to {MAX_STEPS} steps"),
        )
        .on(".window"),
    );
}
