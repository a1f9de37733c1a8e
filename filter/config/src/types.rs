//! The types of the filter's configuration: stages, queues, query types. `check.rs` checks values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    ClassAdmissionConfig, Direction, MAX_TOKENS, OutboundConfig, ServiceTimesConfig,
    StarvationAvoidance, StrategyConfig, WorkflowsConfig,
};

/// The configuration of one proxy workload, with all its policies.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterConfig {
    /// Content hash that names this configuration in logs and in `headgate status`.
    #[serde(default)]
    pub revision: String,
    /// The listener that the configuration is for. An outbound configuration has no stages.
    #[serde(default, skip_serializing_if = "is_default")]
    pub direction: Direction,
    /// Workflows and classes of the process's outbound calls. If the direction is `Inbound`, the
    /// proxy is a gateway. Its requests are then also its calls, because one listener receives and
    /// forwards them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbound: Option<OutboundConfig>,
    /// Admission stages, of which the first that covers a request applies. Empty: every request
    /// passes untouched.
    #[serde(default)]
    pub stages: Vec<StageConfig>,
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One admission stage, with P slots, one queue and objectives for each type (Bouncer Figure 1).
/// The default, without slots and types, is the base of stages that are built in code.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// `namespace/name` of the policy.
    pub policy: String,
    /// `metadata.generation` of the policy.
    #[serde(default)]
    pub generation: i64,
    /// Names of the Envoy routes that this stage covers. A name that ends in `*` matches all names
    /// with the prefix before it. Empty means every request. At most
    /// [`MAX_ROUTES`](super::MAX_ROUTES).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// Whether decisions take effect.
    #[serde(default)]
    pub mode: Mode,
    /// P, the number of requests from this proxy that may be in the backend at once, 1 ..=
    /// 1,000,000. With `auto_parallelism`, this is the initial value.
    pub parallelism: u32,
    /// The bounds of a P that is found automatically. Absent: P is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_parallelism: Option<AutoParallelism>,
    /// A budget of tokens, which requests take in addition to their slots. Absent: only slots limit
    /// requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokensConfig>,
    /// The queue in front of the slots.
    pub queue: QueueConfig,
    /// The moment at which a request's processing time ends.
    #[serde(default)]
    pub measure: Measure,
    /// The moment at which a request's slot becomes free, not before the end of its processing
    /// time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub release_slot: Measure,
    /// The responses that count as errors of the backend.
    #[serde(default, skip_serializing_if = "is_default")]
    pub errors: ErrorsConfig,
    /// A header that numbers attempts, in addition to [`ATTEMPT_HEADERS`](super::ATTEMPT_HEADERS).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<RetriesConfig>,
    /// Settings of the estimates of processing times.
    #[serde(default)]
    pub service_times: ServiceTimesConfig,
    /// The strategy that decides which requests may enter the queue.
    pub strategy: StrategyConfig,
    /// Starvation avoidance, which wraps the strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_avoidance: Option<StarvationAvoidance>,
    /// Query types in matching order. The last one is `default` and matches everything.
    pub types: Vec<TypeConfig>,
    /// Classes of requests, the highest priority first. The last one takes requests that no other
    /// matches. Empty: all requests are of one class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassConfig>,
    /// Settings of workflows that cross this stage and others. Absent: workflow ids only order the
    /// queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflows: Option<WorkflowsConfig>,
    /// Class admission, by classes that senders name in their requests. Absent: only a stage with
    /// workflows trusts these names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_admission: Option<ClassAdmissionConfig>,
    /// Requests that bypass the stage altogether (health checks).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<Match>,
}

/// Bounds of the number of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoParallelism {
    /// The minimum number of slots, 1 ..= `max`.
    pub min: u32,
    /// The maximum number of slots, 1 ..= 1,000,000.
    pub max: u32,
}

/// A budget of tokens, and the source of the number of tokens that each request takes while it has
/// a slot. A request takes the tokens of its prompt and its output, at least 1 and at most the
/// whole budget. Once outputs are known, a request takes the usual output of its type instead of
/// its maximum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokensConfig {
    /// The budget of this proxy, above 0, at most [`MAX_TOKENS`]. It is rounded down, but not below
    /// 1.
    pub budget: f64,
    /// The tokens of a request's prompt. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<TokenCount>,
    /// The maximum tokens of a request's output. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<TokenCount>,
    /// The maximum tokens of one request. Absent: the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_request: Option<u32>,
}

