//! Tests of `headgate top` as scripts use it. The admin interfaces return recorded responses of a
//! real Envoy.
//!
//! The tests of the display in a terminal are next to its code. `tests/tests/e2e/top.rs` uses real
//! Envoys.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::program::{Cluster, SLICES, TOKEN, command, gone, headgate, list, text, token};

/// Two responses of an Envoy 1.40 under overload.
const BEFORE: &str = include_str!("../../../top/src/recorded/before.txt");
const AFTER: &str = include_str!("../../../top/src/recorded/after.txt");
/// The counter of requests of type `slow`, which differs between the two responses.
const SLOW: &str = "wasmcustom.headgate.policy.default/search.type.slow.rq_total";

const INFO: &str =
    r#"{"version": "9e55/1.40.0/Clean/RELEASE/BoringSSL", "node": {"id": "search-1"}}"#;

/// The responses of an admin interface, in order. The last response is repeated.
#[derive(Clone)]
struct Answers {
    texts: Arc<[String]>,
    asked: Arc<AtomicUsize>,
}

impl Answers {
    fn new(texts: &[&str]) -> Self {
        Self {
            texts: texts.iter().map(|t| (*t).to_owned()).collect(),
            asked: Arc::default(),
        }
    }

    fn to(&self, path: &str) -> (u16, String) {
        if path == "/server_info" {
            return (200, INFO.to_owned());
        }
        // The recorded responses are to exactly this query.
        if !path.starts_with("/stats?histogram_buckets=disjoint&filter=%5E%28server%5C.uptime%24") {
            return (404, String::new());
        }
        let at = self.asked.fetch_add(1, Ordering::SeqCst);
        (200, self.texts[at.min(self.texts.len() - 1)].clone())
    }

    /// Answers all requests of a connection, which stays open as with Envoy.
    fn serve(&self, stream: impl Read, mut out: impl Write) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        while let Some(request) = lines.next() {
            if lines.by_ref().take_while(|l| !l.is_empty()).count() == 0 {
                return;
            }
            let (code, body) = self.to(request.split(' ').nth(1).unwrap_or_default());
            if out.write_all(http(code, &body).as_bytes()).is_err() {
                return;
            }
        }
    }
}

fn http(code: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {code} x\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Starts an admin interface on a free port. The interface runs until the test's process ends.
fn admin(texts: &[&str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answers = Answers::new(texts);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answers = answers.clone();
            std::thread::spawn(move || {
                answers.serve(stream.try_clone().unwrap(), stream);
            });
        }
    });
    address
}

fn top(arguments: &[&str]) -> Output {
    headgate(&[&["top"], arguments].concat())
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

fn recorded(text: &str, name: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap().parse().unwrap()
}

#[test]
fn once_as_json() {
    let address = admin(&[BEFORE, AFTER]).to_string();
    let output = top(&[
        "--proxy", &address, "--once", "--window", "1s", "-o", "json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let view = json_of(&output);
    let proxy = &view["proxies"][0];
    assert_eq!(proxy["proxy"], address.as_str());
    assert_eq!(proxy["state"], "Answers");
    assert_eq!(
        (&proxy["node"], &proxy["version"]),
        (&json!("search-1"), &json!("1.40.0"))
    );
    let policy = &view["policies"][0];
    assert_eq!(
        (&policy["policy"], &policy["slots"]),
        (&json!("default/search"), &json!(4))
    );
    let slow = &policy["types"][0];
    assert_eq!(slow["type"], "slow", "what hurts most comes first");
    let seconds = view["windowSeconds"].as_f64().unwrap();
    assert!(seconds > 0.0, "{seconds}");
    let arrivals = recorded(AFTER, SLOW) - recorded(BEFORE, SLOW);
    let counted = slow["arrivalRate"].as_f64().unwrap() * seconds;
    assert!((counted - arrivals).abs() < 1.0, "{counted}, {arrivals}");
    assert!(slow["refusedByReason"]["slo_p50"].as_f64() > Some(0.0));
    assert!(slow["queueWaitMs"]["p99"].as_f64() > slow["queueWaitMs"]["p50"].as_f64());
    assert_eq!(slow["objectives"][0]["target"], 0.5);
}

#[test]
fn once_as_a_table_through_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answers = Answers::new(&[BEFORE, AFTER]);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answers.serve(stream.try_clone().unwrap(), stream);
        }
    });
    let address = format!("unix:{}", path.display());
    let output = top(&[
        "--proxy", &address, "--once", "--window", "200ms", "--sort", "name",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("POLICY / TYPE    ARRIVE/s"), "{text}");
    assert!(lines[1].starts_with("default/search"), "{text}");
    assert!(lines[2].starts_with("  default"), "{text}");
    assert!(lines[3].starts_with("  slow"), "{text}");
    assert!(lines[3].contains("p50 72ms: "), "{text}");
    assert!(lines[5].starts_with("1 proxy, "), "{text}");
}

