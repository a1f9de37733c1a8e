use std::time::SystemTime;

use serde_json::json;

use super::super::text::render;
use super::*;
use headgate_controller::report::Report;
use headgate_deliver::{Adapter, NO_FILTER};

fn policy(name: &str, generation: i64, ancestors: &serde_json::Value) -> PolicyResource {
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "shop", "generation": generation,
            "creationTimestamp": "2026-03-01T12:00:00Z",
        },
        "spec": {
            "mode": "DryRun",
            "targetRefs": [
                {"kind": "Service", "name": "search"},
                {"kind": "Pod", "matchLabels": {"app": "a", "tier": "web"}},
            ],
        },
        "status": {"ancestors": ancestors},
    }))
    .unwrap()
}

fn ancestor(controller: &str, conditions: &[(&str, bool, &str, i64)]) -> serde_json::Value {
    let condition = |&(kind, status, reason, generation): &(&str, bool, &str, i64)| {
        json!({
            "type": kind,
            "status": if status { "True" } else { "False" },
            "reason": reason,
            "message": match reason {
                "Accepted" => "valid".to_owned(),
                reason => format!("because of {reason}"),
            },
            "observedGeneration": generation,
            "lastTransitionTime": "2026-03-01T12:00:00Z",
        })
    };
    json!({
        "ancestorRef": {"group": "", "kind": "Service", "name": "search"},
        "controllerName": controller,
        "conditions": conditions.iter().map(condition).collect::<Vec<_>>(),
    })
}

fn operator(pod: &str, proxies: &serde_json::Value) -> Operator {
    let report: Report = serde_json::from_value(json!({
        "time": "2026-03-01T12:00:00Z", "version": "1.2.3",
        "module": {"path": "/m", "hash": format!("module of {pod}"), "bytes": 1},
        "policies": [], "proxies": proxies, "problems": [],
    }))
    .unwrap();
    Operator {
        pod: pod.to_owned(),
        report: Ok(report),
    }
}

fn proxy(node: &str, namespace: &str, state: &str) -> serde_json::Value {
    let gone = (state == "Disconnected").then_some("2026-03-01T12:30:00Z");
    json!({
        "node": node, "cluster": "c", "target": null, "namespace": namespace, "peer": "10.0.0.1:1",
        "slots": ["headgate"],
        "connected": "2026-03-01T12:00:00Z", "disconnected": gone, "state": state,
        "policies": ["shop/search"], "problem": null, "sent": null,
        "acked": {"version": "1", "revision": "abc", "time": "2026-03-01T12:00:00Z"},
        "nack": if state == "Rejected" {
            json!({
                "version": "2", "revision": "def", "time": "2026-03-01T12:10:00Z",
                "message": "bad module",
            })
        } else { json!(null) },
    })
}

fn ours(conditions: &[(&str, bool, &str, i64)]) -> serde_json::Value {
    json!([ancestor("headgate.dev/controller", conditions)])
}

fn at_half_past() -> SystemTime {
    SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_772_368_200)
}

#[test]
fn one_answer_out_of_policies_and_all_operators() {
    let good = [
        ("Accepted", true, "Accepted", 3),
        ("Programmed", true, "Programmed", 3),
    ];
    let bad = [
        ("Accepted", false, "Conflicted", 1),
        ("Programmed", false, "Conflicted", 1),
    ];
    let policies = [
        policy("search", 3, &ours(&good)),
        policy("younger", 1, &ours(&bad)),
    ];
    let operators = [
        operator(
            "s/a",
            &json!([
                proxy("p1", "shop", "Running"),
                proxy("p2", "shop", "Disconnected")
            ]),
        ),
        operator(
            "s/b",
            &json!([
                proxy("p2", "shop", "Rejected"),
                proxy("p3", "other", "Running")
            ]),
        ),
        Operator {
            pod: "s/c".into(),
            report: Err("503 Service Unavailable: no endpoints".into()),
        },
    ];
    let view = View::new(&policies, &operators, Vec::new(), Some("shop"));
    assert!(!view.ok());
    assert_eq!(
        view.policies[0].proxies,
        Some(Share {
            in_sync: 1,
            total: 2
        })
    );
    let nodes: Vec<_> = view
        .proxies
        .iter()
        .map(|p| (p.report.node.as_str(), p.operator.as_str()))
        .collect();
    assert_eq!(
        nodes,
        [("p1", "s/a"), ("p2", "s/b")],
        "who is connected knows better, and p3 is of another namespace"
    );
    insta::assert_snapshot!(render(&view, at_half_past()));
    let json = serde_json::to_value(&view).unwrap();
    assert_eq!(
        json["policies"][0]["proxies"],
        json!({"inSync": 1, "total": 2})
    );
    assert_eq!(
        json["policies"][0]["targets"][0]["accepted"]["status"],
        "True"
    );
    assert_eq!(
        json["workloads"][0]["outOfForce"][0]["policy"],
        "shop/younger"
    );
    assert_eq!(json["proxies"][1]["nack"]["message"], "bad module");
    assert_eq!(json["proxies"][1]["operator"], "s/b");
}

