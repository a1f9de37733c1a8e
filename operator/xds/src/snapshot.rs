//! The desired state of all proxies at one moment. It consists of the plan, the modules, and the
//! resources built from them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use headgate_core::config::{Direction, FilterConfig};

use crate::module::{Kind, Modules};
use crate::node::Identity;
use crate::older::without_new_fields;
use crate::resource::Resource;
use crate::{direction, is_headgate_slot};
use headgate_api::plan::{
    Enforced, InForce, NATIVE_MODULE_METADATA, Plan, PolicyState, ProxyClaims, TargetRef,
};

/// The plan and modules at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The modules that proxies run.
    pub modules: Arc<Modules>,
    /// The time at which the snapshot was made.
    pub made: Instant,
}

/// Returns the policies that are invalid and have no last valid version. A policy of a folder isn't
/// among them if another file has a valid one of the same name, which replaces it.
fn lost(plan: &Plan) -> impl Iterator<Item = &PolicyState> {
    let lost = plan.policies.iter().filter(|p| !p.has_version);
    let is_replaced = |policy: &PolicyState| {
        let mut policies = plan.policies.iter();
        policies.any(|p| p.name == policy.name && p.has_version)
    };
    lost.filter(move |policy| !is_replaced(policy))
}

/// The configuration assigned to one proxy, and the reason if it is empty.
#[derive(Debug, Clone, Default)]
pub struct Assignment {
    /// The configuration of the proxy's inbound slots. Empty if no policy applies.
    pub config: Arc<FilterConfig>,
    /// The configuration of the proxy's outbound slots, which depends on the policies of its
    /// inbound slots. Empty if these policies have neither workflows nor class admission for calls.
    pub outbound: Arc<FilterConfig>,
    /// The policies in force, each with the target through which it reaches the proxy.
    pub in_force: Vec<InForce>,
    /// The problem with the proxy's policies, such as the reason why none applies, with the remedy.
    pub problem: Option<String>,
    /// The path of the module file that the proxy should load.
    pub module: PathBuf,
    /// The reason why `module` is the Wasm module, if the proxy requests a native one.
    pub fallback: Option<String>,
}

impl Assignment {
    /// Whether a proxy with the assignment `other` needs no update for this one. Configurations at
    /// the same address aren't compared.
    pub fn is_same(&self, other: &Self) -> bool {
        let same = |a: &Arc<FilterConfig>, b| Arc::ptr_eq(a, b) || a == b;
        same(&self.config, &other.config)
            && same(&self.outbound, &other.outbound)
            && self.in_force == other.in_force
            && self.problem == other.problem
            && self.module == other.module
            && self.fallback == other.fallback
    }

    /// Returns the assignment without the new fields that can be left out for filters of the
    /// previous version. `None` if the assignment has no such fields.
    pub fn for_older_filter(&self) -> Option<Self> {
        let older = |config: &FilterConfig| without_new_fields(config).map(Arc::new);
        let (config, outbound) = (older(&self.config), older(&self.outbound));
        (config.is_some() || outbound.is_some()).then(|| Self {
            config: config.unwrap_or_else(|| Arc::clone(&self.config)),
            outbound: outbound.unwrap_or_else(|| Arc::clone(&self.outbound)),
            ..self.clone()
        })
    }

    /// Returns the resource with which the slot `name` of the proxy runs its configuration. `None`
    /// if the slot isn't Headgate's.
    pub(crate) fn resource(&self, name: &str) -> Option<Resource> {
        let config = match direction(name) {
            Direction::Inbound => &self.config,
            Direction::Outbound => &self.outbound,
        };
        is_headgate_slot(name).then(|| Resource::new(config, name, &self.module))
    }
}

impl Snapshot {
    /// Returns the snapshot of `plan` and `modules`.
    pub fn new(plan: Arc<Plan>, modules: Arc<Modules>) -> Self {
        Self {
            plan,
            modules,
            made: Instant::now(),
        }
    }

    /// Returns the module file that this proxy should load, and the reason why it is the Wasm
    /// module if the proxy requests a native one.
    fn module_of(&self, identity: &Identity) -> (PathBuf, Option<String>) {
        let wasm = || identity.module.as_ref().unwrap_or(&self.modules.wasm.path);
        match (identity.filter, self.native_of(identity)) {
            (Kind::Wasm, _) => (wasm().clone(), None),
            (Kind::Native, Ok(native)) => (native.to_owned(), None),
            (Kind::Native, Err(why)) => (wasm().clone(), Some(why)),
        }
    }

