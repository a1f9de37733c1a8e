//! A finding of a check, and its form for terminals.

use serde::Serialize;

use headgate_command::table::Table;

/// The verdict of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Verdict {
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
pub(crate) struct Finding {
    /// The verdict of the check.
    pub(crate) verdict: Verdict,
    /// The state that was found.
    pub(crate) message: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

/// A finding with the name of its check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Checked {
    /// The name of the check.
    pub(crate) check: &'static str,
    /// The finding.
    #[serde(flatten)]
    pub(crate) finding: Finding,
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
    pub(crate) fn ok(message: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, message, None)
    }

    /// Returns the finding of a check that couldn't run.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self::new(Verdict::Skipped, why, None)
    }

    /// Returns a warning with its remedy.
    pub(crate) fn warning(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, message, Some(fix.into()))
    }

    /// Returns an error with its remedy.
    pub(crate) fn error(message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Verdict::Error, message, Some(fix.into()))
    }
}

/// Returns a table with a line for each finding.
pub(crate) fn table(findings: &[Checked]) -> String {
    let mut table = Table::new(["VERDICT", "CHECK", "FINDING"]);
    for Checked { check, finding } in findings {
        let fix = finding.fix.as_ref().map(|fix| format!("; {fix}"));
        let message = format!("{}{}", finding.message, fix.unwrap_or_default());
        let verdict = format!("{:?}", finding.verdict).to_lowercase();
        table.row([verdict, (*check).to_owned(), message]);
    }
    table.or("")
}
