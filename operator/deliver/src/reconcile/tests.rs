use std::sync::atomic::AtomicUsize;

use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::object::{OPERATOR_ANNOTATION, POLICIES_ANNOTATION};
use crate::observed::Source;
use crate::tests::{Example, SHA256, installed, settings};
use crate::watch::Seen;
use headgate_fakes::api_server;

const PLUGINS: Source = Source::Objects(Adapter::Istio);

fn example() -> Example {
    Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[])
}

fn wish(example: &Example) -> Wanted {
    wish_after(example, &Observed::default(), SHA256)
}

/// Returns the wanted objects, with this module, while the API server has `observed`.
fn wish_after(example: &Example, observed: &Observed, sha256: &str) -> Wanted {
    let (plan, cluster) = (&example.plan, &example.cluster);
    wanted(plan, cluster, &settings(), &installed(), observed, sha256)
}

/// Returns the objects on the API server after all of `wanted` were applied.
fn applied(wanted: &Wanted) -> Observed {
    let mut observed = Observed::new(&[PLUGINS]);
    for (key, object) in &wanted.objects {
        let mut value = object.value.clone();
        value["metadata"]["resourceVersion"] = json!("1");
        value["metadata"]["uid"] = json!("u");
        observed.wrote(key.0, key.1.clone(), value);
    }
    observed
}

/// Returns the example and its applied objects, which the watch has listed.
fn listed() -> (PlannedCluster, Observed) {
    let example = example();
    let before = applied(&wish(&example));
    let objects = before.objects();
    let objects = objects.map(|(_, k, v)| (k.clone(), Some(v.clone())));
    let mut observed = Observed::new(&[PLUGINS]);
    observed.see((PLUGINS, Seen::All(objects.collect())));
    let view = PlannedCluster {
        cluster: example.cluster.into(),
        plan: example.plan.into(),
    };
    (view, observed)
}

fn key(wanted: &Wanted) -> Key {
    wanted.objects.keys().next().unwrap().clone()
}

#[test]
fn nothing_is_written_at_rest() {
    let example = example();
    let wanted = wish(&example);
    let missing = steps(&wanted, &Observed::new(&[PLUGINS]));
    assert_eq!(missing.apply, BTreeSet::from([key(&wanted)]));
    assert_eq!(steps(&wanted, &applied(&wanted)), Steps::default());
}

#[test]
fn an_object_that_no_policy_needs_is_deleted() {
    let observed = applied(&wish(&example()));
    let steps = steps(&Wanted::default(), &observed);
    assert_eq!((steps.apply.len(), steps.delete.len()), (0, 1));
}

/// Operators before 0.2 wrote no names of operators.
#[test]
fn an_object_of_an_older_operator_is_adopted() {
    let wanted = wish(&example());
    let mut observed = applied(&wanted);
    let (adapter, name) = key(&wanted);
    let mut value = observed.get(adapter, &name).unwrap().clone();
    let annotations = value["metadata"]["annotations"].as_object_mut().unwrap();
    let own = annotations.remove(OPERATOR_ANNOTATION);
    assert_eq!(own, Some(json!("headgate-system/headgate")));
    observed.wrote(adapter, name, value);
    let adopts = steps(&wanted, &observed);
    assert_eq!((adopts.apply.len(), adopts.delete.len()), (1, 0));
}

/// One kind of Istio takes the place of the other, so both must be known.
#[test]
fn objects_of_a_kind_that_cannot_be_listed_wait() {
    let other = Source::Objects(Adapter::IstioExtension);
    let wanted = wish(&example());
    let left = |wanted: &Wanted, observed: &Observed| {
        let (mut steps, mut failures) = (steps(wanted, observed), BTreeMap::new());
        leave_unknown(wanted, &mut steps, observed, &mut failures);
        (steps.apply.len(), steps.delete.len(), failures.len())
    };
    let list = |source: Source| (source, Seen::All(Vec::new()));
    let mut observed = Observed::new(&[PLUGINS, other]);
    observed.see(list(PLUGINS));
    assert_eq!(left(&wanted, &observed), (0, 0, 1));
    observed.see((other, Seen::Failed { status: None }));
    assert_eq!(left(&wanted, &observed), (0, 0, 1));
    observed.see(list(other));
    assert_eq!(left(&wanted, &observed), (1, 0, 0));

    let mut observed = Observed::new(&[PLUGINS, other]);
    observed.see(list(PLUGINS));
    for (key, object) in &wanted.objects {
        observed.wrote(key.0, key.1.clone(), object.value.clone());
    }
    assert_eq!(left(&Wanted::default(), &observed), (0, 0, 0));
    observed.see((other, Seen::Failed { status: Some(404) }));
    assert_eq!(left(&Wanted::default(), &observed), (0, 1, 0));
}

