//! `spec.queue`.

use std::time::Duration as Span;

use headgate_core::config::{Discipline, MAX_QUEUE_LENGTH, QueueConfig};

use super::names::check_known;
use super::{HOUR, MILLISECOND, Problems, SECOND};
use crate::api::{
    AdmissionPolicySpec, DeficitRoundRobin, DisciplineType, FlowType, QueueModeType, StrategyType,
};
use crate::validate::path::Path;

const MAX_LENGTH_DEFAULT: u32 = 800;
const TIMEOUT: (Span, Span) = (MILLISECOND, HOUR);
const QUANTUM_DEFAULT: Span = Span::from_millis(10);
const QUANTUM: (Span, Span) = (MILLISECOND, Span::from_secs(60));
const MAX_WORKFLOW_ID: usize = 256;

pub(super) fn queue(spec: &AdmissionPolicySpec, at: &Path, problems: &mut Problems) -> QueueConfig {
    let queue = &spec.queue;
    let max_length = problems.number(
        at.field("maxLength"),
        queue.max_length,
        MAX_LENGTH_DEFAULT,
        (0, MAX_QUEUE_LENGTH),
    );
    let timeout_us = problems.setting(
        &at.field("timeout"),
        queue.timeout.as_ref(),
        SECOND,
        TIMEOUT,
    );
    let chosen = in_use(spec);
    let name = chosen.as_str();
    if queue.mode == QueueModeType::Observe && chosen != DisciplineType::Fifo {
        let right = "with mode Observe the order is the backend's; leave it out or use mode Hold";
        problems.add(at.field("discipline"), format!("{name:?}; {right}"));
    }
    if queue.drr.is_some() && chosen != DisciplineType::Drr {
        problems.add(
            at.field("drr"),
            format!("given with discipline {name}; leave it out or use discipline DRR"),
        );
    }
    QueueConfig {
        mode: queue.mode.into(),
        discipline: discipline(spec, at, problems),
        max_length,
        timeout_us,
    }
}

/// The discipline that is asked for, or the default: the order that keeps everybody's objectives, where
/// everybody has some.
pub(super) fn in_use(spec: &AdmissionPolicySpec) -> DisciplineType {
    let held = spec.queue.mode == QueueModeType::Hold;
    let default = match spec.strategy.kind {
        StrategyType::Bouncer if held => DisciplineType::Slack,
        _ => DisciplineType::Fifo,
    };
    spec.queue.discipline.unwrap_or(default)
}

fn discipline(spec: &AdmissionPolicySpec, at: &Path, problems: &mut Problems) -> Discipline {
    match in_use(spec) {
        DisciplineType::Fifo => Discipline::Fifo,
        DisciplineType::Edf => Discipline::Edf,
        DisciplineType::Lstf => Discipline::Lstf,
        DisciplineType::Sjf => Discipline::Sjf,
        DisciplineType::Srtf => Discipline::Srtf,
        DisciplineType::Lasf => Discipline::Lasf,
        DisciplineType::Slack => Discipline::Slack,
        DisciplineType::Drr => {
            let settings = spec.queue.drr.clone().unwrap_or_default();
            deficit_round_robin(spec, settings, &at.field("drr"), problems)
        }
    }
}

fn deficit_round_robin(
    spec: &AdmissionPolicySpec,
    settings: DeficitRoundRobin,
    at: &Path,
    problems: &mut Problems,
) -> Discipline {
    let quantum = settings.quantum.as_ref();
    let quantum_us = problems.setting(&at.field("quantum"), quantum, QUANTUM_DEFAULT, QUANTUM);
    let weights = at.field("weights");
    let names = settings.weights.keys();
    match settings.by {
        FlowType::Type => {
            let types: Vec<&str> = spec.types.iter().map(|t| t.name.as_str()).collect();
            check_known(names, "type", &types, &weights, problems);
        }
        FlowType::Class if spec.classes.is_empty() => {
            let right = "there are none; add spec.classes or use Type or Workflow";
            problems.add(at.field("by"), format!("Class; {right}"));
        }
        FlowType::Class => {
            let classes: Vec<&str> = spec.classes.iter().map(|c| c.name.as_str()).collect();
            check_known(names, "class", &classes, &weights, problems);
        }
        FlowType::Workflow => {
            for id in names.filter(|id| !(1..=MAX_WORKFLOW_ID).contains(&id.len())) {
                let right = format!("the id of a workflow, 1 to {MAX_WORKFLOW_ID} bytes");
                problems.add(weights.key(id), format!("{} bytes; {right}", id.len()));
            }
        }
    }
    for (name, weight) in &settings.weights {
        problems.real(
            weights.key(name),
            Some(*weight),
            1.0,
            |w| (0.01..=100.0).contains(&w),
            "a weight, 0.01 to 100",
        );
    }
    Discipline::Drr {
        by: settings.by.into(),
        quantum_us,
        weights: settings.weights,
    }
}
