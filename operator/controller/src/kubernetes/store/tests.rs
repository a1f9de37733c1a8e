use serde_json::json;

use super::*;
use headgate_deliver::read::Endpoint;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("a", name)
}

fn slice(service: &str, ready: &[(&str, &str)]) -> Slice {
    Slice {
        service: Some(key(service)),
        ready: ready
            .iter()
            .map(|(identity, address)| Endpoint {
                identity: (*identity).to_owned(),
                address: (*address).to_owned(),
            })
            .collect(),
        ports: BTreeMap::from([("admin".to_owned(), 18_001)]),
    }
}

fn policy(generation: i64, resource_version: &str, p50: &str) -> Arc<PolicyResource> {
    let policy = serde_json::from_value(json!({
        "metadata": {
            "name": "p", "namespace": "a", "uid": "1",
            "generation": generation, "resourceVersion": resource_version,
        },
        "spec": {
            "targetRefs": [{"group": "", "kind": "Service", "name": "s"}],
            "parallelism": {"total": 4},
            "types": [{"name": "default", "slo": {"p50": p50}}],
        },
    }))
    .unwrap();
    Arc::new(policy)
}

/// Returns a store in which every resource has been listed as empty.
fn listed() -> Store {
    let mut store = Store::new(key("headgate-metrics"));
    store.apply(Change::Policies(Seen::All(vec![])));
    store.apply(Change::Services(Seen::All(vec![])));
    store.apply(Change::Slices(Seen::All(vec![])));
    store.apply(Change::Pods(Seen::All(vec![])));
    store.apply(Change::Gateways(Seen::Failed { status: Some(404) }));
    for kind in [TargetKind::HttpRoute, TargetKind::GrpcRoute] {
        store.apply(Change::Routes(kind, Seen::Failed { status: Some(404) }));
    }
    store.apply(Change::Pools(Seen::Failed { status: Some(404) }));
    store
}

#[test]
fn the_store_waits_for_every_list_or_for_a_kind_not_to_be_served() {
    let mut store = Store::default();
    assert_eq!(store.waiting_for().len(), 8);
    store.apply(Change::Policies(Seen::Failed { status: Some(404) }));
    assert!(store.waiting_for().contains(&"AdmissionPolicies"));
    let kind = TargetKind::HttpRoute;
    for status in [None, Some(403), Some(500)] {
        store.apply(Change::Routes(kind, Seen::Failed { status }));
        assert!(store.waiting_for().contains(&"HTTPRoute"), "{status:?}");
    }
    store.apply(Change::Routes(kind, Seen::Failed { status: Some(404) }));
    assert!(!store.waiting_for().contains(&"HTTPRoute"));

    let store = listed();
    assert_eq!(store.waiting_for(), [""; 0]);
    assert!(store.cluster().served_kinds.is_empty());
}

#[test]
fn an_event_without_a_change_has_no_effect() {
    let mut store = listed();
    let service = || (key("s"), Service::default());
    assert!(store.apply(Change::Services(Seen::Applied(service()))).plan);
    assert!(!store.apply(Change::Services(Seen::Applied(service()))).plan);
    assert!(
        !store
            .apply(Change::Services(Seen::All(vec![service()])))
            .plan
    );
    assert!(store.apply(Change::Services(Seen::Deleted(service()))).plan);
    assert!(!store.apply(Change::Services(Seen::Deleted(service()))).plan);
}

#[test]
fn writing_the_own_status_makes_no_plan() {
    let mut store = listed();
    let first = store.apply(Change::Policies(Seen::Applied(policy(1, "1", "9ms"))));
    assert!(first.plan && first.status);
    let echo = store.apply(Change::Policies(Seen::Applied(policy(1, "2", "9ms"))));
    assert!(!echo.plan && echo.status);
    let again = store.apply(Change::Policies(Seen::Applied(policy(1, "2", "9ms"))));
    assert_eq!(again, Effect::default());
    assert!(
        store
            .apply(Change::Policies(Seen::Applied(policy(2, "3", "8ms"))))
            .plan
    );
}

