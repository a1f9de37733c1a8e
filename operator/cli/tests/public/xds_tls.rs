//! Tests that a proxy with the wrong certificate gets nothing.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use headgate_api::plan::{NAMESPACE_METADATA, TARGET_METADATA};
use headgate_controller::report::Report;
use headgate_xds::Limits;
use tonic::Code;
use x509_parser::pem::parse_x509_pem;

use crate::common::{World, node, node_with, plan};
use crate::proxies::{Authority, Pair, spiffe, until, write_tls};
use crate::wire::{open, subscribe};

const SHOP: &str = "Service/shop/web";
const BANK: &str = "Service/bank/vault";

struct Rig {
    authority: Authority,
    server: World,
}

async fn rig<const N: usize>(targets: [&str; N]) -> Rig {
    let authority = Authority::new();
    let plan = plan(&targets.map(|target| (target, "1")));
    let tls = (&authority.server(), &*authority.pem);
    let server = World::secured(plan, Limits::default(), tls).await;
    Rig { authority, server }
}

impl Rig {
    /// Returns the response to a proxy with this certificate and metadata.
    async fn ask(
        &self,
        own: Option<&Pair>,
        metadata: &[(&str, &str)],
    ) -> Result<String, (Code, String)> {
        let channel = self.server.tls(&self.authority.pem, own).await;
        let channel = channel.map_err(|e| (Code::Unavailable, e.to_string()))?;
        let told = |s: tonic::Status| (s.code(), s.message().to_owned());
        let mut stream = open(channel, subscribe(node_with("p", metadata)))
            .await
            .map_err(told)?;
        stream.text().await.map_err(told)
    }
}

#[tokio::test]
async fn a_proxy_gets_what_its_certificate_covers_and_nothing_else() {
    let rig = rig([SHOP, BANK]).await;
    let shop = rig.authority.proxy(&[&spiffe("shop")]);
    let claims = [(NAMESPACE_METADATA, "shop"), (TARGET_METADATA, SHOP)];
    let got = rig.ask(Some(&shop), &claims).await.unwrap();
    assert!(got.contains("shop/web") && !got.contains("bank"), "{got}");

    for metadata in [
        &[(TARGET_METADATA, BANK)][..],
        &[(NAMESPACE_METADATA, "bank")],
        &[(NAMESPACE_METADATA, "shop"), (TARGET_METADATA, BANK)],
        &[("NAMESPACE", "bank")],
    ] {
        let (code, why) = rig.ask(Some(&shop), metadata).await.unwrap_err();
        assert_eq!(code, Code::PermissionDenied, "{metadata:?}: {why}");
        assert!(
            why.contains("\"bank\"") && why.contains("correct the metadata"),
            "{why}"
        );
    }
    assert_eq!(rig.server.metrics.xds.streams_refused.get(), 4);
    let nodes = rig.server.registry.proxies(std::time::SystemTime::now());
    assert_eq!(nodes.len(), 1, "who was denied is not in the status");
}

/// The metric is the earliest expiry among the certificates of connected proxies.
#[tokio::test]
async fn metrics_have_the_earliest_expiry_of_proxies_certificates() {
    const NAME: &str = "headgate_xds_proxy_certificate_expiry_timestamp_seconds ";
    let rig = rig([SHOP]).await;
    let shop = rig.authority.proxy(&[&spiffe("shop")]);
    let expiry = || {
        let snapshot = Arc::clone(&rig.server.snapshots.borrow());
        let now = std::time::SystemTime::now();
        let report = Report::new(&snapshot, &rig.server.registry, None, now);
        let text = rig.server.metrics.render(&report);
        text.lines()
            .find_map(|l| l.strip_prefix(NAME))
            .map(str::to_owned)
    };
    assert_eq!(expiry(), None);
    let channel = rig
        .server
        .tls(&rig.authority.pem, Some(&shop))
        .await
        .unwrap();
    let mut stream = open(channel, subscribe(node("p", None))).await.unwrap();
    stream.text().await.unwrap();
    let (_, pem) = parse_x509_pem(shop.cert.as_bytes()).unwrap();
    let end = pem.parse_x509().unwrap().validity().not_after.timestamp();
    assert_eq!(expiry(), Some(end.to_string()));
}

