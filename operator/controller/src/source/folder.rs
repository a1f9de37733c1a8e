//! Computes the plan for a folder of policy files, given its present and earlier content.
//!
//! For each file, the last good versions of its policies are kept. A policy whose document becomes
//! invalid stays in force in its last good version. So do all policies of a file that can no longer
//! be parsed as YAML, because it is unknown which of them it still contains. A policy is removed
//! when its file is deleted, or when its file can be parsed and no longer contains it.
//!
//! A file that contains only objects of other APIs is ignored if other files contain policies.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use super::read::Scan;
use headgate_api::compile::{
    Compiled, Winners, compile, conflicts, precedence, precedence_of, winners,
};
use headgate_api::plan::{Conflict, Plan, PolicyState, SourceProblem};
use headgate_api::validate::{
    Document, FileReport, Problem, ValidPolicy, check_file, leave_out_other_apis, refuse_duplicates,
};

/// The policies of a folder and their last good versions.
#[derive(Debug, Default)]
pub struct Folder {
    files: BTreeMap<PathBuf, PolicyFile>,
    /// The reason why the folder can't be read.
    problem: Option<String>,
}

#[derive(Debug)]
struct PolicyFile {
    /// The content, or the reason why it can't be read.
    content: Result<Vec<u8>, String>,
    report: FileReport,
    /// The last good versions of the file's policies.
    good: Vec<ValidPolicy>,
}

impl Folder {
    /// Updates the folder with the result of a scan, and returns the new plan. Returns `None` if
    /// the scan equals the previous one. If the folder can't be read, all its policies stay in
    /// force.
    pub fn update(&mut self, dir: &Path, scan: Scan) -> Option<Plan> {
        let mut changed = false;
        match scan {
            Ok(scan) => {
                changed |= self.problem.take().is_some();
                let known = self.files.len();
                self.files.retain(|path, _| scan.contains_key(path));
                changed |= self.files.len() != known;
                for (path, content) in scan {
                    changed |= self.take_in(path, content);
                }
            }
            Err(problem) => {
                changed |= self.problem.as_ref() != Some(&problem);
                self.problem = Some(problem);
            }
        }
        changed.then(|| self.plan(dir))
    }

    fn take_in(&mut self, path: PathBuf, content: Result<Vec<u8>, String>) -> bool {
        if { self.files.get(&path) }.is_some_and(|known| known.content == content) {
            return false;
        }
        let name = path.display().to_string();
        let report = match &content {
            Ok(bytes) => check_file(&name, bytes),
            Err(problem) => FileReport::failed(&name, Problem::of_file(&name, problem.clone())),
        };
        let good = self.files.remove(&path).map(|f| f.good).unwrap_or_default();
        self.files.insert(
            path,
            PolicyFile {
                content,
                report,
                good,
            },
        );
        true
    }

    fn plan(&mut self, dir: &Path) -> Plan {
        let mut reports: Vec<FileReport> = self.files.values().map(|f| f.report.clone()).collect();
        leave_out_other_apis(&mut reports);
        refuse_duplicates(&mut reports);
        self.keep_last_good(&reports);

        let effective: Vec<&ValidPolicy> = self.files.values().flat_map(|f| &f.good).collect();
        let compiled = compile(&effective, 1, 1);
        let winners = winners(&effective);
        let mut plan = Plan::default();
        plan.problems
            .extend(self.problem.iter().map(|message| SourceProblem {
                source: dir.display().to_string(),
                message: message.clone(),
            }));
        for (file, report) in self.files.values().zip(&reports) {
            describe(&file.good, report, &compiled, &winners, &mut plan);
        }
        plan.policies
            .sort_by(|a, b| (&a.name, &a.source).cmp(&(&b.name, &b.source)));
        plan.workloads = compiled.workloads;
        plan.outbound = compiled.outbound;
        plan
    }

