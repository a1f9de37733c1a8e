//! Invalid policies whose last valid version exists only in a delivered object, because this
//! process never observed it.
//!
//! Such a version stays in force. Either its object stays unchanged or, if other policies share the
//! object, it is combined with their current versions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::fit;
use crate::object::{Object, POLICIES_ANNOTATION, TARGETS_ANNOTATION};
use crate::workload::{Workload, policies};
use headgate_api::compile::revision;
use headgate_api::plan::{Plan, TargetRef, namespace_of};

/// The policies by `namespace/name`, each with its targets.
#[derive(Debug)]
pub(crate) struct Mistaken<'a>(BTreeMap<&'a str, &'a [TargetRef]>);

impl<'a> Mistaken<'a> {
    /// Returns the policies of a plan that are invalid and have no known valid version.
    pub(crate) fn of(plan: &'a Plan) -> Self {
        let all = plan.policies.iter();
        let mistaken = all.filter(|p| !p.has_version);
        Self(mistaken.map(|p| (p.name.as_str(), &*p.targets)).collect())
    }

    /// Whether `policy` is one of these policies.
    pub(crate) fn has(&self, policy: &str) -> bool {
        self.0.contains_key(policy)
    }

    /// Returns one of these policies that is in the observed object `value` but not in `wanted`. If
    /// there is one, the object must stay unchanged.
    ///
    /// At a shared Gateway, a policy of another namespace than the Gateway's isn't returned if the
    /// object has, or should have, policies of further namespaces without such mistakes. A mistake
    /// of one tenant must not stop the edits and deletions of others.
    pub(crate) fn only_in<'v>(&self, value: &'v Value, wanted: Option<&Object>) -> Option<&'v str> {
        let observed = value["metadata"]["annotations"][POLICIES_ANNOTATION].as_str()?;
        let wanted = || wanted.into_iter().flat_map(|o| &o.policies);
        let of_object = value["metadata"]["namespace"].as_str();
        let keeps = |policy: &str| {
            let namespace = namespace_of(policy);
            let mut all = observed.split(',').chain(wanted().map(String::as_str));
            let may_stay = |p: &str| namespace_of(p) == namespace || self.has(p);
            of_object == Some(namespace) || all.all(may_stay)
        };
        let mut missing = observed.split(',').filter(|p| !wanted().any(|w| w == p));
        missing.find(|p| self.has(p) && keeps(p))
    }

    /// Returns the workload with some of these policies added, namely those that its observed
    /// object `value` contains. They keep their slots. `None` if the object contains none of them,
    /// or if another policy has taken a target of an added policy. At a shared Gateway, such a
    /// policy of another namespace is left out instead, so that it doesn't stop other tenants.
    pub(crate) fn join(&self, workload: &Workload, value: &Value) -> Option<Workload> {
        if self.0.is_empty() {
            return None;
        }
        let before = fit::configuration_in(value)?;
        let targets = value["metadata"]["annotations"][TARGETS_ANNOTATION].as_str()?;
        let targets: Vec<TargetRef> = targets.split(' ').flat_map(str::parse).collect();
        let order = policies(&before);
        let mut joined = workload.clone();
        let config = Arc::make_mut(&mut joined.config);
        for (at, stage) in before.stages.into_iter().enumerate() {
            let Some(of_policy) = self.0.get(stage.policy.as_str()) else {
                continue;
            };
            let known = joined.targets.len();
            joined
                .targets
                .extend(targets.iter().filter(|t| of_policy.contains(t)).cloned());
            let is_taken = |target| workload.targets.contains(target);
            let own = joined.targets.get(known..).unwrap_or_default();
            if own.is_empty() || own.iter().any(is_taken) {
                if namespace_of(&stage.policy) == workload.proxies.namespace {
                    return None;
                }
                joined.targets.truncate(known);
                continue;
            }
            // A stage takes the requests of those behind it.
            let behind = order.get(at..).unwrap_or_default();
            let place = { config.stages.iter() }.position(|s| behind.contains(&s.policy));
            let place = place.unwrap_or(config.stages.len());
            config.stages.insert(place, stage);
        }
        if config.stages.len() == workload.config.stages.len() {
            return None;
        }
        let known = workload.policies();
        let stages = &config.stages;
        let joins = |policy: &String| {
            !known.contains(policy) && stages.iter().any(|stage| stage.policy == *policy)
        };
        let calls = before.outbound.filter(|calls| joins(&calls.policy));
        config.outbound = config.outbound.take().or(calls);
        // Stages for routes come first. A stage for all requests before them would take their
        // requests. The sort is stable.
        config.stages.sort_by_key(|s| s.routes.is_empty());
        config.revision = String::new();
        config.revision = revision(config);
        config.check().ok()?;
        Some(joined)
    }
}
