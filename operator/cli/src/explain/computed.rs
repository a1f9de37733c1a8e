//! The values computed from the settings for one request.

use std::time::Duration as Span;

use headgate_admission::ChannelLaw;
use headgate_admission::protocol::Method;
use headgate_api::Duration;
use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, ControlScope, CostConfig, OutboundConfig, QueueMode,
    ServiceAdmissionConfig, SmoothingConfig, StageConfig, StrategyConfig, TokenCount,
};
use headgate_mesh::smoothing::Smoothing;
use headgate_strategies::request::ClassId;
use headgate_strategies::strategy::Gains;

/// The times between calls, and the rejection rates, for which Eq. 3 of Chronos is evaluated.
const BETWEEN: [Span; 3] = [
    Span::from_millis(100),
    Span::from_millis(300),
    Span::from_secs(1),
];
const RATES: [f64; 3] = [0.25, 0.5, 1.0];

/// Returns the value that determines the strategy's decision about a request of type `kind` and
/// class `class`.
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
                true => "; warning: queue.timeout ends waits earlier, so set it above the target",
                false => "",
            };
            let (percentile, target) = (control.percentile, Duration::of_micros(target));
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

/// Returns how the cost of requests of type `kind` is estimated, if it depends on their size.
pub(super) fn cost(stage: &StageConfig, kind: usize) -> Option<String> {
    let header = &stage.types.get(kind)?.cost.as_ref()?.size.header;
    Some(format!(
        "cost: a + b · {header}, with a and b as measured; a request without this header counts as \
         an average one of its type"
    ))
}

/// Returns the headers with which refused requests of type `kind` continue on another route.
pub(super) fn on_refusal(stage: &StageConfig, kind: usize) -> Option<String> {
    let set = &stage.types.get(kind)?.on_refusal;
    let set: Vec<String> = (set.iter())
        .map(|header| format!("{}: {}", header.name, header.value))
        .collect();
    (!set.is_empty()).then(|| {
        format!(
            "on refusal: continues without a slot, on the route that matches {}",
            set.join(" and ")
        )
    })
}

/// Returns the tokens that a request takes, if the policy has a token budget.
pub(super) fn tokens(stage: &StageConfig) -> Option<String> {
    let tokens = stage.tokens.as_ref()?;
    let count = |count: &TokenCount| match (&count.header, count.per_unit) {
        (None, _) => count.otherwise.to_string(),
        (Some(header), 1.0) => format!("{header} (else {})", count.otherwise),
        (Some(header), unit) => format!("{unit} · {header} (else {})", count.otherwise),
    };
    let counts: Vec<String> = [&tokens.prompt, &tokens.output]
        .into_iter()
        .flatten()
        .map(count)
        .collect();
    let budget = tokens.whole_budget();
    Some(format!(
        "tokens: {} of {budget}, at least 1, at most {}",
        counts.join(" + "),
        tokens.per_request.unwrap_or(budget).min(budget)
    ))
}

/// Returns the derived gains and the largest bound. If the time of a unit of cost must be measured,
/// K_P is a number divided by that time.
fn derived_gains(control: &BacklogControlConfig, stage: &StageConfig) -> String {
    let span = Span::from_micros;
    let (target, period) = (span(control.target_us), span(control.period_us));
    // These gains are for one slot, and for a unit of cost that takes 1 s.
    let gains = Gains::derived(1.0 / f64::from(stage.parallelism), target, period);
    let (proportional, integral) = (gains.proportional, gains.integral);
    let proportional = match (control.control, &control.cost) {
        (BacklogSignal::Backlog, CostConfig::Measured) => format!("{:.0} ms", proportional * 1e3),
        (BacklogSignal::QueueLength, _) => format!("{proportional:.2} ÷ mean processing time in s"),
        _ => format!("{proportional:.2} ÷ measured time in s of a cost of 1"),
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

/// Returns the window in which calls are admitted to the class, the guarantee for such calls, and
/// the time to recover. `None` if the class has no target.
pub(super) fn recovery(promises: &ServiceAdmissionConfig, class: ClassId) -> Option<String> {
    let law = ChannelLaw::try_from(promises.settings()).ok()?;
    if !law.promises(class) {
        return None;
    }
    let percentile = promises.percentile;
    let again = || {
        let least = promises.min_probability;
        let time = Duration::from(law.recovery(class));
        format!(
            "a caller with a share of {least} in the class needs {time} without a miss to run all \
             of its calls there again"
        )
    };
    Some(match promises.central.as_ref().map(|c| c.method) {
        None => {
            let calls = law.calls_per_window();
            // The percentile is rounded to few digits.
            let lower = (law.percentile(calls / 10.0) * 1e3).round() / 1e3;
            format!(
                "classAdmission: p{percentile} holds for callers with {} calls of the class or \
                 more in a window of {}, p{lower} for those with a tenth of them; {}",
                calls.round().max(1.0),
                Duration::from(law.window(class)),
                again(),
            )
        }
        Some(Method::Misses { allowed, period_us }) => {
            let seconds = Span::from_micros(period_us).as_secs_f64();
            let calls = f64::from(allowed.get()) / ((1.0 - percentile / 100.0) * seconds);
            format!(
                "classAdmission: {allowed} misses, of all callers together, end the class until a \
                 period of {} is over; p{percentile} allows as many misses of {} calls/s in the \
                 class",
                Duration::of_micros(period_us),
                calls.round(),
            )
        }
        Some(Method::Incast { .. }) => format!(
            "classAdmission: holds the mean of waits, in windows of {}; {}",
            Duration::from(law.window(class)),
            again(),
        ),
    })
}

/// Returns the reductions of call rates by smoothing: for all calls, and for services with their
/// own ranges.
pub(super) fn reductions(calls: &OutboundConfig) -> impl Iterator<Item = String> {
    let all = calls.smoothing.iter().map(|range| (String::new(), range));
    let own = calls.service_smoothing.iter().map(|(cluster, range)| {
        let name = calls.services.get(cluster).unwrap_or(cluster);
        (format!(" of {name}"), range)
    });
    all.chain(own).flat_map(|(of, range)| reduction(of, range))
}

fn reduction(of: String, smoothing: &SmoothingConfig) -> impl Iterator<Item = String> {
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
            "smoothing{of}: clients that would send every {} send less, by rejection rate: {} (Eq. \
             3 of Chronos)",
            Duration::from(between),
            less.join(", ")
        )
    })
}
