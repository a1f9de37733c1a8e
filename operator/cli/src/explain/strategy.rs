//! Strategies in words, with the numbers in force.

use headgate_core::config::{
    Discipline, Flow, HistogramWindow, Logic, StageConfig, StarvationAvoidance, StrategyConfig,
};

use super::{Part, Subject, duration, feedback};

/// Describes when the request is refused.
pub(super) fn strategy(subject: &Subject<'_>) -> Part {
    let stage = subject.stage;
    let slots = stage.parallelism;
    let (name, does) = match &stage.strategy {
        StrategyConfig::Bouncer {
            logic,
            shed_by_value,
        } => {
            let mut does = bouncer(stage, *logic);
            if *shed_by_value {
                does.insert(0, shed_by_value_of(subject));
            }
            ("Bouncer", does)
        }
        StrategyConfig::MaxQueueLength => {
            let full = match stage.queue.max_length {
                0 => "refuses what finds no free slot".to_owned(),
                length => format!("refuses only when {length} requests wait"),
            };
            ("MaxQueueLength", vec![full])
        }
        StrategyConfig::MaxQueueWait {
            limit_us,
            type_limits_us,
            window_us,
            step_us,
        } => {
            let own = subject
                .type_config()
                .and_then(|k| type_limits_us.get(&k.name));
            let limit = duration(*own.unwrap_or(limit_us));
            let whose = match own {
                Some(_) => " (the type's own limit)",
                None => "",
            };
            let refuses = format!(
                "refuses while requests waiting × mean processing time ÷ {slots} slots exceeds \
                 {limit}{whose}"
            );
            let mean = format!(
                "the mean is over all types and {}, in steps of {}",
                duration(*window_us),
                duration(*step_us)
            );
            ("MaxQueueWait", vec![refuses, mean])
        }
        StrategyConfig::AcceptFraction {
            max_utilization,
            units,
            window_us,
            step_us,
        } => {
            let available = match units {
                Some(units) => format!("{units} processing units"),
                None => format!("{slots} slots"),
            };
            let lets_in = format!(
                "lets in a share of all requests, at random: {max_utilization} × {available} ÷ \
                 (arrival rate × mean processing time), at most 1"
            );
            let computed = format!(
                "both are averages over {}, and the share is computed anew every {}",
                duration(*window_us),
                duration(*step_us)
            );
            ("AcceptFraction", vec![lets_in, computed])
        }
        StrategyConfig::ResponseTimeController(control) => (
            "ResponseTimeController",
            feedback::response_time_controller(control, subject),
        ),
        StrategyConfig::BacklogControl(control) => (
            "BacklogControl",
            feedback::backlog_control(control, subject),
        ),
    };
    Part {
        name: name.to_owned(),
        does,
    }
}

fn sheds_by_value(stage: &StageConfig) -> bool {
    matches!(
        stage.strategy,
        StrategyConfig::Bouncer {
            shed_by_value: true,
            ..
        }
    )
}

/// Describes the decision that comes before that by objectives.
fn shed_by_value_of(subject: &Subject<'_>) -> String {
    let value = subject.type_config().map_or(1.0, |kind| kind.value);
    let class = subject.class_config().map_or(1.0, |class| class.value);
    let of_class = if class == 1.0 {
        String::new()
    } else {
        format!(" × {class} for its class")
    };
    format!(
        "under overload refuses first what is worth least per processing time; this request is \
         worth {value}{of_class}"
    )
}

fn bouncer(stage: &StageConfig, logic: Logic) -> Vec<String> {
    let misses = match logic {
        Logic::Any => "any of its objectives",
        Logic::All => "all of its objectives",
    };
    let times = &stage.service_times;
    let (interval, samples) = (duration(times.interval_us), times.min_samples);
    let window = match times.window {
        HistogramWindow::DualBuffer => format!("measured in intervals of {interval}"),
        HistogramWindow::Sliding { step_us } => {
            format!(
                "those of the last {interval}, in steps of {}",
                duration(step_us)
            )
        }
    };
    vec![
        format!(
            "refuses what would miss {misses}: estimated queue wait + processing time of its type \
             at the percentile"
        ),
        format!(
            "processing times are {window}; a type with fewer than {samples} goes by those of all \
             types and the objectives of default"
        ),
    ]
}

/// Describes the requests that are admitted despite the strategy.
pub(super) fn starvation_avoidance(stage: &StageConfig) -> Option<Part> {
    let over = |window_us: u64, step_us: u64| {
        format!(
            "over the last {}, in steps of {}",
            duration(window_us),
            duration(step_us)
        )
    };
    let (name, does) = match stage.starvation_avoidance.as_ref()? {
        StarvationAvoidance::AcceptanceAllowance {
            allowance,
            window_us,
            step_us,
        } => {
            let percent = percent(*allowance);
            let over = over(*window_us, *step_us);
            let does =
                format!("lets in at least {percent} of each type, whatever its objectives, {over}");
            ("AcceptanceAllowance", does)
        }
        StarvationAvoidance::HelpingTheUnderserved {
            alpha,
            window_us,
            step_us,
        } => {
            let over = over(*window_us, *step_us);
            let does = format!(
                "lets in what was refused of types that are accepted less than the average, with a \
                 probability of up to {}, {over}",
                percent(alpha / 2.0)
            );
            ("HelpingTheUnderserved", does)
        }
    };
    let mut does = vec![does];
    if sheds_by_value(stage) {
        does.push(
            "slots for this are set aside before others are given out by value; where it asks for \
             more than there are, objectives can't be kept, and the stat floors_over_capacity is 1"
                .to_owned(),
        );
    }
    Some(Part {
        name: name.to_owned(),
        does,
    })
}

/// Describes the effects of classes under this policy.
pub(super) fn use_of_classes(stage: &StageConfig) -> &'static str {
    let by_value = sheds_by_value(stage) && stage.classes.iter().any(|class| class.value != 1.0);
    let by_strategy =
        by_value || matches!(stage.strategy, StrategyConfig::ResponseTimeController(_));
    let by_queue = match &stage.queue.discipline {
        Discipline::Drr { by, .. } | Discipline::Wfq { by, .. } => *by == Flow::Class,
        Discipline::Priority => true,
        _ => false,
    };
    match (by_strategy, by_queue) {
        (true, true) if by_value => {
            "they scale the value that requests are shed by, and the queue's order goes by class"
        }
        (true, false) if by_value => "they scale the value that requests are shed by",
        (true, true) => {
            "the strategy refuses lower classes first, and the queue's order goes by class"
        }
        (true, false) => "the strategy refuses lower classes first",
        (false, true) => "the queue's order goes by class",
        (false, false) => {
            "no effect: neither this strategy nor this discipline tells classes apart"
        }
    }
}

/// Returns a ratio as a percentage, without the noise of binary fractions.
fn percent(ratio: f64) -> String {
    let percent = (ratio * 1e6).round() / 1e4;
    format!("{percent}%")
}
