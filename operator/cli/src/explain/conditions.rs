//! Describes matches, and why they fail, in words.

use headgate_core::classify::{CONTENT_TYPE, Condition, RequestView};
use headgate_core::config::{GrpcMatch, HeaderMatch, Match, PathMatchKind, StringMatchKind};

/// Returns the conditions of a match.
pub(super) fn condition(rule: &Match) -> String {
    let mut parts = Vec::new();
    parts.extend(rule.path.as_ref().map(|path| {
        let operator = match path.kind {
            PathMatchKind::Exact => "=",
            PathMatchKind::PathPrefix => "below",
            PathMatchKind::RegularExpression => "~",
        };
        format!("path {operator} {}", path.value)
    }));
    if let Some(method) = &rule.method {
        parts.push(format!("method = {method}"));
    }
    parts.extend(rule.grpc.as_ref().map(grpc));
    parts.extend(rule.headers.iter().map(header));
    parts.extend(rule.route.as_ref().map(|route| format!("route = {route}")));
    parts.join(" and ")
}

fn operator(kind: StringMatchKind) -> &'static str {
    match kind {
        StringMatchKind::Exact => "=",
        StringMatchKind::RegularExpression => "~",
    }
}

fn header(header: &HeaderMatch) -> String {
    format!("{} {} {}", header.name, operator(header.kind), header.value)
}

fn grpc(grpc: &GrpcMatch) -> String {
    let parts = [("service", &grpc.service), ("method", &grpc.method)].into_iter();
    let parts = parts.filter_map(|(name, value)| {
        let value = value.as_ref()?;
        Some(format!("gRPC {name} {} {value}", operator(grpc.kind)))
    });
    parts.collect::<Vec<_>>().join(" and ")
}

/// Returns the reason why a match fails: the value found and the required value.
pub(super) fn because(rule: &Match, failing: Condition, request: &impl RequestView) -> String {
    let found = |value: Option<&[u8]>| match value {
        Some(value) => format!("{:?}", String::from_utf8_lossy(value)),
        None => "absent".to_owned(),
    };
    let path = request
        .path()
        .map(|p| p.split(|b| matches!(b, b'?' | b'#')).next().unwrap_or(p));
    match failing {
        Condition::Path => format!("path is {}", found(path)),
        Condition::Method => format!("method is {}", found(request.method())),
        Condition::GrpcService | Condition::GrpcMethod => format!("path is {}", found(path)),
        Condition::GrpcRequest => format!(
            "not a gRPC request: {CONTENT_TYPE} is {}, path is {}",
            found(request.header(CONTENT_TYPE)),
            found(path)
        ),
        Condition::Header(index) => match rule.headers.get(index) {
            Some(header) => format!("{} is {}", header.name, found(request.header(&header.name))),
            None => "a header differs".to_owned(),
        },
        Condition::Route => format!("route is {}", found(request.route_name())),
    }
}