/// The source of a number of tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCount {
    /// Lower case name of the header whose value, a whole number, grows with the tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Tokens for each unit of the value, 0.001 to 1000.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub per_unit: f64,
    /// Tokens of a request without a readable header.
    pub otherwise: u32,
}

impl TokensConfig {
    /// Returns the budget, in whole tokens.
    #[must_use]
    pub fn whole_budget(&self) -> u32 {
        (self.budget as u32).clamp(1, MAX_TOKENS)
    }

    /// Returns the maximum number of tokens of a request, and the number of those that are its
    /// prompt. `prompt` and `output` are the values of the request's headers.
    #[must_use]
    pub fn of(&self, prompt: Option<u32>, output: Option<u32>) -> (u32, u32) {
        let of = |count: &Option<TokenCount>, value: Option<u32>| match (count, value) {
            (None, _) => 0.0,
            (Some(count), Some(value)) => f64::from(value) * count.per_unit,
            (Some(count), None) => count.otherwise.into(),
        };
        let prompt = of(&self.prompt, prompt);
        let most = self.per_request.unwrap_or(MAX_TOKENS).max(1);
        // The cast turns a float that is too large into the largest integer.
        let whole = |tokens: f64| tokens.ceil() as u32;
        let tokens = whole(prompt + of(&self.output, output)).clamp(1, most);
        (tokens, whole(prompt).min(tokens))
    }
}

/// Whether decisions take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// Refuse and queue.
    #[default]
    Enforce,
    /// Decide and count, refuse nothing, hold nothing.
    DryRun,
}

/// A moment in a response. The arrival of its headers is no option, because streaming servers send
/// them before they do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Measure {
    // The end of its headers, body or trailers, whichever comes last.
    /// Its end.
    #[default]
    LastByte,
    /// The first byte of its body, which for gRPC is that of the first message; its end if it has
    /// no body. Headers don't count: streaming servers send them before they work.
    FirstByte,
}

impl StageConfig {
    /// Returns the largest number of workflows with ids of their own, or `None` for a stage without
    /// workflows.
    #[must_use]
    pub fn max_flows(&self) -> Option<u16> {
        self.workflows.as_ref().map(|w| w.max_workflows)
    }

    /// Returns the moment at which the processing time of requests of `kind` ends.
    #[must_use]
    pub fn measure_of(&self, kind: &TypeConfig) -> Measure {
        kind.measure.unwrap_or(self.measure)
    }

    /// Whether requests of some type hold their slots for longer than their measured processing
    /// times.
    #[must_use]
    pub fn holds_streams(&self) -> bool {
        let starts = |kind| self.measure_of(kind) == Measure::FirstByte;
        self.release_slot == Measure::LastByte && self.types.iter().any(starts)
    }

    /// Whether a request header carries the quality of the response.
    #[must_use]
    pub fn degrades(&self) -> bool {
        match &self.strategy {
            StrategyConfig::ResponseTimeController(settings) => settings.degradation.is_some(),
            _ => false,
        }
    }
}

/// The responses that count as errors of the backend. These responses free their slot and are
/// counted, but their processing times are not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorsConfig {
    /// First and last of each range of HTTP statuses, 100 to 599.
    pub http: Vec<(u16, u16)>,
    /// gRPC statuses, 1 to 16.
    pub grpc: Vec<u8>,
}

impl Default for ErrorsConfig {
    /// Returns the default: 5xx, `DEADLINE_EXCEEDED`, `RESOURCE_EXHAUSTED`, `INTERNAL` and
    /// `UNAVAILABLE`.
    fn default() -> Self {
        Self {
            http: vec![(500, 599)],
            grpc: vec![4, 8, 13, 14],
        }
    }
}

impl ErrorsConfig {
    /// Whether a response with this HTTP status is an error.
    #[must_use]
    pub fn has_http(&self, status: u16) -> bool {
        self.http
            .iter()
            .any(|&(first, last)| (first..=last).contains(&status))
    }

