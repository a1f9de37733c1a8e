//! Texts that come from outside the policy: ids, keys, names of clusters.

use super::Problems;
use crate::validate::path::Path;
use crate::validate::schema::{Place, Rule};

/// Longest of them, bytes.
pub(super) const MAX_BYTES: usize = 256;

/// Notes that `text` is none: `what` it has to be.
pub(super) fn check(text: &str, what: &str, at: Path, problems: &mut Problems) {
    let bytes = text.len();
    let found = match bytes > MAX_BYTES {
        true => format!("{bytes} bytes"),
        false if text.is_empty() || text.chars().any(char::is_control) => format!("{text:?}"),
        false => return,
    };
    problems.add(at, format!("{found}; {}", right(what)));
}

pub(super) fn schema(at: &mut Place<'_>, what: &str) {
    at.max_length(MAX_BYTES)
        .rule(Rule::quoted(
            "self.matches('^\\\\P{Cc}+$')",
            "self",
            right(what),
        ))
        .rule(Rule::words(
            format!("size(bytes(self)) <= {MAX_BYTES}"),
            &format!("%s bytes; {}", right(what)),
            &["string(size(bytes(self)))"],
        ));
}

fn right(what: &str) -> String {
    format!("{what}, 1 to {MAX_BYTES} bytes without control characters")
}
