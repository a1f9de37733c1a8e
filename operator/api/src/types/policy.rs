//! The `spec` of an [`AdmissionPolicy`](super::AdmissionPolicy).

use std::collections::BTreeMap;

use headgate_core::config::{Match, Measure, Mode, RequestCost, SetHeader};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClassAdmission, Duration, Errors, Queue, Strategy, Workflows};

/// The desired state: the protected backend (`targetRefs`) and the objectives of its requests
/// (`types`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdmissionPolicySpec {
    /// The objects that the policy applies to (GEP-713): 1 to 16, in the policy's own namespace.
    pub target_refs: Vec<PolicyTargetRef>,
    /// Whether decisions take effect; `Enforce` by default.
    #[serde(default)]
    pub mode: Mode,
    /// The number of slots: the requests that the backend processes at once. By default each proxy
    /// finds it by measurement (`auto`); `total` or `perEndpoint` fixes it.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// The end of the processing time, to which objectives apply; the last byte of the response by
    /// default.
    #[serde(default)]
    pub measure: Measure,
    /// The moment at which a request frees its slot; the last byte of the response by default,
    /// independent of `measure`. A client that disconnects frees the slot, too. `FirstByte`
    /// requires `measure: FirstByte`. It suits backends whose work ends with the first byte.
    #[serde(default)]
    pub release_slot: Measure,
    /// The responses that count as errors of the backend; 5xx and their gRPC equivalents by
    /// default.
    #[serde(default)]
    pub errors: Errors,
    /// A header that numbers a request's attempts, in addition to `x-envoy-attempt-count` and
    /// `grpc-previous-rpc-attempts`; none by default. Retries of a type are refused while its first
    /// attempts are.
    pub retries: Option<Retries>,
    /// The queue in front of the backend, which the proxy holds by default.
    #[serde(default)]
    pub queue: Queue,
    /// The strategy that decides which requests may enter the queue; `Bouncer` by default.
    #[serde(default)]
    pub strategy: Strategy,
    /// Query types, matched in order; 1 to 256. `default`, at any position, takes the remaining
    /// requests. The compiled regular expressions of types, `classes` and `exclude` take at most
    /// 1 MiB in total. A simple expression takes 4 KiB, one with a counted repetition more.
    pub types: Vec<QueryType>,
    /// Classes of requests by value, highest priority first; at most 16, none by default. The last
    /// class has no `matches` and takes the remaining requests.
    #[serde(default)]
    pub classes: Vec<RequestClass>,
    /// Classes of requests that cross services, and their rates; none by default.
    pub workflows: Option<Workflows>,
    /// Latency targets for the classes of this service, and the admission of its own calls to other
    /// services' classes; none by default.
    pub class_admission: Option<ClassAdmission>,
    /// Requests that bypass admission, such as health checks; at most 64 matches.
    #[serde(default)]
    pub exclude: Vec<Match>,
}

/// An object that a policy applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyTargetRef {
    /// API group: empty for `Service` and `Pod`, `inference.networking.k8s.io` for `InferencePool`,
    /// `gateway.networking.k8s.io` for the other kinds.
    #[serde(default)]
    pub group: String,
    /// `Service`: the proxies in front of its endpoints. `Gateway`: the proxies of that gateway.
    /// `HTTPRoute` and `GRPCRoute`: the proxies of the route's gateways, for its requests.
    /// `InferencePool`: the same, for the rules with the pool among their `backendRefs`, in routes
    /// of its namespace. `Pod`: the proxies in front of the Pods with the labels in `matchLabels`.
    pub kind: String,
    /// Name of the object, in the policy's namespace; required, except for kind `Pod`, which has
    /// none.
    pub name: Option<String>,
    /// Name of the listener to whose requests the policy applies; only with kind `Gateway`, all
    /// listeners by default. The policy applies to the requests of routes whose `parentRefs` name
    /// no other listener of the Gateway.
    pub section_name: Option<String>,
    /// Labels that a Pod must have, 1 to 16; only with kind `Pod`.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
}

/// The number of slots (P of Bouncer §2) by one of `auto`, `total` and `perEndpoint`, and
/// optionally a token budget.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parallelism {
    /// Bounds of the number of slots that each proxy finds. It is the smallest number with nearly
    /// the highest throughput, plus a few where these let short requests overtake long ones.
    pub auto: Option<AutoParallelism>,
    /// Slots for all endpoints together, 1 to 1000000.
    pub total: Option<i64>,
    /// Slots per ready endpoint, 1 to 1000000.
    pub per_endpoint: Option<i64>,
    /// A token budget in addition to the slots, for LLM servers; none by default. A request goes to
    /// the backend once a slot is free and its tokens fit the budget.
    pub tokens: Option<TokenBudget>,
}

/// A token budget: the number of tokens that the server's KV cache holds. A request takes the
/// tokens of its prompt and output, at least 1, and returns them when it frees its slot. The
/// request at the head of the queue waits until its tokens fit, and no other request overtakes it.
/// A request with more tokens than the budget runs alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenBudget {
    /// Maximum number of tokens of all requests in the backend, 1 to 1000000000. It is per endpoint
    /// with `parallelism.perEndpoint`, otherwise for all endpoints together.
    pub budget: i64,
    /// The number of tokens of a request's prompt; none by default.
    pub prompt: Option<TokenCount>,
    /// The maximum number of tokens of a request's output; none by default.
    pub output: Option<TokenCount>,
    /// Maximum number of tokens that one request takes, such as the server's longest context, 1 to
    /// 1000000000; the budget by default. With the default, a request for a very long output runs
    /// alone.
    pub per_request: Option<i64>,
}

