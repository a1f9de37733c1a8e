//! Rules for the policy's identity and targets: `apiVersion`, `kind`, `metadata` and
//! `spec.targetRefs`.

use super::At;
use crate::plan::{TargetKind, TargetRef};
use crate::validate::schema::{self as cel, Place, Rule, some};
use crate::validate::suggest::instead_of;
use crate::{API_VERSION, AdmissionPolicy, KIND, PolicyTargetRef};

/// The most targets of one policy.
const MAX_TARGETS: usize = 16;
/// The most labels of one target.
const MAX_LABELS: usize = 16;
const MAX_NAME: usize = 253;
const LABEL: &str = "1 to 63 of a-z, 0-9 and -, with a letter or digit first and last";
const SUBDOMAIN: &str = "1 to 253 of a-z, 0-9, - and ., with a letter or digit first and last";
/// The same formats as regular expressions.
const LABEL_OF_DNS: &str = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?";
const SUBDOMAIN_TEXT: &str =
    "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*";
const LABEL_TEXT: &str = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";
const NO_NAME: &str = "missing; every object, type and header has a name";
const NAME_OF_PODS: &str = "given with kind Pod; leave it out, Pods are found by matchLabels";
const LABELS_OF_OTHERS: &str = "leave it out or use kind Pod";
const SECTION_OF_OTHERS: &str = "leave it out or use kind Gateway, of which it is a listener";
const NO_LABELS: &str = "none; 1 to 16 labels, such as {app: search}";
const LABEL_KEY: &str = "1 to 63 of a-z, A-Z, 0-9, -, _ and ., with a letter or digit first and \
                         last, after a DNS name and / or nothing";
const LABEL_VALUE: &str =
    "at most 63 of a-z, A-Z, 0-9, -, _ and ., with a letter or digit first and last";

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
    root.field("metadata.name")
        .add_any(subdomain_problem(&metadata.name));
    let problem = metadata.namespace.as_deref().and_then(label_problem);
    root.field("metadata.namespace").add_any(problem);
    if let Some(generation) = metadata.generation.filter(|g| *g < 0) {
        root.field("metadata.generation")
            .add(format!("{generation}; 0 or more"));
    }
    if let Some(created) = metadata.creation_timestamp.as_deref()
        && !is_timestamp(created)
    {
        root.field("metadata.creationTimestamp").add(format!(
            "{created:?}; UTC in whole seconds, such as 2026-01-31T12:00:00Z"
        ));
    }
}

/// Checks `spec.targetRefs`, which are of the policy's own namespace.
pub(crate) fn targets(refs: &[PolicyTargetRef], namespace: &str, at: &At<'_>) -> Vec<TargetRef> {
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

/// Returns a target that is an object with a name.
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
            Some(TargetKind::Gateway) | None => subdomain_problem(section),
            Some(kind) => Some(format!("given with kind {kind}; {SECTION_OF_OTHERS}")),
        };
        at.field("sectionName").add_any(problem);
    }
    let Some(name) = &target.name else {
        at.field("name").add(NO_NAME);
        return None;
    };
    let problem = match kind {
        Some(TargetKind::Service) => label_problem(name),
        _ => subdomain_problem(name),
    };
    at.field("name").add_any(problem);
    Some(TargetRef {
        kind: kind?,
        namespace: namespace.to_owned(),
        name: name.clone(),
        section: target.section_name.clone(),
    })
}

/// Returns a target that is Pods.
fn pods(target: &PolicyTargetRef, namespace: &str, at: &At<'_>) -> Option<TargetRef> {
    if target.name.is_some() {
        at.field("name").add(NAME_OF_PODS);
    }
    if target.section_name.is_some() {
        let problem = format!("given with kind Pod; {SECTION_OF_OTHERS}");
        at.field("sectionName").add(problem);
    }
    let at = at.field("matchLabels");
    let labels = &target.match_labels;
    if labels.is_empty() {
        at.add(NO_LABELS);
        return None;
    }
    at.at_most(MAX_LABELS, labels.len(), "labels");
    for (key, value) in labels {
        if !is_label_key(key) {
            let problem = format!("{key:?} is no label's key; {LABEL_KEY}");
            at.key(key).add(problem);
        }
        if !value.is_empty() && !is_label_text(value) {
            at.key(key).add(format!("{value:?}; {LABEL_VALUE}"));
        }
    }
    Some(TargetRef::pods(namespace, labels))
}

/// Returns the reason why `name` is no DNS label (RFC 1123), as namespaces and Services need.
fn label_problem(name: &str) -> Option<String> {
    (!is_label(name)).then(|| format!("{name:?}; {LABEL}"))
}

/// Returns the reason why `name` is no DNS subdomain (RFC 1123), as other objects need.
fn subdomain_problem(name: &str) -> Option<String> {
    (!is_subdomain(name)).then(|| format!("{name:?}; {SUBDOMAIN}"))
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= MAX_NAME && name.split('.').all(is_label)
}

