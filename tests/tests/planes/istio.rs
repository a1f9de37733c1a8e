//! Istio, installed by its charts: sidecars that istiod's webhook injects, and the proxies of a
//! Gateway, with plugins of both kinds and with the native filter. The Envoys are those of the
//! other tests, not Istio's own build, which has additional filters.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use headgate_tests::kube::node::can_run;
use headgate_tests::kube::programs;
use headgate_tests::wait::until_within;
use serde_json::{Value, json};

use crate::cluster::{self, BACKEND, Cluster, PATIENCE, Side};
use crate::pages;

const SYSTEM: &str = "istio-system";
/// Port of the stats of Istio's Envoys.
const STATS: u16 = 15090;
/// Port of the stats of Istio's agents.
const AGENT: u16 = 15020;
/// The port on which sidecars take requests.
const INBOUND: u16 = 10_080;
/// The version of an istiod that reads only WasmPlugins.
const OLDER: &str = "1.29.3";
/// The version of an istiod that reads TrafficExtensions.
const NEWER: &str = "1.31.0";

const EXTENSIONS: (&str, &str) = ("TrafficExtension", "trafficextensions");
const PLUGINS: (&str, &str) = ("WasmPlugin", "wasmplugins");
const NATIVE: (&str, &str) = ("EnvoyFilter", "envoyfilters");
/// The folder in which the proxies have the native module, and the module, as in `examples/istio`.
const MODULES: &str = "/headgate/bin";
const MODULE: &str = "/headgate/bin/libheadgate.so";

/// The sidecars' listeners have the Service's port, because no iptables rule redirects requests to
/// the sidecars.
const LISTENERS: &str = "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: search}
spec:
  ingress:
  - port: {number: 10080, name: http, protocol: HTTP}
    captureMode: NONE
    defaultEndpoint: 127.0.0.1:8080
  egress:
  - port: {number: 10081, name: http, protocol: HTTP}
    bind: 127.0.0.1
    captureMode: NONE
    hosts: ['./*']
";

const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, annotations: {networking.istio.io/service-type: ClusterIP}}
spec:
  gatewayClassName: istio
  infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: edge}}
  listeners: [{name: http, protocol: HTTP, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: search}
spec:
  parentRefs: [{name: edge}]
  rules: [{backendRefs: [{name: search, port: 80}]}]
";

const SIDECARS: Side<'_> = Side {
    namespace: "shop",
    labels: "app=search",
    port: INBOUND,
    stats: STATS,
    policy: "shop/search",
    backends: "shop",
};

const EDGE: Side<'_> = Side {
    labels: "gateway.networking.k8s.io/gateway-name=edge",
    port: 80,
    policy: "shop/edge",
    ..SIDECARS
};

#[test]
fn sidecars_with_traffic_extensions_share_a_policys_slots() -> Result<()> {
    let Some(cluster) = sidecars(NEWER)? else {
        return Ok(());
    };
    let service = cluster.service("shop", "app=search", 80)?;
    cluster.life(&SIDECARS, service, EXTENSIONS)
}

#[test]
fn sidecars_with_wasm_plugins_share_a_policys_slots() -> Result<()> {
    let Some(cluster) = sidecars(OLDER)? else {
        return Ok(());
    };
    let service = cluster.service("shop", "app=search", 80)?;
    cluster.life(&SIDECARS, service, PLUGINS)
}

#[test]
fn a_gateway_with_traffic_extensions_shares_a_policys_slots() -> Result<()> {
    let Some((cluster, service)) = gateway(cluster::DEV, NEWER, "")? else {
        return Ok(());
    };
    cluster.life(&EDGE, service, EXTENSIONS)
}

#[test]
fn a_gateway_with_wasm_plugins_shares_a_policys_slots() -> Result<()> {
    let Some((cluster, service)) = gateway(cluster::DEV, OLDER, "")? else {
        return Ok(());
    };
    cluster.life(&EDGE, service, PLUGINS)
}

#[test]
fn a_gateway_with_traffic_extensions_outlasts_its_operators() -> Result<()> {
    let Some((cluster, service)) = gateway(cluster::OLDER, NEWER, "")? else {
        return Ok(());
    };
    outages(&cluster, &EDGE, service, EXTENSIONS.1)
}

#[test]
fn sidecars_share_a_policys_slots_natively() -> Result<()> {
    let Some(cluster) = sidecars_of(cluster::DEV, NEWER, MODULE)? else {
        return Ok(());
    };
    let service = cluster.service("shop", "app=search", 80)?;
    cluster.life(&SIDECARS, service, NATIVE)
}

