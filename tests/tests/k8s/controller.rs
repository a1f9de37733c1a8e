//! Policies in a cluster, applied with kubectl as users do, against a real API server. The tests
//! check their status, Events, the audit log, and the configuration of proxies.

use std::sync::OnceLock;

use anyhow::{Result, ensure};
use headgate_tests::kube::ApiServer;
use headgate_tests::operator::{Operator, OperatorOptions};
use headgate_tests::policies::{Cluster, endpoints, pod, policy, service};
use headgate_tests::wait::until;
use headgate_tests::xds::{Claims, XdsProxy};

/// The operator's user name at the API server.
const USER: &str = "headgate";

/// Returns the API server and the operator that all tests share. Each test has a namespace of its
/// own.
fn world() -> Result<(&'static Cluster<'static>, &'static Operator)> {
    static WORLD: OnceLock<Result<(Cluster<'static>, Operator), String>> = OnceLock::new();
    let world = WORLD.get_or_init(|| {
        let begin = || {
            let server = ApiServer::shared();
            server.install_crds()?;
            server.kubectl(&["create", "namespace", "headgate-system"])?;
            let kubeconfig = server.user_kubeconfig(USER, Some("system:masters"))?;
            let options = OperatorOptions {
                dir: Some(server.dir().join("operator")),
                ..OperatorOptions::new("headgate-0", "headgate-system")
            };
            let operator = Operator::start(&kubeconfig, &options)?;
            operator.until_leading()?;
            Ok((Cluster::new(server), operator))
        };
        begin().map_err(|error: anyhow::Error| format!("{error:#}"))
    });
    match world {
        Ok((cluster, operator)) => Ok((cluster, operator)),
        Err(error) => anyhow::bail!("{error}"),
    }
}

fn gateway(namespace: &str, name: &str, listeners: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{gatewayClassName: any, listeners: {listeners}}}
"
    )
}

const HTTP: &str = "[{name: http, port: 80, protocol: HTTP}]";

/// Waits until `Accepted` of the policy's first target has this reason and a message that contains
/// `part`.
fn until_accepted_says(
    cluster: &Cluster<'_>,
    namespace: &str,
    policy: &str,
    (reason, part): (&str, &str),
) -> Result<()> {
    until(&format!("{policy}: {reason}, {part}"), || {
        let found = cluster.condition(namespace, policy, 0, "Accepted");
        let found = found.map_err(|e| e.to_string())?;
        let message = found["message"].as_str().unwrap_or_default();
        match found["reason"] == reason && message.contains(part) {
            true => Ok(()),
            false => Err(found.to_string()),
        }
    })
}

#[test]
fn a_policy_lives_from_apply_to_delete() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("life")?;
    let name = format!("{space}/search");
    cluster.apply(&service(&space, "search", "app=search"))?;
    cluster.apply(&policy(&space, "search", "Service", "search", 4))?;
    cluster.until_condition(&space, "search", 0, "Accepted", "True", "Accepted")?;
    cluster.until_condition(&space, "search", 0, "Programmed", "False", "NoProxies")?;

    let proxy = XdsProxy::start(
        operator.xds(),
        Claims::pod("p1", &space, &[("app", "search")]),
    )?;
    let config = proxy.until_policies(&[&name])?;
    ensure!(config.stages[0].parallelism == 4, "{config:?}");
    let done = cluster.until_condition(&space, "search", 0, "Programmed", "True", "Programmed")?;
    ensure!(done["observedGeneration"] == 1, "{done}");
    ensure!(done["message"] == "1 of 1 proxies run it", "{done}");

    cluster.apply(&policy(&space, "search", "Service", "search", 7))?;
    proxy.until_slots(7)?;
    let edited = cluster.until_generation(&space, "search", 2)?;
    // `kubectl wait` can wait for the condition, without Headgate's tool.
    cluster.kubectl(&[
        "wait",
        "--for=condition=Programmed",
        "admissionpolicy/search",
        "-n",
        &space,
        "--timeout=60s",
    ])?;
    ensure!(edited["status"] == "True", "{edited}");
    ensure!(
        edited["lastTransitionTime"] == done["lastTransitionTime"],
        "it was and is programmed: {done} {edited}"
    );
    let columns = cluster.kubectl(&["get", "admissionpolicies", "-n", &space, "--no-headers"])?;
    let columns: Vec<&str> = columns.split_whitespace().collect();
    ensure!(
        columns[..5] == ["search", "search", "Enforce", "True", "True"],
        "{columns:?}"
    );

    cluster.kubectl(&["delete", "admissionpolicy", "search", "-n", &space])?;
    proxy.until_policies(&[])?;
    // Events are written after the status, one by one for all policies of this operator.
    until("the Events of Accepted and Programmed", || {
        let reasons = cluster.event_reasons(&space, "search");
        match reasons.map_err(|e| e.to_string())? {
            reasons if reasons == ["Accepted", "Programmed"] => Ok(()),
            reasons => Err(format!("{reasons:?}")),
        }
    })
}

