//! `spec.errors`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The responses that count as errors of the backend. They free their slot and count as
/// `rq_failed`. Their processing times are not measured, because fast failures would make the
/// backend look fast. Timeouts and resets always count as errors.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Errors {
    /// HTTP status codes, at most 16: one code such as `429`, or `5xx` for 500 to 599; `5xx` by
    /// default.
    pub http_statuses: Option<Vec<String>>,
    /// gRPC status codes, at most 16; by default `DEADLINE_EXCEEDED`, `RESOURCE_EXHAUSTED`,
    /// `INTERNAL` and `UNAVAILABLE`.
    pub grpc_statuses: Option<Vec<GrpcStatus>>,
}

/// A gRPC status other than `OK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs)] // the names are gRPC's
pub enum GrpcStatus {
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}
