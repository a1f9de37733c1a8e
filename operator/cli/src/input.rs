//! Policies named on the command line: files, folders, or `-` for standard input.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};

use headgate_core::config::{FilterConfig, StageConfig};

use headgate_api::compile::{Compiled, compile};
use headgate_api::plan::TargetRef;
use headgate_api::validate::{
    Document, FileReport, MAX_FILE, Problem, ValidPolicy, check_file, leave_out_other_apis,
    refuse_duplicates,
};
use headgate_controller::source::read::read_dir;

/// The error of a command that can't continue because of mistakes in files. The text has one line
/// for each mistake.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Mistakes(String);

impl From<Vec<Problem>> for Mistakes {
    fn from(problems: Vec<Problem>) -> Self {
        Self(
            problems
                .iter()
                .map(|problem| format!("{problem}\n"))
                .collect(),
        )
    }
}

/// The policies of one workload.
#[derive(Debug)]
pub(super) struct Selection {
    /// The workload.
    pub(super) target: TargetRef,
    /// The configuration of its proxies.
    pub(super) config: Arc<FilterConfig>,
    /// The configuration of the outbound slots of its proxies. `None` without workflows and class
    /// admission.
    pub(super) outbound: Option<Arc<FilterConfig>>,
    reports: Vec<FileReport>,
}

impl Selection {
    /// Returns the only stage of the configuration.
    pub(super) fn stage(&self) -> anyhow::Result<&StageConfig> {
        let nothing = || format!("nothing is enforced for {}", self.target);
        self.config.stages.first().with_context(nothing)
    }

    /// Returns the file and the document of the policy with this `namespace/name`.
    pub(super) fn document(&self, policy: &str) -> Option<(&str, &Document)> {
        let all = self.reports.iter();
        let mut all = all.flat_map(|r| r.documents.iter().map(|d| (r.file.as_str(), d)));
        all.find(|(_, document)| document.name.as_deref() == Some(policy))
    }
}

/// Reads and compiles `paths`, and selects a workload. Without a given workload, the first one is
/// selected if all have the same configuration. The slots are those of one proxy, if `proxies`
/// proxies share the slots of `endpoints` endpoints.
///
/// # Errors
/// Returns [`Mistakes`], or an error if a file can't be read, or if there are several targets and
/// `workload` names none.
pub(super) fn select(
    paths: &[PathBuf],
    workload: Option<&TargetRef>,
    endpoints: u32,
    proxies: u32,
) -> anyhow::Result<Selection> {
    let reports = read(paths)?;
    let policies = policies(&reports)?;
    let compiled = compile(&policies, endpoints.into(), proxies);
    let (target, config) = choose(&compiled, workload)?;
    Ok(Selection {
        target: target.clone(),
        config: Arc::clone(config),
        outbound: (config.stages.iter()).find_map(|s| compiled.outbound.get(&s.policy).cloned()),
        reports,
    })
}

/// Opens a file, or standard input for `-`. Also returns its name.
pub(super) fn open(path: &Path) -> anyhow::Result<(String, Box<dyn Read>)> {
    if path.as_os_str() == "-" {
        return Ok(("stdin".to_owned(), Box::new(std::io::stdin().lock())));
    }
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("{name}: can't be read"))?;
    Ok((name, Box::new(file)))
}

/// Returns the name and the text of a file, or of standard input for `-`.
pub(super) fn text_of(path: &Path) -> anyhow::Result<(String, String)> {
    let (name, file) = open(path)?;
    let text = std::io::read_to_string(file).with_context(|| format!("{name}: can't be read"))?;
    Ok((name, text))
}

/// Reads a file up to one byte more than is allowed in YAML, so that the check of its size fails if
/// more follows.
pub(super) fn beginning(name: &str, file: &mut impl Read) -> anyhow::Result<Vec<u8>> {
    let mut content = Vec::new();
    { file.take(MAX_FILE as u64 + 1) }
        .read_to_end(&mut content)
        .with_context(|| format!("{name}: can't be read"))?;
    Ok(content)
}

/// Reads and checks all files of `paths`. In a folder, these are only the files that `headgate run`
/// would read.
pub(super) fn read(paths: &[impl AsRef<Path>]) -> anyhow::Result<Vec<FileReport>> {
    let mut reports = Vec::new();
    for path in paths.iter().map(AsRef::as_ref) {
        if path.as_os_str() != "-" && path.is_dir() {
            reports.extend(folder(path)?);
        } else {
            let (name, mut file) = open(path)?;
            reports.push(check_file(&name, &beginning(&name, &mut file)?));
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
            Err(error) => FileReport::failed(&name, Problem::of_file(&name, error)),
        }
    };
    let mut reports: Vec<FileReport> = files.into_iter().map(report).collect();
    leave_out_other_apis(&mut reports);
    Ok(reports)
}

/// Returns the policies of `reports`, or their mistakes.
pub(super) fn policies(reports: &[FileReport]) -> Result<Vec<&ValidPolicy>, Mistakes> {
    let problems = reports.iter().flat_map(FileReport::all_problems);
    let problems: Vec<Problem> = problems.cloned().collect();
    match problems.is_empty() {
        true => Ok(reports.iter().flat_map(FileReport::policies).collect()),
        false => Err(problems.into()),
    }
}

fn choose<'c>(
    compiled: &'c Compiled,
    wanted: Option<&TargetRef>,
) -> anyhow::Result<(&'c TargetRef, &'c Arc<FilterConfig>)> {
    let all = || {
        compiled
            .workloads
            .keys()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    if let Some(wanted) = wanted {
        return compiled.workloads.get_key_value(wanted).with_context(|| {
            format!(
                "--workload {wanted}: no policy targets it; policies target {}",
                all()
            )
        });
    }
    let Some(first) = compiled.workloads.first_key_value() else {
        bail!("no policy given");
    };
    if compiled.workloads.values().any(|other| other != first.1) {
        bail!(
            "policies differ by target; choose one with --workload: {}",
            all()
        );
    }
    Ok(first)
}
