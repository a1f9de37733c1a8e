//! Gateways and their routes.

use headgate_core::config::MAX_STAGES;

use super::*;
use crate::conditions::{self, Type};
use headgate_xds::node::Identity;
use headgate_xds::snapshot::Snapshot;
use headgate_xds::tally::Tallies;

fn edge(pods: usize) -> World {
    World::default()
        .gateway("a/edge")
        .service("a/x", "app=x", 3)
        .service("b/y", "app=y", 2)
        .route("HTTPRoute/a/r", &["a/edge", "a/edge"], &["a/x"])
        .route("GRPCRoute/b/g", &["a/edge"], &["b/y", "a/x"])
        .pods(
            pods,
            "a/edge",
            &format!("app=envoy,{GATEWAY_NAME_LABEL}=edge"),
        )
}

fn at_edge(world: &World) -> Arc<Enforced> {
    by_labels(
        &world.plan(),
        "a",
        &format!("app=envoy,{GATEWAY_NAME_LABEL}=edge"),
    )
}

#[test]
fn a_gateway_s_slots_follow_the_endpoints_behind_it_and_its_pods() {
    let per = |pods| edge(pods).policy("a/p", "perEndpoint: 6", &["Gateway/a/edge"]);
    let slots_with = |pods| slots(&at_edge(&per(pods)));
    assert_eq!(slots_with(1), [("a/p".into(), 30)], "3 and 2 endpoints");
    assert_eq!(slots_with(2), [("a/p".into(), 15)]);
    assert_eq!(slots_with(4), [("a/p".into(), 7)]);
    let total = edge(3).policy("a/p", "total: 20", &["Gateway/a/edge"]);
    assert_eq!(slots(&at_edge(&total)), [("a/p".into(), 6)]);
    assert_eq!(
        slots(&at_edge(&total.unready("a/edge-0"))),
        [("a/p".into(), 10)]
    );
}

#[test]
fn pods_that_envoy_gateway_keeps_elsewhere_count_once() {
    let owned = "gateway.envoyproxy.io/owning-gateway-namespace=a,\
                 gateway.envoyproxy.io/owning-gateway-name=edge";
    let world = edge(0)
        .policy("a/p", "total: 20", &["Gateway/a/edge", "HTTPRoute/a/r"])
        .pods(3, "envoy-gateway-system/edge", owned)
        .pod("a/own", &format!("{GATEWAY_NAME_LABEL}=edge,{owned}"));
    assert_eq!(slots(&at_edge(&world)), [("a/p".into(), 5)]);
    let fewer = world.unready("envoy-gateway-system/edge-1");
    assert_eq!(slots(&at_edge(&fewer)), [("a/p".into(), 6)]);
}

/// Returns a cluster with two Gateways of one class. `HTTPRoute/a/r` attaches to both. Two Pods
/// serve all Gateways of the class.
fn merged() -> World {
    edge(0)
        .gateway("b/other")
        .gateway("b/alone")
        .route("HTTPRoute/a/r", &["a/edge", "b/other"], &["a/x"])
        .pods(
            2,
            "envoy-gateway-system/merged",
            "gateway.envoyproxy.io/owning-gatewayclass=envoy",
        )
}

#[test]
fn pods_that_serve_all_gateways_of_a_class_count_once() {
    let world = merged().policy("a/p", "total: 20", &["HTTPRoute/a/r"]);
    for gateway in ["edge", "other"] {
        let namespace = if gateway == "edge" { "a" } else { "b" };
        let labels = format!("{GATEWAY_NAME_LABEL}={gateway}");
        let enforced = by_labels(&world.plan(), namespace, &labels);
        let found = stages(&enforced);
        let found: Vec<_> = found
            .iter()
            .map(|(policy, slots, _)| (&**policy, *slots))
            .collect();
        assert_eq!(found, [("a/p", 10)], "{gateway}");
    }
}

