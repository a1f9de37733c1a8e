//! `AdmissionPolicy` in its form on the API server.
//!
//! The `spec` is kept as JSON here, because one object that an older or newer schema accepted must
//! not make the whole list unreadable. [`headgate_api::validate`] validates each object on its own.
//! For the same reason, a status is read without conditions that can't be read.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// The API group.
pub const GROUP: &str = "headgate.dev";
/// The API version.
pub const VERSION: &str = "v1alpha1";
/// The plural, as in URLs and `kubectl get`.
pub const PLURAL: &str = "admissionpolicies";

/// An `AdmissionPolicy` with an unvalidated spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyResource {
    /// Kubernetes' metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The spec, unvalidated.
    #[serde(default)]
    pub spec: serde_json::Value,
    /// The status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<AdmissionPolicyStatus>,
}

impl kube::Resource for PolicyResource {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        headgate_api::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The observed state of a policy, in total and at each target (GEP-713 `PolicyStatus`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionPolicyStatus {
    /// Conditions of the policy in total. `Accepted`, `Programmed` and `Overridden` are `True` if
    /// they are `True` at each target. `Programmed` ignores overridden targets, unless all targets
    /// are overridden.
    #[serde(
        default,
        deserialize_with = "readable",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(with = "Vec<ConditionSchema>")]
    pub conditions: Vec<Condition>,
    /// One entry for each target, in the order of `spec.targetRefs`.
    #[serde(default)]
    pub ancestors: Vec<PolicyAncestorStatus>,
}

/// The state of a policy at one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyAncestorStatus {
    /// The target of this entry.
    pub ancestor_ref: AncestorReference,
    /// The controller that wrote this entry: `headgate.dev/controller`.
    pub controller_name: String,
    /// `Accepted`: whether the policy is valid and may apply to the target. Its reasons are
    /// Accepted, Invalid, TargetNotFound and Conflicted (an older policy applies to the target).
    /// `Programmed`: whether all proxies of the target run the policy. Its reasons are Programmed,
    /// PartiallyProgrammed, Pending, NoProxies, LimitReached, EnvoyRejected, DeliveryFailed,
    /// Overridden, and those of `Accepted`. `Overridden` is present while a policy with precedence
    /// is in force on all proxies of the target.
    #[serde(default, deserialize_with = "readable")]
    #[schemars(with = "Vec<ConditionSchema>")]
    pub conditions: Vec<Condition>,
}

/// Reads conditions, and leaves out those that can't be read. The API server accepts some times
/// that no library reads, such as those with an offset of 99 hours.
fn readable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    let all = Option::<Vec<serde_json::Value>>::deserialize(deserializer)?;
    let all = all.into_iter().flatten();
    Ok(all
        .filter_map(|condition| serde_json::from_value(condition).ok())
        .collect())
}

/// A condition of a policy.
// The crate of Kubernetes' own type could also generate this schema, but only if the schemas of its
// thousand types are compiled too.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code)] // only its schema is used
struct ConditionSchema {
    /// Type: `Accepted`, `Programmed` or `Overridden`.
    #[serde(rename = "type")]
    type_: String,
    /// Status: `True`, `False` or `Unknown`.
    status: String,
    /// Reason in one word, for programs.
    reason: String,
    /// Reason in words, for people.
    message: String,
    /// The time at which `status` last changed.
    #[schemars(extend("format" = "date-time"))]
    last_transition_time: String,
    /// The `metadata.generation` that the condition is based on.
    observed_generation: Option<i64>,
}

/// An object that a policy attaches to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AncestorReference {
    /// API group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// Kind, such as `Service`.
    pub kind: String,
    /// Namespace, which is the policy's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name; for Pods, their labels as `app=search,tier=web`.
    pub name: String,
    /// Name of the Gateway's listener, if the policy names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}
