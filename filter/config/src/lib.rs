//! The filter's configuration, into which the operator compiles policies.
//!
//! One [`FilterConfig`] has all policies of one workload, because Envoy creates a VM per
//! configuration and worker. Its form is JSON (a protobuf `Struct` in the plugin's configuration).
//! So all numbers are plain, with their unit in the field's name. Users don't write this JSON. They
//! write `AdmissionPolicy`, and the operator explains mistakes in terms of their YAML. The checks
//! here protect the data path from any configuration.

pub mod admission_law;
mod class_admission;
mod matches;
mod outbound;
mod place;
mod queue;
mod response_time_controller;
mod service_times;
mod stage;
mod strategy;
mod types;
mod workflows;

pub use class_admission::*;
pub use matches::*;
pub use outbound::*;
pub use queue::*;
pub use response_time_controller::*;
pub use service_times::*;
pub use stage::*;
pub use strategy::*;
pub use types::*;
pub use workflows::*;

/// The reason why a configuration was refused, in one line: the field, the value, and a valid
/// value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// Path of the field at fault, e.g. `stages[0].parallelism`.
    pub field: String,
    /// The value found, and a valid value.
    pub problem: String,
}

impl ConfigError {
    /// Creates an error for a problem at `field`.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

/// The maximum number of HTTP ranges, and of gRPC statuses, that count as errors.
pub const MAX_ERRORS: usize = 16;
/// The maximum number of stages of a workload.
pub const MAX_STAGES: usize = 64;
/// The maximum number of route patterns of a stage.
pub const MAX_ROUTES: usize = 64;
/// The maximum number of query types of a stage, including `default`.
pub const MAX_TYPES: usize = 1024;
/// The maximum number of classes of a stage.
pub const MAX_CLASSES: usize = 16;
/// The maximum number of steps of a sliding window of processing times.
pub const MAX_HISTOGRAM_STEPS: usize = 100;
/// The maximum number of slots of a stage.
pub const MAX_PARALLELISM: u32 = 1_000_000;
/// The maximum number of tokens of a budget, and of a request.
pub const MAX_TOKENS: u32 = 1_000_000_000;
/// Largest cost of a request. The gauge of the queue's total cost has room for 2^20 requests of
/// this cost.
pub const MAX_COST: u32 = 1 << 24;
/// The maximum number of workflows with a rate of their own.
pub const MAX_WORKFLOWS: u16 = 1000;
/// The maximum number of places where a request may name its workflow.
pub const MAX_WORKFLOW_SOURCES: usize = 8;
/// Longest id of a workflow and longest name of a service, bytes. A request with a longer id shares
/// `_other`.
pub const MAX_WORKFLOW_NAME: usize = 128;
/// The maximum number of requests of one workflow that the rate limiter queues.
pub const MAX_WORKFLOW_QUEUE: u32 = 10_000;
/// The maximum number of downstream services with settings or names of their own.
pub const MAX_WORKFLOW_SERVICES: usize = 256;
/// The largest number of downstream services with a quantile for one workflow.
pub const MAX_WORKFLOW_QUANTILES: usize = 16;
/// The maximum number of patterns of trusted peers.
pub const MAX_WORKFLOW_PEERS: usize = 64;
/// Longest delay of a call by smoothing, µs.
pub const MAX_SMOOTHING_US: u64 = 10_000_000;
/// The largest guarantee of a workflow (requests/s), capacity of a second resource (its unit per
/// second) and number of processing units.
pub const MAX_QUANTITY: f64 = 1e15;
/// The maximum length of a queue, requests.
pub const MAX_QUEUE_LENGTH: u32 = 1_000_000;
/// Headers that number attempts under all policies, each with the number of a first attempt.
pub const ATTEMPT_HEADERS: [(&str, u32); 2] = [
    ("x-envoy-attempt-count", 1),
    ("grpc-previous-rpc-attempts", 0),
];
/// Headers that a refused request can't get. They name its host, which may be another tenant's, or
/// delimit the request on its connection.
pub const FIXED_HEADERS: [&str; 5] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
];
/// The name of the type of requests that no other type matches. It is always the last of a stage's
/// types.
pub const DEFAULT_TYPE: &str = "default";

#[cfg(test)]
mod tests;
