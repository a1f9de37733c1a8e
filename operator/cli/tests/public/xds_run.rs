//! Tests of `headgate run` and `headgate status` as processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::envoy::service::extension::v3::extension_config_discovery_service_client::ExtensionConfigDiscoveryServiceClient as EcdsClient;
use headgate_controller::conditions::Type::Programmed;
use headgate_controller::report::Report;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::common::{configuration, get, node, wasm};

const POLICY: &str = "\
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: search, namespace: default}
spec:
  targetRefs:
  - {group: \"\", kind: Service, name: search}
  parallelism: {total: 20}
  types:
  - name: default
    slo: {p50: 18ms, p90: 50ms}
";

/// A temporary folder with a module and with a folder of policies.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("headgate.wasm"), wasm(true)).unwrap();
        fs::create_dir(dir.path().join("policies")).unwrap();
        Self(dir)
    }

    /// Returns the command `headgate run` in this folder. The ports are free ones unless
    /// `arguments` set others.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.current_dir(self.0.path()).arg("run");
        let mut default = |name: &str, value: &str| {
            if !arguments.contains(&name) {
                command.args([name, value]);
            }
        };
        if !arguments.contains(&"--kubernetes") {
            default("--config-dir", "policies");
        }
        default("--wasm", "headgate.wasm");
        default("--module-dir", "modules");
        default("--xds", "127.0.0.1:0");
        default("--admin", "127.0.0.1:0");
        command
            .args(arguments)
            .env_remove("RUST_LOG")
            .kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str]) -> Running {
        let mut child = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let Some(line) = lines.next_line().await.unwrap() else {
            let mut log = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut log)
                .await
                .unwrap();
            panic!("no address on stdout: {log}");
        };
        let address = |key: &str| -> SocketAddr {
            let word = line.split(' ').find_map(|w| w.strip_prefix(key)).unwrap();
            word.parse().unwrap()
        };
        Running {
            xds: address("xds="),
            admin: address("admin="),
            child,
        }
    }

    /// Returns the error line of a run that can't start.
    async fn fails(&self, arguments: &[&str]) -> String {
        failure(self.command(arguments).output().await.unwrap())
    }
}

fn failure(output: Output) -> String {
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(output.stdout.is_empty());
    text.trim().to_owned()
}

struct Running {
    xds: SocketAddr,
    admin: SocketAddr,
    child: Child,
}

impl Running {
    async fn report(&self) -> Report {
        serde_json::from_str(&get(self.admin, "/status").await.unwrap().1).unwrap()
    }

    async fn until(&self, what: &str, done: impl Fn(&Report) -> bool) {
        let waited = tokio::time::timeout(std::time::Duration::from_secs(30), async {
            while !done(&self.report().await) {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        });
        assert!(
            waited.await.is_ok(),
            "not within 30 s: {what}: {:#?}",
            self.report().await
        );
    }

    /// Sends SIGTERM and returns the exit code and the log.
    async fn terminate(self) -> (Option<i32>, String) {
        let pid = self.child.id().unwrap().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .await
                .unwrap()
                .success()
        );
        let output = self.child.wait_with_output().await.unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }
}

async fn status(admin: SocketAddr) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command
        .args(["status", "--admin", &admin.to_string()])
        .output()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_folder_is_served_and_followed_until_sigterm() {
    let place = Place::new();
    let policy = place.0.path().join("policies/search.yaml");
    fs::write(&policy, POLICY).unwrap();
    let running = place.run(&[]).await;
    let (requests, rx) = mpsc::channel(4);
    let first = DiscoveryRequest {
        node: node("edge-1", None),
        resource_names: vec!["headgate".into()],
        ..DiscoveryRequest::default()
    };
    requests.send(first).await.unwrap();
    let mut client = EcdsClient::connect(format!("http://{}", running.xds))
        .await
        .unwrap();
    let responses = client
        .stream_extension_configs(ReceiverStream::new(rx))
        .await
        .unwrap();
    let mut responses = responses.into_inner();
    let response = responses.message().await.unwrap().unwrap();
    assert_eq!(
        configuration(&response.resources[0]).stages[0].parallelism,
        20
    );
    let answer = DiscoveryRequest {
        version_info: response.version_info,
        response_nonce: response.nonce,
        resource_names: vec!["headgate".into()],
        ..DiscoveryRequest::default()
    };
    requests.send(answer).await.unwrap();
    running
        .until("programmed", |r| {
            r.policies[0].conditions[&Programmed].status
        })
        .await;

    let table = String::from_utf8(status(running.admin).await.stdout).unwrap();
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0],
        [
            "POLICY",
            "TARGET",
            "MODE",
            "ACCEPTED",
            "PROGRAMMED",
            "PROXIES",
            "REVISION"
        ]
    );
    assert_eq!(
        lines[1][..6],
        [
            "default/search",
            "Service/default/search",
            "Enforce",
            "True",
            "True",
            "1/1"
        ]
    );
    assert_eq!(lines[4][..4], ["edge-1", "-", "wasm", "Running"]);

    fs::write(&policy, POLICY.replace("total: 20", "total: 10")).unwrap();
    let response = responses.message().await.unwrap().unwrap();
    assert_eq!(
        configuration(&response.resources[0]).stages[0].parallelism,
        10
    );

    let (code, log) = running.terminate().await;
    assert_eq!(code, Some(0), "{log}");
    for part in [
        "proxy connected node=\"edge-1\"",
        "proxy accepted the configuration",
        "SIGTERM: stopping",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(responses.message().await.is_err());
}