#[test]
fn a_field_that_another_client_changed_is_detected() {
    let example = example();
    let wanted = wish(&example);
    let mut observed = applied(&wanted);
    let (adapter, name) = key(&wanted);
    let mut value = observed.get(adapter, &name).unwrap().clone();
    value["spec"]["phase"] = json!("AUTHN");
    observed.wrote(adapter, name, value);
    assert_eq!(steps(&wanted, &observed).apply.len(), 1);
}

/// A value may be from a clock that was ahead, or from a user of one namespace.
#[tokio::test]
async fn an_annotation_concerns_only_its_own_plugin_and_hides_no_later_outage() {
    let example = example().policy("b/p", "Service/b/search", ("b", "app=search"), &[]);
    let before = applied(&wish(&example));
    let objects = before.objects();
    let mut objects: Vec<_> = objects.map(|(_, k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(objects.len(), 2);
    objects[0].1["metadata"]["annotations"][SERVED_ANNOTATION] = json!("9999");
    let mut observed = Observed::new(&[PLUGINS]);
    let objects = objects.into_iter().map(|(k, v)| (k, Some(v)));
    observed.see((PLUGINS, Seen::All(objects.collect())));
    let said = |observed: &Observed| -> Vec<Value> {
        let told = |value: &Value| value["metadata"]["annotations"][SERVED_ANNOTATION].clone();
        observed.objects().map(|(.., value)| told(value)).collect()
    };
    let server = api_server(|_, _, mut object| {
        object["metadata"]["uid"] = json!("u");
        object["metadata"]["resourceVersion"] = json!("2");
        Some((200, object))
    });
    let mut reconciler = Reconciler::new(server, settings(), Arc::default());
    let view = PlannedCluster {
        cluster: example.cluster.into(),
        plan: example.plan.into(),
    };
    reconciler.round(&view, SHA256, &mut observed).await;
    assert_eq!(said(&observed), [json!("9999"), Value::Null]);
    reconciler.served_again = Some("2026".to_owned());
    reconciler.round(&view, SHA256, &mut observed).await;
    assert_eq!(said(&observed), ["2026", "2026"]);
}

/// A thousand objects may be refused, each with its own pauses.
#[tokio::test]
async fn retries_of_refused_writes_share_rounds() {
    let (view, mut observed) = listed();
    let server = api_server(|_, _, _| {
        let refusal = json!({"kind": "Status", "status": "Failure", "code": 403});
        Some((403, refusal))
    });
    let mut reconciler = Reconciler::new(server, settings(), Arc::default());
    reconciler.served_again = Some("2026".to_owned());
    for _ in 0..2 {
        let begun = Instant::now();
        let (_, again) = reconciler.round(&view, SHA256, &mut observed).await;
        assert_eq!(reconciler.refusals.len(), 1);
        assert!(again.unwrap() >= begun + settings().refused_retry);
    }
}

/// Each change of a Pod causes a round, and Istio's webhook may be down.
/// Returns a reconciler with long pauses whose requests all fail, and the number of these requests.
fn failing() -> (Reconciler, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let requested = Arc::clone(&requests);
    let server = api_server(move |_, _, _| {
        requested.fetch_add(1, Ordering::Relaxed);
        let failure = json!({
            "kind": "Status", "status": "Failure", "code": 500, "reason": "InternalError",
            "message": "no",
        });
        Some((500, failure))
    });
    let settings = Settings {
        retry: Duration::from_secs(600),
        refused_retry: Duration::from_secs(600),
        ..settings()
    };
    (Reconciler::new(server, settings, Arc::default()), requests)
}

#[tokio::test]
async fn a_write_that_fails_is_not_repeated_in_each_round() {
    let (view, mut observed) = listed();
    let (mut reconciler, writes) = failing();
    reconciler.served_again = Some("2026".to_owned());
    for _ in 0..2 {
        let (report, again) = reconciler.round(&view, SHA256, &mut observed).await;
        let states: Vec<_> = report.policies["a/p"].iter().map(|d| &d.state).collect();
        assert_eq!(states, [&ObjectState::Pending("no".to_owned())]);
        assert!(again.is_some());
    }
    assert_eq!(writes.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_deletion_that_fails_is_not_repeated_in_each_round() {
    let (_, mut observed) = listed();
    let empty = Example::default();
    let view = PlannedCluster {
        cluster: empty.cluster.into(),
        plan: empty.plan.into(),
    };
    let (mut reconciler, requests) = failing();
    for _ in 0..2 {
        let (_, again) = reconciler.round(&view, SHA256, &mut observed).await;
        assert!(again.is_some());
    }
    assert_eq!(requests.load(Ordering::Relaxed), 1);

    let (adapter, name) = key(&wish(&example()));
    let mut changed = observed.get(adapter, &name).unwrap().clone();
    changed["metadata"]["resourceVersion"] = json!("2");
    observed.wrote(adapter, name, changed);
    reconciler.round(&view, SHA256, &mut observed).await;
    assert_eq!(requests.load(Ordering::Relaxed), 2);
}

#[test]
fn an_object_stays_while_its_successor_is_not_written() {
    let wanted = wish(&example());
    let mut old = wanted.objects[&key(&wanted)].value.clone();
    let refused = BTreeMap::from([(key(&wanted), ObjectState::Failed("no".into()))]);
    let waits = |adapter, old: &Value, failures: &BTreeMap<Key, ObjectState>| {
        waits_for_successor(adapter, old, &written(&wanted, failures))
    };
    assert!(waits(Adapter::IstioExtension, &old, &refused));
    assert!(!waits(Adapter::IstioExtension, &old, &BTreeMap::new()));
    assert!(!waits(Adapter::ConfigMap, &old, &refused));
    old["metadata"]["annotations"][TARGETS_ANNOTATION] = json!("Service/a/gone Service/a/search");
    assert!(waits(Adapter::Istio, &old, &refused));
    old["metadata"]["annotations"][TARGETS_ANNOTATION] = json!("Service/a/gone");
    assert!(!waits(Adapter::Istio, &old, &refused));
}

/// The check of a URL that hangs takes 10 s, in which nothing else is written.
#[tokio::test]
async fn a_module_that_is_not_served_is_not_checked_in_each_round() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = Settings {
        modules_url: format!("http://{}", listener.local_addr().unwrap()),
        retry: Duration::from_secs(600),
        refused_retry: Duration::from_secs(600),
        ..settings()
    };
    let checks = Arc::new(AtomicUsize::new(0));
    let checked = Arc::clone(&checks);
    let _modules = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let _refused = listener.accept().await.unwrap();
            checked.fetch_add(1, Ordering::Relaxed);
        }
    }));
    let (view, _) = listed();
    let mut observed = Observed::new(&[PLUGINS]);
    observed.see((PLUGINS, Seen::All(Vec::new())));
    let mut reconciler = Reconciler::new(api_server(|_, _, _| None), settings, Arc::default());
    for _ in 0..2 {
        let (report, again) = reconciler.round(&view, SHA256, &mut observed).await;
        let state = &report.policies["a/p"][0].state;
        assert!(matches!(state, ObjectState::Pending(_)), "{state:?}");
        assert!(again.is_some());
    }
    assert_eq!(checks.load(Ordering::Relaxed), 1);
}

