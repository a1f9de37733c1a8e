//! The log lines for a change of the plan.

use std::collections::HashMap;

use tracing::{info, warn};

use headgate_api::plan::{Plan, PolicyState};

/// Logs the problems and states in `new` that differ from `old`.
pub(crate) fn log(old: &Plan, new: &Plan) {
    for problem in new.problems.iter().filter(|p| !old.problems.contains(p)) {
        warn!(source = problem.source, "{}", problem.message);
    }
    let (before, after) = (by_name(old), by_name(new));
    for (id, policy) in &after {
        if before.get(id) != Some(policy) {
            log_policy(policy);
        }
    }
    for (id, gone) in &before {
        if !after.contains_key(id) {
            info!(policy = gone.name, "policy deleted");
        }
    }
}

/// Returns policies by name and source, because two files may contain policies with the same name.
fn by_name(plan: &Plan) -> HashMap<(&str, &str), &PolicyState> {
    plan.policies
        .iter()
        .map(|p| ((p.name.as_str(), p.source.as_str()), p))
        .collect()
}

fn log_policy(policy: &PolicyState) {
    let (name, revision) = (policy.name.as_str(), policy.revision.as_str());
    match &policy.accepted {
        Ok(()) if revision.is_empty() => {
            warn!(
                policy = name,
                "not enforced: {}",
                not_enforced(policy).join(", ")
            );
        }
        Ok(()) => info!(policy = name, revision, mode = ?policy.mode, "policy accepted"),
        Err(problems) => {
            let stays = if revision.is_empty() {
                "nothing enforced"
            } else {
                "last good version stays"
            };
            for problem in problems.lines() {
                warn!(
                    policy = name,
                    revision, "policy refused, {stays}: {problem}"
                );
            }
        }
    }
}

/// Returns the reasons why a valid policy has no effect, one for each of its targets.
fn not_enforced(policy: &PolicyState) -> Vec<String> {
    let lost = policy
        .conflicts
        .iter()
        .map(|c| format!("conflicted on {} by {}", c.target, c.winner));
    let overridden = policy
        .overridden
        .iter()
        .map(|c| format!("overridden on {} by {}", c.target, c.winner));
    let missing = policy.not_found.iter().map(|(_, why)| why.clone());
    lost.chain(overridden).chain(missing).collect()
}
