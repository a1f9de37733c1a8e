//! Checks the files of `headgate simulate`, workloads and meshes, like policies: every mistake is
//! reported with its line, its field and a correct value. The simulator interprets the files, and
//! [`Parsed`] adds positions and suggestions.

use headgate_core::config::StageConfig;
use headgate_simulator::mesh;
use headgate_simulator::mesh::file::MeshFile;
use headgate_simulator::trial;
use headgate_simulator::workload::file::{Problem as Finding, Right, WorkloadFile};
use headgate_simulator::workload::recorded::Recording;

use headgate_api::validate::{Parsed, Problem, instead_of};

/// Fields whose values decide the meaning of the fields beside them.
const CHOICES: [&str; 2] = ["distribution", "process"];

/// A workload file as far as it could be read.
#[derive(Debug)]
pub struct WorkloadDocument(Parsed<WorkloadFile>);

impl WorkloadDocument {
    /// Reads `bytes`, the content of the file named `file`.
    ///
    /// # Errors
    /// Returns the mistakes of a file that can't be read.
    pub fn read(file: &str, bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        Parsed::read(file, bytes, "workload", of_workloads).map(Self)
    }

    /// Returns the access log that the workload names.
    pub(super) fn access_log(&self) -> Option<&str> {
        let recorded = self.0.value().recorded.as_ref()?;
        Some(recorded.access_log.as_str()).filter(|log| !log.is_empty())
    }

    /// Returns the problem of the access log that the workload names.
    pub(super) fn bad_access_log(&self, found: &str) -> Problem {
        self.0.problem("recorded.accessLog", found)
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
        let planned = self.0.value().plan(stage, recording);
        self.0.checked(described(planned), &CHOICES)
    }
}

/// Returns the plan of a mesh from `bytes`, the content of the file named `file`.
///
/// # Errors
/// Returns all mistakes, in the order of the file.
pub(super) fn mesh_plan(file: &str, bytes: &[u8]) -> Result<mesh::file::Plan, Vec<Problem>> {
    let document = Parsed::<MeshFile>::read(file, bytes, "mesh", of_meshes)?;
    let planned = document.value().plan();
    document.checked(described(planned), &CHOICES)
}

/// Returns each finding as its path and its message.
fn described<P>(planned: Result<P, Vec<Finding>>) -> Result<P, Vec<(String, String)>> {
    let described = |finding: &Finding| (finding.at.clone(), message(finding));
    planned.map_err(|findings| findings.iter().map(described).collect())
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

/// Returns an example of a missing field of a workload.
fn of_workloads(field: &str) -> &'static str {
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
fn of_meshes(field: &str) -> &'static str {
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
