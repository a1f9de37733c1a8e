//! What is known of the cluster at one moment, as plain data without Kubernetes' types: what a plan
//! is made of, and small enough to keep for ten thousand Pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::shared::Shared;
use crate::plan::{TargetKind, TargetRef};
use crate::validate::ValidPolicy;

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// A key.
    #[must_use]
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

/// The cluster at one moment. A copy shares what it has in common with the original.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cluster {
    /// Policies.
    pub policies: Shared<BTreeMap<ObjectKey, Shared<PolicyObject>>>,
    /// Services.
    pub services: Shared<BTreeMap<ObjectKey, Service>>,
    /// Ready endpoints of each Service, counted once each over its EndpointSlices.
    pub ready_endpoints: Shared<BTreeMap<ObjectKey, u32>>,
    /// Pods that run.
    pub pods: Shared<BTreeMap<ObjectKey, Pod>>,
    /// Gateways; empty while Gateway API isn't installed.
    pub gateways: Shared<BTreeMap<ObjectKey, Gateway>>,
    /// HTTPRoutes and GRPCRoutes, by their target.
    pub routes: Shared<BTreeMap<TargetRef, Route>>,
    /// Kinds of Gateway API that the API server has; a target of another kind can't be found yet.
    pub served_kinds: Vec<TargetKind>,
}

/// A policy as the API server has it.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyObject {
    /// `metadata.uid`, for owner references.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// The targets that are right, even when the policy is not.
    pub targets: Vec<TargetRef>,
    /// The policy, or its mistakes, a line each.
    pub checked: Result<ValidPolicy, Vec<String>>,
    /// The last version without mistakes, in force while `checked` is an error.
    pub last_good: Option<ValidPolicy>,
}

impl PolicyObject {
    /// What is in force of it.
    #[must_use]
    pub fn effective(&self) -> Option<&ValidPolicy> {
        self.checked.as_ref().ok().or(self.last_good.as_ref())
    }
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// `spec.selector`; empty for one without, whose endpoints are somebody else's.
    pub selector: BTreeMap<String, String>,
}

/// A Pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The target that its proxy stands for, from the annotation [`crate::plan::TARGET_METADATA`].
    pub target: Option<TargetRef>,
    /// Its condition `Ready`, and not being deleted.
    pub ready: bool,
}

/// A Gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gateway {
    /// `spec.gatewayClassName`.
    pub class: String,
    /// Names of its listeners.
    pub listeners: BTreeSet<String>,
}

/// An HTTPRoute or GRPCRoute.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Route {
    /// Gateways among its parents; of other namespaces those that have accepted it.
    pub gateways: Vec<ObjectKey>,
    /// Listeners of its parent Gateways that it names; without a name: all of that Gateway's.
    pub listeners: BTreeSet<(ObjectKey, Option<String>)>,
    /// Services among its backends, each once.
    pub backends: Vec<ObjectKey>,
}