/// A delivery without changes holds the last snapshot of the cluster.
#[test]
fn a_change_copies_only_what_it_changes() {
    let mut store = listed();
    store.apply(Change::Policies(Seen::Applied(policy(1, "1", "9ms"))));
    let before = store.cluster();
    let pod = |name| Change::Pods(Seen::Applied((key(name), Some(Pod::default()))));
    store.apply(pod("x"));
    let after = store.cluster();
    assert_eq!((before.pods.len(), after.pods.len()), (0, 1));
    assert!(Arc::ptr_eq(&before.policies, &after.policies));
    assert!(Arc::ptr_eq(&before.services, &after.services));

    let mut other = policy(1, "2", "9ms");
    Arc::make_mut(&mut other).metadata.name = Some("q".to_owned());
    store.apply(Change::Policies(Seen::Applied(other)));
    let last = store.cluster();
    assert_eq!((after.policies.len(), last.policies.len()), (1, 2));
    assert!(Arc::ptr_eq(&after.pods, &last.pods));
    let [p, q] = [&after, &last].map(|c| &c.policies[&key("p")]);
    assert!(Arc::ptr_eq(p, q), "not its content either");
}

#[test]
fn a_policy_that_becomes_wrong_keeps_its_last_good_version() {
    let mut store = listed();
    store.apply(Change::Policies(Seen::Applied(policy(1, "1", "9ms"))));
    store.apply(Change::Policies(Seen::All(vec![policy(2, "2", "nine")])));
    let cluster = store.cluster();
    let seen = &cluster.policies[&key("p")];
    assert!(seen.accepted.is_err());
    assert_eq!(seen.effective.as_ref().map(|p| p.generation), Some(1));
}

#[test]
fn endpoints_are_counted_once_over_slices() {
    let mut store = listed();
    let ready = |store: &Store| store.cluster().ready_endpoints.get(&key("s")).copied();
    let (v4, v6) = (
        slice("s", &[("p1", "10.0.0.1"), ("p2", "10.0.0.2")]),
        slice("s", &[("p1", "fd00::1"), ("p3", "fd00::3")]),
    );
    store.apply(Change::Slices(Seen::Applied((key("s-4"), v4))));
    store.apply(Change::Slices(Seen::Applied((key("s-6"), v6.clone()))));
    assert_eq!(ready(&store), Some(3));
    store.apply(Change::Slices(Seen::Deleted((key("s-6"), v6))));
    assert_eq!(ready(&store), Some(2));
    assert!(
        store
            .apply(Change::Slices(Seen::Applied((key("s-4"), slice("t", &[])))))
            .plan
    );
    assert_eq!(ready(&store), None, "the slice is another Service's now");
    assert_eq!(store.cluster().ready_endpoints.get(&key("t")), Some(&0));
}

#[test]
fn replicas_are_the_ready_endpoints_of_their_service() {
    let mut store = listed();
    let ours = slice(
        "headgate-metrics",
        &[("h1", "10.0.0.1"), ("h2", "10.0.0.2")],
    );
    let effect = store.apply(Change::Slices(Seen::Applied((key("m"), ours))));
    assert!(effect.peers);
    let found: Vec<String> = store.replicas().iter().map(ToString::to_string).collect();
    assert_eq!(found, ["10.0.0.1:18001", "10.0.0.2:18001"]);
    // A dual-stack Service has a slice for each family.
    let v6 = slice("headgate-metrics", &[("h1", "fd00::1"), ("h2", "fd00::2")]);
    store.apply(Change::Slices(Seen::Applied((key("m-6"), v6))));
    assert_eq!(store.replicas().len(), 2);
}

