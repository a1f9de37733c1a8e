//! Spans of Envoy with the filter's decisions.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::bootstrap::{Bootstrap, socket};
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use serde_json::json;

/// A collector of Zipkin's spans in JSON.
struct Collector {
    addr: SocketAddr,
    received: Arc<Mutex<String>>,
}

impl Collector {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let received = Arc::new(Mutex::new(String::new()));
        let to = Arc::clone(&received);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let to = Arc::clone(&to);
                thread::spawn(move || Self::receive(connection, &to));
            }
        });
        Ok(Self { addr, received })
    }

    /// Answers each request, and ends with the connection.
    fn receive(mut connection: TcpStream, to: &Mutex<String>) -> std::io::Result<()> {
        let mut buffer = [0; 1 << 16];
        loop {
            let length = connection.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            let part = String::from_utf8_lossy(&buffer[..length]);
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            to.push_str(&part);
            // The end of a body in chunks.
            if to.ends_with("0\r\n\r\n") {
                connection.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")?;
            }
        }
    }

    /// Returns the span of the request for `path`.
    fn span(&self, path: &str) -> Result<String> {
        let end = format!("{path}\"");
        until(&format!("the span of {path}"), || {
            let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
            let mut spans = received.split("\"traceId\"");
            let found = spans.find(|span| span.contains(&end));
            found.map(str::to_owned).ok_or_else(|| received.clone())
        })
    }
}

fn trace(bootstrap: &mut Bootstrap, collector: SocketAddr) -> Result<()> {
    bootstrap.manager()?["tracing"] = json!({
        "provider": {
            "name": "envoy.tracers.zipkin",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
                "collector_cluster": "collector",
                "collector_endpoint": "/api/v2/spans",
                "collector_endpoint_version": "HTTP_JSON",
            },
        },
        "custom_tags": [{"tag": "headgate.refused", "value": "%RESP(X-HEADGATE-REFUSED)%"}],
    });
    let endpoint = json!({"address": socket("127.0.0.1", collector.port())});
    let root = bootstrap.root();
    let clusters = root["static_resources"]["clusters"].as_array_mut();
    clusters
        .context("the bootstrap has no clusters")?
        .push(json!({
            "name": "collector",
            "type": "STATIC",
            "load_assignment": {
                "cluster_name": "collector",
                "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
            },
        }));
    // Each span is sent when it ends.
    let layer = json!({
        "name": "spans",
        "static_layer": {"tracing": {"zipkin": {"min_flush_spans": 1}}},
    });
    match root["layered_runtime"]["layers"].as_array_mut() {
        Some(layers) => layers.push(layer),
        None => root["layered_runtime"] = json!({"layers": [layer]}),
    }
    Ok(())
}

#[test]
fn spans_say_what_was_decided() -> Result<()> {
    let collector = Collector::start()?;
    let addr = collector.addr;
    let service = ServiceType::constant("/", Duration::from_millis(1));
    let backend = BackendConfig::new(1_000, vec![service]);
    let rig = Rig::builder(backend, policy::queue_only(1, 1))
        .native()
        .change(move |bootstrap| trace(bootstrap, addr))
        .start()?;
    let held = rig.occupy("/held", 1)?;
    let waiting = rig.enqueue("/waiting", 1)?;
    assert_eq!(rig.get("/refused")?.status, 503);
    rig.backend.release();
    for request in held.into_iter().chain(waiting) {
        assert_eq!(request.answer()?.status, 200);
    }
    for (path, tags) in [
        (
            "/held",
            &["decision\":\"admitted", "queue_wait_ms\":\"0"][..],
        ),
        (
            "/waiting",
            &["decision\":\"admitted", "queue_wait_ms\":\""][..],
        ),
        (
            "/refused",
            &[
                "decision\":\"refused",
                "reason\":\"queue_full",
                "refused\":\"policy=default/search; type=default; reason=queue_full",
            ][..],
        ),
    ] {
        let span = collector.span(path)?;
        for tag in tags.iter().chain(&["type\":\"default"]) {
            let tag = format!("\"headgate.{tag}");
            assert!(span.contains(&tag), "{path}: no {tag} in {span}");
        }
        assert_eq!(
            span.contains("headgate.refused"),
            path == "/refused",
            "{span}"
        );
    }
    rig.wait_until_idle()
}
