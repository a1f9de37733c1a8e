//! Rules for the policy's identity and targets: `apiVersion`, `kind`, `metadata` and
//! `spec.targetRefs`.

use super::requirement::When::{Is, Not};
use super::requirement::{Rules, When, forbidden, required};
use super::{At, By, Field, Format, Table};
use crate::target::{TargetKind, TargetRef};
use crate::validate::rules::schema::{self as cel, Rule, SchemaField, some};
use crate::validate::suggest::instead_of;
use crate::{API_VERSION, AdmissionPolicy, KIND, PolicyTargetRef};

/// The largest number of targets of one policy.
const MAX_TARGETS: usize = 16;
/// DNS labels (RFC 1123): the form of names of namespaces and Services.
static LABEL: Format = Format::new(
    63,
    "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
    "1 to 63 of a-z, 0-9 and -, with a letter or digit first and last",
);
/// DNS subdomains (RFC 1123): the form of names of other objects.
static SUBDOMAIN: Format = Format::new(
    253,
    "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$",
    "1 to 253 of a-z, 0-9, - and ., with a letter or digit first and last",
);
static LABEL_KEY: Format = Format::new(
    317,
    "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/)?\
     [A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    "1 to 63 of a-z, A-Z, 0-9, -, _ and ., with a letter or digit first and last, after a DNS name \
     and / or nothing",
);
static LABEL_VALUE: Format = Format::new(
    63,
    "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    "at most 63 of a-z, A-Z, 0-9, -, _ and ., with a letter or digit first and last",
);
/// The form of the API server's timestamps. Timestamps of this form sort as texts.
static TIMESTAMP: Format = Format::new(
    20,
    "^[0-9]{4}(-[0-9]{2}){2}T([0-9]{2}:){2}[0-9]{2}Z$",
    "UTC in whole seconds, such as 2026-01-31T12:00:00Z",
);
pub(super) static FIELDS: Table = fields! {
    "" => Field::List(MAX_TARGETS, "targets", By::Nothing),
    "[].sectionName" => Field::Text(&SUBDOMAIN),
    "[].matchLabels" => Field::Map(16, "labels"),
};
const NO_NAME: &str = "missing; every object, type and header has a name";
const NAME_OF_PODS: &str = "given with kind Pod; leave it out, Pods are found by matchLabels";
const LABELS_OF_OTHERS: &str = "leave it out or use kind Pod";
const SECTION_OF_OTHERS: &str = "leave it out or use kind Gateway, of which it is a listener";
const NO_LABELS: &str = "none; 1 to 16 labels, such as {app: search}";
const POD: When = Is("kind", "Pod");
pub(super) static REQUIREMENTS: Rules = fields! {
    "" => required!("name", Not(&POD), NO_NAME),
    "" => forbidden!("name", Not(&POD), NAME_OF_PODS),
    "" => required!("matchLabels", POD, NO_LABELS),
};

/// Checks `apiVersion`, `kind` and `metadata`.
pub(crate) fn identity(policy: &AdmissionPolicy, root: &At<'_>) {
    if policy.api_version != API_VERSION {
        root.field("apiVersion")
            .add(format!("{:?}; {API_VERSION}", policy.api_version));
    }
    if policy.kind != KIND {
        root.field("kind").add(format!("{:?}; {KIND}", policy.kind));
    }
    let metadata = &policy.metadata;
    let has = |field: &str, text: Option<&String>, format: &'static Format| {
        let problem = text.and_then(|text| Field::Text(format).problem(text));
        root.field(field).add_any(problem);
    };
    has("metadata.name", Some(&metadata.name), &SUBDOMAIN);
    has("metadata.namespace", metadata.namespace.as_ref(), &LABEL);
    let created = metadata.creation_timestamp.as_ref();
    has("metadata.creationTimestamp", created, &TIMESTAMP);
    if let Some(generation) = metadata.generation.filter(|g| *g < 0) {
        root.field("metadata.generation")
            .add(format!("{generation}; 0 or more"));
    }
}

/// Checks `spec.targetRefs`, which are of the policy's own namespace.
pub(super) fn targets(refs: &[PolicyTargetRef], namespace: &str, at: &At<'_>) -> Vec<TargetRef> {
    if refs.is_empty() || refs.len() > MAX_TARGETS {
        at.add(format!("{} targets; 1 to {MAX_TARGETS}", refs.len()));
    }
    let mut targets: Vec<TargetRef> = Vec::new();
    for (i, target) in refs.iter().enumerate() {
        let at = at.item(i);
        let kinds = TargetKind::ALL.map(TargetKind::as_str);
        let kind = match target.kind.parse::<TargetKind>() {
            Ok(kind) => Some(kind),
            Err(_) => {
                let right = instead_of(&target.kind, kinds);
                at.field("kind").add(format!("{:?}; {right}", target.kind));
                None
            }
        };
        if let Some(kind) = kind
            && target.group != kind.group()
        {
            let (found, right) = (&target.group, kind.group());
            at.field("group")
                .add(format!("{found:?}; {right:?} for kind {kind}"));
        }
        let target = match kind {
            Some(TargetKind::Pod) => pods(target, namespace, &at),
            _ => named(target, kind, namespace, &at),
        };
        let Some(target) = target else { continue };
        if targets.contains(&target) {
            let what = match target.kind {
                TargetKind::Pod => "Pod with these labels".to_owned(),
                kind => format!("{kind} {}", target.name),
            };
            at.add(format!("{what} is given twice; keep one"));
        } else {
            targets.push(target);
        }
    }
    targets
}

