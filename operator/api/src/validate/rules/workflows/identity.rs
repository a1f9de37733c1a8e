//! `identifyBy`: the places where a request may name its workflow.

use headgate_core::config::{MAX_WORKFLOW_SOURCES, WorkflowSource};

use super::super::requirement::When::{Any, Given, Is, Not};
use super::super::requirement::{REQUIRED, Rules, hold, only};
use super::super::{At, By, Field, Format, Table};
use super::MAX_BYTES;
use crate::validate::rules::schema::{self as cel, Rule, SchemaField};
use crate::{MetadataIdentity, WorkflowIdentity, WorkflowIdentityType};

/// The number of names in the path of a value in metadata: a namespace and at least one key.
const PATH: std::ops::RangeInclusive<usize> = 2..=8;
const DEFAULT_KEY: &str = "workflow";
const DEFAULT_HEADER: &str = "x-headgate-workflow";
/// The key of Headgate's own member of the baggage.
const OWN_KEY: &str = "headgate";
const OWN_HEADERS: &str = "x-headgate-";
const TWICE: &str = "given twice; keep one";
const NOT_LAST: &str = "Type; every request has one, so nothing after it is reached; put it last";
/// A token (RFC 9110, section 5.6.2), as the W3C recommendation requires (§3.2.1.1).
static KEY: Format = Format::new(
    MAX_BYTES,
    "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
    "a key of W3C Baggage, 1 to 256 letters, digits and any of !#$%&'*+-.^_`|~",
);
const KEY_IS_OWN: &str = "\"headgate\"; Headgate's own member; use another key";
static HEADER: Format = Format::new(
    MAX_BYTES,
    "^[A-Za-z0-9-]+$",
    "a header's name, 1 to 256 letters, digits and -",
);
const HEADER_IS_OWN: &str =
    "one of Headgate's, with another meaning; x-headgate-workflow or a header of yours";
const NO_PATH: &str =
    "missing; the path to a value, such as [envoy.filters.http.jwt_authn, claims, tenant]";
pub(in crate::validate::rules) static FIELDS: Table = fields! {
    "" => Field::List(MAX_WORKFLOW_SOURCES, "sources", By::Nothing),
    "[].baggage.key" => Field::Text(&KEY),
    "[].header.name" => Field::Text(&HEADER),
    "[].metadata.path" => Field::List(*PATH.end(), "names", By::Nothing),
    "[].metadata.path[]" => Field::Free("the name of a filter or a key of its metadata", MAX_BYTES),
};
pub(in crate::validate::rules) static REQUIREMENTS: Rules = fields! {
    "" => only!("baggage", "type", "Baggage"),
    "" => only!("header", "type", "Header"),
    "" => only!("metadata", "type", "Metadata"),
    "" => hold("metadata.path", Any(&[Not(&Is("type", "Metadata")), Given("metadata")]), NO_PATH)
        .reason(REQUIRED),
};

/// Returns the sources; by default the member that applications with trace context carry, then
/// Headgate's own header.
pub(super) fn identify(given: &[WorkflowIdentity], at: &At<'_>) -> Vec<WorkflowSource> {
    if given.is_empty() {
        return vec![
            WorkflowSource::Baggage {
                key: DEFAULT_KEY.to_owned(),
            },
            WorkflowSource::Header {
                name: DEFAULT_HEADER.to_owned(),
            },
        ];
    }
    at.count(given.len());
    let mut sources = Vec::new();
    for (i, identity) in given.iter().enumerate() {
        let at = at.item(i);
        let source = source(identity, &at);
        if sources.contains(&source) {
            at.add(TWICE);
        } else if source == WorkflowSource::Type && i + 1 < given.len() {
            at.add(NOT_LAST);
        }
        sources.push(source);
    }
    sources
}

fn source(identity: &WorkflowIdentity, at: &At<'_>) -> WorkflowSource {
    use WorkflowIdentityType as Kind;
    match identity.kind {
        Kind::Baggage => {
            let key = identity.baggage.as_ref().and_then(|b| b.key.as_deref());
            WorkflowSource::Baggage {
                key: baggage_key(key, &at.field("baggage.key")),
            }
        }
        Kind::Header => {
            let name = identity.header.as_ref().and_then(|h| h.name.as_deref());
            WorkflowSource::Header {
                name: header(name, &at.field("header.name")),
            }
        }
        Kind::Metadata => WorkflowSource::Metadata {
            path: metadata(identity.metadata.as_ref(), &at.field("metadata.path")),
        },
        Kind::Type => WorkflowSource::Type,
    }
}

fn baggage_key(key: Option<&str>, at: &At<'_>) -> String {
    let key = key.unwrap_or(DEFAULT_KEY);
    if at.text(key) && key == OWN_KEY {
        at.add(KEY_IS_OWN);
    }
    key.to_owned()
}

fn header(name: Option<&str>, at: &At<'_>) -> String {
    let name = name.unwrap_or(DEFAULT_HEADER);
    let lower = name.to_ascii_lowercase();
    if at.text(name) && lower.starts_with(OWN_HEADERS) && lower != DEFAULT_HEADER {
        at.add(format!("{name:?}; {HEADER_IS_OWN}"));
    }
    lower
}

fn metadata(given: Option<&MetadataIdentity>, at: &At<'_>) -> Vec<String> {
    let Some(MetadataIdentity { path }) = given else {
        return Vec::new();
    };
    if !PATH.contains(&path.len()) {
        at.add(format!("{} names; {}", path.len(), names()));
    }
    for (i, name) in path.iter().enumerate() {
        at.item(i).text(name);
    }
    path.clone()
}

fn names() -> String {
    format!("{} to {}, a filter's, then keys", PATH.start(), PATH.end())
}

pub(super) fn schema(list: &mut SchemaField<'_>) {
    list.rule(Rule::text("self.all(s, self.exists_one(t, t == s))", TWICE))
        .rule(Rule::text(
            "size(self) == 0 || self.filter(s, s.type == 'Type').size() != 1 || \
             self[size(self) - 1].type == 'Type'",
            NOT_LAST,
        ));
    let mut source = list.at("[]");
    source
        .at("baggage.key")
        .set("default", DEFAULT_KEY)
        .rule(Rule::text(format!("self != '{OWN_KEY}'"), KEY_IS_OWN));
    source
        .at("header.name")
        .set("default", DEFAULT_HEADER)
        .rule(Rule::quoted(
            format!(
                "!self.lowerAscii().startsWith('{OWN_HEADERS}') || \
                 self.lowerAscii() == '{DEFAULT_HEADER}'"
            ),
            "self",
            HEADER_IS_OWN,
        ));
    source.at("metadata.path").rule(Rule::value(
        format!("size(self) >= {}", PATH.start()),
        &cel::format("%s names", &["string(size(self))"]),
        names(),
    ));
}
