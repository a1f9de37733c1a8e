//! `spec.workflows`: classes of requests that cross services, and the rates that they may have (Wisp §3–4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// Workflows: classes of requests (tenants, features) that cross services. Each process finds the rate at which
/// it can take each of them, tells those that call it, and refuses what exceeds it where it enters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with identifyBy, quantile, sharing, named and more"
)]
pub struct Workflows {
    /// Where a request names its workflow, at most 8; the first that does counts. By default the member
    /// `workflow` of W3C Baggage, then the header `x-headgate-workflow`. Requests that name none, or one of more
    /// than 128 bytes, share `_other`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identify_by: Vec<WorkflowIdentity>,
    /// q, the quantile of the rates of a downstream service's processes that is adopted, 0 to 1; 0.5 by default.
    /// 0: that of the slowest, so that none gets more than it can take. 1: that of the fastest, so that none
    /// is left idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantile: Option<f64>,
    /// Downstream services with a quantile of their own, which goes before that of a workflow; at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceQuantile>,
    /// Time after which rates are found anew, 10ms to 10s; 100ms by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
    /// Time after which a rate that a downstream process announced is forgotten unless it is renewed, 20ms to 1h
    /// and 2 intervals or more; by default 10 intervals, 1s at least. Requests without a deadline wait no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_timeout: Option<Duration>,
    /// How a process shares what it has among workflows; max-min fair (`BottleneckFairness`) by default.
    pub sharing: Sharing,
    /// Workflows that have a rate of their own, 1 to 1000; 100 by default. Those that come later share one,
    /// `_other`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_workflows: Option<i64>,
    /// Requests of one workflow that wait for its rate, 0 to 10000; 100 by default. 0: what exceeds the rate is
    /// refused at once. A request that would have to wait is refused where its deadline leaves too little time for
    /// that wait and for what its workflow takes on average from here on; one that need not wait, where nine in ten of
    /// its type take longer than that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queue_length: Option<i64>,
    /// Workflows with settings of their own. They always have a rate of their own, so there are at most
    /// `maxWorkflows`, `_other` not counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<NamedWorkflow>,
    /// Requests come from outside the mesh: what they say of rates, deadlines and progress in Headgate's headers
    /// is not believed, and is removed. False by default.
    pub edge: bool,
    /// SPIFFE ids of the processes that are believed, callers and called, each exact or with `*` at its end, such
    /// as `spiffe://cluster.local/ns/shop/*`; at most 64. By default all are, as where there is no mutual TLS.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Calls of the backend to other services, which pass the outbound listener of its sidecar.
    pub outbound: Outbound,
}

/// Where a request names its workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with type and its settings"
)]
pub struct WorkflowIdentity {
    /// Which way.
    #[serde(rename = "type")]
    pub kind: WorkflowIdentityType,
    /// Settings of `Baggage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baggage: Option<BaggageIdentity>,
    /// Settings of `Header`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderIdentity>,
    /// Settings of `Metadata`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataIdentity>,
}

/// Where a request names its workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkflowIdentityType {
    /// A member of W3C Baggage, which applications that propagate trace context carry already.
    Baggage,
    /// A request header.
    Header,
    /// Envoy's dynamic metadata, such as a claim of a JWT that Envoy has verified.
    Metadata,
    /// The query type. Every request has one, so nothing comes after it.
    Type,
}

/// A member of W3C Baggage.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with key"
)]
pub struct BaggageIdentity {
    /// The member's key, 1 to 256 bytes; `workflow` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A request header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with name"
)]
pub struct HeaderIdentity {
    /// Its name, in any case, 1 to 256 bytes; `x-headgate-workflow` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A value in Envoy's dynamic metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with path"
)]
pub struct MetadataIdentity {
    /// The namespace of the filter that wrote it, then keys: 2 to 8 texts of 1 to 256 bytes, such as
    /// `[envoy.filters.http.jwt_authn, claims, tenant]`.
    pub path: Vec<String>,
}

/// A downstream service with a quantile of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with name and quantile"
)]
pub struct ServiceQuantile {
    /// Its name, as `outbound.services` gives it, or that of its Envoy cluster: 1 to 128 bytes.
    pub name: String,
    /// q for it, 0 to 1.
    pub quantile: f64,
}

/// How a process shares what it has among workflows (Wisp §4.3).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with type and its settings"
)]
pub struct Sharing {
    /// Which way; `BottleneckFairness` by default.
    #[serde(rename = "type")]
    pub kind: SharingType,
    /// Settings of `BottleneckFairness`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck_fairness: Option<BottleneckFairness>,
    /// Settings of `DominantResource`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dominant_resource: Option<DominantResource>,
}

