//! Which policy it is and what it applies to: `apiVersion`, `kind`, `metadata` and `spec.targetRefs`.

use super::Problems;
use crate::api::{API_VERSION, AdmissionPolicy, KIND, PolicyTargetRef};
use crate::plan::{TargetKind, TargetRef};
use crate::validate::path::Path;
use crate::validate::suggest::instead_of;

/// Most targets of one policy.
const MAX_TARGETS: usize = 16;

/// Checks `apiVersion`, `kind` and `metadata`.
pub(crate) fn identity(policy: &AdmissionPolicy, problems: &mut Problems) {
    let root = Path::default();
    if policy.api_version != API_VERSION {
        problems.add(
            root.field("apiVersion"),
            format!("{:?}; {API_VERSION}", policy.api_version),
        );
    }
    if policy.kind != KIND {
        problems.add(root.field("kind"), format!("{:?}; {KIND}", policy.kind));
    }
    let metadata = &policy.metadata;
    if let Some(problem) = subdomain_problem(&metadata.name) {
        problems.add(root.field("metadata.name"), problem);
    }
    if let Some(problem) = metadata.namespace.as_deref().and_then(label_problem) {
        problems.add(root.field("metadata.namespace"), problem);
    }
    if let Some(generation) = metadata.generation.filter(|g| *g < 0) {
        problems.add(
            root.field("metadata.generation"),
            format!("{generation}; 0 or more"),
        );
    }
    if let Some(created) = metadata.creation_timestamp.as_deref()
        && !is_timestamp(created)
    {
        problems.add(
            root.field("metadata.creationTimestamp"),
            format!("{created:?}; UTC in whole seconds, such as 2026-01-31T12:00:00Z"),
        );
    }
}

/// Checks `spec.targetRefs`, which are of the policy's own namespace.
pub(crate) fn targets(
    refs: &[PolicyTargetRef],
    namespace: &str,
    problems: &mut Problems,
) -> Vec<TargetRef> {
    let at = Path::default().field("spec.targetRefs");
    if refs.is_empty() || refs.len() > MAX_TARGETS {
        problems.add(
            at.clone(),
            format!("{} targets; 1 to {MAX_TARGETS}", refs.len()),
        );
    }
    let mut targets: Vec<TargetRef> = Vec::new();
    for (i, target) in refs.iter().enumerate() {
        let at = at.item(i);
        let kinds = TargetKind::ALL.map(TargetKind::as_str);
        let kind = match target.kind.parse::<TargetKind>() {
            Ok(kind) => Some(kind),
            Err(_) => {
                let right = instead_of(&target.kind, kinds);
                problems.add(at.field("kind"), format!("{:?}; {right}", target.kind));
                None
            }
        };
        if let Some(kind) = kind
            && target.group != kind.group()
        {
            let (found, right) = (&target.group, kind.group());
            problems.add(
                at.field("group"),
                format!("{found:?}; {right:?} for kind {kind}"),
            );
        }
        let problem = match kind {
            Some(TargetKind::Service) => label_problem(&target.name),
            _ => subdomain_problem(&target.name),
        };
        if let Some(problem) = problem {
            problems.add(at.field("name"), problem);
        }
        let Some(kind) = kind else { continue };
        let target = TargetRef {
            kind,
            namespace: namespace.to_owned(),
            name: target.name.clone(),
        };
        if targets.contains(&target) {
            problems.add(at, format!("{target} is given twice; keep one"));
        } else {
            targets.push(target);
        }
    }
    targets
}

/// Why `name` is no DNS label (RFC 1123), as namespaces and Services need.
fn label_problem(name: &str) -> Option<String> {
    let right = "1 to 63 of a-z, 0-9 and -, with a letter or digit first and last";
    (!is_label(name)).then(|| format!("{name:?}; {right}"))
}

/// Why `name` is no DNS subdomain (RFC 1123), as other objects need.
fn subdomain_problem(name: &str) -> Option<String> {
    let right = "1 to 253 of a-z, 0-9, - and ., with a letter or digit first and last";
    (name.len() > 253 || !name.split('.').all(is_label)).then(|| format!("{name:?}; {right}"))
}

fn is_label(label: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&label.len())
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Whether `text` looks like the API server's timestamps. They sort as texts.
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
