//! The target and the names in a policy that `headgate suggest` or `headgate slo` writes.

use std::collections::BTreeSet;

use headgate_api::validate::is_label;
use headgate_deliver::cluster::ObjectKey;

/// The greatest length of a type's name, in characters.
const MAX_NAME: usize = 63;

/// Parses the target Service of a policy, `namespace/name`.
pub(super) fn service(text: &str) -> Result<ObjectKey, String> {
    let is_right = |key: &ObjectKey| is_label(&key.namespace) && is_label(&key.name);
    let key = text.parse::<ObjectKey>().ok().filter(is_right);
    key.ok_or_else(|| "a namespace and a name in it, such as default/search".to_owned())
}

/// The group and kind of a target Service.
pub(super) const SERVICE: &str = "group: \"\", kind: Service";

/// Returns the beginning of a dry-run policy, up to its target. `target` is the target's group and
/// kind.
pub(super) fn head(namespace: &str, name: &str, target: &str) -> String {
    let (namespace, name) = (written(namespace), written(name));
    format!(
        "apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  mode: DryRun        # decides and counts, but refuses no request; remove it when the counts are \
         as expected
  targetRefs:
  - {{{target}, name: {name}}}
"
    )
}

/// Returns a type of the policy. `comment` follows the name on its line. A type without a `rule` is
/// for all other requests. `objectives` is a mapping of percentiles for each of the fields `slo`,
/// `ttft` and `tpot` that is given.
pub(super) fn kind(
    name: &str,
    comment: &str,
    rule: Option<&str>,
    objectives: &[(&str, String)],
) -> String {
    let matches = rule.map(|rule| format!("    matches:\n    - {rule}\n"));
    let matches = matches.unwrap_or_default();
    let objectives: String = { objectives.iter() }
        .map(|(field, percentiles)| format!("    {field}: {percentiles}\n"))
        .collect();
    format!(
        "  - name: {}{comment}\n{matches}{objectives}",
        written(name)
    )
}

/// Returns a name in YAML, in quotes if it would be another type without them, like `no` or `20`.
fn written(name: &str) -> String {
    let yaml = serde_saphyr::to_string(&name);
    yaml.as_deref().unwrap_or(name).trim_end().to_owned()
}

/// Returns `parts` as a name of at most 63 lower case letters, digits and `-`. A number is appended
/// if the name is taken. The name is added to `taken`.
pub(super) fn free_name(
    parts: impl IntoIterator<Item = impl AsRef<str>>,
    taken: &mut BTreeSet<String>,
) -> String {
    let mut name = String::new();
    for part in parts {
        for c in part.as_ref().chars() {
            if c.is_ascii_alphanumeric() {
                name.push(c.to_ascii_lowercase());
            } else if !name.is_empty() && !name.ends_with('-') {
                name.push('-');
            }
        }
        if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    // The truncated name leaves room for a number.
    name.truncate(MAX_NAME - 4);
    let name = match name.trim_end_matches('-') {
        "" => "root".to_owned(),
        name => name.to_owned(),
    };
    let free = |name: &String| !taken.contains(name);
    let numbered = (2..).map(|n| format!("{name}-{n}"));
    let found = std::iter::once(name.clone()).chain(numbered).find(free);
    let found = found.unwrap_or(name);
    taken.insert(found.clone());
    found
}
