//! `TrafficExtension` and, for versions of Istio without it, `WasmPlugin`, both of
//! `extensions.istio.io/v1alpha1`.
//!
//! Both have the same content in different fields of `spec`. Istio 1.30 and newer read both kinds
//! and convert each `WasmPlugin` to a `TrafficExtension`. Older versions read only `WasmPlugin`.
//!
//! The constraints are from the source of Istio 1.31 or measured. A workload runs every plugin that
//! matches it, so one plugin contains all its policies. `pluginConfig` reaches the module as JSON
//! in which every number has been converted to a double. An agent fetches an `http` module once for
//! each SHA-256, and keeps the VM when only the configuration changes. With a `file` URL, an
//! environment or a pull policy, each edit would create a new VM. In Istio's terms, a gateway's
//! listeners are client listeners, and a sidecar's inbound listeners are server listeners. Istio
//! doesn't report that a proxy has refused a plugin.
//!
//! Workflows need a second plugin with `mode: CLIENT`, for the sidecar's outbound listeners. It has
//! the same module and plugin name and no VM settings of its own. So Envoy runs both plugins in the
//! same VM of each worker, where they share state. A gateway has no separate outbound listeners, so
//! one plugin contains both configurations.

use serde_json::{Value, json};

use crate::adapter::Adapter;
use crate::cluster::{Cluster, ObjectKey, Pod};
use crate::installed::Installed;
use crate::object::{ModuleRef, Object, name};
use crate::workload::{ProxyKind, Workload};

/// `spec.controllerName` of Istio's GatewayClasses.
pub const CONTROLLER: &str = "istio.io/gateway-controller";
/// The root id under which the module appears in logs.
const PLUGIN: &str = "headgate";
/// The label of istiod's Pods that states the version.
pub const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// The first version of Istio, major and minor, that reads `TrafficExtension`.
const EXTENSIONS_SINCE: (u32, u32) = (1, 30);

/// Returns the kind of plugin that every istiod reads. Only Pods in `namespace` count as istiods,
/// because users of other namespaces can give any Pod the same labels.
///
/// The presence of the CRD doesn't suffice. CRDs are upgraded before istiod, and two revisions of
/// istiod may run for weeks, each with its own proxies.
pub fn kind(cluster: &Cluster, installed: &Installed, namespace: &str) -> Adapter {
    let mut pods = cluster
        .pods
        .iter()
        .filter(|(key, _)| key.namespace == namespace);
    if installed.has(Adapter::IstioExtension) && !pods.any(|(_, pod)| is_older_istiod(pod)) {
        Adapter::IstioExtension
    } else {
        Adapter::Istio
    }
}

/// Whether a Pod is an istiod that doesn't read `TrafficExtension`.
fn is_older_istiod(pod: &Pod) -> bool {
    let labels = &pod.labels;
    let is_istiod = labels.get("app").is_some_and(|app| app == "istiod");
    is_istiod && is_older(labels.get(VERSION_LABEL).map(String::as_str))
}

/// Whether an istiod with this version label doesn't read `TrafficExtension`. Istio's charts that
/// set no version label are older.
pub fn is_older(version: Option<&str>) -> bool {
    version.is_none_or(|version| is_before(version, EXTENSIONS_SINCE))
}

/// Whether `version` is older than `since`, a major and minor version.
pub fn is_before(version: &str, since: (u32, u32)) -> bool {
    // A version looks like 1.29.2, v1.9.0 or 1.31-alpha.4f5c. A version without numbers is a recent
    // custom build.
    let numbers = version.trim_start_matches('v').split(['.', '-']);
    let mut numbers = numbers.map(|part| part.parse().ok());
    let mut next = || numbers.next().flatten();
    matches!((next(), next()), (Some(major), Some(minor)) if (major, minor) < since)
}

/// Returns the plugin of this kind for `workload`.
pub fn object(workload: &Workload, cluster: &Cluster, module: &ModuleRef, kind: Adapter) -> Object {
    let pods = |mode: &str| {
        json!({
            "selector": {"matchLabels": workload.proxies.labels},
            "match": [{"mode": mode}],
        })
    };
    let mut spec = match &workload.kind {
        ProxyKind::Gateway(gateway) => json!({"targetRefs": [{
            "group": "gateway.networking.k8s.io",
            "kind": "Gateway",
            "name": gateway.name,
        }]}),
        ProxyKind::Pods => pods("SERVER"),
        ProxyKind::Calls => pods("CLIENT"),
    };
    // The filter runs after authorization, because a denied request must not take a slot or a place
    // in the queue.
    spec["phase"] = json!("STATS");
    let wasm = json!({
        "url": module.url,
        "sha256": module.sha256,
        "pluginName": PLUGIN,
        "type": "HTTP",
        "failStrategy": "FAIL_OPEN",
        "pluginConfig": plugin_config(workload),
    });
    match (&mut spec, wasm) {
        (Value::Object(spec), Value::Object(wasm)) if kind == Adapter::Istio => spec.extend(wasm),
        (spec, wasm) => spec["wasm"] = wasm,
    }
    let (readable, identity) = names(workload);
    let key = ObjectKey::new(&workload.proxies.namespace, name(&readable, &identity));
    let (module, content) = (Some(module.clone()), json!({"spec": spec}));
    Object::new(kind, key, workload, cluster, module, content)
}

/// Returns the readable part of the name of an object for `workload`, and its identity.
pub(crate) fn names(workload: &Workload) -> (String, String) {
    let labels = &workload.proxies.labels;
    // The label that usually names an application is preferred.
    let application = { labels.get("app.kubernetes.io/name") }
        .or_else(|| labels.get("app"))
        .or_else(|| labels.values().next());
    let application = application.cloned().unwrap_or_default();
    let identity = format!("{labels:?}");
    match &workload.kind {
        ProxyKind::Gateway(gateway) => (gateway.name.clone(), identity),
        ProxyKind::Pods => (application, identity),
        ProxyKind::Calls => (
            format!("outbound-{application}"),
            format!("outbound {identity}"),
        ),
    }
}

/// Returns the configuration as an object. Serialization can't fail, because the configuration
/// consists of plain structs with string keys. If it did, the result would be the empty
/// configuration, which admits every request.
pub(crate) fn plugin_config(workload: &Workload) -> Value {
    serde_json::to_value(&*workload.config).unwrap_or_else(|_| json!({}))
}
