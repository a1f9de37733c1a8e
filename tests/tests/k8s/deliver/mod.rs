//! Tests of the objects for other control planes, on an API server with the CRDs that those control
//! planes publish.
//!
//! The deliverer runs as on the leader, with only the rights that it needs. It watches the whole
//! cluster, so these tests run one at a time.

mod everywhere;
mod large;
mod modules;
mod refused;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use headgate_api::plan::TargetKind;
use headgate_api::validate::check_file;
use headgate_controller::kubernetes::resolve::Planner;
use headgate_deliver::cluster::{Gateway, ObjectKey, Pod};
use headgate_deliver::{Adapter, Delivered, Installed, wanted};
use headgate_tests::chart;
use headgate_tests::headgate::binary_path;
use headgate_tests::kube::{ApiServer, programs};
use headgate_tests::wait::until;
use serde_json::Value;

use self::everywhere::everywhere;
use self::modules::{Modules, sha256};
use self::stage::{
    NOTICED, RETRY, Stage, equipped, install, remove_plugins, settings, slots, turn,
};

fn policy(namespace: &str, name: &str, target: &str, slots: u32) -> String {
    format!(
        "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: {name}, \
         namespace: {namespace}}}\n\
         spec:\n  targetRefs: [{target}]\n  parallelism: {{perEndpoint: {slots}}}\n  strategy: \
         {{type: MaxQueueLength}}\n  types: [{{name: default}}]\n"
    )
}

const SEARCH: &str = "{group: '', kind: Service, name: search}";

