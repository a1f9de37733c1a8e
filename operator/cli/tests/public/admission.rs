//! Tests of the server of class admission over the wire: the proxies that may report, the requests
//! that are refused, and a thousand senders at once.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream;
use headgate_admission::protocol::{Decisions, MAX_BYTES, PATH};
use headgate_api::plan::Plan;
use headgate_controller::metrics::Metrics;
use headgate_core::config::FilterConfig;
use headgate_xds::registry::Registry;
use headgate_xds::tls::TlsFiles;
use headgate_xds::{AdmissionServer, Limits};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tower::{Service as _, ServiceExt as _};

use crate::proxies::{Authority, spiffe, write_tls};

/// Returns a report about a service whose class allows only one miss.
fn report(process: usize, misses: u32) -> String {
    format!(
        r#"{{"process":"{process}","services":[{{"service":"shop/stock",
        "rules":{{"targets_us":[15000],"percentile":99,"increase":0.01,"decrease":0.01,
        "min_probability":0.1,"scope":"Class",
        "method":{{"type":"Misses","allowed":1,"period_us":60000000}}}},
        "classes":[{{"misses":{misses}}}]}}]}}"#
    )
}

/// The peers of a policy that names its own namespace.
const SHOP: &str = r#"["spiffe://cluster.local/ns/shop/*"]"#;

/// Returns a plan with `shop/stock`, which accepts reports of these peers.
fn plan(peers: &str) -> Plan {
    let stage = r#"{"policy": "shop/stock", "parallelism": 1,
        "queue": {"max_length": 1, "timeout_us": 1},
        "types": [{"name": "default"}], "strategy": {"type": "MaxQueueLength"},
        "class_admission": {"receives": true, "peers": PEERS}}"#;
    let config = FilterConfig {
        stages: vec![serde_json::from_str(&stage.replace("PEERS", peers)).unwrap()],
        ..FilterConfig::default()
    };
    let mut plan = Plan::default();
    let stock = "Service/shop/stock".parse().unwrap();
    plan.workloads.insert(stock, Arc::new(config));
    plan
}

/// Starts a server on a free port, which runs until the sender is dropped.
async fn start(tls: Option<TlsFiles>) -> (SocketAddr, oneshot::Sender<()>) {
    start_with(tls, SHOP).await
}

/// Starts a server as [`start`] does, with these peers in the service's policy.
async fn start_with(tls: Option<TlsFiles>, peers: &str) -> (SocketAddr, oneshot::Sender<()>) {
    let limits = Limits {
        connections_per_address: 2_000,
        report_bytes: 4 * MAX_BYTES,
        report_bytes_per_namespace: 2 * MAX_BYTES,
        ..Limits::default()
    };
    let registry = Registry::new(limits.proxies, limits.keep, Metrics::new().xds);
    let trust = match tls {
        Some(files) => Some(files.load().await.unwrap().subscribe()),
        None => None,
    };
    let plans = watch::Sender::new(Arc::new(plan(peers)));
    let registry = Arc::new(registry);
    let server = AdmissionServer {
        plans: plans.subscribe(),
        registry,
        trust,
        tokens: None,
        limits,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (end, ended) = oneshot::channel::<()>();
    tokio::spawn(async move { server.serve(listener, async { drop(ended.await) }).await });
    (address, end)
}

async fn post(channel: &mut Channel, path: &str, body: String) -> (StatusCode, String) {
    let request = Request::post(path).body(Body::new(Full::from(body)));
    let ready = channel.ready().await.unwrap();
    let (head, body) = ready.call(request.unwrap()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status, String::from_utf8(body.to_vec()).unwrap())
}

fn admit(answer: &str) -> f64 {
    let answer: Decisions<'_> = serde_json::from_str(answer).unwrap();
    answer.services[0].classes[0].admit
}

#[tokio::test]
async fn an_invalid_report_is_refused_with_the_invalid_field() {
    let (address, _end) = start(None).await;
    let mut channel = Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect_lazy();
    let (status, answer) = post(&mut channel, PATH, report(1, 0)).await;
    assert_eq!((status, admit(&answer)), (StatusCode::OK, 1.0), "{answer}");
    for (body, expected) in [
        (String::new(), "no report: EOF"),
        (
            r#"{"process":"1"}"#.to_owned(),
            "no report: missing field `services`",
        ),
        (
            report(1, 0).replace("15000", ""),
            "services[0].rules.targets_us: 0 targets",
        ),
        (
            report(1, 0).replace(r#""percentile":99"#, r#""percentile":100"#),
            "services[0].rules.percentile: 100",
        ),
    ] {
        let (status, why) = post(&mut channel, PATH, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(why.starts_with(expected), "{why}");
    }
    let (status, _) = post(&mut channel, PATH, " ".repeat(MAX_BYTES + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, answer) = post(&mut channel, PATH, report(1, 1)).await;
    assert_eq!((status, admit(&answer)), (StatusCode::OK, 0.0), "{answer}");
}

#[tokio::test]
async fn over_tls_only_those_report_whose_certificate_the_ca_signed() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let dir = tempfile::tempdir().unwrap();
    let files = write_tls(dir.path(), &authority.server(), &authority.pem);
    let (address, _end) = start(Some(files)).await;
    let channel = |identity| over_tls(address, &authority, identity);
    let identity = |authority: &Authority| issued(authority, &[&spiffe("shop")]);
    let (status, _) = post(&mut channel(Some(identity(&authority))), PATH, report(1, 0)).await;
    assert_eq!(status, StatusCode::OK);
    // A miss that a proxy of another namespace reports has no effect on the class of any process.
    let bank = spiffe("bank");
    for (names, says) in [
        (&[bank.as_str()][..], "shop/stock: its policy"),
        (&[], "no URI (SPIFFE id)"),
    ] {
        let mut other = channel(Some(issued(&authority, names)));
        let (status, why) = post(&mut other, PATH, report(2, 1)).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{why}");
        assert!(why.contains(says), "{why}");
    }
    let (_, answer) = post(&mut channel(Some(identity(&authority))), PATH, report(1, 0)).await;
    assert_eq!(admit(&answer), 1.0, "{answer}");
    for other in [None, Some(identity(&stranger))] {
        let mut channel = channel(other);
        let request = Request::post(PATH).body(Body::new(Full::from(report(1, 0))));
        let refused = match channel.ready().await {
            Ok(ready) => ready.call(request.unwrap()).await.is_err(),
            Err(_) => true,
        };
        assert!(refused);
    }
}

#[tokio::test]
async fn without_peers_a_service_believes_its_own_namespace() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let files = write_tls(dir.path(), &authority.server(), &authority.pem);
    let (address, _end) = start_with(Some(files), "[]").await;
    let of = |namespace| {
        let identity = issued(&authority, &[&spiffe(namespace)]);
        over_tls(address, &authority, Some(identity))
    };
    let (status, why) = post(&mut of("bank"), PATH, report(2, 1)).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{why}");
    let (status, answer) = post(&mut of("shop"), PATH, report(1, 0)).await;
    assert_eq!((status, admit(&answer)), (StatusCode::OK, 1.0), "{answer}");
}

fn over_tls(address: SocketAddr, authority: &Authority, identity: Option<Identity>) -> Channel {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&authority.pem))
        .domain_name("headgate.test");
    if let Some(identity) = identity {
        tls = tls.identity(identity);
    }
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    endpoint.tls_config(tls).unwrap().connect_lazy()
}

