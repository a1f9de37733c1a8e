//! Faults around the operator in a cluster: the API server or etcd is unreachable, a leader freezes
//! or dies, or two operators run at once. Proxies keep their configuration, only the leader writes,
//! and everything converges.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_tests::http;
use headgate_tests::kube::ApiServer;
use headgate_tests::kube::audit::{AuditEvent, AuditMark};
use headgate_tests::operator::{Operator, OperatorOptions, own_address};
use headgate_tests::policies::{Cluster, policy, service};
use headgate_tests::wait::{until, until_within};
use headgate_tests::xds::{Claims, XdsProxy};
use serde_json::json;

/// The longest wait. A Lease expires after 15 s, and a slow machine needs more time.
const LONG: Duration = Duration::from_secs(90);

/// Returns the lock and the cluster. Tests take turns, because each one breaks parts of the cluster
/// that the others need.
fn turn() -> Result<(
    MutexGuard<'static, ()>,
    Cluster<'static>,
    &'static ApiServer,
)> {
    static TURN: Mutex<bool> = Mutex::new(false);
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = ApiServer::shared();
    let mut installed = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        server.install_crds()?;
        *installed = true;
    }
    Ok((one, Cluster::new(server), server))
}

/// Makes two namespaces, and returns their names: one for operators, and one with a policy of 4
/// slots for Pods with label `app=search`.
fn prepared(cluster: &Cluster<'_>) -> Result<(String, String)> {
    let (system, space) = (cluster.namespace("system")?, cluster.namespace("faults")?);
    cluster.apply(&service(&space, "search", "app=search"))?;
    cluster.apply(&policy(&space, "search", "Service", "search", 4))?;
    Ok((system, space))
}

fn operator(server: &ApiServer, name: &str, system: &str) -> Result<Operator> {
    let kubeconfig = server.user_kubeconfig(name, Some("system:masters"))?;
    Operator::start(&kubeconfig, &OperatorOptions::new(name, system))
}

fn proxy(operator: &Operator, id: &str, space: &str) -> Result<XdsProxy> {
    XdsProxy::start(operator.xds(), Claims::pod(id, space, &[("app", "search")]))
}

fn until_slots(proxy: &XdsProxy, slots: u32) -> Result<()> {
    let is_so = |p: &XdsProxy| {
        let config = p.config();
        config.is_some_and(|c| c.stages.first().is_some_and(|s| s.parallelism == slots))
    };
    until_within(LONG, &format!("{slots} slots"), || match is_so(proxy) {
        true => Ok(()),
        false => Err(format!("{:?}", proxy.known())),
    })
}

/// Fails unless the proxy got exactly these numbers of slots, in this order.
fn only_served(proxy: &XdsProxy, slots: &[u32]) -> Result<()> {
    let given: Vec<u32> = proxy
        .known()
        .history
        .iter()
        .map(|(_, c)| c.stages.first().map_or(0, |s| s.parallelism))
        .collect();
    ensure!(given == slots, "nothing else was ever served: {given:?}");
    Ok(())
}

fn until_leader(operator: &Operator, leads: bool) -> Result<()> {
    let wanted = f64::from(u8::from(leads));
    until_within(
        LONG,
        &format!("headgate_leader {wanted}"),
        || match operator.metric("headgate_leader", &[]) {
            Ok(value) if value == wanted => Ok(()),
            other => Err(format!("{other:?}\n{}", operator.child().tail())),
        },
    )
}

/// Waits until the status at the admin address of `replica` shows these reasons for `policy`, and
/// its metrics agree.
fn until_shown(replica: &Operator, policy: &str, reasons: [(&str, &str); 2]) -> Result<()> {
    until_within(LONG, &format!("{policy}: {reasons:?}"), || {
        let status = replica.status().map_err(|e| e.to_string())?;
        let policies = status["policies"].as_array().into_iter().flatten();
        let shown = policies.clone().find(|p| p["name"] == policy);
        let shown = shown.ok_or("not known")?;
        for (condition, reason) in reasons {
            let metric = format!("headgate_policies_{condition}");
            let holds = policies
                .clone()
                .filter(|p| p[condition]["status"] == true)
                .count();
            let counted = replica.metric(&metric, &["status=\"true\""]);
            let counted = counted.map_err(|e| e.to_string())?;
            if shown[condition]["reason"] != reason || counted != holds as f64 {
                return Err(format!("{counted} {status}"));
            }
        }
        Ok(())
    })
}

fn until_generation(cluster: &Cluster<'_>, space: &str, generation: i64) -> Result<()> {
    until_within(LONG, &format!("generation {generation} programmed"), || {
        let found = cluster.condition(space, "search", 0, "Programmed");
        let found = found.map_err(|e| e.to_string())?;
        match found["observedGeneration"] == generation && found["status"] == "True" {
            true => Ok(()),
            false => Err(found.to_string()),
        }
    })
}