/// Returns the target of a reference to an object by name.
fn named(
    target: &PolicyTargetRef,
    kind: Option<TargetKind>,
    namespace: &str,
    at: &At<'_>,
) -> Option<TargetRef> {
    if let Some(kind) = kind
        && !target.match_labels.is_empty()
    {
        let problem = format!("given with kind {kind}; {LABELS_OF_OTHERS}");
        at.field("matchLabels").add(problem);
    }
    if let Some(section) = &target.section_name {
        let problem = match kind {
            Some(TargetKind::Gateway) | None => Field::Text(&SUBDOMAIN).problem(section),
            Some(kind) => Some(format!("given with kind {kind}; {SECTION_OF_OTHERS}")),
        };
        at.field("sectionName").add_any(problem);
    }
    let Some(name) = &target.name else {
        return None;
    };
    let format = match kind {
        Some(TargetKind::Service) => &LABEL,
        _ => &SUBDOMAIN,
    };
    at.field("name").add_any(Field::Text(format).problem(name));
    Some(TargetRef {
        kind: kind?,
        namespace: namespace.to_owned(),
        name: name.clone(),
        section: target.section_name.clone(),
    })
}

/// Returns the target of a reference to Pods by their labels.
fn pods(target: &PolicyTargetRef, namespace: &str, at: &At<'_>) -> Option<TargetRef> {
    if target.section_name.is_some() {
        let problem = format!("given with kind Pod; {SECTION_OF_OTHERS}");
        at.field("sectionName").add(problem);
    }
    let at = at.field("matchLabels");
    let labels = &target.match_labels;
    if labels.is_empty() {
        return None;
    }
    at.count(labels.len());
    for (key, value) in labels {
        if !LABEL_KEY.is(key) {
            let problem = format!("{key:?} is no label's key; {}", LABEL_KEY.right);
            at.key(key).add(problem);
        }
        if !value.is_empty() {
            at.key(key)
                .add_any(Field::Text(&LABEL_VALUE).problem(value));
        }
    }
    Some(TargetRef::pods(namespace, labels))
}

/// Whether `label` is a DNS label (RFC 1123), the form of names of namespaces and Services.
pub fn is_label(label: &str) -> bool {
    LABEL.is(label)
}

pub(super) fn schema(targets: &mut SchemaField<'_>) {
    let core: Vec<String> = TargetKind::ALL
        .into_iter()
        .filter(|kind| kind.group().is_empty())
        .map(|kind| format!("'{kind}'"))
        .collect();
    let group = format!(
        "(self.kind in [{}] ? '' : self.kind == '{}' ? '{}' : '{}')",
        core.join(", "),
        TargetKind::InferencePool,
        TargetKind::InferencePool.group(),
        TargetKind::Gateway.group()
    );
    let twice = "self.filter(t, self.filter(u, u == t).size() > 1)[0]";
    let named = cel::format(
        "%s %s",
        &[&format!("{twice}.kind"), &format!("{twice}.name")],
    );
    targets
        .rule(Rule::value(
            "size(self) > 0",
            &cel::format("%s targets", &["string(size(self))"]),
            format!("1 to {MAX_TARGETS}"),
        ))
        .rule(Rule::words(
            "self.all(t, self.exists_one(u, u == t))",
            "%s is given twice; keep one",
            &[&format!(
                "has({twice}.name) ? {named} : 'Pod with these labels'"
            )],
        ));
    let mut target = targets.at("[]");
    target
        .at("kind")
        .set("enum", TargetKind::ALL.map(TargetKind::as_str).to_vec());
    target.at("group").set("maxLength", SUBDOMAIN.most);
    target.at("name").set("maxLength", SUBDOMAIN.most);
    target
        .at("matchLabels{}")
        .set("maxLength", LABEL_VALUE.most)
        .rule(Rule::quoted(
            format!("self == '' || {}", LABEL_VALUE.cel("self")),
            "self",
            LABEL_VALUE.right,
        ));
    let is_key = LABEL_KEY.cel("k");
    let labels = some("self.matchLabels");
    let is_pod = "self.kind == 'Pod'";
    let named = "self.kind != 'Pod' && has(self.name)";
    target.rule(
        Rule::words(
            format!("self.group == {group}"),
            "\"%s\"; \"%s\" for kind %s",
            &["self.group", &group, "self.kind"],
        )
        .on(".group"),
    );
    for (is, format) in [("==", &LABEL), ("!=", &SUBDOMAIN)] {
        let is_right = format.cel("self.name");
        let rule = format!("!({named} && self.kind {is} 'Service') || {is_right}");
        target.rule(Rule::quoted(rule, "self.name", format.right).on(".name"));
    }
    let given = cel::format("given with kind %s", &["self.kind"]);
    let is_gateway = "self.kind == 'Gateway'";
    for (field, rule, right) in [
        (
            ".matchLabels",
            format!("{is_pod} || !{labels}"),
            LABELS_OF_OTHERS,
        ),
        (
            ".sectionName",
            format!("{is_gateway} || !has(self.sectionName)"),
            SECTION_OF_OTHERS,
        ),
    ] {
        target.rule(Rule::value(rule, &given, right).on(field).forbidden());
    }
    target.rule(
        Rule::words(
            format!("!has(self.matchLabels) || self.matchLabels.all(k, {is_key})"),
            &format!("\"%s\" is no label's key; {}", LABEL_KEY.right),
            &[&format!("self.matchLabels.filter(k, !{is_key})[0]")],
        )
        .on(".matchLabels"),
    );
}