#[test]
fn the_older_of_two_policies_applies_until_it_goes() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("conflict")?;
    let (older, newer) = (format!("{space}/z-older"), format!("{space}/a-newer"));
    cluster.apply(&service(&space, "search", "app=search"))?;
    cluster.apply(&policy(&space, "z-older", "Service", "search", 2))?;
    let created = cluster.creation_second(&space, "z-older")?;
    // Creation times have a resolution of seconds.
    until("the next second", || {
        let now = cluster.now().map_err(|e| e.to_string())?;
        if now > created { Ok(()) } else { Err(now) }
    })?;
    cluster.apply(&policy(&space, "a-newer", "Service", "search", 3))?;
    let lost = cluster.until_condition(&space, "a-newer", 0, "Accepted", "False", "Conflicted")?;
    ensure!(
        lost["message"].as_str().is_some_and(|m| m.contains(&older)),
        "{lost}"
    );
    cluster.until_condition(&space, "a-newer", 0, "Programmed", "False", "Conflicted")?;
    let proxy = XdsProxy::start(
        operator.xds(),
        Claims::pod("p1", &space, &[("app", "search")]),
    )?;
    proxy.until_policies(&[&older])?;

    cluster.kubectl(&["delete", "admissionpolicy", "z-older", "-n", &space])?;
    proxy.until_policies(&[&newer])?;
    cluster.until_condition(&space, "a-newer", 0, "Accepted", "True", "Accepted")?;
    cluster.until_condition(&space, "a-newer", 0, "Programmed", "True", "Programmed")?;
    Ok(())
}

/// An older policy of all Pods of a Service takes the place of the Service's policy.
#[test]
fn an_overridden_policy_has_its_own_condition() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("override")?;
    let of_pods = format!("{space}/z-of-pods");
    let pods = policy(&space, "z-of-pods", "Service", "search", 3).replace(
        "{group: \"\", kind: Service, name: search}",
        "{kind: Pod, matchLabels: {app: search}}",
    );
    cluster.apply(&service(&space, "search", "app=search"))?;
    cluster.apply(&pods)?;
    let created = cluster.creation_second(&space, "z-of-pods")?;
    // Creation times have a resolution of seconds.
    until("the next second", || {
        let now = cluster.now().map_err(|e| e.to_string())?;
        if now > created { Ok(()) } else { Err(now) }
    })?;
    cluster.apply(&policy(&space, "search", "Service", "search", 2))?;
    let proxy = XdsProxy::start(
        operator.xds(),
        Claims::pod("p1", &space, &[("app", "search")]),
    )?;
    proxy.until_policies(&[&of_pods])?;
    let is = |condition: &str, status: &str, reason: &str| {
        cluster.until_condition(&space, "search", 0, condition, status, reason)
    };
    let overridden = is("Overridden", "True", "Overridden")?;
    ensure!(
        overridden["message"].to_string().contains(&of_pods),
        "{overridden}"
    );
    is("Accepted", "True", "Accepted")?;
    is("Programmed", "False", "Overridden")?;
    let wait = |condition: &str, policy: &str| {
        let condition = format!("--for=condition={condition}");
        let policy = format!("admissionpolicy/{policy}");
        cluster.kubectl(&["wait", &condition, &policy, "-n", &space, "--timeout=60s"])
    };
    wait("Overridden", "search")?;
    wait("Accepted", "search")?;
    wait("Programmed", "z-of-pods")?;
    cluster.kubectl(&["delete", "admissionpolicy", "z-of-pods", "-n", &space])?;
    wait("Programmed", "search")?;
    let gone = cluster.condition(&space, "search", 0, "Overridden")?;
    ensure!(gone.is_null(), "{gone}");
    Ok(())
}