/// Each example policy, attached to each kind of target, in the objects for each control plane.
#[tokio::test(flavor = "multi_thread")]
async fn everything_passes_the_definitions_that_others_publish() -> Result<()> {
    let _turn = turn().await;
    let server = equipped()?;
    let namespace = server.namespace("dry-run")?;
    let installed = Installed {
        served: BTreeSet::from([
            Adapter::Istio,
            Adapter::IstioExtension,
            Adapter::EnvoyGateway,
        ]),
        classes: BTreeMap::from([
            ("istio".to_owned(), "istio.io/gateway-controller".to_owned()),
            (
                "eg".to_owned(),
                "gateway.envoyproxy.io/gatewayclass-controller".to_owned(),
            ),
        ]),
    };
    let mut before_1_30 = installed.clone();
    before_1_30.served.remove(&Adapter::IstioExtension);
    let wasm = settings(&Modules::start()?);
    let mut native = wasm.clone();
    native.args.istio_native = Some("/headgate/bin/libheadgate.so".into());
    native.args.envoy_gateway_native = Some("headgate".to_owned());
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for entry in std::fs::read_dir(programs::repository().join("examples/policies"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let report = check_file("policy.yaml", &std::fs::read(&path)?);
        for example in report.policies() {
            let cluster = everywhere(example, &namespace);
            let plan = Planner::default().plan(&cluster);
            let mut objects = Vec::new();
            for (settings, installed) in [
                (&wasm, &before_1_30),
                (&wasm, &installed),
                (&native, &installed),
            ] {
                let none = headgate_deliver::observed::Observed::default();
                let wanted = wanted(&plan, &cluster, settings, installed, &none, &sha256());
                assert_eq!(wanted.unwanted, [], "{}", path.display());
                for object in wanted.objects.values() {
                    objects.push(object.value.to_string());
                    *kinds.entry(object.adapter.kind().to_owned()).or_default() += 1;
                }
            }
            let arguments = [
                "apply",
                "--server-side",
                "--dry-run=server",
                "--validate=strict",
                "--filename=-",
            ];
            server
                .kubectl_as(
                    server.kubeconfig(),
                    &arguments,
                    Some(&objects.join("\n---\n")),
                )
                .with_context(|| path.display().to_string())?;
        }
    }
    for kind in [
        "WasmPlugin",
        "TrafficExtension",
        "EnvoyFilter",
        "EnvoyExtensionPolicy",
        "ConfigMap",
    ] {
        assert!(kinds.get(kind).is_some_and(|&n| n > 5), "{kinds:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policys_object_lives_as_long_as_the_policy() -> Result<()> {
    let mut stage = Stage::set().await?;
    stage.search();
    stage.deliver(3)?;
    let made = stage.wait_for("trafficextensions", "the plugin", |_| true)?;
    assert_eq!(slots(&made), 3);
    let owner = &made["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&"AdmissionPolicy".into(), &"p".into())
    );
    let managers = stage.kubectl(&[
        "get",
        "trafficextensions",
        "--show-managed-fields",
        "--output=jsonpath={.items[*].metadata.managedFields[*].manager}",
    ])?;
    assert_eq!(managers, "headgate");
    let file = stage.wait_for("configmaps", "the file", |_| true)?;
    assert_eq!(file["metadata"]["name"], "headgate-service-search");
    assert_eq!(file["metadata"]["ownerReferences"], Value::Null);
    stage.programmed("p", true, "TrafficExtension").await?;

    stage.deliver(5)?;
    let changed = stage.wait_for_slots(5)?;
    assert_eq!(
        changed["metadata"]["uid"], made["metadata"]["uid"],
        "the same object"
    );

    // The deliverer creates a deleted object again, without a new plan.
    stage.kubectl(&["delete", "trafficextensions", "--all"])?;
    let again = stage.wait_for("trafficextensions", "another one", |o| {
        o["metadata"]["uid"] != made["metadata"]["uid"]
    })?;
    assert_eq!(slots(&again), 5);

    Arc::make_mut(&mut stage.cluster.policies).clear();
    Arc::make_mut(&mut stage.cluster.pods).clear();
    stage.show();
    stage.wait_until_gone("trafficextensions")?;
    // The ConfigMap stays, because new Pods that mount it couldn't start without it.
    let is_empty =
        |object: &Value| object["metadata"]["annotations"]["headgate.dev/policies"] == "";
    stage.wait_for("configmaps", "a file without policies", is_empty)?;
    Ok(())
}

/// Kubernetes deletes an object after its policy, even without an operator.
#[tokio::test(flavor = "multi_thread")]
async fn the_garbage_collector_knows_the_owner() -> Result<()> {
    let mut stage = Stage::set().await?;
    stage.search();
    stage.deliver(3)?;
    stage.wait_for("trafficextensions", "the plugin", |_| true)?;
    stage.task.abort();
    stage.server.restart_controllers()?;
    stage.kubectl(&["delete", "admissionpolicy", "p"])?;
    stage.wait_until_gone("trafficextensions")
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_when_nothing_changed() -> Result<()> {
    let mut stage = Stage::set().await?;
    stage.search();
    stage.deliver(3)?;
    stage.programmed("p", true, "TrafficExtension").await?;
    stage.wait_for("configmaps", "the file", |_| true)?;

    let mark = stage.server.audit_mark();
    // These changes need no write: another Pod, and an annotation that a user adds to an object.
    for i in 0..5 {
        stage.add_pod(&format!("other-{i}"));
        stage.kubectl(&[
            "annotate",
            "trafficextensions",
            "--all",
            "--overwrite",
            &format!("theirs={i}"),
        ])?;
    }
    // Once a later change has been processed, all of these have been.
    stage.deliver(4)?;
    stage.wait_for_slots(4)?;
    let written = |stage: &Stage| -> Result<Vec<(String, String)>, String> {
        let writes = stage.writes(mark).map_err(|e| format!("{e:#}"))?;
        let mut writes: Vec<_> = writes.into_iter().map(|w| (w.verb, w.resource)).collect();
        writes.sort();
        match writes.len() {
            // The audit log may lag behind.
            0 | 1 => Err(format!("{writes:?}")),
            _ => Ok(writes),
        }
    };
    let writes = until("the writes in the audit log", || written(&stage))?;
    let patch = |resource: &str| ("patch".to_owned(), resource.to_owned());
    assert_eq!(writes, [patch("configmaps"), patch("trafficextensions")]);
    let plugin = stage.only("trafficextensions").map_err(|e| anyhow!(e))?;
    assert_eq!(
        plugin["metadata"]["annotations"]["theirs"], "4",
        "the user's annotation stays"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_another_manager_sets_is_not_overwritten() -> Result<()> {
    // With this pause, only an event can cause a second attempt.
    let never = Duration::from_secs(3600);
    let mut stage = Stage::set_with_refused_retry(never).await?;
    stage.search();
    stage.deliver(3)?;
    let plugin = stage.wait_for("trafficextensions", "the plugin", |_| true)?;
    let name = plugin["metadata"]["name"]
        .as_str()
        .context("name")?
        .to_owned();
    stage.programmed("p", true, "TrafficExtension").await?;

    let mark = stage.server.audit_mark();
    let theirs = r#"{"spec": {"phase": "AUTHN"}}"#;
    let patch = [
        "patch",
        "trafficextension",
        &name,
        "--type=merge",
        "--field-manager=somebody",
        "-p",
        theirs,
    ];
    stage.kubectl(&patch)?;
    let said = stage.programmed("p", false, "conflict").await?;
    assert!(
        said.contains("\"somebody\"") && said.contains(".spec.phase"),
        "{said}"
    );
    for i in 0..3 {
        stage.add_pod(&format!("other-{i}"));
    }
    // Once the ConfigMap has been created again, the deliverer has processed the three Pods.
    stage.kubectl(&["delete", "configmap", "headgate-service-search"])?;
    stage.wait_for("configmaps", "the file again", |_| true)?;
    let plugin = stage.only("trafficextensions").map_err(|e| anyhow!(e))?;
    assert_eq!(plugin["spec"]["phase"], "AUTHN");
    let tries = stage.writes(mark)?;
    let tries: Vec<_> = tries
        .iter()
        .filter(|w| w.resource == "trafficextensions")
        .collect();
    assert_eq!(tries.len(), 1, "one attempt: {tries:?}");
    assert_eq!(tries[0].code, 409);

    // Without the object there is no conflict.
    stage.kubectl(&["delete", "trafficextension", &name])?;
    stage.wait_for("trafficextensions", "ours", |o| {
        o["spec"]["phase"] == "STATS"
    })?;
    stage.programmed("p", true, "TrafficExtension").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_headgate_does_not_manage_is_not_changed() -> Result<()> {
    let mut stage = Stage::set().await?;
    stage.kubectl(&[
        "create",
        "configmap",
        "headgate-service-search",
        "--from-literal=theirs=1",
    ])?;
    stage.search();
    stage.deliver(3)?;
    let said = stage
        .programmed("p", false, "that Headgate doesn't manage")
        .await?;
    assert!(said.contains("ConfigMap"), "{said}");
    Arc::make_mut(&mut stage.cluster.policies).clear();
    stage.show();
    stage.wait_until_gone("trafficextensions")?;
    let theirs = stage.kubectl(&[
        "get",
        "configmap",
        "headgate-service-search",
        "--output=json",
    ])?;
    let theirs: Value = serde_json::from_str(&theirs)?;
    assert_eq!(theirs["data"], serde_json::json!({"theirs": "1"}));

    // Once the object is deleted, Headgate creates its own object, without an edit.
    stage.deliver(3)?;
    stage
        .programmed("p", false, "that Headgate doesn't manage")
        .await?;
    stage.kubectl(&["delete", "configmap", "headgate-service-search"])?;
    stage.programmed("p", true, "ConfigMap").await?;
    stage.wait_for("configmaps", "ours", |_| true)?;

    // Neither does it change an object of another release.
    for (change, is_programmed, said) in [
        ("=other/headgate", false, "operator other/headgate"),
        ("-", true, "ConfigMap"),
    ] {
        let annotation = format!("headgate.dev/operator{change}");
        let of = ["annotate", "--overwrite", "configmap"];
        stage.kubectl(&[&of[..], &["headgate-service-search", &annotation]].concat())?;
        stage.programmed("p", is_programmed, said).await?;
    }
    Ok(())
}

/// Istio is installed after the deliverer has started, in a version before 1.30. It is upgraded,
/// removed, and installed again.
#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_may_come_later_and_be_upgraded_and_go() -> Result<()> {
    /// Reinstalls Istio for the other tests, even if this one fails.
    struct Reinstall(&'static ApiServer);
    impl Drop for Reinstall {
        fn drop(&mut self) {
            let _ = install(self.0, "istio");
        }
    }
    let turn = turn().await;
    let server = equipped()?;
    let _reinstall = Reinstall(server);
    remove_plugins(server)?;
    let mut stage = Stage::with(server, turn, RETRY).await?;
    let namespace = stage.namespace.clone();
    stage.search();
    stage.deliver(3)?;
    let said = stage.programmed("p", true, "ConfigMap").await?;
    assert!(!said.contains("WasmPlugin"), "{said}");
    chart::install_some_crds(server, "istio", |name| {
        !name.starts_with("trafficextensions")
    })?;
    stage.programmed("p", true, "WasmPlugin").await?;
    let old = stage.wait_for("wasmplugins", "the plugin", |_| true)?;

    // An upgrade installs the new CRDs before the new istiod.
    let labels = [("app", "istiod"), ("app.kubernetes.io/version", "1.29.4")];
    let istiod = ObjectKey::new("istio-system", "istiod-1");
    let pod = Pod {
        labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        ..Pod::default()
    };
    Arc::make_mut(&mut stage.cluster.pods).insert(istiod.clone(), pod);
    stage.deliver(4)?;
    install(stage.server, "istio")?;
    stage.wait_for("wasmplugins", "four slots", |o| {
        o["spec"]["pluginConfig"]["stages"][0]["parallelism"] == 4
    })?;
    assert_eq!(stage.all("trafficextensions")?, [] as [Value; 0]);

    let mark = stage.server.audit_mark();
    Arc::make_mut(&mut stage.cluster.pods).remove(&istiod);
    stage.show();
    let new = stage.wait_for("trafficextensions", "the successor", |_| true)?;
    stage.wait_until_gone("wasmplugins")?;
    assert_eq!(new["metadata"]["name"], old["metadata"]["name"]);
    assert_eq!(
        new["metadata"]["ownerReferences"],
        old["metadata"]["ownerReferences"]
    );
    let writes = until("the writes in the audit log", || {
        let writes = stage.writes(mark).map_err(|e| format!("{e:#}"))?;
        let of_istio = writes
            .into_iter()
            .filter(|w| w.group == "extensions.istio.io");
        let writes: Vec<_> = of_istio.map(|w| (w.verb, w.resource)).collect();
        match writes.len() {
            2.. => Ok(writes),
            _ => Err(format!("{writes:?}")),
        }
    })?;
    let written = |verb: &str, resource: &str| (verb.to_owned(), resource.to_owned());
    assert_eq!(
        writes,
        [
            written("patch", "trafficextensions"),
            written("delete", "wasmplugins")
        ]
    );
    stage.programmed("p", true, "TrafficExtension").await?;

    remove_plugins(stage.server)?;
    let policy = format!("{namespace}/p");
    let without = |d: &Arc<Delivered>| {
        let said = d.programmed(&policy);
        said.is_some_and(|(is, _, message)| {
            is && !message.contains("TrafficExtension") && !message.contains("WasmPlugin")
        })
    };
    let gone = stage.delivered.wait_for(without);
    tokio::time::timeout(NOTICED, gone).await??;
    install(stage.server, "istio")?;
    stage.wait_for("trafficextensions", "the plugin again", |_| true)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_written_once_its_module_is_served() -> Result<()> {
    let mut stage = Stage::set().await?;
    stage.modules.serves.store(false, Ordering::Relaxed);
    stage.search();
    stage.deliver(3)?;
    stage
        .programmed("p", false, "answers 404 Not Found")
        .await?;
    assert_eq!(stage.all("trafficextensions")?, [] as [Value; 0]);
    stage.modules.serves.store(true, Ordering::Relaxed);
    stage.programmed("p", true, "TrafficExtension").await?;
    // An edit doesn't change the module, so it is delivered even if the module isn't served.
    stage.modules.serves.store(false, Ordering::Relaxed);
    stage.deliver(4)?;
    stage.wait_for_slots(4)?;
    Ok(())
}

/// An object is deleted only once its successor exists, so that proxies always have a filter.
#[tokio::test(flavor = "multi_thread")]
async fn a_successor_exists_before_its_predecessor_is_deleted() -> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    stage.search();
    stage.deliver(3)?;
    let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
    let first =
        name(&stage.wait_for("trafficextensions", "the plugin", |_| true)?).context("name")?;
    let mark = stage.server.audit_mark();
    // A plugin's name depends on its selector.
    stage.search_by(&[("app", "search"), ("tier", "web")]);
    stage.show();
    let second = stage.wait_for("trafficextensions", "another", |o| {
        name(o).as_ref() != Some(&first)
    })?;
    let second = name(&second).context("name")?;
    let writes = until("the writes in the audit log", || {
        let writes = stage.writes(mark).map_err(|e| format!("{e:#}"))?;
        let of_plugins = writes
            .into_iter()
            .filter(|w| w.resource == "trafficextensions");
        let writes: Vec<_> = of_plugins.map(|w| (w.verb, w.name)).collect();
        match writes.len() {
            2.. => Ok(writes),
            _ => Err(format!("{writes:?}")),
        }
    })?;
    let written = |verb: &str, name: &String| (verb.to_owned(), name.clone());
    assert_eq!(
        writes,
        [written("patch", &second), written("delete", &first)]
    );

    // If the successor can't be written, the predecessor stays.
    let theirs = format!(
        "apiVersion: extensions.istio.io/v1alpha1\nkind: TrafficExtension\n\
         metadata: {{name: {first}, namespace: {namespace}}}\n\
         spec: {{wasm: {{url: 'oci://example.com/theirs'}}}}\n"
    );
    stage.server.apply(&theirs)?;
    stage.search();
    stage.show();
    stage
        .programmed("p", false, "that Headgate doesn't manage")
        .await?;
    let left = stage.only("trafficextensions").map_err(|e| anyhow!(e))?;
    assert_eq!(name(&left), Some(second));
    stage.kubectl(&["delete", "trafficextension", &first])?;
    stage.wait_for("trafficextensions", "the first again", |o| {
        name(o).as_ref() == Some(&first)
    })?;
    Ok(())
}

/// A sidecar that starts while no operator serves the module runs without a filter until its plugin
/// changes. So the deliverer changes plugins once the module is served again.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_changes_when_its_module_is_served_again() -> Result<()> {
    let mut stage = Stage::set().await?;
    stage.search();
    stage.deliver(3)?;
    let made = stage.wait_for("trafficextensions", "the plugin", |_| true)?;
    // istiod sends a plugin to sidecars again if an annotation changes whose key contains
    // `istio.io`.
    let key = "headgate.dev/istio.io-module-served";
    let told = |object: &Value| object["metadata"]["annotations"][key].clone();
    assert_eq!(told(&made), Value::Null);

    stage.modules.serves.store(false, Ordering::Relaxed);
    stage.wait_for_a_miss()?;
    assert_eq!(
        told(&stage.only("trafficextensions").map_err(|e| anyhow!(e))?),
        Value::Null
    );
    let warning = "sidecars that start now have no filter";
    stage.programmed("p", true, warning).await?;
    stage.modules.serves.store(true, Ordering::Relaxed);
    let again = stage.wait_for("trafficextensions", "a change", |o| told(o) != Value::Null)?;
    assert_eq!(
        again["metadata"]["generation"],
        made["metadata"]["generation"]
    );
    assert_eq!(again["spec"], made["spec"]);

    // After a time without an operator, sidecars may have started without a filter.
    stage.start_again(true).await?;
    stage.wait_for("trafficextensions", "another time", |o| {
        told(o) != told(&again)
    })?;

    // An operator that takes over from another without a gap writes only the next edit.
    let mark = stage.server.audit_mark();
    stage.start_again(false).await?;
    stage.deliver(4)?;
    stage.wait_for_slots(4)?;
    stage.wrote_once(mark, "trafficextensions")
}

const EDGE: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: edge}";

/// Starts a deliverer with a policy of a Gateway of Envoy Gateway. Also returns the name of the
/// policy's object.
async fn at_envoy_gateway() -> Result<(Stage, String)> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    let class = "eg".to_owned();
    stage.cluster.served_kinds = vec![TargetKind::Gateway];
    Arc::make_mut(&mut stage.cluster.gateways).insert(
        ObjectKey::new(&namespace, "edge"),
        Gateway {
            class,
            ..Gateway::default()
        },
    );
    stage.policy(&policy(&namespace, "p", EDGE, 3))?;
    stage.show();
    let object = stage.wait_for("envoyextensionpolicies", "the policy", |_| true)?;
    let name = object["metadata"]["name"].as_str().context("name")?;
    Ok((stage, name.to_owned()))
}

/// Sets the status of the object in place of Envoy Gateway. `accepted` is the status of the
/// condition `Accepted`.
fn say(stage: &Stage, name: &str, accepted: &str, message: &str, generation: u64) -> Result<()> {
    let status = serde_json::json!({"status": {"ancestors": [{
        "ancestorRef": {
            "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge",
        },
        "controllerName": "gateway.envoyproxy.io/gatewayclass-controller",
        "conditions": [{
            "type": "Accepted", "status": accepted, "reason": "Because", "message": message,
            "lastTransitionTime": "2026-03-01T12:00:00Z", "observedGeneration": generation,
        }],
    }]}});
    let patch = format!("--patch={status}");
    let of = ["patch", "envoyextensionpolicy", name, "--type=merge"];
    let patch = [&of[..], &["--subresource=status", &patch]].concat();
    stage.kubectl(&patch).map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_that_envoy_gateway_sets_is_reported() -> Result<()> {
    let (mut stage, name) = at_envoy_gateway().await?;
    let namespace = stage.namespace.clone();
    let object = stage
        .only("envoyextensionpolicies")
        .map_err(|e| anyhow!(e))?;
    assert_eq!(object["spec"]["wasm"][0]["failOpen"], true);
    stage
        .programmed("p", false, "has not accepted it yet")
        .await?;
    say(&stage, &name, "True", "of this", 1)?;
    stage.programmed("p", true, "EnvoyExtensionPolicy").await?;
    say(&stage, &name, "False", "of this", 1)?;
    stage
        .programmed("p", false, "Envoy Gateway refuses it: Because: of this")
        .await?;
    // `headgate status` shows it, too, without a connection to an operator.
    let status = Command::new(binary_path())
        .args(["status", "--namespace", &namespace, "--kubeconfig"])
        .arg(stage.server.kubeconfig())
        .output()?;
    let shown = String::from_utf8_lossy(&status.stdout);
    let object = format!("EnvoyExtensionPolicy {namespace}/{name} ");
    let row = shown.lines().find(|line| line.starts_with(&object));
    let row = row.with_context(|| shown.to_string())?;
    assert!(row.contains(&format!(" {namespace}/p ")), "{shown}");
    assert!(row.ends_with(" Accepted False (Because)"), "{shown}");
    Ok(())
}

/// An Envoy Gateway that restarts while no operator serves the module removes the filter from its
/// proxies, and doesn't fetch the module again by itself.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_gateway_gets_another_url_for_a_module_that_it_could_not_fetch() -> Result<()> {
    const KIND: &str = "envoyextensionpolicies";
    let (mut stage, name) = at_envoy_gateway().await?;
    let namespace = stage.namespace.clone();
    let url = |object: &Value| {
        let url = object["spec"]["wasm"][0]["code"]["http"]["url"].as_str();
        url.unwrap_or_default().to_owned()
    };
    let first = url(&stage.only(KIND).map_err(|e| anyhow!(e))?);
    assert!(first.ends_with(".wasm"), "{first}");

    // While the module isn't served, the URL doesn't change, because another download would fail,
    // too.
    stage.modules.serves.store(false, Ordering::Relaxed);
    let failed = "Wasm: wasm module download failed after 5 attempts.";
    say(&stage, &name, "False", failed, 1)?;
    stage.wait_for_a_miss()?;
    stage.programmed("p", false, failed).await?;
    assert_eq!(url(&stage.only(KIND).map_err(|e| anyhow!(e))?), first);

    stage.modules.serves.store(true, Ordering::Relaxed);
    let again = stage.wait_for(KIND, "another URL", |o| url(o) != first)?;
    let asked = url(&again);
    assert!(asked.starts_with(&format!("{first}?")), "{asked}");
    assert_eq!(again["metadata"]["generation"], 2);
    // After ten failures Envoy Gateway requests a known URL no more.
    let refused = "Wasm: failed to get Wasm module after 10 attempts.";
    say(&stage, &name, "False", refused, 2)?;
    let third = stage.wait_for(KIND, "a third URL", |o| url(o) != asked)?;
    say(&stage, &name, "True", "Accepted", 3)?;
    stage.programmed("p", true, "EnvoyExtensionPolicy").await?;

    // The next operator keeps the query of the URL, and writes only the next edit.
    let mark = stage.server.audit_mark();
    stage.start_again(false).await?;
    stage.policy(&policy(&namespace, "p", EDGE, 4))?;
    stage.show();
    let edited = stage.wait_for(KIND, "four slots", |o| {
        o["spec"]["wasm"][0]["config"]["stages"][0]["parallelism"] == 4
    })?;
    assert_eq!(url(&edited), url(&third));
    stage.wrote_once(mark, KIND)
}