/// Istio applies the EnvoyFilters of its root namespace to the proxies of all namespaces. Both
/// Gateways have the same name, so the proxies of both have the labels that the EnvoyFilters
/// select.
#[test]
fn a_gateway_beside_one_in_the_root_namespace_shares_a_policys_slots_natively() -> Result<()> {
    let Some((cluster, service)) = gateway(cluster::DEV, NEWER, MODULE)? else {
        return Ok(());
    };
    let root = Side {
        namespace: SYSTEM,
        policy: "istio-system/edge",
        backends: SYSTEM,
        ..EDGE
    };
    edge(&cluster, SYSTEM, 12, MODULE)?;
    cluster.programmed(root.policy, "True")?;
    cluster.enforced(&root, 1, 12)?;
    cluster.life(&EDGE, service, NATIVE)?;
    cluster.enforced(&root, 1, 12)
}

/// Returns a node with a policy and a backend behind a Gateway of Istio of `version`, with version
/// `headgate` of Headgate. Also returns the Gateway's address. The proxies have the native module
/// if `native` is not empty.
fn gateway(headgate: &str, version: &str, native: &str) -> Result<Option<(Cluster, SocketAddr)>> {
    let Some(cluster) = istio(headgate, version, native)? else {
        return Ok(None);
    };
    cluster.node.kubectl(&["create", "namespace", "shop"])?;
    edge(&cluster, "shop", 20, native)?;
    let service = cluster.service("shop", EDGE.labels, 80)?;
    Ok(Some((cluster, service)))
}

/// Creates a Gateway with a backend and a policy with `total` slots, and waits for its proxy.
fn edge(cluster: &Cluster, namespace: &str, total: u32, native: &str) -> Result<()> {
    cluster.backend(namespace)?;
    let deployment = match native {
        "" => json!({}),
        _ => json!({"spec": {"template": {"spec": {
            "volumes": [modules()?],
            "containers": [{"name": "istio-proxy", "volumeMounts": [mount()]}],
        }}}}),
    };
    let parameters = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "edge"},
        "data": {"deployment": deployment.to_string()},
    });
    cluster.apply_in(namespace, &parameters.to_string())?;
    cluster.apply_in(namespace, GATEWAY)?;
    let target = "{group: gateway.networking.k8s.io, kind: Gateway, name: edge}";
    cluster.apply_in(namespace, &policy("edge", target, total))?;
    until_within(PATIENCE, "the Gateway's proxy", || {
        let proxies = cluster.proxies(namespace, EDGE.labels);
        match proxies.map_err(|error| format!("{error:#}"))?.len() {
            1 => Ok(()),
            other => Err(format!("{other} proxies")),
        }
    })
}

/// Returns the volume with the native module. It is a folder of the node, because Debian's
/// containerd has no image volumes.
fn modules() -> Result<Value> {
    let folder = programs::repository().join("dist").canonicalize()?;
    Ok(json!({"name": "headgate", "hostPath": {"path": folder}}))
}

/// Returns the mount of [`modules`].
fn mount() -> Value {
    json!({"name": "headgate", "mountPath": MODULES, "readOnly": true})
}

#[test]
fn the_page_leads_a_newcomer_to_an_enforced_policy() -> Result<()> {
    let Some(cluster) = istiod(NEWER)? else {
        return Ok(());
    };
    let pages = [
        "docs/src/start/istio.md",
        "docs/src/tasks/shedding-istio.md",
    ];
    pages::walk(&cluster, &pages, EXTENSIONS.1, "envoyextensionpolicies")
}

#[test]
fn sidecars_with_traffic_extensions_outlast_their_operators() -> Result<()> {
    sidecars_outlast(NEWER, EXTENSIONS.1)
}

#[test]
fn sidecars_with_wasm_plugins_outlast_their_operators() -> Result<()> {
    sidecars_outlast(OLDER, PLUGINS.1)
}

fn sidecars_outlast(version: &str, resource: &str) -> Result<()> {
    let Some(cluster) = sidecars_of(cluster::OLDER, version, "")? else {
        return Ok(());
    };
    let service = cluster.service("shop", "app=search", 80)?;
    outages(&cluster, &SIDECARS, service, resource)
}

fn outages(cluster: &Cluster, side: &Side<'_>, service: SocketAddr, resource: &str) -> Result<()> {
    // An agent gives up within seconds, so the operators have to notice even such a short outage.
    cluster.outages(side, service, resource, 20, |proxy| {
        let agent = SocketAddr::new(proxy.address, AGENT);
        until_within(PATIENCE, "an agent that gives up", || {
            let stats = cluster.get(agent, "/stats/prometheus");
            let stats = stats.map_err(|error| format!("{error:#}"))?.body;
            let of_wasm = stats.lines().filter(|line| line.contains("agent_wasm"));
            let of_wasm: Vec<&str> = of_wasm.collect();
            match of_wasm.iter().any(|l| l.contains("\"fetch_failure\"")) {
                true => Ok(()),
                false => Err(of_wasm.join("\n")),
            }
        })
    })
}