#[test]
fn a_target_may_come_later_and_go_again() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("target")?;
    let name = format!("{space}/search");
    cluster.apply(&policy(&space, "search", "Service", "search", 4))?;
    cluster.until_condition(&space, "search", 0, "Accepted", "False", "TargetNotFound")?;
    let proxy = XdsProxy::start(
        operator.xds(),
        Claims::pod("p1", &space, &[("app", "search")]),
    )?;
    cluster.apply(&service(&space, "search", "app=search"))?;
    proxy.until_policies(&[&name])?;
    cluster.until_condition(&space, "search", 0, "Programmed", "True", "Programmed")?;
    cluster.kubectl(&["delete", "service", "search", "-n", &space])?;
    proxy.until_policies(&[])?;
    cluster.until_condition(&space, "search", 0, "Accepted", "False", "TargetNotFound")?;
    Ok(())
}

#[test]
fn gateway_api_may_be_installed_later() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("gateway")?;
    let (edge, checkout) = (format!("{space}/edge"), format!("{space}/checkout"));
    cluster.apply(&policy(&space, "edge", "Gateway", "edge", 4))?;
    cluster.apply(&policy(&space, "checkout", "HTTPRoute", "checkout", 2))?;
    let listener = "edge, sectionName: plain";
    cluster.apply(&policy(&space, "plain", "Gateway", listener, 3))?;
    let plain = format!("{space}/plain");
    for name in ["edge", "checkout", "plain"] {
        cluster.until_condition(&space, name, 0, "Accepted", "False", "TargetNotFound")?;
    }
    cluster.install("gateway-api")?;
    let listeners = "[{name: plain, port: 80, protocol: HTTP}, \
                     {name: other, port: 81, protocol: HTTP}]";
    cluster.apply(&gateway(&space, "edge", listeners))?;
    cluster.apply(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: checkout, namespace: {space}}}
spec:
  parentRefs: [{{name: edge, sectionName: plain}}]
  rules: [{{name: pay, backendRefs: [{{name: checkout, port: 80}}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: search, namespace: {space}}}
spec: {{parentRefs: [{{name: edge, sectionName: plain}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: both, namespace: {space}}}
spec: {{parentRefs: [{{name: edge}}]}}
"
    ))?;
    for name in ["edge", "checkout", "plain"] {
        cluster.until_condition(&space, name, 0, "Accepted", "True", "Accepted")?;
    }
    let labels = [("gateway.networking.k8s.io/gateway-name", "edge")];
    let proxy = XdsProxy::start(operator.xds(), Claims::pod("g1", &space, &labels))?;
    let of = |route: &str| {
        [
            format!("httproute/{space}/{route}/*"),
            format!("{space}.{route}.*"),
        ]
    };
    let with_rule = |routes: &[[String; 2]]| [&routes.concat()[..], &["pay".to_owned()]].concat();
    let at_route = with_rule(&[of("checkout")]);
    let at_listener = with_rule(&[of("checkout"), of("search")]);
    proxy.until(
        "policies of routes, then of listeners, then the Gateway's",
        |c| {
            let order = c.stages.iter().map(|s| &s.policy);
            order.eq([&checkout, &plain, &edge])
                && c.stages[0].routes == at_route
                && c.stages[1].routes == at_listener
        },
    )?;
    let says =
        |policy: &str, part: &str| until_accepted_says(cluster, &space, policy, ("Accepted", part));
    says("plain", "such as HTTPRoute")?;
    let jsonpath = "--output=jsonpath={.status.ancestors[0].ancestorRef.sectionName}";
    let arguments = ["get", "admp", "plain", "--namespace", &space, jsonpath];
    ensure!(cluster.kubectl(&arguments)? == "plain");

    cluster.apply(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: both, namespace: {space}}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{name: pay}}]