/// A leader may lose its Lease before all plugins are written.
#[tokio::test]
async fn the_end_of_an_outage_is_announced_in_a_later_term_if_the_first_could_not() {
    let (view, mut observed) = listed();
    let outage = Arc::new(AtomicBool::new(true));
    for (code, is_left) in [(500, true), (200, false)] {
        let server = api_server(move |_, _, mut object| {
            object["metadata"]["uid"] = json!("u");
            object["metadata"]["resourceVersion"] = json!("2");
            let failure = json!({"kind": "Status", "status": "Failure", "code": code});
            Some((code, if code == 200 { object } else { failure }))
        });
        let mut reconciler = Reconciler::new(server, settings(), Arc::clone(&outage));
        assert!(reconciler.interrupted, "{code}");
        // The agents can fetch the module.
        reconciler.interrupted = false;
        reconciler.served_again = Some("2026".to_owned());
        reconciler.round(&view, SHA256, &mut observed).await;
        assert_eq!(outage.load(Ordering::Relaxed), is_left, "{code}");
    }
}

/// After a restart, only the object has the last valid version of an invalid policy.
#[test]
fn the_object_of_a_policy_with_mistakes_stays_with_the_module_that_is_served() {
    let mut example = example();
    let mut observed = applied(&wish(&example));
    let (adapter, name) = key(&wish(&example));
    let mut value = observed.get(adapter, &name).unwrap().clone();
    value["metadata"]["annotations"]["example.com/seen"] = json!("yes");
    observed.wrote(adapter, name, value.clone());
    example.plan.attachments = Vec::new().into();
    example.plan.policies[0].accepted = Err("spec.types: none".into());
    example.plan.policies[0].has_version = false;
    example.plan.policies[0].revision = String::new();
    let same = wish_after(&example, &observed, SHA256);
    assert_eq!(steps(&same, &observed), Steps::default());
    let told = report(&same, &observed, &BTreeMap::new()).programmed("a/p");
    let (is_programmed, _, message) = told.unwrap();
    assert!(
        is_programmed && message.starts_with("delivered as WasmPlugin a/"),
        "{message}"
    );

    // Users of its namespace may write the annotation, so it says nothing about valid policies.
    let mut forged = observed.get(adapter, &key(&same).1).unwrap().clone();
    forged["metadata"]["annotations"][POLICIES_ANNOTATION] = json!("a/p,b/valid");
    let mut with_forged = Observed::new(&[PLUGINS]);
    with_forged.wrote(adapter, key(&same).1, forged);
    let kept = wish_after(&example, &with_forged, SHA256);
    assert_eq!(kept.objects[&key(&kept)].policies, ["a/p"]);

    // An operator of another version serves no module but its own.
    let other = "0".repeat(64);
    let renamed = wish_after(&example, &observed, &other);
    let todo = steps(&renamed, &observed);
    assert_eq!((todo.apply.len(), todo.delete.len()), (1, 0));
    let object = renamed.objects.values().next().unwrap();
    let module = ModuleRef::new(&settings(), &other);
    assert_eq!(object.module.as_ref(), Some(&module));
    value["spec"]["url"] = module.url.into();
    value["spec"]["sha256"] = module.sha256.into();
    let metadata = value["metadata"].as_object_mut().unwrap();
    metadata.remove("resourceVersion");
    metadata.remove("uid");
    let annotations = metadata["annotations"].as_object_mut().unwrap();
    annotations.remove("example.com/seen");
    assert_eq!(object.value, value);
    let renamed = wish_after(&example, &applied(&renamed), &other);
    assert_eq!(steps(&renamed, &applied(&renamed)), Steps::default());

    // Its last valid version is known, and isn't in force at any proxy.
    example.plan.policies[0].has_version = true;
    let overridden = wish_after(&example, &observed, &other);
    assert_eq!(steps(&overridden, &observed).delete.len(), 1);

    example.plan.policies.clear();
    let gone = wish_after(&example, &observed, &other);
    assert_eq!(steps(&gone, &observed).delete.len(), 1);
}

