//! Rules for matches.

use headgate_core::classify::{Budget, Refused};
use headgate_core::config::{
    GrpcMatch, HeaderMatch, Match, PathMatch, PathMatchKind, StringMatchKind,
};
use regex_lite::RegexBuilder;

use super::requirement::When::{Any, Given, Is, Not};
use super::requirement::{Rules, When, forbidden, hold};
use super::{At, By, Field, Format, Table};
use crate::validate::rules::schema::{Rule, SchemaField};
use crate::validate::suggest::instead_of;

/// The methods that a policy may match.
pub const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];
pub(super) static FIELDS: Table = fields! {
    "" => Field::List(64, "matches", By::Nothing),
    "[].headers" => Field::List(16, "headers", By::Key("name")),
};
/// The length of the longest path that a policy may match, in bytes.
pub const MAX_PATH: usize = 1024;
const MAX_HEADER_VALUE: usize = 4096;
const MAX_ROUTE_NAME: usize = 1024;
const MAX_GRPC_NAME: usize = 256;
/// Names of headers: a token (RFC 9110, section 5.6.2).
static HEADER_NAME: Format = Format::new(
    256,
    "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
    "a header's name, letters, digits and !#$%&'*+-.^_`|~",
);
static GRPC_SERVICE: Format = Format::new(
    MAX_GRPC_NAME,
    "^[A-Za-z0-9_.]+$",
    "a fully qualified service, such as search.v1.Search",
);
static GRPC_METHOD: Format =
    Format::new(MAX_GRPC_NAME, "^[A-Za-z0-9_]+$", "a method, such as Query");
const EMPTY: &str = "empty; at least one of path, method, headers, grpc and route";
const PATH_AND_GRPC: &str =
    "given beside grpc; grpc is a condition on the path already; leave one out";
const METHOD_OF_GRPC: &str = "\"%s\"; gRPC requests are POST; leave it out";
const QUERY_STRING: &str = "the query string is not compared; leave it out";
const WHITE_SPACE: &str = "holds white space; paths are compared as sent, such as %20";
const DOT_SEGMENTS: &str = "has an empty segment or one of dots, which Envoy resolves before paths \
                            are compared; write the result";
const PERCENT_ENCODED: &str = "which Envoy decodes before paths are compared";
const CONTROL_CHARACTER: &str = "holds a control character, which no header's value has; remove it";
const PSEUDO_HEADER: &str = "pseudo-headers are matched by path, method and the header Host";
const SPACE_AROUND_VALUE: &str = "white space around a header's value is never received; remove it";
const EMPTY_GRPC: &str = "empty; service, method or both";
pub(super) static REQUIREMENTS: Rules = fields! {
    "" => hold("", Any(&CONDITIONS), EMPTY),
    "" => forbidden!("path", Not(&Given("grpc")), PATH_AND_GRPC),
    "" => hold("method", Any(&[Not(&Given("grpc")), ABSENT, POST]), METHOD_OF_GRPC)
        .showing("method"),
    "grpc" => hold("", Any(&[Given("service"), Given("method")]), EMPTY_GRPC),
};
static CONDITIONS: [When; 5] = [
    Given("path"),
    Given("method"),
    Given("headers"),
    Given("grpc"),
    Given("route"),
];
const ABSENT: When = Not(&Given("method"));
const POST: When = Is("method", "POST");
/// Fields of a condition on a gRPC request.
static GRPC_FIELDS: [(&str, &Format); 2] = [("service", &GRPC_SERVICE), ("method", &GRPC_METHOD)];

/// Checks the matches of a type or class, or the exclusions. Returns these with the names of their
/// headers in lower case. Regular expressions are compiled within `budget`, which is the policy's.
pub(super) fn check_matches(matches: &[Match], at: &At<'_>, budget: &mut Budget) -> Vec<Match> {
    at.count(matches.len());
    let mut checked = matches.to_vec();
    for (i, rule) in checked.iter_mut().enumerate() {
        check_match(rule, &at.item(i), budget);
        for header in &mut rule.headers {
            header.name.make_ascii_lowercase();
        }
    }
    checked
}

fn check_match(rule: &Match, at: &At<'_>, budget: &mut Budget) {
    if let Some(path) = &rule.path {
        check_path(path, &at.field("path"), budget);
    }
    if let Some(method) = rule.method.as_deref()
        && !METHODS.contains(&method)
    {
        at.field("method")
            .add(format!("{method:?}; {}", instead_of(method, METHODS)));
    }
    check_headers(&rule.headers, &at.field("headers"), budget);
    if let Some(grpc) = &rule.grpc {
        check_grpc(grpc, &at.field("grpc"), budget);
    }
    if let Some(route) = &rule.route
        && !(1..=MAX_ROUTE_NAME).contains(&route.len())
    {
        let right = format!("the name of an Envoy route, 1 to {MAX_ROUTE_NAME} bytes");
        at.field("route")
            .add(format!("{} bytes; {right}", route.len()));
    }
}