"
    ))?;
    proxy.until("no rule whose name is shared", |c| {
        c.stages[0].routes == of("checkout")
            && c.stages[1].routes == [of("checkout"), of("search")].concat()
    })?;
    for name in ["checkout", "plain"] {
        says(name, "leaves out the rule pay of HTTPRoute")?;
    }

    cluster.kubectl(&["delete", "crd", "httproutes.gateway.networking.k8s.io"])?;
    proxy.until_policies(&[&edge])?;
    for name in ["checkout", "plain"] {
        cluster.until_condition(&space, name, 0, "Accepted", "False", "TargetNotFound")?;
    }
    cluster.until_condition(&space, "edge", 0, "Programmed", "True", "Programmed")?;
    Ok(())
}

/// The pool's kind is installed later, and the pool is created later, selects other Pods, and is
/// deleted.
#[test]
fn a_policy_of_a_pool_follows_it() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("pool")?;
    let name = format!("{space}/llm");
    let of_pool = policy(&space, "llm", "InferencePool", "llm", 4);
    cluster.apply(&of_pool.replace("total", "perEndpoint"))?;
    let refused =
        |message: &str| until_accepted_says(cluster, &space, "llm", ("TargetNotFound", message));
    refused("inference extension isn't installed")?;
    cluster.install("gateway-api")?;
    cluster.install("inference-extension")?;
    refused(&format!("InferencePool {name} doesn't exist"))?;
    let pool = |selector: &str| {
        cluster.apply(&format!(
            "
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {{name: llm, namespace: {space}}}
spec:
  selector: {{matchLabels: {{{selector}}}}}
  targetPorts: [{{number: 8000}}, {{number: 8001}}]
  endpointPickerRef: {{name: llm-picker, port: {{number: 9002}}}}
"
        ))
    };
    pool("model: small")?;
    refused("is no backend of a route")?;
    cluster.apply(&gateway(&space, "edge", HTTP))?;
    cluster.apply(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: chat, namespace: {space}}}
spec:
  parentRefs: [{{name: edge}}]
  rules:
  - matches: [{{path: {{value: /docs}}}}]
    backendRefs: [{{name: docs, port: 80}}]
  - backendRefs: [{{group: inference.networking.k8s.io, kind: InferencePool, name: llm}}]
"
    ))?;
    for (pod_name, labels) in [("s0", "small"), ("l0", "large"), ("l1", "large")] {
        cluster.apply(&pod(&space, pod_name, &format!("model: {labels}")))?;
        cluster.pod_is_ready(&space, pod_name, true)?;
    }
    let labels = [("gateway.networking.k8s.io/gateway-name", "edge")];
    let proxy = XdsProxy::start(operator.xds(), Claims::pod("g1", &space, &labels))?;
    let routes = [
        format!("httproute/{space}/chat/rule/1/*"),
        format!("{space}.chat.1"),
    ];
    let slots = |wanted: u32| {
        proxy.until(&format!("{wanted} slots"), |c| {
            let stage = c.stages.first();
            stage.is_some_and(|s| s.parallelism == wanted && s.routes == routes)
        })
    };
    slots(8)?;
    cluster.until_condition(&space, "llm", 0, "Programmed", "True", "Programmed")?;
    let jsonpath = "--output=jsonpath={.status.ancestors[0].ancestorRef}";
    let of = cluster.kubectl(&["get", "admp", "llm", "--namespace", &space, jsonpath])?;
    ensure!(
        of.contains(r#""group":"inference.networking.k8s.io""#),
        "{of}"
    );
    pool("model: large")?;
    slots(16)?;

    cluster.kubectl(&["delete", "inferencepool", "llm", "--namespace", &space])?;
    proxy.until_policies(&[])?;
    refused("doesn't exist")?;
    pool("model: large")?;
    slots(16)?;
    cluster.kubectl(&[
        "delete",
        "crd",
        "inferencepools.inference.networking.k8s.io",
    ])?;
    proxy.until_policies(&[])?;
    refused("inference extension isn't installed")?;
    Ok(())
}

