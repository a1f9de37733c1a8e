//! A policy's status: what became of it at each of its targets.
//!
//! A pure function of the plan and of what proxies say. It answers "what has to be written", and that is
//! nothing when nothing changed, so that a controller at rest makes no requests.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::CONTROLLER_NAME;
use super::resource::{AdmissionPolicyStatus, AncestorReference, GROUP, PolicyAncestorStatus};
use crate::api::KIND;
use crate::plan::{PolicyState, TargetRef};
use crate::xds::conditions;
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
            let conditions = [ACCEPTED, PROGRAMMED]
                .into_iter()
                .zip(conditions::at(state, target, tallies, delivered))
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
            section_name: None,
        };
        (reference, None)
    });
    let named = state.targets.iter().map(|target| {
        let reference = AncestorReference {
            group: target.kind.group().to_owned(),
            kind: target.kind.as_str().to_owned(),
            namespace: Some(target.namespace.clone()),
            name: target.name.clone(),
            section_name: target.section.clone(),
        };
        (reference, Some(target))
    });
    itself.into_iter().chain(named)
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

/// The conditions that the API server has of a policy, of all its targets; what is about an older generation counts as
/// not written.
#[must_use]
pub fn written(
    state: &PolicyState,
    status: Option<&AdmissionPolicyStatus>,
) -> [conditions::Condition; 2] {
    let ancestors = status.iter().flat_map(|s| &s.ancestors);
    let ours = ancestors.filter(|entry| entry.controller_name == CONTROLLER_NAME);
    let condition = |entry: &PolicyAncestorStatus, type_: &str| {
        let found = entry.conditions.iter().find(|c| c.type_ == type_)?;
        let is_news = found.observed_generation >= Some(state.generation);
        is_news.then(|| {
            conditions::Condition::new(found.status == "True", &found.reason, &found.message)
        })
    };
    let of_targets: Option<Vec<_>> = ours
        .map(|entry| {
            let target = &entry.ancestor_ref;
            let namespace = target.namespace.as_deref().unwrap_or_default();
            let name = format!("{}/{namespace}/{}", target.kind, target.name);
            Some((
                name,
                [condition(entry, ACCEPTED)?, condition(entry, PROGRAMMED)?],
            ))
        })
        .collect();
    let summary = of_targets.and_then(|all| conditions::summary(&all));
    summary.unwrap_or_else(|| {
        let why = format!(
            "no replica has written what becomes of generation {}",
            state.generation
        );
        let pending = conditions::Condition::new(false, "Pending", why);
        [pending.clone(), pending]
    })
}

/// Whether `new` says only because proxies haven't answered, or aren't there, that a generation isn't programmed that
/// `old` says is. Where some proxy `was_seen`, that there is none is no longer a matter of waiting.
#[must_use]
pub fn loses_proxies(
    old: Option<&AdmissionPolicyStatus>,
    new: &AdmissionPolicyStatus,
    was_seen: bool,
) -> bool {
    let programmed = |status: &AdmissionPolicyStatus, at: &AncestorReference| {
        let ours = |e: &&PolicyAncestorStatus| {
            e.controller_name == CONTROLLER_NAME && e.ancestor_ref == *at
        };
        let entry = status.ancestors.iter().find(ours)?;
        entry
            .conditions
            .iter()
            .find(|c| c.type_ == PROGRAMMED)
            .cloned()
    };
    new.ancestors.iter().any(|entry| {
        let at = &entry.ancestor_ref;
        let (Some(new), Some(old)) = (programmed(new, at), old.and_then(|o| programmed(o, at)))
        else {
            return false;
        };
        let waits = match new.reason.as_str() {
            "Pending" | "PartiallyProgrammed" => true,
            "NoProxies" => !was_seen,
            _ => false,
        };
        old.status == "True" && old.observed_generation == new.observed_generation && waits
    })
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
