//! Checks the files of `headgate simulate`, workloads and meshes, like policies: every mistake is
//! reported with its line, its field and a correct value. The simulator interprets the files. This
//! module adds positions and suggestions.

use headgate_core::config::StageConfig;
use headgate_simulator::mesh;
use headgate_simulator::mesh::file::MeshFile;
use headgate_simulator::trial;
use headgate_simulator::workload::file::{Problem as Finding, Right, WorkloadFile};
use headgate_simulator::workload::recorded::Recording;
use serde::de::DeserializeOwned;

use super::decode::{self, Decoded, Example};
use super::node::Node;
use super::parse;
use super::path::{Path, Segment};
use super::problem::Problem;
use super::suggest::instead_of;

/// Fields whose values decide the meaning of the fields beside them.
const CHOICES: [&str; 2] = ["distribution", "process"];

/// A file as far as it could be read.
#[derive(Debug)]
pub struct Document<T> {
    file: String,
    node: Node,
    value: T,
    /// The rest of the result of decoding.
    decoded: Decoded<T>,
}

impl<T: DeserializeOwned> Document<T> {
    /// Reads `bytes`, the content of the file named `file`, as one `what`.
    fn of(file: &str, bytes: &[u8], what: &str, example: Example) -> Result<Self, Vec<Problem>> {
        let mut documents = parse(file, bytes).map_err(|problem| vec![problem])?;
        let count = documents.len();
        let (Some(mut node), true) = (documents.pop(), count == 1) else {
            let message = format!("{count} documents; 1 {what}");
            return Err(vec![Problem::of_file(file, message)]);
        };
        let mut decoded = decode::decode::<T>(&mut node, example);
        let Some(value) = decoded.value.take() else {
            return Err(decoded.into_problems(file));
        };
        Ok(Self {
            file: file.to_owned(),
            node,
            value,
            decoded,
        })
    }

    /// Returns the simulator's plan, or all mistakes in the order of the file.
    fn planned<P>(mut self, planned: Result<P, Vec<Finding>>) -> Result<P, Vec<Problem>> {
        let findings = planned.as_ref().err().into_iter().flatten();
        let found = findings.map(|finding| (path(&finding.at), message(finding)));
        self.decoded.add(&self.node, found, follows_from);
        match planned {
            Ok(plan) if self.decoded.problems.is_empty() => Ok(plan),
            _ => Err(self.decoded.into_problems(&self.file)),
        }
    }
}

/// A workload file as far as it could be read.
pub type WorkloadDocument = Document<WorkloadFile>;

impl Document<WorkloadFile> {
    /// Reads `bytes`, the content of the file named `file`.
    ///
    /// # Errors
    /// Returns the mistakes of a file that can't be read.
    pub fn read(file: &str, bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        Self::of(file, bytes, "workload", of_workloads)
    }

    /// Returns the access log that the workload names.
    #[must_use]
    pub fn access_log(&self) -> Option<&str> {
        let recorded = self.value.recorded.as_ref()?;
        Some(recorded.access_log.as_str()).filter(|log| !log.is_empty())
    }

    /// Returns the problem of the access log that the workload names.
    #[must_use]
    pub fn bad_access_log(&self, found: &str) -> Problem {
        let path = Path::default().field("recorded.accessLog");
        let at = self.node.position(&path);
        Problem::at(&self.file, Some(at), &path.to_string(), found)
    }

    /// Returns the plan of the workload under `stage`; `recording` is the content of its access
    /// log.
    ///
    /// # Errors
    /// Returns all mistakes, in the order of the file.
    pub fn plan(
        self,
        stage: &StageConfig,
        recording: Option<&Recording>,
    ) -> Result<trial::Plan, Vec<Problem>> {
        let planned = self.value.plan(stage, recording);
        self.planned(planned)
    }
}

/// Returns the plan of a mesh from `bytes`, the content of the file named `file`.
///
/// # Errors
/// Returns all mistakes, in the order of the file.
pub fn mesh(file: &str, bytes: &[u8]) -> Result<mesh::file::Plan, Vec<Problem>> {
    let document = Document::<MeshFile>::of(file, bytes, "mesh", of_meshes)?;
    let planned = document.value.plan();
    document.planned(planned)
}

/// Reads a path such as `types[2].name`.
fn path(text: &str) -> Path {
    let parts = text.split(['.', '[']).filter(|part| !part.is_empty());
    let segment = |part: &str| match part.strip_suffix(']').and_then(|at| at.parse().ok()) {
        Some(at) => Segment::Item(at),
        None => Segment::Field(part.to_owned()),
    };
    Path::new(parts.map(segment).collect())
}

fn message(finding: &Finding) -> String {
    let found = &finding.found;
    match &finding.right {
        Right::Text(right) => format!("{found}; {right}"),
        Right::TypeOfPolicy(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let right = instead_of(found, names.iter().copied());
            let request = "with a request, such as {path: /search}, any name is valid";
            format!("{found:?} is no type of the policy; {right} ({request})")
        }
    }
}

/// Whether a problem at `path` results from the replaced value of `repaired`. Such a problem is a
/// part of that value, or for a choice, a part of the block around the value.
fn follows_from(path: &Path, repaired: &Path) -> bool {
    let block = match repaired.segments() {
        [block @ .., Segment::Field(name)] if CHOICES.contains(&name.as_str()) => block,
        value => value,
    };
    path.segments().starts_with(block)
}

/// Returns an example of a missing field of a workload.
fn of_workloads(_: &Path, field: &str) -> &'static str {
    match field {
        "name" => "the name of a type of the policy; with a request, any name",
        "serviceTime" => "such as {distribution: LogNormal, mean: 20ms, median: 12.5ms}",
        "distribution" => {
            "LogNormal, Exponential, Constant, Hyperexponential, Pareto, Empirical or Recorded"
        }
        "duration" => "the length of the phase, such as 30s",
        "accessLog" => "an access log, by its path from the folder of the workload",
        "count" => "the number of clients, such as 200",
        "least" => "the shortest delay, such as 100ms",
        "most" => "the longest delay, such as 300ms",
        _ => of_either(field),
    }
}

/// Returns an example of a missing field of a mesh.
fn of_meshes(_: &Path, field: &str) -> &'static str {
    match field {
        "name" => "such as checkout",
        "parallelism" => "the slots of each process, such as 10",
        "operations" => "such as [{steps: [{compute: {distribution: Exponential, mean: 20ms}}]}]",
        "steps" => {
            "such as [{compute: {distribution: Constant, mean: 1ms}}, {call: {service: stock}}]"
        }
        "service" => "the name of a service in `services`",
        "clients" => "such as [{rate: 100}] or [{count: 20, think: 1s}]",
        "distribution" => "LogNormal, Exponential, Constant, Hyperexponential, Pareto or Empirical",
        _ => of_either(field),
    }
}

fn of_either(field: &str) -> &'static str {
    match field {
        "share" => "the share, relative to the others",
        "mean" => "such as 1.16ms",
        "upTo" => "the bucket's upper bound, such as 5ms",
        _ => "required",
    }
}
