//! An operator that watches two namespaces, with the Roles of the chart. When one namespace and its
//! Role are deleted, the operator continues to serve the other one. The deleted namespace may be
//! created again.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::{Result, ensure};
use headgate_tests::chart::{self, NAMESPACE};
use headgate_tests::headgate::address;
use headgate_tests::http;
use headgate_tests::kube::ApiServer;
use headgate_tests::kube::audit::AuditMark;
use headgate_tests::operator::{Operator, OperatorOptions};
use headgate_tests::policies::{Cluster, policy, service};
use headgate_tests::wait::{until, until_within};
use headgate_tests::xds::{Claims, XdsProxy};

const GONE: &str = "gone";
const KEPT: &str = "kept";
/// The namespaced resources that the operator watches with these settings.
const WATCHED: [&str; 5] = [
    "admissionpolicies",
    "configmaps",
    "endpointslices",
    "pods",
    "services",
];
/// The longest wait: at most 16 s until a namespace that stays refused counts as empty, plus a
/// margin for a busy machine.
const LONG: Duration = Duration::from_secs(90);

fn helm(server: &ApiServer, command: &str, values: &[&str]) -> Result<String> {
    let folder = chart::folder().display().to_string();
    let release = [command, "headgate", &folder, "--namespace", NAMESPACE];
    server.helm(&[&release, values].concat())
}

fn options(name: &str) -> OperatorOptions {
    let arguments = ["--adapters=none", "--deliver-config-maps"];
    let namespaces = [GONE, KEPT].map(|n| format!("--watch-namespace={n}"));
    OperatorOptions {
        extra: [arguments.map(str::to_owned), namespaces].concat(),
        ..OperatorOptions::new(name, NAMESPACE)
    }
}

/// Applies a Service and a policy for it.
fn apply(cluster: &Cluster<'_>, space: &str, slots: u32) -> Result<()> {
    cluster.apply(&service(space, "search", "app=search"))?;
    cluster.apply(&policy(space, "search", "Service", "search", slots))?;
    Ok(())
}

/// Waits until the ConfigMap for the policy's target has this many slots.
fn until_delivered(cluster: &Cluster<'_>, space: &str, slots: u32) -> Result<()> {
    let wanted = format!("\"parallelism\":{slots}");
    let get = ["get", "configmap", "headgate-service-search", "-n", space];
    until(&format!("{slots} slots in {space}'s ConfigMap"), || {
        let found = cluster.kubectl(&[&get[..], &["-o=json"]].concat());
        // The object contains JSON files as text, and one of them contains the configuration as
        // text. So the search ignores spaces and escapes.
        let found = found.map_err(|e| format!("{e:#}"))?;
        let found = found.replace([' ', '\\'], "");
        match found.contains(&wanted) {
            true => Ok(()),
            false => Err(found),
        }
    })
}

/// Waits until every watch of the namespace has been refused more than once.
fn until_refused(cluster: &Cluster<'_>, mark: AuditMark) -> Result<()> {
    let user = format!("system:serviceaccount:{NAMESPACE}:headgate");
    until_within(LONG, "refusals", || {
        let events = cluster.audit(mark).map_err(|e| e.to_string())?;
        let of = |resource: &str| {
            let of_it = events.iter().filter(|e| e.resource == resource);
            of_it
                .filter(|e| e.user == user && e.namespace == GONE && e.code == 403)
                .count()
        };
        match WATCHED.iter().find(|resource| of(resource) < 2) {
            None => Ok(()),
            Some(resource) => Err(format!("{} of {resource}", of(resource))),
        }
    })
}

#[test]
fn a_watched_namespace_that_is_deleted_stops_no_other_and_may_come_back() -> Result<()> {
    let server = ApiServer::shared();
    let cluster = Cluster::new(server);
    for namespace in [NAMESPACE, GONE, KEPT] {
        cluster.kubectl(&["create", "namespace", namespace])?;
    }
    let values = format!("watchNamespaces={{{GONE},{KEPT}}},delivery.configMap.enabled=true");
    helm(server, "install", &["--set", &values])?;
    server.wait_for_crds()?;
    let kubeconfig = server.service_account_kubeconfig(NAMESPACE, "headgate")?;
    let first = Operator::start(&kubeconfig, &options("headgate-0"))?;
    first.until_leading()?;
    let proxy = |xds, id: &str, space: &str| {
        XdsProxy::start(xds, Claims::pod(id, space, &[("app", "search")]))
    };
    for space in [GONE, KEPT] {
        apply(&cluster, space, 4)?;
        until_delivered(&cluster, space, 4)?;
    }
    let kept = proxy(first.xds(), "p1", KEPT)?;
    kept.until_slots(4)?;

    let mark = cluster.audit_mark();
    cluster.kubectl(&["delete", "namespace", GONE])?;
    // Established watches outlive their Role by up to a minute. A restart of the API server breaks
    // these watches, so the operator starts them again.
    server.restart_api_server()?;
    until_refused(&cluster, mark)?;
    apply(&cluster, KEPT, 5)?;
    kept.until_slots(5)?;
    until_delivered(&cluster, KEPT, 5)?;
    cluster.until_generation(KEPT, "search", 2)?;
    ensure!(first.ready()?.0 == 200, "{:?}", first.ready());

    // An operator that starts while a namespace is missing becomes ready and serves the other
    // namespace.
    let admin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let options = OperatorOptions {
        admin,
        ..options("headgate-1")
    };
    let (mut second, _dir) = Operator::spawn(&kubeconfig, &options)?;
    until_within(LONG, "readiness", || {
        let ready = http::get(admin, "/readyz").map_err(|e| e.to_string())?;
        match ready.status {
            200 => Ok(()),
            _ => Err(ready.body),
        }
    })?;
    let xds = address(&second.wait_for_line("headgate: xds=")?, "xds")?;
    let of_second = proxy(xds, "p2", KEPT)?;
    of_second.until_slots(5)?;

    // The next upgrade creates the chart's Role again.
    cluster.kubectl(&["create", "namespace", GONE])?;
    helm(server, "upgrade", &["--reuse-values"])?;
    apply(&cluster, GONE, 6)?;
    for xds in [first.xds(), xds] {
        proxy(xds, "p3", GONE)?.until_slots(6)?;
    }
    until_delivered(&cluster, GONE, 6)?;
    cluster.until_condition(GONE, "search", 0, "Accepted", "True", "Accepted")?;
    apply(&cluster, KEPT, 7)?;
    kept.until_slots(7)?;
    of_second.until_slots(7)?;
    second.stop()?;
    first.stop().map(drop)
}