    /// Whether a response with this gRPC status is an error.
    #[must_use]
    pub fn has_grpc(&self, status: u8) -> bool {
        self.grpc.contains(&status)
    }
}

/// A header that numbers attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetriesConfig {
    /// Lower case name.
    pub header: String,
    /// The number of a first attempt. A request with a greater number is a retry.
    #[serde(default, skip_serializing_if = "is_default")]
    pub first_attempt: u32,
}

/// The queue in front of the slots.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// The place of the queue.
    #[serde(default)]
    pub mode: QueueMode,
    /// Order of the queue.
    #[serde(default)]
    pub discipline: Discipline,
    /// Longest queue, in requests. With 0, a request that finds no free slot is refused.
    pub max_length: u32,
    /// Longest wait in the queue, in µs. A request's own deadline may be shorter.
    pub timeout_us: u64,
}

/// The place of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum QueueMode {
    /// The proxy: no more requests than `parallelism` are in the backend.
    #[default]
    Hold,
    // From the arrival and completion order of a FIFO with P servers.
    /// The backend. Wait and processing time are reconstructed, and the order is the backend's.
    Observe,
}

/// Order in which queued requests get slots. Under each discipline, the request with the smallest
/// rank over all workers goes first (see `discipline`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum Discipline {
    /// First in, first out.
    #[default]
    #[serde(rename = "FIFO")]
    Fifo,
    /// Earliest deadline first.
    #[serde(rename = "EDF")]
    Edf,
    /// Least slack time first: deadline less the remaining processing time (Wisp §4.2).
    #[serde(rename = "LSTF")]
    Lstf,
    /// Shortest job first, by total work.
    #[serde(rename = "SJF")]
    Sjf,
    /// Shortest remaining processing time first.
    #[serde(rename = "SRTF")]
    Srtf,
    /// Least attained service first, by work so far.
    #[serde(rename = "LASF")]
    Lasf,
    /// Deficit round robin: every flow gets a share of slot time in proportion to its weight.
    #[serde(rename = "DRR")]
    Drr {
        /// The flows that take turns.
        by: Flow,
        /// Slot time that a flow of weight 1 may use in a round, µs.
        quantum_us: u64,
        /// Weights of flows, by the name of the type or class or by the id of the workflow. Other
        /// flows have weight 1.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        weights: BTreeMap<String, f64>,
    },
    /// Weighted fair queue: the shares of deficit round robin, but in the order of finish tags
    /// instead of rounds.
    #[serde(rename = "WFQ")]
    Wfq {
        /// The flows that take turns.
        by: Flow,
        /// Weights of flows, as with [`Discipline::Drr`].
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        weights: BTreeMap<String, f64>,
        /// The cost of a request in tokens. Absent: the cost is the request's slot time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<TokenCost>,
    },
    /// Strict priority: requests of a class wait for the requests of all higher classes. Within a
    /// class, the order is first in, first out (Wisp §3.1).
    Priority,
    /// Earliest latest start first. The latest start is the arrival plus the shortest wait that the
    /// type's objectives allow.
    Slack,
}

/// The cost of a request in tokens: `input · size + output · output tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCost {
    /// Cost of a unit of the request's size ([`TypeConfig::cost`]): 0 to 1000.
    pub input: f64,
    /// Cost of an output token: 0 to 1000.
    pub output: f64,
}

impl Discipline {
    /// Returns the flows, the quantum in µs (only with deficit round robin) and the weights of a
    /// fair queue, or `None` for other disciplines.
    #[must_use]
    pub fn fair(&self) -> Option<(Flow, Option<u64>, &BTreeMap<String, f64>)> {
        match self {
            Self::Drr {
                by,
                quantum_us,
                weights,
            } => Some((*by, Some(*quantum_us), weights)),
            Self::Wfq { by, weights, .. } => Some((*by, None, weights)),
            _ => None,
        }
    }

    /// Returns the cost of a request in tokens, if a fair queue charges it in place of slot time.
    #[must_use]
    pub fn token_cost(&self) -> Option<TokenCost> {
        match self {
            Self::Wfq { tokens, .. } => *tokens,
            _ => None,
        }
    }
}

