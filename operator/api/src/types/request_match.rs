//! Matches of requests, shaped like those of `HTTPRoute` and `GRPCRoute`.

use headgate_core::config::{self, StringMatchKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Conditions that must all hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RequestMatch {
    /// The path, without its query string.
    pub path: Option<PathMatch>,
    /// The method, in upper case.
    pub method: Option<String>,
    /// Request headers, all of them; at most 16.
    pub headers: Vec<HeaderMatch>,
    /// gRPC service and method; in place of `path` and `method`.
    pub grpc: Option<GrpcMatch>,
    /// Name of the Envoy route that was selected, 1 to 1024 bytes.
    pub route: Option<String>,
}

/// A condition on the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathMatch {
    /// How `value` is compared; `PathPrefix` by default.
    #[serde(default, rename = "type")]
    pub kind: PathMatchType,
    /// Path, prefix or regular expression, at most 1024 bytes.
    pub value: String,
}

/// How a path is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum PathMatchType {
    /// The whole path.
    Exact,
    /// Whole path elements: `/q` matches `/q` and `/q/x`, not `/qx`.
    #[default]
    PathPrefix,
    /// The whole path matches this regular expression. Paths of more than 4 KiB match none; where
    /// the policy's expressions take N KiB, more than 16, paths of more than 64 KiB / N.
    RegularExpression,
}

/// A condition on a request header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderMatch {
    /// How `value` is compared; `Exact` by default.
    #[serde(default, rename = "type")]
    pub kind: StringMatchKind,
    /// Name, in any case; 1 to 256 bytes. `Host` is also the `:authority` of HTTP/2.
    pub name: String,
    /// Value or regular expression, at most 4096 bytes. Received values match a regular expression
    /// up to the length at which paths do.
    pub value: String,
}

/// A condition on a gRPC request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GrpcMatch {
    /// How `service` and `method` are compared; `Exact` by default.
    #[serde(rename = "type")]
    pub kind: StringMatchKind,
    /// Fully qualified service, such as `search.v1.Search`; at most 256 bytes.
    pub service: Option<String>,
    /// Method, such as `Query`; at most 256 bytes.
    pub method: Option<String>,
}

impl From<&PathMatch> for config::PathMatch {
    fn from(path: &PathMatch) -> Self {
        let value = path.value.clone();
        match path.kind {
            PathMatchType::Exact => Self::Exact(value),
            PathMatchType::PathPrefix => Self::PathPrefix(value),
            PathMatchType::RegularExpression => Self::RegularExpression(value),
        }
    }
}

impl From<&RequestMatch> for config::Match {
    fn from(rule: &RequestMatch) -> Self {
        let header = |h: &HeaderMatch| config::HeaderMatch {
            kind: h.kind,
            name: h.name.to_ascii_lowercase(),
            value: h.value.clone(),
        };
        let grpc = |g: &GrpcMatch| config::GrpcMatch {
            kind: g.kind,
            service: g.service.clone(),
            method: g.method.clone(),
        };
        Self {
            path: rule.path.as_ref().map(Into::into),
            method: rule.method.clone(),
            headers: rule.headers.iter().map(header).collect(),
            grpc: rule.grpc.as_ref().map(grpc),
            route: rule.route.clone(),
        }
    }
}
