//! Workloads named on the command line: YAML, or an access log.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use anyhow::Context as _;
use headgate_core::config::StageConfig;
use headgate_simulator::trial::Plan;
use headgate_simulator::workload::recorded::{Recording, is_access_log};

use super::document::WorkloadDocument;
use crate::input::{Mistakes, beginning};

/// Returns the plan of the file at `path` under `stage`.
pub(super) fn plan(path: &Path, stage: &StageConfig) -> anyhow::Result<Plan> {
    let named = path.display().to_string();
    let mut file = File::open(path).with_context(|| format!("{named}: can't be read"))?;
    let content = beginning(&named, &mut file)?;
    if is_access_log(&content) {
        let log = BufReader::new(content.as_slice().chain(file));
        let recording = Recording::read(log, stage).with_context(|| named.clone())?;
        return Ok(Plan::replay(recording));
    }
    let document = WorkloadDocument::read(&named, &content).map_err(Mistakes::from)?;
    let recording = document.access_log().map(|log| {
        let log = path.parent().unwrap_or(Path::new("")).join(log);
        let bad = |error: String| Mistakes::from(vec![document.bad_access_log(&error)]);
        recording(&log, stage).map_err(bad)
    });
    let recording = recording.transpose()?;
    let plan = document.plan(stage, recording.as_ref());
    Ok(plan.map_err(Mistakes::from)?)
}

fn recording(log: &Path, stage: &StageConfig) -> Result<Recording, String> {
    let named = log.display();
    let file = File::open(log).map_err(|error| format!("{named} can't be read: {error}"))?;
    Recording::read(BufReader::new(file), stage).map_err(|error| format!("{named}: {error}"))
}
