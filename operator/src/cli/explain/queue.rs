//! The queue in words.

use headgate_core::config::{Discipline, QueueMode, TypeConfig};

use super::settings::Settings;
use super::{Part, Subject, duration};

/// The queue's settings, and the place of the request in its order.
pub(super) fn queue(subject: &Subject<'_>, settings: &Settings) -> Part {
    let queue = &subject.stage.queue;
    let mut does = settings.of("/queue");
    let name = match queue.mode {
        QueueMode::Observe => "Observe".to_owned(),
        QueueMode::Hold => format!("Hold, {}", settings.text("/queue/discipline")),
    };
    if queue.mode == QueueMode::Hold && queue.max_length > 0 {
        does.extend(order(subject));
    }
    Part { name, does }
}

fn order(subject: &Subject<'_>) -> Option<String> {
    match &subject.stage.queue.discipline {
        Discipline::Edf | Discipline::Lstf => Some(deadline(subject)),
        Discipline::Sjf | Discipline::Srtf => Some(
            "work that x-headgate-progress doesn't report is taken to be the mean of the type"
                .to_owned(),
        ),
        Discipline::Priority => Some(priority(subject)),
        Discipline::Slack => Some(slack(subject.type_config())),
        Discipline::Fifo | Discipline::Lasf | Discipline::Drr { .. } | Discipline::Wfq { .. } => {
            None
        }
    }
}

/// The deadline of the request, and its source.
fn deadline(subject: &Subject<'_>) -> String {
    let kind = subject.type_config();
    let highest = kind.and_then(|k| k.slo.last());
    let otherwise = match (kind, highest) {
        (_, Some(highest)) => format!(
            "{} after its arrival (p{} of its type)",
            duration(highest.objective_us),
            highest.percentile
        ),
        (Some(_), None) => format!(
            "{} after its arrival (queue.timeout)",
            duration(subject.stage.queue.timeout_us)
        ),
        (None, None) => "its type's objective at the highest percentile".to_owned(),
    };
    format!("the deadline is the request's own, else {otherwise}")
}

fn priority(subject: &Subject<'_>) -> String {
    let classes = subject.stage.classes.iter().map(|c| c.name.as_str());
    let higher: Vec<&str> = match subject.class_name() {
        Some(own) => classes.take_while(|name| *name != own).collect(),
        None => {
            return "requests of higher classes first; first in, first out within a class".into();
        }
    };
    match higher.as_slice() {
        [] => "no other class goes first; first in, first out within the class".to_owned(),
        _ => format!(
            "requests of {} go first, however many they are; first in, first out within the class",
            higher.join(", ")
        ),
    }
}

fn slack(kind: Option<&TypeConfig>) -> String {
    let objectives = kind.map(|k| k.slo.as_slice()).unwrap_or_default();
    let left: Vec<String> = objectives
        .iter()
        .map(|o| {
            let (p, within) = (o.percentile, duration(o.objective_us));
            format!("{within} − p{p} of processing time")
        })
        .collect();
    let least = match left.as_slice() {
        [] => "the least that any objective of its type leaves for waiting".to_owned(),
        [one] => one.clone(),
        several => format!("the least of {}", several.join(", ")),
    };
    format!("earliest latest start first: arrival + {least}")
}
