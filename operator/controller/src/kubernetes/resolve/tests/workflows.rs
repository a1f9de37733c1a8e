//! Policies with workflows. Their rates scale with slots, and the workflows of one policy are in
//! force at a proxy.

use std::sync::Arc;

use headgate_core::config::{Direction, SharingConfig};

use super::*;

impl World {
    /// Gives the policy workflows. Workflow `checkout` has a guarantee of 60 requests/s, and the
    /// resource has a capacity of 600.
    fn with_workflows(mut self, name: &str) -> Self {
        let yaml = format!(
            "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: p}}\n\
             spec:\n  targetRefs: [{{kind: Service, name: x}}]\n  parallelism: {{total: 1}}\n  \
             types: [{{name: default, slo: {{p50: 18ms}}}}]\n  \
             workflows: {{named: [{{name: checkout, guarantee: 60}}], \
             sharing: {{type: DominantResource, dominantResource: \
             {{resource: {{capacity: 600, orca: {{metric: db}}}}}}}}, \
             outbound: {{services: [{{cluster: {}, name: extent}}]}}}}\n",
            name.replace('/', "-")
        );
        let report = check_file("test.yaml", yaml.as_bytes());
        let made = report.policies().next().unwrap().clone();
        let object = Arc::make_mut(&mut self.cluster.policies).get_mut(&key(name));
        let object = Arc::make_mut(object.unwrap());
        let policy = object.effective.as_mut().unwrap();
        policy.stage.workflows = made.stage.workflows;
        policy.outbound = made.outbound.map(|mut outbound| {
            outbound.policy = name.to_owned();
            outbound
        });
        self
    }

    /// Gives the policy class targets, and calls to Service `x` in its namespace.
    fn with_class_admission(mut self, name: &str) -> Self {
        let yaml = "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {name: p}\n\
                    spec:\n  targetRefs: [{kind: Service, name: x}]\n  parallelism: {total: 1}\n  \
                    types: [{name: default, slo: {p50: 18ms}}]\n  \
                    classes: [{name: high, matches: [{path: {value: /}}]}, {name: low}]\n  \
                    classAdmission: {targets: {high: 20ms}, \
                    outbound: {services: [{cluster: c, name: x}]}}\n";
        let report = check_file("test.yaml", yaml.as_bytes());
        let made = report.policies().next().unwrap().clone();
        let object = Arc::make_mut(&mut self.cluster.policies).get_mut(&key(name));
        let object = Arc::make_mut(object.unwrap());
        let policy = object.effective.as_mut().unwrap();
        policy.promises = made.promises;
        policy.outbound = made.outbound.map(|mut outbound| {
            outbound.policy = name.to_owned();
            outbound
        });
        self
    }
}

/// Returns the Services whose class targets the calls of a Pod with policy `a/front` follow.
fn followed(world: &World) -> Vec<String> {
    let plan = world.plan();
    let calls = plan.outbound["a/front"].outbound.as_ref().unwrap();
    calls.class_admission.keys().cloned().collect()
}

/// Returns the guarantee of `checkout` and the capacity of the resource at the proxies with these
/// labels.
fn rates(plan: &Plan, with: &str) -> (f64, f64) {
    let enforced = by_labels(plan, "a", with);
    let workflows = enforced.config.stages[0].workflows.clone().unwrap();
    let SharingConfig::DominantResource { resource, .. } = workflows.sharing else {
        panic!("{:?}", workflows.sharing);
    };
    let guarantee = workflows.workflows["checkout"].guarantee.unwrap();
    (guarantee, resource.capacity)
}

fn sidecars(slots: &str, pods: usize) -> World {
    World::default()
        .service("a/x", "app=x", 1)
        .pods(pods, "a/x", "app=x")
        .policy("a/p", slots, &["Service/a/x"])
        .with_workflows("a/p")
}

#[test]
fn guarantees_go_with_slots() {
    for (slots, pods, expected) in [
        ("total: 30", 1, (60.0, 600.0)),
        ("total: 30", 3, (20.0, 200.0)),
        // Unlike slots, rates are neither rounded nor clamped.
        ("total: 2", 8, (7.5, 75.0)),
        ("perEndpoint: 10", 3, (60.0, 600.0)),
    ] {
        let plan = sidecars(slots, pods).plan();
        assert_eq!(rates(&plan, "app=x"), expected, "{slots} {pods}");
    }
    let gateway = format!("{GATEWAY_NAME_LABEL}=edge");
    let world = World::default()
        .gateway("a/edge")
        .service("a/x", "app=x", 6)
        .route("HTTPRoute/a/r", &["a/edge"], &["a/x"])
        .pods(4, "a/edge", &gateway)
        .policy("a/p", "perEndpoint: 10", &["Gateway/a/edge"])
        .with_workflows("a/p");
    assert_eq!(rates(&world.plan(), &gateway), (90.0, 900.0));
    // The policy of another target doesn't change the rates.
    let both = world.policy("a/other", "total: 1", &["Service/a/x"]);
    assert_eq!(rates(&both.plan(), &gateway), (90.0, 900.0));
}

