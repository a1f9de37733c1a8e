//! The observed state of the cluster, as plain data without Kubernetes' types. It is the input of a
//! plan, and small enough to hold ten thousand Pods in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use headgate_api::plan::{Plan, TargetKind, TargetRef};
use headgate_api::validate::ValidPolicy;

/// The namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// Returns the key of an object.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for ObjectKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split('/').collect::<Vec<_>>()[..] {
            [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self::new(namespace, name))
            }
            _ => Err(format!(
                "{text:?} is no NAMESPACE/NAME, such as default/search"
            )),
        }
    }
}

/// A cluster with its plan.
#[derive(Debug, Clone)]
pub struct PlannedCluster {
    /// The observed cluster.
    pub cluster: Arc<Cluster>,
    /// The plan for the cluster.
    pub plan: Arc<Plan>,
}

/// The observed state of the cluster. A clone shares unchanged parts with the original.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cluster {
    /// Policies.
    pub policies: Arc<BTreeMap<ObjectKey, Arc<PolicyObject>>>,
    /// Services.
    pub services: Arc<BTreeMap<ObjectKey, Service>>,
    /// The number of ready endpoints of each Service. An endpoint in several EndpointSlices counts
    /// once.
    pub ready_endpoints: Arc<BTreeMap<ObjectKey, u32>>,
    /// Running Pods.
    pub pods: Arc<BTreeMap<ObjectKey, Pod>>,
    /// Gateways. Empty while Gateway API isn't installed.
    pub gateways: Arc<BTreeMap<ObjectKey, Gateway>>,
    /// HTTPRoutes and GRPCRoutes, by target reference.
    pub routes: Arc<BTreeMap<TargetRef, Route>>,
    /// InferencePools. Empty while Gateway API's inference extension isn't installed.
    pub pools: Arc<BTreeMap<ObjectKey, Pool>>,
    /// The kinds of Gateway API and its inference extension that the API server serves. A target of
    /// another kind is reported as not found.
    pub served_kinds: Vec<TargetKind>,
}

/// A policy as observed on the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyObject {
    /// `metadata.uid`, for owner references.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Option<String>,
    /// The valid targets, even if the policy is invalid.
    pub targets: Vec<TargetRef>,
    /// Whether the present version is valid; `Err` has one error on each line.
    pub accepted: Result<(), String>,
    /// The version in force: the present one if it is valid, else the last valid one.
    pub effective: Option<ValidPolicy>,
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// `spec.selector`. Empty for a Service without a selector, whose endpoints another controller
    /// manages.
    pub selector: BTreeMap<String, String>,
}

/// A Pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// The labels of the Pod.
    pub labels: BTreeMap<String, String>,
    /// The target that the Pod's proxy serves, from the annotation
    /// [`headgate_api::plan::TARGET_METADATA`].
    pub target: Option<TargetRef>,
    /// Whether the condition `Ready` is true and the Pod isn't being deleted.
    pub ready: bool,
    /// The names of the mounted ConfigMaps that Headgate may have delivered.
    pub config_maps: Vec<String>,
}

/// A Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gateway {
    /// `spec.gatewayClassName`.
    pub class: String,
    /// The names of the Gateway's listeners.
    pub listeners: BTreeSet<String>,
}

/// An HTTPRoute or GRPCRoute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Route {
    /// The parent Gateways of the route. Gateways of other namespaces are included only if they
    /// have accepted the route.
    pub gateways: Vec<ObjectKey>,
    /// The listeners to which the route attaches, each with its Gateway. `None` means all listeners
    /// of that Gateway.
    pub listeners: BTreeSet<(ObjectKey, Option<String>)>,
    /// The Services and InferencePools among the backends of each rule.
    pub rules: Vec<BTreeSet<TargetRef>>,
    /// The names of the named rules, by the rule's number. In Istio's Envoys, a rule's name is the
    /// full name of its routes. Envoy Gateway names all rules by number, so a route that only Envoy
    /// Gateway serves has no names here.
    pub names: BTreeMap<usize, String>,
}

/// An InferencePool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pool {
    /// `spec.selector.matchLabels`.
    pub selector: BTreeMap<String, String>,
    /// The number of `spec.targetPorts`. Each of them is one endpoint of each Pod.
    pub ports: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_a_namespace_and_a_name() {
        let key: ObjectKey = "a/b".parse().unwrap();
        assert_eq!(key.to_string(), "a/b");
        for text in ["", "a", "a/", "/b", "a/b/c"] {
            assert!(text.parse::<ObjectKey>().is_err(), "{text}");
        }
    }
}
