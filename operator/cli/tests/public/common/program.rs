//! The program `headgate`, and an API server for it.
#![allow(unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

/// The path at which tokens of a ServiceAccount are created. Operators accept these tokens.
pub const TOKEN: &str = "/api/v1/namespaces/headgate-system/serviceaccounts/headgate-metrics/token";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/headgate-system/endpointslices";

/// Returns a command that runs `program` in the repository, without a cluster and modules of the
/// user.
pub fn command(program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .stdin(Stdio::null())
        .env("HOME", "/nonexistent")
        .env_remove("HEADGATE_NATIVE")
        .env_remove("HEADGATE_WASM")
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST");
    command
}

/// Runs `headgate`.
pub fn headgate(arguments: &[&str]) -> Output {
    let mut command = command(env!("CARGO_BIN_EXE_headgate"), arguments);
    command.output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns an address at which nothing listens, because its listener is closed.
pub fn gone() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// An API server with responses by path. Requests for operators' reports must have the token. Any
/// other path gets 404.
pub struct Cluster {
    _folder: TempDir,
    pub kubeconfig: PathBuf,
}

impl Cluster {
    pub fn new(answers: BTreeMap<&str, Value>) -> Self {
        Self::forwarding(answers, |_, _| ())
    }

    /// Starts an API server that passes the connections for ports of Pods to `forward`, each with
    /// its path.
    pub fn forwarding(
        answers: BTreeMap<&str, Value>,
        forward: impl Fn(&str, TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers: BTreeMap<String, String> = answers
            .into_iter()
            .map(|(path, answer)| (path.to_owned(), answer.to_string()))
            .collect();
        let shared = Arc::new((answers, forward));
        // The threads run until the test's process ends.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer(stream, &shared.0, &shared.1));
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{
                "name": "here", "context": {"cluster": "c", "user": "u", "namespace": "shop"},
            }],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        Self {
            _folder: folder,
            kubeconfig,
        }
    }

    pub fn ask(&self, arguments: &[&str]) -> Output {
        let of_cluster = ["--kubeconfig", self.kubeconfig.to_str().unwrap()];
        headgate(&[arguments, &of_cluster].concat())
    }
}

fn answer(
    mut stream: TcpStream,
    answers: &BTreeMap<String, String>,
    forward: &dyn Fn(&str, TcpStream),
) {
    let mut start = [0; 4096];
    let length = stream.peek(&mut start).unwrap();
    let start = String::from_utf8_lossy(&start[..length]);
    let target = start.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    if path.ends_with("/portforward") {
        return forward(target, stream);
    }
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let head: Vec<String> = { reader.by_ref().lines().map_while(Result::ok) }
        .take_while(|line| !line.is_empty())
        .collect();
    let header = |name: &str| head.iter().find_map(|line| line.strip_prefix(name));
    let length = header("content-length: ").map_or(0, |n| n.parse().unwrap());
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).unwrap();
    let missing = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404,
        "reason": "NotFound", "message": "the server could not find the requested resource",
    });
    let is_shown =
        !path.ends_with("/proxy/status") || header("x-headgate-token: ") == Some("t0ken");
    let (code, body) = match answers.get(path).filter(|_| is_shown) {
        Some(body) => ("200 OK", body.clone()),
        None => ("404 Not Found", missing.to_string()),
    };
    let _ = write!(
        stream,
        "HTTP/1.1 {code}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
}

pub fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

pub fn token() -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
        "spec": {"audiences": ["headgate.dev"]},
        "status": {"token": "t0ken", "expirationTimestamp": "2026-03-01T12:10:00Z"},
    })
}
