//! The configuration of a process's calls to others, with its checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::place::{Checked, Place};
use super::{MAX_SMOOTHING_US, MAX_WORKFLOW_SERVICES, ServiceAdmissionConfig};

/// The settings of the outbound side, for calls of the process to others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutboundConfig {
    /// `namespace/name` of the policy of the inbound stage to which these calls and their workflows
    /// belong.
    pub policy: String,
    /// Names of downstream services by Envoy cluster. A cluster may be a pattern that ends in `*`.
    /// By default a service has the name of its cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, String>,
    /// SPIFFE ids of the processes whose rates are trusted, as in
    /// [`WorkflowsConfig::peers`](super::WorkflowsConfig::peers).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Class admission by name of the called service. Calls to other services keep their class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub class_admission: BTreeMap<String, ServiceAdmissionConfig>,
    /// Delays of calls by the rejection rate of the called service. Absent: no delays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<SmoothingConfig>,
    /// Delays in place of `smoothing` for the clusters of single patterns of `services`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_smoothing: BTreeMap<String, SmoothingConfig>,
}

/// The range of the delays of calls while the called service refuses requests (Chronos §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmoothingConfig {
    /// t_a, the shortest delay, µs, 0 ..= `most_us`.
    pub least_us: u64,
    /// t_b, the longest delay, µs, 1 ..= [`MAX_SMOOTHING_US`].
    pub most_us: u64,
    /// Whether calls are delayed. If not, the calls that would be delayed are only counted.
    pub enforced: bool,
}

impl OutboundConfig {
    pub(super) fn check(&self, at: &Place) -> Checked {
        at.ensure("policy", !self.policy.is_empty(), || {
            "empty; namespace/name of the policy".to_owned()
        })?;
        at.at_most("services", self.services.len(), MAX_WORKFLOW_SERVICES)?;
        for (cluster, service) in &self.services {
            at.text("services", cluster)?;
            let name = cluster.strip_suffix('*').unwrap_or(cluster);
            at.ensure("services", !name.contains('*'), || {
                format!("{cluster:?}; * only at the end")
            })?;
            at.name("services", service)?;
        }
        let (field, services) = ("class_admission", &self.class_admission);
        at.at_most(field, services.len(), MAX_WORKFLOW_SERVICES)?;
        for (service, admission) in services {
            at.name(field, service)?;
            admission.check(&at.field(field).field(service))?;
        }
        if let Some(range) = &self.smoothing {
            smoothing(at, "smoothing", range)?;
        }
        for (cluster, range) in &self.service_smoothing {
            let field = "service_smoothing";
            at.ensure(field, self.services.contains_key(cluster), || {
                format!("{cluster:?}; a cluster of outbound.services")
            })?;
            smoothing(at, field, range)?;
        }
        at.peers(&self.peers)
    }
}

fn smoothing(at: &Place, field: &str, range: &SmoothingConfig) -> Checked {
    let (least, most) = (range.least_us, range.most_us);
    let is_right = (1..=MAX_SMOOTHING_US).contains(&most) && least <= most;
    at.ensure(field, is_right, || {
        format!(
            "least_us {least} and most_us {most}; most_us 1 to {MAX_SMOOTHING_US}, least_us 0 to \
             most_us"
        )
    })
}
