//! `headgate validate`: checks policy files.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::input;
use headgate_api::compile::{configuration, conflicts, precedence, winners};
use headgate_api::plan::{Conflict, TargetRef};
use headgate_api::validate::{FileReport, Problem, ValidPolicy};
use headgate_command::output::{Output, json};

/// Checks policy files and prints every mistake on a line of its own.
#[derive(Debug, Clone, Args)]
pub(crate) struct ValidateArgs {
    /// Policy files, folders with such files, or - for standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) files: Vec<PathBuf>,
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: ReportFormat,
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Text for terminals.
    Text,
    /// JSON.
    Json,
}

/// The report as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    ok: bool,
    policies: Vec<Policy<'a>>,
    problems: Vec<&'a Problem>,
}

#[derive(Debug, Serialize)]
struct Policy<'a> {
    name: String,
    file: &'a str,
    targets: &'a [TargetRef],
    /// The revision that proxies report for this configuration.
    revision: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conflicts: Vec<Conflict>,
    /// Warnings about settings that are valid but seldom intended.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    warnings: &'a [String],
}

/// Checks the files.
///
/// # Errors
/// Returns an error for a file or folder that can't be read.
pub(crate) fn run(args: &ValidateArgs) -> anyhow::Result<Output> {
    let reports = input::read(&args.files)?;
    let valid: Vec<(&str, &ValidPolicy)> = reports
        .iter()
        .flat_map(|r| r.policies().map(|p| (r.file.as_str(), p)))
        .collect();
    let problems: Vec<&Problem> = reports.iter().flat_map(FileReport::all_problems).collect();
    let policies: Vec<&ValidPolicy> = valid.iter().map(|(_, policy)| *policy).collect();
    let winners = winners(&policies);
    let conflicts = |policy: &ValidPolicy| conflicts(precedence(policy), &policy.targets, &winners);
    let ok = problems.is_empty();

    if args.output == ReportFormat::Json {
        let policies = valid.iter().map(|(file, policy)| Policy {
            name: policy.full_name(),
            file,
            targets: &policy.targets,
            revision: configuration(policy, 1).revision,
            conflicts: conflicts(policy),
            warnings: &policy.warnings,
        });
        let report = Report {
            ok,
            policies: policies.collect(),
            problems,
        };
        return Ok(Output::new(json(&report)?, ok));
    }

    let (mut text, mut notes) = (String::new(), String::new());
    // Writing to a String does not fail.
    for problem in &problems {
        let _ = writeln!(text, "{problem}");
    }
    for (file, policy) in &valid {
        for warning in &policy.warnings {
            let _ = writeln!(notes, "warning: {file}: {}: {warning}", policy.full_name());
        }
        for Conflict { target, winner } in conflicts(policy) {
            let _ = writeln!(
                notes,
                "warning: {file}: {} does not apply to {target}, because {winner} does (the oldest \
                 policy of a target applies, then the first by name)",
                policy.full_name()
            );
        }
    }
    if ok {
        let _ = writeln!(text, "ok: {}", count(valid.len(), "policy", "policies"));
    } else {
        let files = reports
            .iter()
            .filter(|r| r.all_problems().next().is_some())
            .count();
        let (problems, files) = (
            count(problems.len(), "problem", "problems"),
            count(files, "file", "files"),
        );
        let _ = writeln!(notes, "error: {problems} in {files}");
    }
    Ok(Output { text, notes, ok })
}

fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
