//! Properties of every cluster.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Generates clusters. Names come from a small set, so that policies overlap.
fn cluster() -> impl Strategy<Value = World> {
    let namespace = || prop_oneof![Just("a"), Just("b")];
    let kind = prop_oneof![
        3 => Just("Service"), 2 => Just("Pod"), 2 => Just("Gateway"), 2 => Just("HTTPRoute"),
        1 => Just("GRPCRoute"), 2 => Just("InferencePool"),
    ];
    let a_target = (kind, 0..3_u8).prop_map(|(kind, n)| match kind {
        "Pod" => (kind, format!("app=s{n}")),
        "Gateway" => (kind, format!("g{n}")),
        "Service" | "InferencePool" => (kind, format!("s{n}")),
        _ => (kind, format!("r{n}")),
    });
    let slots = prop_oneof![
        (1..30_u32).prop_map(|n| format!("total: {n}")),
        (1..10_u32).prop_map(|n| format!("perEndpoint: {n}")),
    ];
    let policies = proptest::collection::vec(
        (
            namespace(),
            0..4_u32,
            slots,
            proptest::collection::btree_set(a_target, 1..4),
        ),
        0..8,
    );
    let services = proptest::collection::btree_map((namespace(), 0..3_u8), 0..5_u32, 0..6);
    let gateways = proptest::collection::btree_set((namespace(), 0..3_u8), 0..5);
    let routes = proptest::collection::btree_map(
        (any::<bool>(), namespace(), 0..3_u8),
        (
            proptest::collection::btree_set((namespace(), 0..3_u8), 0..3),
            proptest::collection::btree_set((any::<bool>(), (namespace(), 0..3_u8)), 0..3),
            proptest::option::of(0..2_u8),
        ),
        0..6,
    );
    let pods = proptest::collection::vec(
        (
            namespace(),
            proptest::option::of(0..3_u8),
            proptest::option::of(0..3_u8),
            proptest::option::weighted(0.2, (namespace(), 0..3_u8)),
            proptest::bool::weighted(0.8),
        ),
        0..14,
    );
    (policies, services, gateways, routes, pods).prop_map(
        |(policies, services, gateways, routes, pods)| {
            let mut world = World::default();
            for (i, (namespace, age, slots, targets)) in policies.iter().enumerate() {
                let targets: Vec<String> = targets
                    .iter()
                    .map(|(kind, name)| format!("{kind}/{namespace}/{name}"))
                    .collect();
                let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
                world = world.policy_of_age(&format!("{namespace}/p{i}"), *age, slots, &targets);
            }
            for ((namespace, n), ready) in services {
                let (name, selector) = (format!("{namespace}/s{n}"), format!("app=s{n}"));
                world = world
                    .service(&name, &selector, ready)
                    .pool(&name, &selector, 2);
            }
            for (namespace, n) in gateways {
                world = world.gateway(&format!("{namespace}/g{n}"));
            }
            for ((http, namespace, n), (parents, backends, rule)) in routes {
                let kind = if http { "HTTPRoute" } else { "GRPCRoute" };
                let name =
                    |prefix: &str, (namespace, n): &(&str, u8)| format!("{namespace}/{prefix}{n}");
                let parents: Vec<String> = parents.iter().map(|p| name("g", p)).collect();
                let backend = |(is_pool, b): &(bool, _)| {
                    format!(
                        "{}{}",
                        if *is_pool { "InferencePool/" } else { "" },
                        name("s", b)
                    )
                };
                let backends: Vec<String> = backends.iter().map(backend).collect();
                let texts = |of: &'_ [String]| of.iter().map(|s| s.to_owned()).collect::<Vec<_>>();
                let (parents, backends) = (texts(&parents), texts(&backends));
                let has_rules = !backends.is_empty();
                let route = format!("{kind}/{namespace}/r{n}");
                world = world.route(
                    &route,
                    &parents.iter().map(String::as_str).collect::<Vec<_>>(),
                    &backends.iter().map(String::as_str).collect::<Vec<_>>(),
                );
                if let Some(rule) = rule.filter(|_| has_rules) {
                    world = world.named(&route, 0, &format!("rule{rule}"));
                }
            }
            for (i, (namespace, app, gateway, claim, ready)) in pods.into_iter().enumerate() {
                let name = format!("{namespace}/pod{i}");
                let mut with = vec![format!("n={i}")];
                with.extend(app.map(|n| format!("app=s{n}")));
                with.extend(gateway.map(|n| format!("{GATEWAY_NAME_LABEL}=g{n}")));
                world = world.pod(&name, &with.join(","));
                if let Some((namespace, n)) = claim {
                    world = world.claims(&name, &format!("Service/{namespace}/s{n}"));
                }
                if !ready {
                    world = world.unready(&name);
                }
            }
            world
        },
    )
}

