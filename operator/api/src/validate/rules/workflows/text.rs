//! Texts with a meaning outside the policy: ids, keys, names of clusters.

use super::At;
use crate::validate::schema::{Place, Rule};

/// The longest text without another limit, in bytes.
pub(super) const MAX_BYTES: usize = 256;

/// A requirement on a text.
pub(super) struct Text {
    pub(super) what: &'static str,
    /// The longest text, in bytes.
    pub(super) most: usize,
}

impl Text {
    /// Adds a problem if `text` doesn't meet the requirement.
    pub(super) fn check(&self, text: &str, at: &At<'_>) {
        let bytes = text.len();
        let found = match bytes > self.most {
            true => format!("{bytes} bytes"),
            false if text.is_empty() || text.chars().any(char::is_control) => format!("{text:?}"),
            false => return,
        };
        at.add(format!("{found}; {}", self.right()));
    }

    pub(super) fn schema(&self, at: &mut Place<'_>) {
        at.max_length(self.most)
            .rule(Rule::quoted(
                "self.matches('^\\\\P{Cc}+$')",
                "self",
                self.right(),
            ))
            .rule(Rule::words(
                format!("size(bytes(self)) <= {}", self.most),
                &format!("%s bytes; {}", self.right()),
                &["string(size(bytes(self)))"],
            ));
    }

    fn right(&self) -> String {
        let Self { what, most } = self;
        format!("{what}, 1 to {most} bytes without control characters")
    }
}
