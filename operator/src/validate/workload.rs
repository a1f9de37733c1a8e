//! Workloads of `headgate simulate`, checked as policies are: every mistake with its line, its field and
//! what would be right. What a workload means is the simulator's; here it gets its places and suggestions.

use headgate_core::config::StageConfig;
use headgate_simulator::trial::Plan;
use headgate_simulator::workload::file::{Problem as Finding, Right, Step, WorkloadFile};
use headgate_simulator::workload::recorded::Recording;

use super::node::Node;
use super::path::{Path, Segment};
use super::problem::Problem;
use super::suggest::instead_of;
use super::{decode, parse};

/// Fields that decide what the fields beside them mean.
const CHOICES: [&str; 2] = ["distribution", "process"];

/// A workload file as far as it could be read.
#[derive(Debug)]
pub struct WorkloadDocument {
    file: String,
    node: Node,
    workload: WorkloadFile,
    problems: Vec<Problem>,
    /// Fields whose values are made up.
    mended: Vec<Path>,
}

impl WorkloadDocument {
    /// Reads `bytes`, the content of the file named `file`.
    ///
    /// # Errors
    /// What is wrong with it, when nothing can be made of it.
    pub fn read(file: &str, bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        let mut documents = parse(file, bytes).map_err(|problem| vec![problem])?;
        let count = documents.len();
        let (Some(mut node), true) = (documents.pop(), count == 1) else {
            let message = format!("{count} documents; one workload");
            return Err(vec![Problem::of_file(file, message)]);
        };
        let decoded = decode::decode::<WorkloadFile>(&mut node, example);
        let problem = |(path, at, message): (Path, _, String)| {
            Problem::at(file, Some(at), path.to_string(), message)
        };
        let problems: Vec<Problem> = decoded.problems.into_iter().map(problem).collect();
        let Some(workload) = decoded.value else {
            return Err(problems);
        };
        Ok(Self {
            file: file.to_owned(),
            node,
            workload,
            problems,
            mended: decoded.mended.into_iter().map(depending).collect(),
        })
    }

    /// The access log that it names.
    #[must_use]
    pub fn access_log(&self) -> Option<&str> {
        let recorded = self.workload.recorded.as_ref()?;
        Some(recorded.access_log.as_str()).filter(|log| !log.is_empty())
    }

    /// A mistake of the access log that it names.
    #[must_use]
    pub fn bad_access_log(&self, found: &str) -> Problem {
        let path = Path::default().field("recorded.accessLog");
        let at = self.node.position(&path);
        Problem::at(&self.file, Some(at), path.to_string(), found.to_owned())
    }

    /// What it means under `stage`, where `recording` is what its access log holds.
    ///
    /// # Errors
    /// All that is wrong with it, in the order of the file.
    pub fn plan(
        mut self,
        stage: &StageConfig,
        recording: Option<&Recording>,
    ) -> Result<Plan, Vec<Problem>> {
        let planned = self.workload.plan(stage, recording);
        let findings = planned.as_ref().err().map_or(&[][..], Vec::as_slice);
        let found = problems(&self.file, &self.node, findings, &self.mended);
        self.problems.extend(found);
        match planned {
            Ok(plan) if self.problems.is_empty() => Ok(plan),
            _ => {
                self.problems.sort_by_key(|p| (p.line, p.column));
                Err(self.problems)
            }
        }
    }
}

/// What the simulator found wrong with the file, but for what hangs on a value that was made up: that is no mistake of
/// the user's, and the mistake that led to it is known.
pub(super) fn problems<'a>(
    file: &'a str,
    node: &'a Node,
    findings: &'a [Finding],
    mended: &'a [Path],
) -> impl Iterator<Item = Problem> + 'a {
    findings.iter().filter_map(move |finding| {
        let path = path(finding);
        let made_up = mended.iter().any(|mended| path.is_within(mended));
        let at = Some(node.position(&path));
        (!made_up).then(|| Problem::at(file, at, path.to_string(), message(finding)))
    })
}

fn path(finding: &Finding) -> Path {
    let segment = |step: &Step| match step {
        Step::Field(name) => Segment::Field(name.clone().into_owned()),
        Step::Item(at) => Segment::Item(*at),
    };
    Path::new(finding.at.iter().map(segment).collect())
}

fn message(finding: &Finding) -> String {
    let found = &finding.found;
    match &finding.right {
        Right::Text(right) => format!("{found}; {right}"),
        Right::TypeOfPolicy(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let right = instead_of(found, names.iter().copied());
            let request = "with a request, such as {path: /search}, any name will do";
            format!("{found:?} is no type of the policy; {right} ({request})")
        }
    }
}

/// What a made-up value makes meaningless: of a choice all that stands beside it.
pub(super) fn depending(mended: Path) -> Path {
    match mended.segments() {
        [beside @ .., Segment::Field(name)] if CHOICES.contains(&name.as_str()) => {
            Path::new(beside.to_vec())
        }
        _ => mended,
    }
}

/// What a missing field of a workload would look like.
fn example(_: &Path, field: &str) -> &'static str {
    match field {
        "name" => "that of a type of the policy, or any with a request",
        "serviceTime" => "such as {distribution: LogNormal, mean: 20ms, median: 12.5ms}",
        "distribution" => {
            "LogNormal, Exponential, Constant, Hyperexponential, Pareto, Empirical or Recorded"
        }
        "duration" => "how long the phase lasts, such as 30s",
        "share" => "its part, relative to the others'",
        "mean" => "such as 1.16ms",
        "upTo" => "the bucket's upper bound, such as 5ms",
        "accessLog" => "a file, from the folder of the workload",
        _ => "it has to be given",
    }
}
