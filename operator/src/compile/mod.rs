//! From policies to one filter configuration for each workload.
//!
//! A pure function: the same policies in any order give the same [`Compiled`], byte for byte, so that a
//! revision names what a proxy enforces, and nothing is sent when nothing changed. Where several
//! policies target one object, the oldest applies and the others are in conflict (GEP-713).

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_core::config::FilterConfig;
use sha2::{Digest, Sha256};

use crate::plan::{Conflict, TargetRef};
use crate::validate::ValidPolicy;

/// What a set of policies compiles to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compiled {
    /// One configuration for each target of any policy.
    pub workloads: BTreeMap<TargetRef, Arc<FilterConfig>>,
    /// By `namespace/name` of the policy that lost.
    pub conflicts: BTreeMap<String, Vec<Conflict>>,
}

/// Compiles `policies`, whose names are unique. `endpoints` tells how many ready endpoints are behind a
/// target; where nobody knows, as in a folder, that is one.
#[must_use]
pub fn compile(policies: &[&ValidPolicy], endpoints: impl Fn(&TargetRef) -> u32) -> Compiled {
    let mut by_age = policies.to_vec();
    by_age.sort_by(|a, b| precedence(a).cmp(&precedence(b)));

    let mut compiled = Compiled::default();
    let mut winners: BTreeMap<&TargetRef, &ValidPolicy> = BTreeMap::new();
    for policy in by_age {
        for target in &policy.targets {
            if let Some(winner) = winners.get(target) {
                let conflict = Conflict {
                    target: target.clone(),
                    winner: winner.full_name(),
                };
                compiled
                    .conflicts
                    .entry(policy.full_name())
                    .or_default()
                    .push(conflict);
            } else {
                winners.insert(target, policy);
                let config = Arc::new(configuration(policy, endpoints(target)));
                compiled.workloads.insert(target.clone(), config);
            }
        }
    }
    compiled
}

/// The configuration that enforces `policy` alone, in front of `endpoints` endpoints.
#[must_use]
pub fn configuration(policy: &ValidPolicy, endpoints: u32) -> FilterConfig {
    let mut stage = policy.stage.clone();
    stage.parallelism = policy.slots.for_endpoints(endpoints);
    let mut config = FilterConfig {
        revision: String::new(),
        stages: vec![stage],
    };
    config.revision = revision(&config);
    config
}

/// GEP-713: the oldest first, then by namespace and name. A policy of unknown age, as in a folder, comes
/// after those whose age is known.
fn precedence(policy: &ValidPolicy) -> impl Ord + '_ {
    let age = policy.created.as_deref();
    (
        age.is_none(),
        age,
        policy.namespace.as_str(),
        policy.name.as_str(),
    )
}

/// The first 12 hexadecimal digits of the SHA-256 of the configuration's JSON, whose own revision is
/// left empty. `serde_json` writes fields in the order of their declaration and floats in their shortest
/// form, so equal configurations have equal JSON.
fn revision(config: &FilterConfig) -> String {
    // Configurations hold no maps with odd keys and no floats that JSON lacks; the text of the error
    // still is a deterministic stand-in.
    let json = serde_json::to_vec(config).unwrap_or_else(|e| e.to_string().into_bytes());
    let digest = Sha256::digest(&json);
    digest
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests;
