//! The queue in words.

use std::collections::BTreeMap;

use headgate_core::config::{Discipline, Flow, QueueMode, TypeConfig};

use super::{Part, Subject, duration};

/// Describes the queue for an admitted request.
pub(super) fn queue(subject: &Subject<'_>) -> Part {
    let queue = &subject.stage.queue;
    let timeout = duration(queue.timeout_us);
    let does = match (queue.mode, queue.max_length) {
        (QueueMode::Observe, _) => vec![
            "held by the backend, whose order it is; wait and processing time are reconstructed"
                .to_owned(),
        ],
        (QueueMode::Hold, 0) => {
            vec!["no request waits: one that finds no free slot is refused".to_owned()]
        }
        (QueueMode::Hold, length) => vec![
            format!(
                "held by the proxy: at most {length} requests wait, each at most {timeout} or \
                 until its own deadline"
            ),
            order(subject),
        ],
    };
    let name = match queue.mode {
        QueueMode::Hold => format!("Hold, {}", name(&queue.discipline)),
        QueueMode::Observe => "Observe".to_owned(),
    };
    Part { name, does }
}

fn name(discipline: &Discipline) -> &'static str {
    match discipline {
        Discipline::Fifo => "FIFO",
        Discipline::Edf => "EDF",
        Discipline::Lstf => "LSTF",
        Discipline::Sjf => "SJF",
        Discipline::Srtf => "SRTF",
        Discipline::Lasf => "LASF",
        Discipline::Drr { .. } => "DRR",
        Discipline::Wfq { .. } => "WFQ",
        Discipline::Priority => "Priority",
        Discipline::Slack => "Slack",
    }
}

fn order(subject: &Subject<'_>) -> String {
    match &subject.stage.queue.discipline {
        Discipline::Fifo => "first in, first out".to_owned(),
        Discipline::Edf => format!("earliest deadline first; {}", deadline(subject)),
        Discipline::Lstf => format!(
            "least slack first: deadline less the processing time still ahead; {}",
            deadline(subject)
        ),
        Discipline::Sjf => format!("least total work first; {UNSAID}"),
        Discipline::Srtf => format!("least processing time still ahead first; {UNSAID}"),
        Discipline::Lasf => {
            "least work done so far first, as x-headgate-progress says; without it, none".to_owned()
        }
        Discipline::Drr {
            by,
            quantum_us,
            weights,
        } => turns(*by, *quantum_us, weights, subject),
        Discipline::Wfq { by, weights } => shares(*by, weights, subject),
        Discipline::Priority => priority(subject),
        Discipline::Slack => slack(subject.type_config()),
    }
}

const UNSAID: &str = "what x-headgate-progress doesn't say is taken for the mean of the type";

/// Describes the source of the deadline.
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

fn turns(
    by: Flow,
    quantum_us: u64,
    weights: &BTreeMap<String, f64>,
    subject: &Subject<'_>,
) -> String {
    let (what, name) = flows(by, subject);
    let quantum = duration(quantum_us);
    let own = match name {
        _ if weights.is_empty() => format!("{quantum} of processing time for each"),
        Some(name) => {
            let weight = weights.get(name).copied().unwrap_or(1.0);
            format!("{quantum} × {weight} of processing time for {name}")
        }
        None => format!("{quantum} × its weight of processing time for each"),
    };
    format!("{what} take turns; a round has {own}")
}

fn shares(by: Flow, weights: &BTreeMap<String, f64>, subject: &Subject<'_>) -> String {
    let (what, name) = flows(by, subject);
    let own = match name {
        _ if weights.is_empty() => "as much processing time as any other".to_owned(),
        Some(name) => {
            let weight = weights.get(name).copied().unwrap_or(1.0);
            format!("processing time in proportion to its weight, {name} {weight}")
        }
        None => "processing time in proportion to its weight".to_owned(),
    };
    format!("{what} take turns of single requests; each that waits has {own}")
}

/// Returns the flows that take turns, and the name of the request's flow.
fn flows<'a>(by: Flow, subject: &'a Subject<'_>) -> (&'static str, Option<&'a str>) {
    match by {
        Flow::Type => ("types", subject.type_config().map(|t| t.name.as_str())),
        Flow::Class => ("classes", subject.class_name()),
        Flow::Workflow => ("workflows", None),
    }
}