#[test]
fn a_policy_that_no_operator_has_reconciled_is_unknown() {
    let theirs = json!([ancestor(
        "example.com/other",
        &[("Accepted", true, "Accepted", 1)]
    )]);
    let view = View::new(&[policy("search", 1, &theirs)], &[], Vec::new(), None);
    let targets = &view.policies[0].targets;
    let names: Vec<_> = targets.iter().map(|t| t.target.as_str()).collect();
    assert_eq!(names, ["Service/shop/search", "Pod/shop/app=a,tier=web"]);
    assert_eq!(targets[0].reason(Type::Accepted), "Pending");
    assert_eq!(view.policies[0].proxies, None, "unknown");
    assert!(!view.ok());

    let old = [
        ("Accepted", true, "Accepted", 1),
        ("Programmed", true, "Programmed", 1),
    ];
    let stale = View::new(&[policy("search", 2, &ours(&old))], &[], Vec::new(), None);
    let accepted = &stale.policies[0].targets[0].conditions[&Type::Accepted];
    assert_eq!(
        (accepted.status.as_str(), accepted.reason.as_str()),
        ("Unknown", "Stale")
    );
    assert!(
        accepted.message.contains("reconciled generation 2 yet"),
        "{accepted:?}"
    );
    assert!(!stale.ok());
}

#[test]
fn no_proxies_is_no_mistake() {
    let conditions = [
        ("Accepted", true, "Accepted", 1),
        ("Programmed", false, "NoProxies", 1),
    ];
    assert!(
        View::new(
            &[policy("search", 1, &ours(&conditions))],
            &[],
            Vec::new(),
            None
        )
        .ok()
    );
    let conditions = [
        ("Accepted", true, "Accepted", 1),
        ("Programmed", false, "EnvoyRejected", 1),
    ];
    assert!(
        !View::new(
            &[policy("search", 1, &ours(&conditions))],
            &[],
            Vec::new(),
            None
        )
        .ok()
    );
    assert!(View::new(&[], &[], Vec::new(), None).ok());
    assert_eq!(
        render(&View::new(&[], &[], Vec::new(), None), at_half_past()),
        "No policies.\n"
    );
}

/// Returns a delivered policy, and the objects that carry it: a WasmPlugin without a status, and an
/// EnvoyExtensionPolicy whose condition `Accepted` is `accepted`.
fn carried(accepted: &str, generation: i64) -> (Vec<PolicyResource>, Objects) {
    let object = |kind: &str, status: &Value| {
        serde_json::from_value(json!({
            "apiVersion": "x/v1", "kind": kind,
            "metadata": {
                "name": "headgate-search-1", "namespace": "shop", "generation": 2,
                "annotations": {
                    "headgate.dev/policies": "shop/search,other/edge",
                    "headgate.dev/revision": "abc",
                },
            },
            "status": status,
        }))
        .unwrap()
    };
    let said = json!({"ancestors": [{"conditions": [{
        "type": "Accepted", "status": accepted, "reason": "Invalid", "message": "no such module",
        "observedGeneration": generation,
    }]}]});
    let good = [
        ("Accepted", true, "Accepted", 1),
        ("Programmed", true, "Programmed", 1),
    ];
    let objects = vec![
        (Adapter::ConfigMap, Err(anyhow::anyhow!("forbidden"))),
        (
            Adapter::EnvoyGateway,
            Ok(vec![object("EnvoyExtensionPolicy", &said)]),
        ),
        (Adapter::Istio, Ok(vec![object("WasmPlugin", &json!(null))])),
    ];
    (vec![policy("search", 1, &ours(&good))], objects)
}