/// The flows of a fair queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Flow {
    /// Query types.
    #[default]
    Type,
    /// Classes.
    Class,
    /// Workflows. A request's workflow is its id as `workflows.identifyBy` finds it; without
    /// `identifyBy`, the header `x-headgate-workflow` or the member `workflow` of `baggage`.
    /// Requests without an id share one flow. So do requests with ids longer than 128 bytes, and
    /// workflows beyond the first `workflows.maxWorkflows`, or the first 1000 where the policy has
    /// no `workflows`.
    Workflow,
}

/// A query type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeConfig {
    /// The type's name in stats, headers and access logs: `[A-Za-z0-9_-]{1,63}`.
    pub name: String,
    /// The conditions, of which a request of this type meets any. Empty only for `default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Response time objectives, ascending by percentile. May be empty if the strategy needs none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slo: Vec<Objective>,
    /// The moment at which the processing time of requests of this type ends. Absent: the stage's
    /// `measure` applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
    /// Objectives for the time per output token, ascending by percentile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tpot: Vec<Objective>,
    /// Value of one response within the objectives, relative to that of other types: 0.001 to 1000.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub value: f64,
    /// The cost of a request by its size. Absent: all requests of the type are expected to cost the
    /// same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<RequestCost>,
    /// Headers to set on a request that would be refused, at most 8. The request then continues
    /// without a slot, by the route that matches these headers. Empty: the request is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_refusal: Vec<SetHeader>,
}

impl Default for TypeConfig {
    /// Returns a type without a name or objectives that matches all requests.
    fn default() -> Self {
        Self {
            name: String::new(),
            matches: Vec::new(),
            slo: Vec::new(),
            measure: None,
            tpot: Vec::new(),
            value: one(),
            cost: None,
            on_refusal: Vec::new(),
        }
    }
}

/// A header to set on a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetHeader {
    /// Lower case name.
    pub name: String,
    /// Value, without control characters.
    pub value: String,
}

/// The cost of a request, `a + b · size`, where a and b are measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestCost {
    /// The source of the size.
    pub size: RequestSize,
}

/// The source of a request's size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestSize {
    /// Lower case name of the header whose value is the size, a whole number.
    pub header: String,
}

pub(super) const fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    value.to_bits() == 1.0_f64.to_bits()
}

/// A class: requests of the same value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassConfig {
    /// The class's name in stats: `[A-Za-z0-9_-]{1,63}`.
    pub name: String,
    /// The conditions. A request of this class meets at least one of them. Empty only for the last
    /// class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Factor of the types' values for requests of this class: 0.001 to 1000.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub value: f64,
}

/// One objective, for response times or for times per output token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Percentile, 0 < p < 100, e.g. 50 or 99.9.
    pub percentile: f64,
    /// Time that `percentile` percent of the type's requests must not exceed, µs.
    pub objective_us: u64,
}

/// A condition on requests: all given fields must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// `:path` without its query string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// `:method`, upper case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Request headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderMatch>,
    /// gRPC service and method. This condition holds only for requests with a gRPC content type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcMatch>,
    /// Name of the Envoy route that was selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
}

/// A condition on the path, as in HTTPRoute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value")]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// Whole path elements: `/q` matches `/q` and `/q/x`, not `/qx`.
    PathPrefix(String),
    /// The whole path matches this regular expression.
    RegularExpression(String),
}

/// The comparison of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StringMatchKind {
    /// Equal.
    #[default]
    Exact,
    /// The whole text matches this regular expression.
    RegularExpression,
}

/// A condition on one request header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderMatch {
    /// The comparison of `value`.
    #[serde(default, rename = "type")]
    pub kind: StringMatchKind,
    /// Lower case name.
    pub name: String,
    /// Value or regular expression.
    pub value: String,
}

/// A condition on a gRPC request's `/service/method`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrpcMatch {
    /// The comparison of `service` and `method`.
    #[serde(default, rename = "type")]
    pub kind: StringMatchKind,
    /// Fully qualified service, e.g. `search.v1.Search`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Method, e.g. `Query`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}