fn status_writes(cluster: &Cluster<'_>, mark: AuditMark, user: &str) -> Result<Vec<AuditEvent>> {
    let events = cluster.audit(mark)?.into_iter();
    Ok(events
        .filter(|e| e.user == user && e.resource == "admissionpolicies/status")
        .collect())
}

#[test]
fn an_api_server_that_restarts_takes_nothing_from_proxies() -> Result<()> {
    let (_turn, cluster, server) = turn()?;
    let (system, space) = prepared(&cluster)?;
    let operator = operator(server, "restart", &system)?;
    let first = proxy(&operator, "p1", &space)?;
    until_slots(&first, 4)?;
    until_generation(&cluster, &space, 1)?;

    server.stop_api_server()?;
    let name = "headgate_kubernetes_watch_restarts_total";
    until_within(LONG, "watches that fail", || {
        match operator.metric(name, &[]) {
            Ok(failed) if failed > 0.0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    ensure!(operator.ready()?.0 == 200, "{:?}", operator.ready());
    let second = proxy(&operator, "p2", &space)?;
    until_slots(&second, 4)?;
    ensure!(
        operator.output().contains("the watch failed"),
        "{}",
        operator.output()
    );

    server.start_api_server()?;
    cluster.apply(&policy(&space, "search", "Service", "search", 5))?;
    until_slots(&first, 5)?;
    until_slots(&second, 5)?;
    until_generation(&cluster, &space, 2)?;
    only_served(&first, &[4, 5])?;
    operator.stop().map(drop)
}

#[test]
fn a_leader_without_etcd_stops_writing_and_comes_back() -> Result<()> {
    let (_turn, cluster, server) = turn()?;
    let (system, space) = prepared(&cluster)?;
    let operator = operator(server, "etcd", &system)?;
    operator.until_leading()?;
    let proxy = proxy(&operator, "p1", &space)?;
    until_slots(&proxy, 4)?;

    server.pause_etcd();
    until_leader(&operator, false)?;
    ensure!(operator.ready()?.0 == 200, "{:?}", operator.ready());
    ensure!(proxy.known().connected, "{:?}", proxy.known());
    server.resume_etcd();
    until_leader(&operator, true)?;
    cluster.apply(&policy(&space, "search", "Service", "search", 5))?;
    until_slots(&proxy, 5)?;
    until_generation(&cluster, &space, 2)?;
    operator.stop().map(drop)
}

#[test]
fn a_leader_that_was_frozen_writes_nothing_when_it_wakes() -> Result<()> {
    let (_turn, cluster, server) = turn()?;
    let (system, space) = prepared(&cluster)?;
    let old = operator(server, "frozen", &system)?;
    old.until_leading()?;
    let of_old = proxy(&old, "p1", &space)?;
    until_slots(&of_old, 4)?;
    until_generation(&cluster, &space, 1)?;
    let new = operator(server, "awake", &system)?;
    ensure!(new.metric("headgate_leader", &[])? == 0.0, "two leaders");

    old.child().pause();
    until_leader(&new, true)?;
    let of_new = proxy(&new, "p2", &space)?;
    cluster.apply(&policy(&space, "search", "Service", "search", 5))?;
    until_slots(&of_new, 5)?;
    until_generation(&cluster, &space, 2)?;

    let mark = cluster.audit_mark();
    old.child().resume();
    until_leader(&old, false)?;
    // The old leader has caught up, because its own proxy runs the new generation. So it has had
    // every reason to write.
    until_slots(&of_old, 5)?;
    let written = status_writes(&cluster, mark, "frozen")?;
    ensure!(written.is_empty(), "{written:?}");
    ensure!(
        new.metric("headgate_leader", &[])? == 1.0,
        "{}",
        new.output()
    );
    old.stop()?;
    new.stop().map(drop)
}

#[test]
fn replicas_count_each_others_proxies_and_take_over() -> Result<()> {
    let (_turn, cluster, server) = turn()?;
    let (system, space) = prepared(&cluster)?;
    // The API server takes no loopback addresses in EndpointSlices.
    let own = own_address()?;
    let token = status_token(server, &system)?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("token");
    std::fs::write(&file, &token)?;
    let start = |name: &str| {
        let kubeconfig = server.user_kubeconfig(name, Some("system:masters"))?;
        let options = OperatorOptions {
            admin: SocketAddr::from((own, 0)),
            token: Some(token.clone()),
            extra: vec![format!("--peers-token={}", file.display())],
            ..OperatorOptions::new(name, &system)
        };
        Operator::start(&kubeconfig, &options)
    };
    let (first, second) = (start("first")?, start("second")?);
    first.until_leading()?;
    cluster.apply(&replicas(&system, own, &[&first, &second]))?;
    cluster.apply(&policy(&space, "lost", "Service", "nowhere", 4))?;
    // Every proxy is connected to the replica that doesn't lead. Both replicas show all proxies.
    let p2 = proxy(&second, "p2", &space)?;
    until_slots(&p2, 4)?;
    for replica in [&first, &second] {
        until_shown(
            replica,
            &format!("{space}/search"),
            [("accepted", "Accepted"), ("programmed", "Programmed")],
        )?;
        until_shown(
            replica,
            &format!("{space}/lost"),
            [
                ("accepted", "TargetNotFound"),
                ("programmed", "TargetNotFound"),
            ],
        )?;
    }
    let p1 = proxy(&first, "p1", &space)?;
    until_slots(&p1, 4)?;
    let until_message = |message: &str| {
        until_within(LONG, message, || {
            let found = cluster.condition(&space, "search", 0, "Programmed");
            let found = found.map_err(|e| e.to_string())?;
            match found["message"] == message {
                true => Ok(()),
                false => Err(found.to_string()),
            }
        })
    };
    until_message("2 of 2 proxies run it")?;

    // The leader is terminated in the same way as by Kubernetes. The other replica need not wait
    // until the Lease expires.
    let output = first.stop()?;
    ensure!(output.contains("released the Lease"), "{output}");
    cluster.apply(&replicas(&system, own, &[&second]))?;
    until_leader(&second, true)?;
    p1.move_to(second.xds());
    until_message("2 of 2 proxies run it")?;
    cluster.apply(&policy(&space, "search", "Service", "search", 5))?;
    until_slots(&p1, 5)?;
    until_generation(&cluster, &space, 2)?;
    second.stop().map(drop)
}

#[test]
fn an_operator_that_starts_again_writes_nothing_new() -> Result<()> {
    let (_turn, cluster, server) = turn()?;
    let (system, space) = prepared(&cluster)?;
    // Both operators use the same module folder, as the Pods of a node do. With another folder,
    // proxies would get another path of the module.
    let kubeconfig = server.user_kubeconfig("again", Some("system:masters"))?;
    let dir = tempfile::tempdir()?;
    let options = OperatorOptions {
        dir: Some(dir.path().to_owned()),
        ..OperatorOptions::new("again", &system)
    };
    let before = Operator::start(&kubeconfig, &options)?;
    let proxy = proxy(&before, "p1", &space)?;
    until_slots(&proxy, 4)?;
    until_generation(&cluster, &space, 1)?;
    before.kill()?;
    let mark = cluster.audit_mark();
    let after = Operator::start(&kubeconfig, &options)?;
    after.until_leading()?;
    // The second operator writes statuses while the proxy is still disconnected.
    cluster.apply(&policy(&space, "later", "Service", "nowhere", 4))?;
    cluster.until_condition(&space, "later", 0, "Accepted", "False", "TargetNotFound")?;
    proxy.move_to(after.xds());
    until_within(LONG, "the proxy to be back", || {
        let status = after.status().map_err(|e| e.to_string())?;
        match status["proxies"][0]["state"] == "Running" {
            true => Ok(()),
            false => Err(status["proxies"].to_string()),
        }
    })?;
    until_generation(&cluster, &space, 1)?;
    let reasons = cluster.event_reasons(&space, "search")?;
    let accepted = reasons.iter().filter(|r| *r == "Accepted").count();
    // There is no such Event if the first operator died before writing it.
    ensure!(accepted <= 1, "told twice: {reasons:?}");
    ensure!(
        proxy.known().history.len() == 1,
        "sent twice: {:?}",
        proxy.known()
    );
    let written = status_writes(&cluster, mark, "again")?;
    let mut written = written.iter().filter(|e| e.namespace == space);
    ensure!(written.all(|e| e.name == "later"), "{written:?}");
    after.stop().map(drop)
}

#[test]
fn an_operator_serves_nothing_before_it_has_seen_everything() -> Result<()> {
    let (_turn, cluster, server) = turn()?;
    let (system, space) = prepared(&cluster)?;
    let kubeconfig = server.user_kubeconfig("early", Some("system:masters"))?;
    let admin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let options = OperatorOptions {
        admin,
        ..OperatorOptions::new("early", &system)
    };
    server.pause_api_server();
    let (mut child, _dir) = Operator::spawn(&kubeconfig, &options)?;
    until_within(LONG, "an answer", || {
        let ready = http::get(admin, "/readyz").map_err(|e| e.to_string())?;
        let is_so = ready.status == 503 && ready.body.contains("AdmissionPolicies");
        if is_so { Ok(()) } else { Err(ready.body) }
    })?;
    ensure!(http::get(admin, "/healthz")?.status == 200, "it is alive");
    server.resume_api_server();
    let line = child.wait_for_line("headgate: xds=")?;
    ensure!(http::get(admin, "/readyz")?.status == 200, "{line}");
    let xds = line
        .split_whitespace()
        .find_map(|w| w.strip_prefix("xds="))
        .context("no address")?;
    let claims = Claims::pod("p1", &space, &[("app", "search")]);
    let proxy = XdsProxy::start(xds.parse()?, claims)?;
    until_slots(&proxy, 4)?;
    ensure!(proxy.known().history.len() == 1, "{:?}", proxy.known());
    child.stop()
}

/// Returns a token that all operators accept for their status.
fn status_token(server: &ApiServer, system: &str) -> Result<String> {
    let account = format!("--serviceaccount={system}:default");
    server.kubectl(&[
        "create",
        "clusterrole",
        system,
        "--verb=get",
        "--non-resource-url=/status,/status/policies,/metrics",
    ])?;
    let role = format!("--clusterrole={system}");
    server.kubectl(&["create", "clusterrolebinding", system, &role, &account])?;
    let space = format!("--namespace={system}");
    let token = [
        "create",
        "token",
        "default",
        &space,
        "--audience=headgate.dev",
    ];
    let token = until("the namespace's service account", || {
        server.kubectl(&token).map_err(|error| format!("{error:#}"))
    })?;
    Ok(token.trim().to_owned())
}

/// Returns the Service by which replicas find each other, with an EndpointSlice for each replica.
fn replicas(system: &str, own: Ipv4Addr, all: &[&Operator]) -> String {
    let mut yaml = format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: headgate-metrics, namespace: {system}}}
spec: {{clusterIP: None, ports: [{{name: http-admin, port: 18001}}]}}
"
    );
    for (n, slot) in ["a", "b"].iter().enumerate() {
        // A replica that no longer exists has an empty slice.
        let (endpoints, port) = match all.get(n) {
            Some(operator) => (
                format!("{{addresses: [\"{own}\"], conditions: {{ready: true}}}}"),
                operator.admin().port(),
            ),
            None => (String::new(), 18_001),
        };
        yaml += &format!(
            "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: headgate-metrics-{slot}
  namespace: {system}
  labels:
    kubernetes.io/service-name: headgate-metrics
    endpointslice.kubernetes.io/managed-by: test
addressType: IPv4
endpoints: [{endpoints}]
ports: [{{name: http-admin, port: {port}}}]
"
        );
    }
    yaml
}

