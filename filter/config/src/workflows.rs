//! Shapes of the configuration of workflows (Wisp): who they are, how their rates are found, who is believed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ServiceAdmissionConfig;

/// Which listener a configuration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Direction {
    /// Requests to the process that the proxy stands in front of.
    #[default]
    Inbound,
    /// Requests that it sends to others.
    Outbound,
}

/// Workflows of a stage (Wisp §4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowsConfig {
    /// Where a request names its workflow; the first that does counts. 1 to 8.
    pub identify: Vec<WorkflowSource>,
    /// q, ratio 0..=1: 0 adopts the rate of the slowest process of a downstream service, 1 that of the fastest.
    pub quantile: f64,
    /// q by downstream service, which goes before a workflow's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_quantiles: BTreeMap<String, f64>,
    /// Time between two runs of Algorithm 1, µs: 10,000 ..= 10,000,000.
    pub interval_us: u64,
    /// Without renewal an announced rate is forgotten after this, µs: 2 intervals at least.
    pub rate_ttl_us: u64,
    /// How the process shares what it has (Alg. 1 line 1).
    pub sharing: SharingConfig,
    /// Workflows that have rates of their own; those that come later share `_other`. 1 ..= 1000.
    pub max_workflows: u16,
    /// The queue of the rate limiter, in requests of one workflow. 0: what exceeds the rate is refused at once.
    pub max_queue_length: u32,
    /// Settings of workflows by name; `_other` for those without a rate of their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub workflows: BTreeMap<String, WorkflowConfig>,
    /// Requests come from outside the mesh: nothing that they say in Headgate's headers is believed, and it is
    /// removed.
    #[serde(default)]
    pub edge: bool,
    /// SPIFFE ids of the peers that are believed, each exact or with a trailing `*`; of others Headgate's headers are
    /// removed. Empty: all peers are believed, as where there is no mutual TLS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
}

/// Where a request names its workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum WorkflowSource {
    /// A member of W3C Baggage.
    Baggage {
        /// Its key.
        key: String,
    },
    /// A request header.
    Header {
        /// Its lower case name.
        name: String,
    },
    /// A value in Envoy's dynamic metadata, such as a claim of a verified JWT.
    Metadata {
        /// Namespace of the filter that wrote it, then keys: `["envoy.filters.http.jwt_authn", "claims", "tenant"]`.
        path: Vec<String>,
    },
    /// The query type of the request.
    Type,
}

/// Settings of one workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowConfig {
    /// q of this workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantile: Option<f64>,
    /// Requests/s that this process always admits of it, whatever its fair share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<f64>,
    /// Its part in fair shares, relative to the others'; above 0.
    #[serde(default = "one")]
    pub weight: f64,
    /// End-to-end deadline of requests that say none, from the entry point on, µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u64>,
}

fn one() -> f64 {
    1.0
}

impl Default for WorkflowConfig {
    fn default() -> Self {
        Self {
            quantile: None,
            guarantee: None,
            weight: one(),
            deadline_us: None,
        }
    }
}

/// The local policy: how a process shares what it has among workflows (Wisp §4.3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum SharingConfig {
    /// Each workflow has its guarantee, and those without share what is left in proportion to their weights.
    StaticGuarantees,
    /// Rates rise by a probe while there is spare capacity; max-min fair shares when there is none.
    BottleneckFairness {
        /// β: what rates rise by in an interval when all of the capacity is spare, requests/s.
        probe: f64,
        /// Part of the slots' time that may be in use before the process counts as overloaded, ratio 0 < u <= 1.
        max_utilization: f64,
    },
    /// As bottleneck fairness, with dominant resource fairness over the slots and a second resource that the backend
    /// reports.
    DominantResource {
        /// As above.
        probe: f64,
        /// As above, of each resource.
        max_utilization: f64,
        /// The second resource.
        resource: ResourceConfig,
    },
}

/// A resource whose use the backend reports with its responses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceConfig {
    /// What there is of it, in units a second.
    pub capacity: f64,
    /// Where a response says how much it used.
    pub report: ResourceReport,
}

/// Where a response says how much of a resource its request used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum ResourceReport {
    /// `request_cost` of an ORCA load report: header `endpoint-load-metrics`, in its text or JSON form.
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

/// The outbound side: calls of the process to others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutboundConfig {
    /// The stage of the inbound side that these calls belong to, and their workflows to, `namespace/name` of its
    /// policy.
    pub policy: String,
    /// Names of downstream services by Envoy cluster; a pattern may end in `*`. A cluster without counts as a service
    /// of its own name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, String>,
    /// SPIFFE ids of the processes whose rates are believed, as in [`WorkflowsConfig::peers`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// What services promise to their classes, by name of the service. Calls to others run as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub class_admission: BTreeMap<String, ServiceAdmissionConfig>,
    /// Calls are delayed by the rejection rate that the called service told. Without, none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<SmoothingConfig>,
}

/// By how much calls are delayed while the called service refuses others (Chronos §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SmoothingConfig {
    /// t_a, µs: 0 ..= most.
    pub least_us: u64,
    /// t_b, µs: 1 ..= [`MAX_SMOOTHING_US`](super::MAX_SMOOTHING_US).
    pub most_us: u64,
    /// Whether calls are delayed, or only counted.
    pub enforced: bool,
}