/// A Gateway of the platform's namespace serves a route of another namespace. The Gateway's
/// controller reports in the route's status that the Gateway has accepted the route.
#[test]
fn a_routes_policy_reaches_a_gateway_that_has_accepted_the_route() -> Result<()> {
    let (cluster, operator) = world()?;
    let (infra, shop) = (cluster.namespace("infra")?, cluster.namespace("shop")?);
    let name = format!("{shop}/checkout");
    cluster.install("gateway-api")?;
    cluster.apply(&policy(&shop, "checkout", "HTTPRoute", "checkout", 2))?;
    let listeners =
        "[{name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}]";
    cluster.apply(&gateway(&infra, "shared", listeners))?;
    cluster.apply(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: checkout, namespace: {shop}}}
spec:
  parentRefs: [{{name: shared, namespace: {infra}}}]
  rules: [{{backendRefs: [{{name: checkout, port: 80}}]}}]
"
    ))?;
    let labels = [("gateway.networking.k8s.io/gateway-name", "shared")];
    let proxy = XdsProxy::start(operator.xds(), Claims::pod("g1", &infra, &labels))?;
    let part = "none of another namespace has accepted it";
    until_accepted_says(cluster, &shop, "checkout", ("TargetNotFound", part))?;

    let judge = |accepted: &str| {
        let parents = serde_json::json!({"status": {"parents": [{
            "controllerName": "example.com/gateways",
            "parentRef": {"name": "shared", "namespace": infra},
            "conditions": [{
                "type": "Accepted", "status": accepted, "reason": "Judged", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }]}});
        cluster.kubectl(&[
            "patch",
            "httproute",
            "checkout",
            "--namespace",
            &shop,
            "--subresource=status",
            "--type=merge",
            "--patch",
            &parents.to_string(),
        ])
    };
    judge("True")?;
    let config = proxy.until_policies(&[&name])?;
    ensure!(
        !config.stages[0].routes.is_empty(),
        "only its requests: {config:?}"
    );
    cluster.until_condition(&shop, "checkout", 0, "Programmed", "True", "Programmed")?;
    judge("False")?;
    proxy.until_policies(&[])?;
    cluster.until_condition(&shop, "checkout", 0, "Accepted", "False", "TargetNotFound")?;
    Ok(())
}

#[test]
fn a_proxy_that_refuses_is_named() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("refused")?;
    let name = format!("{space}/search");
    cluster.apply(&service(&space, "search", "app=search"))?;
    let claims = |id: &str| Claims::pod(id, &space, &[("app", "search")]);
    let good = XdsProxy::start(operator.xds(), claims("good"))?;
    good.until_policies(&[])?;
    let bad = XdsProxy::start(operator.xds(), claims("bad"))?;
    bad.until_policies(&[])?;
    bad.refuse(Some("no such module"));
    cluster.apply(&policy(&space, "search", "Service", "search", 4))?;
    good.until_policies(&[&name])?;
    let refused =
        cluster.until_condition(&space, "search", 0, "Programmed", "False", "EnvoyRejected")?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("bad refused it: no such module"),
        "{refused}"
    );
    bad.refuse(None);
    cluster.apply(&policy(&space, "search", "Service", "search", 5))?;
    bad.until_policies(&[&name])?;
    cluster.until_condition(&space, "search", 0, "Programmed", "True", "Programmed")?;
    Ok(())
}

