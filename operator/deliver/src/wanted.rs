//! All wanted objects, and the reasons why some policies have none.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_core::config::StageConfig;

use crate::adapter::Adapter;
use crate::cluster::{Cluster, ObjectKey};
use crate::fit::{Fit, is_refused};
use crate::installed::Installed;
use crate::mistaken::Mistaken;
use crate::object::{MAX_BYTES, ModuleRef, OPERATOR_ANNOTATION, Object};
use crate::observed::Observed;
use crate::report::{Delivery, ObjectState};
use crate::settings::Settings;
use crate::workload::{ProxyKind, Targets, Workload, workloads};
use crate::{config_map, envoy_gateway, istio, istio_native};
use headgate_api::compile::revision;
use headgate_api::plan::Plan;

/// All wanted objects.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wanted {
    /// The objects, by adapter and key. An object that is too large even with a single policy is
    /// included, so that the existing object isn't deleted. See [`Object::too_large`].
    pub objects: BTreeMap<(Adapter, ObjectKey), Object>,
    /// Policies that their object omits, or whose workload can't have an object.
    pub unwanted: Vec<Unwanted>,
    /// Objects that stay unchanged although their policies should change, each with the reason.
    pub kept: BTreeMap<(Adapter, ObjectKey), String>,
}

/// Policies that an object should carry but doesn't.
#[derive(Debug, Clone, PartialEq)]
pub struct Unwanted {
    /// The policies.
    pub policies: Vec<String>,
    /// The object, and the reason.
    pub delivery: Delivery,
}

/// Returns the objects for `plan`. Their proxies run the module with this SHA-256 (64 hex digits).
/// `observed` contains the last versions of policies that have outgrown their object.
pub fn wanted(
    plan: &Plan,
    cluster: &Cluster,
    settings: &Settings,
    installed: &Installed,
    observed: &Observed,
    sha256: &str,
) -> Wanted {
    let mut wanted = Wanted::default();
    let mistaken = Mistaken::of(plan);
    let module = ModuleRef::new(settings, sha256);
    let path = settings.config_map_module.as_ref();
    let path = path.map(|path| path.replace("{hash}", sha256.get(..16).unwrap_or(sha256)));
    if let Some(path) = &path {
        let targets = Targets::new(plan, cluster);
        let mounted = config_map::mounted(cluster);
        for target in plan.workloads.keys() {
            if let Some(mut workload) = targets.workload(target) {
                let name = config_map::config_map_name(target);
                workload.seen = mounted.contains(&(target.namespace.as_str(), name.as_str()));
                wanted.add_fitting(plan, observed, &mistaken, &workload, |workload| {
                    let calls = workload.outbound(plan);
                    let files = config_map::files(target, workload, calls, path);
                    config_map::object(target, workload, &files, cluster)
                });
            }
        }
    }
    let istio = settings.istio && installed.has_istio(settings);
    let plugin = istio::kind(cluster, installed, &settings.args.istio_namespace);
    let of_istio = |workload: &Workload| match &settings.args.istio_native {
        Some(path) => istio_native::object(workload, cluster, path),
        None => istio::object(workload, cluster, &module, plugin),
    };
    // The match of an EnvoyFilter names the namespace of the proxies, which these plugins can't.
    let is_everywhere = |workload: &Workload| {
        let native = &settings.args.istio_native;
        native.is_none() && workload.proxies.namespace == settings.args.istio_namespace
    };
    let envoy_gateway = settings.envoy_gateway && installed.has(Adapter::EnvoyGateway);
    let controller = |workload: &Workload| match &workload.kind {
        ProxyKind::Gateway(key) => {
            let class = cluster.gateways.get(key).map(|g| g.class.as_str());
            class.and_then(|c| installed.classes.get(c)).cloned()
        }
        ProxyKind::Pods | ProxyKind::Calls => None,
    };
    // Only these deliveries need the workloads, whose configurations are expensive to make.
    let (workloads, meetings) = match istio || envoy_gateway {
        true => workloads(plan, cluster),
        false => (Vec::new(), Vec::new()),
    };
    for workload in &workloads {
        match (&workload.kind, controller(workload).as_deref()) {
            (ProxyKind::Gateway(gateway), Some(envoy_gateway::CONTROLLER)) if envoy_gateway => {
                let native = settings.args.envoy_gateway_native.as_deref();
                wanted.add_fitting(plan, observed, &mistaken, workload, |workload| {
                    let both = both_ways(workload, plan);
                    envoy_gateway::object(&both, gateway, cluster, &module, native)
                });
            }
            (ProxyKind::Gateway(_), Some(istio::CONTROLLER)) if istio => {
                wanted.add_fitting(plan, observed, &mistaken, workload, |w| {
                    of_istio(&both_ways(w, plan))
                });
            }
            (ProxyKind::Pods, _) if istio && is_everywhere(workload) => {
                let why = format!(
                    "Istio applies a {} in its root namespace to Pods of all namespaces that have \
                     these labels; put the workload and its policy into another namespace",
                    plugin.kind()
                );
                wanted.leave_out(&of_istio(workload), workload.policies(), why);
            }
            (ProxyKind::Pods, _) if istio => {
                let workload = wanted.add_fitting(plan, observed, &mistaken, workload, of_istio);
                if let Some(calls) = workload.outbound(plan) {
                    wanted.add(of_istio(&workload.calls(calls)));
                }
            }
            _ => {}
        }
    }
    for meeting in meetings.iter().filter(|_| istio) {
        let workload = &meeting.workload;
        let others: Vec<String> = meeting.with.iter().map(ToString::to_string).collect();
        let object = of_istio(workload);
        let why = format!(
            "some of its Pods belong to {}, whose policy has precedence, and a {} can't exclude \
             them; give the other Pods a label of their own and target it",
            others.join(", "),
            object.adapter.kind()
        );
        wanted.leave_out(&object, workload.policies(), why);
    }
    wanted.keep(&mistaken, observed, &module, path.as_deref());
    if let Some(path) = &path {
        wanted.keep_config_maps(cluster, observed, path);
    }
    for object in wanted.objects.values_mut() {
        let operator = settings.operator.as_str();
        object.value["metadata"]["annotations"][OPERATOR_ANNOTATION] = operator.into();
    }
    wanted
}