#[test]
fn a_policy_at_gateways_with_the_same_proxies_says_that_they_compete() {
    let of = |target: &str| merged().policy("a/p", "total: 20", &[target]);
    let both = of("HTTPRoute/a/r");
    let warnings = both.state("a/p").warnings;
    assert!(
        matches!(&warnings[..], [one] if one.starts_with("Gateways a/edge and b/other have")),
        "{warnings:?}"
    );
    let natively = Planner::new(ENVOY_GATEWAY_NAMESPACE, true).plan(&both.cluster);
    assert_eq!(natively.policies[0].warnings, [""; 0]);
    assert_eq!(of("Gateway/a/edge").state("a/p").warnings, [""; 0]);
    let apart = (0..2).fold(both, |world, n| {
        world.unready(&format!("envoy-gateway-system/merged-{n}"))
    });
    assert_eq!(apart.state("a/p").warnings, [""; 0]);
}

#[test]
fn a_route_s_policy_is_for_its_requests_and_stands_first() {
    let world = edge(2)
        .policy("a/gateway", "total: 20", &["Gateway/a/edge"])
        .policy("a/route", "perEndpoint: 4", &["HTTPRoute/a/r"]);
    let enforced = at_edge(&world);
    let routes = vec!["httproute/a/r/*".to_owned(), "a.r.*".to_owned()];
    assert_eq!(
        stages(&enforced),
        [
            ("a/route".into(), 6, routes),
            ("a/gateway".into(), 10, vec![])
        ]
    );
    assert_eq!(enforced.config.check(), Ok(()));
    assert_eq!(enforced.in_force.len(), 2);
    for policy in ["a/gateway", "a/route"] {
        assert_eq!(world.state(policy).overridden, []);
    }
}

#[test]
fn a_listener_s_policy_is_for_the_routes_that_are_there_alone() {
    let world = World::default()
        .gateway_with("a/edge", &["http", "https"])
        .service("a/x", "app=x", 3)
        .route("HTTPRoute/a/plain", &["a/edge/http"], &["a/x"])
        .route("HTTPRoute/b/tls", &["a/edge/https"], &["a/x"])
        .pods(1, "a/edge", &format!("app=envoy,{GATEWAY_NAME_LABEL}=edge"))
        .policy("a/all", "total: 20", &["Gateway/a/edge"])
        .policy("a/https", "perEndpoint: 4", &["Gateway/a/edge/https"])
        .policy("a/tls", "total: 7", &["HTTPRoute/a/plain"]);
    let names = |route: &str| {
        let (namespace, name) = route.split_once('/').unwrap();
        vec![
            format!("httproute/{namespace}/{name}/*"),
            format!("{namespace}.{name}.*"),
        ]
    };
    assert_eq!(
        stages(&at_edge(&world)),
        [
            ("a/tls".into(), 7, names("a/plain")),
            ("a/https".into(), 12, names("b/tls")),
            ("a/all".into(), 20, vec![]),
        ]
    );
    assert_eq!(world.state("a/https").warnings, [""; 0]);

    let shared = |world: World| world.route("HTTPRoute/b/both", &["a/edge"], &["a/x"]);
    let state = shared(world).state("a/https");
    assert_eq!(
        state.warnings,
        [
            "Gateway/a/edge/https shares 1 routes with other listeners, such as HTTPRoute/b/both, \
             and the policy doesn't apply to them; give routes sectionName: https, and no other, \
             in their parentRefs for Gateway a/edge, or target the routes"
        ]
    );
    let one = shared(
        World::default()
            .gateway("a/edge")
            .service("a/x", "app=x", 3),
    )
    .policy("a/http", "total: 20", &["Gateway/a/edge/http"]);
    assert_eq!(
        one.state("a/http").warnings,
        [""; 0],
        "all are at the only listener"
    );
    let many = (0..33).fold(World::default().gateway("a/edge"), |world, i| {
        world.route(&format!("HTTPRoute/a/r{i}"), &["a/edge"], &[])
    });
    let many = many.policy("a/p", "total: 20", &["Gateway/a/edge/http"]);
    assert_eq!(
        many.state("a/p").not_found[0].1,
        "with it the policy has 66 names of Envoy's routes, two for each route or rule, and at \
         most 64 are possible; target the Gateway, or fewer routes"
    );
    for (listener, expected) in [
        ("tcp", "Gateway a/edge has no listener tcp; it has http"),
        (
            "http",
            "no route attaches to listener http only; give routes sectionName: http",
        ),
    ] {
        let target = format!("Gateway/a/edge/{listener}");
        let world = World::default()
            .gateway("a/edge")
            .policy("a/p", "total: 20", &[&target]);
        let why = &world.state("a/p").not_found[0].1;
        assert!(why.starts_with(expected), "{why}");
    }
}

