use serde_json::json;

use super::super::example::{Example, SHA256, installed, settings};
use super::super::observed::Source;
use super::*;

const PLUGINS: Source = Source::Objects(Adapter::Istio);

fn example() -> Example {
    Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[])
}

fn wish(example: &Example) -> Wanted {
    wanted(
        &example.plan,
        &example.cluster,
        &settings(),
        &installed(),
        SHA256,
    )
}

/// What the API server has after all of `wanted` was applied.
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

fn key(wanted: &Wanted) -> Key {
    wanted.objects.keys().next().unwrap().clone()
}

#[test]
fn nothing_is_written_at_rest() {
    let example = example();
    let wanted = wish(&example);
    let missing = steps(&wanted, &Observed::new(&[PLUGINS]), &example.plan);
    assert_eq!(missing.apply, BTreeSet::from([key(&wanted)]));
    assert_eq!(
        steps(&wanted, &applied(&wanted), &example.plan),
        Steps::default()
    );
}

#[test]
fn what_no_policy_needs_goes() {
    let observed = applied(&wish(&example()));
    let steps = steps(&Wanted::default(), &observed, &Plan::default());
    assert_eq!((steps.apply.len(), steps.delete.len()), (0, 1));
}

#[test]
fn a_field_that_somebody_changed_is_noticed() {
    let example = example();
    let wanted = wish(&example);
    let mut observed = applied(&wanted);
    let (adapter, name) = key(&wanted);
    let mut value = observed.get(adapter, &name).unwrap().clone();
    value["spec"]["phase"] = json!("AUTHN");
    observed.wrote(adapter, name, value);
    assert_eq!(steps(&wanted, &observed, &example.plan).apply.len(), 1);
}

/// After a restart nobody knows the last good version of a policy with mistakes, but the object has it.
#[test]
fn the_object_of_a_policy_with_mistakes_stays() {
    let mut example = example();
    let before = wish(&example);
    let observed = applied(&before);
    example.plan.attachments = Vec::new().into();
    example.plan.policies[0].accepted = Err("spec.types: none".into());
    example.plan.policies[0].revision = String::new();
    assert_eq!(
        steps(&wish(&example), &observed, &example.plan),
        Steps::default()
    );
    example.plan.policies.clear();
    assert_eq!(
        steps(&wish(&example), &observed, &example.plan)
            .delete
            .len(),
        1
    );
}

#[test]
fn policies_are_told_what_became_of_their_objects() {
    let example = Example::default().gateway("a/edge", "eg").at_gateway(
        "a/p",
        "Gateway/a/edge",
        "a/edge",
        &[],
    );
    let wanted = wish(&example);
    let said = |observed: &Observed, failures: &BTreeMap<Key, State>| {
        report(&wanted, observed, failures).policies["a/p"][0]
            .state
            .clone()
    };
    let mut observed = applied(&wanted);
    let none = BTreeMap::new();
    assert!(
        matches!(said(&observed, &none), State::Pending(_)),
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
    assert_eq!(status(2, "Accepted", "True"), State::Delivered);
    assert!(
        matches!(status(1, "Accepted", "True"), State::Pending(_)),
        "of an older version"
    );
    assert_eq!(
        status(2, "Accepted", "False"),
        State::Failed("Envoy Gateway refuses it: Invalid: no such module".into())
    );
    let failures = BTreeMap::from([(key(&wanted), State::Failed("conflict".into()))]);
    assert_eq!(said(&observed, &failures), State::Failed("conflict".into()));
}

/// A service's only policy grows until no object can hold it: what proxies run isn't taken from them.
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
    let steps = steps(&wanted, &observed, &example.plan);
    assert_eq!((steps.apply.len(), steps.delete.len()), (1, 0));
    // Nothing is sent: there is no API server at this address.
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = Client::try_from(config).unwrap();
    let mut reconciler = Reconciler::new(client, settings(), false);
    let mut failures = BTreeMap::new();
    reconciler
        .apply(&wanted, &steps, &mut observed, &mut failures)
        .await;
    let delivered = report(&wanted, &observed, &failures);
    let (status, reason, message) = delivered.programmed("a/p").unwrap();
    assert_eq!((status, reason), (false, "DeliveryFailed"));
    assert!(message.contains("of at most 1000000"), "{message}");
}

/// Istio says nothing of who runs a plugin, but its injector leaves a label on Pods with a sidecar.
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
    let label = format!("{}=edge", crate::plan::GATEWAY_NAME_LABEL);
    assert_eq!(said(&edge()), none);
    assert_eq!(said(&edge().pod("a", "1", &label)), (true, "Programmed"));
}
