//! Plans as deliveries write them.

use std::collections::BTreeSet;

use clap::Parser;
use headgate_deliver::observed::Observed;
use headgate_deliver::{Adapter, DeliverArgs, Installed, Settings, envoy_gateway, wanted};

use super::*;

const SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn settings() -> Settings {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DeliverArgs,
    }
    let lease = ObjectKey::new("headgate-system", "headgate");
    Settings::new(Line::parse_from(["x"]).args, &lease).unwrap()
}

fn installed() -> Installed {
    Installed {
        served: BTreeSet::from([Adapter::Istio, Adapter::EnvoyGateway]),
        classes: [("eg".to_owned(), envoy_gateway::CONTROLLER.to_owned())].into(),
    }
}

/// The Services of one tenant each select the same Pods by other labels.
#[test]
fn a_thousand_selectors_of_the_same_pods_take_time_for_each_and_not_for_each_pair() {
    const LABELS: u32 = 10;
    let labels = |set: u32| {
        let labels = (0..LABELS).filter(|i| set & (1 << i) != 0);
        labels
            .map(|i| format!("l{i}=x"))
            .collect::<Vec<_>>()
            .join(",")
    };
    let all = (1 << LABELS) - 1;
    let world = (1..=all).fold(World::default(), |world, set| {
        let (service, policy) = (format!("a/s{set}"), format!("a/p{set:04}"));
        let world = world.service(&service, &labels(set), 1);
        world.policy_of_age(&policy, 0, "total: 20", &[&format!("Service/{service}")])
    });
    let world = world.pods(200, "a/x", &labels(all));
    let (settings, installed) = (settings(), installed());
    let observed = Observed::default();
    let (plan, cluster) = (world.plan(), &world.cluster);
    let wanted = wanted(&plan, cluster, &settings, &installed, &observed, SHA256);
    assert_eq!(wanted.objects.len(), 1);
    assert_eq!(
        wanted.objects.values().next().unwrap().policies,
        ["a/p0001"]
    );
}

/// The object gets its share from the plan.
#[test]
fn a_gateway_s_slots_are_divided_by_its_pods_however_envoy_gateway_keeps_them() {
    let owned = "gateway.envoyproxy.io/owning-gateway-namespace=infra,\
                 gateway.envoyproxy.io/owning-gateway-name=edge";
    let labelled = format!("{owned},{GATEWAY_NAME_LABEL}=edge");
    let modes = [
        ("a namespace of its own", "envoy-gateway-system", owned),
        ("GatewayNamespace", "infra", labelled.as_str()),
        (
            "mergeGateways",
            "envoy-gateway-system",
            "gateway.envoyproxy.io/owning-gatewayclass=eg",
        ),
    ];
    let slots = |slots: &str, pods: usize, (_, namespace, labels): (&str, &str, &str)| {
        let mut world = World::default()
            .gateway("infra/edge")
            .service("infra/shop", "app=shop", 5)
            .route("HTTPRoute/infra/shop", &["infra/edge"], &["infra/shop"])
            .policy("infra/r", slots, &["HTTPRoute/infra/shop"])
            .policy("infra/g", slots, &["Gateway/infra/edge"])
            .pods(pods, &format!("{namespace}/proxy"), labels)
            .pod(
                "envoy-gateway-system/other",
                &owned.replace("=edge", "=inner"),
            )
            .pod(
                "envoy-gateway-system/merged",
                "gateway.envoyproxy.io/owning-gatewayclass=other",
            )
            .pod("envoy-gateway-system/unready", labels)
            // Any user may label Pods of their own namespace.
            .pods(19, "tenant/pause", owned)
            .pods(
                19,
                "tenant/merged",
                "gateway.envoyproxy.io/owning-gatewayclass=eg",
            )
            .unready("envoy-gateway-system/unready");
        let edge = Arc::make_mut(&mut world.cluster.gateways)
            .values_mut()
            .next()
            .unwrap();
        edge.class = "eg".to_owned();
        let plan = world.plan();
        let all = wanted(
            &plan,
            &world.cluster,
            &settings(),
            &installed(),
            &Observed::default(),
            SHA256,
        );
        let object = all.objects.values().next().unwrap();
        let stages = &object.value["spec"]["wasm"][0]["config"]["stages"];
        let stages = stages.as_array().unwrap().iter();
        let slots = stages.map(|s| s["parallelism"].as_u64().unwrap());
        slots.collect::<Vec<_>>()
    };
    for mode in modes {
        let of = |asked: &str| [1, 2, 3].map(|pods| slots(asked, pods, mode));
        assert_eq!(of("total: 20"), [[20, 20], [10, 10], [6, 6]], "{}", mode.0);
        assert_eq!(
            of("perEndpoint: 8"),
            [[40, 40], [20, 20], [13, 13]],
            "{}",
            mode.0
        );
    }
}

/// After a restart, only the object has the last valid version of the route's policy.
#[test]
fn a_kept_version_stays_before_the_policies_that_would_take_its_requests() {
    let mut world = World::default()
        .gateway_with("a/edge", &["http", "https"])
        .service("a/x", "app=x", 3)
        .route("HTTPRoute/a/other", &["a/edge/https"], &["a/x"])
        .route("HTTPRoute/b/tls", &["a/edge/https"], &["a/x"])
        .policy("a/x", "total: 8", &["Gateway/a/edge/https"])
        .policy("b/y", "total: 4", &["HTTPRoute/b/tls"]);
    let edge = Arc::make_mut(&mut world.cluster.gateways);
    edge.values_mut().next().unwrap().class = "eg".to_owned();
    let wish = |world: &World, observed: &Observed| {
        let (plan, cluster) = (world.plan(), &world.cluster);
        wanted(&plan, cluster, &settings(), &installed(), observed, SHA256)
    };
    let before = wish(&world, &Observed::default());
    let policies = Arc::make_mut(&mut world.cluster.policies);
    let broken = policies.get_mut(&ObjectKey::new("b", "y")).unwrap();
    let broken = Arc::make_mut(broken);
    (broken.accepted, broken.effective) = (Err("spec.types: none".to_owned()), None);
    let mut applied = Observed::default();
    for ((adapter, key), object) in &before.objects {
        applied.wrote(*adapter, key.clone(), object.value.clone());
    }
    let after = wish(&world, &applied);
    for wanted in [before, after] {
        let object = wanted.objects.values().next().unwrap();
        assert_eq!(object.policies, ["b/y", "a/x"]);
        let stages = &object.value["spec"]["wasm"][0]["config"]["stages"];
        let policies = [0, 1].map(|at| stages[at]["policy"].clone());
        assert_eq!(policies, ["b/y", "a/x"]);
    }
}
