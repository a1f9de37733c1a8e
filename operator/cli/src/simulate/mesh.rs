//! Meshes named on the command line, and the policies of their services.

use std::path::Path;

use anyhow::{Context as _, bail};
use headgate_simulator::mesh::file::Plan;
use headgate_simulator::mesh::study::{Applied, MeshStudy};

use super::document::mesh_plan;
use crate::input::{self, Mistakes};
use headgate_api::compile::configuration;
use headgate_api::plan::TargetKind;
use headgate_api::validate::ValidPolicy;
use headgate_controller::source::read::read_file;

/// Returns the study of the mesh in `file` under `policies`.
pub(super) fn study(policies: &Path, file: &Path) -> anyhow::Result<MeshStudy> {
    let reports = input::read(&[policies])?;
    let found = input::policies(&reports)?;
    let named = file.display().to_string();
    let content = read_file(file).with_context(|| format!("{named}: can't be read"))?;
    let plan = mesh_plan(&named, &content).map_err(Mistakes::from)?;
    let applied = applied(&found, &plan, policies)?;
    Ok(MeshStudy::new(&applied, plan, &named)?)
}

/// Returns the policy that targets each service. If the file has only one policy, and this policy
/// targets none of the services, the policy applies to all services.
fn applied(
    policies: &[&ValidPolicy],
    plan: &Plan,
    file: &Path,
) -> anyhow::Result<Vec<Option<Applied>>> {
    let targets = |policy: &ValidPolicy, service: &str| {
        let mut targets = policy.targets.iter();
        targets.any(|target| target.kind == TargetKind::Service && target.name == service)
    };
    let services = || {
        plan.graph
            .services
            .iter()
            .map(|service| service.name.as_str())
    };
    let file = file.display();
    let everywhere = match policies {
        [policy] => services().all(|service| !targets(policy, service)),
        _ => false,
    };
    let mut all = Vec::new();
    for service in services() {
        let of_service: Vec<&&ValidPolicy> = policies
            .iter()
            .filter(|policy| everywhere || targets(policy, service))
            .collect();
        if let [one, other, ..] = of_service[..] {
            let (one, other) = (one.full_name(), other.full_name());
            bail!(
                "--policy {file}: {one} and {other} both target the Service {service}; at most \
                 one policy per service"
            );
        }
        let applied = of_service.first().map(|policy| {
            // The policy is compiled for one endpoint, because each service has its own slots.
            let stage = configuration(policy, 1).stages.into_iter().next();
            let stage = stage.context("the policy has no stage")?;
            anyhow::Ok(Applied {
                name: policy.full_name(),
                stage,
            })
        });
        all.push(applied.transpose()?);
    }
    if all.iter().all(Option::is_none) {
        bail!(
            "--policy {file}: no policy targets a Service of the mesh, such as {}",
            services().next().unwrap_or_default()
        );
    }
    Ok(all)
}
