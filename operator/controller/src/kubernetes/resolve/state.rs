//! The outcome of one policy.

use std::collections::BTreeMap;

use headgate_core::config::Mode;

use crate::kubernetes::cluster::{ObjectKey, PolicyObject};
use headgate_api::plan::{Conflict, PolicyState, TargetRef};

/// The outcomes of a policy's targets, in the policy's order.
#[derive(Debug, Default)]
pub(super) struct Fate {
    /// Targets of which an older policy has won.
    pub(super) conflicts: Vec<Conflict>,
    /// Targets at which other policies are in force on all proxies.
    pub(super) overridden: Vec<Conflict>,
    /// Targets on whose proxies the workflows of other policies are in force.
    pub(super) without_workflows: Vec<Conflict>,
    /// Targets that weren't found, with what is missing.
    pub(super) not_found: Vec<(TargetRef, String)>,
    /// Requests of targets to which the policy unexpectedly doesn't apply, and the reason.
    pub(super) left_out: Vec<String>,
    /// The revision at the first target where the policy is in force; empty if there is none.
    pub(super) revision: String,
}

pub(super) fn state(key: &ObjectKey, object: &PolicyObject, fate: Fate) -> PolicyState {
    let effective = object.effective();
    let warnings = effective.map_or_else(Vec::new, |p| p.warnings.clone());
    PolicyState {
        name: key.to_string(),
        source: format!("AdmissionPolicy {key}"),
        generation: object.generation,
        targets: effective.map_or_else(|| object.targets.clone(), |p| p.targets.clone()),
        accepted: match &object.checked {
            Ok(_) => Ok(()),
            Err(mistakes) => Err(mistakes.join("\n")),
        },
        conflicts: fate.conflicts,
        overridden: fate.overridden,
        without_workflows: fate.without_workflows,
        warnings: warnings.into_iter().chain(fate.left_out).collect(),
        beyond_limit: BTreeMap::new(),
        not_found: fate.not_found,
        mode: effective.map_or(Mode::default(), |p| p.stage.mode),
        endpoint_slots: effective.and_then(|p| p.slots.of_endpoint()),
        revision: fate.revision,
    }
}