#[test]
fn a_policy_with_two_routes_is_one_stage_for_both() {
    let world = edge(2)
        .service("a/z", "app=z", 5)
        .route("GRPCRoute/a/s", &["a/edge"], &["a/z", "a/x"])
        .policy("a/p", "perEndpoint: 4", &["HTTPRoute/a/r", "GRPCRoute/a/s"]);
    let routes = ["httproute/a/r/*", "a.r.*", "grpcroute/a/s/*", "a.s.*"];
    assert_eq!(
        stages(&at_edge(&world)),
        [("a/p".into(), 16, routes.map(str::to_owned).to_vec())],
        "4 for each of 8 endpoints, by 2 Pods"
    );
    let with_gateway = world.policy_of_age(
        "a/p",
        0,
        "perEndpoint: 4",
        &["HTTPRoute/a/r", "Gateway/a/edge"],
    );
    assert_eq!(
        stages(&at_edge(&with_gateway)),
        [("a/p".into(), 20, vec![])],
        "all requests are those of the route, too; 10 endpoints"
    );
}

/// The older policy is for a route and for a listener. The younger one is for a route of that
/// listener.
#[test]
fn a_policy_does_not_take_the_requests_of_a_more_specific_one_along_with_another_target() {
    let world = World::default()
        .gateway_with("a/edge", &["http", "https"])
        .service("a/x", "app=x", 3)
        .route("HTTPRoute/a/plain", &["a/edge/http"], &["a/x"])
        .route("HTTPRoute/a/other", &["a/edge/https"], &["a/x"])
        .route("HTTPRoute/b/tls", &["a/edge/https"], &["a/x"])
        .policy(
            "a/x",
            "total: 8",
            &["HTTPRoute/a/plain", "Gateway/a/edge/https"],
        )
        .policy("b/y", "total: 4", &["HTTPRoute/b/tls"]);
    let routes = |all: &[&str]| all.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
    let of = ["httproute/a/plain/*", "a.plain.*"];
    let of_tls = ["httproute/b/tls/*", "b.tls.*"];
    let of_all = [&of[..], &["httproute/a/other/*", "a.other.*"], &of_tls].concat();
    assert_eq!(
        stages(&at_edge(&world)),
        [
            ("b/y".into(), 4, routes(&of_tls)),
            ("a/x".into(), 8, routes(&of_all)),
        ]
    );
    for policy in ["a/x", "b/y"] {
        assert_eq!(world.state(policy).overridden, [], "{policy}");
    }
    // Another Gateway-wide policy doesn't lose its route to a listener's.
    let all = world
        .policy_of_age(
            "a/all",
            0,
            "total: 20",
            &["HTTPRoute/a/other", "Gateway/a/edge"],
        )
        .policy_of_age("a/x", 1, "total: 8", &["Gateway/a/edge/https"])
        .policy_of_age("a/plain", 1, "total: 7", &["HTTPRoute/a/plain"]);
    let policies: Vec<_> = { stages(&at_edge(&all)).into_iter() }
        .map(|(policy, _, routes)| (policy, routes))
        .collect();
    assert_eq!(
        policies,
        [
            ("a/plain".to_owned(), routes(&of)),
            ("b/y".to_owned(), routes(&of_tls)),
            ("a/all".to_owned(), vec![]),
        ]
    );
}

