//! The commands of the pages that need Pods, run on one node as a newcomer would run them.

use anyhow::{Context, Result};
use headgate_tests::docs::commands::ON_A_NODE;
use headgate_tests::docs::walk::walk;
use headgate_tests::kube::Node;
use headgate_tests::kube::node::{can_run, image};

/// Parts of the commands that need a control plane which this node doesn't have.
const OF_PLANES: [&str; 2] = ["get trafficextensions", "get envoyextensionpolicies"];

#[test]
#[ignore = "takes 8 minutes; `scripts/test planes` runs it every night"]
fn every_command_of_a_page_succeeds_on_a_node() -> Result<()> {
    if !can_run()? {
        return Ok(());
    }
    let node = Node::start(&[image("headgate"), image("headgate-backend"), image("envoy")])?;
    for page in ON_A_NODE {
        if page.ends_with("README.md") {
            // Each README creates the namespace itself.
            node.kubectl(&["delete", "namespace", "shop", "--ignore-not-found"])?;
        }
        walk(&node, page, &OF_PLANES).with_context(|| {
            let pods = node.kubectl(&["get", "pods", "--all-namespaces"]);
            pods.unwrap_or_default()
        })?;
    }
    Ok(())
}