#[test]
fn a_policy_by_two_targets_has_its_part_once() {
    let gateway = format!("{GATEWAY_NAME_LABEL}=edge");
    let world = World::default()
        .gateway("a/edge")
        .service("a/x", "app=x", 3)
        .service("a/z", "app=z", 5)
        .route("HTTPRoute/a/r", &["a/edge"], &["a/x"])
        .route("HTTPRoute/a/s", &["a/edge"], &["a/z", "a/x"])
        .pods(2, "a/edge", &gateway)
        .policy("a/p", "perEndpoint: 4", &["HTTPRoute/a/r", "HTTPRoute/a/s"])
        .with_workflows("a/p");
    let plan = world.plan();
    let enforced = by_labels(&plan, "a", &gateway);
    assert_eq!(enforced.config.stages[0].parallelism, 16);
    let (guarantee, capacity) = rates(&plan, &gateway);
    assert!((guarantee - 240.0).abs() < 1e-9 && (capacity - 2400.0).abs() < 1e-9);
}

#[test]
fn outbound_slots_follow_the_policy_and_not_its_scale() {
    let mut planner = Planner::default();
    let one = planner.plan(&sidecars("total: 30", 1).cluster);
    let calls = |plan: &Plan| {
        let enforced = by_labels(plan, "a", "app=x");
        Arc::clone(plan.outbound_of(&enforced.config, "a").unwrap())
    };
    let config = calls(&one);
    assert_eq!(config.direction, Direction::Outbound);
    let outbound = config.outbound.as_ref().unwrap();
    assert_eq!(
        (outbound.policy.as_str(), outbound.services["a-p"].as_str()),
        ("a/p", "extent")
    );
    assert_eq!(config.check(), Ok(()));
    let three = planner.plan(&sidecars("total: 30", 3).cluster);
    assert!(Arc::ptr_eq(&config, &calls(&three)));
    let claimed = one.for_proxy(&ProxyClaims {
        target: Some(&target("Service/a/x")),
        namespace: Some("a"),
        labels: &BTreeMap::new(),
    });
    assert!(one.outbound_of(&claimed.config, "a").is_some());
    let without = World::default()
        .service("a/x", "app=x", 1)
        .pods(1, "a/x", "app=x")
        .policy("a/p", "total: 30", &["Service/a/x"])
        .plan();
    let enforced = by_labels(&without, "a", "app=x");
    assert_eq!(without.outbound_of(&enforced.config, "a"), None);
}

/// A process announces one rate for a workflow. So the workflows of the first policy are in force,
/// and those of the other policies aren't. Everything else of the other policies is in force.
#[test]
fn one_policy_s_workflows_are_in_force_at_a_proxy() {
    let gateway = format!("{GATEWAY_NAME_LABEL}=edge");
    let world = World::default()
        .gateway("a/edge")
        .service("a/x", "app=x", 3)
        .route("HTTPRoute/a/r", &["a/edge"], &["a/x"])
        .route("HTTPRoute/a/s", &["a/edge"], &["a/x"])
        .pods(1, "a/edge", &gateway)
        .policy("a/gateway", "total: 20", &["Gateway/a/edge"])
        .policy("a/r", "total: 20", &["HTTPRoute/a/r"])
        .policy("a/s", "total: 20", &["HTTPRoute/a/s"]);
    let with = |names: &[&str]| {
        let world = names
            .iter()
            .fold(world.clone(), |world, name| world.with_workflows(name));
        let enforced = by_labels(&world.plan(), "a", &gateway);
        let stages = enforced.config.stages.iter();
        let with: Vec<String> = stages
            .filter(|s| s.workflows.is_some())
            .map(|s| s.policy.clone())
            .collect();
        assert_eq!(enforced.config.stages.len(), 3);
        let lost = ["a/gateway", "a/r", "a/s"].map(|policy| {
            let state = world.state(policy);
            assert_eq!(state.overridden, []);
            state.without_workflows
        });
        (with.join(" "), lost.concat())
    };
    assert_eq!(with(&[]), (String::new(), vec![]));
    assert_eq!(with(&["a/s"]), ("a/s".to_owned(), vec![]));
    let lost = |name: &str| Conflict {
        target: target(name),
        winner: "a/r".to_owned(),
    };
    assert_eq!(
        with(&["a/gateway", "a/r", "a/s"]),
        (
            "a/r".to_owned(),
            vec![lost("Gateway/a/edge"), lost("HTTPRoute/a/s")]
        ),
        "as for requests: the more specific first, then the older"
    );
    let state = world
        .clone()
        .with_workflows("a/r")
        .with_workflows("a/s")
        .state("a/s");
    assert_eq!(
        state.remarks(Some(&target("HTTPRoute/a/s"))).unwrap(),
        "its workflows are left out at proxies of HTTPRoute/a/s, where those of a/r are in force"
    );

    // A policy's last target determines the place of its stage.
    let targets = ["HTTPRoute/a/q", "Gateway/a/edge"];
    let both = world
        .route("HTTPRoute/a/q", &["a/edge"], &["a/x"])
        .policy_of_age("a/gateway", 0, "total: 20", &targets)
        .with_workflows("a/gateway")
        .with_workflows("a/r");
    let enforced = by_labels(&both.plan(), "a", &gateway);
    let first = &enforced.config.stages[0];
    assert!(first.policy == "a/r" && first.workflows.is_some());
    assert_eq!(both.state("a/r").without_workflows, []);
    assert_eq!(both.state("a/gateway").without_workflows, targets.map(lost));
}

