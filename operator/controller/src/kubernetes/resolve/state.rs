//! The state of one policy in a plan.

use crate::kubernetes::cluster::{ObjectKey, PolicyObject};
use headgate_api::plan::PolicyState;

/// Returns the state of a policy, without the outcomes of its targets.
pub(super) fn state(key: &ObjectKey, object: &PolicyObject) -> PolicyState {
    let accepted = match &object.checked {
        Ok(_) => Ok(()),
        Err(mistakes) => Err(mistakes.join("\n")),
    };
    PolicyState::new(
        (key.to_string(), format!("AdmissionPolicy {key}")),
        object.generation,
        &object.targets,
        accepted,
        object.effective(),
    )
}
