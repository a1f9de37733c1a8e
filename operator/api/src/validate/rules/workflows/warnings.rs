//! Settings that are valid but seldom intended.

use headgate_core::config::{Discipline, Flow, QueueMode, StageConfig};

use super::super::At;

/// Adds warnings about consequences that the author of these workflows may have overlooked.
pub(in crate::validate::rules) fn warnings(stage: &StageConfig, spec: &At<'_>) {
    let Some(workflows) = &stage.workflows else {
        return;
    };
    if let Some(order) = blind_order(stage) {
        spec.field("queue.discipline").add(format!(
            "{order}, which ignores workflows: one with a steady rate fills the queue, and the \
             bursts of others wait behind it; with DRR by Workflow they take turns"
        ));
    }
    if workflows.edge && !workflows.peers.is_empty() {
        spec.field("workflows.peers").add(
            "given with edge, where no caller is trusted; peers are then the services that this \
             one calls",
        );
    }
}

/// Returns the order of a held queue if this order ignores the workflow and the progress of
/// requests.
fn blind_order(stage: &StageConfig) -> Option<String> {
    let (name, by) = match &stage.queue.discipline {
        Discipline::Fifo => ("FIFO", None),
        Discipline::Priority => ("Priority", None),
        Discipline::Slack => ("Slack", None),
        Discipline::Drr { by, .. } => ("DRR", Some(by)),
        Discipline::Wfq { by, .. } => ("WFQ", Some(by)),
        Discipline::Edf
        | Discipline::Lstf
        | Discipline::Sjf
        | Discipline::Srtf
        | Discipline::Lasf => return None,
    };
    match by {
        _ if stage.queue.mode == QueueMode::Observe => None,
        Some(Flow::Workflow) => None,
        Some(by) => Some(format!("{name} by {by:?}")),
        None => Some(name.to_owned()),
    }
}