/// How a process shares what it has among workflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum SharingType {
    /// Each workflow has its guarantee; those without share what is left, in proportion to their weights.
    StaticGuarantees,
    /// Rates rise while there is capacity to spare; when there is none, slots are shared max-min fair.
    #[default]
    BottleneckFairness,
    /// The same, fair in the resource of which each workflow needs most: slots, or one that the backend reports.
    DominantResource,
}

/// Settings of `BottleneckFairness`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with probe and maxUtilization"
)]
pub struct BottleneckFairness {
    /// β, by which rates rise in an interval in which nothing is in use, requests/s: above 0, at most 1000000;
    /// 10 by default. With half of the capacity in use they rise by half of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<f64>,
    /// Share of the slots' time in use above which a process counts as overloaded: above 0, at most 1; 0.9 by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_utilization: Option<f64>,
}

/// Settings of `DominantResource`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with probe, maxUtilization and resource"
)]
pub struct DominantResource {
    /// As in `bottleneckFairness`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<f64>,
    /// As in `bottleneckFairness`, of each resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_utilization: Option<f64>,
    /// The second resource beside slots. It must be given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<ReportedResource>,
}

/// A resource whose use the backend reports in its responses, either by `orca` or by `serverTiming`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with capacity and orca or serverTiming"
)]
pub struct ReportedResource {
    /// What there is of it in a second, in the unit of the reports: above 0, at most 1e12. Over all endpoints with
    /// `parallelism.total`, of each endpoint with `parallelism.perEndpoint`.
    pub capacity: f64,
    /// What a request used is in the ORCA load report of its response (header `endpoint-load-metrics`), under
    /// `request_cost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orca: Option<ReportedMetric>,
    /// What a request used is the `dur` of a metric in the `server-timing` header of its response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_timing: Option<ReportedMetric>,
}

/// A metric in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with metric"
)]
pub struct ReportedMetric {
    /// Its name, 1 to 256 letters, digits, `-`, `_` and `.`.
    pub metric: String,
}

/// Settings of one workflow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with name, guarantee, weight, quantile and deadline"
)]
pub struct NamedWorkflow {
    /// Its id, as requests say it, 1 to 128 bytes; `_other` for those that have no rate of their own.
    pub name: String,
    /// Requests/s for which this service has room whatever the fair share is: above 0, at most 1e9; none by
    /// default. Less is let in while services further down announce less. Over all endpoints with
    /// `parallelism.total`, at each endpoint with `parallelism.perEndpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<f64>,
    /// Its part of fair shares, relative to the others', 0.01 to 100; 1 by default. Also its weight in a queue with
    /// turns by workflow (`DRR`, `WFQ`) that gives it none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// q for it, 0 to 1; that of all workflows by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantile: Option<f64>,
    /// Time for a request that says none, from where it enters the mesh to its end, 1ms to 1h; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
}

/// Calls of the backend to other services.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with services and smoothing"
)]
pub struct Outbound {
    /// Names of downstream services by Envoy cluster, at most 256. A cluster without one is a service of its own
    /// name; those whose names are longer than 128 bytes count as one, so give them a name here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<OutboundService>,
    /// Calls to a service that refuses some are delayed, each with the probability that the service tells as its rejection
    /// rate (`backlogControl.hint`). None are by default, and none at gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<Smoothing>,
}

/// By how much calls are delayed: each by a time drawn evenly from between these two. One whose deadline is nearer isn't.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with least and most"
)]
pub struct Smoothing {
    /// Shortest delay, 0s to 10s, such as 100ms.
    pub least: Duration,
    /// Longest delay, 1ms to 10s and no less than `least`, such as 300ms.
    pub most: Duration,
}

/// The name of a downstream service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with cluster and name"
)]
pub struct OutboundService {
    /// Name of the Envoy cluster, exact or with `*` at its end, 1 to 256 bytes.
    pub cluster: String,
    /// Name of the service, 1 to 128 bytes. Clusters of one name are one service.
    pub name: String,
}

impl WorkflowIdentityType {
    /// As policies write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Baggage => "Baggage",
            Self::Header => "Header",
            Self::Metadata => "Metadata",
            Self::Type => "Type",
        }
    }
}

impl SharingType {
    /// As policies write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StaticGuarantees => "StaticGuarantees",
            Self::BottleneckFairness => "BottleneckFairness",
            Self::DominantResource => "DominantResource",
        }
    }
}
