//! Rules for names of types, classes and headers: their characters, and the existence of names to
//! which settings refer.

use super::{At, Format};
use crate::AdmissionPolicySpec;
use crate::validate::rules::schema::{self as cel, Rule};
use crate::validate::suggest::closest;

/// The largest number of names that a message lists.
const MAX_LISTED: usize = 8;

/// The rule for names, in words.
pub const NAME: &str = "1 to 63 of a-z, A-Z, 0-9, - and _, with a letter or digit first";
/// Names of types and classes, which appear in the names of stats, in headers and in access logs.
pub(super) static NAMES: Format = Format::new(63, "^[A-Za-z0-9][-A-Za-z0-9_]{0,62}$", NAME);
/// Names of headers.
pub(super) static HEADER: Format = Format::new(
    256,
    "^[A-Za-z0-9-]+$",
    "a header's name, letters, digits and -",
);

impl AdmissionPolicySpec {
    pub(super) fn type_names(&self) -> Vec<&str> {
        self.types.iter().map(|t| t.name.as_str()).collect()
    }

    pub(super) fn class_names(&self) -> Vec<&str> {
        self.classes.iter().map(|c| c.name.as_str()).collect()
    }
}

/// Adds a problem for each of `given`, the keys of the mapping at `at`, that isn't in `known`, the
/// names of all `what`s.
pub(super) fn check_known<'k>(
    given: impl IntoIterator<Item = &'k String>,
    what: &str,
    known: &[&str],
    at: &At<'_>,
) {
    for name in given {
        if known.contains(&name.as_str()) {
            continue;
        }
        let right = match closest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("one of {}", listed(known)),
        };
        at.key(name)
            .add(format!("no {what} has this name; {right}"));
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

/// Whether a type or a class may have this name.
pub fn is_name(name: &str) -> bool {
    NAMES.is(name)
}

/// Checks the name of a header, and returns it in lower case.
pub(super) fn header(name: &str, at: &At<'_>) -> String {
    at.text(name);
    name.to_ascii_lowercase()
}

/// Returns the rule that, if `condition` holds, the keys of `mapping` are names of items of `list`,
/// each of which is a `what`.
pub(super) fn all_known(condition: &str, mapping: &str, what: &str, list: &str) -> Rule {
    let names = format!("{list}.map(n, n.name)");
    let rule = format!("!({condition}) || sets.contains({names}, {mapping}.map(k, k))");
    let unknown = format!("{mapping}.filter(k, !{list}.exists(n, n.name == k))[0]");
    // This is the list that [`listed`] returns, written name by name, because joining texts in CEL
    // would be too expensive.
    let mut listed: Vec<String> = (0..MAX_LISTED)
        .map(|i| {
            let words = if i == 0 { "%s" } else { ", %s" };
            let name = cel::format(words, &[&format!("{list}[{i}].name")]);
            format!("size({list}) > {i} ? {name} : ''")
        })
        .collect();
    let more = cel::format(
        " and %s more",
        &[&format!("string(size({list}) - {MAX_LISTED})")],
    );
    listed.push(format!("size({list}) > {MAX_LISTED} ? {more} : ''"));
    let values: Vec<&str> = std::iter::once(&unknown)
        .chain(&listed)
        .map(String::as_str)
        .collect();
    let words = format!(
        "%s: no {what} has this name; one of {}",
        "%s".repeat(listed.len())
    );
    Rule::words(rule, &words, &values)
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
