//! A real Envoy on free ports, with a bootstrap as `headgate bootstrap` writes it.
#![allow(dead_code, unreachable_pub, missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use headgate_controller::bootstrap::{Bootstrap, ConfigSource, Pod, Uploads};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::common::{self, envoy, get};

/// An Envoy that ends with the test.
pub struct Envoy {
    process: Child,
    pub dir: TempDir,
    pub admin: SocketAddr,
    pub listener: SocketAddr,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("Envoy's log, newest first:\n{}", end.join("\n"));
        }
    }
}

pub fn bootstrap(source: ConfigSource, upstream: SocketAddr) -> Bootstrap {
    Bootstrap {
        listen: "127.0.0.1:0".parse().unwrap(),
        upstream: upstream.to_string().parse().unwrap(),
        upstream_http2: false,
        outbound: None,
        source,
        admin: "127.0.0.1:0".parse().unwrap(),
        stats: None,
        target: Some(common::SEARCH.parse().unwrap()),
        pod: Pod::default(),
        node_id: "edge-1".into(),
        access_log: None,
        uploads: Uploads::default(),
        admission: None,
    }
}

/// Checks a bootstrap with `envoy --mode validate`. The error is Envoy's log.
pub fn validate(bootstrap: &Bootstrap, dir: &Path) -> Result<(), String> {
    let file = dir.join("validate.yaml");
    fs::write(&file, bootstrap.to_yaml().unwrap()).unwrap();
    let output = Command::new(envoy())
        .args(["--mode", "validate", "--disable-hot-restart", "-c"])
        .arg(&file)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() && !log.contains("deprecated") {
        Ok(())
    } else {
        Err(log)
    }
}

impl Envoy {
    pub async fn start(bootstrap: &Bootstrap) -> Self {
        Self::start_from(&bootstrap.to_yaml().unwrap()).await
    }

    pub async fn start_from(bootstrap: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("envoy.yaml"), bootstrap).unwrap();
        let log = fs::File::create(path("log")).unwrap();
        let process = Command::new(envoy())
            .arg("-c")
            .arg(path("envoy.yaml"))
            .args([
                "--concurrency",
                "1",
                "--disable-hot-restart",
                "--admin-address-path",
            ])
            .arg(path("admin"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut envoy = Self {
            process,
            dir,
            admin: unknown,
            listener: unknown,
        };
        let file = envoy.dir.path().join("admin");
        envoy.admin = poll("the admin address is written", async || {
            fs::read_to_string(&file).ok()?.parse().ok()
        })
        .await;
        envoy.listener = poll("the listener is ready", async || {
            let (200, _) = get(envoy.admin, "/ready").await.ok()? else {
                return None;
            };
            let (_, body) = get(envoy.admin, "/listeners?format=json").await.ok()?;
            let json: Value =
                serde_json::from_str(body.get(body.find('{')?..=body.rfind('}')?)?).ok()?;
            let address = &json["listener_statuses"][0]["local_address"]["socket_address"];
            let port = u16::try_from(address["port_value"].as_u64()?).ok()?;
            Some(SocketAddr::from(([127, 0, 0, 1], port)))
        })
        .await;
        envoy
    }

    /// Returns the status code of a request through the listener.
    pub async fn request(&self) -> u16 {
        get(self.listener, "/q/fast").await.unwrap().0
    }

    /// Returns a counter or gauge of Envoy, or `None` while it doesn't exist.
    pub async fn stat(&self, name: &str) -> Option<u64> {
        let (_, body) = get(self.admin, "/stats").await.ok()?;
        let line = body
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))?;
        line.trim().parse().ok()
    }
}

/// Polls `probe` until it returns a value, because other processes send no events about their
/// state.
pub async fn poll<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            if let Some(answer) = probe().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited
        .await
        .unwrap_or_else(|_| panic!("not within 30 s: {what}"))
}

/// Starts a backend that answers every request with 200.
pub async fn backend() -> SocketAddr {
    backend_at("127.0.0.1:0").await
}

/// Starts a backend at `address` that answers every request with 200.
pub async fn backend_at(address: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                while let Ok(1..) = stream.read(&mut buffer).await {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}