#[test]
fn slots_follow_the_pods_that_share_them() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("slots")?;
    cluster.apply(&service(&space, "search", "app=search"))?;
    cluster.apply(&policy(&space, "search", "Service", "search", 12))?;
    let proxy = XdsProxy::start(
        operator.xds(),
        Claims::pod("p0", &space, &[("app", "search")]),
    )?;
    proxy.until_slots(12)?;
    for n in 0..3 {
        cluster.apply(&pod(&space, &format!("p{n}"), "app: search"))?;
        cluster.pod_is_ready(&space, &format!("p{n}"), true)?;
    }
    proxy.until_slots(4)?;
    cluster.pod_is_ready(&space, "p2", false)?;
    proxy.until_slots(6)?;
    cluster.kubectl(&[
        "delete",
        "pod",
        "p1",
        "-n",
        &space,
        "--force",
        "--grace-period=0",
    ])?;
    proxy.until_slots(12)?;
    Ok(())
}

/// Envoy Gateway's labels for the Pods of a Gateway count only in Envoy Gateway's namespace, so
/// other tenants can't claim slots with these labels.
#[test]
fn labels_of_another_namespaces_pods_take_no_slots() -> Result<()> {
    let (cluster, operator) = world()?;
    let (infra, evil) = (cluster.namespace("infra")?, cluster.namespace("evil")?);
    cluster.kubectl(&["create", "namespace", "envoy-gateway-system"])?;
    cluster.install("gateway-api")?;
    cluster.apply(&gateway(&infra, "edge", HTTP))?;
    cluster.apply(&policy(&infra, "edge", "Gateway", "edge", 20))?;
    let labels = [("gateway.networking.k8s.io/gateway-name", "edge")];
    let proxy = XdsProxy::start(operator.xds(), Claims::pod("g1", &infra, &labels))?;
    proxy.until_slots(20)?;
    let owning = "gateway.envoyproxy.io/owning-gateway";
    let labels = format!("{owning}-namespace: {infra}, {owning}-name: edge");
    let run = |space: &str, pods: u32| -> Result<()> {
        for n in 0..pods {
            cluster.apply(&pod(space, &format!("p{n}"), &labels))?;
            cluster.pod_is_ready(space, &format!("p{n}"), true)?;
        }
        Ok(())
    };
    run(&evil, 4)?;
    cluster.apply(&policy(&infra, "edge", "Gateway", "edge", 24))?;
    proxy.until_slots(24)?;
    run("envoy-gateway-system", 2)?;
    proxy.until_slots(12)?;
    Ok(())
}

#[test]
fn policies_do_not_reach_other_namespaces() -> Result<()> {
    let (cluster, operator) = world()?;
    let ours: String = cluster.namespace("ours")?;
    let theirs: String = cluster.namespace("theirs")?;
    for space in [&ours, &theirs] {
        cluster.apply(&service(space, "search", "app=search"))?;
    }
    cluster.apply(&policy(&ours, "search", "Service", "search", 4))?;
    let of = |space: &str| Claims::pod("p1", space, &[("app", "search")]);
    let own = XdsProxy::start(operator.xds(), of(&ours))?;
    own.until_policies(&[&format!("{ours}/search")])?;
    let foreign = XdsProxy::start(operator.xds(), of(&theirs))?;
    foreign.until_policies(&[])?;
    // The same holds for a proxy that claims another target.
    let claims = Claims {
        target: Some(format!("Service/{ours}/search")),
        ..of(&theirs)
    };
    let liar = XdsProxy::start(operator.xds(), claims)?;
    liar.until_policies(&[])?;
    let done = cluster.until_condition(&ours, "search", 0, "Programmed", "True", "Programmed")?;
    ensure!(done["message"] == "1 of 1 proxies run it", "{done}");
    // A policy can't name a target in another namespace either, because it has no such field.
    let elsewhere = policy(&ours, "elsewhere", "Service", "search", 4).replace(
        "name: search}]",
        &format!("name: search, namespace: {theirs}}}]"),
    );
    ensure!(
        cluster.apply(&elsewhere).is_err(),
        "a target of another namespace"
    );
    Ok(())
}

