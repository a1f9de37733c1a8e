//! Names of types and classes: what they may be, and that settings by name mean one that exists.

use std::collections::HashMap;

use super::Problems;
use crate::validate::path::Path;
use crate::validate::suggest::closest;

/// Most names that a message lists.
const MAX_LISTED: usize = 8;

/// Notes each of `given`, the keys of the mapping at `at`, that is none of `known`, the names of all `what`s.
pub(super) fn check_known<'k>(
    given: impl IntoIterator<Item = &'k String>,
    what: &str,
    known: &[&str],
    at: &Path,
    problems: &mut Problems,
) {
    for name in given {
        if known.contains(&name.as_str()) {
            continue;
        }
        let right = match closest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("one of {}", listed(known)),
        };
        problems.add(at.key(name), format!("no {what} has this name; {right}"));
    }
}

fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(MAX_LISTED);
    let list = names[..names.len() - more].join(", ");
    match more {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

/// Checks the name at `at`: names appear in names of stats, in headers and in access logs.
pub(super) fn check_name(name: &str, at: &Path, problems: &mut Problems) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if !(1..=63).contains(&name.len())
        || !name.bytes().all(plain)
        || !name.bytes().take(1).all(|b| b.is_ascii_alphanumeric())
    {
        let right = "1 to 63 of a-z, A-Z, 0-9, - and _, with a letter or digit first";
        problems.add(at.clone(), format!("{name:?}; {right}"));
    }
}

/// Checks that the items of the list at `list` have names of their own; `plural` is what they are.
pub(super) fn check_unique(names: &[&str], list: &Path, plural: &str, problems: &mut Problems) {
    let mut first_of: HashMap<&str, usize> = HashMap::new();
    for (i, name) in names.iter().enumerate() {
        if let Some(first) = first_of.get(name) {
            problems.add(
                list.item(i).field("name"),
                format!("{name:?} is also {plural}[{first}]; names of {plural} are unique"),
            );
        } else {
            first_of.insert(name, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(listed(&["a", "b"]), "a, b");
        let names: Vec<String> = (0..10).map(|i| format!("t{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(listed(&names), "t0, t1, t2, t3, t4, t5, t6, t7 and 2 more");
    }
}
