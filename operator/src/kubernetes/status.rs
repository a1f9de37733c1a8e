//! A policy's status: what became of it at each of its targets.
//!
//! A pure function of the plan and of what proxies say. It answers "what has to be written", and that is
//! nothing when nothing changed, so that a controller at rest makes no requests.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::CONTROLLER_NAME;
use super::resource::{AdmissionPolicyStatus, AncestorReference, GROUP, PolicyAncestorStatus};
use crate::api::KIND;
use crate::plan::{PolicyState, TargetRef};
use crate::xds::conditions::{self, programmed};
use crate::xds::node::clip;
use crate::xds::tally::Tallies;

/// Entries that a status may have, of all controllers together (GEP-713).
pub const MAX_ANCESTORS: usize = 16;
/// Longest message, in bytes.
const MAX_MESSAGE: usize = 2_048;
/// The condition that tells whether a policy is right and may apply.
pub const ACCEPTED: &str = "Accepted";
/// The condition that tells whether proxies enforce it.
pub const PROGRAMMED: &str = "Programmed";

/// The status to write in place of `old`; `None` when `old` says all of it. Entries of other controllers stay
/// as they are. `delivered` is what became of the policy where another control plane's objects carry it.
#[must_use]
pub fn wanted(
    state: &PolicyState,
    tallies: &Tallies,
    delivered: Option<&conditions::Condition>,
    old: Option<&AdmissionPolicyStatus>,
    now: &Time,
) -> Option<AdmissionPolicyStatus> {
    let old = old.map_or(&[][..], |status| &status.ancestors);
    let (ours, others): (Vec<_>, Vec<_>) = old
        .iter()
        .partition(|entry| entry.controller_name == CONTROLLER_NAME);
    let room = MAX_ANCESTORS.saturating_sub(others.len());
    let new: Vec<PolicyAncestorStatus> = ancestors(state)
        .take(room)
        .map(|(ancestor_ref, target)| {
            let before = ours.iter().find(|e| e.ancestor_ref == ancestor_ref);
            let conditions = conditions_at(state, target, tallies, delivered)
                .into_iter()
                .map(|(type_, c)| {
                    let before =
                        before.and_then(|e| e.conditions.iter().find(|o| o.type_ == type_));
                    condition(type_, &c, state.generation, before, now)
                })
                .collect();
            PolicyAncestorStatus {
                ancestor_ref,
                controller_name: CONTROLLER_NAME.to_owned(),
                conditions,
            }
        })
        .collect();
    if ours.iter().copied().eq(&new) {
        return None;
    }
    let ancestors = others.into_iter().cloned().chain(new).collect();
    Some(AdmissionPolicyStatus { ancestors })
}

/// The objects that the policy names. One that names none that can be read speaks for itself, so that its
/// mistake is seen somewhere.
fn ancestors(state: &PolicyState) -> impl Iterator<Item = (AncestorReference, Option<&TargetRef>)> {
    let itself = state.targets.is_empty().then(|| {
        let (namespace, name) = state.name.split_once('/').unwrap_or(("", &state.name));
        let reference = AncestorReference {
            group: GROUP.to_owned(),
            kind: KIND.to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        };
        (reference, None)
    });
    let named = state.targets.iter().map(|target| {
        let reference = AncestorReference {
            group: target.kind.group().to_owned(),
            kind: target.kind.as_str().to_owned(),
            namespace: Some(target.namespace.clone()),
            name: target.name.clone(),
        };
        (reference, Some(target))
    });
    itself.into_iter().chain(named)
}

fn conditions_at(
    state: &PolicyState,
    target: Option<&TargetRef>,
    tallies: &Tallies,
    delivered: Option<&conditions::Condition>,
) -> [(&'static str, conditions::Condition); 2] {
    let accepted = accepted_at(state, target);
    let programmed = match target {
        Some(target) if accepted.status => {
            let tally = tallies.of_generation(&state.name, state.generation, target);
            together(tally.total, programmed(&tally), delivered)
        }
        Some(target) if state.accepted.is_err() && !state.revision.is_empty() => {
            let kept = programmed(&tallies.of_target(&state.name, target)).message;
            let message = format!("the last good version stays in force: {kept}");
            conditions::Condition::new(false, &accepted.reason, message)
        }
        _ => conditions::Condition::new(false, &accepted.reason, "nothing is enforced here"),
    };
    [(ACCEPTED, accepted), (PROGRAMMED, programmed)]
}

/// What proxies say and what became of delivered objects; a policy may reach proxies in both ways.
fn together(
    proxies: u64,
    said: conditions::Condition,
    delivered: Option<&conditions::Condition>,
) -> conditions::Condition {
    match delivered {
        None => said,
        Some(delivered) if proxies == 0 => delivered.clone(),
        Some(_) if !said.status => said,
        Some(delivered) => conditions::Condition {
            message: format!("{}; {}", said.message, delivered.message),
            ..delivered.clone()
        },
    }
}

fn accepted_at(state: &PolicyState, target: Option<&TargetRef>) -> conditions::Condition {
    let refused = |reason, message: String| conditions::Condition::new(false, reason, message);
    if let Err(problems) = &state.accepted {
        return refused("Invalid", problems.lines().collect::<Vec<_>>().join("; "));
    }
    let missing = state.not_found.iter().find(|(t, _)| Some(t) == target);
    if let Some((_, why)) = missing {
        return refused("TargetNotFound", why.clone());
    }
    if let Some(lost) = state.conflicts.iter().find(|c| Some(&c.target) == target) {
        return refused(
            "Conflicted",
            format!("{} belongs to {}, which is older", lost.target, lost.winner),
        );
    }
    if let Some(lost) = state.overridden.iter().find(|c| Some(&c.target) == target) {
        return refused(
            "Overridden",
            format!("{} is in force on its proxies", lost.winner),
        );
    }
    let message = match state.remarks(target) {
        Some(remarks) => format!("valid, but {remarks}"),
        None => "valid".to_owned(),
    };
    conditions::Condition::new(true, "Accepted", message)
}

fn condition(
    type_: &str,
    wanted: &conditions::Condition,
    generation: i64,
    before: Option<&Condition>,
    now: &Time,
) -> Condition {
    let status = if wanted.status { "True" } else { "False" };
    let since = before
        .filter(|c| c.status == status)
        .map_or(now, |c| &c.last_transition_time);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: wanted.reason.clone(),
        message: clip(&wanted.message, MAX_MESSAGE),
        observed_generation: Some(generation),
        last_transition_time: since.clone(),
    }
}

/// Whether some proxy's answer is still awaited.
#[must_use]
pub fn is_pending(status: &AdmissionPolicyStatus) -> bool {
    status
        .ancestors
        .iter()
        .filter(|entry| entry.controller_name == CONTROLLER_NAME)
        .flat_map(|entry| &entry.conditions)
        .any(|c| {
            c.type_ == PROGRAMMED && matches!(c.reason.as_str(), "Pending" | "PartiallyProgrammed")
        })
}

#[cfg(test)]
mod tests;
