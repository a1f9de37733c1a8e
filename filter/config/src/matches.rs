//! The configuration of conditions on requests. Policies use the same Rust types.

use serde::{Deserialize, Serialize};

/// Conditions that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// The path, without its query string.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// The method, in upper case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Conditions on headers, which must all hold; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderMatch>,
    // This condition holds only for requests with a gRPC content type.
    /// gRPC service and method, in place of `path` and `method`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcMatch>,
    /// Name of the route that Envoy selected, 1 to 1024 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
}

/// A condition on the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PathMatch {
    /// How `value` is compared; `PathPrefix` by default.
    #[serde(default, rename = "type")]
    pub kind: PathMatchKind,
    /// Path, prefix or regular expression, at most 1024 bytes.
    pub value: String,
}

/// How a path is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PathMatchKind {
    /// The whole path.
    Exact,
    /// Whole path elements: `/q` matches `/q` and `/q/x`, not `/qx`.
    #[default]
    PathPrefix,
    /// A regular expression that the whole path must match. Paths longer than 4 KiB match none.
    RegularExpression,
}

/// The comparison of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StringMatchKind {
    /// Equal.
    #[default]
    Exact,
    /// A regular expression that the whole text must match.
    RegularExpression,
}

/// A condition on a request header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HeaderMatch {
    /// How `value` is compared; `Exact` by default.
    #[serde(default, rename = "type")]
    pub kind: StringMatchKind,
    // The operator writes lower case.
    /// Name, case-insensitive; 1 to 256 bytes. `Host` also matches `:authority` of HTTP/2.
    pub name: String,
    /// Value or regular expression, at most 4096 bytes. For regular expressions, values have the
    /// same length limit as paths.
    pub value: String,
}

/// A condition on a gRPC request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GrpcMatch {
    /// How `service` and `method` are compared; `Exact` by default.
    #[serde(default, rename = "type")]
    pub kind: StringMatchKind,
    /// Fully qualified service, such as `search.v1.Search`; at most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Method, such as `Query`; at most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}