/// If both kinds were in force with one slot, the filter of one kind would wait for the slot that
/// the same request has taken in the filter of the other kind.
#[test]
fn the_kinds_replace_each_other_under_load() -> Result<()> {
    let Some(cluster) = sidecars(OLDER)? else {
        return Ok(());
    };
    let service = cluster.service("shop", "app=search", 80)?;
    cluster.programmed(SIDECARS.policy, "True")?;
    cluster.patch(SIDECARS.policy, "{\"total\": 1}")?;
    cluster.enforced(&SIDECARS, 1, 1)?;

    for (version, (_, new), (_, old)) in
        [(NEWER, EXTENSIONS, PLUGINS), (OLDER, PLUGINS, EXTENSIONS)]
    {
        // The operator doesn't know this copy. The copy prolongs the moment at which both kinds
        // exist.
        let copy = copy(&cluster, old)?;
        cluster.under_load(service, &format!("{old} become {new}"), || {
            cluster.node.apply(&copy)?;
            set_version(&cluster, version)?;
            has(&cluster, new, 1)?;
            has(&cluster, old, 1)?;
            has_filters(&cluster, 2)
        })?;
        cluster.enforced(&SIDECARS, 1, 1)?;
        cluster.under_load(service, &format!("{old} are gone"), || {
            let delete = ["delete", old, COPY, "--namespace=shop"];
            cluster.node.kubectl(&delete)?;
            has_filters(&cluster, 1)
        })?;
        cluster.enforced(&SIDECARS, 1, 1)?;
    }
    Ok(())
}

fn policy(name: &str, target: &str, total: u32) -> String {
    format!(
        "
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: {name}}}
spec:
  targetRefs: [{target}]
  parallelism: {{total: {total}}}
  queue: {{maxLength: 1000, timeout: 60s}}
  strategy: {{type: MaxQueueLength}}
  types: [{{name: default}}]
"
    )
}

/// Returns a node with version `headgate` of Headgate and with Istio, whose istiod claims to be of
/// `version`. Policies are delivered for the native module at the path `native`, unless it is
/// empty. Returns `None` if this machine can't run one.
fn istio(headgate: &str, version: &str, native: &str) -> Result<Option<Cluster>> {
    let cluster = istiod(version)?;
    if let Some(cluster) = &cluster {
        cluster.install_headgate(headgate, "istio", native)?;
    }
    Ok(cluster)
}

/// Returns a node as [`istio`] does, but without Headgate.
fn istiod(version: &str) -> Result<Option<Cluster>> {
    if !can_run()? || programs::or_skip(programs::istio())?.is_none() {
        return Ok(None);
    }
    let cluster = Cluster::start(&["istio-pilot", "istio-proxyv2"])?;
    let crds = programs::crds("gateway-api")?;
    let crds = format!("--filename={}", crds.display());
    cluster.node.kubectl(&["apply", "--server-side", &crds])?;
    for (name, options) in [("base", &[][..]), ("istiod", &ISTIOD[..])] {
        let chart = programs::istio()?.join(name);
        let chart = chart.to_str().context("path of the chart")?;
        let install = ["install", name, chart, "--namespace", SYSTEM];
        let wait = ["--create-namespace", "--wait", "--timeout=3m"];
        let done = cluster.node.helm(&[&install[..], options, &wait].concat());
        done.with_context(|| {
            let pods = ["describe", "pods", "--namespace", SYSTEM];
            cluster.node.kubectl(&pods).unwrap_or_default()
        })?;
    }
    set_version(&cluster, version)?;
    Ok(Some(cluster))
}

/// Options of istiod's chart: the images that this repository's scripts build, an Envoy without
/// Istio's own filters, and small requests for a node with two processors.
const ISTIOD: [&str; 10] = [
    "--set=global.hub=headgate.test",
    "--set=global.tag=dev",
    "--set=telemetry.enabled=false",
    "--set=autoscaleEnabled=false",
    // The image of Istio's proxies has nft, but no iptables.
    "--set=global.nativeNftables=true",
    "--set=resources.requests.cpu=10m",
    "--set=resources.requests.memory=64Mi",
    "--set=global.proxy.resources.requests.cpu=10m",
    "--set-string=env.PILOT_ENABLE_METADATA_EXCHANGE=false,env.PILOT_ENABLE_ALPN_FILTER=false",
    "--set-string=env.PILOT_DISABLE_MX_ALPN=true",
];

