//! Tests of the module server over the wire: its responses and its limits.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use headgate_controller::metrics::{Metrics, ServeResult};
use headgate_controller::modules::{LIMITS, path, serve};
use headgate_xds::http_server::HttpLimits;
use headgate_xds::module::{Module, Modules};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

struct World {
    dir: TempDir,
    modules: watch::Sender<Arc<Modules>>,
    address: SocketAddr,
    _shutdown: watch::Sender<bool>,
    metrics: Metrics,
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Installs a module with a custom section of `bytes` bytes, all of them `fill`.
fn install(dir: &TempDir, fill: u8, bytes: usize) -> Module {
    let source = dir.path().join("m.wasm");
    let mut code = b"\0asm\x01\0\0\0".to_vec();
    // A custom section has an id, its size as LEB128, an empty name, and then any bytes.
    let size = bytes + 1;
    code.push(0);
    let mut left = size;
    loop {
        let low = u8::try_from(left & 0x7f).unwrap();
        left >>= 7;
        if left == 0 {
            code.push(low);
            break;
        }
        code.push(low | 0x80);
    }
    code.push(0);
    code.extend(std::iter::repeat_n(fill, bytes));
    fs::write(&source, code).unwrap();
    Module::install(&source, &dir.path().join("modules")).unwrap()
}

impl World {
    async fn start(limits: HttpLimits, bytes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let modules = watch::Sender::new(Arc::new(install(&dir, b'1', bytes).into()));
        let shutdown = watch::Sender::new(false);
        let metrics = Metrics::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(
            listener,
            modules.subscribe(),
            metrics.clone(),
            limits,
            shutdown.subscribe(),
        ));
        Self {
            dir,
            modules,
            address,
            _shutdown: shutdown,
            metrics,
        }
    }

    async fn ask(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{request}\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        let split = all.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(all[..split].to_vec()).unwrap();
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head,
            body: all[split + 4..].to_vec(),
        }
    }

    fn current(&self) -> Module {
        self.modules.borrow().wasm.clone()
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

#[tokio::test]
async fn a_module_is_served_by_its_hash() {
    let world = World::start(LIMITS, 300_000).await;
    let module = world.current();
    let path = path(&module);
    let got = world.ask(&format!("GET {path} HTTP/1.1")).await;
    assert_eq!(got.status, 200);
    assert_eq!(sha256(&got.body), module.sha256);
    let length = module.bytes.to_string();
    let tag = format!("\"{}\"", module.sha256);
    assert_eq!(got.header("content-length"), Some(length.as_str()));
    assert_eq!(got.header("content-type"), Some("application/wasm"));
    assert_eq!(got.header("etag"), Some(tag.as_str()));
    assert!(got.header("cache-control").unwrap().contains("immutable"));

    let head = world.ask(&format!("HEAD {path} HTTP/1.1")).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), Some(length.as_str()));
    for known in [&tag, &format!("\"x\", W/{tag}"), "*"] {
        let same = world
            .ask(&format!("GET {path} HTTP/1.1\r\nIf-None-Match: {known}"))
            .await;
        assert_eq!((same.status, same.body.len()), (304, 0), "{known}");
    }
    for wrong in [
        "/",
        "/modules/",
        "/modules/0.wasm",
        &path[..path.len() - 1],
        "/modules/../m.wasm",
    ] {
        let missing = world.ask(&format!("GET {wrong} HTTP/1.1")).await;
        assert_eq!(missing.status, 404, "{wrong}");
        let says = String::from_utf8(missing.body).unwrap();
        assert_eq!(says, format!("no such module here; available: {path}\n"));
    }
    let refused = world.ask(&format!("POST {path} HTTP/1.1")).await;
    assert_eq!(refused.status, 405);
    assert_eq!(refused.header("allow"), Some("GET,HEAD"));
}

/// Istio's agent retries only after 5xx, so the response to a request for another replica's module
/// is 503.
#[tokio::test]
async fn a_request_for_the_module_of_another_replica_gets_503() {
    let world = World::start(LIMITS, 10).await;
    let old = world.current();
    let new = install(&world.dir, b'2', 10);
    let ask = async |module: &Module| {
        let path = path(module);
        world.ask(&format!("GET {path} HTTP/1.1")).await
    };
    let not_yet = ask(&new).await;
    assert_eq!(not_yet.status, 503);
    assert_eq!(not_yet.header("retry-after"), Some("1"));
    world.modules.send_replace(Arc::new(new.clone().into()));
    let got = ask(&new).await;
    assert_eq!((got.status, sha256(&got.body)), (200, new.sha256.clone()));
    assert_eq!(ask(&old).await.status, 503);
}

#[tokio::test]
async fn native_modules_are_served_beside_the_others() {
    let world = World::start(LIMITS, 10).await;
    let source = world.dir.path().join("libheadgate.so");
    fs::write(&source, b"\x7fELF and the rest").unwrap();
    let native = Module::install(&source, &world.dir.path().join("modules")).unwrap();
    let at = path(&native);
    assert!(at.ends_with(".so"), "{at}");
    assert_eq!(world.ask(&format!("GET {at} HTTP/1.1")).await.status, 503);
    let modules = Modules {
        native: Some(native),
        ..world.current().into()
    };
    world.modules.send_replace(Arc::new(modules));
    let got = world.ask(&format!("GET {at} HTTP/1.1")).await;
    assert_eq!(
        (got.status, got.body),
        (200, b"\x7fELF and the rest".to_vec())
    );
    let wasm = path(&world.current());
    assert_eq!(world.ask(&format!("GET {wasm} HTTP/1.1")).await.status, 200);
    let missing = world.ask("GET /modules/ HTTP/1.1").await;
    let says = String::from_utf8(missing.body).unwrap();
    assert_eq!(
        says,
        format!("no such module here; available: {wasm} and {at}\n")
    );
}

#[tokio::test]
async fn downloads_are_bounded_in_number_and_time() {
    // The module is larger than the sockets' buffers.
    const BYTES: usize = 16 << 20;
    let limits = HttpLimits {
        connections_per_address: 2,
        connection: Duration::from_secs(2),
        ..LIMITS
    };
    let world = World::start(limits, BYTES).await;
    let path = path(&world.current());
    // Two clients send requests without reading the responses, so the sockets' buffers fill up.
    let mut silent = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        // The first byte of the response shows that the server sends it.
        stream.read_exact(&mut [0]).await.unwrap();
        silent.push(stream);
    }
    let mut third = TcpStream::connect(world.address).await.unwrap();
    let mut rest = Vec::new();
    let ended = third.read_to_end(&mut rest).await;
    assert!(
        ended.is_err() || rest.is_empty(),
        "turned away without an answer"
    );
    assert_eq!(world.metrics.modules.count(ServeResult::Refused), 1);
    // The server closes these connections at their time limit, and serves other clients again.
    for mut stream in silent {
        let mut sink = Vec::new();
        let _ = stream.read_to_end(&mut sink).await;
    }
    let got = loop {
        let mut stream = TcpStream::connect(world.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes()).await;
        let mut all = Vec::new();
        if stream.read_to_end(&mut all).await.is_ok() && all.len() > BYTES {
            break all;
        }
    };
    assert!(got.starts_with(b"HTTP/1.1 200 OK"));
}