/// One tenant's invalid policy doesn't block another tenant's edit, or a new module, in an object
/// that both share.
#[test]
fn an_object_with_a_mistaken_policy_still_follows_the_others() {
    let of = |attached: &[&str]| {
        let edge = Example::default().gateway("a/edge", "eg");
        let with = |example: Example, name: &&str| {
            let route = format!("HTTPRoute/a/{name}");
            let pattern = format!("httproute/a/{name}/*");
            let example = example.route(&route, &["a/edge"]);
            example.at_gateway(&format!("a/{name}"), &route, "a/edge", &[&pattern])
        };
        attached.iter().fold(edge, with)
    };
    let observed = applied(&wish(&of(&["x", "y"])));
    let mut after = of(&["x", "y"]);
    let mut all = after.plan.attachments.to_vec();
    all.truncate(1);
    let mut stage = (*all[0].stage).clone();
    stage.parallelism = 7;
    all[0].stage = std::sync::Arc::new(stage);
    after.plan.attachments = all.into();
    after.plan.policies[1].accepted = Err("spec.types: none".into());
    after.plan.policies[1].has_version = false;
    after.plan.policies[1].revision = String::new();
    let other = "0".repeat(64);
    let wanted = wish_after(&after, &observed, &other);
    let object = wanted.objects.values().next().unwrap();
    assert_eq!(object.policies, ["a/x", "a/y"]);
    let spec = &object.value["spec"];
    assert_eq!(spec["targetRefs"].as_array().unwrap().len(), 2);
    assert_eq!(spec["wasm"][0]["code"]["http"]["sha256"], other);
    let stages = &spec["wasm"][0]["config"]["stages"];
    let slots = [0, 1].map(|i| stages[i]["parallelism"].clone());
    assert_eq!(slots, [7, 4]);
    let done = steps(&wanted, &observed);
    assert_eq!((done.apply.len(), wanted.kept.len()), (1, 0));

    // Another policy has taken the target since, so it is unknown which of the two should be in
    // force.
    let mut taken = of(&["x", "y"]);
    taken.plan.policies[1].accepted = Err("spec.types: none".into());
    taken.plan.policies[1].has_version = false;
    taken.plan.policies[1].revision = String::new();
    let mut all = taken.plan.attachments.to_vec();
    let mut stage = (*all[1].stage).clone();
    stage.policy = "a/young".to_owned();
    all[1].stage = std::sync::Arc::new(stage);
    taken.plan.attachments = all.into();
    let wanted = wish_after(&taken, &observed, SHA256);
    let left = steps(&wanted, &observed);
    assert_eq!((left.apply.len(), left.delete.len()), (0, 0));
    let why = &wanted.kept[&key(&wanted)];
    assert!(why.contains("policy a/y has mistakes"), "{why}");
    let kept = &wanted.objects[&key(&wanted)];
    assert!(kept.policies.contains(&"a/y".to_owned()));
}

