//! Tests of the admin address: its counts for other replicas, and its responses before the replica
//! serves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use headgate_controller::admin::Admin;
use headgate_controller::kubernetes::peers::{self, COUNTS_PATH, Counted, Peers};
use headgate_controller::report::Report;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::common::{ADS, SEARCH, World, admin_of, get, node, plan};
use crate::wire::{ack, hello, sotw};

/// The upper bound on the time of a response that doesn't wait for a change.
const PATIENCE: Duration = Duration::from_secs(15);

/// Sends a request for counts and returns the connection of the request.
async fn ask(admin: SocketAddr, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let request =
        format!("GET {COUNTS_PATH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Returns the status line, the version and the body of the response.
async fn answer(mut stream: TcpStream) -> (String, String, String) {
    let mut text = String::new();
    let read = stream.read_to_string(&mut text);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let version = head.lines().find_map(|l| l.strip_prefix("etag: "));
    let line = head.lines().next().unwrap().to_owned();
    (
        line,
        version.unwrap_or_default().to_owned(),
        body.to_owned(),
    )
}

/// Repeats a request until the response isn't 304.
async fn changed(admin: SocketAddr, headers: &str) -> (String, String, String) {
    let changed = async {
        loop {
            let found = answer(ask(admin, headers).await).await;
            if !found.0.contains(" 304 ") {
                return found;
            }
        }
    };
    tokio::time::timeout(PATIENCE, changed).await.unwrap()
}

#[tokio::test]
async fn counts_are_sent_when_they_change() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let (line, version, body) = answer(ask(world.admin, "").await).await;
    assert!(line.ends_with("200 OK"), "{line}");
    let counted: Counted = serde_json::from_str(&body).unwrap();
    assert!(
        counted.policies.of_policy("default/search").total == 0,
        "{body}"
    );

    let same = format!("if-none-match: {version}\r\n");
    let (line, again, _) = answer(ask(world.admin, &same).await).await;
    assert!(line.contains(" 304 "), "{line}");
    assert_eq!(again, version);

    let mut proxy = sotw(&world, hello(None)).await;
    let response = proxy.next().await;
    let (line, version, body) = changed(world.admin, &same).await;
    assert!(line.ends_with("200 OK"), "{line}");
    let counted: Counted = serde_json::from_str(&body).unwrap();
    let tally = counted.policies.of_policy("default/search");
    assert_eq!((tally.running, tally.total), (0, 1), "{body}");

    let same = format!("if-none-match: {version}\r\n");
    proxy.send(ack(&response)).await;
    let (_, _, body) = changed(world.admin, &same).await;
    let counted: Counted = serde_json::from_str(&body).unwrap();
    assert_eq!(
        counted.policies.of_policy("default/search").running,
        1,
        "{body}"
    );
}

/// The response to an edit of one policy doesn't grow with the number of policies.
#[tokio::test]
async fn only_changed_counts_are_sent() {
    let world = World::start(plan(&[(SEARCH, "r1"), (ADS, "r1")])).await;
    let mut search = sotw(&world, hello(Some(SEARCH))).await;
    let mut ads = hello(Some(ADS));
    ads.node = node("ads-1", Some(ADS));
    let mut ads = sotw(&world, ads).await;
    for proxy in [&mut search, &mut ads] {
        let first = proxy.next().await;
        proxy.send(ack(&first)).await;
    }
    let all_run =
        |r: &Report| r.proxies.len() == 2 && r.proxies.iter().all(|p| p.state == "Running");
    world.until("both run", all_run).await;
    let (_, version, _) = answer(ask(world.admin, "").await).await;
    let takes = |version: &str| format!("if-none-match: {version}\r\na-im: merge-patch\r\n");
    drop(ads);
    let (line, next, body) = changed(world.admin, &takes(&version)).await;
    assert!(line.contains(" 226 "), "{line}");
    let policies = serde_json::from_str::<serde_json::Value>(&body).unwrap()["policies"].take();
    assert_eq!(policies, serde_json::json!({"default/ads": null}));
    // A client with a version other than the last one gets all counts. So does a leader of an older
    // program, which doesn't request changes.
    for headers in [
        takes("\"other\""),
        format!("if-none-match: {version}\r\n"),
        String::new(),
    ] {
        let (line, same, body) = answer(ask(world.admin, &headers).await).await;
        assert!(line.contains(" 200 "), "{line}");
        assert_eq!(same, next);
        let counted: Counted = serde_json::from_str(&body).unwrap();
        assert_eq!(counted.policies.of_policy("default/search").running, 1);
        assert_eq!(counted.policies.of_policy("default/ads").total, 0);
    }
}

/// A leader that follows another replica over HTTP has the counts of that replica.
#[tokio::test]
async fn a_leader_follows_the_counts_of_another_replica() {
    let world = World::start(plan(&[(SEARCH, "r1"), (ADS, "r1")])).await;
    let (_replicas, replicas) = watch::channel(BTreeSet::from([world.admin]));
    let far = tokio::time::Instant::now() + Duration::from_secs(3_600);
    let (_leads, leads) = watch::channel(Some(far));
    let (out, mut heard) = watch::channel(Peers::default());
    let stop = world.shutdown.subscribe();
    tokio::spawn(peers::follow(
        replicas,
        "leader".to_owned(),
        None,
        leads,
        out,
        stop,
    ));
    let mut follows = async |what: &str| {
        let is_same = |peers: &Peers| {
            let own = world.registry.tallies();
            peers.complete
                && peers
                    .tallies
                    .get(&world.admin)
                    .is_some_and(|told| *told == own)
        };
        let waited = tokio::time::timeout(PATIENCE, heard.wait_for(is_same)).await;
        assert!(waited.is_ok(), "{what}");
    };
    follows("no proxies").await;
    let mut search = sotw(&world, hello(Some(SEARCH))).await;
    let first = search.next().await;
    follows("one that hasn't answered").await;
    search.send(ack(&first)).await;
    let is_running = |r: &Report| r.proxies[0].state == "Running";
    world.until("it runs", is_running).await;
    follows("one that runs").await;
    let mut ads = hello(Some(ADS));
    ads.node = node("ads-1", Some(ADS));
    let ads = sotw(&world, ads).await;
    world.until("two", |r| r.proxies.len() == 2).await;
    follows("one of another policy").await;
    drop(ads);
    let has_left = |r: &Report| r.proxies.iter().any(|p| p.state == "Disconnected");
    world.until("it has left", has_left).await;
    follows("one of them left").await;
}

#[tokio::test]
async fn before_there_is_a_plan_it_says_what_is_missing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap();
    let (_view, view) = watch::channel(None);
    let (_missing, missing) = watch::channel("Pods".to_owned());
    let (_shutdown, shutdown) = watch::channel(false);
    tokio::spawn(Admin::starting(view, missing, "a", shutdown).serve(listener, None));
    let (code, text) = get(admin, "/readyz").await.unwrap();
    assert_eq!(
        (code, text.as_str()),
        (503, "not ready: waiting for Pods\n")
    );
    assert_eq!(get(admin, "/healthz").await.unwrap().0, 200);
    for path in ["/status", "/metrics", COUNTS_PATH] {
        assert_eq!(get(admin, path).await.unwrap().0, 503, "{path}");
    }
}

