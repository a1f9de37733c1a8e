//! Tests of Envoy's spans, which contain the filter's decisions.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use headgate_tests::backend::BackendConfig;
use headgate_tests::bootstrap::{Bootstrap, socket};
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use serde_json::{Value, json};

use crate::refusals::one_of_each;

/// A collector of Zipkin spans in JSON.
struct Collector {
    addr: SocketAddr,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let spans = Arc::default();
        let to = Arc::clone(&spans);
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let to = Arc::clone(&to);
                // An error here means that Envoy has closed its end of the connection, which is no
                // failure.
                thread::spawn(move || Self::receive(connection, &to).unwrap_or(()));
            }
        });
        Ok(Self { addr, spans })
    }

    /// Answers each request, and returns when the connection ends.
    fn receive(connection: TcpStream, to: &Mutex<Vec<Value>>) -> Result<()> {
        let mut reader = BufReader::new(connection);
        while let Some(body) = read_body(&mut reader)? {
            let spans: Vec<Value> = serde_json::from_slice(&body)?;
            to.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(spans);
            let answer = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
            reader.get_mut().write_all(answer)?;
        }
        Ok(())
    }

    /// Returns the tags of the request for `path`.
    fn tags(&self, path: &str) -> Result<Value> {
        until(&format!("the span of {path}"), || {
            let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
            let of_path = |span: &&Value| {
                let url = span["tags"]["http.url"].as_str();
                url.is_some_and(|url| url.ends_with(path))
            };
            let found = spans.iter().find(of_path);
            found
                .map(|span| span["tags"].clone())
                .ok_or_else(|| format!("{spans:?}"))
        })
    }
}

/// Returns the body of the next request, which is sent in chunks, or `None` at the end of the
/// connection.
fn read_body(reader: &mut BufReader<TcpStream>) -> Result<Option<Vec<u8>>> {
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
    }
    let mut body = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim_end(), 16)
            .with_context(|| format!("{line:?} is no size of a chunk"))?;
        // CRLF follows the data of a chunk.
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk)?;
        if size == 0 {
            return Ok(Some(body));
        }
        body.extend_from_slice(&chunk[..size]);
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
    // With this setting, each span is sent when it ends.
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
    let backend = BackendConfig::constant(1_000, Duration::from_millis(1));
    let rig = Rig::builder(backend, policy::queue_only(1, 1))
        .native()
        .change(move |bootstrap| trace(bootstrap, addr))
        .start()?;
    one_of_each(&rig)?;
    for (path, expected) in [
        (
            "/held",
            &[("decision", "admitted"), ("queue_wait_ms", "0")][..],
        ),
        ("/waiting", &[("decision", "admitted")][..]),
        (
            "/refused",
            &[
                ("decision", "refused"),
                ("reason", "queue_full"),
                (
                    "refused",
                    "policy=default/search; type=default; reason=queue_full",
                ),
            ][..],
        ),
    ] {
        let tags = collector.tags(path)?;
        for (name, value) in expected.iter().chain(&[("type", "default")]) {
            assert_eq!(tags[format!("headgate.{name}")], **value, "{path}: {tags}");
        }
        let refused = path == "/refused";
        assert_eq!(!tags["headgate.refused"].is_null(), refused, "{tags}");
        assert_eq!(tags["headgate.queue_wait_ms"].is_null(), refused, "{tags}");
    }
    rig.wait_until_idle()
}
