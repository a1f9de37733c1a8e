//! All objects that should be there, and why some are not.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::object::{Adapter, MAX_BYTES, ModuleRef, Object};
use super::report::{Delivery, State};
use super::settings::Settings;
use super::workload::{Place, Workload, of_target, workloads};
use super::{config_map, envoy_gateway, istio, istio_native};
use crate::compile::revision;
use crate::kubernetes::cluster::{Cluster, ObjectKey};
use crate::plan::Plan;

/// What the API server has of other control planes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Installed {
    /// `WasmPlugin` or `TrafficExtension`, and with them `EnvoyFilter`.
    pub istio: bool,
    /// `TrafficExtension`.
    pub traffic_extension: bool,
    /// `EnvoyExtensionPolicy`.
    pub envoy_gateway: bool,
    /// `spec.controllerName` of each GatewayClass.
    pub classes: BTreeMap<String, String>,
}

/// All objects that should be there.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wanted {
    /// The objects, by adapter and key.
    pub objects: BTreeMap<(Adapter, ObjectKey), Object>,
    /// Those that can't be.
    pub unwanted: Vec<Unwanted>,
}

/// An object that can't be, for a workload that should have one.
#[derive(Debug, Clone, PartialEq)]
pub struct Unwanted {
    /// The policies in it.
    pub policies: Vec<String>,
    /// Which object, and why not.
    pub delivery: Delivery,
}

/// The objects for `plan`, whose proxies run the module with this SHA-256 (64 digits of hex).
#[must_use]
pub fn wanted(
    plan: &Plan,
    cluster: &Cluster,
    settings: &Settings,
    installed: &Installed,
    sha256: &str,
) -> Wanted {
    let mut wanted = Wanted::default();
    let module = ModuleRef::new(settings, sha256);
    if let Some(path) = &settings.config_map_module {
        let path = path.replace("{hash}", sha256.get(..16).unwrap_or(sha256));
        for target in plan.workloads.keys() {
            if let Some(workload) = of_target(plan, cluster, target) {
                let calls = plan.outbound_of(&workload.config);
                wanted.add(config_map::object(target, &workload, calls, cluster, &path));
            }
        }
    }
    let istio = settings.istio && installed.istio;
    let plugin = istio::kind(cluster, installed);
    let of_istio = |workload: &Workload| match &settings.istio_native {
        Some(path) => istio_native::object(workload, cluster, path),
        None => istio::object(workload, cluster, &module, plugin),
    };
    let envoy_gateway = settings.envoy_gateway && installed.envoy_gateway;
    if !istio && !envoy_gateway {
        return wanted;
    }
    let controller = |workload: &Workload| match &workload.place {
        Place::Gateway(key) => {
            let class = cluster.gateways.get(key).map(|g| g.class.as_str());
            class.and_then(|c| installed.classes.get(c)).cloned()
        }
        Place::Pods => None,
    };
    let (workloads, meetings) = workloads(plan, cluster);
    for workload in &workloads {
        match (&workload.place, controller(workload).as_deref()) {
            (Place::Gateway(_), Some(envoy_gateway::CONTROLLER)) if envoy_gateway => {
                let both = both_ways(workload, plan);
                let native = settings.envoy_gateway_native.as_deref();
                wanted.extend(envoy_gateway::object(&both, cluster, &module, native));
            }
            (Place::Gateway(_), Some(istio::CONTROLLER)) if istio => {
                let both = both_ways(workload, plan);
                wanted.add(of_istio(&both));
            }
            (Place::Pods, _) if istio => {
                wanted.add(of_istio(workload));
                let calls = plan.outbound_of(&workload.config);
                wanted.extend(calls.map(|calls| match &settings.istio_native {
                    Some(path) => istio_native::outbound(workload, calls, cluster, path),
                    None => istio::outbound(workload, calls, cluster, &module, plugin),
                }));
            }
            _ => {}
        }
    }
    for meeting in meetings.iter().filter(|_| istio) {
        let workload = &meeting.workload;
        let others: Vec<String> = meeting.with.iter().map(ToString::to_string).collect();
        let object = of_istio(workload);
        wanted.unwanted.push(Unwanted {
            policies: workload.policies.clone(),
            delivery: Delivery {
                adapter: object.adapter,
                state: State::Failed(format!(
                    "some of its Pods are those of {}, whose policy has precedence, and a {} can't leave them out; \
                     give the others a label of their own and target it",
                    others.join(", "),
                    object.adapter.kind()
                )),
                object: object.key,
            },
        });
    }
    wanted
}

/// A gateway's `workload`, whose configuration also says what its requests are as calls. In one configuration: Envoy
/// Gateway gives each of its Wasm extensions a VM of its own, and two would know nothing of each other.
fn both_ways(workload: &Workload, plan: &Plan) -> Workload {
    let mut workload = workload.clone();
    if let Some(calls) = plan.outbound_of(&workload.config) {
        let config = Arc::make_mut(&mut workload.config);
        config.outbound.clone_from(&calls.outbound);
        config.revision = String::new();
        config.revision = revision(config);
    }
    workload
}

impl Wanted {
    fn extend(&mut self, object: Option<Object>) {
        if let Some(object) = object {
            self.add(object);
        }
    }

    fn add(&mut self, object: Object) {
        let bytes = object.bytes();
        if bytes <= MAX_BYTES {
            let key = (object.adapter, object.key.clone());
            self.objects.insert(key, object);
            return;
        }
        self.unwanted.push(Unwanted {
            delivery: Delivery {
                adapter: object.adapter,
                object: object.key,
                state: State::Failed(format!(
                    "{bytes} bytes; {MAX_BYTES} are the most that the API server keeps: use fewer types or \
                     policies, or let proxies ask over xDS"
                )),
            },
            policies: object.policies,
        });
    }
}

#[cfg(test)]
mod tests;