/// The rules of the pool's routes are named one by one where they fit.
#[test]
fn a_policy_for_a_pool_and_its_gateway_takes_no_target_of_another_policy() {
    let mut world = World::default()
        .gateway_with("a/edge", &["http", "https"])
        .service("a/x", "app=x", 3)
        .pool("a/llm", "app=llm", 1)
        .route("HTTPRoute/a/plain", &["a/edge/https"], &["a/x"])
        .policy("a/chat", "total: 8", &["Gateway/a/edge/https"]);
    for i in 0..12 {
        let route = format!("HTTPRoute/a/r{i}");
        world = world.route(&route, &["a/edge/https"], &["InferencePool/a/llm"; 3]);
    }
    assert_eq!(world.state("a/chat").warnings, [""; 0]);
    let targets = ["InferencePool/a/llm", "Gateway/a/edge"];
    let world = world.policy("a/p", "total: 8", &targets);
    for policy in ["a/chat", "a/p"] {
        let state = world.state(policy);
        assert_eq!(state.not_found, [], "{policy}");
        let warnings = state.warnings.join("\n");
        assert!(warnings.contains("names whole routes"), "{warnings}");
    }
    let policies: Vec<_> = { stages(&at_edge(&world)).into_iter() }
        .map(|(policy, _, routes)| (policy, routes))
        .collect();
    let plain = ["httproute/a/plain/*", "a.plain.*"].map(str::to_owned);
    assert_eq!(
        policies,
        [
            ("a/chat".to_owned(), plain.into()),
            ("a/p".to_owned(), vec![])
        ]
    );
}

/// The stage of the pool and the Gateway is the last, so the stage of the route must leave the
/// pool's rule to it.
#[test]
fn a_policy_for_a_pool_and_its_gateway_keeps_the_pool_s_rule_of_another_policy_s_route() {
    let world = pooled()
        .policy(
            "a/p",
            "total: 8",
            &["InferencePool/a/llm", "Gateway/a/edge"],
        )
        .policy("a/chat", "total: 8", &["HTTPRoute/a/chat"]);
    let of_rule = |n: u8| {
        vec![
            format!("httproute/a/chat/rule/{n}/*"),
            format!("a.chat.{n}"),
        ]
    };
    let policies: Vec<_> = { stages(&at_edge(&world)).into_iter() }
        .map(|(policy, _, routes)| (policy, routes))
        .collect();
    assert_eq!(
        policies,
        [
            ("a/chat".to_owned(), of_rule(1)),
            ("a/p".to_owned(), vec![])
        ]
    );
}

#[test]
fn a_route_of_several_gateways_shares_its_slots_among_all_their_pods() {
    let world = edge(2)
        .gateway("a/inner")
        .pods(3, "a/inner", &format!("{GATEWAY_NAME_LABEL}=inner"))
        .route(
            "HTTPRoute/a/both",
            &["a/inner", "a/edge", "a/gone", "c/far"],
            &["a/x"],
        )
        .policy("a/p", "total: 20", &["HTTPRoute/a/both"]);
    let plan = world.plan();
    assert_eq!(plan.attachments.len(), 2);
    for attachment in plan.attachments.iter() {
        assert_eq!(attachment.stage.parallelism, 4);
        assert_eq!(attachment.proxies.namespace, "a");
    }
    assert_eq!(world.state("a/p").not_found, []);
}

/// Route, Gateway and proxy are in different namespaces, as when a platform team runs the Gateways
/// of all teams.
#[test]
fn a_routes_policy_reaches_the_gateway_of_another_namespace_and_nothing_else_there() {
    let world = edge(2)
        .policy("b/p", "total: 20", &["GRPCRoute/b/g"])
        .policy("b/x", "total: 20", &["Service/b/y"]);
    let routes = vec!["grpcroute/b/g/*".to_owned(), "b.g.*".to_owned()];
    assert_eq!(stages(&at_edge(&world)), [("b/p".into(), 10, routes)]);
    assert_eq!(world.state("b/p").not_found, []);

    let snapshot = Snapshot::new(Arc::new(world.plan()), Arc::default());
    let proxy = |labelled: &str, claim: Option<&str>| {
        let assignment = snapshot.assign(&Identity {
            namespace: Some("a".into()),
            labels: labels(labelled),
            target: claim.map(target),
            certificate: Some("spiffe://x/ns/a/sa/edge".into()),
            ..Identity::default()
        });
        let stages = assignment.config.stages.iter();
        let policies: Vec<String> = stages.map(|s| s.policy.clone()).collect();
        (policies, assignment.problem.is_some())
    };
    let gateway = format!("{GATEWAY_NAME_LABEL}=edge");
    assert_eq!(proxy(&gateway, None), (vec!["b/p".into()], false));
    assert_eq!(proxy("app=y", None).0, [""; 0]);
    for claim in ["GRPCRoute/b/g", "Service/b/y"] {
        assert_eq!(proxy(&gateway, Some(claim)), (vec![], true), "{claim}");
    }
}