#[test]
fn nothing_is_written_while_nothing_changes() -> Result<()> {
    let (cluster, operator) = world()?;
    let space = cluster.namespace("rest")?;
    let begin = cluster.audit_mark();
    cluster.apply(&service(&space, "search", "app=search"))?;
    cluster.apply(&endpoints(&space, "search", &["198.51.100.7"]))?;
    cluster.apply(&policy(&space, "search", "Service", "search", 4))?;
    let proxy = XdsProxy::start(
        operator.xds(),
        Claims::pod("p1", &space, &[("app", "search")]),
    )?;
    cluster.until_condition(&space, "search", 0, "Programmed", "True", "Programmed")?;
    // The Events about both conditions are written after the status, one by one for all policies of
    // this operator.
    until("the Events of Accepted and Programmed", || {
        let events = cluster.audit(begin).map_err(|e| e.to_string())?;
        let told = events.iter().filter(|e| {
            e.user == USER && e.namespace == space && e.resource == "events" && e.is_write()
        });
        match told.count() {
            0..2 => Err("fewer than two".to_owned()),
            _ => Ok(()),
        }
    })?;

    // These changes have no effect: the metadata of a policy, and of a Pod.
    cluster.apply(&pod(&space, "idle", "app: other"))?;
    let mark = cluster.audit_mark();
    cluster.kubectl(&[
        "annotate",
        "admissionpolicy",
        "search",
        "-n",
        &space,
        "note=1",
    ])?;
    cluster.kubectl(&["label", "pod", "idle", "-n", &space, "note=1"])?;
    let versions = proxy.known().history.len();
    // The wait lasts for two more renewals of the Lease, so that enough time has passed.
    until("renewals", || {
        let events = cluster.audit(mark).map_err(|e| e.to_string())?;
        let renewals = events
            .iter()
            .filter(|e| e.user == USER && e.resource == "leases");
        match renewals.count() {
            0..2 => Err("fewer than two".to_owned()),
            _ => Ok(()),
        }
    })?;
    let events = cluster.audit(mark)?;
    let ours = events.iter().filter(|e| e.user == USER);
    let written: Vec<_> = ours
        .filter(|e| e.is_write() && e.resource != "leases" && e.namespace == space)
        .collect();
    ensure!(written.is_empty(), "{written:?}");
    ensure!(
        proxy.known().history.len() == versions,
        "{:?}",
        proxy.known()
    );
    Ok(())
}

#[test]
fn a_crowd_of_proxies_makes_few_writes() -> Result<()> {
    const CROWD: usize = 100;
    let (cluster, operator) = world()?;
    let space = cluster.namespace("crowd")?;
    cluster.apply(&service(&space, "search", "app=search"))?;
    cluster.apply(&policy(&space, "search", "Service", "search", 1_000))?;
    cluster.until_condition(&space, "search", 0, "Programmed", "False", "NoProxies")?;
    let mark = cluster.audit_mark();
    let begun = std::time::Instant::now();
    let crowd: Vec<XdsProxy> = (0..CROWD)
        .map(|n| {
            let claims = Claims::pod(&format!("p{n}"), &space, &[("app", "search")]);
            XdsProxy::start(operator.xds(), claims)
        })
        .collect::<Result<_>>()?;
    until("all of them in the status", || {
        let status = cluster.condition(&space, "search", 0, "Programmed");
        let status = status.map_err(|e| e.to_string())?;
        let wanted = format!("{CROWD} of {CROWD} proxies run it");
        match status["message"] == wanted.as_str() {
            true => Ok(()),
            false => Err(status.to_string()),
        }
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let events = cluster.audit(mark)?;
    let writes = events.iter().filter(|e| {
        e.user == USER && e.namespace == space && e.resource == "admissionpolicies/status"
    });
    // The operator may write once a second, and once at the start.
    let writes = writes.count();
    ensure!(
        (writes as f64) <= seconds + 2.0,
        "{writes} writes in {seconds} s"
    );
    drop(crowd);
    cluster.until_condition(&space, "search", 0, "Programmed", "False", "NoProxies")?;
    Ok(())
}