#[test]
fn gateway_api_comes_and_goes() {
    let mut store = listed();
    let kind = TargetKind::HttpRoute;
    let all = || Seen::All(vec![(key("r"), Route::default())]);
    let gateways = Seen::All(vec![(key("g"), Gateway::default())]);
    assert!(store.apply(Change::Gateways(gateways)).plan);
    assert!(store.apply(Change::Routes(kind, all())).plan);
    assert_eq!(store.cluster().served_kinds, [TargetKind::Gateway, kind]);
    assert_eq!(store.cluster().routes.len(), 1);

    let pools = Seen::All(vec![(key("p"), Pool::default())]);
    assert!(store.apply(Change::Pools(pools)).plan);
    assert_eq!(store.cluster().pools.len(), 1);
    let gone = Seen::Failed { status: Some(404) };
    assert!(store.apply(Change::Pools(gone)).plan);
    assert!(store.cluster().pools.is_empty());

    let gone = || Seen::Failed { status: Some(404) };
    assert!(store.apply(Change::Routes(kind, gone())).plan);
    assert!(!store.apply(Change::Routes(kind, gone())).plan);
    assert!(store.cluster().routes.is_empty());
    assert_eq!(store.cluster().served_kinds, [TargetKind::Gateway]);
    assert!(
        store
            .apply(Change::Gateways(Seen::Failed { status: Some(404) }))
            .plan
    );
    assert!(store.cluster().gateways.is_empty() && store.cluster().served_kinds.is_empty());

    assert!(store.apply(Change::Routes(kind, all())).plan);
    store.apply(Change::Routes(TargetKind::GrpcRoute, all()));
    assert_eq!(
        store.cluster().routes.len(),
        2,
        "a list of one kind leaves the other"
    );
}

#[test]
fn a_plan_in_the_making_keeps_the_cluster_it_is_made_of() {
    let mut store = listed();
    let before = store.cluster();
    store.apply(Change::Services(Seen::Applied((
        key("s"),
        Service::default(),
    ))));
    assert!(before.services.is_empty());
    assert_eq!(store.cluster().services.len(), 1);
}

#[test]
fn the_list_of_one_namespace_leaves_others_alone() {
    let mut store = listed();
    let of = |namespace: &str, name: &str| {
        let mut policy = policy(1, "1", "18ms");
        let metadata = &mut Arc::make_mut(&mut policy).metadata;
        metadata.namespace = Some(namespace.to_owned());
        metadata.name = Some(name.to_owned());
        policy
    };
    store.apply(Change::Policies(Seen::All(vec![
        of("a", "p"),
        of("b", "p"),
    ])));
    let slices = |namespace: &str| {
        (
            ObjectKey::new(namespace, "1"),
            slice("s", &[("x", "10.0.0.1")]),
        )
    };
    store.apply(Change::Slices(Seen::All(vec![slices("a"), slices("b")])));
    let services = |namespace: &str| (ObjectKey::new(namespace, "s"), Service::default());
    store.apply(Change::Services(Seen::All(vec![
        services("a"),
        services("b"),
    ])));
    let route = TargetKind::HttpRoute;
    let routes = |namespace: &str| (ObjectKey::new(namespace, "r"), Route::default());
    store.apply(Change::Routes(
        route,
        Seen::All(vec![routes("a"), routes("b")]),
    ));

    let gone = "b".to_owned();
    assert!(
        store
            .apply(Change::Policies(Seen::Within(gone.clone(), vec![])))
            .plan
    );
    assert!(
        store
            .apply(Change::Services(Seen::Within(gone.clone(), vec![])))
            .plan
    );
    assert!(
        store
            .apply(Change::Routes(route, Seen::Within(gone.clone(), vec![])))
            .plan
    );
    store.apply(Change::Slices(Seen::Within(gone.clone(), vec![])));
    let cluster = store.cluster();
    let left: Vec<_> = cluster.policies.keys().map(|k| &*k.namespace).collect();
    assert_eq!(left, ["a"]);
    let left: Vec<_> = cluster.services.keys().map(|k| &*k.namespace).collect();
    assert_eq!(left, ["a"]);
    let left: Vec<_> = cluster.routes.keys().map(|t| &*t.namespace).collect();
    assert_eq!(left, ["a"]);
    assert_eq!(cluster.ready_endpoints.get(&key("s")), Some(&1));
    assert!(
        store
            .observations()
            .get(&ObjectKey::new("b", "p"))
            .is_none()
    );
    assert!(
        store
            .observations()
            .get(&ObjectKey::new("a", "p"))
            .is_some()
    );
    assert!(store.waiting_for().is_empty());
    assert!(
        !store
            .apply(Change::Policies(Seen::Within(gone, vec![])))
            .plan,
        "known already"
    );
}

