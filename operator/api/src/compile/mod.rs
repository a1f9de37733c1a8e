//! Compiles policies into one filter configuration for each workload.
//!
//! [`compile`] is a pure function: the same policies in any order give the same [`Compiled`], byte
//! for byte. So equal revisions mean equal configurations, and an unchanged configuration isn't
//! sent again. If several policies target one object, the oldest applies and the others are in
//! conflict (GEP-713).

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_core::config::{
    CentralConfig, Direction, FilterConfig, Mode, OutboundConfig, ServiceAdmissionConfig,
    StageConfig,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::target::{TargetKind, TargetRef};
use crate::validate::ValidPolicy;

/// The result of compiling a set of policies.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compiled {
    /// One configuration for each target of any policy.
    pub workloads: BTreeMap<TargetRef, Arc<FilterConfig>>,
    /// The configurations of outbound slots, by `namespace/name` of the policy that configures the
    /// calls: one with workflows or class admission.
    pub outbound: BTreeMap<String, Arc<FilterConfig>>,
}

/// Compiles `policies`, whose names are unique, for `proxies` proxies in front of `endpoints`
/// endpoints of each target. Both numbers are 1 for a folder, where they are unknown.
pub fn compile(policies: &[&ValidPolicy], endpoints: u64, proxies: u32) -> Compiled {
    let winners = winners(policies);
    let promises = promises(&winners);
    let mut compiled = Compiled::default();
    for (&target, policy) in &winners {
        let config = Arc::new(enforcing(policy, endpoints, proxies));
        compiled.workloads.insert(target.clone(), config);
    }
    for policy in policies {
        if let Some(calls) = calls(policy, &promises) {
            let config = Arc::new(outbound(calls));
            compiled.outbound.insert(policy.full_name(), config);
        }
    }
    compiled
}

/// The policy that applies at each target.
pub type Winners<'a> = BTreeMap<&'a TargetRef, &'a ValidPolicy>;

/// Returns the oldest of `policies` at each of their targets.
pub fn winners<'a>(policies: &[&'a ValidPolicy]) -> Winners<'a> {
    let mut by_age = policies.to_vec();
    by_age.sort_by_key(|policy| precedence(policy));
    let mut winners = Winners::new();
    for policy in by_age {
        for target in &policy.targets {
            winners.entry(target).or_insert(policy);
        }
    }
    winners
}

/// A target that this policy lost to an older policy (GEP-713).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// The contested target.
    pub target: TargetRef,
    /// `namespace/name` of the policy that applies at the target.
    pub winner: String,
}

/// Returns the conflicts of a policy with the `winners` that have precedence over it. The policy
/// may be invalid. Then no version of it would be in force at these targets.
pub fn conflicts(
    policy: Precedence<'_>,
    targets: &[TargetRef],
    winners: &Winners<'_>,
) -> Vec<Conflict> {
    let lost = targets.iter().filter_map(|target| {
        let winner = winners.get(target).filter(|w| precedence(w) < policy)?;
        Some(Conflict {
            target: target.clone(),
            winner: winner.full_name(),
        })
    });
    lost.collect()
}

/// Returns the configuration that enforces `policy` alone, in front of `endpoints` endpoints.
pub fn configuration(policy: &ValidPolicy, endpoints: u32) -> FilterConfig {
    enforcing(policy, endpoints.into(), 1)
}

fn enforcing(policy: &ValidPolicy, endpoints: u64, proxies: u32) -> FilterConfig {
    let portion = policy.slots.portion(endpoints, proxies);
    of_stages(vec![portion.of(&policy.stage)])
}

/// The class admission settings of Services, by namespace and name.
pub type Promises<'a> = BTreeMap<(&'a str, &'a str), &'a ServiceAdmissionConfig>;

/// Returns the class admission settings of the Services among the targets of `winners`. A policy
/// that isn't in force at a Service doesn't count there, because the Service's proxies don't know
/// its classes.
pub fn promises<'a>(winners: &Winners<'a>) -> Promises<'a> {
    let services = winners.iter();
    let services = services.filter(|(target, _)| target.kind == TargetKind::Service);
    let promised = services.filter_map(|(target, policy)| {
        let service = (target.namespace.as_str(), target.name.as_str());
        Some((service, policy.promises.as_ref()?))
    });
    promised.collect()
}

/// Returns the settings for the outbound calls of a backend behind `policy`, with the class targets
/// of the called services. `None` without workflows and class admission.
pub fn calls(policy: &ValidPolicy, promises: &Promises<'_>) -> Option<OutboundConfig> {
    let mut outbound = policy.outbound.clone()?;
    for service in outbound.services.values() {
        let here = (policy.namespace.as_str(), service.as_str());
        let there = || {
            service
                .split_once('.')
                .map(|(name, namespace)| (namespace, name))
        };
        let promised = promises.get_key_value(&here);
        let promised = promised.or_else(|| promises.get_key_value(&there()?));
        let Some(((namespace, name), &promised)) = promised else {
            continue;
        };
        // This is the Service's full name, so that all senders use the same name.
        let central = promised.central.as_ref().map(|central| CentralConfig {
            service: format!("{namespace}/{name}"),
            ..central.clone()
        });
        let promised = ServiceAdmissionConfig {
            enforced: promised.enforced && policy.stage.mode == Mode::Enforce,
            central,
            ..promised.clone()
        };
        outbound.class_admission.insert(service.clone(), promised);
    }
    Some(outbound)
}

/// Returns the configuration of outbound slots with these `calls`. This configuration doesn't
/// depend on the number of proxies.
pub fn outbound(calls: OutboundConfig) -> FilterConfig {
    revised(FilterConfig {
        direction: Direction::Outbound,
        outbound: Some(calls),
        ..FilterConfig::default()
    })
}

/// Returns the configuration of these stages, in matching order.
pub fn of_stages(stages: Vec<StageConfig>) -> FilterConfig {
    revised(FilterConfig {
        stages,
        ..FilterConfig::default()
    })
}

fn revised(mut config: FilterConfig) -> FilterConfig {
    config.revision = revision(&config);
    config
}

/// The sort key of GEP-713: the oldest first, then by namespace and name. A policy of unknown age,
/// as in a folder, comes after policies of known age.
pub type Precedence<'a> = (bool, Option<&'a str>, &'a str, &'a str);

/// Returns the precedence of a policy.
pub fn precedence(policy: &ValidPolicy) -> Precedence<'_> {
    let (namespace, name) = (&policy.namespace, &policy.name);
    precedence_of(policy.created.as_deref(), namespace, name)
}

/// Returns the precedence of a policy, which may be invalid, with this `creationTimestamp`.
pub fn precedence_of<'a>(
    created: Option<&'a str>,
    namespace: &'a str,
    name: &'a str,
) -> Precedence<'a> {
    (created.is_none(), created, namespace, name)
}

/// Returns the first 12 hexadecimal digits of the SHA-256 of the configuration's JSON without its
/// own revision. `serde_json` writes fields in the order of their declaration and floats in their
/// shortest form, so equal configurations have equal JSON.
pub fn revision(config: &FilterConfig) -> String {
    // Serialization can't fail: all map keys are strings and all floats are finite. If
    // serialization failed, the error's text would be a deterministic substitute.
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