/// Returns a cluster with a pool of two Pods with two ports each. The pool is the backend of the
/// first of two rules of one route, and of the only rule of another route.
fn pooled() -> World {
    edge(2)
        .gateway("a/inner")
        .pool("a/llm", "app=llm", 2)
        .pods(2, "a/llm", "app=llm,n=1")
        .pods(1, "b/llm", "app=llm")
        .route(
            "HTTPRoute/a/chat",
            &["a/edge"],
            &["InferencePool/a/llm", "a/x"],
        )
        .route(
            "GRPCRoute/a/rpc",
            &["a/edge", "a/inner"],
            &["InferencePool/a/llm"],
        )
        .route("HTTPRoute/b/theirs", &["a/edge"], &["InferencePool/a/llm"])
}

#[test]
fn a_pool_s_policy_is_for_the_rules_that_send_to_it() {
    let world = pooled().policy("a/p", "perEndpoint: 6", &["InferencePool/a/llm"]);
    let chat = ["httproute/a/chat/rule/0/*", "a.chat.0"];
    let rpc = ["grpcroute/a/rpc/*", "a.rpc.*"];
    let names = |all: &[[&str; 2]]| all.iter().flatten().map(|&n| n.to_owned()).collect();
    assert_eq!(
        stages(&at_edge(&world)),
        [("a/p".into(), 12, names(&[chat, rpc]))],
        "6 for each of 4 endpoints, by 2 Pods"
    );
    let at_inner = |world: &World| {
        stages(&by_labels(
            &world.plan(),
            "a",
            &format!("{GATEWAY_NAME_LABEL}=inner"),
        ))
    };
    assert_eq!(at_inner(&world), [("a/p".into(), 12, names(&[rpc]))]);
    assert_eq!(world.state("a/p").warnings, [""; 0]);
    let fewer = world.clone().unready("a/llm-0");
    assert_eq!(stages(&at_edge(&fewer))[0].1, 6);
    let moved = world.pool("a/llm", "app=other", 2);
    assert_eq!(stages(&at_edge(&moved))[0].1, 3, "as for one endpoint");
    // The proxies of the pool's own Pods are behind the endpoint picker.
    assert_eq!(stages(&by_labels(&moved.plan(), "a", "app=llm")), []);
}

#[test]
fn a_pool_counts_as_a_backend_of_routes_and_gateways() {
    let with = |target: &str| {
        let world = pooled().policy("a/p", "perEndpoint: 6", &[target]);
        stages(&at_edge(&world))[0].1
    };
    assert_eq!(with("HTTPRoute/a/chat"), 21, "3 + 4 endpoints, 2 Pods");
    assert_eq!(with("GRPCRoute/a/rpc"), 12, "4 endpoints");
    assert_eq!(with("Gateway/a/edge"), 27, "3 + 2 + 4 endpoints, 2 Pods");
}