fn check_path(path: &PathMatch, at: &At<'_>, budget: &mut Budget) {
    let at = at.field("value");
    let value = &path.value;
    if path.kind == PathMatchKind::RegularExpression {
        return check_regex(value, &at, budget);
    }
    if !value.starts_with('/') {
        at.add(format!("{value:?}; paths start with /, write \"/{value}\""));
    } else if value.len() > MAX_PATH {
        at.add(format!("{} bytes; at most {MAX_PATH}", value.len()));
    } else if let Some(odd) = value.chars().find(|c| matches!(c, '?' | '#')) {
        at.add(format!("{value:?} holds {odd:?}; {QUERY_STRING}"));
    } else if value.chars().any(|c| c.is_whitespace() || c.is_control()) {
        at.add(format!("{value:?} {WHITE_SPACE}"));
    } else if is_unresolved(value) {
        at.add(format!("{value:?} {DOT_SEGMENTS}"));
    } else if let Some((part, decoded)) = percent_encoded(value) {
        let problem = format!("{value:?} holds {part:?}, {PERCENT_ENCODED}; write {decoded:?}");
        at.add(problem);
    } else if path.kind == PathMatchKind::PathPrefix && value.ends_with('*') {
        let plain = value.trim_end_matches('*').trim_end_matches('/');
        let plain = if plain.is_empty() { "/" } else { plain };
        at.add(format!(
            "{value:?}; a prefix takes no wildcard, write {plain:?}"
        ));
    }
}

/// Whether a path has segments that normalization resolves (RFC 3986, section 6.2.2.3), or empty
/// segments, which normalization merges.
fn is_unresolved(path: &str) -> bool {
    ["//", "/./", "/../"].iter().any(|s| path.contains(s))
        || ["/.", "/.."].iter().any(|s| path.ends_with(s))
}

/// Returns the first percent-encoded unreserved character of a path (RFC 3986, section 6.2.2.2),
/// encoded and decoded.
fn percent_encoded(path: &str) -> Option<(&str, char)> {
    path.match_indices('%').find_map(|(at, _)| {
        let part = path.get(at..at + 3)?;
        let decoded = char::from(u8::from_str_radix(part.get(1..)?, 16).ok()?);
        let is_unreserved = decoded.is_ascii_alphanumeric() || "-._~".contains(decoded);
        is_unreserved.then_some((part, decoded))
    })
}

fn check_headers(headers: &[HeaderMatch], at: &At<'_>, budget: &mut Budget) {
    at.count(headers.len());
    for (i, header) in headers.iter().enumerate() {
        let at = at.item(i);
        let name = &header.name;
        if name.starts_with(':') {
            at.field("name").add(format!("{name:?}; {PSEUDO_HEADER}"));
        } else if let Some(problem) = Field::Text(&HEADER_NAME).problem(name) {
            at.field("name").add(problem);
        } else if let Some(first) = headers[..i]
            .iter()
            .position(|h| h.name.eq_ignore_ascii_case(name))
        {
            let right = "a header has one value; keep one";
            at.field("name")
                .add(format!("{name:?} is also headers[{first}]; {right}"));
        }
        let value = &header.value;
        if value.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
            at.field("value").add(CONTROL_CHARACTER);
            continue;
        }
        match header.kind {
            StringMatchKind::RegularExpression => check_regex(value, &at.field("value"), budget),
            StringMatchKind::Exact if !(1..=MAX_HEADER_VALUE).contains(&value.len()) => {
                let right = format!("1 to {MAX_HEADER_VALUE} bytes");
                at.field("value")
                    .add(format!("{} bytes; {right}", value.len()));
            }
            StringMatchKind::Exact if value.trim() != value => {
                at.field("value")
                    .add(format!("{value:?}; {SPACE_AROUND_VALUE}"));
            }
            StringMatchKind::Exact => {}
        }
    }
}

fn check_grpc(grpc: &GrpcMatch, at: &At<'_>, budget: &mut Budget) {
    for ((field, format), value) in GRPC_FIELDS.into_iter().zip([&grpc.service, &grpc.method]) {
        let Some(value) = value else { continue };
        if value.len() > MAX_GRPC_NAME {
            let problem = format!("{} bytes; at most {MAX_GRPC_NAME}", value.len());
            at.field(field).add(problem);
            continue;
        }
        match grpc.kind {
            StringMatchKind::RegularExpression => check_regex(value, &at.field(field), budget),
            StringMatchKind::Exact => {
                at.field(field).add_any(Field::Text(format).problem(value));
            }
        }
    }
}

