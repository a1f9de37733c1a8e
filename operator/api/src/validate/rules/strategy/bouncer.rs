//! Settings of `Bouncer`.

use headgate_core::config::{
    AcceptFractionConfig, HistogramWindow, MAX_HISTOGRAM_STEPS, ServiceTimesConfig, StrategyConfig,
};

use super::super::requirement::{Rules, only};
use super::super::{Assumed, At, Field, HOUR, MILLISECOND, SECOND, Stored, Table, time, whole};
use crate::validate::rules::schema::{Rule, SchemaField};
use crate::{BouncerSettings, Duration, HistogramWindowType};

const LEAST: f64 = 10.0 * MILLISECOND;
pub(super) static FIELDS: Table = fields! {
    "interval" => time(Stored(SECOND), LEAST, HOUR),
    "minSamples" => whole(Stored(50.0), 1, 1_000_000),
    "shedByValue" => Field::Flag(true),
    // The right steps depend on the interval.
    "window.step" => time(Assumed(100.0 * MILLISECOND), LEAST, HOUR),
};
pub(super) static REQUIREMENTS: Rules = fields! {
    "" => only!("step", "type", "Sliding"),
};

pub(super) fn config(
    settings: Option<&BouncerSettings>,
    capacity: Option<AcceptFractionConfig>,
    at: &At<'_>,
) -> StrategyConfig {
    let logic = settings.map(|s| s.logic).unwrap_or_default();
    StrategyConfig::Bouncer {
        logic,
        shed_by_value: at.field("shedByValue").flag(),
        capacity,
    }
}

/// Returns the settings for estimates of processing times. Other strategies also need estimates,
/// for expected waits and Retry-After. Other strategies don't decide by percentiles, so they use
/// the defaults.
pub(super) fn service_times(strategy: &crate::Strategy, at: &At<'_>) -> ServiceTimesConfig {
    let given = strategy.bouncer.clone().unwrap_or_default();
    let interval_us = at.field("interval").time();
    ServiceTimesConfig {
        interval_us,
        min_samples: at.field("minSamples").whole(),
        window: window(given.window.kind, interval_us, &at.field("window.step")),
    }
}

/// Returns the window of this kind. `at` is the place of its step.
fn window(kind: HistogramWindowType, interval_us: u64, at: &At<'_>) -> HistogramWindow {
    if kind == HistogramWindowType::DualBuffer {
        return HistogramWindow::DualBuffer;
    }
    let known = at.found();
    let step_us = at.time();
    let steps = interval_us / step_us.max(1);
    let is_whole = interval_us.is_multiple_of(step_us);
    let most = MAX_HISTOGRAM_STEPS as u64;
    if at.found() == known && !(is_whole && (2..=most).contains(&steps)) {
        let [step, interval] = [step_us, interval_us].map(Duration::of_micros);
        at.add(format!(
            "{step}; 2 to {most} whole steps make the interval of {interval}"
        ));
    }
    HistogramWindow::Sliding { step_us }
}

pub(super) fn schema(at: &mut SchemaField<'_>) {
    let given = at.value("window.step");
    let ms = |text: &str| format!("duration({text}).getMilliseconds()");
    let (interval, step) = (ms("self.interval"), ms(&given));
    let right = format!("{} && {}", at.right("interval"), at.right("window.step"));
    let whole = format!(
        "{interval} % {step} == 0 && {interval} / {step} >= 2 && \
         {interval} / {step} <= {MAX_HISTOGRAM_STEPS}"
    );
    at.rule(
        Rule::words(
            format!("self.window.type != 'Sliding' || !({right}) || ({whole})"),
            &format!("%s; 2 to {MAX_HISTOGRAM_STEPS} whole steps make the interval of %s"),
            &[&given, "self.interval"],
        )
        .on(".window.step"),
    );
}
