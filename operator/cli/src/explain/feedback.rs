//! The strategies that control by feedback, in words.

use std::time::Duration as Span;

use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, ControlScope, CostConfig, DegradationConfig, QueueMode,
    ResponseTimeControllerConfig,
};
use headgate_core::strategy::Gains;

use super::{Subject, duration};

pub(super) fn response_time_controller(
    control: &ResponseTimeControllerConfig,
    subject: &Subject<'_>,
) -> Vec<String> {
    let ResponseTimeControllerConfig {
        percentile,
        smoothing,
        requests,
        increase_below,
        decrease_above,
        increase,
        decrease,
        increase_offset,
        min_rate,
        max_rate,
        ..
    } = control;
    let timeout = duration(control.timeout_us);
    let whose = match control.scope {
        ControlScope::Type => "this type",
        ControlScope::Policy => "all types together",
    };
    let target = match own_target(control, subject) {
        Some(us) => duration(us).to_string(),
        None => "its target".to_owned(),
    };
    let mut does = vec![
        format!("holds p{percentile} of the response times of {whose} at {target}, wait included"),
        format!(
            "by the rate at which it lets requests in: {min_rate} to {max_rate} requests/s, \
             adjusted after {requests} requests or {timeout}"
        ),
        format!(
            "error = (moving average of p{percentile} − target) ÷ target, the past weighing \
             {smoothing}; above {decrease_above}: rate ÷ {decrease}; below {increase_below}: rate \
             + {increase} × ({increase_offset} − error)"
        ),
    ];
    if !subject.stage.classes.is_empty() {
        does.push(format!(
            "when a class misses its target, the rates of lower classes ÷ {}; its own rate gives \
             way only after {} runs with all lower ones at {min_rate}",
            control.lower_class_decrease, control.lower_class_patience
        ));
    }
    does.extend(control.degradation.as_ref().map(degradation));
    does.extend(own_target(control, subject).and_then(|us| timeout_first(us, subject)));
    does
}

/// Returns the target of this request, µs; `None` if targets differ.
fn own_target(control: &ResponseTimeControllerConfig, subject: &Subject<'_>) -> Option<u64> {
    let row = match control.scope {
        ControlScope::Type => subject.kind?,
        ControlScope::Policy => 0,
    };
    let row = control.targets_us.get(row)?;
    row.get(subject.class.unwrap_or(0)).copied()
}

/// Returns a warning if requests leave the queue before a delay of `target_us` can be measured.
fn timeout_first(target_us: u64, subject: &Subject<'_>) -> Option<String> {
    let queue = &subject.stage.queue;
    (queue.mode == QueueMode::Hold && queue.timeout_us <= target_us).then(|| {
        format!(
            "careful: queue.timeout ends every wait after {}, so longer delays than that and the \
             processing time are never seen; set it above the target",
            duration(queue.timeout_us)
        )
    })
}

fn degradation(degradation: &DegradationConfig) -> String {
    let DegradationConfig {
        min_quality,
        decrease,
        increase,
        admission,
    } = degradation;
    let then = if *admission {
        "the rate decreases only at the lowest quality"
    } else {
        "the rate stays as it is, nothing is refused"
    };
    format!(
        "first tells the application by x-headgate-quality to answer with less, 1 to \
         {min_quality}: ÷ {decrease} where the rate would decrease, + {increase} where it would \
         increase; {then}"
    )
}

pub(super) fn backlog_control(
    control: &BacklogControlConfig,
    subject: &Subject<'_>,
) -> Vec<String> {
    let (target, period) = (duration(control.target_us), duration(control.period_us));
    let rule = match control.control {
        BacklogSignal::Backlog => {
            "refuses what would bring the cost of all that waits above a bound, unless a slot is \
             free"
        }
        BacklogSignal::QueueLength => {
            "refuses what would bring the number of those who wait above a bound, unless a slot is \
             free"
        }
        BacklogSignal::Proportional => {
            "refuses at random, with a probability in proportion to (mean service delay − target) \
             ÷ target"
        }
    };
    let mut does = vec![
        format!(
            "holds the mean service delay (wait and processing time, all types) at {target}, \
             measured every {period}"
        ),
        rule.to_owned(),
    ];
    does.extend(law(control, subject));
    does.push(cost(control, subject));
    if control.hint {
        does.push(
            "tells the rejection rate by x-headgate-rejection-rate on every response".to_owned(),
        );
    }
    does
}

/// Describes the law that moves the bound, or the probability.
fn law(control: &BacklogControlConfig, subject: &Subject<'_>) -> Vec<String> {
    if control.control == BacklogSignal::Proportional {
        let gain = control.proportional_gain.unwrap_or(1.0);
        return vec![format!("the probability is {gain} × that, 0 to 1")];
    }
    let unit = match (control.control, &control.cost) {
        (BacklogSignal::QueueLength, _) => " requests",
        (_, CostConfig::Measured) => " ms",
        _ => "",
    };
    let gains = match (control.proportional_gain, control.integral_gain) {
        (Some(proportional), Some(integral)) => {
            format!("K_P = {proportional}{unit} per s of error, K_I = {integral}")
        }
        _ => derived_gains(control, subject),
    };
    let length = subject.stage.queue.max_length;
    let largest = match (control.max_backlog, control.control) {
        (Some(max), _) => format!("at most {max}{unit}"),
        (None, BacklogSignal::QueueLength) => {
            format!("at most {length} requests (queue.maxLength)")
        }
        (None, _) => format!("at most {length} (queue.maxLength) × the largest cost served"),
    };
    vec![format!(
        "the bound moves with the error: {gains}; {largest}"
    )]
}

/// Returns the derived gains, apart from the measured time of a unit of cost, if that isn't known.
fn derived_gains(control: &BacklogControlConfig, subject: &Subject<'_>) -> String {
    let slots = f64::from(subject.stage.parallelism);
    let span = |us| Span::from_micros(us);
    let (target, period) = (span(control.target_us), span(control.period_us));
    // With one slot, for a unit of cost that takes 1s.
    let Gains {
        proportional,
        integral,
    } = Gains::derived(1.0 / slots, target, period);
    let proportional = match (control.control, &control.cost) {
        (BacklogSignal::Backlog, CostConfig::Measured) => {
            format!("{:.0} ms per s of error", proportional * 1e3)
        }
        (BacklogSignal::QueueLength, _) => {
            format!("{proportional:.2} ÷ mean processing time in s, per s of error")
        }
        _ => {
            format!("{proportional:.2} ÷ measured time in s that a cost of 1 takes, per s of error")
        }
    };
    format!("K_P = {proportional}, K_I = {integral:.3} (derived)")
}

fn cost(control: &BacklogControlConfig, subject: &Subject<'_>) -> String {
    match &control.cost {
        CostConfig::Measured => {
            "a request costs the measured mean processing time of its type, in ms".to_owned()
        }
        CostConfig::Type { costs } => match subject.kind.and_then(|kind| costs.get(kind)) {
            Some(cost) => format!("a request of this type costs {cost}"),
            None => "a request costs what its type does".to_owned(),
        },
        CostConfig::Header { header } => {
            format!("a request costs what its header {header} says; without it, 1")
        }
    }
}