/// The limit of connections from one address. The limit of all connections is larger.
const MAX_PER_ADDRESS: usize = 16;

async fn connect(from: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(to).await.unwrap()
}

/// The number of connections of clients that never complete their requests is limited, and such
/// clients delay no other client.
#[tokio::test]
async fn silent_clients_delay_no_other_client() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let mut crowd = Vec::new();
    for address in 3..6 {
        for _ in 0..2 * MAX_PER_ADDRESS {
            let mut silent = connect(&format!("127.0.0.{address}"), world.admin).await;
            // The server may have closed the connection.
            let _ = silent.write_all(b"GET /status HTTP/1.1\r\nhost: ").await;
            crowd.push(silent);
        }
    }
    assert_eq!(get(world.admin, "/healthz").await.unwrap().0, 200);
    assert_eq!(get(world.admin, "/metrics").await.unwrap().0, 200);
    // None of the open connections has timed out.
    let mut open = 0;
    for silent in &mut crowd {
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_millis(1), silent.read(&mut byte)).await;
        open += usize::from(read.is_err());
    }
    assert_eq!(open, 3 * MAX_PER_ADDRESS);
}

/// The kubelet's probes succeed even if the admin address is exhausted.
#[tokio::test]
async fn probes_have_an_address_of_their_own() {
    let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let probes = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (admin_at, probes_at) = (admin.local_addr().unwrap(), probes.local_addr().unwrap());
    let (_view, view) = watch::channel(None);
    let (_missing, missing) = watch::channel("Pods".to_owned());
    let (_shutdown, shutdown) = watch::channel(false);
    let shown = Admin::starting(view, missing, "a", shutdown);
    tokio::spawn(shown.clone().serve_probes(probes));
    tokio::spawn(shown.serve(admin, None));
    let mut crowd = Vec::new();
    for address in 2..8 {
        for _ in 0..MAX_PER_ADDRESS {
            crowd.push(connect(&format!("127.0.0.{address}"), admin_at).await);
        }
    }
    assert_eq!(get(probes_at, "/healthz").await.unwrap().0, 200);
    assert_eq!(get(probes_at, "/readyz").await.unwrap().0, 503);
    assert_eq!(crowd.len(), 96, "more than are served at once");
}

#[tokio::test]
async fn the_address_of_probes_serves_nothing_else() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let probes = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = probes.local_addr().unwrap();
    let shown = admin_of(
        &world.registry,
        &world.snapshots,
        &world.metrics,
        &world.shutdown,
    );
    tokio::spawn(shown.clone().serve_probes(probes));
    assert_eq!(get(at, "/readyz").await.unwrap().0, 200);
    for path in ["/status", "/metrics", COUNTS_PATH] {
        assert_eq!(get(at, path).await.unwrap().0, 404, "{path}");
    }
}

/// Clients at a few addresses, such as Pods that keep all their connections open, don't exhaust the
/// probe address.
#[tokio::test]
async fn a_few_clients_do_not_keep_probes_out() {
    let (_view, view) = watch::channel(None);
    let (_missing, missing) = watch::channel(String::new());
    let (_stop, shutdown) = watch::channel(false);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let probes = listener.local_addr().unwrap();
    let shown = Admin::starting(view, missing, "a", shutdown);
    tokio::spawn(shown.serve_probes(listener));
    let mut held = Vec::new();
    for client in 2..=9 {
        for _ in 0..MAX_PER_ADDRESS {
            held.push(connect(&format!("127.0.0.{client}"), probes).await);
        }
    }
    let (status, body) = get(probes, "/healthz").await.unwrap();
    assert_eq!((status, body.as_str()), (200, "ok\n"));
    drop(held);
}
