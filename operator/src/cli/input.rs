//! Policies named on the command line: files, folders, or `-` for standard input.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::Output;
use crate::compile::{Compiled, compile};
use crate::plan::TargetRef;
use crate::source::read::{read_dir, read_file};
use crate::validate::{FileReport, MAX_FILE, Problem, ValidPolicy, check_file, refuse_duplicates};

/// Reads and checks all files of `paths`; of a folder those that a running `headgate` would read.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<FileReport>> {
    let mut reports = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            let mut content = Vec::new();
            let limited = std::io::stdin().lock().take(MAX_FILE as u64 + 1);
            { limited }
                .read_to_end(&mut content)
                .context("reading standard input failed")?;
            reports.push(check_file("stdin", &content));
        } else if path.is_dir() {
            reports.extend(folder(path)?);
        } else {
            let content =
                read_file(path).with_context(|| format!("{}: can't be read", path.display()))?;
            reports.push(check_file(&path.display().to_string(), &content));
        }
    }
    refuse_duplicates(&mut reports);
    Ok(reports)
}

fn folder(dir: &Path) -> anyhow::Result<Vec<FileReport>> {
    let files = read_dir(dir).map_err(|e| anyhow::anyhow!("{}: {e}", dir.display()))?;
    if files.is_empty() {
        bail!("{}: holds no *.yaml, *.yml or *.json file", dir.display());
    }
    let report = |(path, content): (PathBuf, Result<Vec<u8>, String>)| {
        let name = path.display().to_string();
        match content {
            Ok(content) => check_file(&name, &content),
            Err(error) => FileReport {
                problems: vec![Problem {
                    file: name.clone(),
                    line: None,
                    column: None,
                    field: String::new(),
                    message: error,
                }],
                file: name,
                documents: Vec::new(),
            },
        }
    };
    Ok(files.into_iter().map(report).collect())
}

/// The policies of `reports`, or what to print when there are mistakes.
pub(super) fn policies(reports: &[FileReport]) -> Result<Vec<&ValidPolicy>, Output> {
    let problems: String = reports.iter().flat_map(FileReport::all_problems).fold(
        String::new(),
        |mut text, problem| {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{problem}");
            text
        },
    );
    if problems.is_empty() {
        return Ok(reports.iter().flat_map(FileReport::policies).collect());
    }
    Err(Output {
        text: String::new(),
        notes: problems,
        ok: false,
    })
}

/// The target that is meant: the one asked for, or the only one that makes a difference.
pub(super) fn target<'c>(
    compiled: &'c Compiled,
    wanted: Option<&TargetRef>,
) -> anyhow::Result<&'c TargetRef> {
    let all = || {
        compiled
            .workloads
            .keys()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(wanted) = wanted {
        let found = compiled
            .workloads
            .get_key_value(wanted)
            .map(|(target, _)| target);
        return found.with_context(|| {
            format!(
                "--workload {wanted}: no policy targets it; policies target {}",
                all()
            )
        });
    }
    let Some((first, config)) = compiled.workloads.first_key_value() else {
        bail!("no policy given");
    };
    if compiled.workloads.values().any(|other| other != config) {
        bail!(
            "policies differ by target; choose one with --workload: {}",
            all()
        );
    }
    Ok(first)
}

/// Compiles policies of files, where nobody knows of endpoints.
pub(super) fn compiled(policies: &[&ValidPolicy]) -> Compiled {
    compile(policies, |_| 1)
}
