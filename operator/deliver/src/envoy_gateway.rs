//! `EnvoyExtensionPolicy` of `gateway.envoyproxy.io/v1alpha1`.
//!
//! The constraints are from the source of Envoy Gateway 1.9. An extension policy attached to a
//! route replaces the Gateway's extension policy for the route's requests, and each extension
//! policy has its own VM. Headgate's stages of a route precede those of the Gateway and share its
//! slots, so all of a Gateway's stages go into one extension policy. If only routes have policies,
//! the extension policy attaches to these routes, so that requests of other routes don't run the
//! filter. Otherwise it attaches to the Gateway. The filter itself matches routes by name. The
//! configuration arrives as unchanged JSON.
//!
//! The native filter is a `dynamicModule`. It refers to the module by the name under which the
//! administrators of the proxies registered it in their `EnvoyProxy`. If the module isn't
//! registered, Envoy Gateway refuses the extension policy and reports this in its status. With
//! `mergeGateways`, one process, and so one native engine, serves several Gateways. The engine
//! distinguishes their configurations by the filter's name, and runs a policy of several Gateways
//! once. The Wasm VMs of these Gateways share the policy's slots, but each Gateway has a queue of
//! its own. The policy's status says so.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::adapter::Adapter;
use crate::cluster::{Cluster, ObjectKey};
use crate::istio::plugin_config;
use crate::object::{ModuleRef, Object, name};
use crate::report::ObjectState;
use crate::workload::Workload;
use headgate_api::plan::{TargetKind, TargetRef};

/// `spec.controllerName` of Envoy Gateway's GatewayClasses.
pub const CONTROLLER: &str = "gateway.envoyproxy.io/gatewayclass-controller";
/// The part of Envoy Gateway's message that identifies a failed fetch of a module.
const UNFETCHED: &str = "asm module";
/// The JSON pointer to the module's URL in an object.
pub const URL: &str = "/spec/wasm/0/code/http/url";
/// The largest number of routes that an extension policy targets. With more routes, it attaches to
/// the Gateway.
const MAX_ROUTES: usize = 16;

/// Returns the extension policy for `workload`, the proxies of `gateway`.
pub fn object(
    workload: &Workload,
    gateway: &ObjectKey,
    cluster: &Cluster,
    module: &ModuleRef,
    native: Option<&str>,
) -> Object {
    let reference = |kind: TargetKind, name: &str| {
        json!({
            "group": kind.group(),
            "kind": kind.as_str(),
            "name": name,
        })
    };
    let target_refs: Vec<Value> = match routes(workload, gateway, cluster) {
        Some(routes) => routes.iter().map(|r| reference(r.kind, &r.name)).collect(),
        None => vec![reference(TargetKind::Gateway, &gateway.name)],
    };
    let key = ObjectKey::new(
        &gateway.namespace,
        name(&gateway.name, &format!("Gateway {gateway}")),
    );
    let mut spec = json!({"targetRefs": target_refs});
    match native {
        Some(name) => {
            spec["dynamicModule"] = json!([{
                "name": name,
                "filterName": key.name,
                "config": plugin_config(workload),
            }]);
        }
        None => {
            spec["wasm"] = json!([{
                "name": "headgate",
                "rootID": "headgate",
                "code": {
                    "type": "HTTP",
                    "http": {"url": module.url, "sha256": module.sha256},
                },
                "config": plugin_config(workload),
                "failOpen": true,
            }]);
        }
    }
    Object::new(
        Adapter::EnvoyGateway,
        key,
        workload,
        cluster,
        native.is_none().then(|| module.clone()),
        json!({"spec": spec}),
    )
}

/// Returns the routes to which the extension policy attaches. `None` if it attaches to the Gateway.
/// It attaches to routes only if all policies target routes in the Gateway's namespace that have no
/// other Gateway, because the proxies of another Gateway may have another share of the slots.
fn routes<'a>(
    workload: &'a Workload,
    gateway: &ObjectKey,
    cluster: &Cluster,
) -> Option<BTreeSet<&'a TargetRef>> {
    if workload.config.stages.iter().any(|s| s.routes.is_empty()) {
        return None;
    }
    let routes: BTreeSet<&TargetRef> = workload.targets.iter().collect();
    let own = |route: &&TargetRef| {
        route.namespace == gateway.namespace
            && matches!(route.kind, TargetKind::HttpRoute | TargetKind::GrpcRoute)
            && cluster
                .routes
                .get(route)
                .is_some_and(|r| r.gateways.iter().all(|g| g == gateway))
    };
    ((1..=MAX_ROUTES).contains(&routes.len()) && routes.iter().all(own)).then_some(routes)
}

/// Returns the state that Envoy Gateway reports in the object's status.
///
/// The status reports whether the extension policy was translated and is part of the data plane's
/// configuration, with the module fetched and its SHA-256 verified. It doesn't report whether each
/// Envoy accepted it. The condition `Overridden` names routes with an extension policy of another
/// owner. This condition isn't a failure, because the object still applies to the other routes.
pub fn state(observed: &Value) -> ObjectState {
    let generation = observed["metadata"]["generation"].as_i64();
    let ancestors = observed["status"]["ancestors"].as_array();
    let conditions = ancestors
        .into_iter()
        .flatten()
        .filter_map(|a| a["conditions"].as_array())
        .flatten();
    let mut accepted = false;
    for condition in conditions {
        if condition["observedGeneration"].as_i64() != generation {
            continue;
        }
        let field = |name: &str| condition[name].as_str().unwrap_or_default();
        match (field("type"), field("status")) {
            ("Accepted", "True") => accepted = true,
            ("Accepted", "False") => {
                return ObjectState::Failed(format!(
                    "Envoy Gateway refuses it: {}: {}",
                    field("reason"),
                    field("message")
                ));
            }
            _ => {}
        }
    }
    match accepted {
        true => ObjectState::Delivered,
        false => ObjectState::Pending("Envoy Gateway has not accepted it yet".to_owned()),
    }
}

/// Whether Envoy Gateway reports that it couldn't fetch the object's module.
pub fn lacks_module(observed: &Value) -> bool {
    matches!(state(observed), ObjectState::Failed(why) if why.contains(UNFETCHED))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the state of an object of generation 2 whose ancestors have `conditions`. A
    /// condition is type, status and generation.
    fn said(conditions: &[(&str, &str, i64)]) -> ObjectState {
        let condition = |&(kind, status, generation): &(&str, &str, i64)| {
            json!({
                "type": kind, "status": status, "reason": "R", "message": "m",
                "observedGeneration": generation,
            })
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        state(&json!({
            "metadata": {"generation": 2},
            "status": {"ancestors": [{"conditions": conditions}]},
        }))
    }

    #[test]
    fn a_policy_that_some_routes_override_is_delivered() {
        let accepted = ("Accepted", "True", 2);
        assert_eq!(said(&[accepted]), ObjectState::Delivered);
        assert_eq!(
            said(&[accepted, ("Overridden", "True", 2)]),
            ObjectState::Delivered
        );
        let refused = ObjectState::Failed("Envoy Gateway refuses it: R: m".to_owned());
        assert_eq!(said(&[("Accepted", "False", 2)]), refused);
        for none in [&[][..], &[("Accepted", "True", 1)]] {
            assert!(matches!(said(none), ObjectState::Pending(_)));
        }
    }
}