/// Generates policies at one Gateway with two listeners, for routes of two namespaces.
fn gateway() -> impl Strategy<Value = World> {
    let namespace = || prop_oneof![3 => Just("a"), 1 => Just("b")];
    let a_target = prop_oneof![
        3 => (0..2_u8).prop_map(|n| ("InferencePool", format!("l{n}"))),
        3 => (0..4_u8).prop_map(|n| ("HTTPRoute", format!("r{n}"))),
        1 => Just(("Gateway", "edge".to_owned())),
        2 => prop_oneof!["edge/http", "edge/https"].prop_map(|name| ("Gateway", name)),
    ];
    let targets = proptest::collection::btree_set(a_target, 1..5);
    let policies = proptest::collection::vec((namespace(), 0..4_u32, targets), 2..6);
    let parent = prop_oneof![Just("a/edge"), Just("a/edge/http"), Just("a/edge/https")];
    let backends = proptest::collection::vec(0..3_u8, 0..4);
    let routes = proptest::collection::btree_map((namespace(), 0..4_u8), (parent, backends), 1..7);
    (policies, routes).prop_map(|(policies, routes)| {
        let mut world = World::default().gateway_with("a/edge", &["http", "https"]);
        for pool in ["a/l0", "a/l1", "b/l0", "b/l1"] {
            world = world.pool(pool, "app=llm", 1);
        }
        for (i, (namespace, age, targets)) in policies.iter().enumerate() {
            let targets: Vec<String> = targets
                .iter()
                .map(|(kind, name)| format!("{kind}/{namespace}/{name}"))
                .collect();
            let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
            world = world.policy_of_age(&format!("{namespace}/p{i}"), *age, "total: 9", &targets);
        }
        for ((namespace, n), (parent, backends)) in routes {
            let backend = |n: u8| match n {
                2 => format!("{namespace}/service"),
                _ => format!("InferencePool/{namespace}/l{n}"),
            };
            let backends: Vec<String> = backends.into_iter().map(backend).collect();
            let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
            world = world.route(&format!("HTTPRoute/{namespace}/r{n}"), &[parent], &backends);
        }
        world
    })
}

/// Whether `routes` cover requests of an Envoy route, as in the filter.
fn cover(routes: &[String], name: &str) -> bool {
    let covers = |pattern: &String| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    };
    routes.is_empty() || routes.iter().any(covers)
}

/// Returns the configuration that each Pod's proxy enforces.
fn enforced(world: &World, plan: &Plan) -> Vec<(ObjectKey, bool, Arc<Enforced>)> {
    let of = |(key, pod): (&ObjectKey, &Pod)| {
        let enforced = plan.for_proxy(&ProxyClaims {
            target: pod.target.as_ref(),
            namespace: Some(&key.namespace),
            labels: &pod.labels,
        });
        (key.clone(), pod.ready, enforced)
    };
    world.cluster.pods.iter().map(of).collect()
}