/// Returns a gateway's `workload` with the outbound configuration added. One configuration contains
/// both, because Envoy Gateway gives each Wasm extension its own VM, and two VMs share no state.
fn both_ways(workload: &Workload, plan: &Plan) -> Workload {
    let mut workload = workload.clone();
    // If the last version of a policy that fitted is in force, its outbound configuration is
    // already present or not needed.
    let config = &workload.config;
    let calls = workload.outbound(plan).filter(|calls| {
        let of = calls.outbound.as_ref().map(|calls| &calls.policy);
        let has_calls = |s: &StageConfig| s.workflows.is_some() || s.class_admission.is_some();
        let mut stages = config.stages.iter();
        config.outbound.is_none() && stages.any(|s| Some(&s.policy) == of && has_calls(s))
    });
    if let Some(calls) = calls {
        let config = Arc::make_mut(&mut workload.config);
        config.outbound.clone_from(&calls.outbound);
        config.revision = String::new();
        config.revision = revision(config);
    }
    workload
}

impl Wanted {
    fn add(&mut self, object: Object) {
        let key = (object.adapter, object.key.clone());
        self.objects.insert(key, object);
    }

    /// Records that `object` doesn't carry these policies.
    fn leave_out(&mut self, object: &Object, policies: Vec<String>, why: String) {
        let delivery = Delivery {
            adapter: object.adapter,
            object: object.key.clone(),
            state: ObjectState::Failed(why),
        };
        self.unwanted.push(Unwanted { policies, delivery });
    }

    /// Keeps each observed object that contains the only known valid version of an invalid policy.
    /// Only its module changes. `path` is that of the module in the files of ConfigMaps.
    fn keep(
        &mut self,
        mistaken: &Mistaken<'_>,
        observed: &Observed,
        module: &ModuleRef,
        path: Option<&str>,
    ) {
        for (adapter, key, value) in observed.objects() {
            let at = (adapter, key.clone());
            let object = self.objects.get(&at);
            let Some(policy) = mistaken.only_in(value, object) else {
                continue;
            };
            let mut kept = Object::kept(adapter, key.clone(), value, module);
            // Users of the object's namespace may add any policy to its annotation. The plan has
            // the objects of the other policies.
            kept.policies.retain(|policy| mistaken.has(policy));
            if let (Adapter::ConfigMap, Some(path)) = (adapter, path) {
                config_map::set_module(&mut kept.value["data"], path);
            }
            if let Some(object) = object {
                // The module of this version refuses the whole configuration. A proxy that starts
                // would then enforce none of the object's policies.
                if kept.module.is_some() && is_refused(&value["spec"]) {
                    continue;
                }
                kept.policies.extend_from_slice(&object.policies);
                let why = format!(
                    "it isn't updated, because its policy {policy} has mistakes, and only this \
                     object has the last good version; correct or delete that policy"
                );
                self.kept.insert(at.clone(), why);
            }
            self.objects.insert(at, kept);
        }
    }

    /// Keeps, without policies, each observed ConfigMap that no policy needs, whether or not a Pod
    /// mounts it. The mount isn't always visible: not while the only Pod restarts, and not in a
    /// namespace that is no longer selected, whose Pods aren't watched.
    fn keep_config_maps(&mut self, cluster: &Cluster, observed: &Observed, path: &str) {
        for (adapter, key, value) in observed.objects() {
            if adapter == Adapter::ConfigMap
                && !self.objects.contains_key(&(adapter, key.clone()))
                && let Some(object) = config_map::without_policies(key, value, cluster, path)
            {
                self.add(object);
            }
        }
    }

    /// Adds the object that `make` returns for `workload`. Returns the part of the workload that is
    /// in the object.
    ///
    /// All policies of a workload share one object of at most [`MAX_BYTES`]. See [`Fit`].
    fn add_fitting(
        &mut self,
        plan: &Plan,
        observed: &Observed,
        mistaken: &Mistaken<'_>,
        workload: &Workload,
        make: impl Fn(&Workload) -> Object,
    ) -> Workload {
        let mut object = make(workload);
        let before = observed.last(object.adapter, &object.key);
        let joined = before.and_then(|value| mistaken.join(workload, value));
        let workload = joined.as_ref().unwrap_or(workload);
        if joined.is_some() {
            object = make(workload);
        }
        if object.bytes() <= MAX_BYTES {
            self.add(object);
            return workload.clone();
        }
        let fit = Fit::find(workload, before, object.bytes(), |cuts| {
            make(&workload.with(cuts, plan)).bytes()
        });
        let fitting = workload.with(&fit.cuts, plan);
        for (policy, why) in fit.reasons() {
            self.leave_out(&object, vec![policy.to_owned()], why);
        }
        self.add(make(&fitting));
        fitting
    }
}

#[cfg(test)]
mod tests;