#[test]
fn a_pool_s_policy_precedes_its_routes_which_keep_the_rest() {
    let world = pooled()
        .policy("a/chat", "total: 8", &["HTTPRoute/a/chat"])
        .policy("a/rpc", "total: 8", &["GRPCRoute/a/rpc"])
        .policy("a/pool", "total: 8", &["InferencePool/a/llm"]);
    let policies: Vec<String> = { stages(&at_edge(&world)).into_iter() }
        .map(|(policy, ..)| policy)
        .collect();
    assert_eq!(policies, ["a/pool", "a/chat"]);
    let lost = |target_of: &str| Conflict {
        target: target(target_of),
        winner: "a/pool".into(),
    };
    assert_eq!(world.state("a/rpc").overridden, [lost("GRPCRoute/a/rpc")]);
    for policy in ["a/pool", "a/chat"] {
        assert_eq!(world.state(policy).overridden, [], "{policy}");
    }
}

#[test]
fn a_message_says_what_a_pool_lacks() {
    let target = "InferencePool/a/llm";
    let state = |world: World| world.policy("a/p", "total: 8", &[target]).state("a/p");
    let why = |world: World| state(world).not_found.remove(0).1;
    assert_eq!(
        why(World::default()),
        "Gateway API's inference extension isn't installed in this cluster: there is no kind \
         InferencePool; install its CRDs, or target an HTTPRoute"
    );
    assert_eq!(why(edge(1)), "InferencePool a/llm doesn't exist");
    let pool = || edge(1).pool("a/llm", "app=llm", 1);
    assert_eq!(
        why(pool().route("HTTPRoute/b/theirs", &["a/edge"], &[target])),
        "InferencePool a/llm is no backend of a route: no HTTPRoute or GRPCRoute of its namespace \
         has it in backendRefs; add it to one, or target its Pods by their labels, with kind Pod"
    );
    assert_eq!(
        why(pool().route("HTTPRoute/a/lost", &["a/gone"], &[target])),
        "HTTPRoute a/lost has parent Gateway a/gone, which doesn't exist"
    );
    let shared = pool().route(
        "HTTPRoute/a/both",
        &["a/edge"],
        &["InferencePool/a/llm+a/x"],
    );
    assert_eq!(
        state(shared).warnings,
        [
            "InferencePool/a/llm shares a route's rule with Service/a/x, so the policy applies to \
             all requests of the rule; give it a rule of its own"
        ]
    );
}

/// In Istio, a named rule's routes have exactly that name.
#[test]
fn a_rule_with_a_name_is_matched_by_it_where_no_other_rule_has_it() {
    let routes = |world: &World| stages(&at_edge(world)).remove(0).2;
    let left_out = |of: &str, rule: &str, route: &str| {
        [format!(
            "{of} leaves out the rule {rule} of {route} if Gateway a/edge is of Istio, which \
             identifies a rule by its name only: other rules have this name, or may get it; remove \
             or change the rule's name"
        )]
    };
    let at = |target: &str| {
        pooled()
            .policy("a/p", "total: 8", &[target])
            .named("HTTPRoute/a/chat", 0, "talk")
            .named("HTTPRoute/a/chat", 1, "look")
    };
    let chat = "HTTPRoute/a/chat";
    let alone = at(chat);
    assert_eq!(
        routes(&alone),
        ["httproute/a/chat/*", "a.chat.*", "look", "talk"]
    );
    assert_eq!(alone.state("a/p").warnings, [""; 0]);
    let same = alone.clone().named(chat, 1, "talk");
    assert_eq!(
        routes(&same),
        ["httproute/a/chat/*", "a.chat.*", "talk"],
        "both are the policy's"
    );
    assert_eq!(same.state("a/p").warnings, [""; 0]);

    // A rule of any route at this Gateway counts, in any namespace. A rule of a route at another
    // Gateway doesn't count.
    let elsewhere = alone
        .route("HTTPRoute/b/far", &["a/inner"], &["a/x"])
        .named("HTTPRoute/b/far", 0, "talk");
    assert_eq!(elsewhere.state("a/p").warnings, [""; 0]);
    let shared = elsewhere.named("GRPCRoute/b/g", 0, "talk");
    assert_eq!(
        routes(&shared),
        ["httproute/a/chat/*", "a.chat.*", "look"],
        "not the requests of the other route"
    );
    let warnings = shared.state("a/p").warnings;
    assert_eq!(warnings, left_out(chat, "talk", chat));
    // This is Istio's name of the first rule of another route.
    let taken = shared.named(chat, 0, "b.theirs.0");
    let warnings = taken.state("a/p").warnings;
    assert_eq!(warnings, left_out(chat, "b.theirs.0", chat));
    assert!(!routes(&taken).contains(&"b.theirs.0".to_owned()));

    let listener = "Gateway/a/edge/http";
    let of_listener = at(listener).named("GRPCRoute/a/rpc", 0, "talk");
    let names = routes(&of_listener);
    assert_eq!(
        names[names.len() - 2..],
        ["look", "talk"],
        "all are its own"
    );
    assert_eq!(of_listener.state("a/p").warnings, [""; 0]);

    let pool = "InferencePool/a/llm";
    let rules = [
        "grpcroute/a/rpc/*",
        "a.rpc.*",
        "httproute/a/chat/rule/0/*",
        "a.chat.0",
    ];
    let sorted = |world: &World| {
        let mut routes = routes(world);
        routes.sort();
        routes
    };
    let with = |name: Option<&str>| {
        let mut all: Vec<String> = rules.iter().map(|&r| r.to_owned()).collect();
        all.extend(name.map(str::to_owned));
        all.sort();
        all
    };
    let of_pool = at(pool);
    assert_eq!(sorted(&of_pool), with(Some("talk")), "its own rule only");
    assert_eq!(of_pool.state("a/p").warnings, [""; 0]);
    let both = of_pool.named(chat, 1, "talk");
    assert_eq!(sorted(&both), with(None));
    let warnings = both.state("a/p").warnings;
    assert_eq!(warnings, left_out(pool, "talk", chat));
}

