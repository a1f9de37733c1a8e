//! `spec.workflows`: classes of requests that cross services, and their rates (Wisp §3–4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Duration;

/// Workflows: classes of requests (tenants, features) that cross services. Each process finds the
/// rate at which it can serve each workflow and announces it to its callers. Requests above the
/// rate are refused where they enter the mesh.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Workflows {
    /// The places where a request may name its workflow, at most 8; the first that does counts. By
    /// default the member `workflow` of W3C Baggage, then the header `x-headgate-workflow`.
    /// Requests that name none, or one of more than 128 bytes, share `_other`.
    pub identify_by: Vec<WorkflowIdentity>,
    /// q, the adopted quantile of the rates that a downstream service's processes announce, 0 to 1;
    /// 0.5 by default. 0 is the rate of the slowest process, so that none gets more than it can
    /// serve. 1 is the rate of the fastest, so that none is idle.
    pub quantile: Option<f64>,
    /// Downstream services with a quantile of their own, which takes precedence over that of a
    /// workflow; at most 256. `named` has those of single workflows.
    pub services: Vec<ServiceQuantile>,
    /// Interval at which rates are computed, 10ms to 10s; 100ms by default.
    pub interval: Option<Duration>,
    /// Time after which an announced rate of a downstream process expires unless it is renewed,
    /// 20ms to 1h and 2 intervals or more; by default 10 intervals, 1s at least. It is also the
    /// longest wait of requests without a deadline.
    pub rate_timeout: Option<Duration>,
    /// The way a process shares its capacity among workflows; max-min fair (`BottleneckFairness`)
    /// by default.
    pub sharing: Sharing,
    /// The number of workflows that have a rate of their own, 1 to 1000; 100 by default. Later ones
    /// share one, `_other`.
    pub max_workflows: Option<i64>,
    /// The number of requests of one workflow that may wait for its rate, 0 to 10000; 100 by
    /// default. With 0, requests above the rate are refused at once. A request that would have to
    /// wait is refused if its deadline leaves too little time for that wait and the mean time of
    /// its workflow from here on. One that need not wait is refused if nine in ten of its type take
    /// longer than its deadline leaves.
    pub max_queue_length: Option<i64>,
    /// Workflows with settings of their own. They always have a rate of their own, so there are at
    /// most `maxWorkflows`, not counting `_other`.
    pub named: Vec<NamedWorkflow>,
    /// Whether requests come from outside the mesh. Rates, deadlines and progress in their Headgate
    /// headers are then removed and not trusted. False by default.
    pub edge: bool,
    /// SPIFFE ids of the trusted peers, callers and called, each exact or with `*` at its end, such
    /// as `spiffe://cluster.local/ns/shop/*`; at most 64. By default all are trusted, as without
    /// mutual TLS.
    pub peers: Vec<String>,
    /// Calls of the backend to other services, which pass the outbound listener of its sidecar.
    pub outbound: Outbound,
}

/// The place where a request names its workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkflowIdentity {
    /// The kind of the place.
    #[serde(rename = "type")]
    pub kind: WorkflowIdentityType,
    /// Settings of `Baggage`.
    pub baggage: Option<BaggageIdentity>,
    /// Settings of `Header`.
    pub header: Option<HeaderIdentity>,
    /// Settings of `Metadata`.
    pub metadata: Option<MetadataIdentity>,
}

/// The place where a request names its workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkflowIdentityType {
    /// A member of W3C Baggage, which applications that propagate trace context carry already.
    Baggage,
    /// A request header.
    Header,
    /// Envoy's dynamic metadata, such as a claim of a JWT that Envoy has verified.
    Metadata,
    /// The query type. Every request has one, so later places have no effect.
    Type,
}

/// A member of W3C Baggage.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BaggageIdentity {
    /// The member's key, 1 to 256 bytes; `workflow` by default.
    pub key: Option<String>,
}

/// A request header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeaderIdentity {
    /// Its name, in any case, 1 to 256 bytes; `x-headgate-workflow` by default.
    pub name: Option<String>,
}

/// A value in Envoy's dynamic metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetadataIdentity {
    /// The namespace of the filter that wrote it, then keys: 2 to 8 texts of 1 to 256 bytes, such
    /// as `[envoy.filters.http.jwt_authn, claims, tenant]`.
    pub path: Vec<String>,
}

/// A downstream service with a quantile of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceQuantile {
    /// Its name as in `outbound.services`, or the name of its Envoy cluster: 1 to 128 bytes.
    pub name: String,
    /// q for it, 0 to 1.
    pub quantile: f64,
}

