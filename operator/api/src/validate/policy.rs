//! A policy without mistakes.

use headgate_core::config::{OutboundConfig, ServiceAdmissionConfig, StageConfig};

use crate::slots::Slots;
use crate::target::TargetRef;

/// A policy without mistakes, in the types that the filter uses.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidPolicy {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `metadata.generation`, 0 when not given.
    pub generation: i64,
    /// `metadata.creationTimestamp`, RFC 3339 in UTC. Such timestamps sort as texts.
    pub created: Option<String>,
    /// The objects that the policy targets, in the given order, without duplicates.
    pub targets: Vec<TargetRef>,
    /// The slots, from which [`crate::compile`] computes the stage's parallelism.
    pub slots: Slots,
    /// The admission stage, for one endpoint.
    pub stage: StageConfig,
    /// The settings of the backend's calls to other services; `None` without workflows and class
    /// admission. The targets of those services are in their own policies ([`crate::compile`]).
    pub outbound: Option<OutboundConfig>,
    /// The settings of class admission for the service's callers; `None` without class admission.
    pub promises: Option<ServiceAdmissionConfig>,
    /// Settings that are valid but seldom intended, each as `FIELD: the setting and its effect`.
    pub warnings: Vec<String>,
}

impl ValidPolicy {
    /// Returns `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