/// Whether `key` is a label's key: a name, perhaps after a DNS subdomain and a slash.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_text(name),
        None => is_label_text(key),
    }
}

/// Whether `text` is a non-empty value of a label, or the name in a label's key.
fn is_label_text(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= 63
        && text.bytes().all(inner)
        && ends
            .into_iter()
            .all(|b| b.is_some_and(|b| b.is_ascii_alphanumeric()))
}

/// Whether `label` is a DNS label (RFC 1123), as the names of namespaces and Services are.
#[must_use]
pub fn is_label(label: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&label.len())
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Whether `text` has the form of the API server's timestamps. They sort as texts.
fn is_timestamp(text: &str) -> bool {
    text.len() == 20
        && text
            .bytes()
            .zip("0000-00-00T00:00:00Z".bytes())
            .all(|(found, shape)| match shape {
                b'0' => found.is_ascii_digit(),
                _ => found == shape,
            })
}

pub(super) fn schema(spec: &mut Place<'_>) {
    let core: Vec<String> = TargetKind::ALL
        .into_iter()
        .filter(|kind| kind.group().is_empty())
        .map(|kind| format!("'{kind}'"))
        .collect();
    let group = format!(
        "(self.kind in [{}] ? '' : '{}')",
        core.join(", "),
        TargetKind::Gateway.group()
    );
    let twice = "self.filter(t, self.filter(u, u == t).size() > 1)[0]";
    let named = cel::format(
        "%s %s",
        &[&format!("{twice}.kind"), &format!("{twice}.name")],
    );
    spec.at("targetRefs")
        .atomic()
        .max_items(MAX_TARGETS)
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
    let mut target = spec.at("targetRefs[]");
    target
        .at("kind")
        .values(TargetKind::ALL.map(TargetKind::as_str));
    target.at("group").max_length(MAX_NAME);
    target.at("name").max_length(MAX_NAME);
    target
        .at("sectionName")
        .max_length(MAX_NAME)
        .rule(Rule::quoted(
            format!("self.matches('^{SUBDOMAIN_TEXT}$')"),
            "self",
            SUBDOMAIN,
        ));
    target.at("matchLabels").max_properties(MAX_LABELS);
    target.at("matchLabels{}").max_length(63).rule(Rule::quoted(
        format!("self == '' || self.matches('^{LABEL_TEXT}$')"),
        "self",
        LABEL_VALUE,
    ));
    let key = format!("^({SUBDOMAIN_TEXT}/)?{LABEL_TEXT}$");
    let labels = some("self.matchLabels");
    let is_pod = "self.kind == 'Pod'";
    let named = "self.kind != 'Pod' && has(self.name)";
    target
        .rule(
            Rule::words(
                format!("self.group == {group}"),
                "\"%s\"; \"%s\" for kind %s",
                &["self.group", &group, "self.kind"],
            )
            .on(".group"),
        )
        .rule(
            Rule::text(format!("{is_pod} || has(self.name)"), NO_NAME)
                .on(".name")
                .required(),
        )
        .rule(
            Rule::text(format!("!({is_pod} && has(self.name))"), NAME_OF_PODS)
                .on(".name")
                .forbidden(),
        )
        .rule(
            Rule::quoted(
                format!(
                    "!({named} && self.kind == 'Service') || \
                     self.name.matches('^{LABEL_OF_DNS}$')"
                ),
                "self.name",
                LABEL,
            )
            .on(".name"),
        )
        .rule(
            Rule::quoted(
                format!(
                    "!({named} && self.kind != 'Service') || \
                     self.name.matches('^{SUBDOMAIN_TEXT}$')"
                ),
                "self.name",
                SUBDOMAIN,
            )
            .on(".name"),
        )
        .rule(
            Rule::value(
                format!("{is_pod} || !{labels}"),
                &cel::format("given with kind %s", &["self.kind"]),
                LABELS_OF_OTHERS,
            )
            .on(".matchLabels")
            .forbidden(),
        )
        .rule(
            Rule::value(
                "self.kind == 'Gateway' || !has(self.sectionName)",
                &cel::format("given with kind %s", &["self.kind"]),
                SECTION_OF_OTHERS,
            )
            .on(".sectionName")
            .forbidden(),
        )
        .rule(
            Rule::text(format!("!({is_pod}) || {labels}"), NO_LABELS)
                .on(".matchLabels")
                .required(),
        )
        .rule(
            Rule::words(
                format!("!has(self.matchLabels) || self.matchLabels.all(k, k.matches('{key}'))"),
                &format!("\"%s\" is no label's key; {LABEL_KEY}"),
                &[&format!(
                    "self.matchLabels.filter(k, !k.matches('{key}'))[0]"
                )],
            )
            .on(".matchLabels"),
        );
}
