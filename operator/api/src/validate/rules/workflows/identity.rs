//! `identifyBy`: the places where a request may name its workflow.

use headgate_core::config::{MAX_WORKFLOW_SOURCES, WorkflowSource};

use super::super::Problems;
use super::text::{MAX_BYTES, Text};
use crate::validate::path::Path;
use crate::validate::schema::{self as cel, Place, Rule};
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
const KEY: &str = "a key of W3C Baggage, 1 to 256 letters, digits and any of !#$%&'*+-.^_`|~";
const KEY_IS_OWN: &str = "\"headgate\"; the member of Headgate itself; take another key";
const HEADER: &str = "a header's name, 1 to 256 letters, digits and -";
const HEADER_IS_OWN: &str =
    "one of Headgate's own, which say something else; x-headgate-workflow or a header of yours";
const NO_PATH: &str =
    "missing; the way to a value, such as [envoy.filters.http.jwt_authn, claims, tenant]";
const NAME: Text = Text {
    what: "the name of a filter or a key of its metadata",
    most: MAX_BYTES,
};

/// Returns the sources; by default the member that applications with trace context carry, then
/// Headgate's own header.
pub(super) fn identify(
    given: &[WorkflowIdentity],
    at: &Path,
    problems: &mut Problems,
) -> Vec<WorkflowSource> {
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
    if given.len() > MAX_WORKFLOW_SOURCES {
        let problem = format!("{} sources; at most {MAX_WORKFLOW_SOURCES}", given.len());
        problems.add(at.clone(), problem);
    }
    let mut sources = Vec::new();
    for (i, identity) in given.iter().enumerate() {
        let at = at.item(i);
        let source = source(identity, &at, problems);
        if sources.contains(&source) {
            problems.add(at, TWICE);
        } else if source == WorkflowSource::Type && i + 1 < given.len() {
            problems.add(at, NOT_LAST);
        }
        sources.push(source);
    }
    sources
}

fn source(identity: &WorkflowIdentity, at: &Path, problems: &mut Problems) -> WorkflowSource {
    use WorkflowIdentityType as Kind;
    for (field, is_given, owner) in [
        ("baggage", identity.baggage.is_some(), Kind::Baggage),
        ("header", identity.header.is_some(), Kind::Header),
        ("metadata", identity.metadata.is_some(), Kind::Metadata),
    ] {
        if is_given && identity.kind != owner {
            problems.other_type(at.field(field), identity.kind, owner, None);
        }
    }
    match identity.kind {
        Kind::Baggage => {
            let key = identity.baggage.as_ref().and_then(|b| b.key.as_deref());
            WorkflowSource::Baggage {
                key: baggage_key(key, at.field("baggage.key"), problems),
            }
        }
        Kind::Header => {
            let name = identity.header.as_ref().and_then(|h| h.name.as_deref());
            WorkflowSource::Header {
                name: header(name, at.field("header.name"), problems),
            }
        }
        Kind::Metadata => WorkflowSource::Metadata {
            path: metadata(
                identity.metadata.as_ref(),
                &at.field("metadata.path"),
                problems,
            ),
        },
        Kind::Type => WorkflowSource::Type,
    }
}

fn baggage_key(key: Option<&str>, at: Path, problems: &mut Problems) -> String {
    let key = key.unwrap_or(DEFAULT_KEY);
    // A token of RFC 9110, section 5.6.2, as the recommendation requires (§3.2.1.1).
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if key == OWN_KEY {
        problems.add(at, KEY_IS_OWN);
    } else if !(1..=MAX_BYTES).contains(&key.len()) || !key.bytes().all(token) {
        problems.add(at, format!("{key:?}; {KEY}"));
    }
    key.to_owned()
}

fn header(name: Option<&str>, at: Path, problems: &mut Problems) -> String {
    let name = name.unwrap_or(DEFAULT_HEADER);
    let lower = name.to_ascii_lowercase();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    if !(1..=MAX_BYTES).contains(&name.len()) || !name.bytes().all(plain) {
        problems.add(at, format!("{name:?}; {HEADER}"));
    } else if lower.starts_with(OWN_HEADERS) && lower != DEFAULT_HEADER {
        problems.add(at, format!("{name:?}; {HEADER_IS_OWN}"));
    }
    lower
}

fn metadata(given: Option<&MetadataIdentity>, at: &Path, problems: &mut Problems) -> Vec<String> {
    let Some(MetadataIdentity { path }) = given else {
        problems.add(at.clone(), NO_PATH);
        return Vec::new();
    };
    if !PATH.contains(&path.len()) {
        problems.add(at.clone(), format!("{} names; {}", path.len(), names()));
    }
    for (i, name) in path.iter().enumerate() {
        NAME.check(name, at.item(i), problems);
    }
    path.clone()
}

fn names() -> String {
    format!(
        "{} to {}, that of a filter, then keys",
        PATH.start(),
        PATH.end()
    )
}

pub(super) fn schema(list: &mut Place<'_>) {
    list.atomic()
        .max_items(MAX_WORKFLOW_SOURCES)
        .rule(Rule::text("self.all(s, self.exists_one(t, t == s))", TWICE))
        .rule(Rule::text(
            "size(self) == 0 || self.filter(s, s.type == 'Type').size() != 1 || \
             self[size(self) - 1].type == 'Type'",
            NOT_LAST,
        ));
    let mut source = list.at("[]");
    for (field, owner) in [
        ("baggage", WorkflowIdentityType::Baggage),
        ("header", WorkflowIdentityType::Header),
        ("metadata", WorkflowIdentityType::Metadata),
    ] {
        source.rule(
            Rule::value(
                format!("self.type == '{owner}' || !has(self.{field})"),
                &cel::format("given with type %s", &["self.type"]),
                format!("leave it out or use type {owner}"),
            )
            .on(&format!(".{field}"))
            .forbidden(),
        );
    }
    source.rule(
        Rule::text("self.type != 'Metadata' || has(self.metadata)", NO_PATH)
            .on(".metadata.path")
            .required(),
    );
    source
        .at("baggage.key")
        .max_length(MAX_BYTES)
        .default(DEFAULT_KEY)
        .rule(Rule::quoted(
            "self.matches('^[A-Za-z0-9!#$%&\\'*+.^_`|~-]+$')",
            "self",
            KEY,
        ))
        .rule(Rule::text(format!("self != '{OWN_KEY}'"), KEY_IS_OWN));
    source
        .at("header.name")
        .max_length(MAX_BYTES)
        .default(DEFAULT_HEADER)
        .rule(Rule::quoted(
            "self.matches('^[A-Za-z0-9-]+$')",
            "self",
            HEADER,
        ))
        .rule(Rule::quoted(
            format!(
                "!self.lowerAscii().startsWith('{OWN_HEADERS}') || \
                 self.lowerAscii() == '{DEFAULT_HEADER}'"
            ),
            "self",
            HEADER_IS_OWN,
        ));
    let (least, most) = (PATH.start(), PATH.end());
    source
        .at("metadata.path")
        .atomic()
        .max_items(*most)
        .rule(Rule::value(
            format!("size(self) >= {least}"),
            &cel::format("%s names", &["string(size(self))"]),
            names(),
        ));
    NAME.schema(&mut source.at("metadata.path[]"));
}
