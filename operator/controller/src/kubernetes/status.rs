//! Computes a policy's status, which has the policy's conditions at each of its targets.
//!
//! The status is a pure function of the plan, the proxies' counts and the deliveries. It is written
//! only if it has changed, so that a controller at rest makes no requests.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::CONTROLLER_NAME;
use super::resource::{AdmissionPolicyStatus, AncestorReference, GROUP, PolicyAncestorStatus};
use crate::conditions::{self, Conditions, Type};
use headgate_api::KIND;
use headgate_api::plan::{PolicyState, TargetRef};
use headgate_xds::node::clip;
use headgate_xds::tally::Tallies;

/// The largest number of entries in a status, over all controllers (GEP-713).
pub const MAX_ANCESTORS: usize = 16;
/// The longest message, in bytes.
const MAX_MESSAGE: usize = 2_048;

/// The inputs of a policy's status.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The policy in the plan.
    pub state: &'a PolicyState,
    /// The counts of proxies.
    pub tallies: &'a Tallies,
    /// The outcome of the policy's deliveries, if objects deliver the policy.
    pub delivered: Option<&'a conditions::Condition>,
    /// Present in the settling time, in which proxies may still be reconnecting, for example after
    /// a change of leader. Meanwhile a target at which the policy was programmed stays programmed
    /// although its proxies are missing. `true` if a proxy of the policy was observed in this time.
    /// If its proxies are missing after that, they aren't about to reconnect.
    pub settling: Option<bool>,
}

/// The result of [`wanted`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wanted {
    /// The status to write. `None` if the old status is current.
    pub status: Option<AdmissionPolicyStatus>,
    /// Whether a target stays programmed only because of the settling time.
    pub holds: bool,
    /// Whether some proxy's answer is pending. A target without proxies counts as pending too,
    /// because streams and deliveries may not have processed a new plan yet.
    pub pending: bool,
}

/// Returns the status to write in place of `old`. Entries of other controllers don't change.
pub fn wanted(facts: &Facts<'_>, old: Option<&AdmissionPolicyStatus>, now: &Time) -> Wanted {
    let generation = facts.state.generation;
    let (old_summary, old) = old.map_or((&[][..], &[][..]), |s| (&s.conditions, &s.ancestors));
    let (ours, others): (Vec<_>, Vec<_>) = old
        .iter()
        .partition(|entry| entry.controller_name == CONTROLLER_NAME);
    let mut wanted = Wanted::default();
    let mut of_targets = Vec::new();
    let mut new = Vec::new();
    for (ancestor_ref, target) in ancestors(facts.state) {
        let entry = ours.iter().find(|e| e.ancestor_ref == ancestor_ref);
        let before = entry.map_or(&[][..], |e| &e.conditions);
        let mut at = conditions::at(facts.state, target, facts.tallies, facts.delivered);
        let new_at = at.get(&Type::Programmed);
        if let Some(kept) = new_at.and_then(|new| kept(facts, before, new)) {
            at.insert(Type::Programmed, kept);
            wanted.holds = true;
        }
        let reason = at.get(&Type::Programmed).map(|c| c.reason.as_str());
        wanted.pending |= matches!(
            reason,
            Some("Pending" | "PartiallyProgrammed" | "NoProxies")
        );
        new.push(PolicyAncestorStatus {
            ancestor_ref,
            controller_name: CONTROLLER_NAME.to_owned(),
            conditions: as_written(&at, generation, before, now),
        });
        of_targets.push((target.map(ToString::to_string).unwrap_or_default(), at));
    }
    new.truncate(MAX_ANCESTORS.saturating_sub(others.len()));
    let summary = conditions::summary(&of_targets);
    let summary = as_written(&summary, generation, old_summary, now);
    let known = |c: &&Condition| Type::ALL.iter().any(|of| of.as_str() == c.type_);
    let is_new = !ours.iter().copied().eq(&new) || !old_summary.iter().filter(known).eq(&summary);
    wanted.status = is_new.then(|| AdmissionPolicyStatus {
        conditions: summary,
        ancestors: others.into_iter().cloned().chain(new).collect(),
    });
    wanted
}

/// Returns the condition `Programmed` of `before` if it should be kept. It should if `new` differs
/// from it only because proxies haven't answered or aren't connected, and if these proxies may
/// still be reconnecting.
fn kept(
    facts: &Facts<'_>,
    before: &[Condition],
    new: &conditions::Condition,
) -> Option<conditions::Condition> {
    let was_seen = facts.settling?;
    let waits = match new.reason.as_str() {
        "Pending" | "PartiallyProgrammed" => true,
        "NoProxies" => !was_seen,
        _ => false,
    };
    let before = find(before, Type::Programmed)?;
    let same = before.observed_generation == Some(facts.state.generation);
    (waits && same && before.status == "True").then(|| read(before))
}

fn find(conditions: &[Condition], of: Type) -> Option<&Condition> {
    conditions.iter().find(|c| c.type_ == of.as_str())
}

fn read(written: &Condition) -> conditions::Condition {
    conditions::Condition::new(written.status == "True", &written.reason, &written.message)
}

/// Returns the ancestors for the status, which are the policy's targets. A policy without a
/// readable target is its own ancestor, so that its error is visible.
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

/// Returns `conditions` as Kubernetes conditions. An unchanged status keeps its transition time
/// from `before`.
fn as_written(
    conditions: &Conditions,
    generation: i64,
    before: &[Condition],
    now: &Time,
) -> Vec<Condition> {
    let one = |(of, wanted): (&Type, &conditions::Condition)| {
        let status = if wanted.status { "True" } else { "False" };
        let since = find(before, *of)
            .filter(|c| c.status == status)
            .map_or(now, |c| &c.last_transition_time);
        Condition {
            type_: of.as_str().to_owned(),
            status: status.to_owned(),
            reason: wanted.reason.clone(),
            message: clip(&wanted.message, MAX_MESSAGE),
            observed_generation: Some(generation),
            last_transition_time: since.clone(),
        }
    };
    conditions.iter().map(one).collect()
}

/// Returns a policy's conditions over all its targets, as observed on the API server. They are
/// pending until a status for the plan's generation has been written.
pub fn written(state: &PolicyState, status: Option<&AdmissionPolicyStatus>) -> Conditions {
    let written = status.map_or(&[][..], |s| &s.conditions);
    let is_news = |c: &&Condition| c.observed_generation >= Some(state.generation);
    let found = |of| Some((of, read(find(written, of).filter(is_news)?)));
    let found: Conditions = Type::ALL.into_iter().filter_map(found).collect();
    if found.contains_key(&Type::Accepted) {
        return found;
    }
    let why = format!(
        "no replica has written a status for generation {}",
        state.generation
    );
    let pending = conditions::Condition::new(false, "Pending", why);
    let pair = [Type::Accepted, Type::Programmed].map(|of| (of, pending.clone()));
    pair.into_iter().collect()
}

#[cfg(test)]
pub(super) mod tests;
