//! `WasmPlugin` of `extensions.istio.io/v1alpha1`.
//!
//! Facts that shape it, read in Istio 1.31 or measured: a workload runs every plugin that matches it, so
//! there is one for all its policies. `pluginConfig` arrives at the module as JSON in which each number went
//! through a double. An agent fetches an `http` module once for each SHA-256 and keeps the VM when only the
//! configuration changes; with a `file` URL, an environment or a pull policy, each edit would make a new VM.
//! For listeners, a gateway counts as client and a sidecar's inbound side as server. Nothing comes back when a
//! proxy refuses a plugin.
//!
//! Workflows need a second plugin, for the sidecar's outbound listeners: `mode: CLIENT`. It has the same module, plugin
//! name and no settings of the VM of its own, so Envoy runs both in one VM of each worker, where they share what they
//! know. A gateway has one side only, and one plugin for both.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_core::config::FilterConfig;
use serde_json::{Value, json};

use super::object::{Adapter, ModuleRef, Object, name};
use super::workload::{Place, Workload};
use crate::kubernetes::cluster::{Cluster, ObjectKey};

/// `spec.controllerName` of the GatewayClasses whose gateways are Istio's.
pub const CONTROLLER: &str = "istio.io/gateway-controller";
/// Root id under which the module finds itself in logs.
const PLUGIN: &str = "headgate";

/// The plugin of `workload`, for requests to it.
#[must_use]
pub fn object(workload: &Workload, cluster: &Cluster, module: &ModuleRef) -> Object {
    let labels = &workload.proxies.labels;
    let identity = format!("{labels:?}");
    let (readable, place) = match &workload.place {
        Place::Gateway(gateway) => (
            gateway.name.clone(),
            json!({"targetRefs": [{
                "group": "gateway.networking.k8s.io",
                "kind": "Gateway",
                "name": gateway.name,
            }]}),
        ),
        Place::Pods => (
            readable(labels),
            json!({
                "selector": {"matchLabels": labels},
                "match": [{"mode": "SERVER"}],
            }),
        ),
    };
    plugin(
        workload,
        &name(&readable, &identity),
        place,
        cluster,
        module,
    )
}

/// The plugin for the calls of `workload`, which are sidecars' and have `config` on their outbound side.
#[must_use]
pub fn outbound(
    workload: &Workload,
    config: &Arc<FilterConfig>,
    cluster: &Cluster,
    module: &ModuleRef,
) -> Object {
    let labels = &workload.proxies.labels;
    let place = json!({
        "selector": {"matchLabels": labels},
        "match": [{"mode": "CLIENT"}],
    });
    let readable = format!("outbound-{}", readable(labels));
    let name = name(&readable, &format!("outbound {labels:?}"));
    plugin(&calls(workload, config), &name, place, cluster, module)
}

/// The calls of `workload`, which have `config`.
pub(super) fn calls(workload: &Workload, config: &Arc<FilterConfig>) -> Workload {
    let policy = config.outbound.as_ref().map(|calls| calls.policy.clone());
    Workload {
        config: Arc::clone(config),
        policies: policy.into_iter().collect(),
        ..workload.clone()
    }
}

/// The value of the label that people name things by, if there is one.
pub(super) fn readable(labels: &BTreeMap<String, String>) -> String {
    labels
        .get("app.kubernetes.io/name")
        .or_else(|| labels.get("app"))
        .or_else(|| labels.values().next())
        .cloned()
        .unwrap_or_default()
}

/// A plugin of this name with what `workload` enforces; `place` says where.
fn plugin(
    workload: &Workload,
    name: &str,
    place: Value,
    cluster: &Cluster,
    module: &ModuleRef,
) -> Object {
    let mut spec = json!({
        "url": module.url,
        "sha256": module.sha256,
        "pluginName": PLUGIN,
        "type": "HTTP",
        // After authorization: a request that isn't allowed must not take a slot or a place in the queue.
        "phase": "STATS",
        "failStrategy": "FAIL_OPEN",
        "pluginConfig": plugin_config(workload),
    });
    if let (Value::Object(spec), Value::Object(place)) = (&mut spec, place) {
        spec.extend(place);
    }
    let key = ObjectKey::new(&workload.proxies.namespace, name);
    let module = Some(module.clone());
    Object::new(
        Adapter::Istio,
        key,
        workload,
        cluster,
        module,
        json!({"spec": spec}),
    )
}

/// The configuration as an object. Serialization of plain structs with string keys doesn't fail; were it to,
/// nothing is the configuration that lets everything pass.
pub(super) fn plugin_config(workload: &Workload) -> Value {
    serde_json::to_value(&*workload.config).unwrap_or_else(|_| json!({}))
}
