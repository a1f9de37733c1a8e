//! The commands of the pages about Istio and Envoy Gateway, one after the other as a newcomer types
//! them, and then those of *Uninstall*.

use anyhow::{Result, ensure};
use headgate_tests::docs::walk;

use crate::cluster::Cluster;

/// Parts of the commands of *Uninstall* that need sidecars of `headgate inject`.
const OF_SIDECARS: [&str; 3] = ["uninject", "rollout status", "wait pods"];

/// Runs every command of `pages`, which are about a control plane of the cluster, and then removes
/// Headgate. `objects` is the kind of the objects that the operator writes for this control plane,
/// and `other` is the kind for the other control plane.
pub(crate) fn walk(cluster: &Cluster, pages: &[&str], objects: &str, other: &str) -> Result<()> {
    for page in pages {
        walk::walk(&cluster.node, page, &[])?;
    }
    let get = ["get", objects, "--all-namespaces", "--output=name"];
    let written = || cluster.node.kubectl(&get);
    ensure!(!written()?.trim().is_empty(), "no {objects} of the policy");
    let without = [&OF_SIDECARS[..], &[other]].concat();
    walk::walk(&cluster.node, "docs/src/tasks/uninstall.md", &without)?;
    let left = written()?;
    ensure!(left.trim().is_empty(), "{left}");
    Ok(())
}