/// A proxy without a target gets the folder's only policy, unless the policy is for another
/// namespace.
#[tokio::test]
async fn the_only_policy_is_not_for_a_certificate_of_another_namespace() {
    let rig = rig([BANK]).await;
    let shop = rig.authority.proxy(&[&spiffe("shop")]);
    let got = rig.ask(Some(&shop), &[]).await.unwrap();
    assert!(!got.contains("bank") && got.contains("headgate"), "{got}");
    let proxies = rig.server.registry.proxies(std::time::SystemTime::now());
    let problem = proxies[0].assignment.problem.clone().unwrap();
    assert!(
        problem.contains("no policy of namespace \"shop\""),
        "{problem}"
    );
    let bank = rig.authority.proxy(&[&spiffe("bank")]);
    assert!(
        rig.ask(Some(&bank), &[])
            .await
            .unwrap()
            .contains("bank/vault")
    );
}

#[tokio::test]
async fn a_proxy_without_a_proven_namespace_gets_nothing() {
    let rig = rig([SHOP]).await;
    let uri = spiffe("shop");
    for (name, pair) in [
        ("no certificate", None),
        ("another CA", Some(Authority::new().proxy(&[&uri]))),
        ("expired", Some(rig.authority.expired(&uri))),
    ] {
        let (code, why) = rig
            .ask(pair.as_ref(), &[(TARGET_METADATA, SHOP)])
            .await
            .unwrap_err();
        assert!(
            matches!(code, Code::Unavailable | Code::Unknown | Code::Cancelled),
            "{name}: {code:?} {why}"
        );
    }
    until("three handshakes to fail", || {
        rig.server.metrics.xds.handshakes_failed.get() == 3
    })
    .await;
    for uris in [
        &[][..],
        &["https://example.com"],
        &["spiffe://cluster.local/shop"],
        &[uri.as_str(), "spiffe://cluster.local/ns/bank/sa/x"],
    ] {
        let own = rig.authority.proxy(uris);
        let (code, why) = rig
            .ask(Some(&own), &[(TARGET_METADATA, SHOP)])
            .await
            .unwrap_err();
        assert_eq!(code, Code::PermissionDenied, "{uris:?}: {why}");
        assert!(why.contains("or present a token"), "{why}");
    }
    // Without TLS, the TCP connection is established. The server closes the connection at the first
    // bytes, which are no TLS handshake.
    let plain = match rig.server.plain("127.0.0.1").await {
        Ok(channel) => open(channel, subscribe(node("p", None))).await.is_ok(),
        Err(_) => false,
    };
    assert!(!plain);
}

#[tokio::test]
async fn a_proxy_whose_ca_is_rotated_out_is_disconnected_and_others_stay() {
    let rig = rig([SHOP]).await;
    let next = Authority::new();
    let uri = spiffe("shop");
    let (old, new) = (rig.authority.proxy(&[&uri]), next.proxy(&[&uri]));
    let server_pair = rig.authority.server();
    let files = |ca: &str| drop(write_tls(rig.server.dir.path(), &server_pair, ca));
    let reloads = |n: u64| {
        let metrics = rig.server.metrics.clone();
        move || metrics.xds.tls_reloads.get() == n
    };

    let connect = async |pair: &Pair| {
        let channel = rig
            .server
            .tls(&rig.authority.pem, Some(pair))
            .await
            .unwrap();
        open(channel, subscribe(node("p", None))).await
    };
    let mut stays = connect(&old).await.unwrap();
    stays.text().await.unwrap();

    // The server trusts both CAs for a while, as during a rotation.
    files(&format!("{}{}", rig.authority.pem, next.pem));
    until("both CAs", reloads(1)).await;
    let mut newer = connect(&new).await.unwrap();
    newer.text().await.unwrap();
    rig.server
        .plans
        .send_replace(Arc::new(plan(&[(SHOP, "2-shop")])));
    assert!(
        stays.text().await.unwrap().contains("2-shop"),
        "still trusted"
    );
    assert!(newer.text().await.unwrap().contains("2-shop"));

    files(&next.pem);
    until("the new CA alone", reloads(2)).await;
    assert!(stays.text().await.is_err(), "its CA is gone");
    rig.server
        .plans
        .send_replace(Arc::new(plan(&[(SHOP, "3-shop")])));
    assert!(newer.text().await.unwrap().contains("3-shop"));
    let again = rig.server.tls(&rig.authority.pem, Some(&old)).await;
    let refused = match again {
        Err(_) => true,
        Ok(channel) => match open(channel, subscribe(node("p", None))).await {
            Err(_) => true,
            Ok(mut stream) => stream.text().await.is_err(),
        },
    };
    assert!(refused, "and it can't come back");
}
