//! The `spec` of an [`AdmissionPolicy`](super::AdmissionPolicy).

use std::collections::BTreeMap;

use headgate_core::config::{Match, Measure, Mode, RequestCost, SetHeader};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClassAdmission, Duration, Errors, Queue, Strategy, Workflows};

/// The desired state: the backend (`targetRefs`), and the objectives of its requests (`types`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdmissionPolicySpec {
    /// The objects that the policy applies to: 1 to 16 of its own namespace (GEP-713).
    pub target_refs: Vec<PolicyTargetRef>,
    /// Whether decisions take effect; `Enforce` by default.
    #[serde(default)]
    pub mode: Mode,
    /// The number of requests that the backend works on at once. By default each proxy finds it
    /// while the backend works (`auto`); `total` or `perEndpoint` fix it.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// The moment at which a request's processing time, which objectives are about, ends; the last
    /// byte of the response by default.
    #[serde(default)]
    pub measure: Measure,
    /// The moment at which a request's slot becomes free; the last byte of the response by default,
    /// whatever `measure` says, or the moment its client disconnects. `FirstByte` needs `measure:
    /// FirstByte`, and is for backends that are done with a request by then.
    #[serde(default)]
    pub release_slot: Measure,
    /// The responses that are errors of the backend; 5xx and their gRPC equivalents by default.
    #[serde(default)]
    pub errors: Errors,
    /// A header that numbers attempts, in addition to `x-envoy-attempt-count` and
    /// `grpc-previous-rpc-attempts`; none by default. A retry is refused while first attempts of
    /// its type are.
    pub retries: Option<Retries>,
    /// The queue in front of the backend, which the proxy holds by default.
    #[serde(default)]
    pub queue: Queue,
    /// The strategy that decides which requests may enter the queue; `Bouncer` by default.
    #[serde(default)]
    pub strategy: Strategy,
    /// Query types, tried in order, 1 to 256. `default`, at any place in the list, takes the rest.
    /// Regular expressions of types, `classes` and `exclude` take at most 256 KiB together when
    /// compiled; an ordinary one takes 1 KiB, one with a counted repetition more.
    pub types: Vec<QueryType>,
    /// Classes of requests by their worth, the highest priority first; the last has no matches and
    /// takes the rest. At most 16; none by default, and then all requests are of one class.
    #[serde(default)]
    pub classes: Vec<RequestClass>,
    /// Workflows that cross this service and others, and their rates; none by default.
    pub workflows: Option<Workflows>,
    /// Targets of the classes of this service for its callers, and the admission of its own calls
    /// to other services' classes; none by default.
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
    /// `HTTPRoute` and `GRPCRoute`: the same proxies, for the requests of that route.
    /// `InferencePool`: the same proxies, for the requests of the rules that have the pool among
    /// their `backendRefs`, in routes of its namespace. `Pod`: the proxies in front of the Pods
    /// with the labels in `matchLabels`.
    pub kind: String,
    /// Name, in the policy's namespace. Needed by each kind but `Pod`, which has none.
    pub name: Option<String>,
    /// Only with kind `Gateway`: the listener to whose requests the policy applies; all listeners
    /// by default. The route decides the listener of a request: the policy applies to the routes
    /// whose `parentRefs` name no other listener of the Gateway.
    pub section_name: Option<String>,
    /// Only with kind `Pod`: labels that the Pods must all have, 1 to 16.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
}

/// P of Bouncer §2: one of `auto`, `total` and `perEndpoint`; and a budget of tokens beside it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parallelism {
    /// Bounds of the number of slots that each proxy finds: the fewest slots that give nearly the
    /// throughput of any more, and a few above that where they let short requests pass long ones.
    pub auto: Option<AutoParallelism>,
    /// Slots over all endpoints, 1 to 1000000.
    pub total: Option<i64>,
    /// Slots of each ready endpoint, 1 to 1000000.
    pub per_endpoint: Option<i64>,
    /// A budget of tokens beside the slots, for LLM servers: a request goes to the backend when a
    /// slot is free and its tokens fit. None by default.
    pub tokens: Option<TokenBudget>,
}

/// A budget of tokens: those that the server's cache holds. A request takes the tokens of its
/// prompt and of its output, at least 1, and gives them back when its slot becomes free. The first
/// request in the queue waits until its tokens fit, and nothing overtakes it; one with more than
/// the whole budget runs alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenBudget {
    /// Tokens that all requests in the backend take together, 1 to 1000000000: of each endpoint
    /// with `parallelism.perEndpoint`, else of all endpoints together.
    pub budget: i64,
    /// The tokens of a request's prompt; none by default.
    pub prompt: Option<TokenCount>,
    /// The most tokens of a request's output; none by default.
    pub output: Option<TokenCount>,
    /// The most tokens that one request takes, such as the server's longest context, 1 to
    /// 1000000000; the budget by default. Without it, clients who ask for a very long output run
    /// alone.
    pub per_request: Option<i64>,
}

