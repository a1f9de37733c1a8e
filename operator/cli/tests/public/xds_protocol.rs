//! Tests of the xDS protocol as a proxy sees it, over real connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient as AdsClient;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient as EcdsClient;
use headgate_api::plan::{Plan, PolicyState};
use headgate_controller::conditions::Type::Programmed;
use headgate_controller::report::{Report, share};
use headgate_core::config::Direction;
use tonic::Code;

use crate::common::{ADS, SEARCH, World, configuration, get, module_at, plan, with_workflows};
use crate::wire::{self, ack, hello, nack, revision, sotw};

#[tokio::test]
async fn sotw_follows_the_plan_and_reports_what_the_proxy_says() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let mut proxy = sotw(&world, hello(Some(SEARCH))).await;
    let first = proxy.next().await;
    assert_eq!(revision(&first), "r1");
    let report = world
        .until("pending", |r| {
            r.policies[0].conditions[&Programmed].reason == "Pending"
        })
        .await;
    assert_eq!(
        report.policies[0].conditions[&Programmed].message,
        "0 of 1 proxies run it"
    );
    proxy.send(ack(&first)).await;
    let report = world
        .until("programmed", |r| {
            r.policies[0].conditions[&Programmed].status
        })
        .await;
    assert_eq!(report.proxies[0].acked.as_ref().unwrap().revision, "r1");
    assert_eq!(report.proxies[0].node, "edge-1");
    assert_eq!(report.proxies[0].target.as_deref(), Some(SEARCH));

    world.plans.send_replace(Arc::new(plan(&[(SEARCH, "r2")])));
    let second = proxy.next().await;
    assert_eq!(revision(&second), "r2");
    proxy.send(nack(&second, &first.version_info)).await;
    let report = world
        .until("rejected", |r| r.proxies[0].nack.is_some())
        .await;
    assert_eq!(
        report.policies[0].conditions[&Programmed].reason,
        "EnvoyRejected"
    );
    assert_eq!(report.proxies[0].state, "Rejected");
    assert_eq!(
        report.proxies[0].acked.as_ref().unwrap().revision,
        "r1",
        "the last good one stays"
    );
    let refused = report.proxies[0].nack.as_ref().unwrap();
    assert_eq!(refused.push.revision, "r2");
    assert_eq!(refused.message, "Unable to create Wasm plugin headgate");

    // If the server sent the refused version again, the proxy would get it before r3.
    world
        .plans
        .send_replace(Arc::new(plan(&[(SEARCH, "r2"), (ADS, "x")])));
    world.plans.send_replace(Arc::new(plan(&[(SEARCH, "r3")])));
    let third = proxy.next().await;
    assert_eq!(revision(&third), "r3");
    proxy.send(ack(&third)).await;
    world
        .until("programmed again", |r| {
            r.policies[0].conditions[&Programmed].status
        })
        .await;
}

