//! Tests of the limits of the xDS server. Peers with excessive use are limited, and other proxies
//! aren't affected.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient;
use headgate_api::plan::Plan;
use headgate_xds::Limits;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::metadata::MetadataValue;

use crate::common::{World, node, plan};
use crate::proxies::{Authority, spiffe, until};
use crate::wire::{Wire, ack, open, subscribe};

const SHOP: &str = "Service/shop/web";
/// The addresses of well-behaved proxies and of attackers.
const GOOD: &str = "127.0.0.2";
const BAD: &str = "127.0.0.3";

/// Returns a plan with a policy for [`SHOP`].
fn shop(revision: &str) -> Plan {
    plan(&[(SHOP, &format!("{revision}-shop"))])
}

/// Starts a server with TLS.
async fn secured(authority: &Authority, limits: Limits) -> World {
    let tls = (&authority.server(), &*authority.pem);
    World::secured(shop("1"), limits, tls).await
}

/// Returns a TCP connection that sends nothing.
async fn silent(to: SocketAddr, from: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from: IpAddr = from.parse().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Waits until the server closes the connection, perhaps by a reset. The server may send a greeting
/// first.
async fn closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "still open");
}

async fn good(server: &World) -> Wire {
    let channel = server.plain(GOOD).await.unwrap();
    let mut stream = open(channel, subscribe(node("good", None))).await.unwrap();
    stream.text().await.unwrap();
    stream
}

/// Checks that an edit of the policy reaches the proxy.
async fn follows(server: &World, proxy: &mut Wire, revision: &str) {
    server.plans.send_replace(Arc::new(shop(revision)));
    let got = proxy.text().await.unwrap();
    assert!(got.contains(&format!("{revision}-shop")), "{got}");
}

#[tokio::test]
async fn connections_are_bounded_in_all_and_for_each_address() {
    let limits = Limits {
        connections: 8,
        connections_per_address: 5,
        ..Limits::default()
    };
    let server = World::limited(shop("1"), limits).await;
    let refused = || server.metrics.xds.connections_refused.get();
    let mut before = good(&server).await;

    let mut flood = Vec::new();
    for _ in 0..200 {
        flood.push(silent(server.xds, BAD).await);
    }
    until("all but five to be turned away", || refused() == 195).await;
    for stream in flood.drain(5..) {
        closed(stream).await;
    }
    // Proxies at another address are served, and connected proxies aren't disturbed.
    let mut during = good(&server).await;
    follows(&server, &mut before, "2").await;
    during.text().await.unwrap();

    // While the limit of connections is reached, every new connection is refused. Once connections
    // have closed, a new one is accepted.
    let last = silent(server.xds, "127.0.0.4").await;
    closed(silent(server.xds, "127.0.0.5").await).await;
    follows(&server, &mut before, "3").await;
    drop((last, flood));
    let mut after = loop {
        // The connection is retried until the server has noticed that others have closed.
        if let Ok(channel) = server.plain(BAD).await
            && let Ok(mut stream) = open(channel, subscribe(node("good", None))).await
            && stream.text().await.is_ok()
        {
            break stream;
        }
    };
    follows(&server, &mut after, "4").await;
}

