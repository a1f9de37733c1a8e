//! `EnvoyFilter` of `networking.istio.io/v1alpha3`, for the native filter. Istio has no other way
//! to load a dynamic module.
//!
//! The filter inserts a slot before the router, and defines the slot's content separately
//! (`EXTENSION_CONFIG`). So an edit of a policy reaches proxies over ECDS, and no listener is
//! drained. The slot's default is an RBAC filter without rules. So requests pass until the content
//! has arrived, and also if the proxy refuses it. The module is a file that the administrators of
//! the proxies mount into their containers. An Envoy without dynamic modules would refuse the
//! listener, so this delivery is for meshes in which all proxies support them (Istio 1.30).

use std::path::Path;

use serde_json::{Value, json};

use crate::adapter::Adapter;
use crate::cluster::{Cluster, ObjectKey};
use crate::istio::names;
use crate::object::{Object, name};
use crate::workload::{ProxyKind, Workload};
use headgate_xds::resource::ecds_json;

/// The priority of the `EnvoyFilter`. The default is 0, and Istio applies lower numbers first. So
/// the slot is inserted after the filters that users insert before the router, such as those of
/// authorization: a denied request must not take a slot or a place in the queue.
const PRIORITY: i32 = 1000;

/// Returns the `EnvoyFilter` for `workload`.
pub fn object(workload: &Workload, cluster: &Cluster, module: &Path) -> Object {
    let context = match &workload.kind {
        ProxyKind::Gateway(_) => "GATEWAY",
        ProxyKind::Pods => "SIDECAR_INBOUND",
        ProxyKind::Calls => "SIDECAR_OUTBOUND",
    };
    let (readable, identity) = names(workload);
    let name = name(&readable, &format!("native {identity}"));
    let content = ecds_json(&workload.config, &name, module);
    let passes = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
    let slot = json!({
        "name": name,
        "config_discovery": {
            "config_source": {"ads": {}, "resource_api_version": "V3"},
            "apply_default_config_without_warming": true,
            "default_config": {"@type": passes},
            "type_urls": [content["typed_config"]["@type"], passes],
        },
    });
    let manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "subFilter": {"name": "envoy.filters.http.router"},
    });
    // Istio applies the objects of its root namespace to the proxies of all namespaces.
    let proxy = json!({"metadata": {"NAMESPACE": workload.proxies.namespace}});
    let patches: [Value; 2] = [
        json!({
            "applyTo": "HTTP_FILTER",
            "match": {
                "context": context,
                "proxy": proxy,
                "listener": {"filterChain": {"filter": manager}},
            },
            "patch": {"operation": "INSERT_BEFORE", "value": slot},
        }),
        json!({
            "applyTo": "EXTENSION_CONFIG",
            "match": {"context": context, "proxy": proxy},
            "patch": {
                "operation": "ADD",
                "value": {"name": name, "typed_config": content["typed_config"]},
            },
        }),
    ];
    let spec = json!({
        "priority": PRIORITY,
        "workloadSelector": {"labels": workload.proxies.labels},
        "configPatches": patches,
    });
    let key = ObjectKey::new(&workload.proxies.namespace, name);
    let content = json!({"spec": spec});
    Object::new(Adapter::IstioNative, key, workload, cluster, None, content)
}
