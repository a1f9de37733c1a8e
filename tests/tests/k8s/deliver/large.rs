//! Objects of 1 MB, the largest size that an API server takes.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use headgate_api::plan::{TargetKind, TargetRef};
use headgate_deliver::cluster::{Gateway, ObjectKey, Route};
use serde_json::{Value, json};

use super::stage::Stage;
use super::{EDGE, policy, say};

/// Adds Gateway `edge` of Envoy Gateway, with these routes, to the cluster of `stage`.
fn gateway(stage: &mut Stage, routes: &[&str]) {
    let edge = ObjectKey::new(&stage.namespace, "edge");
    stage.cluster.served_kinds = vec![TargetKind::Gateway, TargetKind::HttpRoute];
    let class = "eg".to_owned();
    let gateway = Gateway {
        class,
        ..Gateway::default()
    };
    Arc::make_mut(&mut stage.cluster.gateways).insert(edge.clone(), gateway);
    for &name in routes {
        let target = TargetRef {
            kind: TargetKind::HttpRoute,
            namespace: stage.namespace.clone(),
            name: name.to_owned(),
            section: None,
        };
        let route = Route {
            gateways: vec![edge.clone()],
            ..Route::default()
        };
        Arc::make_mut(&mut stage.cluster.routes).insert(target, route);
    }
}

/// Returns a policy called `name` for the route of the same name, with this many matches of 64 kB
/// each.
fn large(stage: &Stage, name: &str, matches: usize) -> String {
    let header = |m: usize, h: usize| {
        let value = format!("{m}-{h}-{}", "v".repeat(4_000));
        json!({"name": format!("x-{h}"), "value": value})
    };
    let of_headers = |m: usize| (0..16).map(|h| header(m, h)).collect::<Value>();
    let matches: Value = { 0..matches }
        .map(|m| json!({"headers": of_headers(m)}))
        .collect();
    json!({
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "AdmissionPolicy",
        "metadata": {"name": name, "namespace": stage.namespace},
        "spec": {
            "targetRefs": [
                {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name},
            ],
            "parallelism": {"perEndpoint": 3},
            "strategy": {"type": "MaxQueueLength"},
            "types": [{"name": "large", "matches": matches}, {"name": "default"}],
        },
    })
    .to_string()
}

/// Returns the names of the policies in an object, sorted.
fn policies(object: &Value) -> Vec<&str> {
    let stages = object["spec"]["wasm"][0]["config"]["stages"].as_array();
    let names = stages.into_iter().flatten().map(|s| s["policy"].as_str());
    let names = names
        .flatten()
        .filter_map(|name| name.split('/').next_back());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names
}

/// Waits until the object has these policies. Then accepts the object in place of Envoy Gateway.
fn accepted(stage: &Stage, wanted: &[&str]) -> Result<Value> {
    let what = wanted.join(", ");
    let object = stage.wait_for("envoyextensionpolicies", &what, |o| policies(o) == wanted)?;
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().context("name")?;
    let generation = metadata["generation"].as_u64().context("generation")?;
    say(stage, name, "True", "", generation)?;
    stage.only("envoyextensionpolicies").map_err(|e| anyhow!(e))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_without_room_at_a_shared_gateway_says_so_and_the_others_stay() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    gateway(&mut stage, &["checkout", "search"]);
    stage.policy(&policy(&namespace, "edge", EDGE, 3))?;
    stage.policy(&large(&stage, "checkout", 7))?;
    stage.show();
    let before = accepted(&stage, &["checkout", "edge"])?;
    for name in ["checkout", "edge"] {
        stage.programmed(name, true, "EnvoyExtensionPolicy").await?;
    }

    stage.policy(&large(&stage, "search", 10))?;
    stage.show();
    let said = stage.programmed("search", false, "left out").await?;
    assert!(said.contains("EnvoyExtensionPolicy"), "{said}");
    for name in ["checkout", "edge"] {
        stage.programmed(name, true, "EnvoyExtensionPolicy").await?;
    }
    let now = stage
        .only("envoyextensionpolicies")
        .map_err(|e| anyhow!(e))?;
    assert_eq!(now["metadata"], before["metadata"], "nothing was written");

    // All policies fit into one object, and the API server takes the object.
    stage.policy(&large(&stage, "search", 7))?;
    stage.show();
    let all = accepted(&stage, &["checkout", "edge", "search"])?;
    assert_eq!(all["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(all.to_string().len() > 900_000);
    stage
        .programmed("search", true, "EnvoyExtensionPolicy")
        .await?;

    // One of the delivered policies grows too large. Its last version that fitted stays, and
    // changes of the other policies are still delivered.
    stage.policy(&large(&stage, "search", 12))?;
    stage.show();
    stage.programmed("search", false, "not in force").await?;
    for name in ["checkout", "edge"] {
        stage.programmed(name, true, "EnvoyExtensionPolicy").await?;
    }
    let now = stage
        .only("envoyextensionpolicies")
        .map_err(|e| anyhow!(e))?;
    assert_eq!(now["metadata"], all["metadata"], "nothing was written");
    stage.policy(&policy(&namespace, "edge", EDGE, 5))?;
    stage.show();
    let slots = |object: &Value| {
        let stages = object["spec"]["wasm"][0]["config"]["stages"].as_array();
        let mut stages = stages.into_iter().flatten();
        let edge = stages.find(|s| s["policy"] == format!("{namespace}/edge"));
        edge.map(|s| s["parallelism"].clone())
    };
    let what = "five slots";
    let now = stage.wait_for("envoyextensionpolicies", what, |o| {
        slots(o) == Some(json!(5))
    })?;
    assert_eq!(policies(&now), ["checkout", "edge", "search"]);
    assert!(now.to_string().len() > 900_000);

    stage.policy(&large(&stage, "search", 6))?;
    stage.show();
    stage.wait_for("envoyextensionpolicies", "6 matches", |o| {
        o.to_string().len() < 900_000
    })?;
    accepted(&stage, &["checkout", "edge", "search"])?;
    stage
        .programmed("search", true, "EnvoyExtensionPolicy")
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_stays_when_its_only_policy_outgrows_it() -> Result<()> {
    let mut stage = Stage::set().await?;
    gateway(&mut stage, &["search"]);
    stage.policy(&large(&stage, "search", 4))?;
    stage.show();
    let before = accepted(&stage, &["search"])?;
    stage
        .programmed("search", true, "EnvoyExtensionPolicy")
        .await?;

    stage.policy(&large(&stage, "search", 16))?;
    stage.show();
    let said = stage.programmed("search", false, "at most 1000000").await?;
    assert!(said.contains("EnvoyExtensionPolicy"), "{said}");
    let now = stage
        .only("envoyextensionpolicies")
        .map_err(|e| anyhow!(e))?;
    assert_eq!(now["metadata"], before["metadata"], "nothing was written");

    stage.policy(&large(&stage, "search", 14))?;
    stage.show();
    stage.wait_for("envoyextensionpolicies", "14 matches", |o| {
        o.to_string().len() > 850_000
    })?;
    let fits = accepted(&stage, &["search"])?;
    assert_eq!(fits["metadata"]["uid"], before["metadata"]["uid"]);
    stage
        .programmed("search", true, "EnvoyExtensionPolicy")
        .await?;
    Ok(())
}