    /// Replaces the last good version of each policy that is valid in `reports`. Keeps the last
    /// good version of a policy whose document is invalid, or whose file is unclear.
    fn keep_last_good(&mut self, reports: &[FileReport]) {
        let valid = reports
            .iter()
            .flat_map(FileReport::policies)
            .map(ValidPolicy::full_name);
        let mut taken: HashSet<String> = valid.collect();
        for (file, report) in self.files.values_mut().zip(reports) {
            let unclear = is_unclear(report);
            let refused: HashSet<&String> = report
                .documents
                .iter()
                .filter(|d| d.policy.is_err())
                .filter_map(|d| d.name.as_ref())
                .collect();
            let kept = std::mem::take(&mut file.good).into_iter().filter(|policy| {
                let name = policy.full_name();
                (unclear || refused.contains(&name)) && taken.insert(name)
            });
            file.good = report.policies().cloned().chain(kept).collect();
        }
    }
}

/// Whether a file has mistakes that can't be attributed to a policy.
fn is_unclear(report: &FileReport) -> bool {
    !report.problems.is_empty()
        || report
            .documents
            .iter()
            .any(|d| d.policy.is_err() && d.name.is_none())
}

/// Adds the policies and problems of one file to `plan`.
fn describe(
    good: &[ValidPolicy],
    report: &FileReport,
    compiled: &Compiled,
    winners: &Winners<'_>,
    plan: &mut Plan,
) {
    let mut described: HashSet<String> = HashSet::new();
    for document in &report.documents {
        let problems = document.policy.as_ref().err();
        let Some(name) = &document.name else {
            plan.problems
                .extend(problems.into_iter().flatten().map(source_problem));
            continue;
        };
        let enforced = good.iter().find(|p| p.full_name() == *name);
        let accepted = problems.map_or(Ok(()), |problems| Err(lines(problems)));
        let document = Some(document);
        plan.policies.push(state(
            name, report, document, enforced, accepted, compiled, winners,
        ));
        described.insert(name.clone());
    }
    plan.problems
        .extend(report.problems.iter().map(source_problem));
    // Adds the last good policies that are missing in the report because the file can no longer be
    // parsed.
    for policy in good {
        let name = policy.full_name();
        if described.insert(name.clone()) {
            let why: Vec<&Problem> = report.all_problems().collect();
            let (accepted, good) = (Err(lines(why)), Some(policy));
            plan.policies.push(state(
                &name, report, None, good, accepted, compiled, winners,
            ));
        }
    }
}

/// Returns the conflicts of a policy that has no last good version.
fn taken(name: &str, document: &Document, winners: &Winners<'_>) -> Vec<Conflict> {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let own = precedence_of(document.created.as_deref(), namespace, name);
    conflicts(own, &document.targets, winners)
}

fn state(
    name: &str,
    report: &FileReport,
    document: Option<&Document>,
    enforced: Option<&ValidPolicy>,
    accepted: Result<(), String>,
    compiled: &Compiled,
    winners: &Winners<'_>,
) -> PolicyState {
    let workloads = enforced
        .into_iter()
        .flat_map(|p| p.targets.iter().filter_map(|t| compiled.workloads.get(t)));
    let own = workloads.filter(|config| config.stages.iter().any(|s| s.policy == name));
    let generation = document.map(|d| d.generation);
    PolicyState {
        conflicts: match (enforced, document) {
            (Some(policy), _) => conflicts(precedence(policy), &policy.targets, winners),
            (None, Some(document)) => taken(name, document, winners),
            (None, None) => Vec::new(),
        },
        revision: own
            .map(|config| config.revision.clone())
            .next()
            .unwrap_or_default(),
        ..PolicyState::new(
            (name.to_owned(), report.file.clone()),
            generation.or(enforced.map(|p| p.generation)).unwrap_or(0),
            document.map_or(&[], |d| &d.targets),
            accepted,
            enforced,
        )
    }
}

fn source_problem(problem: &Problem) -> SourceProblem {
    SourceProblem {
        source: problem.place(),
        message: problem.text(),
    }
}

fn lines<'a>(problems: impl IntoIterator<Item = &'a Problem>) -> String {
    problems
        .into_iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests;