/// A number of tokens of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenCount {
    /// The name of the header whose value, a whole number, gives the tokens; in any case, such as
    /// `content-length`. Without it, all requests have the tokens that `otherwise` gives.
    pub header: Option<String>,
    /// Tokens for each unit of the header's value, such as 0.25 if it counts bytes: 0.001 to 1000;
    /// 1 by default.
    pub per_unit: Option<f64>,
    /// The tokens of a request without the header, or with a value that is no whole number: 0 to
    /// 1000000000.
    pub otherwise: i64,
}

/// Bounds of the slots that are found. They apply to each proxy and are not divided among proxies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AutoParallelism {
    /// Fewest slots, 1 to 1000000; 2 by default, or `max` if that is less, so that a long request
    /// doesn't keep all others waiting.
    pub min: Option<i64>,
    /// Most slots, `min` to 1000000; 1000000 by default.
    pub max: Option<i64>,
}

/// A header by which clients or gateways number attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retries {
    /// Its name, in any case, such as `x-stainless-retry-count`. The value is a number, alone or as
    /// in `attempt=2; max=3`. A request with any other value, or without the header, is a first
    /// attempt, unless one of the other two headers says that it is a retry.
    pub header: String,
    /// The number of a first attempt: 0 where the header counts retries, 1 where it counts
    /// attempts; 0 by default. A request with a greater number is a retry.
    pub first_attempt: Option<i64>,
}

/// A query type: requests of about the same cost with the same objectives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueryType {
    /// Its name in stats, headers and access logs: 1 to 63 letters, digits, `-` and `_`. `default`
    /// takes the requests that no other type matches.
    pub name: String,
    /// Conditions of the type: it takes requests that match any of these and match no earlier type.
    /// At least one, at most 64; none for `default`.
    #[serde(default)]
    pub matches: Vec<Match>,
    /// Response time objectives by percentile, such as `p50` or `p99.9`: 1ms to 1h each, at most
    /// 16. `Bouncer` and the discipline `Slack` need one or more for each type, here or in `ttft`.
    /// A YAML anchor gives the same to several types: `slo: &fast {p50: 18ms}`, then `slo: *fast`.
    #[serde(default)]
    pub slo: BTreeMap<String, Duration>,
    /// Objectives for the time to the first byte of the response's body, in place of `slo`: for
    /// streams, such as those of a language model, whose first byte comes with the first token. The
    /// type's requests are then measured as with `measure: FirstByte`. Percentiles and times as for
    /// `slo`, at most 4; none by default.
    #[serde(default)]
    pub ttft: BTreeMap<String, Duration>,
    /// Objectives for the time per output token, beside `slo` or `ttft`: the time from the first
    /// token to the end of the response, divided by the number of the other tokens. A token is a
    /// server-sent event with data, other than `[DONE]`; in other responses, a part in which the
    /// body arrives. It doesn't decide on single requests: a response beyond the last objective
    /// counts as late where the number of slots is found, and as not delivered for `shedByValue`.
    /// Percentiles and times as for `slo`, at most 4; none by default.
    #[serde(default)]
    pub tpot: BTreeMap<String, Duration>,
    /// Worth of one response within the objectives, relative to the other types: 0.001 to 1000; 1
    /// by default. Under overload, `Bouncer` with `shedByValue` first refuses the requests that are
    /// worth least per processing time.
    pub value: Option<f64>,
    /// A cost that grows with the size of a request: `a + b · size`, of which a and b are measured.
    /// Requests are then judged by their own estimates, so one type may cover small and very large
    /// ones. Without it, all requests of the type are expected to cost the same.
    pub cost: Option<RequestCost>,
    /// Another route for requests that would be refused, such as that to a cheaper model. By
    /// default they are refused.
    pub on_refusal: Option<OnRefusal>,
}

/// Another route for requests that would be refused. They go there without a slot, and are neither
/// measured nor judged again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnRefusal {
    /// Headers that such a request gets, in place of its own of these names: 1 to 8. Envoy then
    /// selects its route again. A route has to match them: otherwise the request reaches the same
    /// backend, beyond its slots. Requests beyond the rate of their workflow (`rate_limit`) are
    /// refused in any case.
    pub set: Vec<SetHeader>,
}

/// A class: requests of the same worth, whatever their type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestClass {
    /// Its name in stats: 1 to 63 letters, digits, `-` and `_`.
    pub name: String,
    /// Conditions of the class: it takes requests that match any of these and match no earlier
    /// class. At least one, at most 64; none for the last class, which takes the rest.
    #[serde(default)]
    pub matches: Vec<Match>,
    /// Factor of the types' values for requests of this class, such as 0.2 for a free tier: 0.001
    /// to 1000; 1 by default.
    pub value: Option<f64>,
}