/// Returns a node as [`istio`] does, with a backend behind injected sidecars, and its policy.
fn sidecars(version: &str) -> Result<Option<Cluster>> {
    sidecars_of(cluster::DEV, version, "")
}

/// Returns a node as [`sidecars`] does, with version `headgate` of Headgate, and for the native
/// module at the path `native`, unless it is empty.
fn sidecars_of(headgate: &str, version: &str, native: &str) -> Result<Option<Cluster>> {
    let Some(cluster) = istio(headgate, version, native)? else {
        return Ok(None);
    };
    let kubectl = |arguments: &[&str]| cluster.node.kubectl(arguments);
    kubectl(&["create", "namespace", "shop"])?;
    kubectl(&["label", "namespace", "shop", "istio-injection=enabled"])?;
    cluster.apply_in("shop", LISTENERS)?;
    let mut annotations = json!({"sidecar.istio.io/interceptionMode": "NONE"});
    if !native.is_empty() {
        annotations["sidecar.istio.io/userVolume"] = json!([modules()?]).to_string().into();
        annotations["sidecar.istio.io/userVolumeMount"] = json!([mount()]).to_string().into();
    }
    let behind = BACKEND
        .replace("targetPort: http", &format!("targetPort: {INBOUND}"))
        .replace(
            "labels: {app: search}}\n    spec:",
            &format!("labels: {{app: search}}, annotations: {annotations}}}\n    spec:"),
        );
    cluster.apply_in("shop", &behind)?;
    cluster.rolled_out("shop", "deployment/search")?;
    let target = "{group: '', kind: Service, name: search}";
    cluster.apply_in("shop", &policy("search", target, 20))?;
    Ok(Some(cluster))
}

/// Gives istiod this version, in the label in which the operator reads it.
fn set_version(cluster: &Cluster, version: &str) -> Result<()> {
    let version = format!("app.kubernetes.io/version={version}");
    let of = ["--namespace", SYSTEM, "--selector=app=istiod"];
    let label = [&["label", "pods", "--overwrite", &version][..], &of].concat();
    cluster.node.kubectl(&label).map(drop)
}

/// The name of the copy of a plugin.
const COPY: &str = "copy";

/// Returns a copy of the operator's only plugin of this kind, without the operator's labels.
fn copy(cluster: &Cluster, kind: &str) -> Result<String> {
    let list = cluster.node.get(&[kind, "--namespace=shop"])?;
    let plugins = list["items"].as_array().map(Vec::as_slice);
    let Some([plugin]) = plugins else {
        bail!("not one plugin: {list}");
    };
    let copy = json!({
        "apiVersion": plugin["apiVersion"],
        "kind": plugin["kind"],
        "metadata": {"name": COPY, "namespace": "shop"},
        "spec": plugin["spec"],
    });
    Ok(copy.to_string())
}

/// Waits until there are `count` plugins of this kind.
fn has(cluster: &Cluster, kind: &str, count: usize) -> Result<()> {
    let get = ["get", kind, "--namespace=shop", "--output=name"];
    until_within(PATIENCE, &format!("{count} {kind}"), || {
        match cluster.node.kubectl(&get) {
            Ok(names) if names.lines().count() == count => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}

/// Waits until the sidecar's listeners have filters of `count` plugins.
fn has_filters(cluster: &Cluster, count: usize) -> Result<()> {
    const PREFIX: &str = "extensions.istio.io/trafficextension/";
    let dump = [
        "exec",
        "deployment/search",
        "--namespace=shop",
        "--container=istio-proxy",
        "--",
        "pilot-agent",
        "request",
        "GET",
        "config_dump?resource=dynamic_listeners",
    ];
    until_within(PATIENCE, &format!("{count} filters"), || {
        let dump = cluster.node.kubectl(&dump);
        let dump = dump.map_err(|error| format!("{error:#}"))?;
        // The agent's own log precedes the dump.
        let (_, dump) = dump.split_once('{').unwrap_or_default();
        let dump = serde_json::from_str::<Value>(&format!("{{{dump}"));
        let dump = dump.map_err(|error| error.to_string())?;
        let listeners = dump["configs"].as_array().into_iter().flatten();
        let active: String = listeners.map(|l| l["active_state"].to_string()).collect();
        let names = active.split(PREFIX).skip(1);
        let names: BTreeSet<_> = names.filter_map(|rest| rest.split('"').next()).collect();
        match names.len() == count {
            true => Ok(()),
            false => Err(format!("{names:?}")),
        }
    })
}