    /// Returns the native module file that this proxy can load, or the reason why it has none.
    fn native_of<'a>(&'a self, identity: &'a Identity) -> Result<&'a Path, String> {
        let native = match (&identity.native_module, &self.modules.native) {
            (Some(own), _) => own,
            (None, _) if identity.module.is_some() => {
                return Err(format!(
                    "it has a Wasm module of its own and no native one (node metadata \
                     {NATIVE_MODULE_METADATA:?}); headgate bootstrap --install-module --filter \
                     native installs both"
                ));
            }
            (None, None) => {
                return Err("this operator has no native module; headgate run --native".to_owned());
            }
            (None, Some(native)) => {
                if let (Some(has), Some(needs)) = (&identity.architecture, native.architecture)
                    && has != needs
                {
                    return Err(format!(
                        "this operator's native module is for {needs}, and the proxy runs on {has}"
                    ));
                }
                &native.path
            }
        };
        if let Some(why) = &identity.no_native {
            return Err(why.clone());
        }
        match &identity.refused {
            Some((path, why)) if path == native => Err(format!("Envoy refused it: {why}")),
            _ => Ok(native),
        }
    }

    /// Returns the configuration for this proxy.
    ///
    /// A proxy to which no policy applies gets the empty configuration, so that the deletion of a
    /// policy takes effect. If the resource just disappeared, the last configuration would stay in
    /// force.
    pub fn assign(&self, identity: &Identity) -> Assignment {
        let (module, fallback) = self.module_of(identity);
        let namespace = identity.namespace.as_deref().unwrap_or_default();
        let enforced = self.find(identity);
        let enforced = enforced.unwrap_or_else(|why| Arc::new(Enforced::nothing(Some(why))));
        let no_calls = || FilterConfig {
            direction: Direction::Outbound,
            ..FilterConfig::default()
        };
        Assignment {
            config: match enforced.config.stages.is_empty() {
                true => Arc::default(),
                false => Arc::clone(&enforced.config),
            },
            outbound: (self.plan.outbound_of(&enforced.config, namespace))
                .map_or_else(|| Arc::new(no_calls()), Arc::clone),
            in_force: enforced.in_force.clone(),
            problem: enforced.problem.clone(),
            module,
            fallback,
        }
    }

    fn find(&self, identity: &Identity) -> Result<Arc<Enforced>, String> {
        if let Some(why) = &identity.invalid {
            return Err(why.clone());
        }
        let target = identity.target.as_ref();
        let enforced = self.plan.for_proxy(&ProxyClaims {
            target,
            namespace: identity.namespace.as_deref(),
            labels: &identity.labels,
        });
        // A proxy that is selected by its labels needs no check, because it gets only policies that
        // the cluster attaches to Pods of its namespace. These may include policies of other
        // namespaces, for routes that its Gateway has accepted.
        if target.is_some() || !self.plan.in_cluster {
            within_namespace(&enforced.config, identity)?;
        }
        Ok(enforced)
    }

    /// Whether a policy might be missing at a proxy without policies. One might be missing if a
    /// policy of its namespace is invalid and has no last valid version, or if a source can't be
    /// read.
    pub fn is_incomplete_for(&self, identity: &Identity) -> bool {
        let of_target = identity.target.as_ref().map(|target| &target.namespace);
        let namespace = identity.namespace.as_ref().or(of_target);
        let concerns = |policy: &PolicyState| {
            let of = policy.name.split_once('/').map(|(of, _)| of);
            // If the proxy's namespace is unknown, it could be any.
            namespace.is_none_or(|own| of == Some(own.as_str()))
        };
        // A file that can't be read may contain policies of any namespace.
        !self.plan.problems.is_empty() || lost(&self.plan).any(concerns)
    }

    /// Whether a policy without a valid version may have been in force on this proxy.
    pub fn lacks_a_policy_of(&self, identity: &Identity) -> bool {
        let had = |policy: &PolicyState, target: &TargetRef| {
            let is_lost = policy.conflicts.iter().any(|c| c.target == *target);
            !is_lost && policy.targets.contains(target)
        };
        match (&identity.target, &identity.namespace) {
            (Some(target), _) => lost(&self.plan).any(|policy| had(policy, target)),
            (_, Some(namespace)) => {
                let mut lost = self.plan.lost.iter();
                lost.any(|proxies| proxies.matches(namespace, &identity.labels))
            }
            (_, None) => false,
        }
    }
}

/// Refuses a configuration with policies of a namespace other than the one that the proxy proves,
/// because the proxy must not read other namespaces' policies and limits.
fn within_namespace(config: &FilterConfig, identity: &Identity) -> Result<(), String> {
    let (Some(certificate), Some(namespace)) = (&identity.certificate, &identity.namespace) else {
        return Ok(());
    };
    let foreign = |policy: &str| policy.split_once('/').map(|(ns, _)| ns) != Some(namespace);
    if config.stages.iter().any(|s| foreign(&s.policy)) {
        return Err(format!(
            "no policy of namespace {namespace:?} applies to this proxy, and its identity \
             ({certificate}) is for that namespace only"
        ));
    }
    Ok(())
}
