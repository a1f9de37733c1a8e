//! Services and Pods, whose proxies run beside the endpoints.

use super::*;

#[test]
fn sidecars_of_a_service_share_its_slots() {
    let world = World::default()
        .policy("a/p", "total: 20", &["Service/a/x"])
        .service("a/x", "app=x", 3)
        .pods(3, "a/x", "app=x,pod-template-hash=1")
        .pods(2, "a/y", "app=y")
        .pods(2, "b/x", "app=x");
    let of = |world: &World| slots(&by_labels(&world.plan(), "a", "app=x,pod-template-hash=1"));
    assert_eq!(of(&world), [("a/p".into(), 6)]);
    assert_eq!(of(&world.clone().unready("a/x-0")), [("a/p".into(), 10)]);
    assert_eq!(
        of(&world.pods(30, "a/more", "app=x")),
        [("a/p".into(), 1)],
        "more proxies than slots: one each"
    );
}

#[test]
fn a_sidecar_has_its_endpoint_s_slots_to_itself() {
    for n in [0, 1, 5] {
        let world = World::default()
            .policy("a/p", "perEndpoint: 8", &["Service/a/x", "Pod/a/app=y"])
            .service("a/x", "app=x", 5)
            .pods(n, "a/x", "app=x")
            .pods(n, "a/y", "app=y,tier=web");
        for pod in ["app=x", "app=y,tier=web"] {
            assert_eq!(
                slots(&by_labels(&world.plan(), "a", pod)),
                [("a/p".into(), 8)]
            );
        }
    }
}

#[test]
fn a_proxy_that_names_its_target_counts_for_this_target_only() {
    let world = World::default()
        .policy("a/p", "total: 20", &["Service/a/x"])
        .service("a/x", "app=x", 4)
        .pods(4, "a/x", "app=x")
        .pods(2, "a/edge", "app=edge")
        .claims("a/edge-0", "Service/a/x")
        .claims("a/edge-1", "Service/a/x");
    let claimed =
        |world: &World| world.plan().workloads[&target("Service/a/x")].stages[0].parallelism;
    let sidecar = |world: &World| slots(&by_labels(&world.plan(), "a", "app=x"))[0].1;
    assert_eq!((claimed(&world), sidecar(&world)), (10, 5));
    let one = world.clone().unready("a/edge-1");
    assert_eq!((claimed(&one), sidecar(&one)), (20, 5));
    let none = one.unready("a/edge-0");
    assert_eq!((claimed(&none), sidecar(&none)), (20, 5), "one at least");
    let mixed = world.claims("a/x-0", "Service/a/x");
    assert_eq!(
        (claimed(&mixed), sidecar(&mixed)),
        (3, 5),
        "a sidecar that says so is beside the other sidecars: 20 slots for 6 proxies"
    );
    let elsewhere = World::default()
        .policy("a/p", "total: 20", &["Service/a/x"])
        .service("a/x", "app=x", 4)
        .pods(4, "a/x", "app=x")
        .claims("a/x-0", "Service/a/y");
    assert_eq!(sidecar(&elsewhere), 6, "its proxy enforces something else");
}

#[test]
fn a_claim_counts_endpoints_and_only_pods_of_the_own_namespace() {
    let world = World::default()
        .policy(
            "a/p",
            "perEndpoint: 4",
            &["Service/a/x", "Pod/a/app=x", "Service/a/ext"],
        )
        .service("a/x", "app=x", 3)
        .service("a/ext", "", 7)
        .pods(5, "a/x", "app=x")
        .unready("a/x-4")
        .pods(2, "b/spy", "app=spy")
        .claims("b/spy-0", "Service/a/x")
        .claims("b/spy-1", "Service/a/ext");
    let plan = world.plan();
    let claimed = |t: &str| plan.workloads[&target(t)].stages[0].parallelism;
    assert_eq!((claimed("Service/a/x"), claimed("Pod/a/app=x")), (12, 16));
    assert!(!plan.workloads.contains_key(&target("Service/a/ext")));

    let named = world
        .pod("a/edge", "app=edge")
        .claims("a/edge", "Service/a/ext");
    assert_eq!(named.state("a/p").not_found, []);
    let plan = named.plan();
    assert_eq!(
        plan.workloads[&target("Service/a/ext")].stages[0].parallelism,
        28
    );
    assert_eq!(plan.attachments.len(), 2, "nobody is known by labels there");
}

