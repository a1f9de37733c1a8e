//! The results of a simulation, in a form that all kinds of experiments produce and all outputs can
//! show.
//!
//! Experiments differ: a table of a paper, curves over a load, a time series, a fitted model.
//! Outputs differ, too: a terminal, a program, a page. Without a common form, each experiment would
//! print its own results, and each new output would change all experiments. So an experiment
//! produces a [`Report`], independent of the output:
//!
//! - [`Table`]s with the measured number, the expected number, and the largest accepted difference
//!   ([`Compared`]);
//! - [`Figure`]s: curves over named axes, with reference levels and the paper's values;
//! - [`Claim`]s: the paper's statement, its value, the measured value, and whether the claim holds;
//! - [`ReportRow`]s: machine-readable rows, with the experiment's own fields.
//!
//! [`text`] and [`html`] are the outputs for readers, and a report's serialized form is the output
//! for programs. A report contains nothing about the machine or the time, so that one seed gives
//! one report, byte for byte.

pub mod chart;
mod figure;
pub mod html;
mod row;
mod table;
pub mod text;
pub mod words;

use serde::Serialize;

pub use figure::{Axis, Figure, Level, Scale, Series, Style};
pub use row::ReportRow;
pub use table::{Cell, Compared, Group, Limited, Table, TableRow};

/// The results of a simulation. Its serialized form has the subject, `rows` with one object for
/// each result, and the `claims`, if there are any. `holds` is null for a claim that is not judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The simulated experiment.
    #[serde(flatten)]
    pub subject: Subject,
    /// The title in one line: the paper and the caption, or the policy.
    #[serde(skip)]
    pub title: String,
    /// Names and values that are needed to repeat the run, in reading order.
    #[serde(skip)]
    pub setup: Vec<(String, String)>,
    /// The tables.
    #[serde(skip)]
    pub tables: Vec<Table>,
    /// The figures.
    #[serde(skip)]
    pub figures: Vec<Figure>,
    /// The machine-readable rows.
    pub rows: Vec<ReportRow>,
    /// The claims.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
    /// Caveats about the numbers, one sentence each.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// The simulated experiment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// An experiment of a paper, by name.
    Scenario(String),
    /// A policy under a workload.
    #[serde(untagged)]
    Policy {
        /// The policy, `namespace/name`.
        policy: String,
        /// The workload's file, as given by the user.
        workload: String,
    },
}

/// A statement of the paper and the measured result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Claim {
    /// The statement.
    #[serde(rename = "claim")]
    pub text: String,
    /// The paper's number, or another expectation, with its unit; may be empty.
    #[serde(rename = "expected")]
    pub paper: String,
    /// The measured value, with its unit.
    #[serde(rename = "found")]
    pub ours: String,
    /// Whether the claim holds here. `None` if the claim is shown but not judged, for example
    /// because the model was fitted to it.
    pub holds: Option<bool>,
}

/// The counts of results that were compared with an expectation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The number of cells that were compared with the paper's values.
    pub cells: usize,
    /// The number of cells with a limit.
    pub limits: usize,
    /// The number of judged claims.
    pub claims: usize,
    /// The number of claims and of cells with a paper's value that are only shown.
    pub unjudged: usize,
    /// Descriptions of cells outside their bounds and of claims that don't hold.
    pub failures: Vec<String>,
}

impl Report {
    /// Returns an empty report.
    pub fn new(subject: Subject, title: impl Into<String>) -> Self {
        Self {
            subject,
            title: title.into(),
            setup: Vec::new(),
            tables: Vec::new(),
            figures: Vec::new(),
            claims: Vec::new(),
            notes: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds an entry to the setup.
    pub fn setup(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.setup.push((name.into(), value.into()));
    }

    /// Judges every result that has an expectation.
    pub fn verdict(&self) -> Verdict {
        let mut verdict = Verdict {
            claims: self.claims.iter().filter(|c| c.holds.is_some()).count(),
            unjudged: self.claims.iter().filter(|c| c.holds.is_none()).count(),
            ..Verdict::default()
        };
        for table in &self.tables {
            table.judge(&mut verdict);
        }
        let broken = self
            .claims
            .iter()
            .filter(|claim| claim.holds == Some(false));
        verdict.failures.extend(broken.map(Claim::describe));
        verdict
    }
}

impl Verdict {
    /// Whether all results are as expected.
    pub fn holds(&self) -> bool {
        self.failures.is_empty()
    }

    /// Returns the verdict in one line; `None` if the report has no expectations.
    pub fn summary(&self) -> Option<String> {
        let failed = self.failures.len();
        let (all, what) = match (self.cells, self.claims, self.limits) {
            (0, 0, 0) => return self.shown(),
            (cells, 0, 0) => (cells, "cells agree with the paper within their bounds"),
            (0, claims, 0) => (claims, "claims hold"),
            (0, 0, limits) => (limits, "objectives are met"),
            (cells, claims, limits) => (cells + claims + limits, "results are as expected"),
        };
        let shown = self.shown().map(|shown| format!("; {shown}"));
        let shown = shown.unwrap_or_default();
        Some(match failed {
            0 => format!("all {all} {what}{shown}"),
            some => format!("{} of {all} {what}{shown}; the others:", all - some),
        })
    }

    fn shown(&self) -> Option<String> {
        (self.unjudged > 0).then(|| format!("{} shown for comparison, not judged", self.unjudged))
    }
}

impl Claim {
    /// Returns the statement with the measured value and the expected value.
    pub fn describe(&self) -> String {
        match self.paper.as_str() {
            "" => format!("{}: {}", self.text, self.ours),
            expected => format!("{}: {} (expected: {expected})", self.text, self.ours),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_after_what_was_simulated_and_claims_only_where_there_are_some() {
        let mut report = Report::new(Subject::Scenario("bouncer-table3".into()), "Title");
        report.rows.push(
            ReportRow::new()
                .with("strategy", "Bouncer")
                .with("factor", 1.5),
        );
        let compact = |report: &Report| {
            let text = serde_json::to_string_pretty(report).unwrap();
            text.split_whitespace().collect::<String>()
        };
        assert_eq!(
            compact(&report),
            r#"{"scenario":"bouncer-table3","rows":[{"strategy":"Bouncer","factor":1.5}]}"#
        );
        report.subject = Subject::Policy {
            policy: "default/search".into(),
            workload: "w.yaml".into(),
        };
        report.rows.clear();
        report.claims.push(Claim {
            text: "a".into(),
            paper: String::new(),
            ours: "b".into(),
            holds: Some(true),
        });
        assert_eq!(
            compact(&report),
            r#"{"policy":"default/search","workload":"w.yaml","rows":[],"claims":[{"claim":"a","expected":"","found":"b","holds":true}]}"#
        );
    }
}
