//! `AdmissionPolicy.headgate.dev/v1alpha1` as users write it.
//!
//! These types are the wire format and nothing more: they take the output of a YAML parser or the
//! API server, refuse unknown fields, and keep texts as texts. [`crate::validate`] turns a policy
//! into types that can't be wrong and explains the mistakes. Choices are a `type` field beside
//! optional settings, as in the Gateway API, rather than untagged unions, so that errors can name
//! the field at fault.

mod backlog_control;
mod class_admission;
mod duration;
mod errors;
mod policy;
mod queue;
mod response_time_controller;
mod strategy;
mod workflows;

pub use backlog_control::*;
pub use class_admission::*;
pub use duration::*;
pub use errors::*;
pub use policy::*;
pub use queue::*;
pub use response_time_controller::*;
pub use strategy::*;
pub use workflows::*;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// Formats the values of enumerations as policies write them.
macro_rules! written {
    ($($own:ident)+) => {$(
        impl fmt::Display for $own {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )+};
}

written! {
    CentralizedMethod CostType DisciplineType SharingType StarvationAvoidanceType StrategyType
    WorkflowIdentityType
}

/// The only `apiVersion`.
pub const API_VERSION: &str = "headgate.dev/v1alpha1";
/// The only `kind`.
pub const KIND: &str = "AdmissionPolicy";
/// Namespace of a policy that names no namespace.
pub const DEFAULT_NAMESPACE: &str = "default";

/// An admission policy.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdmissionPolicy {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Name and namespace.
    pub metadata: Metadata,
    /// The desired state.
    pub spec: AdmissionPolicySpec,
    /// The observed state; written by the operator in a cluster, ignored in a file.
    pub status: Option<IgnoredAny>,
}

/// The fields of Kubernetes' `ObjectMeta` that Headgate reads. The rest is accepted and ignored, so
/// that the output of `kubectl get -o yaml` is a valid file.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Name, unique in its namespace.
    pub name: String,
    /// Namespace; `default` when absent.
    pub namespace: Option<String>,
    /// A number that increases with each change of the spec; set by the API server.
    pub generation: Option<i64>,
    /// Creation time, RFC 3339; set by the API server. Among policies for one target, the oldest
    /// applies.
    pub creation_timestamp: Option<String>,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    generate_name: Option<IgnoredAny>,
    uid: Option<IgnoredAny>,
    resource_version: Option<IgnoredAny>,
    deletion_timestamp: Option<IgnoredAny>,
    deletion_grace_period_seconds: Option<IgnoredAny>,
    finalizers: Option<IgnoredAny>,
    owner_references: Option<IgnoredAny>,
    managed_fields: Option<IgnoredAny>,
    self_link: Option<IgnoredAny>,
}
