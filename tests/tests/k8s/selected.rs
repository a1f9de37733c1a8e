//! An operator that selects namespaces by their labels. It serves a namespace that gets the label
//! and stops when the label is removed, while it continues to serve another one.

use anyhow::Result;
use headgate_tests::kube::ApiServer;
use headgate_tests::operator::{Operator, OperatorOptions};
use headgate_tests::policies::{Cluster, policy, service};
use headgate_tests::wait::until;
use headgate_tests::xds::{Claims, XdsProxy};

const OPERATOR: &str = "operator";
const MOVING: &str = "moving";
const KEPT: &str = "kept";
/// A namespace that never has the label.
const OTHER: &str = "other";

/// The state of the ConfigMap for a policy's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivered {
    Nothing,
    Policy,
    /// The ConfigMap stays without policies, for Pods that mount it.
    WithoutPolicies,
}

fn until_delivered(cluster: &Cluster<'_>, space: &str, expected: Delivered) -> Result<()> {
    let get = [
        "get",
        "configmap",
        "headgate-service-search",
        "--ignore-not-found",
        r"--output=jsonpath=policies={.metadata.annotations.headgate\.dev/policies}",
        "-n",
        space,
    ];
    until(&format!("{space}'s ConfigMap: {expected:?}"), || {
        let found = cluster.kubectl(&get).map_err(|e| format!("{e:#}"))?;
        let delivered = match found.trim() {
            "" => Delivered::Nothing,
            "policies=" => Delivered::WithoutPolicies,
            _ => Delivered::Policy,
        };
        match delivered == expected {
            true => Ok(()),
            false => Err(found),
        }
    })
}

#[test]
fn namespaces_are_served_while_they_have_the_label() -> Result<()> {
    let server = ApiServer::shared();
    server.install_crds()?;
    let cluster = Cluster::new(server);
    for space in [OPERATOR, MOVING, KEPT, OTHER] {
        cluster.kubectl(&["create", "namespace", space])?;
    }
    let label = |space: &str, label: &str| {
        let arguments = ["label", "--overwrite", "namespace", space, label];
        cluster.kubectl(&arguments).map(drop)
    };
    label(KEPT, "watched=yes")?;
    let extra = [
        "--adapters=none",
        "--deliver-config-maps",
        "--namespace-selector=watched in (yes)",
    ];
    let options = OperatorOptions {
        extra: extra.map(str::to_owned).into(),
        ..OperatorOptions::new("headgate-0", OPERATOR)
    };
    for space in [MOVING, KEPT, OTHER] {
        cluster.apply(&service(space, "search", "app=search"))?;
        cluster.apply(&policy(space, "search", "Service", "search", 4))?;
    }
    let operator = Operator::start(server.kubeconfig(), &options)?;
    operator.until_leading()?;
    let proxy = |space: &str| {
        let claims = Claims::pod(&format!("p-{space}"), space, &[("app", "search")]);
        XdsProxy::start(operator.xds(), claims)
    };
    let (kept, moving) = (proxy(KEPT)?, proxy(MOVING)?);
    kept.until_slots(4)?;
    until_delivered(&cluster, KEPT, Delivered::Policy)?;
    until_delivered(&cluster, MOVING, Delivered::Nothing)?;

    for round in 0..2 {
        label(MOVING, "watched=yes")?;
        moving.until_slots(4)?;
        until_delivered(&cluster, MOVING, Delivered::Policy)?;

        label(MOVING, "watched=no")?;
        moving.until("no policy", |config| config.stages.is_empty())?;
        until_delivered(&cluster, MOVING, Delivered::WithoutPolicies)?;
        // The operator continues to watch the other namespace.
        cluster.apply(&policy(KEPT, "search", "Service", "search", 5 + round))?;
        kept.until_slots(5 + round)?;
        until_delivered(&cluster, KEPT, Delivered::Policy)?;
    }
    // A deleted namespace loses its label, so the operator stops serving it.
    label(MOVING, "watched=yes")?;
    moving.until_slots(4)?;
    cluster.kubectl(&["delete", "namespace", MOVING])?;
    cluster.apply(&policy(KEPT, "search", "Service", "search", 9))?;
    kept.until_slots(9)?;
    until_delivered(&cluster, OTHER, Delivered::Nothing)?;
    let untouched = [
        "get",
        "admissionpolicy",
        "search",
        "-n",
        OTHER,
        "-o=jsonpath={.status}",
    ];
    assert_eq!(cluster.kubectl(&untouched)?, "");
    operator.stop().map(drop)
}