/// Names of rules never cost a policy one of its targets.
#[test]
fn names_of_rules_take_the_room_that_all_targets_leave() {
    let backends = ["a/x"; 40];
    let mut world = edge(2)
        .route("HTTPRoute/a/r", &["a/edge"], &backends)
        .route("HTTPRoute/a/s", &["a/edge"], &backends)
        .policy("a/p", "total: 8", &["HTTPRoute/a/r", "HTTPRoute/a/s"]);
    for at in 0..40 {
        world = world
            .named("HTTPRoute/a/r", at, &format!("r{at:02}"))
            .named("HTTPRoute/a/s", at, &format!("s{at:02}"));
    }
    let enforced = at_edge(&world);
    assert_eq!(enforced.config.check(), Ok(()));
    let names: usize = enforced.config.stages.iter().map(|s| s.routes.len()).sum();
    assert_eq!(names, 64);
    let state = world.state("a/p");
    assert_eq!(state.not_found, []);
    assert_eq!(
        state.warnings,
        [
            "HTTPRoute/a/s leaves out rules with a name, such as s20, at Gateways of Istio: with \
             them the policy would have more than 64 names of Envoy's routes; remove the rules' \
             names, or target the Gateway or fewer routes"
        ]
    );
}

#[test]
fn a_warning_names_a_rule_of_another_route_that_the_policy_also_selects() {
    let at = |name: &str| {
        pooled()
            .policy("a/p", "total: 8", &["HTTPRoute/a/chat"])
            .named("HTTPRoute/b/theirs", 0, name)
    };
    assert_eq!(
        at("a.chat.x").state("a/p").warnings,
        [
            "HTTPRoute/a/chat also selects the rule a.chat.x of another route if Gateway a/edge is \
             of Istio, which names the rules of HTTPRoute/a/chat a.chat.0 and so on; change that \
             rule's name"
        ]
    );
    for name in ["a.chat", "a.chatter.0", "b.chat.0"] {
        assert_eq!(at(name).state("a/p").warnings, [""; 0], "{name}");
    }
    let own = at("x").named("HTTPRoute/a/chat", 0, "a.chat.x");
    assert!(
        !own.state("a/p")
            .warnings
            .iter()
            .any(|w| w.contains("also selects"))
    );
}