#[test]
fn of_several_policies_for_a_pod_the_oldest_is_in_force() {
    let world = World::default()
        .policy_of_age("a/young", 5, "total: 6", &["Service/a/x"])
        .policy_of_age("a/old", 1, "total: 8", &["Pod/a/tier=web"])
        .service("a/x", "app=x", 1)
        .pod("a/x-0", "app=x,tier=web");
    let enforced = by_labels(&world.plan(), "a", "app=x,tier=web");
    assert_eq!(slots(&enforced), [("a/old".into(), 8)]);
    assert_eq!(enforced.in_force.len(), 1);
    assert_eq!(enforced.in_force[0].target, target("Pod/a/tier=web"));
    let lost = [Conflict {
        target: target("Service/a/x"),
        winner: "a/old".into(),
    }];
    let young = world.state("a/young");
    assert_eq!(
        (young.overridden, young.revision),
        (lost.to_vec(), String::new())
    );
    assert_eq!(young.conflicts, []);
    assert_eq!(world.state("a/old").overridden, []);

    // A policy isn't overridden while it is in force on any proxy.
    let other = world.clone().pod("a/x-1", "app=x");
    assert_eq!(other.state("a/young").overridden, []);
    assert_eq!(
        slots(&by_labels(&other.plan(), "a", "app=x")),
        [("a/young".into(), 3)]
    );
    let claimed = world
        .pod("a/edge", "app=edge")
        .claims("a/edge", "Service/a/x");
    assert_eq!(claimed.state("a/young").overridden, []);
}

#[test]
fn a_policy_can_be_overridden_before_there_are_pods() {
    let world = World::default()
        .policy("a/all", "total: 6", &["Pod/a/tier=web"])
        .policy("a/some", "total: 6", &["Pod/a/app=x,tier=web"])
        .policy("a/other", "total: 6", &["Pod/a/app=y"]);
    assert_eq!(world.state("a/some").overridden[0].winner, "a/all");
    assert_eq!(world.state("a/all").overridden, []);
    assert_eq!(world.state("a/other").overridden, []);
}

#[test]
fn a_policy_with_two_targets_on_a_pod_does_not_conflict_with_itself() {
    let world = World::default()
        .policy("a/p", "total: 20", &["Service/a/x", "Pod/a/tier=web"])
        .service("a/x", "app=x", 2)
        .pods(2, "a/x", "app=x,tier=web")
        .pods(3, "a/y", "app=y,tier=web");
    let plan = world.plan();
    let enforced = by_labels(&plan, "a", "app=x,tier=web");
    assert_eq!(
        slots(&enforced),
        [("a/p".into(), 4)],
        "no more than five proxies of one of its targets may have"
    );
    assert_eq!(enforced.in_force.len(), 2);
    assert_eq!(world.state("a/p").overridden, []);
}

#[test]
fn without_a_policy_nothing_is_enforced_and_no_warning_is_logged() {
    let world = World::default()
        .policy("a/p", "total: 20", &["Service/a/x"])
        .service("a/x", "app=x", 2);
    let plan = world.plan();
    for (namespace, pod) in [("a", "app=y"), ("b", "app=x")] {
        let enforced = by_labels(&plan, namespace, pod);
        assert_eq!(*enforced, Enforced::default(), "{namespace} {pod}");
    }
    let nobody = by_labels(&plan, "a", "");
    assert!(
        nobody
            .problem
            .as_ref()
            .unwrap()
            .contains("headgate.dev/labels")
    );
}
