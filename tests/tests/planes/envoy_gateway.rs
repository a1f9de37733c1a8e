//! Envoy Gateway, installed by its chart. Its proxies enforce policies in each of its deployment
//! modes, with both filters.

use anyhow::{Context, Result, ensure};
use headgate_tests::kube::node::can_run;
use headgate_tests::kube::programs;
use headgate_tests::wait::until_within;

use crate::cluster::{Cluster, DEV, OLDER, PATIENCE, Side};
use crate::pages;

const SYSTEM: &str = "envoy-gateway-system";
/// Port of the stats of Envoy Gateway's Envoys.
const STATS: u16 = 19001;
/// The difference between a port below 1024 of a Gateway and the port of its Envoys.
const SHIFT: u16 = 10_000;
/// The kind of the delivered objects, as users see it and as kubectl takes it.
const OBJECT: (&str, &str) = ("EnvoyExtensionPolicy", "envoyextensionpolicies");
/// The name under which proxies know the native module.
const NATIVE: &str = "headgate";

/// A way in which Envoy Gateway runs proxies.
#[derive(Debug, Clone, Copy)]
struct Mode {
    /// The mode `ControllerNamespace` runs the proxies in Envoy Gateway's namespace, and
    /// `GatewayNamespace` runs them in that of their Gateway.
    deploy: &'static str,
    /// Whether all Gateways of the class share one set of proxies.
    merged: bool,
    native: bool,
}

const DEFAULT: Mode = Mode {
    deploy: "ControllerNamespace",
    merged: false,
    native: false,
};
const MERGED: Mode = Mode {
    merged: true,
    ..DEFAULT
};
const IN_NAMESPACES: Mode = Mode {
    deploy: "GatewayNamespace",
    ..DEFAULT
};

impl Mode {
    /// Returns the namespace of the proxies of a Gateway in `namespace`.
    fn space(self, namespace: &str) -> &str {
        match self.deploy {
            "GatewayNamespace" => namespace,
            _ => SYSTEM,
        }
    }

    /// Returns the labels of the proxies of the Gateway in `namespace`.
    fn labels(self, namespace: &str) -> String {
        match self.merged {
            true => "gateway.envoyproxy.io/owning-gatewayclass=envoy".to_owned(),
            false => format!(
                "gateway.envoyproxy.io/owning-gateway-name=edge,\
                 gateway.envoyproxy.io/owning-gateway-namespace={namespace}"
            ),
        }
    }
}

#[test]
fn own_proxies_share_a_policys_slots() -> Result<()> {
    run(DEFAULT)
}

#[test]
fn own_proxies_share_a_policys_slots_natively() -> Result<()> {
    run(native(DEFAULT))
}

#[test]
fn merged_gateways_share_proxies_and_no_slots() -> Result<()> {
    run(MERGED)
}

#[test]
fn merged_gateways_share_proxies_and_no_slots_natively() -> Result<()> {
    run(native(MERGED))
}

#[test]
fn proxies_in_their_gateways_namespace_share_a_policys_slots() -> Result<()> {
    run(IN_NAMESPACES)
}

#[test]
fn proxies_in_their_gateways_namespace_share_a_policys_slots_natively() -> Result<()> {
    run(native(IN_NAMESPACES))
}

#[test]
fn the_page_leads_a_newcomer_to_an_enforced_policy() -> Result<()> {
    if !can_run()? || programs::or_skip(programs::envoy_gateway())?.is_none() {
        return Ok(());
    }
    let cluster = Cluster::start(&["envoy-gateway"])?;
    let image = cluster.envoy_image()?;
    install(&cluster, &format!("global.images.envoyProxy.image={image}"))?;
    let pages = [
        "docs/src/start/envoy-gateway.md",
        "docs/src/tasks/shedding-envoy-gateway.md",
    ];
    pages::walk(&cluster, &pages, OBJECT.1, "trafficextensions")
}

fn native(mode: Mode) -> Mode {
    Mode {
        native: true,
        ..mode
    }
}

/// Returns a Gateway with one route, and a policy.
fn gateway(port: u16, total: u32) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: envoy
  listeners: [{{name: http, protocol: HTTP, port: {port}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: search}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{backendRefs: [{{name: search, port: 80}}]}}]
---
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: edge}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: edge}}]
  parallelism: {{total: {total}}}
  queue: {{maxLength: 1000, timeout: 60s}}
  strategy: {{type: MaxQueueLength}}
  types: [{{name: default}}]
"
    )
}

