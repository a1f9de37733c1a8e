//! The target and the names of a policy that a command writes: `suggest` and `slo`.

use std::collections::BTreeSet;

use headgate_api::validate::is_label;

/// The longest name of a type.
const MAX_NAME: usize = 63;

/// The target of the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub(super) namespace: String,
    pub(super) name: String,
}

pub(super) fn service(text: &str) -> Result<Service, String> {
    match text.split_once('/') {
        Some((namespace, name)) if is_label(namespace) && is_label(name) => Ok(Service {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => Err("a namespace and a name in it, such as default/search".to_owned()),
    }
}

/// Returns `parts` as a name of at most 63 lower case letters, digits and `-`, with a number
/// appended if the name is taken.
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
    // Room for a number.
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
