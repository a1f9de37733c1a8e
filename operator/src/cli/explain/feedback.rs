//! The strategies that control by feedback: what follows from their settings for a request.

use std::time::Duration as Span;

use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, ControlScope, CostConfig, QueueMode,
    ResponseTimeControllerConfig,
};
use headgate_core::strategy::Gains;

use super::{Subject, duration};

pub(super) fn response_time_controller(
    control: &ResponseTimeControllerConfig,
    subject: &Subject<'_>,
) -> Vec<String> {
    let Some(target) = own_target(control, subject) else {
        return Vec::new();
    };
    let own = format!(
        "the target of this request is p{} within {}, wait included",
        control.percentile,
        duration(target)
    );
    let warning = timeout_first(target, subject);
    std::iter::once(own).chain(warning).collect()
}

/// The target of this request, µs; `None` where targets differ.
fn own_target(control: &ResponseTimeControllerConfig, subject: &Subject<'_>) -> Option<u64> {
    let row = match control.scope {
        ControlScope::Type => subject.kind?,
        ControlScope::Policy => 0,
    };
    let row = control.targets_us.get(row)?;
    row.get(subject.class.unwrap_or(0)).copied()
}

/// A warning where requests leave the queue before a delay of `target_us` can be seen.
fn timeout_first(target_us: u64, subject: &Subject<'_>) -> Option<String> {
    let queue = &subject.stage.queue;
    (queue.mode == QueueMode::Hold && queue.timeout_us <= target_us).then(|| {
        format!(
            "careful: queue.timeout ends every wait after {}, so longer delays than that and the processing \
             time are never seen; set it above the target",
            duration(queue.timeout_us)
        )
    })
}

pub(super) fn backlog_control(
    control: &BacklogControlConfig,
    subject: &Subject<'_>,
) -> Option<String> {
    let is_derived = control.proportional_gain.is_none() || control.integral_gain.is_none();
    let has_bound = control.control != BacklogSignal::Proportional;
    (is_derived && has_bound).then(|| derived_gains(control, subject))
}

/// The gains in force, but for the measured time that a unit of cost takes, where that isn't known.
fn derived_gains(control: &BacklogControlConfig, subject: &Subject<'_>) -> String {
    let slots = f64::from(subject.stage.parallelism);
    let span = |us| Span::from_micros(us);
    let (target, period) = (span(control.target_us), span(control.period_us));
    // In front of one slot a unit that takes 1s.
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
