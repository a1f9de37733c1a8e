//! The numbers that follow from the settings for one request.

use std::time::Duration as Span;

use headgate_api::Duration;
use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, ControlScope, CostConfig, QueueMode,
    ServiceAdmissionConfig, SmoothingConfig, StageConfig, StrategyConfig,
};
use headgate_core::request::ClassId;
use headgate_core::strategy::Gains;
use headgate_mesh::class_admission::Law;
use headgate_mesh::smoothing::Smoothing;

use super::duration;

/// The times between calls, and the rejection rates, for which Eq. 3 of Chronos is evaluated.
const BETWEEN: [Span; 3] = [
    Span::from_millis(100),
    Span::from_millis(300),
    Span::from_secs(1),
];
const RATES: [f64; 3] = [0.25, 0.5, 1.0];

/// Returns the value by which the strategy decides about a request of the type `kind` and the class
/// `class`.
pub(super) fn strategy(stage: &StageConfig, kind: usize, class: usize) -> Option<String> {
    let queue = &stage.queue;
    match &stage.strategy {
        StrategyConfig::Bouncer { shed_by_value, .. } => shed_by_value.then(|| {
            let value = stage.types.get(kind).map_or(1.0, |kind| kind.value);
            let factor = stage.classes.get(class).map_or(1.0, |class| class.value);
            format!("value: {value} (type) × {factor} (class)")
        }),
        StrategyConfig::ResponseTimeController(control) => {
            let is_of_type = control.scope == ControlScope::Type;
            let row = control.targets_us.get(if is_of_type { kind } else { 0 })?;
            let target = *row.get(class)?;
            let careful = match queue.mode == QueueMode::Hold && queue.timeout_us <= target {
                true => "; careful: queue.timeout ends waits before, so set it above the target",
                false => "",
            };
            let (percentile, target) = (control.percentile, duration(target));
            Some(format!(
                "target: p{percentile} of response times at {target}{careful}"
            ))
        }
        StrategyConfig::BacklogControl(control) => {
            let is_derived = control.proportional_gain.is_none()
                && control.control != BacklogSignal::Proportional;
            is_derived.then(|| derived_gains(control, stage))
        }
        _ => None,
    }
}

/// Returns the way in which the cost of requests of the type `kind` is estimated, if it depends on
/// their size.
pub(super) fn cost(stage: &StageConfig, kind: usize) -> Option<String> {
    let header = &stage.types.get(kind)?.cost.as_ref()?.size.header;
    Some(format!(
        "cost: a + b · {header}, with a and b as measured; a request without this header is judged \
         as an average one of its type"
    ))
}

/// Returns the derived gains, apart from the measured time of a unit of cost, if that isn't known,
/// and the largest bound.
fn derived_gains(control: &BacklogControlConfig, stage: &StageConfig) -> String {
    let span = Span::from_micros;
    let (target, period) = (span(control.target_us), span(control.period_us));
    // With one slot, for a unit of cost that takes 1 s.
    let gains = Gains::derived(1.0 / f64::from(stage.parallelism), target, period);
    let (proportional, integral) = (gains.proportional, gains.integral);
    let proportional = match (control.control, &control.cost) {
        (BacklogSignal::Backlog, CostConfig::Measured) => format!("{:.0} ms", proportional * 1e3),
        (BacklogSignal::QueueLength, _) => format!("{proportional:.2} ÷ mean processing time in s"),
        _ => format!("{proportional:.2} ÷ measured time in s that a cost of 1 takes"),
    };
    let largest = match (control.max_backlog, control.control, stage.queue.max_length) {
        (Some(max), ..) => max.to_string(),
        (None, BacklogSignal::QueueLength, length) => {
            format!("{length} requests (queue.maxLength)")
        }
        (None, _, length) => format!("{length} (queue.maxLength) × the largest cost served"),
    };
    format!(
        "gains: K_P = {proportional}, per s of error; K_I = {integral:.3} (derived); largest \
         bound: {largest}"
    )
}

/// Returns the window in which each caller decides on the class, the percentile that results, and
/// the time to recover, unless a server decides or the class has no target.
pub(super) fn recovery(promises: &ServiceAdmissionConfig, class: ClassId) -> Option<String> {
    let law = Law::try_from(promises.settings()).ok()?;
    if !law.promises(class) || promises.central.is_some() {
        return None;
    }
    let calls = law.calls_per_window();
    Some(format!(
        "classAdmission: p{} holds for callers with {} calls of the class or more in a window of \
         {}, p{} for those with a tenth of them; a caller that runs {} of them in the class needs \
         {} without a miss to run all there again",
        promises.percentile,
        calls.round().max(1.0),
        Duration::from(law.window(class)),
        // Percentiles are shown with few digits.
        (law.percentile(calls / 10.0) * 1e3).round() / 1e3,
        promises.min_probability,
        Duration::from(law.recovery(class)),
    ))
}

/// Returns the reductions of the call rate by smoothing.
pub(super) fn reductions(smoothing: &SmoothingConfig) -> impl Iterator<Item = String> {
    let law = Smoothing {
        least: Span::from_micros(smoothing.least_us),
        most: Span::from_micros(smoothing.most_us),
    };
    BETWEEN.into_iter().map(move |between| {
        let less = RATES.map(|rate| {
            let percent = (law.reduction(rate, between) * 1e3).round() / 10.0;
            format!("{percent}% at {rate}")
        });
        format!(
            "smoothing: clients that would send every {} send less, by rejection rate: {} (Eq. 3 \
             of Chronos)",
            Duration::from(between),
            less.join(", ")
        )
    })
}