/// Otherwise the list of the policies of all namespaces would be unreadable.
#[test]
fn a_condition_with_an_unreadable_time_is_left_out() {
    let conditions = |times: [&str; 2]| {
        let types = ["Mine", "Accepted"].into_iter().zip(times);
        let condition = types.map(|(of, time)| {
            json!({
                "type": of, "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": time,
            })
        });
        condition.collect::<Vec<_>>()
    };
    let times = ["2026-01-01T00:00:00+99:99", "2026-01-01T00:00:00Z"];
    let policy: PolicyResource = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "a"},
        "status": {
            "conditions": conditions(times),
            "ancestors": [{
                "ancestorRef": {"kind": "Service", "name": "s"},
                "controllerName": "headgate.dev/controller",
                "conditions": conditions(times),
            }],
        },
    }))
    .unwrap();
    let status = policy.status.unwrap();
    for conditions in [&status.conditions, &status.ancestors[0].conditions] {
        let types: Vec<&str> = conditions.iter().map(|c| &*c.type_).collect();
        assert_eq!(types, ["Accepted"]);
    }
}

/// The watch may report a deletion before the answer of an earlier write arrives.
#[test]
fn a_late_answer_of_a_write_does_not_restore_a_deleted_policy() {
    let mut store = listed();
    let observations = store.observations();
    let of = |uid: &str, version: &str| Observed {
        uid: uid.to_owned(),
        generation: 1,
        resource_version: version.to_owned(),
        status: None,
    };
    store.apply(Change::Policies(Seen::Applied(policy(1, "5", "9ms"))));
    assert!(observations.newer(&key("p"), of("1", "6")));
    assert!(!observations.newer(&key("p"), of("1", "5")), "older");
    store.apply(Change::Policies(Seen::Deleted(policy(1, "6", "9ms"))));
    assert!(!observations.newer(&key("p"), of("1", "7")));
    assert_eq!(observations.get(&key("p")), None);
    let mut successor = PolicyResource::clone(&policy(1, "8", "9ms"));
    successor.metadata.uid = Some("2".to_owned());
    store.apply(Change::Policies(Seen::Applied(Arc::new(successor))));
    assert!(!observations.newer(&key("p"), of("1", "9")));
    assert_eq!(observations.get(&key("p")).unwrap().uid, "2");
}

/// The index by Service has the slices that the Service has, after any sequence of changes.
#[test]
fn slices_are_found_by_their_service() {
    let mut slices = Slices::default();
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    for _ in 0..2_000 {
        let namespace = ["a", "b"][draw(2) as usize];
        let mut some = |namespace: &str, number: u64| {
            let key = ObjectKey::new(namespace, format!("s-{number}"));
            let service = ["s", "t", "u"][draw(3) as usize];
            let mut one = slice(service, &[("p", "10.0.0.1")]);
            one.service = (draw(4) > 0).then(|| ObjectKey::new(namespace, service));
            (key, one)
        };
        let one = some(namespace, 1);
        let two = some(namespace, 2);
        let seen = match draw(8) {
            0 => Seen::All(vec![one, two]),
            1 => Seen::Within(namespace.to_owned(), vec![two]),
            2 | 3 => Seen::Deleted(one),
            4 => Seen::Failed { status: None },
            _ => Seen::Applied(two),
        };
        let before = slices.all.clone();
        let touched = slices.apply(seen);
        let mut expected: BTreeMap<ObjectKey, BTreeSet<ObjectKey>> = BTreeMap::new();
        for (key, slice) in &slices.all {
            if let Some(service) = &slice.service {
                expected
                    .entry(service.clone())
                    .or_default()
                    .insert(key.clone());
            }
        }
        assert_eq!(slices.of, expected);
        let changed = { before.iter().chain(&slices.all) }
            .filter(|(key, slice)| {
                before.get(*key) != Some(*slice) || slices.all.get(*key) != Some(*slice)
            })
            .filter_map(|(_, slice)| slice.service.clone());
        for service in changed {
            assert!(touched.contains(&service), "{service}");
        }
    }
}