/// The rules of another version may have accepted a policy that the filter of this version refuses.
/// The filter would refuse the other policies of the object, too.
#[test]
fn a_stage_that_this_version_refuses_does_not_stop_the_rest_of_its_object() {
    let mut after = ["x", "y", "z"].iter().fold(
        Example::default().gateway("a/edge", "eg"),
        |example, name| {
            let route = format!("HTTPRoute/a/{name}");
            let pattern = format!("httproute/a/{name}/*");
            let example = example.route(&route, &["a/edge"]);
            example.at_gateway(&format!("a/{name}"), &route, "a/edge", &[&pattern])
        },
    );
    let before = wish(&after);
    let mut observed = applied(&before);
    let (adapter, name) = key(&before);
    let mut value = observed.get(adapter, &name).unwrap().clone();
    let stages = &mut value["spec"]["wasm"][0]["config"]["stages"];
    let mut stages = stages.as_array_mut().unwrap().iter_mut();
    let stage = stages.find(|stage| stage["policy"] == "a/y").unwrap();
    stage["types"][0]["on_refusal"] = json!([{"name": "host", "value": "b"}]);
    observed.wrote(adapter, name, value);

    let mut all = after.plan.attachments.to_vec();
    all.truncate(1);
    after.plan.attachments = all.into();
    for policy in &mut after.plan.policies[1..] {
        policy.accepted = Err("spec.types: none".into());
        policy.has_version = false;
        policy.revision = String::new();
    }
    let wanted = wish_after(&after, &observed, &"0".repeat(64));
    let object = wanted.objects.values().next().unwrap();
    assert_eq!(object.policies, ["a/x", "a/z"]);
    let stages = &object.value["spec"]["wasm"][0]["config"]["stages"];
    assert_eq!(stages.as_array().unwrap().len(), 2);
    assert!(wanted.kept.is_empty(), "{:?}", wanted.kept);
}

