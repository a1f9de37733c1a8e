//! Reduces the API server's objects to the parts that a plan needs. The rest is dropped on arrival.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::DynamicObject;
use kube::core::ObjectMeta;
use serde_json::Value;

use crate::cluster::{Gateway, ObjectKey, Pod, Pool, Route, Service};
use crate::{config_map, envoy_gateway};
use headgate_api::plan::{TARGET_METADATA, TargetKind, TargetRef};

/// An object's namespace and name, and its kept part.
pub type Keyed<V> = (ObjectKey, V);

/// The label that names an EndpointSlice's Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The kept part of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slice {
    /// The key of the slice's Service. `None` if the slice belongs to no Service.
    pub service: Option<ObjectKey>,
    /// The ready endpoints of the slice.
    pub ready: BTreeSet<Endpoint>,
    /// The ports of the slice by name. An unnamed port has the empty name.
    pub ports: BTreeMap<String, u16>,
}

/// A ready endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// The identity under which the endpoint counts once. This is the Pod's name, or the address if
    /// the endpoint isn't a Pod. A Pod with an IPv4 and an IPv6 address is in two slices.
    pub identity: String,
    /// The first address of the endpoint.
    pub address: String,
}

/// Returns an object's key.
pub fn key(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey::new(
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// Returns a Service's selector.
pub fn service(object: core::Service) -> Keyed<Service> {
    // Kubernetes ignores the selector of an ExternalName Service.
    let spec = object
        .spec
        .filter(|s| s.type_.as_deref() != Some("ExternalName"));
    let selector = spec.and_then(|s| s.selector).unwrap_or_default();
    (key(&object.metadata), Service { selector })
}

/// Returns the ready endpoints of an EndpointSlice. An endpoint with unknown readiness counts as
/// ready, as the API documentation requires.
pub fn slice(object: EndpointSlice) -> Keyed<Slice> {
    let key = key(&object.metadata);
    let service = object
        .metadata
        .labels
        .and_then(|mut labels| labels.remove(SERVICE_NAME_LABEL))
        .map(|name| ObjectKey::new(key.namespace.clone(), name));
    let ready = object
        .endpoints
        .unwrap_or_default()
        .into_iter()
        .filter(|e| e.conditions.as_ref().and_then(|c| c.ready) != Some(false))
        .filter_map(|e| {
            let address = e.addresses.into_iter().next()?;
            let pod = e
                .target_ref
                .filter(|r| r.kind.as_deref() == Some("Pod"))
                .and_then(|r| r.name);
            let identity = pod.unwrap_or_else(|| address.clone());
            Some(Endpoint { identity, address })
        })
        .collect();
    let ports = object
        .ports
        .unwrap_or_default()
        .into_iter()
        .filter_map(|p| Some((p.name.unwrap_or_default(), u16::try_from(p.port?).ok()?)))
        .collect();
    (
        key,
        Slice {
            service,
            ready,
            ports,
        },
    )
}

/// Returns the kept part of a Pod. `None` if the Pod has ended.
pub fn pod(object: core::Pod) -> Keyed<Option<Pod>> {
    let key = key(&object.metadata);
    let status = object.status.unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return (key, None);
    }
    let is_ready = status
        .conditions
        .unwrap_or_default()
        .iter()
        .any(|c| c.type_ == "Ready" && c.status == "True");
    let target = object
        .metadata
        .annotations
        .and_then(|a| a.get(TARGET_METADATA)?.parse().ok());
    let pod = Pod {
        labels: object.metadata.labels.unwrap_or_default(),
        target,
        ready: is_ready && object.metadata.deletion_timestamp.is_none(),
        config_maps: mounted(object.spec)
            .filter(|name| config_map::may_be_delivered(name))
            .collect(),
    };
    (key, Some(pod))
}

/// Returns the names of the ConfigMaps that a Pod mounts.
pub(crate) fn mounted(spec: Option<core::PodSpec>) -> impl Iterator<Item = String> {
    let volumes = spec.and_then(|spec| spec.volumes).unwrap_or_default();
    volumes.into_iter().flat_map(|volume| {
        let projected = volume.projected.and_then(|p| p.sources).unwrap_or_default();
        let projected = projected.into_iter().filter_map(|s| s.config_map);
        let projected = projected.map(|map| map.name);
        let own = volume.config_map.map(|map| map.name);
        own.into_iter().chain(projected)
    })
}

/// Returns a Gateway's class and listeners.
pub fn gateway(object: &DynamicObject) -> Keyed<Gateway> {
    let class = text(&object.data["spec"]["gatewayClassName"]).unwrap_or_default();
    let listeners = list(&object.data["spec"]["listeners"]);
    let listeners = listeners.filter_map(|l| text(&l["name"])).collect();
    (key(&object.metadata), Gateway { class, listeners })
}

/// Returns an InferencePool's selector and number of ports.
pub fn pool(object: &DynamicObject) -> Keyed<Pool> {
    let spec = &object.data["spec"];
    let labels = spec["selector"]["matchLabels"].as_object();
    let labels = labels.into_iter().flatten();
    let pool = Pool {
        selector: { labels.filter_map(|(key, value)| Some((key.clone(), text(value)?))) }.collect(),
        ports: u32::try_from(list(&spec["targetPorts"]).count()).unwrap_or(u32::MAX),
    };
    (key(&object.metadata), pool)
}

/// Returns a route's Gateways and backends.
///
/// A Gateway in another namespace counts only after it has accepted the route. Any user can name a
/// Gateway as a parent, which must not suffice to add a stage to proxies of another namespace. For
/// the same reason, backends in other namespaces count only after a Gateway has resolved them. Each
/// of their endpoints adds slots at the Gateway, and their owners may not permit the reference.
pub fn route(object: &DynamicObject) -> Keyed<Route> {
    let key = key(&object.metadata);
    let (spec, status) = (&object.data["spec"], &object.data["status"]);
    let is_true = |parent: &Value, condition: &str| {
        list(&parent["conditions"]).any(|c| c["type"] == condition && c["status"] == "True")
    };
    let resolved = list(&status["parents"]).any(|parent| is_true(parent, "ResolvedRefs"));
    let accepted: BTreeSet<ObjectKey> = list(&status["parents"])
        .filter(|parent| is_true(parent, "Accepted"))
        .filter_map(|parent| gateway_of(&parent["parentRef"], &key.namespace))
        .collect();
    let gateways: BTreeSet<ObjectKey> = list(&spec["parentRefs"])
        .filter_map(|parent| gateway_of(parent, &key.namespace))
        .filter(|gateway| gateway.namespace == key.namespace || accepted.contains(gateway))
        .collect();
    let rules = list(&spec["rules"]).map(|rule| {
        let backends = list(&rule["backendRefs"]);
        backends
            .filter_map(|b| backend(b, &key.namespace))
            .filter(|backend| resolved || backend.namespace == key.namespace)
            .collect()
    });
    let by_envoy_gateway = |parent: &Value| parent["controllerName"] == envoy_gateway::CONTROLLER;
    let is_only_there =
        list(&status["parents"]).next().is_some() && list(&status["parents"]).all(by_envoy_gateway);
    let names = { list(&spec["rules"]).enumerate() }
        .filter(|_| !is_only_there)
        .filter_map(|(number, rule)| Some((number, text(&rule["name"])?)));
    let named = list(&spec["parentRefs"]).filter_map(|parent| {
        let gateway = gateway_of(parent, &key.namespace)?;
        Some((gateway, text(&parent["sectionName"])))
    });
    let route = Route {
        gateways: gateways.into_iter().collect(),
        listeners: named.collect(),
        rules: rules.collect(),
        names: names.collect(),
    };
    (key, route)
}

fn gateway_of(parent: &Value, namespace: &str) -> Option<ObjectKey> {
    // A parent without group and kind is a Gateway.
    let group = text(&parent["group"]);
    let kind = text(&parent["kind"]);
    let is_gateway = group.is_none_or(|g| g == TargetKind::Gateway.group())
        && kind.is_none_or(|k| k == TargetKind::Gateway.as_str());
    is_gateway.then(|| reference(parent, namespace)).flatten()
}

/// Returns a backend that is a Service or an InferencePool. A backend without group and kind is a
/// Service.
fn backend(backend: &Value, namespace: &str) -> Option<TargetRef> {
    let group = text(&backend["group"]).unwrap_or_default();
    let named = text(&backend["kind"]).unwrap_or_else(|| "Service".to_owned());
    let kinds = [TargetKind::Service, TargetKind::InferencePool];
    let kind = { kinds.into_iter() }.find(|k| k.group() == group && k.as_str() == named)?;
    let key = reference(backend, namespace)?;
    Some(TargetRef::new(kind, key.namespace, key.name))
}

fn reference(object: &Value, namespace: &str) -> Option<ObjectKey> {
    let namespace = text(&object["namespace"]).unwrap_or_else(|| namespace.to_owned());
    Some(ObjectKey::new(namespace, text(&object["name"])?))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pod_with_two_addresses_is_one_endpoint() {
        let (_, seen) = slice(object(json!({
            "metadata": {"namespace": "a", "name": "s-1", "labels": {SERVICE_NAME_LABEL: "s"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "p"}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": true}},
            ],
            "ports": [{"port": 18001, "name": "admin"}, {"name": "none"}],
        })));
        assert_eq!(seen.service, Some(ObjectKey::new("a", "s")));
        let found: Vec<_> = seen
            .ready
            .iter()
            .map(|e| (e.identity.as_str(), e.address.as_str()))
            .collect();
        assert_eq!(found, [("10.0.0.3", "10.0.0.3"), ("p", "10.0.0.1")]);
        assert_eq!(seen.ports, BTreeMap::from([("admin".to_owned(), 18_001)]));
    }

    #[test]
    fn a_pod_that_has_ended_or_is_being_deleted_is_not_ready() {
        let with = |phase: &str, deleted: bool| {
            let (_, seen) = pod(object(json!({
                "metadata": {
                    "namespace": "a", "name": "p", "labels": {"app": "x"},
                    "annotations": {TARGET_METADATA: "Service/a/s"},
                    "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z"),
                },
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]},
            })));
            seen
        };
        let running = with("Running", false).unwrap();
        assert!(running.ready);
        assert_eq!(running.target, Some("Service/a/s".parse().unwrap()));
        assert!(!with("Running", true).unwrap().ready);
        assert_eq!(with("Succeeded", false), None);
    }

    /// Most Pods mount other ConfigMaps. Pods with a sidecar mount the ConfigMap with the CA.
    #[test]
    fn a_pods_files_are_those_that_may_be_delivered() {
        let (_, seen) = pod(object(json!({
            "metadata": {"namespace": "a", "name": "p"},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "configMap": {"name": "headgate-service-search"}},
                {"name": "b", "configMap": {"name": "settings"}},
                {"name": "c", "projected": {"sources": [
                    {"configMap": {"name": "headgate-ca"}},
                    {"configMap": {"name": "headgate-pod.app-search-1a2b3c4d"}},
                ]}},
                {"name": "d", "emptyDir": {}},
            ]},
        })));
        let files = [
            "headgate-service-search",
            "headgate-pod.app-search-1a2b3c4d",
        ];
        assert_eq!(seen.unwrap().config_maps, files);
    }

    #[test]
    fn rules_have_names_except_where_envoy_gateway_alone_serves_them() {
        let with = |controllers: &[&str]| {
            let parent = |name| json!({"controllerName": name, "parentRef": {"name": "edge"}});
            let parents: Vec<Value> = controllers.iter().map(parent).collect();
            let (_, seen) = route(&object(json!({
                "metadata": {"namespace": "a", "name": "r"},
                "spec": {"rules": [{}, {"name": "talk"}]},
                "status": {"parents": parents},
            })));
            seen.names
        };
        let [istio, other] = ["istio.io/gateway-controller", envoy_gateway::CONTROLLER];
        let talk = BTreeMap::from([(1, "talk".to_owned())]);
        for controllers in [&[][..], &[istio], &[other, istio]] {
            assert_eq!(with(controllers), talk, "{controllers:?}");
        }
        assert_eq!(with(&[other, other]), BTreeMap::new());
    }

    #[test]
    fn references_to_another_namespace_count_once_accepted_or_resolved() {
        let with = |status: Value| {
            let (_, seen) = route(&object(json!({
                "metadata": {"namespace": "a", "name": "r"},
                "spec": {
                    "parentRefs": [
                        {"name": "own"},
                        {"name": "edge", "namespace": "infra"},
                        {"name": "svc", "kind": "Service", "group": ""},
                    ],
                    "rules": [
                        {"backendRefs": [{"name": "b"}, {"name": "c", "namespace": "x"}]},
                        {"backendRefs": [
                            {"name": "b"},
                            {"name": "d", "kind": "Bucket", "group": "z"},
                            {
                                "name": "p", "kind": "InferencePool",
                                "group": "inference.networking.k8s.io",
                            },
                            {"name": "q", "kind": "InferencePool", "group": "z"},
                        ]},
                    ],
                },
                "status": status,
            })));
            seen
        };
        let own = ObjectKey::new("a", "own");
        let seen = with(json!({}));
        assert_eq!(seen.gateways, std::slice::from_ref(&own));
        let backends = |all: &[&str]| all.iter().map(|b| b.parse().unwrap()).collect();
        assert_eq!(
            seen.rules,
            [
                backends(&["Service/a/b"]),
                backends(&["Service/a/b", "InferencePool/a/p"])
            ]
        );
        let resolved = |status: &str| {
            let conditions = json!([{"type": "ResolvedRefs", "status": status}]);
            with(json!({"parents": [{"parentRef": {"name": "own"}, "conditions": conditions}]}))
        };
        assert_eq!(resolved("False").rules, seen.rules);
        assert_eq!(
            resolved("True").rules[0],
            backends(&["Service/a/b", "Service/x/c"])
        );
        let parent = |status: &str| {
            json!({"parents": [{
                "parentRef": {"name": "edge", "namespace": "infra"},
                "conditions": [{"type": "Accepted", "status": status}],
            }]})
        };
        assert_eq!(with(parent("False")).gateways, std::slice::from_ref(&own));
        assert_eq!(
            with(parent("True")).gateways,
            [own, ObjectKey::new("infra", "edge")]
        );
    }

    #[test]
    fn objects_with_nothing_in_them_are_no_trouble() {
        let nothing = || json!({"metadata": {"name": "x", "namespace": "y"}});
        assert_eq!(service(object(nothing())).1, Service::default());
        assert_eq!(route(&object(nothing())).1, Route::default());
        assert_eq!(gateway(&object(nothing())).1, Gateway::default());
        assert_eq!(pool(&object(nothing())).1, Pool::default());
        assert_eq!(pod(object(nothing())).1, Some(Pod::default()));
    }
}
