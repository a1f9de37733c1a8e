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
    /// Sources of a request's workflow id, at most 8; the first one with an id counts. By default
    /// the member `workflow` of W3C Baggage, then the header `x-headgate-workflow`. Requests
    /// without an id, or with one of more than 128 bytes, share `_other`.
    pub identify_by: Vec<WorkflowIdentity>,
    /// q, the quantile to adopt from the rates that the processes of a downstream service announce,
    /// 0 to 1; 0.5 by default. 0 is the rate of the slowest process, so that no process is
    /// overloaded. 1 is the rate of the fastest, so that no process is idle.
    pub quantile: Option<f64>,
    /// Quantiles by downstream service, with precedence over those of workflows; at most 256. For
    /// one workflow, see `named[].services`.
    pub services: Vec<ServiceQuantile>,
    /// Interval at which rates are computed, 10ms to 10s; 100ms by default.
    pub interval: Option<Duration>,
    /// Time after which an announced rate of a downstream process expires unless it is renewed,
    /// 20ms to 1h and at least 2 intervals; by default 10 intervals, but at least 1s. It is also
    /// the maximum wait of requests without a deadline.
    pub rate_timeout: Option<Duration>,
    /// The way a process shares its capacity among workflows; max-min fair (`BottleneckFairness`)
    /// by default.
    pub sharing: Sharing,
    /// Maximum number of workflows with a rate of their own, 1 to 1000; 100 by default. Further
    /// workflows share the rate of `_other`.
    pub max_workflows: Option<i64>,
    /// Maximum number of requests of one workflow that wait for its rate, 0 to 10000; 100 by
    /// default. With 0, requests above the rate are refused at once. A request that has to wait is
    /// refused if its deadline leaves less than the wait plus the workflow's mean time from this
    /// service on. A request that needn't wait is refused if its deadline leaves less than the 10th
    /// percentile of its type's processing time.
    pub max_queue_length: Option<i64>,
    /// Settings of workflows by name. These workflows always have a rate of their own, so there are
    /// at most `maxWorkflows`, not counting `_other`.
    pub named: Vec<NamedWorkflow>,
    /// Whether requests come from outside the mesh; false by default. Rates, deadlines and progress
    /// in their Headgate headers are then not trusted but removed.
    pub edge: bool,
    /// SPIFFE ids of the trusted peers (callers and downstream services), exact or with a trailing
    /// `*`, such as `spiffe://cluster.local/ns/shop/*`; at most 64. By default all are trusted, as
    /// without mutual TLS.
    pub peers: Vec<String>,
    /// Calls of the backend to other services, which pass the outbound listener of its sidecar.
    pub outbound: Outbound,
}

/// The source of a request's workflow id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkflowIdentity {
    /// The kind of the source.
    #[serde(rename = "type")]
    pub kind: WorkflowIdentityType,
    /// Settings of `Baggage`.
    pub baggage: Option<BaggageIdentity>,
    /// Settings of `Header`.
    pub header: Option<HeaderIdentity>,
    /// Settings of `Metadata`.
    pub metadata: Option<MetadataIdentity>,
}

/// The source of a request's workflow id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorkflowIdentityType {
    /// A member of W3C Baggage, which applications forward together with trace context.
    Baggage,
    /// A request header.
    Header,
    /// Envoy's dynamic metadata, such as a claim of a JWT that Envoy has verified.
    Metadata,
    /// The query type. Every request has one, so later sources have no effect.
    Type,
}

/// A member of W3C Baggage.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BaggageIdentity {
    /// Key of the member, 1 to 256 bytes; `workflow` by default.
    pub key: Option<String>,
}

/// A request header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeaderIdentity {
    /// Name of the header, case-insensitive, 1 to 256 bytes; `x-headgate-workflow` by default.
    pub name: Option<String>,
}

/// A value in Envoy's dynamic metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetadataIdentity {
    /// The metadata namespace, usually a filter's name, then keys: 2 to 8 strings of 1 to 256
    /// bytes, such as `[envoy.filters.http.jwt_authn, claims, tenant]`.
    pub path: Vec<String>,
}

