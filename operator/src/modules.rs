//! Serves the filter's module over HTTP, by its hash: for control planes that tell proxies a URL (Istio,
//! Envoy Gateway). Proxies that Headgate programs itself load a file.
//!
//! The path names the content, so an answer never changes and may be kept forever. During an upgrade of the operator,
//! clients ask each replica for the module of the other, too. They are told to try again: Istio's agent does on 5xx, and
//! on nothing else. A client is only ever given bytes that were read from a file in chunks: what a connection costs
//! doesn't depend on the module, nor on how slowly it is read.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::metrics::{Metrics, ServeResult};
use crate::xds::addresses::Addresses;
use crate::xds::module::Module;

/// What all paths start with; the module's SHA-256 in hex and `.wasm` follow.
const PREFIX: &str = "/modules/";
/// Bytes read and sent at once.
const CHUNK: usize = 64 << 10;
/// Pause after a failed `accept`, which means that the process is out of files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bounds of the module server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleLimits {
    /// Connections open at once; one more is closed at once.
    pub connections: usize,
    /// Connections from one address (of IPv6: one /64).
    pub connections_per_address: usize,
    /// Time for a request's head.
    pub head: Duration,
    /// Longest life of a connection: a client that doesn't read is gone then.
    pub connection: Duration,
}

impl Default for ModuleLimits {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_per_address: 64,
            head: Duration::from_secs(5),
            connection: Duration::from_secs(120),
        }
    }
}

/// The module server.
#[derive(Debug, Clone)]
pub struct ModuleServer {
    modules: watch::Receiver<Arc<Module>>,
    metrics: Metrics,
    limits: ModuleLimits,
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The path under which the module with this SHA-256 (hex) is served.
#[must_use]
pub fn path(sha256: &str) -> String {
    format!("{PREFIX}{sha256}.wasm")
}

impl ModuleServer {
    /// Serves the newest of `modules`.
    #[must_use]
    pub fn new(
        modules: watch::Receiver<Arc<Module>>,
        metrics: Metrics,
        limits: ModuleLimits,
    ) -> Self {
        Self {
            modules,
            metrics,
            limits,
        }
    }

    /// Serves until `shutdown` holds `true`. Connections that are open then end with the process.
    pub async fn serve(self, listener: TcpListener, mut shutdown: watch::Receiver<bool>) {
        tokio::select! {
            () = self.accept(listener) => {}
            _ = shutdown.wait_for(|stop| *stop) => {}
        }
    }

    async fn accept(self, listener: TcpListener) {
        let addresses =
            Addresses::new(self.limits.connections, self.limits.connections_per_address);
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!("module address: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(slot) = addresses.enter(peer.ip()) else {
                self.metrics.modules.served(ServeResult::Refused);
                debug!(%peer, "a connection to the module address was turned away at a limit");
                continue;
            };
            let server = self.clone();
            tokio::spawn(async move {
                server.connection(stream).await;
                drop(slot);
            });
        }
    }

    async fn connection(self, stream: TcpStream) {
        let life = self.limits.connection;
        let head = self.limits.head;
        let service = service_fn(move |request| {
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.answer(&request).await) }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(stream), service);
        match tokio::time::timeout(life, serving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!("module connection: {error}"),
            Err(_) => debug!("module connection: closed after {} s", life.as_secs()),
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let (result, response) = self.respond(request).await;
        self.metrics.modules.served(result);
        response
    }

    async fn respond(&self, request: &Request<Incoming>) -> (ServeResult, Response<Body>) {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD only\n");
            let allow = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(header::ALLOW, allow);
            return (ServeResult::Refused, response);
        }
        let name = request.uri().path().strip_prefix(PREFIX);
        let sha256 = name.and_then(|name| name.strip_suffix(".wasm"));
        let module = Arc::clone(&self.modules.borrow());
        match sha256 {
            Some(sha256) if sha256 == module.sha256 => {}
            Some(sha256) if is_sha256(sha256) => {
                let mut response = elsewhere(&module, StatusCode::SERVICE_UNAVAILABLE);
                let soon = HeaderValue::from_static("1");
                response.headers_mut().insert(header::RETRY_AFTER, soon);
                return (ServeResult::NotFound, response);
            }
            _ => {
                let response = elsewhere(&module, StatusCode::NOT_FOUND);
                return (ServeResult::NotFound, response);
            }
        }
        let tag = format!("\"{}\"", module.sha256);
        if is_known(request, &tag) {
            let mut response = Response::new(empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return (ServeResult::Ok, described(response, &tag));
        }
        let file = match File::open(&module.path).await {
            Ok(file) => file,
            Err(error) => {
                warn!("filter module {}: {error}", module.path.display());
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return (ServeResult::NotFound, elsewhere(&module, status));
            }
        };
        let body = match *request.method() {
            Method::HEAD => empty(),
            _ => BodyExt::boxed_unsync(StreamBody::new(chunks(file, module.bytes))),
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, module.bytes.into());
        let wasm = HeaderValue::from_static("application/wasm");
        headers.insert(header::CONTENT_TYPE, wasm);
        (ServeResult::Ok, described(response, &tag))
    }
}

/// An answer without the module that was asked for.
fn elsewhere(module: &Module, status: StatusCode) -> Response<Body> {
    let newest = path(&module.sha256);
    text(
        status,
        &format!("no such module here; the current one is {newest}\n"),
    )
}

/// Whether this is a digest in hex, of whatever module.
fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether the client has what `tag` names.
fn is_known(request: &Request<Incoming>, tag: &str) -> bool {
    let known = request.headers().get_all(header::IF_NONE_MATCH);
    known
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|entry| entry.trim().trim_start_matches("W/"))
        .any(|entry| entry == tag || entry == "*")
}

fn described(mut response: Response<Body>, tag: &str) -> Response<Body> {
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(header::CACHE_CONTROL, forever);
    response
}

fn empty() -> Body {
    Full::default()
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn text(status: StatusCode, message: &str) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(message.as_bytes()));
    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// The first `bytes` of a file, piece by piece. One that is cut short ends with an error, so that a client doesn't take
/// it for whole.
fn chunks(file: File, bytes: u64) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
    stream::try_unfold((file, bytes), |(mut file, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let want = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        let mut chunk = vec![0; want];
        file.read_exact(&mut chunk).await?;
        let frame = Frame::data(Bytes::from(chunk));
        Ok(Some((frame, (file, left - want as u64))))
    })
}