#[test]
fn a_proxy_that_does_not_answer_is_reported_and_the_others_are_shown() {
    let good = admin(&[BEFORE, AFTER]).to_string();
    let gone = gone().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(http(404, "not found").as_bytes());
        }
    });
    let output = top(&[
        "--proxy", &good, "--proxy", &gone, "--proxy", &other, "--once", "--window", "300ms", "-o",
        "json",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    let expected = format!("warning: {gone}: Connection refused (os error 111)\n");
    assert!(errors.contains(&expected), "{errors}");
    let expected =
        format!("warning: {other}: it is no Envoy admin address: it answered 404 Not Found\n");
    assert!(errors.contains(&expected), "{errors}");
    let view = json_of(&output);
    assert_eq!(view["policies"][0]["proxies"], 1);
    let states = view["proxies"].as_array().unwrap().iter();
    let silent = states.filter(|p| p["state"] == "Unreachable");
    assert_eq!(silent.count(), 2);
}

#[test]
fn json_lines_end_when_the_reader_closes() {
    let restarted = format!("server.uptime: 0\n{}", BEFORE.split_once('\n').unwrap().1);
    let address = admin(&[BEFORE, AFTER, &restarted]).to_string();
    let arguments = [
        "top",
        "--proxy",
        &address,
        "--interval",
        "200ms",
        "--output",
        "json",
    ];
    let mut child = command(env!("CARGO_BIN_EXE_headgate"), &arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut restarts = 0;
    let mut rates = 0;
    for line in lines.by_ref().take(20) {
        let view: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let rate = &view["policies"][0]["traffic"]["arrivalRate"];
        assert!(rate.as_f64().is_none_or(|r| r >= 0.0), "{rate}");
        rates += usize::from(rate.is_number());
        restarts = view["proxies"][0]["restarts"].as_u64().unwrap_or(0);
        if restarts > 0 && rates > 2 {
            break;
        }
    }
    assert_eq!(restarts, 1);
    drop(lines);
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let output = top(&["--proxy", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "error: standard output is no terminal; add --once, or --output json for a line \
                    at every interval\n";
    assert_eq!(text(&output.stderr), expected);
    for (arguments, says) in [
        (
            &["--proxy", "nowhere"][..],
            "write HOST:PORT, such as 127.0.0.1:9901, or unix:/PATH",
        ),
        (&["--interval", "5ms"], "at least 100ms"),
        (&["--proxy", "a:1", "-A"], "cannot be used with"),
    ] {
        let output = top(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            text(&output.stderr).contains(says),
            "{}",
            text(&output.stderr)
        );
    }
}

/// Starts an API server with one operator, whose report is `report`.
fn api_server(answers: Answers, report: Value) -> Cluster {
    let slices = list(&[json!({
        "metadata": {"name": "s"}, "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "headgate-1"},
        }],
    })]);
    let status = "/api/v1/namespaces/headgate-system/pods/headgate-1:18001/proxy/status";
    forwarding(
        [(SLICES, slices), (TOKEN, token()), (status, report)],
        answers,
    )
}

/// Starts an API server with these responses by path. The server forwards ports of the Pod
/// `shop/search-1`.
fn forwarding<const N: usize>(prepared: [(&str, Value); N], answers: Answers) -> Cluster {
    Cluster::forwarding(prepared.into(), move |path, stream| {
        assert!(
            path.starts_with("/api/v1/namespaces/shop/pods/search-1/portforward"),
            "{path}"
        );
        assert!(path.contains("ports=9901"), "{path}");
        forward(stream, &answers);
    })
}

/// Acts as the kubelet for a forwarded port. Each message starts with its channel, and the first
/// message of each channel names the port.
// The handshake's callback returns a whole response as its error.
#[allow(clippy::result_large_err)]
#[tokio::main(flavor = "current_thread")]
async fn forward(stream: TcpStream, answers: &Answers) {
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let agree = |request: &Request, mut response: Response| {
        let offered = request.headers()["sec-websocket-protocol"]
            .to_str()
            .unwrap();
        let wanted = "v4.channel.k8s.io";
        assert!(offered.split(", ").any(|o| o == wanted), "{offered}");
        let chosen = wanted.parse().unwrap();
        response
            .headers_mut()
            .insert("sec-websocket-protocol", chosen);
        Ok(response)
    };
    let mut socket = tokio_tungstenite::accept_hdr_async(stream, agree)
        .await
        .unwrap();
    for channel in [0, 1] {
        let port = 9901_u16.to_le_bytes();
        let first = vec![channel, port[0], port[1]];
        socket.send(Message::binary(first)).await.unwrap();
    }
    let mut request = String::new();
    while let Some(Ok(message)) = socket.next().await {
        let Message::Binary(bytes) = message else {
            continue;
        };
        request += &String::from_utf8_lossy(&bytes[1..]);
        if !request.ends_with("\r\n\r\n") {
            continue;
        }
        let (code, body) = answers.to(request.split(' ').nth(1).unwrap_or_default());
        request.clear();
        let answer = [&[0], http(code, &body).as_bytes()].concat();
        if socket.send(Message::binary(answer)).await.is_err() {
            return;
        }
    }
}

fn proxy(node: &str, namespace: Option<&str>, disconnected: bool) -> Value {
    json!({
        "node": node, "cluster": "headgate", "target": null, "namespace": namespace,
        "peer": "10.0.0.2:1", "slots": ["headgate"],
        "connected": "2026-03-01T12:00:00Z",
        "disconnected": disconnected.then_some("2026-03-01T12:00:00Z"), "state": "Running",
        "policies": ["default/search"], "problem": null, "sent": null, "acked": null, "nack": null,
    })
}

#[test]
fn proxies_of_a_cluster_are_found_and_reached_through_the_api_server() {
    let report = json!({
        "time": "2026-03-01T12:00:00Z", "version": "0.1.0", "policies": [], "problems": [],
        "module": {"path": "/x", "hash": "0", "bytes": 1},
        "proxies": [
            proxy("search-1", Some("shop"), false),
            proxy("elsewhere-1", Some("mail"), false),
            proxy("search-0", Some("shop"), true),
            proxy("nameless", None, false),
        ],
    });
    let cluster = api_server(Answers::new(&[BEFORE, AFTER]), report);
    let output = cluster.ask(&["top", "--once", "--window", "500ms", "-o", "json"]);
    let said = text(&output.stderr);
    assert_eq!(
        said,
        "warning: 1 connected proxies don't report their Pod\n"
    );
    assert!(output.status.success());
    let view = json_of(&output);
    let proxies = view["proxies"].as_array().unwrap();
    assert_eq!(proxies.len(), 1, "{view:#}");
    assert_eq!(proxies[0]["proxy"], "shop/search-1");
    assert_eq!(proxies[0]["state"], "Answers");
    assert!(view["policies"][0]["traffic"]["arrivalRate"].as_f64() > Some(0.0));
}

/// A terminating Pod is in phase Running until its last container ends.
#[test]
fn pods_that_terminate_are_left_out() {
    let pod = |name: &str, deleted: Option<&str>| json!({"metadata": {"name": name, "namespace": "shop", "deletionTimestamp": deleted}});
    let pods = list(&[
        pod("search-0", Some("2026-03-01T12:00:00Z")),
        pod("search-1", None),
    ]);
    let pods = [("/api/v1/namespaces/shop/pods", pods)];
    let cluster = forwarding(pods, Answers::new(&[BEFORE, AFTER]));
    let output = cluster.ask(&[
        "top",
        "--selector",
        "app=search",
        "--once",
        "--window",
        "500ms",
        "-o",
        "json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let view = json_of(&output);
    let proxies = view["proxies"].as_array().unwrap();
    assert_eq!(proxies.len(), 1, "{view:#}");
    assert_eq!(proxies[0]["proxy"], "shop/search-1");
}

/// Envoy keeps the stats of a removed policy, with 0 slots.
#[test]
fn a_policy_is_suggested_beside_the_stats_of_a_removed_one() {
    let observed = AFTER.lines().filter(|line| !line.contains(".type.slow."));
    let removed = [
        "wasmcustom.headgate.policy.default/old.slots: 0",
        "wasmcustom.headgate.policy.default/old.type.default.rq_total: 7",
    ];
    let stats = observed.chain(removed).collect::<Vec<_>>().join("\n");
    let address = admin(&[&stats]).to_string();
    let output = headgate(&["suggest", "--proxy", &address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("kind: AdmissionPolicy"));
}

#[test]
fn a_cluster_without_connected_proxies_says_how_to_find_others() {
    let report = json!({
        "time": "2026-03-01T12:00:00Z", "version": "0.1.0", "policies": [], "problems": [],
        "module": {"path": "/x", "hash": "0", "bytes": 1}, "proxies": [],
    });
    let cluster = api_server(Answers::new(&[BEFORE]), report);
    let output = cluster.ask(&["top", "--once"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "warning: no proxy is connected to an operator in namespace shop; find those of Istio and \
         Envoy Gateway by --selector and --admin-port\n"
    );
}