/// The quantile of a downstream service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceQuantile {
    /// Name of the service as in `outbound.services`, or of its Envoy cluster: 1 to 128 bytes.
    pub name: String,
    /// q for this service, 0 to 1.
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
    /// Each workflow gets its guarantee. The others share the rest in proportion to their weights.
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
    /// β, the increase of a rate per interval if no capacity is in use, requests/s: above 0, at
    /// most 1000000; 10 by default. With half of the capacity in use, a rate increases by β / 2.
    pub probe: Option<f64>,
    /// Utilization of the slots above which a process counts as overloaded: above 0, at most 1; 0.9
    /// by default.
    pub max_utilization: Option<f64>,
}

/// Settings of `DominantResource`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DominantResource {
    /// As in `bottleneckFairness`.
    pub probe: Option<f64>,
    /// As in `bottleneckFairness`, for each resource.
    pub max_utilization: Option<f64>,
    /// The second resource, in addition to slots; required.
    pub resource: Option<ReportedResource>,
}

/// A resource whose use the backend reports in its responses, either by `orca` or by
/// `serverTiming`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReportedResource {
    /// Capacity per second, in the unit of the reports: above 0, at most 1e12. It is for all
    /// endpoints together with `parallelism.total`, per endpoint with `parallelism.perEndpoint`.
    pub capacity: f64,
    /// The metric with a request's use, under `request_cost` in the ORCA load report of the
    /// response (header `endpoint-load-metrics`).
    pub orca: Option<ReportedMetric>,
    /// The metric with a request's use as its `dur`, in the response header `server-timing`.
    pub server_timing: Option<ReportedMetric>,
}

/// A metric in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReportedMetric {
    /// Name of the metric: 1 to 256 letters, digits, `-`, `_` and `.`.
    pub metric: String,
}

/// Settings of one workflow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamedWorkflow {
    /// Id of the workflow in requests, 1 to 128 bytes; `_other` for the workflows without a rate of
    /// their own.
    pub name: String,
    /// Guaranteed rate at this service, independent of the fair share, requests/s: above 0, at most
    /// 1e9; none by default. The rate is lower while downstream services announce less. It is for
    /// all endpoints together with `parallelism.total`, per endpoint with
    /// `parallelism.perEndpoint`.
    pub guarantee: Option<f64>,
    /// Weight of the workflow in fair shares, 0.01 to 100; 1 by default. A queue by workflow
    /// (`DRR`, `WFQ`) uses it for workflows that its own `weights` don't list.
    pub weight: Option<f64>,
    /// q for this workflow, 0 to 1; by default that of all workflows.
    pub quantile: Option<f64>,
    /// Quantiles by downstream service for this workflow, with precedence over all others; at most
    /// 16.
    #[serde(default)]
    pub services: Vec<ServiceQuantile>,
    /// End-to-end deadline of requests without one, from their entry to the mesh, 1ms to 1h; none
    /// by default.
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
    /// Delays of calls to services that refuse some; none by default. The probability of a delay is
    /// the service's rejection rate (`backlogControl.hint`). `services` may have ranges of their
    /// own. Gateways never delay calls.
    pub smoothing: Option<Smoothing>,
}

/// The range of delays, from which each delay is drawn uniformly. A call isn't delayed if its
/// deadline is earlier than the end of its delay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Smoothing {
    /// Minimum delay, 0s to 10s, such as 100ms.
    pub least: Duration,
    /// Maximum delay, 1ms to 10s and at least `least`, such as 300ms.
    pub most: Duration,
}

/// The name of a downstream service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutboundService {
    /// Name of the Envoy cluster, exact or with a trailing `*`, 1 to 256 bytes.
    pub cluster: String,
    /// Name of the service, 1 to 128 bytes. Clusters with the same name are one service.
    pub name: String,
    /// Delays of calls to this cluster, in place of `outbound.smoothing`.
    pub smoothing: Option<Smoothing>,
}
