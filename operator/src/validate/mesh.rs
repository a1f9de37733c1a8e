//! Meshes of `headgate simulate`, checked as its workloads are: every mistake with its line, its field and what would be
//! right.

use headgate_simulator::mesh::file::{MeshFile, Plan};

use super::path::Path;
use super::problem::Problem;
use super::workload::{self, depending};
use super::{decode, parse};

/// What `bytes` mean, the content of the file named `file`.
///
/// # Errors
/// All that is wrong with it, in the order of the file.
pub fn mesh(file: &str, bytes: &[u8]) -> Result<Plan, Vec<Problem>> {
    let mut documents = parse(file, bytes).map_err(|problem| vec![problem])?;
    let count = documents.len();
    let (Some(mut node), true) = (documents.pop(), count == 1) else {
        let message = format!("{count} documents; one mesh");
        return Err(vec![Problem::of_file(file, message)]);
    };
    let decoded = decode::decode::<MeshFile>(&mut node, example);
    let problem = |(path, at, message): (Path, _, String)| {
        Problem::at(file, Some(at), path.to_string(), message)
    };
    let mut problems: Vec<Problem> = decoded.problems.into_iter().map(problem).collect();
    let Some(mesh) = decoded.value else {
        return Err(problems);
    };
    let mended: Vec<Path> = decoded.mended.into_iter().map(depending).collect();
    let planned = mesh.plan();
    let findings = planned.as_ref().err().map_or(&[][..], Vec::as_slice);
    problems.extend(workload::problems(file, &node, findings, &mended));
    match planned {
        Ok(plan) if problems.is_empty() => Ok(plan),
        _ => {
            problems.sort_by_key(|p| (p.line, p.column));
            Err(problems)
        }
    }
}

/// What a missing field of a mesh would look like.
fn example(_: &Path, field: &str) -> &'static str {
    match field {
        "name" => "such as checkout",
        "parallelism" => "the slots of each of its processes, such as 10",
        "operations" => "such as [{steps: [{compute: {distribution: Exponential, mean: 20ms}}]}]",
        "steps" => {
            "such as [{compute: {distribution: Constant, mean: 1ms}}, {call: {service: stock}}]"
        }
        "service" => "the name of one of services",
        "clients" => "such as [{rate: 100}] or [{count: 20, think: 1s}]",
        "distribution" => "LogNormal, Exponential, Constant, Hyperexponential, Pareto or Empirical",
        "mean" => "such as 1.16ms",
        "share" => "its part, relative to the others'",
        "upTo" => "the bucket's upper bound, such as 5ms",
        _ => "it has to be given",
    }
}