#[test]
fn objects_speak_for_proxies_that_no_operator_sees() {
    let operators = [operator("s/a", &json!([]))];
    let (policies, objects) = carried("False", 2);
    let view = View::new(&policies, &operators, objects, Some("shop"));
    assert_eq!(view.hidden, [], "no policy is in a ConfigMap");
    insta::assert_snapshot!(render(&view, at_half_past()));

    let stale = carried("True", 1).1;
    let view = View::new(&policies, &operators, stale, None);
    assert_eq!(view.objects[0].conditions[0].1.reason, "Stale");
    let elsewhere = View::new(&policies, &operators, carried("True", 2).1, Some("x"));
    assert_eq!(elsewhere.objects, [], "no policy of this namespace");

    // Even a correct delivery may not reach every sidecar.
    let mut policies = policies;
    let conditions = &mut policies[0].status.as_mut().unwrap().ancestors[0].conditions;
    conditions[1].message = format!("delivered; {NO_FILTER}: answers 503");
    let view = View::new(&policies, &operators, carried("True", 2).1, Some("shop"));
    let text = render(&view, at_half_past());
    let warning = format!("Programmed: delivered; {NO_FILTER}: answers 503");
    assert!(text.contains(&warning), "{text}");

    // Without the right to read the object, only its name is known.
    let conditions = &mut policies[0].status.as_mut().unwrap().ancestors[0].conditions;
    conditions[1].message = "delivered as WasmPlugin shop/headgate-search-1".to_owned();
    let refused = vec![(Adapter::Istio, Err(anyhow::anyhow!("forbidden")))];
    let view = View::new(&policies, &operators, refused, Some("shop"));
    assert_eq!(view.hidden, [("WasmPlugin", "forbidden".to_owned())]);
    let text = render(&view, at_half_past());
    assert!(
        text.contains("Programmed: delivered as WasmPlugin shop/"),
        "{text}"
    );
    assert!(!text.contains("No proxies"), "{text}");
}

#[test]
fn programmed_is_more_than_no_mistake() {
    let of = |status, reason| {
        let accepted = ("Accepted", true, "Accepted", 1);
        vec![policy(
            "search",
            1,
            &ours(&[accepted, ("Programmed", status, reason, 1)]),
        )]
    };
    let programmed = |policies: &[_]| View::new(policies, &[], Vec::new(), None).programmed();
    assert!(programmed(&of(true, "Programmed")));
    assert!(!programmed(&of(false, "NoProxies")));
    assert!(!programmed(&[]), "no policy to wait for");
}

#[test]
fn status_treats_an_overridden_policy_as_done() {
    let conditions = [
        ("Accepted", true, "Accepted", 1),
        ("Programmed", false, "Overridden", 1),
        ("Overridden", true, "Overridden", 1),
    ];
    let good = [
        ("Accepted", true, "Accepted", 1),
        ("Programmed", true, "Programmed", 1),
    ];
    let policies = [
        policy("general", 1, &ours(&conditions)),
        policy("special", 1, &ours(&good)),
    ];
    let view = View::new(&policies, &[], Vec::new(), None);
    assert!(view.ok() && view.programmed());
    let workload = &view.workloads[0];
    assert_eq!(workload.in_force, ["shop/special"]);
    let lost: Vec<_> = { workload.out_of_force.iter() }
        .map(|l| (l.policy.as_str(), l.reason.as_str()))
        .collect();
    assert_eq!(lost, [("shop/general", "Overridden")]);
    let text = render(&view, at_half_past());
    let about: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("shop/general:"))
        .collect();
    assert_eq!(about, ["shop/general: Overridden: because of Overridden"]);
    let json = serde_json::to_value(&view).unwrap();
    assert_eq!(
        json["policies"][0]["targets"][0]["overridden"]["status"],
        "True"
    );
    assert_eq!(json["policies"][1]["targets"][0].get("overridden"), None);
}

#[test]
fn a_proxy_of_another_namespace_does_not_replace_a_disconnected_one() {
    let operators = [operator(
        "s/a",
        &json!([
            proxy("web-0", "shop", "Disconnected"),
            proxy("web-0", "bank", "Running"),
        ]),
    )];
    for (namespace, nodes) in [(Some("shop"), 1), (Some("bank"), 1), (None, 2)] {
        let view = View::new(&[], &operators, Vec::new(), namespace);
        assert_eq!(view.proxies.len(), nodes, "{namespace:?}");
    }
}