#[test]
fn a_gateway_with_too_many_policies_keeps_what_fits_and_says_so() {
    let mut world = edge(1).policy("a/all", "total: 20", &["Gateway/a/edge"]);
    for i in 0..70 {
        let route = format!("HTTPRoute/a/r{i}");
        world = world.route(&route, &["a/edge"], &["a/x"]).policy_of_age(
            &format!("a/p{i:02}"),
            1,
            "total: 20",
            &[&route],
        );
    }
    let enforced = at_edge(&world);
    assert_eq!(enforced.config.check(), Ok(()));
    assert_eq!(enforced.config.stages.len(), MAX_STAGES);
    assert_eq!(enforced.in_force.len(), MAX_STAGES);
    let last = enforced.config.stages.last().unwrap();
    assert_eq!((last.policy.as_str(), last.routes.len()), ("a/all", 0));
    assert_eq!(
        enforced.problem.as_deref(),
        Some(
            "71 policies apply to this proxy, at most 64 can; not in force: a/p63, a/p64, a/p65, \
             a/p66, a/p67, a/p68, a/p69"
        )
    );
    let programmed = |policy: &str| {
        let state = world.state(policy);
        let target = Some(&state.targets[0]);
        let all = conditions::at(&state, target, &Tallies::default(), None);
        assert!(all[&Type::Accepted].status, "{all:?}");
        let programmed = all[&Type::Programmed].clone();
        (programmed.reason, programmed.message)
    };
    assert_eq!(programmed("a/p62").0, "NoProxies", "none is connected");
    let (reason, message) = programmed("a/p63");
    assert_eq!(reason, "LimitReached");
    assert!(
        message.starts_with(
            "71 policies apply to a proxy of this target, which runs at most 64; the proxy runs \
             without this policy"
        ),
        "{message}"
    );
}

#[test]
fn requests_of_a_policy_without_room_meet_the_next_policy() {
    let mut world = edge(1)
        .gateway_with("a/edge", &["http", "https"])
        .route("HTTPRoute/a/other", &["a/edge/https"], &["a/x"])
        .route("HTTPRoute/b/tls", &["a/edge/https"], &["a/x"])
        .policy("a/tls", "total: 20", &["Gateway/a/edge/https"])
        .policy_of_age("b/tls", 2, "total: 20", &["HTTPRoute/b/tls"]);
    for i in 1..MAX_STAGES {
        let route = format!("HTTPRoute/b/r{i}");
        world = world
            .route(&route, &["a/edge/http"], &["a/x"])
            .policy_of_age(&format!("b/p{i:02}"), 1, "total: 20", &[&route]);
    }
    let enforced = at_edge(&world);
    assert_eq!(enforced.beyond_limit[0].policy, "b/tls");
    let stages = &enforced.config.stages;
    let tls = "httproute/b/tls/*".to_owned();
    let first = stages.iter().find(|s| s.routes.contains(&tls));
    assert_eq!(first.unwrap().policy, "a/tls");
}

/// The policies of one namespace are older than the policy of the other namespace.
#[test]
fn a_namespace_with_many_policies_pushes_none_of_another_out_of_a_shared_gateway() {
    let mut world = edge(1);
    let shop = ["HTTPRoute/shop/r"];
    world = world.route(shop[0], &["a/edge"], &["a/x"]);
    world = world.policy_of_age("shop/p", 2, "total: 20", &shop);
    for i in 0..70 {
        let route = format!("HTTPRoute/evil/r{i}");
        world = world.route(&route, &["a/edge"], &["a/x"]).policy_of_age(
            &format!("evil/p{i:02}"),
            1,
            "total: 20",
            &[&route],
        );
    }
    let enforced = at_edge(&world);
    let is_of = |namespace: &str| {
        let stages = enforced.config.stages.iter();
        stages.filter(|s| s.policy.starts_with(namespace)).count()
    };
    assert_eq!((is_of("shop/"), is_of("evil/")), (1, MAX_STAGES - 1));
    let beyond: Vec<&str> = { enforced.beyond_limit.iter() }
        .map(|f| f.policy.as_str())
        .collect();
    assert_eq!(beyond[0], "evil/p63");
    assert_eq!(beyond.len(), 7);
}