/// A sidecar with a slot for requests and one for calls has two streams on one connection, and
/// counts as one proxy.
#[tokio::test]
async fn a_sidecar_with_two_slots_runs_a_policy_when_both_do() {
    let world = World::start(with_workflows(plan(&[(SEARCH, "r1")]))).await;
    let channel = world.channel().await;
    let open = async |slot: &str| {
        let first = DiscoveryRequest {
            resource_names: vec![slot.to_owned()],
            ..hello(Some(SEARCH))
        };
        wire::open(channel.clone(), first).await.unwrap()
    };
    let (mut inbound, mut outbound) = (open("headgate").await, open("headgate-outbound").await);
    let (requests, calls) = (inbound.next().await, outbound.next().await);
    assert_eq!(revision(&requests), "r1");
    let config = configuration(&calls.resources[0]);
    assert_eq!(config.revision, "calls of default/search");
    assert_eq!(config.direction, Direction::Outbound);
    assert!(config.stages.is_empty());

    let answer = |answer: DiscoveryRequest, slot: &str| DiscoveryRequest {
        resource_names: vec![slot.to_owned()],
        ..answer
    };
    inbound.send(answer(ack(&requests), "headgate")).await;
    let report = world
        .until("one slot runs it", |r| {
            r.proxies.iter().any(|p| p.state == "Running")
        })
        .await;
    let message = &report.policies[0].conditions[&Programmed].message;
    assert_eq!(message, "0 of 1 proxies run it");
    outbound
        .send(answer(nack(&calls, ""), "headgate-outbound"))
        .await;
    let report = world
        .until("rejected", |r| {
            r.policies[0].conditions[&Programmed].reason == "EnvoyRejected"
        })
        .await;
    let refused = report.proxies.iter().find_map(|p| p.nack.as_ref()).unwrap();
    assert_eq!(refused.push.revision, "calls of default/search");

    // A policy with another number of slots doesn't change the configuration for calls, which stays
    // refused.
    let mut other = with_workflows(plan(&[(SEARCH, "r2")]));
    let calls_of = |plan: &mut Plan, revision: &str| {
        for calls in plan.outbound.values_mut() {
            let mut config = (**calls).clone();
            config.revision = revision.to_owned();
            *calls = Arc::new(config);
        }
    };
    world.plans.send_replace(Arc::new(other.clone()));
    let second = inbound.next().await;
    assert_eq!(revision(&second), "r2");
    inbound.send(answer(ack(&second), "headgate")).await;
    calls_of(&mut other, "c2");
    world.plans.send_replace(Arc::new(other));
    let again = outbound.next().await;
    assert_eq!(revision(&again), "c2");
    outbound
        .send(answer(ack(&again), "headgate-outbound"))
        .await;
    let report = world
        .until("programmed", |r| {
            r.policies[0].conditions[&Programmed].status
        })
        .await;
    assert_eq!(
        report.policies[0].conditions[&Programmed].message,
        "1 of 1 proxies run it"
    );
    let share = share("default/search", &report.proxies);
    assert_eq!((share.in_sync, share.total), (1, 1));

    // Without workflows, the outbound slot stays and has no effect.
    world.plans.send_replace(Arc::new(plan(&[(SEARCH, "r3")])));
    let (third, nothing) = (inbound.next().await, outbound.next().await);
    assert_eq!(revision(&third), "r3");
    let nothing = configuration(&nothing.resources[0]);
    assert_eq!(
        (nothing.direction, nothing.outbound),
        (Direction::Outbound, None)
    );
    inbound.send(answer(ack(&third), "headgate")).await;
    let report = world
        .until("programmed without the other", |r| {
            r.policies[0].conditions[&Programmed].status
        })
        .await;
    let of_calls = report
        .proxies
        .iter()
        .find(|p| p.slots == ["headgate-outbound"]);
    assert_eq!(of_calls.unwrap().policies, [""; 0]);
}

#[tokio::test]
async fn a_restarted_operator_sends_nothing_that_the_proxy_has() {
    let before = World::start(plan(&[(SEARCH, "r1")])).await;
    let version = sotw(&before, hello(None)).await.next().await.version_info;

    let after = World::start(plan(&[(SEARCH, "r1")])).await;
    let again = DiscoveryRequest {
        version_info: version,
        ..hello(None)
    };
    let mut proxy = sotw(&after, again).await;
    let report = after
        .until("it runs", |r| {
            r.proxies.iter().any(|p| p.state == "Running")
        })
        .await;
    assert!(report.policies[0].conditions[&Programmed].status);
    assert!(report.proxies.iter().all(|p| p.sent.is_none()));
    after.plans.send_replace(Arc::new(plan(&[(SEARCH, "r2")])));
    assert_eq!(revision(&proxy.next().await), "r2");
}

