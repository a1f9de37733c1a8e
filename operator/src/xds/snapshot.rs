//! What every proxy should have at one moment: the plan, the module, and the resources made of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use headgate_core::config::FilterConfig;

use super::dialect::Offer;
use super::is_headgate_slot;
use super::module::Module;
use super::node::TargetClaim;
use super::resource::Resource;
use crate::plan::{Plan, PolicyState};

/// A moment's plan and module. Resources are built when a proxy first needs them and shared by all.
#[derive(Debug)]
pub struct Snapshot {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The module that proxies run.
    pub module: Arc<Module>,
    /// A policy is refused and has no good version, or a source can't be read: what is enforced may be
    /// less than what is meant.
    pub incomplete: bool,
    /// What a proxy gets that no policy applies to.
    empty: Arc<FilterConfig>,
    built: Mutex<HashMap<Key, Built>>,
}

/// A configuration's address and a slot's name. The address stays taken: [`Built`] keeps it alive.
type Key = (usize, String);
type Built = (Arc<FilterConfig>, Arc<Resource>);

/// What one proxy gets, and why it is nothing, if it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The configuration; empty when no policy applies.
    pub config: Arc<FilterConfig>,
    /// Why no policy applies, and what to do.
    pub problem: Option<String>,
}

impl Snapshot {
    /// The moment at which `plan` and `module` hold.
    #[must_use]
    pub fn new(plan: Arc<Plan>, module: Arc<Module>) -> Self {
        let lost = |p: &PolicyState| p.accepted.is_err() && p.revision.is_empty();
        let incomplete = !plan.problems.is_empty() || plan.policies.iter().any(lost);
        Self {
            plan,
            module,
            incomplete,
            empty: Arc::default(),
            built: Mutex::default(),
        }
    }

    /// The configuration for a proxy that makes this claim.
    ///
    /// A proxy to which no policy applies gets the empty configuration, so that deleting a policy takes
    /// effect: a resource that merely disappeared would leave the last one in force.
    #[must_use]
    pub fn assign(&self, claim: &TargetClaim) -> Assignment {
        let found = match claim {
            TargetClaim::None => self.plan.for_proxy(None),
            TargetClaim::Target(target) => self.plan.for_proxy(Some(target)),
            TargetClaim::Invalid(why) => Err(why.clone()),
        };
        match found {
            Ok(config) if !config.stages.is_empty() => Assignment {
                config,
                problem: None,
            },
            Ok(_) => Assignment {
                config: Arc::clone(&self.empty),
                problem: None,
            },
            Err(why) => Assignment {
                config: Arc::clone(&self.empty),
                problem: Some(why),
            },
        }
    }

    /// The resources that make `names` run `config`.
    #[must_use]
    pub fn offer(&self, config: &Arc<FilterConfig>, names: &BTreeSet<String>) -> Offer {
        let (ours, others): (Vec<&String>, Vec<&String>) =
            names.iter().partition(|n| is_headgate_slot(n));
        let resources = ours
            .into_iter()
            .map(|name| self.resource(config, name))
            .collect();
        Offer::new(resources, others.into_iter().cloned().collect())
    }

    fn resource(&self, config: &Arc<FilterConfig>, name: &str) -> Arc<Resource> {
        let key = (Arc::as_ptr(config) as usize, name.to_owned());
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, resource) = built.entry(key).or_insert_with(|| {
            let resource = Resource::new(config, name, &self.module.path);
            (Arc::clone(config), Arc::new(resource))
        });
        Arc::clone(resource)
    }
}
