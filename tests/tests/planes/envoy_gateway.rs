//! Envoy Gateway, installed by its chart: its proxies enforce policies in each of its ways to run
//! them.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use headgate_tests::kube::node::can_run;
use headgate_tests::kube::programs;

use crate::cluster::{Cluster, Side};

const SYSTEM: &str = "envoy-gateway-system";
/// Ports of Envoy Gateway's Envoys: of the requests to a listener with port 80, and of the stats.
const HTTP: u16 = 10080;
const STATS: u16 = 19001;

/// A Gateway of a class, with one route, and a policy.
fn gateway(namespace: &str, class: &str, total: u32) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: {namespace}}}
spec:
  gatewayClassName: {class}
  listeners: [{{name: http, protocol: HTTP, port: 80}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: search, namespace: {namespace}}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{backendRefs: [{{name: search, port: 80}}]}}]
---
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: edge, namespace: {namespace}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: edge}}]
  parallelism: {{total: {total}}}
  queue: {{maxLength: 1000, timeout: 60s}}
  strategy: {{type: MaxQueueLength}}
  types: [{{name: default}}]
"
    )
}

/// A class whose Gateways have proxies of their own.
const CLASS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: envoy}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
";

/// Installs or upgrades Envoy Gateway; `deploy` is how it runs proxies.
fn install(cluster: &Cluster, deploy: &str) -> Result<()> {
    let chart = programs::envoy_gateway()?.join("chart");
    let envoy = cluster.envoy_image()?;
    let config = "--set=config.envoyGateway";
    let proxies = format!("{config}.envoyProxy.provider");
    cluster
        .node
        .helm(&[
            "upgrade",
            "--install",
            "eg",
            chart.to_str().context("path of the chart")?,
            "--namespace",
            SYSTEM,
            "--create-namespace",
            &format!("--set=global.images.envoyProxy.image={envoy}"),
            // There is no load balancer controller here.
            &format!("{proxies}.type=Kubernetes"),
            &format!("{proxies}.kubernetes.envoyService.type=ClusterIP"),
            &format!("{config}.provider.kubernetes.deploy.type={deploy}"),
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

/// The address of the Service that Envoy Gateway made for `labels`.
fn service(cluster: &Cluster, namespace: &str, labels: &str) -> Result<SocketAddr> {
    let path = "--output=jsonpath={.items[0].spec.clusterIP}";
    let arguments = [
        "get",
        "services",
        "--namespace",
        namespace,
        "--selector",
        labels,
        path,
    ];
    Ok(SocketAddr::new(
        cluster.node.kubectl(&arguments)?.trim().parse()?,
        80,
    ))
}

fn scale(cluster: &Cluster, namespace: &str, labels: &str, replicas: usize) -> Result<()> {
    let count = format!("--replicas={replicas}");
    let arguments = [
        "scale",
        "deployment",
        "--namespace",
        namespace,
        "--selector",
        labels,
        &count,
    ];
    cluster.node.kubectl(&arguments).map(drop)
}

#[test]
fn proxies_of_envoy_gateway_share_a_policys_slots() -> Result<()> {
    if !can_run()? || programs::or_skip(programs::envoy_gateway())?.is_none() {
        return Ok(());
    }
    let cluster = Cluster::start(&["envoy-gateway"])?;
    install(&cluster, "ControllerNamespace")?;
    cluster.install_headgate("envoyGateway")?;
    cluster.node.apply(CLASS)?;
    cluster.node.kubectl(&["create", "namespace", "shop"])?;
    cluster.backend("shop")?;

    own_proxies(&cluster)
}

/// Envoy Gateway's default: each Gateway has proxies of its own, in Envoy Gateway's namespace.
fn own_proxies(cluster: &Cluster) -> Result<()> {
    cluster.node.apply(&gateway("shop", "envoy", 20))?;
    let labels = "gateway.envoyproxy.io/owning-gateway-name=edge,\
                  gateway.envoyproxy.io/owning-gateway-namespace=shop";
    let side = Side {
        namespace: SYSTEM,
        labels,
        port: HTTP,
        stats: STATS,
        policy: "shop/edge",
        backends: "shop",
    };
    let said = cluster.programmed("shop/edge", "True")?;
    ensure!(said.contains("EnvoyExtensionPolicy"), "{said}");
    cluster.enforced(&side, 1, 20)?;
    let status = cluster.status("shop")?;
    let columns = status.lines().find(|line| line.starts_with("shop/edge"));
    let columns: Vec<&str> = columns.unwrap_or_default().split_whitespace().collect();
    ensure!(columns.get(3..5) == Some(&["True", "True"]), "{status}");

    let service = service(cluster, SYSTEM, labels)?;
    for (replicas, slots) in [(2, 10), (3, 6)] {
        cluster.under_load(service, "proxies scaled", || {
            scale(cluster, SYSTEM, labels, replicas)?;
            cluster.wait_for_slots(&side, replicas, slots)
        })?;
        cluster.enforced(&side, replicas, slots)?;
    }
    scale(cluster, SYSTEM, labels, 1)?;
    cluster.wait_for_slots(&side, 1, 20)?;
    cluster.under_load(service, "a policy edited", || {
        cluster.patch("shop/edge", "{\"total\": null, \"perEndpoint\": 8}")?;
        cluster.wait_for_slots(&side, 1, 8)
    })?;
    cluster.enforced(&side, 1, 8)?;
    cluster.under_load(service, "an operator killed", || cluster.kill_operator())?;
    cluster.wait_for_slots(&side, 1, 8)?;
    cluster.under_load(service, "a policy deleted", || {
        let arguments = ["delete", "admissionpolicy", "edge", "--namespace=shop"];
        cluster.node.kubectl(&arguments)?;
        cluster.gone("envoyextensionpolicies")
    })?;
    cluster
        .node
        .kubectl(&["delete", "gateway", "edge", "--namespace=shop"])
        .map(drop)
}