/// At a shared Gateway, the stages for other namespaces' routes come first. Their policies may
/// neither turn off the workflows of the Gateway's own policy nor configure its calls.
#[test]
fn a_route_of_another_namespace_takes_no_workflows_from_a_gateway() {
    let gateway = format!("{GATEWAY_NAME_LABEL}=edge");
    let world = World::default()
        .gateway("a/edge")
        .service("b/x", "app=x", 3)
        .route("HTTPRoute/b/r", &["a/edge"], &["b/x"])
        .pods(1, "a/edge", &gateway)
        .policy_of_age("a/gateway", 2, "total: 20", &["Gateway/a/edge"])
        .policy_of_age("b/r", 1, "total: 20", &["HTTPRoute/b/r"]);
    let calls = |world: &World| {
        let plan = world.plan();
        let enforced = by_labels(&plan, "a", &gateway);
        let config = &enforced.config;
        let order = config.stages.iter().map(|s| s.policy.as_str());
        assert!(order.eq(["b/r", "a/gateway"]));
        let with = config.stages.iter().filter(|s| s.workflows.is_some());
        let with: Vec<String> = with.map(|s| s.policy.clone()).collect();
        let calls = plan.outbound_of(config, "a").unwrap().outbound.as_ref();
        (with.join(" "), calls.unwrap().policy.clone())
    };
    let of = |policy: &str| (policy.to_owned(), policy.to_owned());
    let only = world.clone().with_workflows("b/r");
    assert_eq!(calls(&only), of("b/r"));
    let both = only.with_workflows("a/gateway");
    assert_eq!(calls(&both), of("a/gateway"));
    assert_eq!(both.state("a/gateway").without_workflows, []);
    let lost = Conflict {
        target: target("HTTPRoute/b/r"),
        winner: "a/gateway".to_owned(),
    };
    assert_eq!(both.state("b/r").without_workflows, [lost]);
    let classes = world
        .with_class_admission("b/r")
        .with_class_admission("a/gateway");
    assert_eq!(calls(&classes).1, "a/gateway");
}

/// Proxies that don't run a policy neither know its classes nor report what its callers need.
#[test]
fn callers_follow_only_the_policy_in_force_at_a_service() {
    let world = World::default()
        .service("a/x", "app=x", 1)
        .service("a/y", "app=x", 1)
        .service("a/front", "app=front", 1)
        .pod("a/x-0", "app=x")
        .policy_of_age("a/front", 1, "total: 4", &["Service/a/front"])
        .with_class_admission("a/front")
        .policy_of_age("a/p", 2, "total: 4", &["Service/a/x"])
        .with_class_admission("a/p");
    assert_eq!(followed(&world), ["x"]);
    // Of two older policies, one has the Service and the other one all of its Pods.
    let conflict = |of: &PolicyState| (of.conflicts.len(), of.overridden.len());
    for (target, expected) in [("Service/a/x", (1, 0)), ("Service/a/y", (0, 1))] {
        let older = world
            .clone()
            .policy_of_age("a/old", 0, "total: 4", &[target]);
        assert_eq!(conflict(&older.state("a/p")), expected, "{target}");
        assert_eq!(followed(&older), [""; 0], "{target}");
    }
}