/// The source of a request's number of tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenCount {
    /// Name of the request header with the number, such as `content-length`; case-insensitive. The
    /// value must be a whole number. Without `header`, each request has `otherwise` tokens.
    pub header: Option<String>,
    /// Tokens per unit of the header's value, such as 0.25 for bytes: 0.001 to 1000; 1 by default.
    pub per_unit: Option<f64>,
    /// Tokens of a request without the header, or with a value that isn't a whole number: 0 to
    /// 1000000000.
    pub otherwise: i64,
}

/// Bounds of the number of slots that a proxy finds. They apply to each proxy and are not divided
/// among proxies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AutoParallelism {
    /// Minimum number of slots, 1 to 1000000; 2 by default, or `max` if that is less, so that one
    /// long request doesn't block all others.
    pub min: Option<i64>,
    /// Maximum number of slots, `min` to 1000000; 1000000 by default.
    pub max: Option<i64>,
}

/// A header by which clients or gateways number attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retries {
    /// Name of the header, such as `x-stainless-retry-count`; case-insensitive. The value is a
    /// number, alone or as in `attempt=2; max=3`. A request with any other value, or without the
    /// header, is a first attempt, unless one of the other two headers says that it is a retry.
    pub header: String,
    /// Number of a first attempt: 0 if the header counts retries, 1 if it counts attempts; 0 by
    /// default. A request with a greater number is a retry.
    pub first_attempt: Option<i64>,
}

/// A query type: requests of about the same cost with the same objectives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueryType {
    /// Name in stats, headers and access logs: 1 to 63 letters, digits, `-` and `_`. `default`
    /// takes the requests that no other type matches.
    pub name: String,
    /// Conditions of the type; a request belongs to the first type of which it meets one. 1 to 64;
    /// none for `default`.
    #[serde(default)]
    pub matches: Vec<Match>,
    /// Response time objectives by percentile, such as `p50` or `p99.9`: 1ms to 1h each, at most
    /// 16. `Bouncer` and the discipline `Slack` require at least one per type, here or in `ttft`. A
    /// YAML anchor repeats objectives for several types: `slo: &fast {p50: 18ms}`, then `slo:
    /// *fast`.
    #[serde(default)]
    pub slo: BTreeMap<String, Duration>,
    /// Objectives for the time to first token, in place of `slo`, for streams such as those of a
    /// language model. The time ends with the first byte of the response's body: requests of the
    /// type are measured as with `measure: FirstByte`. Percentiles and durations as in `slo`, at
    /// most 4; none by default.
    #[serde(default)]
    pub ttft: BTreeMap<String, Duration>,
    /// Objectives for the time per output token, in addition to `slo` or `ttft`: the time from the
    /// first token to the end of the response, divided by the number of tokens after the first. A
    /// token is a server-sent event with data, other than `[DONE]`; in other responses it is a
    /// chunk of the body. Decisions on a request don't use them. A response that misses the
    /// objective at the highest percentile counts as late for `parallelism.auto`, and as not
    /// delivered for `shedByValue`. Percentiles and durations as in `slo`, at most 4; none by
    /// default.
    #[serde(default)]
    pub tpot: BTreeMap<String, Duration>,
    /// Value of a response within the objectives, relative to other types: 0.001 to 1000; 1 by
    /// default. Under overload, `Bouncer` with `shedByValue` first refuses the requests with the
    /// least value per processing time.
    pub value: Option<f64>,
    /// A cost that grows with the size of a request: `a + b · size`, where a and b are measured.
    /// Each request then has an estimate of its own, so one type can cover small and very large
    /// requests. Without it, all requests of the type have the same estimate.
    pub cost: Option<RequestCost>,
    /// Another route for requests that would be refused, such as the route to a cheaper model; none
    /// by default.
    pub on_refusal: Option<OnRefusal>,
}

/// Another route for requests that would be refused. They take no slot there, and are neither
/// measured nor checked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnRefusal {
    /// Headers to set on such a request, replacing its own of the same names; 1 to 8. Envoy then
    /// selects the route again. A route must match these headers; otherwise the request reaches the
    /// same backend without a slot. Requests above the rate of their workflow (`rate_limit`) are
    /// refused in any case.
    pub set: Vec<SetHeader>,
}

/// A class: requests of the same value, independent of their type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestClass {
    /// Name in stats: 1 to 63 letters, digits, `-` and `_`.
    pub name: String,
    /// Conditions of the class; a request belongs to the first class of which it meets one. 1 to
    /// 64; none for the last class, which takes the remaining requests.
    #[serde(default)]
    pub matches: Vec<Match>,
    /// Factor on the value of a request's type for this class, such as 0.2 for a free tier: 0.001
    /// to 1000; 1 by default.
    pub value: Option<f64>,
}