fn check_regex(pattern: &str, at: &At<'_>, budget: &mut Budget) {
    let reason = match budget.check(pattern) {
        // That is a problem of the whole policy.
        Err(Refused::TooMany) => return,
        Err(Refused::Unusable(reason)) => Err(reason),
        Ok(()) => check_older(pattern),
    };
    if let Err(reason) = reason {
        let shown: String = pattern.chars().take(80).collect();
        at.add(format!(
            "{shown:?} is no usable regular expression: {reason}"
        ));
    }
}

/// Checks that filters of version 0.1, which compile expressions with another crate, accept
/// `pattern`. Remove this when the operator no longer serves them, in 0.3.
fn check_older(pattern: &str) -> Result<(), String> {
    let compile = |pattern: &str| {
        let mut builder = RegexBuilder::new(pattern);
        builder.size_limit(64 * 1024).build()
    };
    let compiled = compile(pattern).and_then(|_| compile(&format!(r"\A(?:{pattern})\z")));
    match compiled {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{error}, in filters of version 0.1")),
    }
}

/// Adds the schema of a list of matches. The API server counts each rule as often as all types
/// together may have matches, so the schema has only the cheapest rules on headers.
pub(super) fn schema(list: &mut SchemaField<'_>) {
    list.at("[].method").set("enum", METHODS.to_vec());
    let right = format!("0 bytes; the name of an Envoy route, 1 to {MAX_ROUTE_NAME} bytes");
    list.at("[].route")
        .set("maxLength", MAX_ROUTE_NAME)
        .rule(Rule::text("size(self) > 0", right));
    path_schema(&mut list.at("[].path"));
    header_schema(&mut list.at("[].headers"));
    grpc_schema(&mut list.at("[].grpc"));
}

fn path_schema(path: &mut SchemaField<'_>) {
    path.at("value").set("maxLength", MAX_PATH);
    let plain = "self.type == 'RegularExpression'";
    let value = "self.value";
    let without_star = "self.value.find('^.*[^*/]')";
    let prefix = format!("{without_star} == '' ? '/' : {without_star}");
    let rules = [
        Rule::words(
            format!("{plain} || {value}.startsWith('/')"),
            "\"%s\"; paths start with /, write \"/%s\"",
            &[value, value],
        ),
        Rule::words(
            format!("{plain} || !{value}.matches('[?#]')"),
            &format!("\"%s\" holds '%s'; {QUERY_STRING}"),
            &[value, "self.value.find('[?#]')"],
        ),
        Rule::words(
            format!("{plain} || !{value}.matches('\\\\s')"),
            &format!("\"%s\" {}", WHITE_SPACE.replace('%', "%%")),
            &[value],
        ),
        Rule::words(
            format!("self.type != 'PathPrefix' || !{value}.endsWith('*')"),
            "\"%s\"; a prefix takes no wildcard, write \"%s\"",
            &[value, &prefix],
        ),
    ];
    // One rule for all these segments would be too expensive for the API server.
    let segments = [
        format!("{value}.contains('//') || {value}.endsWith('/.') || {value}.endsWith('/..')"),
        format!("{value}.contains('/./')"),
        format!("{value}.contains('/../')"),
    ];
    let segments = segments.map(|found| {
        Rule::words(
            format!("{plain} || !({found})"),
            &format!("\"%s\" {DOT_SEGMENTS}"),
            &[value],
        )
    });
    for rule in rules.into_iter().chain(segments) {
        path.rule(rule.on(".value"));
    }
}

fn header_schema(headers: &mut SchemaField<'_>) {
    headers
        .at("[].name")
        .set("maxLength", HEADER_NAME.most)
        .set("minLength", 1)
        .set("pattern", HEADER_NAME.pattern);
    let empty = format!("0 bytes; 1 to {MAX_HEADER_VALUE} bytes");
    headers
        .at("[].value")
        .set("maxLength", MAX_HEADER_VALUE)
        .set("pattern", "^[^\\x00-\\x08\\x0a-\\x1f\\x7f]*$");
    headers
        .at("[]")
        .rule(Rule::text("self.type != 'Exact' || size(self.value) > 0", empty).on(".value"))
        .rule(
            Rule::quoted(
                "self.type != 'Exact' || !(self.value.startsWith(' ') || self.value.endsWith(' '))",
                "self.value",
                SPACE_AROUND_VALUE,
            )
            .on(".value"),
        );
}

fn grpc_schema(grpc: &mut SchemaField<'_>) {
    for (field, format) in GRPC_FIELDS {
        grpc.at(field).set("maxLength", MAX_GRPC_NAME);
        let value = format!("self.{field}");
        let is_right = format.cel(&value);
        let rule = format!("self.type != 'Exact' || !has({value}) || {is_right}");
        let rule = Rule::quoted(rule, &value, format.right);
        grpc.rule(rule.on(&format!(".{field}")));
    }
}