/// The way a process shares its capacity among workflows (Wisp §4.3).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sharing {
    /// The kind; `BottleneckFairness` by default.
    #[serde(rename = "type")]
    pub kind: SharingType,
    /// Settings of `BottleneckFairness`.
    pub bottleneck_fairness: Option<BottleneckFairness>,
    /// Settings of `DominantResource`.
    pub dominant_resource: Option<DominantResource>,
}

/// The way a process shares its capacity among workflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum SharingType {
    /// Each workflow has its guarantee; those without share the rest, in proportion to their
    /// weights.
    StaticGuarantees,
    /// Rates rise while capacity is free; otherwise slots are shared max-min fair.
    #[default]
    BottleneckFairness,
    /// As `BottleneckFairness`, but fair in each workflow's dominant resource: slots, or the one
    /// that the backend reports.
    DominantResource,
}

/// Settings of `BottleneckFairness`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BottleneckFairness {
    /// β, the increase of a rate in an interval in which no capacity is in use, requests/s: above
    /// 0, at most 1000000; 10 by default. With half of the capacity in use, rates rise by half of
    /// it.
    pub probe: Option<f64>,
    /// Share of the slots' time in use above which a process counts as overloaded: above 0, at most
    /// 1; 0.9 by default.
    pub max_utilization: Option<f64>,
}

/// Settings of `DominantResource`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DominantResource {
    /// As in `bottleneckFairness`.
    pub probe: Option<f64>,
    /// As in `bottleneckFairness`, of each resource.
    pub max_utilization: Option<f64>,
    /// The second resource beside slots. It must be given.
    pub resource: Option<ReportedResource>,
}

/// A resource whose use the backend reports in its responses, either by `orca` or by
/// `serverTiming`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReportedResource {
    /// The capacity a second, in the unit of the reports: above 0, at most 1e12. Over all endpoints
    /// with `parallelism.total`, of each endpoint with `parallelism.perEndpoint`.
    pub capacity: f64,
    /// The metric under `request_cost` in the ORCA load report of the response (header
    /// `endpoint-load-metrics`) that holds a request's use.
    pub orca: Option<ReportedMetric>,
    /// The metric in the `server-timing` header of the response whose `dur` is a request's use.
    pub server_timing: Option<ReportedMetric>,
}

/// A metric in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReportedMetric {
    /// Its name, 1 to 256 letters, digits, `-`, `_` and `.`.
    pub metric: String,
}

/// Settings of one workflow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamedWorkflow {
    /// Its id, as requests name it, 1 to 128 bytes; `_other` for the workflows without a rate of
    /// their own.
    pub name: String,
    /// Requests/s that this service always admits, whatever the fair share is: above 0, at most
    /// 1e9; none by default. Fewer are admitted while downstream services announce less. Over all
    /// endpoints with `parallelism.total`, at each endpoint with `parallelism.perEndpoint`.
    pub guarantee: Option<f64>,
    /// Its part of fair shares, relative to the others', 0.01 to 100; 1 by default. It is also the
    /// weight in a queue with turns by workflow (`DRR`, `WFQ`) that sets none.
    pub weight: Option<f64>,
    /// q for this workflow, 0 to 1; that of all workflows by default.
    pub quantile: Option<f64>,
    /// Downstream services with a quantile of their own for this workflow, which takes precedence
    /// over all others; at most 16.
    #[serde(default)]
    pub services: Vec<ServiceQuantile>,
    /// Deadline of a request that carries none, from its entry to the mesh to its end, 1ms to 1h;
    /// none by default.
    pub deadline: Option<Duration>,
}

/// Calls of the backend to other services.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Outbound {
    /// Names of downstream services by Envoy cluster, at most 256. The default name of a service is
    /// that of its cluster. Clusters whose names are longer than 128 bytes and are not in this list
    /// count as one service.
    pub services: Vec<OutboundService>,
    /// Delays of calls to a service that refuses some: each call is delayed with the probability of
    /// the service's rejection rate (`backlogControl.hint`). None by default; gateways never delay.
    /// `services` may have ranges of their own.
    pub smoothing: Option<Smoothing>,
}

/// The range of delays. Each is drawn evenly from between these two. A call whose deadline is
/// nearer isn't delayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Smoothing {
    /// Shortest delay, 0s to 10s, such as 100ms.
    pub least: Duration,
    /// Longest delay, 1ms to 10s and no less than `least`, such as 300ms.
    pub most: Duration,
}

/// The name of a downstream service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutboundService {
    /// Name of the Envoy cluster, exact or with `*` at its end, 1 to 256 bytes.
    pub cluster: String,
    /// Name of the service, 1 to 128 bytes. Clusters of one name are one service.
    pub name: String,
    /// Delays of calls to this cluster, in place of `outbound.smoothing`.
    pub smoothing: Option<Smoothing>,
}
