//! Strategies in words, with the settings that are in force.

use headgate_core::config::{Discipline, Flow, StageConfig, StrategyConfig};

use super::settings::Settings;
use super::{Part, Subject, feedback};

/// The strategy, its settings, and what follows from them for the request.
pub(super) fn strategy(subject: &Subject<'_>, settings: &Settings) -> Part {
    let (block, own) = match &subject.stage.strategy {
        StrategyConfig::Bouncer { shed_by_value, .. } => {
            let value = shed_by_value.then(|| shed_by_value_of(subject));
            ("bouncer", value.into_iter().collect())
        }
        StrategyConfig::MaxQueueLength => ("maxQueueLength", Vec::new()),
        StrategyConfig::MaxQueueWait { .. } => ("maxQueueWait", Vec::new()),
        StrategyConfig::AcceptFraction { .. } => ("acceptFraction", Vec::new()),
        StrategyConfig::ResponseTimeController(control) => (
            "responseTimeController",
            feedback::response_time_controller(control, subject),
        ),
        StrategyConfig::BacklogControl(control) => {
            let gains = feedback::backlog_control(control, subject);
            ("backlogControl", gains.into_iter().collect())
        }
    };
    let mut does: Vec<String> = settings.meaning("/strategy/type").into_iter().collect();
    does.extend(settings.of(&format!("/strategy/{block}")));
    does.extend(own);
    Part {
        name: settings.text("/strategy/type").to_owned(),
        does,
    }
}

/// The starvation avoidance and its settings.
pub(super) fn starvation_avoidance(stage: &StageConfig, settings: &Settings) -> Option<Part> {
    stage.starvation_avoidance.as_ref()?;
    let mut does = settings.of("/strategy/starvationAvoidance");
    if sheds_by_value(stage) {
        does.push(
            "slots for this are set aside before others are given out by value; where it asks for more than there \
             are, objectives can't be kept, and the stat floors_over_capacity is 1"
                .to_owned(),
        );
    }
    Some(Part {
        name: settings
            .text("/strategy/starvationAvoidance/type")
            .to_owned(),
        does,
    })
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

/// The value of the request, which decides before objectives do.
fn shed_by_value_of(subject: &Subject<'_>) -> String {
    let value = subject.type_config().map_or(1.0, |kind| kind.value);
    let class = subject.class_config().map_or(1.0, |class| class.value);
    let of_class = if class == 1.0 {
        String::new()
    } else {
        format!(" × {class} for its class")
    };
    format!(
        "under overload refuses first what is worth least per processing time; this request is worth \
         {value}{of_class}"
    )
}

/// The effect of classes under this policy.
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
