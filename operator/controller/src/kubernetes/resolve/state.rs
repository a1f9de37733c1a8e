//! The outcome of one policy.

use std::collections::BTreeMap;

use headgate_core::config::Mode;

use crate::kubernetes::cluster::{ObjectKey, PolicyObject};
use headgate_api::plan::PolicyState;

/// Returns the state of a policy, without the outcomes of its targets.
pub(super) fn state(key: &ObjectKey, object: &PolicyObject) -> PolicyState {
    let effective = object.effective();
    PolicyState {
        name: key.to_string(),
        source: format!("AdmissionPolicy {key}"),
        generation: object.generation,
        targets: effective.map_or_else(|| object.targets.clone(), |p| p.targets.clone()),
        accepted: match &object.checked {
            Ok(_) => Ok(()),
            Err(mistakes) => Err(mistakes.join("\n")),
        },
        conflicts: Vec::new(),
        overridden: Vec::new(),
        without_workflows: Vec::new(),
        warnings: effective.map_or_else(Vec::new, |p| p.warnings.clone()),
        beyond_limit: BTreeMap::new(),
        not_found: Vec::new(),
        mode: effective.map_or(Mode::default(), |p| p.stage.mode),
        endpoint_slots: effective.and_then(|p| p.slots.of_endpoint()),
        revision: String::new(),
    }
}
