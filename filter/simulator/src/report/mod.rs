//! What a simulation found, in a form that every kind of experiment can fill and every output can show.
//!
//! Experiments differ: a table of a paper, curves over a load, a time series, a fitted model. Outputs
//! differ, too: a terminal, a program, a page. Without a form between the two, each experiment would
//! print for itself, and each new output would touch all of them. So an experiment makes a [`Report`],
//! and knows nothing of how it looks:
//!
//! - [`Table`]s with the number that was expected beside the one that was found, and how far they may be
//!   apart ([`Compared`]);
//! - [`Figure`]s: curves, steps or points over named axes, with reference levels and what the paper has;
//! - [`Claim`]s: what the paper says in words, what it has, what was found, and whether it holds;
//! - [`Record`]s: the rows for programs, with whatever fields the experiment has.
//!
//! [`text`], [`json`] and [`html`] show it. A report holds nothing of the machine or the moment, so that
//! one seed gives one report, byte for byte.

pub mod chart;
mod figure;
pub mod html;
pub mod json;
mod record;
mod table;
pub mod text;
pub mod words;

pub use figure::{Axis, Figure, Level, Point, Scale, Series, Style};
pub use record::{Record, Value};
pub use table::{Cell, Compared, Group, Limited, Table, TableRow};

/// What a simulation found.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What was simulated.
    pub subject: Subject,
    /// One line: the paper and the caption, or the policy.
    pub title: String,
    /// What a reader must know to repeat it: names and values, in the order in which they are read.
    pub setup: Vec<(String, String)>,
    /// Numbers.
    pub tables: Vec<Table>,
    /// Curves.
    pub figures: Vec<Figure>,
    /// What was to be shown.
    pub claims: Vec<Claim>,
    /// What to know before believing the numbers, a sentence each.
    pub notes: Vec<String>,
    /// The rows for programs.
    pub rows: Vec<Record>,
}

/// What was simulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// An experiment of a paper, by name.
    Scenario(String),
    /// A policy under a workload.
    Policy {
        /// `namespace/name`.
        policy: String,
        /// The workload's file, as it was named.
        workload: String,
    },
}

/// Something that the paper says, held against what was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The sentence.
    pub text: String,
    /// The paper's number, or what else is expected, with its unit; empty where there is none.
    pub paper: String,
    /// What was found, with its unit.
    pub ours: String,
    /// Whether it holds here; `None` for one that is shown and not judged, because the model was made to fit it.
    pub holds: Option<bool>,
}

/// How much of a report is as expected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Cells that were held against the paper's.
    pub cells: usize,
    /// Cells that have a limit.
    pub limits: usize,
    /// Claims that are judged.
    pub claims: usize,
    /// Cells beside the paper's and claims that are only shown.
    pub unjudged: usize,
    /// Cells outside of their bounds and claims that don't hold, in words.
    pub failures: Vec<String>,
}

impl Report {
    /// An empty report.
    #[must_use]
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

    /// Adds a line of the setup.
    pub fn setup(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.setup.push((name.into(), value.into()));
    }

    /// Holds everything that was expected against what was found.
    #[must_use]
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
    /// Whether all is as expected.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.failures.is_empty()
    }

    /// In one line; `None` when there was nothing to hold against.
    #[must_use]
    pub fn summary(&self) -> Option<String> {
        let failed = self.failures.len();
        let (all, what) = match (self.cells, self.claims, self.limits) {
            (0, 0, 0) => return self.shown(),
            (cells, 0, 0) => (
                cells,
                "cells are as the paper has them, within their bounds",
            ),
            (0, claims, 0) => (claims, "claims hold"),
            (0, 0, limits) => (limits, "objectives are met"),
            (cells, claims, limits) => (cells + claims + limits, "results are as expected"),
        };
        let shown = self.shown().map(|shown| format!("; {shown}"));
        let shown = shown.unwrap_or_default();
        Some(match failed {
            0 => format!("all {all} {what}{shown}"),
            some => format!("{} of {all} {what}{shown}; not these:", all - some),
        })
    }

    fn shown(&self) -> Option<String> {
        (self.unjudged > 0)
            .then(|| format!("{} shown beside the paper's, not judged", self.unjudged))
    }
}

impl Claim {
    /// The same, only shown: the model was made to fit it.
    #[must_use]
    pub fn not_judged(self) -> Self {
        Self {
            holds: None,
            ..self
        }
    }

    /// The sentence, our number and the expected one.
    #[must_use]
    pub fn describe(&self) -> String {
        match self.paper.as_str() {
            "" => format!("{}: {}", self.text, self.ours),
            expected => format!("{}: {} (expected: {expected})", self.text, self.ours),
        }
    }
}