proptest! {
    #[test]
    fn only_a_routes_policy_reaches_another_namespace_and_only_its_requests(world in cluster()) {
        let plan = world.plan();
        for (pod, _, enforced) in enforced(&world, &plan) {
            let own = format!("{}/", pod.namespace);
            for stage in &enforced.config.stages {
                let is_own = stage.policy.starts_with(&own);
                prop_assert!(is_own || !stage.routes.is_empty(), "{} at {pod}", stage.policy);
            }
        }
        for attachment in plan.attachments.iter() {
            let is_own = attachment.target.namespace == attachment.proxies.namespace;
            prop_assert!(is_own || !attachment.stage.routes.is_empty());
            let name = attachment.proxies.labels.get(GATEWAY_NAME_LABEL);
            let Some(name) = name else { continue };
            let gateway = ObjectKey::new(&attachment.proxies.namespace, name);
            let others = world.cluster.routes.iter().filter(|(name, route)| {
                let kind = attachment.target.kind;
                let is_route = matches!(kind, TargetKind::HttpRoute | TargetKind::GrpcRoute);
                is_route && **name != attachment.target && route.gateways.contains(&gateway)
            });
            for rule in others.flat_map(|(_, route)| route.names.values()) {
                prop_assert!(!attachment.stage.routes.contains(rule), "{rule} at {gateway}");
            }
        }
    }

    /// The slots of all ready proxies selected by labels are added up, and separately the slots of
    /// the proxies that name the target.
    #[test]
    fn no_more_slots_than_total_unless_proxies_outnumber_them(world in cluster()) {
        let plan = world.plan();
        for (key, object) in world.cluster.policies.iter() {
            let policy = object.effective.as_ref().unwrap();
            let Slots::Total(total) = policy.slots else { continue };
            for target in &policy.targets {
                let (mut by_labels, mut by_claim) = (Vec::new(), Vec::new());
                for (pod, ready, enforced) in enforced(&world, &plan) {
                    let is_by = |f: &&headgate_api::plan::InForce| {
                        f.policy == key.to_string() && f.target == *target
                    };
                    if !ready || enforced.in_force.iter().find(is_by).is_none() {
                        continue;
                    }
                    let stage = enforced.config.stages.iter().find(|s| s.policy == key.to_string());
                    let claims = world.cluster.pods[&pod].target.is_some();
                    let slots = if claims { &mut by_claim } else { &mut by_labels };
                    slots.push(stage.unwrap().parallelism);
                }
                for slots in [by_labels, by_claim] {
                    let all: u32 = slots.iter().sum();
                    prop_assert!(
                        all <= total || slots.iter().all(|s| *s == 1),
                        "{key} at {target}: {slots:?} of {total}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_configuration_is_one_that_the_filter_takes(world in cluster()) {
        let plan = world.plan();
        for (_, _, enforced) in enforced(&world, &plan) {
            prop_assert_eq!(enforced.config.check(), Ok(()));
            let policies: BTreeSet<&str> =
                enforced.config.stages.iter().map(|s| s.policy.as_str()).collect();
            prop_assert_eq!(policies.len(), enforced.config.stages.len(), "one stage a policy");
            let named: BTreeSet<&str> =
                enforced.in_force.iter().map(|f| f.policy.as_str()).collect();
            prop_assert_eq!(policies, named);
            let for_all = enforced.config.stages.iter().position(|s| s.routes.is_empty());
            prop_assert!(for_all.is_none_or(|at| at + 1 == enforced.config.stages.len()));
        }
    }

    /// Equal clusters give equal plans, byte for byte, independent of earlier plans.
    #[test]
    fn plans_do_not_depend_on_history(before in cluster(), world in cluster()) {
        let afresh = world.plan();
        let mut planner = Planner::default();
        let old = planner.plan(&before.cluster);
        let _held = enforced(&before, &old);
        let after = planner.plan(&world.cluster);
        prop_assert_eq!(&after, &afresh);
        let bytes = |plan: &Plan| -> Vec<String> {
            let config = |(_, _, e): (ObjectKey, bool, Arc<Enforced>)| {
                serde_json::to_string(&*e.config).unwrap()
            };
            enforced(&world, plan).into_iter().map(config).collect()
        };
        prop_assert_eq!(bytes(&after), bytes(&afresh));
    }

    /// Each target of a policy in force is won, lost or not found, and an overriding policy is in
    /// force.
    #[test]
    fn every_target_has_one_fate(world in cluster()) {
        let plan = world.plan();
        for state in &plan.policies {
            for target in &state.targets {
                let won = plan.workloads.get(target);
                let won = won.is_some_and(|c| c.stages[0].policy == state.name);
                let lost = state.conflicts.iter().filter(|c| c.target == *target).count();
                let missing = state.not_found.iter().filter(|(t, _)| t == target).count();
                let fates = usize::from(won) + lost + missing;
                prop_assert_eq!(fates, 1, "{} at {}", state.name, target);
            }
            for lost in &state.overridden {
                prop_assert_ne!(&lost.winner, &state.name);
                let winner = plan.policies.iter().find(|p| p.name == lost.winner).unwrap();
                prop_assert!(winner.overridden.len() < winner.targets.len());
            }
            let without_effect =
                state.conflicts.len() + state.overridden.len() + state.not_found.len();
            prop_assert_eq!(state.revision.is_empty(), without_effect == state.targets.len());
        }
    }

    /// The oldest matching policy is in force, for all requests, those of a route and those of a
    /// pool.
    #[test]
    fn precedence_is_a_total_order(world in cluster()) {
        let plan = world.plan();
        let order: Vec<_> = plan
            .attachments
            .iter()
            .map(|a| {
                let object = &world.cluster.policies[&key(&a.stage.policy)];
                let policy = object.effective.as_ref().unwrap();
                (
                    a.stage.routes.is_empty(),
                    a.target.kind != TargetKind::InferencePool,
                    policy.created.clone(),
                    policy.namespace.clone(),
                    policy.name.clone(),
                )
            })
            .collect();
        prop_assert!(order.is_sorted(), "{order:?}");
    }

    /// A request meets the policy of the first attachment that covers its route.
    #[test]
    fn requests_meet_the_policy_with_precedence(world in gateway()) {
        let plan = world.plan();
        let with = format!("{GATEWAY_NAME_LABEL}=edge");
        let enforced = by_labels(&plan, "a", &with);
        let here = |a: &&headgate_api::plan::Attachment| a.proxies.matches("a", &labels(&with));
        let attachments: Vec<_> = plan.attachments.iter().filter(here).collect();
        let mut names: BTreeSet<String> = attachments
            .iter()
            .flat_map(|a| &a.stage.routes)
            .map(|pattern| pattern.replace('*', "another"))
            .collect();
        for (TargetRef { namespace, name, .. }, route) in world.cluster.routes.iter() {
            for rule in 0..route.rules.len() {
                names.insert(format!("httproute/{namespace}/{name}/rule/{rule}/match/0/host"));
                names.insert(format!("{namespace}.{name}.{rule}"));
            }
        }
        for name in names {
            let first = attachments.iter().find(|a| cover(&a.stage.routes, &name));
            let met = enforced.config.stages.iter().find(|s| cover(&s.routes, &name));
            prop_assert_eq!(
                met.map(|stage| &stage.policy),
                first.map(|a| &a.stage.policy),
                "{}", name
            );
        }
    }

    #[test]
    fn slots_follow_scale(world in cluster(), n in 0..3_u8) {
        let selector = format!("app=s{n}");
        let slots = |world: &World| {
            let enforced = by_labels(&world.plan(), "a", &selector);
            let for_all = enforced.config.stages.iter().find(|s| s.routes.is_empty());
            for_all.map(|s| (s.policy.clone(), s.parallelism))
        };
        let fewer = slots(&world);
        let more = slots(&world.pod("a/one-more", &selector));
        if let (Some((was, fewer)), Some((is, more))) = (fewer, more) {
            prop_assert_eq!(was, is, "scaling changes no winner");
            prop_assert!(more <= fewer, "{more} slots after {fewer}");
        }
    }
}