/// At a shared Gateway, one namespace's invalid policy doesn't stop the edits and deletions of
/// other namespaces, even if its last valid version can't be combined with their policies.
#[test]
fn a_mistaken_policy_of_another_namespace_does_not_stop_a_shared_object() {
    let of = |namespaces: &[&str]| {
        let edge = Example::default().gateway("infra/edge", "eg");
        let with = |example: Example, namespace: &&str| {
            let route = format!("HTTPRoute/{namespace}/r");
            let pattern = format!("httproute/{namespace}/r/*");
            let example = example.route(&route, &["infra/edge"]);
            let policy = format!("{namespace}/p");
            example.at_gateway(&policy, &route, "infra/edge", &[&pattern])
        };
        namespaces.iter().fold(edge, with)
    };
    // Only the first `attached` policies are valid and attached.
    let mistaken = |namespaces: &[&str], attached: usize| {
        let mut example = of(namespaces);
        let mut all = example.plan.attachments.to_vec();
        all.truncate(attached);
        example.plan.attachments = all.into();
        for policy in &mut example.plan.policies[attached..] {
            policy.accepted = Err("spec.types: none".into());
            policy.has_version = false;
            policy.revision = String::new();
        }
        example
    };
    let observed = applied(&wish(&of(&["shop", "evil"])));
    let policies = |example: &Example| {
        let wanted = wish_after(example, &observed, SHA256);
        assert!(wanted.kept.is_empty(), "{:?}", wanted.kept);
        wanted.objects.values().next().unwrap().policies.clone()
    };
    let mut example = mistaken(&["shop", "evil"], 1);
    assert_eq!(policies(&example), ["shop/p", "evil/p"]);
    let another = "HTTPRoute/evil/another".parse().unwrap();
    example.plan.policies[1].targets = vec![another];
    assert_eq!(policies(&example), ["shop/p"]);

    // Namespace `shop` has deleted its policy.
    let gone = wish_after(&mistaken(&["evil"], 0), &observed, SHA256);
    assert_eq!(steps(&gone, &observed).delete.len(), 1);

    // Without a valid policy there is nothing to stop.
    for namespaces in [&["evil"][..], &["shop", "evil"]] {
        let before = applied(&wish(&of(namespaces)));
        let kept = wish_after(&mistaken(namespaces, 0), &before, SHA256);
        assert_eq!(steps(&kept, &before), Steps::default(), "{namespaces:?}");
    }
}

#[test]
fn policies_have_the_state_of_their_objects() {
    let example = Example::default().gateway("a/edge", "eg").at_gateway(
        "a/p",
        "Gateway/a/edge",
        "a/edge",
        &[],
    );
    let wanted = wish(&example);
    let said = |observed: &Observed, failures: &BTreeMap<Key, ObjectState>| {
        report(&wanted, observed, failures).policies["a/p"][0]
            .state
            .clone()
    };
    let mut observed = applied(&wanted);
    let none = BTreeMap::new();
    assert!(
        matches!(said(&observed, &none), ObjectState::Pending(_)),
        "Envoy Gateway says nothing"
    );
    let (adapter, name) = key(&wanted);
    let mut status = |generation: i64, kind: &str, status: &str| {
        let mut value = observed.get(adapter, &name).unwrap().clone();
        value["metadata"]["generation"] = json!(2);
        value["status"] = json!({"ancestors": [{"conditions": [{
            "type": kind, "status": status, "reason": "Invalid", "message": "no such module",
            "observedGeneration": generation,
        }]}]});
        observed.wrote(adapter, name.clone(), value);
        said(&observed, &none)
    };
    assert_eq!(status(2, "Accepted", "True"), ObjectState::Delivered);
    assert!(
        matches!(status(1, "Accepted", "True"), ObjectState::Pending(_)),
        "of an older version"
    );
    assert_eq!(
        status(2, "Accepted", "False"),
        ObjectState::Failed("Envoy Gateway refuses it: Invalid: no such module".into())
    );
    let failures = BTreeMap::from([(key(&wanted), ObjectState::Failed("conflict".into()))]);
    assert_eq!(
        said(&observed, &failures),
        ObjectState::Failed("conflict".into())
    );
}