/// The kubelet would kill a container whose probes don't answer.
#[tokio::test]
async fn an_operator_that_waits_for_its_ca_answers_probes_and_ends_at_sigterm() {
    // Connections are accepted by the kernel, and requests get no answer.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let place = Place::new();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{
            "name": "here", "context": {"cluster": "c", "user": "u", "namespace": "system"},
        }],
    });
    fs::write(place.0.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
    let probes = {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        free.local_addr().unwrap()
    };
    let at = probes.to_string();
    let files = [
        "--tls-cert",
        "tls.crt",
        "--tls-key",
        "tls.key",
        "--client-ca",
        "ca.crt",
    ];
    let cluster = ["--kubernetes", "--kubeconfig", "kubeconfig"];
    let waits = ["--tls-authority", "headgate-ca", "--probes", &at];
    let mut child = { place.command(&[&cluster[..], &files, &waits].concat()) }
        .spawn()
        .unwrap();
    let waited = tokio::time::timeout(std::time::Duration::from_secs(30), async {
        while get(probes, "/healthz").await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "no probes within 30 s");
    let (code, text) = get(probes, "/readyz").await.unwrap();
    assert_eq!(
        (code, &*text),
        (503, "not ready: waiting for the Secret of the CA\n")
    );
    let pid = child.id().unwrap().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status().await;
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn logs_are_json_when_asked_for() {
    let place = Place::new();
    let running = place.run(&["--log-format", "json"]).await;
    let (code, log) = running.terminate().await;
    assert_eq!(code, Some(0));
    assert!(!log.is_empty());
    for line in log.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(event["message"].is_string(), "{line}");
    }
}

#[tokio::test]
async fn an_error_at_start_up_is_one_line() {
    let place = Place::new();
    let error = place.fails(&["--config-dir", "nowhere"]).await;
    assert_eq!(
        error,
        "error: --config-dir nowhere: no such folder; create it and put AdmissionPolicy files in"
    );
    let error = place.fails(&["--wasm", "nothing.wasm"]).await;
    assert_eq!(
        error,
        "error: filter module nothing.wasm does not exist; build it with scripts/build, \
         or name it with --wasm PATH"
    );
    fs::write(place.0.path().join("page.wasm"), "<html>").unwrap();
    let error = place.fails(&["--wasm", "page.wasm"]).await;
    assert!(
        error.starts_with(
            "error: filter module page.wasm is neither a WebAssembly module nor a shared object"
        ),
        "{error}"
    );
    let error = place.fails(&["--module-dir", "headgate.wasm"]).await;
    assert!(error.contains("with --module-dir DIR"), "{error}");
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = place.fails(&["--xds", &address]).await;
    assert!(
        error.starts_with(&format!("error: --xds {address}: Address already in use")),
        "{error}"
    );
    assert!(error.ends_with("or choose a free port with :0"), "{error}");
    assert!(
        !Path::new("policies").exists(),
        "nothing is made where the test runs"
    );
}

#[tokio::test]
async fn status_explains_what_answers_or_does_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = failure(status(address).await);
    assert_eq!(
        error,
        format!(
            "error: nothing listens on {address}; start headgate run, or give its admin address \
             with --admin HOST:PORT"
        )
    );
    let waiting = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = waiting.local_addr().unwrap();
    let answer = async {
        let (mut stream, _) = waiting.accept().await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        let text = "not ready: waiting for the API server\n";
        let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-length:";
        let answer = format!("{head} {}\r\n\r\n{text}", text.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream
    };
    let (output, _open) = tokio::join!(status(address), answer);
    assert_eq!(
        failure(output),
        format!(
            "error: {address} answered 503 Service Unavailable: not ready: waiting for the API \
             server"
        )
    );
    // The xDS port instead of the admin port is the most probable mistake of users.
    let running = Place::new();
    let running = running.run(&[]).await;
    let error = failure(status(running.xds).await);
    assert!(
        error.contains("is no Headgate admin address; headgate run prints it when it starts"),
        "{error}"
    );
    let table = String::from_utf8(status(running.admin).await.stdout).unwrap();
    assert!(
        table.starts_with("No policies.\n\nNo proxies. headgate inject"),
        "{table}"
    );
}
