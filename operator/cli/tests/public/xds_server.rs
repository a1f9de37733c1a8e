//! Tests of the xDS server: limits, many proxies, slow proxies, the shutdown, and the admin
//! address.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient as EcdsClient;
use headgate_controller::conditions::Type::Programmed;
use headgate_xds::Limits;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::common::{SEARCH, World, node, plan};
use crate::wire::{CDS, Wire, ack, hello, revision, sotw};

#[tokio::test]
async fn a_slow_proxy_gets_the_newest_configuration_next() {
    let world = World::start(plan(&[(SEARCH, "r0")])).await;
    let mut proxy = sotw(&world, hello(None)).await;
    let first = proxy.next().await;
    for i in 1..=100 {
        world
            .plans
            .send_replace(Arc::new(plan(&[(SEARCH, &format!("r{i}"))])));
        let seen =
            |r: &headgate_controller::report::Report| r.policies[0].revision == format!("r{i}");
        world.until("the plan is taken", seen).await;
    }
    proxy.send(ack(&first)).await;
    assert_eq!(revision(&proxy.next().await), "r100");
    let (_, metrics) = world.get("/metrics").await;
    assert!(
        metrics.contains("\nheadgate_xds_pushes_total 2\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn the_resources_that_a_proxy_can_use_are_bounded() {
    let limits = Limits {
        streams: 2,
        request_bytes: 4_096,
        first_message: Duration::from_millis(50),
        ..Limits::default()
    };
    let world = World::limited(plan(&[(SEARCH, "r1")]), limits).await;
    let mut one = sotw(&world, hello(None)).await;
    one.next().await;
    let mut two = sotw(&world, hello(None)).await;
    two.next().await;
    let mut client = EcdsClient::new(world.channel().await);
    let (_open, rx) = mpsc::channel::<DiscoveryRequest>(1);
    let refused = client
        .stream_extension_configs(ReceiverStream::new(rx))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::ResourceExhausted, "2 streams are open")
    );
    let (_, metrics) = world.get("/metrics").await;
    assert!(
        metrics.contains("\nheadgate_xds_streams_refused_total 1\n"),
        "{metrics}"
    );

    one.send(DiscoveryRequest {
        resource_names: vec!["x".repeat(8_192)],
        ..hello(None)
    })
    .await;
    assert_eq!(one.failure().await.code(), Code::OutOfRange);
    two.send(DiscoveryRequest {
        resource_names: vec!["x".repeat(300)],
        ..hello(None)
    })
    .await;
    assert_eq!(two.failure().await.code(), Code::InvalidArgument);
    world
        .until("both are gone", |r| {
            r.proxies.iter().all(|p| p.state == "Disconnected")
        })
        .await;
    let (_open, rx) = mpsc::channel::<DiscoveryRequest>(1);
    let silent = client
        .stream_extension_configs(ReceiverStream::new(rx))
        .await
        .unwrap();
    let ended = silent.into_inner().message().await.unwrap_err();
    assert_eq!(ended.code(), Code::DeadlineExceeded);
    let mut wrong = sotw(
        &world,
        DiscoveryRequest {
            type_url: CDS.into(),
            ..hello(None)
        },
    )
    .await;
    assert_eq!(wrong.failure().await.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn shutdown_ends_streams_and_the_server() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let mut proxy = sotw(&world, hello(None)).await;
    proxy.next().await;
    world.shutdown.send_replace(true);
    assert_eq!(proxy.failure().await.code(), Code::Unavailable);
    world.served.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_proxies_follow_an_edit() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let mut proxies = tokio::task::JoinSet::new();
    for connection in 0..10 {
        let channel = world.channel().await;
        for n in 0..100 {
            let mut client = EcdsClient::new(channel.clone());
            proxies.spawn(async move {
                let (requests, rx) = mpsc::channel(4);
                // The node ids differ, because streams of one node over one connection would count
                // as one proxy.
                let mut first = hello(None);
                first.node = node(&format!("edge-{connection}-{n}"), None);
                requests.send(first).await.unwrap();
                let responses = client
                    .stream_extension_configs(ReceiverStream::new(rx))
                    .await
                    .unwrap();
                let mut proxy = Wire {
                    requests,
                    responses: responses.into_inner(),
                };
                let first = proxy.next().await;
                proxy.send(ack(&first)).await;
                let second = proxy.next().await;
                proxy.send(ack(&second)).await;
                (revision(&second), proxy)
            });
        }
    }
    world
        .until("a thousand run it", |r| {
            r.policies[0].conditions[&Programmed].message == "1000 of 1000 proxies run it"
        })
        .await;
    world.plans.send_replace(Arc::new(plan(&[(SEARCH, "r2")])));
    let done = proxies.join_all().await;
    assert!(done.iter().all(|(revision, _)| revision == "r2"));
}

#[tokio::test]
async fn the_admin_address_shows_health_status_and_metrics() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let mut proxy = sotw(&world, hello(None)).await;
    let first = proxy.next().await;
    proxy.send(ack(&first)).await;
    world
        .until("running", |r| r.proxies[0].state == "Running")
        .await;
    assert_eq!(world.get("/healthz").await, (200, "ok\n".into()));
    assert_eq!(world.get("/readyz").await.0, 200);
    assert_eq!(world.get("/nothing").await.0, 404);
    let (code, body) = world.get("/status").await;
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (code, &status["policies"][0]["programmed"]["reason"]),
        (200, &"Programmed".into())
    );
    let (_, metrics) = world.get("/metrics").await;
    for line in [
        "headgate_xds_proxy_streams{state=\"running\"} 1",
        "headgate_xds_acks_total 1",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    }
}
