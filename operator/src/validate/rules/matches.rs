//! Rules for matches.

use headgate_core::classify::check_pattern;
use headgate_core::config::Match;

use super::Problems;
use crate::api::{GrpcMatch, HeaderMatch, PathMatch, PathMatchType, RequestMatch, StringMatchType};
use crate::validate::path::Path;
use crate::validate::suggest::instead_of;

/// Those that HTTPRoute knows.
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];
/// Most matches of one type, of one class, and most exclusions.
const MAX_MATCHES: usize = 64;
const MAX_PATH: usize = 1024;
const MAX_HEADERS: usize = 16;
const MAX_HEADER_NAME: usize = 256;
const MAX_HEADER_VALUE: usize = 4096;
const MAX_ROUTE_NAME: usize = 1024;

/// Checks the matches of a type or class, or the exclusions.
pub(super) fn check_matches(
    matches: &[RequestMatch],
    at: &Path,
    problems: &mut Problems,
) -> Vec<Match> {
    if matches.len() > MAX_MATCHES {
        problems.add(
            at.clone(),
            format!("{} matches; at most {MAX_MATCHES}", matches.len()),
        );
    }
    for (i, rule) in matches.iter().enumerate() {
        check_match(rule, &at.item(i), problems);
    }
    matches.iter().map(Match::from).collect()
}

fn check_match(rule: &RequestMatch, at: &Path, problems: &mut Problems) {
    if *rule == RequestMatch::default() {
        problems.add(
            at.clone(),
            "empty; at least one of path, method, headers, grpc and route",
        );
    }
    if let Some(path) = &rule.path {
        check_path(path, &at.field("path"), problems);
    }
    if let Some(method) = rule.method.as_deref()
        && !METHODS.contains(&method)
    {
        problems.add(
            at.field("method"),
            format!("{method:?}; {}", instead_of(method, METHODS)),
        );
    }
    check_headers(&rule.headers, &at.field("headers"), problems);
    if let Some(grpc) = &rule.grpc {
        check_grpc(grpc, &at.field("grpc"), problems);
        if rule.path.is_some() {
            let right = "grpc is a condition on the path already; leave one out";
            problems.add(at.field("path"), format!("given beside grpc; {right}"));
        }
        if let Some(method) = rule.method.as_deref().filter(|m| *m != "POST") {
            problems.add(
                at.field("method"),
                format!("{method:?}; gRPC requests are POST; leave it out"),
            );
        }
    }
    if let Some(route) = &rule.route
        && !(1..=MAX_ROUTE_NAME).contains(&route.len())
    {
        let right = format!("the name of an Envoy route, 1 to {MAX_ROUTE_NAME} bytes");
        problems.add(at.field("route"), format!("{} bytes; {right}", route.len()));
    }
}

fn check_path(path: &PathMatch, at: &Path, problems: &mut Problems) {
    let at = at.field("value");
    let value = &path.value;
    if path.kind == PathMatchType::RegularExpression {
        return check_regex(value, &at, problems);
    }
    if !value.starts_with('/') {
        problems.add(
            at,
            format!("{value:?}; paths start with /, write \"/{value}\""),
        );
    } else if value.len() > MAX_PATH {
        problems.add(at, format!("{} bytes; at most {MAX_PATH}", value.len()));
    } else if let Some(odd) = value.chars().find(|c| matches!(c, '?' | '#')) {
        let right = "the query string is not compared; leave it out";
        problems.add(at, format!("{value:?} holds {odd:?}; {right}"));
    } else if value.chars().any(|c| c.is_whitespace() || c.is_control()) {
        problems.add(
            at,
            format!("{value:?} holds white space; paths are compared as sent, such as %20"),
        );
    } else if path.kind == PathMatchType::PathPrefix && value.ends_with('*') {
        let plain = value.trim_end_matches('*').trim_end_matches('/');
        let plain = if plain.is_empty() { "/" } else { plain };
        problems.add(
            at,
            format!("{value:?}; a prefix takes no wildcard, write {plain:?}"),
        );
    }
}

fn check_headers(headers: &[HeaderMatch], at: &Path, problems: &mut Problems) {
    if headers.len() > MAX_HEADERS {
        problems.add(
            at.clone(),
            format!("{} headers; at most {MAX_HEADERS}", headers.len()),
        );
    }
    for (i, header) in headers.iter().enumerate() {
        let at = at.item(i);
        let name = &header.name;
        // RFC 9110, section 5.6.2.
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.starts_with(':') {
            let right = "pseudo-headers are matched by path and method";
            problems.add(at.field("name"), format!("{name:?}; {right}"));
        } else if !(1..=MAX_HEADER_NAME).contains(&name.len()) || !name.bytes().all(token) {
            let right = "a header's name, letters, digits and -";
            problems.add(at.field("name"), format!("{name:?}; {right}"));
        } else if let Some(first) = headers[..i]
            .iter()
            .position(|h| h.name.eq_ignore_ascii_case(name))
        {
            let right = "a header has one value, so both can't be meant; keep one";
            problems.add(
                at.field("name"),
                format!("{name:?} is also headers[{first}]; {right}"),
            );
        }
        let value = &header.value;
        match header.kind {
            StringMatchType::RegularExpression => check_regex(value, &at.field("value"), problems),
            StringMatchType::Exact if !(1..=MAX_HEADER_VALUE).contains(&value.len()) => {
                let right = format!("1 to {MAX_HEADER_VALUE} bytes");
                problems.add(at.field("value"), format!("{} bytes; {right}", value.len()));
            }
            StringMatchType::Exact if value.trim() != value => {
                let right = "white space around a header's value is never received; remove it";
                problems.add(at.field("value"), format!("{value:?}; {right}"));
            }
            StringMatchType::Exact => {}
        }
    }
}

fn check_grpc(grpc: &GrpcMatch, at: &Path, problems: &mut Problems) {
    if grpc.service.is_none() && grpc.method.is_none() {
        problems.add(at.clone(), "empty; service, method or both");
    }
    for (field, value, right) in [
        (
            "service",
            &grpc.service,
            "a fully qualified service, such as search.v1.Search",
        ),
        ("method", &grpc.method, "a method, such as Query"),
    ] {
        let Some(value) = value else { continue };
        let plain =
            |b: u8| b.is_ascii_alphanumeric() || b == b'_' || (b == b'.' && field == "service");
        match grpc.kind {
            StringMatchType::RegularExpression => check_regex(value, &at.field(field), problems),
            StringMatchType::Exact if value.is_empty() || !value.bytes().all(plain) => {
                problems.add(at.field(field), format!("{value:?}; {right}"));
            }
            StringMatchType::Exact => {}
        }
    }
}

fn check_regex(pattern: &str, at: &Path, problems: &mut Problems) {
    if let Err(reason) = check_pattern(pattern) {
        let shown: String = pattern.chars().take(80).collect();
        problems.add(
            at.clone(),
            format!("{shown:?} is no usable regular expression: {reason}"),
        );
    }
}
