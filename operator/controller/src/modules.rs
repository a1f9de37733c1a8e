//! Serves the filter modules over HTTP, by their hashes, for control planes whose proxies load
//! modules from a URL (Istio, Envoy Gateway). Proxies that Headgate programs itself load a file.
//!
//! The path identifies the content, so a response never changes and may be cached forever. During
//! an upgrade of the operator, replicas also get requests for the module of the other version. The
//! response is then a 5xx status, because Istio's agent retries only on 5xx. A module is read from
//! its file in chunks, so the memory of a connection depends neither on the size of the module nor
//! on the speed of the client.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::middleware::map_response;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::{HeaderMap, StatusCode, Uri, header};
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::io::ReaderStream;
use tracing::warn;

use crate::metrics::{Metrics, ServeResult};
use headgate_xds::http_server::{self, HttpLimits};
use headgate_xds::module::{Kind, Module, Modules};

/// The prefix of all paths. The module's SHA-256 in hex and `.wasm` or `.so` follow.
pub const PREFIX: &str = "/modules/";
/// The size of a chunk, in bytes.
const CHUNK: usize = 64 << 10;

/// Limits of the module address.
pub const LIMITS: HttpLimits = HttpLimits {
    connections: 256,
    connections_per_address: 64,
    waiting: 0,
    head: Duration::from_secs(5),
    connection: Duration::from_secs(120),
    keep_alive: true,
};

/// Returns the path of a module.
pub fn path(module: &Module) -> String {
    format!("{PREFIX}{}.{}", module.sha256, module.kind().extension())
}

/// Serves the newest of `modules` until `shutdown` holds `true`. Connections still open then end
/// with the process.
pub async fn serve(
    listener: TcpListener,
    modules: watch::Receiver<Arc<Modules>>,
    metrics: Metrics,
    limits: HttpLimits,
    shutdown: watch::Receiver<bool>,
) {
    let counts = metrics.clone();
    let count = map_response(move |response: Response| {
        counts.modules.served(match response.status() {
            StatusCode::OK | StatusCode::NOT_MODIFIED => ServeResult::Ok,
            StatusCode::METHOD_NOT_ALLOWED => ServeResult::Refused,
            _ => ServeResult::NotFound,
        });
        async { response }
    });
    let app = Router::new()
        .fallback_service(get(module).with_state(modules))
        .layer(count);
    let turned_away = || metrics.modules.served(ServeResult::Refused);
    http_server::serve(listener, "module", limits, None, app, turned_away, shutdown).await;
}

async fn module(
    State(modules): State<watch::Receiver<Arc<Modules>>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let modules = Arc::clone(&modules.borrow());
    let Some(module) = modules.iter().find(|module| path(module) == uri.path()) else {
        let here: Vec<String> = modules.iter().map(path).collect();
        let elsewhere = format!("no such module here; available: {}\n", here.join(" and "));
        if !is_of_a_module(uri.path()) {
            return (StatusCode::NOT_FOUND, elsewhere).into_response();
        }
        let soon = [(header::RETRY_AFTER, "1")];
        return (StatusCode::SERVICE_UNAVAILABLE, soon, elsewhere).into_response();
    };
    let tag = format!("\"{}\"", module.sha256);
    let is_known = is_known(&headers, &tag);
    let forever = "public, max-age=31536000, immutable".to_owned();
    let described = [(header::ETAG, tag), (header::CACHE_CONTROL, forever)];
    if is_known {
        return (StatusCode::NOT_MODIFIED, described).into_response();
    }
    let file = match File::open(&module.path).await {
        Ok(file) => file,
        Err(error) => {
            warn!("filter module {}: {error}", module.path.display());
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    // If the file is truncated, the client gets fewer bytes than announced, and rejects the module
    // as incomplete.
    let length = [(header::CONTENT_LENGTH, module.bytes.to_string())];
    let kind = match module.kind() {
        Kind::Wasm => "application/wasm",
        Kind::Native => "application/octet-stream",
    };
    let kind = [(header::CONTENT_TYPE, kind)];
    let content = ReaderStream::with_capacity(file.take(module.bytes), CHUNK);
    (described, length, kind, Body::from_stream(content)).into_response()
}

/// Whether this could be the path of a module, possibly on another replica.
fn is_of_a_module(path: &str) -> bool {
    let name = path.strip_prefix(PREFIX).unwrap_or_default();
    let (digest, extension) = name.split_once('.').unwrap_or_default();
    let hex = |b| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    let kinds = [Kind::Wasm, Kind::Native];
    digest.len() == 64
        && digest.bytes().all(hex)
        && kinds.iter().any(|kind| kind.extension() == extension)
}

/// Whether the client already has the content of `tag`.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    known
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|entry| entry.trim().trim_start_matches("W/"))
        .any(|entry| entry == tag || entry == "*")
}