#[tokio::test]
async fn a_broken_policy_does_not_affect_proxies_of_other_namespaces() {
    let mut broken = Plan::default();
    broken.policies.push(PolicyState {
        accepted: Err("spec.parallelism: 0".into()),
        has_version: false,
        revision: String::new(),
        ..plan(&[(SEARCH, "r1")]).policies.remove(0)
    });
    let world = World::start(broken).await;
    let mut other = sotw(
        &world,
        DiscoveryRequest {
            version_info: "before".into(),
            ..hello(Some("Service/other/search"))
        },
    )
    .await;
    // The proxy's policy was deleted while no operator ran.
    assert!(
        configuration(&other.next().await.resources[0])
            .stages
            .is_empty()
    );
}

#[tokio::test]
async fn an_operator_that_starts_over_a_broken_policy_leaves_proxies_alone() {
    let mut broken = Plan::default();
    broken.policies.push(PolicyState {
        accepted: Err("spec.parallelism: 0".into()),
        has_version: false,
        revision: String::new(),
        ..plan(&[(SEARCH, "r1")]).policies.remove(0)
    });
    let world = World::start(broken.clone()).await;
    let mut known = sotw(
        &world,
        DiscoveryRequest {
            version_info: "before".into(),
            ..hello(Some(SEARCH))
        },
    )
    .await;
    let mut new = sotw(&world, hello(Some(SEARCH))).await;
    assert!(
        configuration(&new.next().await.resources[0])
            .stages
            .is_empty(),
        "it has nothing to lose"
    );
    let kept = |r: &Report| {
        r.proxies
            .iter()
            .filter(|p| p.problem.as_deref().is_some_and(|p| p.contains("it keeps")))
            .count()
            == 1
    };
    world.until("told", kept).await;
    world.plans.send_replace(Arc::new(plan(&[(SEARCH, "r1")])));
    let first = known.next().await;
    assert_eq!(revision(&first), "r1", "nothing was sent before");
    known.send(ack(&first)).await;
    // The proxy's configuration came from this operator, so a deletion takes effect even if other
    // policies are broken.
    world.plans.send_replace(Arc::new(broken));
    assert!(
        configuration(&known.next().await.resources[0])
            .stages
            .is_empty()
    );
}

/// The last valid version of the invalid policy is known, but overridden at all of its proxies.
#[tokio::test]
async fn an_invalid_policy_that_is_overridden_keeps_no_proxy_from_the_one_in_force() {
    let mut overridden = plan(&[(SEARCH, "r2")]);
    overridden.policies.push(PolicyState {
        name: "shop/older".into(),
        accepted: Err("spec.parallelism: 0".into()),
        revision: String::new(),
        ..overridden.policies[0].clone()
    });
    let world = World::start(overridden).await;
    let mut proxy = sotw(
        &world,
        DiscoveryRequest {
            version_info: "before".into(),
            ..hello(Some(SEARCH))
        },
    )
    .await;
    assert_eq!(revision(&proxy.next().await), "r2");
}

/// Proxies with bootstraps that `headgate bootstrap` of 0.1 wrote with `--delta` or `--ads` get no
/// stream. The error names the remedy.
#[tokio::test]
async fn other_protocols_are_refused_with_the_remedy() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let channel = world.channel().await;
    let delta = || tokio_stream::once(DeltaDiscoveryRequest::default());
    let whole = || tokio_stream::once(DiscoveryRequest::default());
    let (mut ecds, mut ads) = (
        EcdsClient::new(channel.clone()),
        AdsClient::new(channel.clone()),
    );
    for refused in [
        ecds.delta_extension_configs(delta()).await.err(),
        ads.delta_aggregated_resources(delta()).await.err(),
        ads.stream_aggregated_resources(whole()).await.err(),
        ecds.fetch_extension_configs(DiscoveryRequest::default())
            .await
            .err(),
    ] {
        let refused = refused.unwrap();
        assert_eq!(refused.code(), Code::Unimplemented);
        assert!(refused.message().contains("api_type: GRPC"), "{refused}");
    }
    let (_, metrics) = get(world.admin, "/metrics").await.unwrap();
    assert!(
        metrics.contains("headgate_xds_streams_refused_total 4\n"),
        "{metrics}"
    );
    assert!(world.report().proxies.is_empty());
}