/// Returns a class whose Gateways have proxies of this mode. Proxies with the native filter load
/// its module from the node, at the path of `examples/envoy-gateway/native.yaml`, because Debian's
/// containerd has no image volumes.
fn class(mode: Mode, envoy: &str) -> Result<String> {
    let (mut modules, mut volumes, mut mounts) = (String::new(), String::new(), String::new());
    if mode.native {
        let folder = programs::repository().join("dist/image").canonicalize()?;
        let path = "/headgate/bin/libheadgate.so";
        let source = format!("{{type: Local, local: {{path: {path}}}}}");
        modules = format!("{{name: {NATIVE}, doNotClose: true, source: {source}}}");
        volumes = format!(
            "{{name: modules, hostPath: {{path: '{}'}}}}",
            folder.display()
        );
        mounts = "{name: modules, mountPath: /headgate/bin, readOnly: true}".to_owned();
    }
    let merged = mode.merged;
    Ok(format!(
        "
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {{name: proxies, namespace: {SYSTEM}}}
spec:
  mergeGateways: {merged}
  dynamicModules: [{modules}]
  provider:
    type: Kubernetes
    kubernetes:
      # There is no load balancer controller here.
      envoyService: {{type: ClusterIP}}
      envoyDeployment:
        pod: {{volumes: [{volumes}]}}
        container: {{image: '{envoy}', volumeMounts: [{mounts}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: envoy}}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef:
    {{group: gateway.envoyproxy.io, kind: EnvoyProxy, name: proxies, namespace: {SYSTEM}}}
"
    ))
}

/// Installs Envoy Gateway with this additional value of its chart.
fn install(cluster: &Cluster, value: &str) -> Result<()> {
    let chart = programs::envoy_gateway()?.join("chart");
    cluster
        .node
        .helm(&[
            "install",
            "eg",
            chart.to_str().context("path of the chart")?,
            "--namespace",
            SYSTEM,
            "--create-namespace",
            &format!("--set={value}"),
            "--wait",
            "--timeout=3m",
        ])
        .map(drop)
        .with_context(|| {
            let space = format!("--namespace={SYSTEM}");
            cluster
                .node
                .kubectl(&["describe", "pods", &space])
                .unwrap_or_default()
        })
}

/// Returns a node with Envoy Gateway and version `headgate` of Headgate, or `None` if this machine
/// can't run one.
fn start(headgate: &str, mode: Mode) -> Result<Option<Cluster>> {
    if !can_run()? || programs::or_skip(programs::envoy_gateway())?.is_none() {
        return Ok(None);
    }
    let cluster = Cluster::start(&["envoy-gateway"])?;
    let proxies = "config.envoyGateway.provider.kubernetes.deploy.type";
    install(&cluster, &format!("{proxies}={}", mode.deploy))?;
    let native = if mode.native { NATIVE } else { "" };
    cluster.install_headgate(headgate, "envoyGateway", native)?;
    cluster.node.apply(&class(mode, &cluster.envoy_image()?)?)?;
    Ok(Some(cluster))
}

// The second argument below is 10 for proxies of one Gateway in Envoy Gateway's namespace, because
// the previous version counts each of them twice.

#[test]
fn own_proxies_outlast_their_operators() -> Result<()> {
    outlast(DEFAULT, 10)
}

#[test]
fn proxies_of_merged_gateways_outlast_their_operators() -> Result<()> {
    outlast(MERGED, 20)
}

#[test]
fn proxies_in_their_gateways_namespace_outlast_their_operators() -> Result<()> {
    outlast(IN_NAMESPACES, 20)
}

/// Takes the proxies of a Gateway through outages of their operators. Envoy Gateway caches the
/// module, so a new proxy lacks the module only if Envoy Gateway restarts during the outage.
/// `older` is the number of slots that the previous version gives the only proxy.
fn outlast(mode: Mode, older: usize) -> Result<()> {
    let Some(cluster) = start(OLDER, mode)? else {
        return Ok(());
    };
    cluster.node.kubectl(&["create", "namespace", "shop"])?;
    cluster.backend("shop")?;
    cluster.apply_in("shop", &gateway(80, 20))?;
    let edge = Side {
        namespace: mode.space("shop"),
        labels: &mode.labels("shop"),
        port: SHIFT + 80,
        stats: STATS,
        policy: "shop/edge",
        backends: "shop",
    };
    cluster.programmed(edge.policy, "True")?;
    let service = cluster.service(edge.namespace, edge.labels, 80)?;
    cluster.outages(&edge, service, OBJECT.1, older, |_| {
        let restart = ["rollout", "restart", "deployment/envoy-gateway"];
        let space = ["--namespace", SYSTEM];
        cluster.node.kubectl(&[&restart[..], &space].concat())?;
        cluster.rolled_out(SYSTEM, "deployment/envoy-gateway")?;
        let get = ["get", OBJECT.1, "--namespace=shop", "--output=json"];
        until_within(PATIENCE, "an Envoy Gateway that gives up", || {
            let objects = cluster.node.kubectl(&get);
            let objects = objects.map_err(|error| format!("{error:#}"))?;
            match objects.contains("asm module") {
                true => Ok(()),
                false => Err(objects),
            }
        })
    })
}

/// Creates, edits and deletes the policy of a Gateway. The policy of another Gateway stays in
/// force.
fn run(mode: Mode) -> Result<()> {
    let Some(cluster) = start(DEV, mode)? else {
        return Ok(());
    };
    let labels = ["shop", "bank"].map(|namespace| mode.labels(namespace));
    // Merged Gateways must have different ports.
    let (ports, totals) = ([80, 81], [20, 12]);
    let side = |at: usize| Side {
        namespace: mode.space(["shop", "bank"][at]),
        labels: &labels[at],
        port: SHIFT + ports[at],
        stats: STATS,
        policy: ["shop/edge", "bank/edge"][at],
        backends: ["shop", "bank"][at],
    };
    for (at, namespace) in ["shop", "bank"].iter().enumerate() {
        cluster.node.kubectl(&["create", "namespace", namespace])?;
        cluster.backend(namespace)?;
        cluster.apply_in(namespace, &gateway(ports[at], totals[at]))?;
    }
    let (edge, other) = (side(0), side(1));
    cluster.programmed(other.policy, "True")?;
    cluster.enforced(&other, 1, 12)?;
    let proxies = [edge, other].map(|side| cluster.proxies(side.namespace, side.labels));
    let [of_edge, of_other] = proxies;
    ensure!((of_edge? == of_other?) == mode.merged, "{mode:?}");
    let service = cluster.service(edge.namespace, edge.labels, ports[0])?;
    cluster.life(&edge, service, OBJECT)?;
    cluster.enforced(&other, 1, 12)
}