/// Only the operator can find this mistake. If the proxy didn't report its configuration, the other
/// policy of its Pods would replace the broken policy.
#[test]
fn an_operator_that_starts_over_a_mistake_leaves_the_policy_with_its_proxies() -> Result<()> {
    let (_turn, cluster, server) = turn()?;
    let (system, space) = prepared(&cluster)?;
    cluster.apply(&service(&space, "same", "app=search"))?;
    cluster.apply(&policy(&space, "younger", "Service", "same", 7))?;
    let first = operator(server, "before", &system)?;
    let proxy = proxy(&first, "p1", &space)?;
    until_slots(&proxy, 4)?;

    let slo = json!({"p50": "18ms"});
    let matches = json!([{"path": {"type": "RegularExpression", "value": "/("}}]);
    let bad = json!({"name": "bad", "slo": slo, "matches": matches});
    let mistaken = json!({"spec": {"types": [bad, {"name": "default", "slo": slo}]}});
    let patch = format!("--patch={mistaken}");
    let of = ["--type=merge", &patch, "--namespace", &space];
    cluster.kubectl(&[&["patch", "admissionpolicy", "search"][..], &of].concat())?;
    let name = format!("{space}/search");
    until_shown(
        &first,
        &name,
        [("accepted", "Invalid"), ("programmed", "Invalid")],
    )?;
    first.stop()?;

    let second = operator(server, "after", &system)?;
    proxy.move_to(second.xds());
    until_within(LONG, "a proxy that keeps what it has", || {
        let status = second.status().map_err(|e| e.to_string())?;
        match status["proxies"][0]["problem"].as_str() {
            Some(problem) if problem.contains("it keeps") => Ok(()),
            _ => Err(format!("{:?} {status}", proxy.known())),
        }
    })?;
    // An edit of the other policy has to wait, too.
    cluster.apply(&policy(&space, "younger", "Service", "same", 8))?;
    until("an edit that waits", || {
        let found = cluster.condition(&space, "younger", 0, "Programmed");
        let found = found.map_err(|e| e.to_string())?;
        match found["observedGeneration"] == 2 && found["reason"] == "Pending" {
            true => Ok(()),
            false => Err(found.to_string()),
        }
    })?;
    cluster.apply(&policy(&space, "search", "Service", "search", 5))?;
    until_slots(&proxy, 5)?;
    only_served(&proxy, &[4, 5])?;
    second.stop().map(drop)
}