#[tokio::test]
async fn deleting_the_policy_sends_the_empty_configuration() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let mut proxy = sotw(&world, hello(Some(SEARCH))).await;
    let first = proxy.next().await;
    proxy.send(ack(&first)).await;
    world.plans.send_replace(Arc::new(Plan::default()));
    let second = proxy.next().await;
    assert!(configuration(&second.resources[0]).stages.is_empty());
    let report = world.report();
    let problem = report.proxies[0].problem.as_deref();
    assert_eq!(
        problem,
        Some("no accepted policy targets Service/default/search; no policy is accepted")
    );
}

#[tokio::test]
async fn a_proxy_that_must_name_a_target_gets_nothing_and_the_reason() {
    let world = World::start(plan(&[(SEARCH, "r1"), (ADS, "r2")])).await;
    let mut silent = sotw(&world, hello(None)).await;
    assert!(
        configuration(&silent.next().await.resources[0])
            .stages
            .is_empty()
    );
    let mut wrong = sotw(&world, hello(Some("search"))).await;
    assert!(
        configuration(&wrong.next().await.resources[0])
            .stages
            .is_empty()
    );
    let problems: Vec<String> = world
        .report()
        .proxies
        .into_iter()
        .filter_map(|p| p.problem)
        .collect();
    assert!(
        problems[0].contains("set node metadata \"headgate.dev/target\" to one of"),
        "{problems:?}"
    );
    assert!(
        problems[1].contains("\"search\" is no target"),
        "{problems:?}"
    );
    let programmed = &world.report().policies[0].conditions[&Programmed];
    assert_eq!(
        (programmed.status, programmed.reason.as_str()),
        (false, "NoProxies")
    );
}

#[tokio::test]
async fn a_new_module_is_pushed_under_its_name() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let mut proxy = sotw(&world, hello(None)).await;
    let first = proxy.next().await;
    proxy.send(ack(&first)).await;
    world
        .modules
        .send_replace(Arc::new(module_at("/modules/headgate-2.wasm").into()));
    let second = proxy.next().await;
    assert_eq!(revision(&second), "r1");
    assert_ne!(first.version_info, second.version_info);
    let bytes = &second.resources[0].value;
    assert!(bytes.windows(24).any(|w| w == b"/modules/headgate-2.wasm"));
}

#[tokio::test]
async fn only_slots_of_headgate_are_filled() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let channel = world.channel().await;
    let first = |name: &str| DiscoveryRequest {
        resource_names: vec![name.to_owned()],
        ..hello(None)
    };
    let mut other = wire::open(channel.clone(), first("lua")).await.unwrap();
    let mut ours = wire::open(channel, first("headgate-admin")).await.unwrap();
    assert_eq!(revision(&ours.next().await), "r1");
    let report = world.until("both", |r| r.proxies.len() == 2).await;
    let mut slots: Vec<_> = report.proxies.iter().flat_map(|p| &p.slots).collect();
    slots.sort();
    assert_eq!(slots, ["headgate-admin"]);
    // A response to the other stream would arrive before its end.
    world.shutdown.send_replace(true);
    let ended = other.responses.message().await.unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable);
}

/// Envoy opens a stream for each slot, and refuses a response with several resources.
#[tokio::test]
async fn a_stream_is_for_one_slot() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let of = |names: &[&str], request: DiscoveryRequest| DiscoveryRequest {
        resource_names: names.iter().map(ToString::to_string).collect(),
        ..request
    };
    for names in [&["headgate", "headgate-admin"][..], &[]] {
        let mut proxy = sotw(&world, of(names, hello(None))).await;
        assert_eq!(proxy.failure().await.code(), Code::InvalidArgument);
    }
    let mut proxy = sotw(&world, hello(None)).await;
    let first = proxy.next().await;
    proxy.send(of(&["headgate-admin"], ack(&first))).await;
    let refused = proxy.failure().await;
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("resource_names"), "{refused}");
}
