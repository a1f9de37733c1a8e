//! A finding of a check, and its form for terminals.

use serde::Serialize;

use crate::table::Table;

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Nothing needs to be done.
    Ok,
    /// The check couldn't run, for example because the user lacks rights.
    Skipped,
    /// Something works, but needs attention.
    Warning,
    /// Something doesn't work.
    Error,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The verdict of the check.
    pub verdict: Verdict,
    /// The state that was found.
    pub message: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// A finding with the name of its check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The name of the check.
    pub check: &'static str,
    /// The finding.
    #[serde(flatten)]
    pub finding: Finding,
}

impl Finding {
    fn new(verdict: Verdict, message: impl Into<String>, fix: Option<String>) -> Self {
        Self {
            verdict,
            message: message.into(),
            fix,
        }
    }

    /// Returns the finding that nothing needs to be done.
    #[must_use]
    pub fn ok(message: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, message, None)
    }

    /// Returns the finding of a check that couldn't run.
    #[must_use]
    pub fn skipped(why: impl Into<String>) -> Self {
        Self::new(Verdict::Skipped, why, None)
    }

    /// Returns a warning with its remedy.
    #[must_use]
    pub fn warning(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, message, Some(fix.into()))
    }

    /// Returns an error with its remedy.
    #[must_use]
    pub fn error(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Verdict::Error, message, Some(fix.into()))
    }
}

/// Returns a table with a line for each finding.
#[must_use]
pub fn table(findings: &[Checked]) -> String {
    let mut table = Table::new(["VERDICT", "CHECK", "FINDING"]);
    for Checked { check, finding } in findings {
        let fix = finding.fix.as_ref().map(|fix| format!("; {fix}"));
        let message = format!("{}{}", finding.message, fix.unwrap_or_default());
        let verdict = format!("{:?}", finding.verdict).to_lowercase();
        table.row([verdict, (*check).to_owned(), message]);
    }
    table.or("")
}

/// Returns the first names, and the number of the other names.
#[must_use]
pub fn some(names: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} +{more}"),
    }
}
