//! Meshes named on the command line.

use std::path::Path;

use anyhow::Context as _;
use headgate_simulator::mesh::study::MeshStudy;

use super::{mistakes, policy_in};
use crate::cli::Output;
use crate::compile::configuration;
use crate::source::read::read_file;
use crate::validate::mesh;

/// The study, or what to print when there are mistakes.
pub(super) fn study(policy: &Path, file: &Path) -> anyhow::Result<Result<MeshStudy, Output>> {
    let policy = match policy_in(policy)? {
        Ok(policy) => policy,
        Err(output) => return Ok(Err(output)),
    };
    // Slots are each service's own, as the mesh has them.
    let config = configuration(&policy, 1);
    let stage = config.stages.first().context("the policy has no stage")?;
    let named = file.display().to_string();
    let content = read_file(file).with_context(|| format!("{named}: can't be read"))?;
    Ok(match mesh(&named, &content) {
        Ok(plan) => Ok(MeshStudy::new(stage, &policy.full_name(), plan, &named)),
        Err(problems) => Err(mistakes(&problems)),
    })
}
