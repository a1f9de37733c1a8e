//! The admin address: what one replica tells another, and what it tells before it serves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::time::Duration;

use headgate::admin::Admin;
use headgate::kubernetes::peers::{COUNTS_PATH, Counted};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::common::{SEARCH, World, get, plan};
use crate::wire::{ack, hello, sotw};

/// Longer than any answer takes that isn't waited for.
const PATIENCE: Duration = Duration::from_secs(15);

/// A request for counts that is on its way.
async fn ask(admin: SocketAddr, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let request =
        format!("GET {COUNTS_PATH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Status line, version and body.
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

#[tokio::test]
async fn counts_are_told_when_they_change() {
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

    // It is kept open, and answered as soon as there is another version.
    let waiting = ask(world.admin, &format!("{same}prefer: wait=20\r\n")).await;
    let mut proxy = sotw(&world, hello(None)).await;
    let response = proxy.next().await;
    let (line, version, body) = answer(waiting).await;
    assert!(line.ends_with("200 OK"), "{line}");
    let counted: Counted = serde_json::from_str(&body).unwrap();
    let tally = counted.policies.of_policy("default/search");
    assert_eq!((tally.running, tally.total), (0, 1), "{body}");

    let same = format!("if-none-match: {version}\r\nprefer: wait=20\r\n");
    let waiting = ask(world.admin, &same).await;
    proxy.send(ack(&response)).await;
    let (_, _, body) = answer(waiting).await;
    let counted: Counted = serde_json::from_str(&body).unwrap();
    assert_eq!(
        counted.policies.of_policy("default/search").running,
        1,
        "{body}"
    );
}

#[tokio::test]
async fn a_replica_that_stops_answers_those_who_wait() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let (_, version, _) = answer(ask(world.admin, "").await).await;
    let same = format!("if-none-match: {version}\r\nprefer: wait=20\r\n");
    let waiting = ask(world.admin, &same).await;
    // The request is there before the shutdown: another one is answered after it.
    answer(ask(world.admin, "").await).await;
    world.shutdown.send_replace(true);
    let (line, ..) = answer(waiting).await;
    assert!(line.contains(" 304 "), "{line}");
}

#[tokio::test]
async fn before_there_is_a_plan_it_says_what_is_missing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap();
    let (_view, view) = watch::channel(None);
    let (_missing, missing) = watch::channel("Pods".to_owned());
    let (_shutdown, shutdown) = watch::channel(false);
    tokio::spawn(Admin::starting(view, missing, "a", shutdown).serve(listener));
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
