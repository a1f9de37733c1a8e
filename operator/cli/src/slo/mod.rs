//! `headgate slo`: writes the objectives of policies for tools that track them, and reads policies
//! from such files.
//!
//! The filter counts the responses within each objective, so an indicator is an exact ratio of two
//! counters. A histogram's buckets would only give an estimate.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use headgate_deliver::cluster::ObjectKey;

use crate::draft::service;
use crate::input;
use headgate_command::output::{Output, document};

/// The only supported `apiVersion` of OpenSLO.
const OPENSLO: &str = "openslo/v1";
/// The annotation with the type to which an OpenSLO file's SLO applies.
const TYPE: &str = "headgate.dev/type";
/// The annotation with the response time of a ratio's objective. OpenSLO has no field for it.
const RESPONSE_TIME: &str = "headgate.dev/response-time";
/// The annotation with the field of a type in which the objective stands. `slo` if it is absent.
const FIELD: &str = "headgate.dev/field";
/// The fields of a type that hold objectives: the whole response, its first byte, and each output
/// token after the first.
const FIELDS: [&str; 3] = ["slo", "ttft", "tpot"];

/// Prints the objectives of policies for tools that track objectives, or a policy from such a file.
///
/// Indicators are Prometheus queries of the filter's own counters: the responses within an
/// objective, and all measured responses. Refusals and errors are in neither.
#[derive(Debug, Clone, Args)]
pub(crate) struct SloArgs {
    /// Policy files, folders with such files, or - for standard input
    #[arg(value_name = "FILE|DIR", required_unless_present = "from")]
    pub(crate) files: Vec<PathBuf>,
    /// Format to print
    #[arg(long, value_name = "FORMAT", default_value = "openslo")]
    pub(crate) format: Format,
    /// Print a policy with the latency objectives of an OpenSLO file; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "format"])]
    pub(crate) from: Option<PathBuf>,
    /// Unit of the values of thresholdMetrics, for which OpenSLO has no field
    #[arg(long, value_name = "UNIT", requires = "from")]
    pub(crate) unit: Option<Unit>,
    /// The target Service of the policy [default: default/ and the file's spec.service]
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "from", value_parser = service)]
    pub(crate) service: Option<ObjectKey>,
}

/// A format of objectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// OpenSLO v1: a document of kind SLO for each objective.
    Openslo,
    /// Sloth (prometheus/v1): a document for each policy.
    Sloth,
}

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
}

/// Prints objectives, or a policy.
///
/// # Errors
/// Returns an error for a file that can't be read or has a part that no policy can express, or
/// policies without objectives.
pub(crate) fn run(args: &SloArgs) -> anyhow::Result<Output> {
    if let Some(path) = &args.from {
        let (file, text) = input::text_of(path)?;
        return Ok(Output::ok(read::policy(
            &file,
            &text,
            args.unit,
            args.service.as_ref(),
        )?));
    }
    let reports = input::read(&args.files)?;
    let policies = input::policies(&reports)?;
    let documents = policies.iter().flat_map(|policy| match args.format {
        Format::Openslo => write::openslo(policy),
        Format::Sloth => write::sloth(policy).into_iter().collect(),
    });
    let text = { documents.map(|slo| document(&slo)) }.collect::<anyhow::Result<String>>()?;
    if text.is_empty() {
        bail!("no policy has objectives (spec.types[].slo)");
    }
    Ok(Output::ok(text))
}