/// A service's only policy outgrows the size limit. Its proxies keep the version that they run.
#[tokio::test]
async fn the_last_object_that_fit_stays() {
    let grown = |size: usize| {
        let mut example = example();
        let mut attachment = example.plan.attachments[0].clone();
        let mut stage = (*attachment.stage).clone();
        stage.routes = vec![format!("httproute/a/{}*", "x".repeat(size))];
        attachment.stage = std::sync::Arc::new(stage);
        example.plan.attachments = vec![attachment].into();
        example
    };
    let mut observed = applied(&wish(&grown(1)));
    let example = grown(1_000_000);
    let wanted = wish(&example);
    let steps = steps(&wanted, &observed);
    assert_eq!((steps.apply.len(), steps.delete.len()), (1, 0));
    // No request is sent, so the address needs no API server.
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = Client::try_from(config).unwrap();
    let mut reconciler = Reconciler::new(client, settings(), Arc::default());
    let mut failures = BTreeMap::new();
    reconciler
        .apply(&wanted, &steps, &mut observed, &mut failures)
        .await;
    let delivered = report(&wanted, &observed, &failures);
    let (status, reason, message) = delivered.programmed("a/p").unwrap();
    assert_eq!((status, reason), (false, "DeliveryFailed"));
    assert!(message.contains("of at most 1000000"), "{message}");
}

/// Istio doesn't report which proxies run a plugin, but its injector labels Pods with a sidecar.
#[test]
fn a_plugin_that_no_proxy_reads_is_not_programmed() {
    let said = |example: &Example| {
        let wanted = wish(example);
        let delivered = report(&wanted, &applied(&wanted), &BTreeMap::new());
        let (status, reason, _) = delivered.programmed("a/p").unwrap();
        (status, reason)
    };
    let none = (false, "NoProxies");
    let plain = || example().pod("a", "plain", "app=search");
    assert_eq!(said(&example()), none);
    assert_eq!(said(&plain()), none);
    let sidecar = "app=search,security.istio.io/tlsMode=istio";
    assert_eq!(said(&plain().pod("b", "1", sidecar)), none);
    let injected = plain().pod("a", "1", sidecar);
    assert_eq!(said(&injected), (true, "Programmed"));

    let edge = || {
        Example::default().gateway("a/edge", "istio").at_gateway(
            "a/p",
            "Gateway/a/edge",
            "a/edge",
            &[],
        )
    };
    let label = format!("{}=edge", headgate_api::plan::GATEWAY_NAME_LABEL);
    assert_eq!(said(&edge()), none);
    assert_eq!(said(&edge().pod("a", "1", &label)), (true, "Programmed"));
}

/// A file in addition to a plugin doesn't change the status, whether or not a proxy reads the
/// plugin.
#[test]
fn a_file_that_no_pod_mounts_is_not_programmed() {
    let said = |example: &Example, istio: bool| {
        let settings = Settings {
            istio,
            config_map_module: Some("/headgate.wasm".to_owned()),
            ..settings()
        };
        let (plan, cluster, none) = (&example.plan, &example.cluster, Observed::default());
        let wanted = wanted(plan, cluster, &settings, &installed(), &none, SHA256);
        let mut observed = Observed::new(&[PLUGINS, Source::Objects(Adapter::ConfigMap)]);
        for ((adapter, key), object) in &wanted.objects {
            observed.wrote(*adapter, key.clone(), object.value.clone());
        }
        let delivered = report(&wanted, &observed, &BTreeMap::new());
        let (status, reason, _) = delivered.programmed("a/p").unwrap();
        (status, reason)
    };
    let [none, programmed] = [(false, "NoProxies"), (true, "Programmed")];
    let file = "headgate-service-search";
    for istio in [false, true] {
        assert_eq!(said(&example(), istio), none, "{istio}");
        let other = example().mounting("a", "1", "headgate-service-other");
        assert_eq!(said(&other, istio), none, "{istio}");
        let elsewhere = example().mounting("b", "1", file);
        assert_eq!(said(&elsewhere, istio), none, "{istio}");
        let mounted = example().mounting("a", "1", file);
        assert_eq!(said(&mounted, istio), programmed, "{istio}");
    }
    let sidecar = example().pod("a", "1", "app=search,security.istio.io/tlsMode=istio");
    assert_eq!(said(&sidecar, false), none);
    assert_eq!(said(&sidecar, true), programmed);
}
