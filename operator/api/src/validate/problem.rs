//! A mistake as shown to users, on one line.

use std::fmt;

use serde::Serialize;

/// Line and column, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) line: u64,
    pub(crate) column: u64,
}

impl Position {
    pub(super) fn of(location: serde_saphyr::Location) -> Self {
        Self {
            line: location.line(),
            column: location.column(),
        }
    }
}

/// One mistake in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, as the caller named it.
    pub file: String,
    /// The line from 1, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The column in characters from 1, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
    /// The field at fault, such as `spec.types[2].slo.p90`; empty for a whole file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
    /// The value and a correct value.
    pub message: String,
}

impl Problem {
    /// Returns a mistake of a whole file.
    pub fn of_file(file: &str, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            column: None,
            field: String::new(),
            message: message.into(),
        }
    }

    /// Returns a mistake of `field`, which is at `at`.
    pub(crate) fn at(file: &str, at: Option<Position>, field: &str, message: &str) -> Self {
        Self {
            file: file.to_owned(),
            line: at.map(|p| p.line),
            column: at.map(|p| p.column),
            field: escaped(field),
            message: escaped(message),
        }
    }

    /// Returns `FILE:LINE:COLUMN`, as far as known.
    pub fn place(&self) -> String {
        match (self.line, self.column) {
            (Some(line), Some(column)) => format!("{}:{line}:{column}", self.file),
            _ => self.file.clone(),
        }
    }

    /// Returns `FIELD: VALUE; a right value`.
    pub fn text(&self) -> String {
        match self.field.as_str() {
            "" => self.message.clone(),
            field => format!("{field}: {}", self.message),
        }
    }
}

/// Writes `FILE:LINE:COLUMN: FIELD: VALUE; a right value`, without the unknown parts.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place(), self.text())
    }
}

/// Returns `text` with escapes in place of control characters. Names of fields, classes and types
/// may contain line feeds.
fn escaped(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use crate::validate::check_file;

    #[test]
    fn names_with_control_characters_take_escaped() {
        let policy = r#"{"kind": "AdmissionPolicy", "spec": {"a\nb": 1, "c\u001b": 2}}"#;
        let report = check_file("p.yaml", policy.as_bytes());
        let lines: Vec<String> = report.all_problems().map(ToString::to_string).collect();
        assert!(
            lines.iter().any(|line| line.contains(r"spec.a\nb")),
            "{lines:?}"
        );
        assert!(
            !lines.iter().any(|line| line.contains(char::is_control)),
            "{lines:?}"
        );
    }
}