fn issued(authority: &Authority, names: &[&str]) -> Identity {
    let pair = authority.proxy(names);
    Identity::from_pem(pair.cert, pair.key)
}

/// Reports whose bodies never end exhaust only the limit of their own namespace.
#[tokio::test]
async fn a_namespace_does_not_take_the_room_for_the_reports_of_another() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let files = write_tls(dir.path(), &authority.server(), &authority.pem);
    let (address, _end) = start(Some(files)).await;
    let of = |namespace| {
        let identity = issued(&authority, &[&spiffe(namespace)]);
        over_tls(address, &authority, Some(identity))
    };
    let mut bank = of("bank");
    let mut endless = JoinSet::new();
    let request = || {
        let body = stream::pending::<Result<Bytes, Infallible>>();
        let body = Body::new(axum::body::Body::from_stream(body));
        Request::post(PATH).body(body).unwrap()
    };
    for _ in 0..2 {
        endless.spawn(bank.ready().await.unwrap().call(request()));
    }
    // The server reads the requests in the order in which they were sent.
    let (status, why) = post(&mut bank, PATH, report(1, 0)).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{why}");
    // A proxy without a proven identity is refused before its body is read.
    let mut unproven = over_tls(address, &authority, Some(issued(&authority, &[])));
    let refused = unproven.ready().await.unwrap().call(request()).await;
    assert_eq!(refused.unwrap().status(), StatusCode::FORBIDDEN);
    let (status, why) = post(&mut of("shop"), PATH, report(1, 0)).await;
    assert_eq!(status, StatusCode::OK, "{why}");
    drop(endless);
}

/// Each sender has its own connection, and receives every change that another sender causes.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_senders_share_one_server() {
    const SENDERS: usize = 1_000;
    const REPORTS: usize = 10;
    let (address, _end) = start(None).await;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let connect = |_| endpoint.connect();
    let mut channels = Vec::new();
    // The number of connections opened at once stays below the backlog.
    for some in (0..SENDERS).collect::<Vec<_>>().chunks(100) {
        let some = futures::future::join_all(some.iter().map(connect)).await;
        channels.extend(some.into_iter().map(Result::unwrap));
    }
    let began = Instant::now();
    let sender = |(process, mut channel): (usize, Channel)| {
        tokio::spawn(async move {
            for _ in 0..REPORTS {
                let (status, answer) = post(&mut channel, PATH, report(process, 0)).await;
                assert_eq!((status, admit(&answer)), (StatusCode::OK, 1.0));
            }
            channel
        })
    };
    let senders = channels.into_iter().enumerate().map(sender);
    let ended = futures::future::join_all(senders).await;
    let took = began.elapsed().max(Duration::from_millis(1));
    println!(
        "{:.0} reports/s of {SENDERS} senders",
        (SENDERS * REPORTS) as f64 / took.as_secs_f64()
    );

    let mut channels: Vec<Channel> = ended.into_iter().map(Result::unwrap).collect();
    let (_, answer) = post(&mut channels[0], PATH, report(0, 1)).await;
    assert_eq!(admit(&answer), 0.0);
    let (_, answer) = post(&mut channels[SENDERS - 1], PATH, report(SENDERS - 1, 0)).await;
    assert_eq!(admit(&answer), 0.0);
}
