//! The types of the configuration of workflows (Wisp): workflow ids, rates, and trusted peers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ServiceAdmissionConfig;
use super::types::one;

/// The listener that a configuration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Direction {
    /// Requests to the service behind the proxy, or to a gateway.
    #[default]
    Inbound,
    /// Calls of that service to others.
    Outbound,
}

/// Workflows of a stage (Wisp §4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowsConfig {
    /// The places where a request may name its workflow, 1 to 8. The first one with a name counts.
    pub identify: Vec<WorkflowSource>,
    /// q, a ratio 0..=1. With 0, a workflow adopts the rate of the slowest process of a downstream
    /// service. With 1, it adopts the rate of the fastest process.
    pub quantile: f64,
    /// q by downstream service, which takes precedence over the q of a workflow.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_quantiles: BTreeMap<String, f64>,
    /// Time between two runs of Algorithm 1, µs: 10,000 ..= 10,000,000.
    pub interval_us: u64,
    /// Time after which an announced rate expires unless it is renewed, µs. It is at least 2
    /// intervals.
    pub rate_ttl_us: u64,
    /// The policy by which the process shares its capacity among workflows (Alg. 1 line 1).
    pub sharing: SharingConfig,
    /// The number of workflows with rates of their own, 1 ..= 1000. Later workflows share `_other`.
    pub max_workflows: u16,
    /// Longest queue of the rate limiter, in requests of one workflow. With 0, requests above the
    /// rate are refused at once.
    pub max_queue_length: u32,
    /// Settings of workflows by name. Those of `_other` apply to workflows without a rate of their
    /// own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub workflows: BTreeMap<String, WorkflowConfig>,
    /// Whether requests come from outside the mesh. Their Headgate headers are then not trusted and
    /// are removed.
    #[serde(default)]
    pub edge: bool,
    /// SPIFFE ids of the trusted peers, each exact or with a trailing `*`. The Headgate headers of
    /// other peers are removed. Empty: all peers are trusted, as without mutual TLS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
}

/// The place where a request names its workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum WorkflowSource {
    /// A member of W3C Baggage.
    Baggage {
        /// The member's key.
        key: String,
    },
    /// A request header.
    Header {
        /// The header's name, in lower case.
        name: String,
    },
    /// A value in Envoy's dynamic metadata, such as a claim of a verified JWT.
    Metadata {
        /// The namespace of the filter that wrote the value, followed by keys:
        /// `["envoy.filters.http.jwt_authn", "claims", "tenant"]`.
        path: Vec<String>,
    },
    /// The query type of the request.
    Type,
}

/// Settings of one workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowConfig {
    /// q of this workflow, for downstream services without a q of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantile: Option<f64>,
    /// q of this workflow by downstream service, which takes precedence over the workflow's q and
    /// the service's q.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_quantiles: BTreeMap<String, f64>,
    /// The rate that this process always admits, regardless of the fair share, requests/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<f64>,
    /// Weight in fair shares, relative to other workflows. Above 0.
    #[serde(default = "one")]
    pub weight: f64,
    /// End-to-end deadline of requests without one, from the entry point on, µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u64>,
}

impl Default for WorkflowConfig {
    fn default() -> Self {
        Self {
            quantile: None,
            service_quantiles: BTreeMap::new(),
            guarantee: None,
            weight: one(),
            deadline_us: None,
        }
    }
}

/// The local policy, by which a process shares its capacity among workflows (Wisp §4.3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum SharingConfig {
    /// Workflows get their guarantees. Those without a guarantee share the rest in proportion to
    /// their weights.
    StaticGuarantees,
    /// Rates rise by a probe while there is spare capacity. Without spare capacity, rates are
    /// max-min fair shares.
    BottleneckFairness {
        /// β: the increase of a rate in an interval in which all capacity is free, requests/s.
        probe: f64,
        /// Utilization of the slots above which the process counts as overloaded, ratio 0 < u <= 1.
        max_utilization: f64,
    },
    /// Bottleneck fairness, with dominant resource fairness over the slots and a second resource
    /// that the backend reports.
    DominantResource {
        /// β, as with bottleneck fairness, requests/s.
        probe: f64,
        /// Utilization of either resource above which the process counts as overloaded, ratio 0 < u
        /// <= 1.
        max_utilization: f64,
        /// The second resource.
        resource: ResourceConfig,
    },
}

/// A resource whose use the backend reports with its responses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceConfig {
    /// The capacity, units/s.
    pub capacity: f64,
    /// The place in the response where the backend reports the request's use.
    pub report: ResourceReport,
}

/// The place in a response where the backend reports the request's use of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum ResourceReport {
    /// `request_cost` of an ORCA load report: header `endpoint-load-metrics`, in its text or JSON
    /// form.
    Orca {
        /// Key in `request_cost`.
        metric: String,
    },
    /// The `dur` of a metric in `server-timing`.
    ServerTiming {
        /// Name of the metric.
        metric: String,
    },
}

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
    /// SPIFFE ids of the processes whose rates are trusted, as in [`WorkflowsConfig::peers`].
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
    /// t_b, the longest delay, µs, 1 ..= [`MAX_SMOOTHING_US`](super::MAX_SMOOTHING_US).
    pub most_us: u64,
    /// Whether calls are delayed. If not, the calls that would be delayed are only counted.
    pub enforced: bool,
}