#[tokio::test]
async fn peers_that_do_not_finish_their_handshake_are_bounded_and_dropped() {
    let authority = Authority::new();
    let limits = Limits {
        handshakes_per_address: 4,
        handshake_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    let server = secured(&authority, limits).await;
    let flood: Vec<TcpStream> = {
        let mut flood = Vec::new();
        for _ in 0..100 {
            flood.push(silent(server.xds, BAD).await);
        }
        flood
    };
    until("96 to be turned away", || {
        server.metrics.xds.connections_refused.get() == 96
    })
    .await;
    // Four peers hang in their handshakes. A proxy from another address is still accepted at once.
    let own = authority.proxy(&[&spiffe("shop")]);
    let channel = server.tls(&authority.pem, Some(&own)).await.unwrap();
    let mut proxy = open(channel, subscribe(node("good", None))).await.unwrap();
    assert!(proxy.text().await.unwrap().contains("shop/web"));
    for stream in flood {
        closed(stream).await;
    }
    assert_eq!(server.metrics.xds.handshakes_failed.get(), 4);
    follows(&server, &mut proxy, "2").await;
}

/// Silent peers delay no proxy, even if they have many addresses.
#[tokio::test]
async fn a_good_proxy_does_not_wait_for_those_that_are_silent() {
    let authority = Authority::new();
    // No silent connection times out during the test.
    let limits = Limits {
        handshake_timeout: Duration::from_secs(600),
        ..Limits::default()
    };
    let server = secured(&authority, limits).await;
    let mut crowd = Vec::new();
    for address in 3..13 {
        let address = format!("127.0.0.{address}");
        for _ in 0..limits.handshakes_per_address {
            crowd.push(silent(server.xds, &address).await);
        }
    }
    let own = authority.proxy(&[&spiffe("shop")]);
    let served = async {
        let channel = server.tls(&authority.pem, Some(&own)).await.unwrap();
        let mut proxy = open(channel, subscribe(node("good", None))).await.unwrap();
        assert!(proxy.text().await.unwrap().contains("shop/web"));
    };
    let served = tokio::time::timeout(Duration::from_secs(60), served).await;
    assert!(served.is_ok(), "it waits for those that are silent");
    assert_eq!(crowd.len(), 320);
    assert_eq!(server.metrics.xds.connections_refused.get(), 0);
}

/// The streams and the connections of one namespace's certificates are limited, whatever their
/// addresses are. Other namespaces still have room.
#[tokio::test]
async fn a_namespace_does_not_take_the_streams_and_connections_of_another() {
    let streams = Limits {
        streams: 8,
        streams_per_namespace: 4,
        ..Limits::default()
    };
    let connections = Limits {
        connections: 8,
        connections_per_namespace: 4,
        ..Limits::default()
    };
    for limits in [streams, connections] {
        a_namespace_has_room_for_four(limits).await;
    }
}

async fn a_namespace_has_room_for_four(limits: Limits) {
    let authority = Authority::new();
    let server = secured(&authority, limits).await;
    let rogue = authority.proxy(&[&spiffe("rogue")]);
    let mut taken = Vec::new();
    for n in 0..4 {
        let channel = server.tls(&authority.pem, Some(&rogue)).await.unwrap();
        let rogue = subscribe(node(&format!("r{n}"), None));
        taken.push(open(channel, rogue).await.unwrap());
    }
    let channel = server.tls(&authority.pem, Some(&rogue)).await.unwrap();
    let Err(over) = open(channel, subscribe(node("r4", None))).await else {
        panic!("a fifth stream");
    };
    assert_eq!(over.code(), Code::ResourceExhausted);
    let own = authority.proxy(&[&spiffe("shop")]);
    let channel = server.tls(&authority.pem, Some(&own)).await.unwrap();
    let mut proxy = open(channel, subscribe(node("good", None))).await.unwrap();
    assert!(proxy.text().await.unwrap().contains("shop/web"));
}

/// The server keeps a response in memory until the proxy has read it. A proxy that has answered has
/// read it.
#[tokio::test]
async fn a_namespace_does_not_take_the_memory_for_responses_of_another() {
    // One response of a namespace always has room.
    let limits = Limits {
        response_bytes: 2,
        response_bytes_per_namespace: 1,
        ..Limits::default()
    };
    let authority = Authority::new();
    let server = secured(&authority, limits).await;
    let rogue = authority.proxy(&[&spiffe("rogue")]);
    let channel = server.tls(&authority.pem, Some(&rogue)).await.unwrap();
    let rogue = |id: &str| open(channel.clone(), subscribe(node(id, None)));
    let mut first = rogue("r0").await.unwrap();
    let unanswered = first.next().await;
    let guess = DiscoveryRequest {
        response_nonce: "1".to_owned(),
        ..ack(&unanswered)
    };
    first.send(guess).await;
    let over = rogue("r1").await.unwrap().failure().await;
    assert_eq!(over.code(), Code::ResourceExhausted);
    assert!(over.message().contains("of this namespace"), "{over}");

    let own = authority.proxy(&[&spiffe("shop")]);
    let channel = server.tls(&authority.pem, Some(&own)).await.unwrap();
    let mut proxy = open(channel, subscribe(node("good", None))).await.unwrap();
    assert!(proxy.text().await.unwrap().contains("shop/web"));

    first.send(ack(&unanswered)).await;
    let pause = || tokio::time::sleep(Duration::from_millis(50));
    let mut second = rogue("r1").await.unwrap();
    while second.text().await.is_err() {
        pause().await;
        second = rogue("r1").await.unwrap();
    }
    // A stream that ends without an answer counts until its connection ends.
    let mut half = rogue("r2").await.unwrap();
    while half.responses.message().await.is_err() {
        pause().await;
        half = rogue("r2").await.unwrap();
    }
    drop(half.requests);
    for _ in 0..4 {
        pause().await;
        let over = rogue("r3").await.unwrap().failure().await;
        assert_eq!(over.code(), Code::ResourceExhausted);
    }
}

#[tokio::test]
async fn connections_without_streams_and_old_ones_are_closed() {
    let limits = Limits {
        idle: Duration::from_millis(200),
        ..Limits::default()
    };
    let server = World::limited(shop("1"), limits).await;
    let mut proxy = good(&server).await;
    // One connection sends nothing, and the other one uses HTTP/2 without opening a stream.
    let channel = server.plain(BAD).await.unwrap();
    closed(silent(server.xds, BAD).await).await;
    follows(&server, &mut proxy, "2").await;
    drop(channel);

    let limits = Limits {
        max_age: Duration::from_millis(400),
        ..Limits::default()
    };
    let server = World::limited(shop("1"), limits).await;
    let mut proxy = good(&server).await;
    let ended = proxy.text().await.unwrap_err();
    assert_ne!(ended.code(), Code::Ok);
    // The proxy reconnects and is served again.
    drop(good(&server).await);
}

#[tokio::test]
async fn huge_requests_and_headers_end_their_stream_and_nothing_else() {
    let limits = Limits {
        request_bytes: 64 << 10,
        header_bytes: 8 << 10,
        ..Limits::default()
    };
    let server = World::limited(shop("1"), limits).await;
    let mut proxy = good(&server).await;

    let channel = server.plain(BAD).await.unwrap();
    let huge = node(&"x".repeat(65 << 10), None);
    let outcome = match open(channel.clone(), subscribe(huge)).await {
        Ok(mut stream) => stream.text().await.unwrap_err(),
        Err(status) => status,
    };
    assert_eq!(outcome.code(), Code::OutOfRange, "{outcome}");

    let (_requests, rx) = mpsc::channel::<DiscoveryRequest>(1);
    let mut request = tonic::Request::new(ReceiverStream::new(rx));
    let value = MetadataValue::try_from("x".repeat(9 << 10)).unwrap();
    request.metadata_mut().insert("x-huge", value);
    let refused = ExtensionConfigDiscoveryServiceClient::new(channel)
        .stream_extension_configs(request)
        .await;
    // The response has HTTP status 431, which a gRPC client reports as a broken stream.
    match refused {
        Err(status) => assert_ne!(status.code(), Code::Ok),
        Ok(response) => assert!(response.into_inner().message().await.is_err()),
    }
    follows(&server, &mut proxy, "2").await;
    assert_eq!(
        server.registry.proxies(std::time::SystemTime::now()).len(),
        1
    );
}

#[tokio::test]
async fn a_stream_that_asks_without_end_is_read_slowly() {
    let limits = Limits {
        request_interval: Duration::from_millis(500),
        ..Limits::default()
    };
    let server = World::limited(shop("1"), limits).await;
    let mut proxy = good(&server).await;
    let pushes = server.metrics.xds.pushes.get();

    let channel = server.plain(BAD).await.unwrap();
    let mut greedy = open(channel, subscribe(node("greedy", None)))
        .await
        .unwrap();
    let first = greedy.responses.message().await.unwrap().unwrap();
    let requests = greedy.requests.clone();
    let flood = tokio::spawn(async move {
        for _ in 1..100_000 {
            if requests.send(ack(&first)).await.is_err() {
                return;
            }
        }
    });
    for revision in ["2", "3", "4"] {
        follows(&server, &mut proxy, revision).await;
    }
    // The other proxy gets a push for each revision. This one gets its first push, and another that
    // it doesn't answer.
    let of_greedy = server.metrics.xds.pushes.get() - pushes - 3;
    assert!(of_greedy <= 2, "{of_greedy} pushes");
    assert!(!flood.is_finished(), "its sender is made to wait");
    flood.abort();
}

#[tokio::test]
async fn streams_are_bounded_and_a_silent_one_ends() {
    let limits = Limits {
        streams: 3,
        first_message: Duration::from_millis(300),
        ..Limits::default()
    };
    let server = World::limited(shop("1"), limits).await;
    let mut proxy = good(&server).await;
    let channel = server.plain(BAD).await.unwrap();
    let mut waiting = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..3 {
        let (requests, rx) = mpsc::channel::<DiscoveryRequest>(1);
        senders.push(requests);
        let mut client = ExtensionConfigDiscoveryServiceClient::new(channel.clone());
        waiting.push(
            client
                .stream_extension_configs(ReceiverStream::new(rx))
                .await,
        );
    }
    let over = waiting.pop().unwrap().unwrap_err();
    assert_eq!(over.code(), Code::ResourceExhausted);
    for silent in waiting {
        let ended = silent.unwrap().into_inner().message().await.unwrap_err();
        assert_eq!(ended.code(), Code::DeadlineExceeded);
    }
    follows(&server, &mut proxy, "2").await;
}
