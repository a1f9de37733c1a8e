//! Serves requests over HTTP/1.1 and HTTP/2 without TLS on one port.
//!
//! hyper drops the future that answers a request when its connection closes or its stream is reset.
//! The dropped [`Ticket`](super::station::Ticket) then leaves the station. So the station notices a
//! client that leaves.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header,
};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;

use super::FaultKind;
use super::station::{Served, Station, Ticket};

const SERVICE_US: HeaderName = HeaderName::from_static("x-backend-service-us");
const WAIT_US: HeaderName = HeaderName::from_static("x-backend-wait-us");
const SEQ: HeaderName = HeaderName::from_static("x-seq");
/// The request header with the quality that the proxy asks for.
const QUALITY: HeaderName = HeaderName::from_static("x-headgate-quality");
/// The response header that repeats [`QUALITY`].
const QUALITY_HEARD: HeaderName = HeaderName::from_static("x-backend-quality");

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// An empty gRPC message: not compressed, length 0.
const EMPTY_MESSAGE: &[u8] = &[0; 5];
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
/// A server-sent event.
const EVENT: &[u8] = b"data: ok\n\n";

/// Closes the connection (with HTTP/2: resets the stream) without an answer.
#[derive(Debug, thiserror::Error)]
#[error("reset on order")]
struct Reset;

/// Accepts connections until it is cancelled.
pub(super) async fn serve(listener: TcpListener, station: Arc<Station>, report_service: bool) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        station.count_connection();
        let station = Arc::clone(&station);
        tokio::spawn(async move {
            let service =
                service_fn(|request| answer(Arc::clone(&station), request, report_service));
            let mut server = auto::Builder::new(TokioExecutor::new());
            server.http2().max_concurrent_streams(100_000);
            // An error here is a client that has left. The ticket handles this case.
            let _ = server
                .serve_connection_with_upgrades(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    station: Arc<Station>,
    mut request: Request<Incoming>,
    report_service: bool,
) -> Result<Response<Reply>, Reset> {
    if request.headers().contains_key(header::UPGRADE) && request.version() == Version::HTTP_11 {
        station.count_upgrade();
        return Ok(upgrade(&mut request));
    }
    let path = request.uri().path().to_owned();
    let Some(kind) = station.classify(&path) else {
        return Ok(plain(StatusCode::NOT_FOUND, "no service here\n"));
    };
    let parts = request.uri().query().and_then(parts);
    let grpc = is_grpc(request.headers());
    let fixed = number(request.headers(), &SERVICE_US).map(Duration::from_micros);
    let seq = number(request.headers(), &SEQ);
    let quality = request.headers().get(&QUALITY).cloned();
    let head_only = request.method() == Method::HEAD;

    // The service begins after the whole request has arrived, so a request that is cut off in its
    // body never enters the station.
    let Ok(body) = request.into_body().collect().await else {
        return Err(Reset);
    };
    let body = body.to_bytes();
    let mut ticket = station.enter(kind, &path, fixed, seq);

    if let Some(left) = parts {
        let parts = Parts {
            station,
            kind,
            path,
            fixed,
            ticket,
            left,
            grpc,
        };
        let mut response = Response::new(Reply::Late(parts.next()));
        let streamed = if grpc { GRPC } else { EVENTS };
        (response.headers_mut()).insert(header::CONTENT_TYPE, streamed);
        return Ok(response);
    }
    let served = ticket.served().await.ok_or(Reset)?;
    let mut response = match &ticket.fault {
        Some(fault) if fault.kind == FaultKind::Reset => return Err(Reset),
        Some(fault) => plain(status(fault.status), "failed on order\n"),
        None if grpc => grpc_ok(body),
        None if body.is_empty() => plain(StatusCode::OK, if head_only { "" } else { "ok\n" }),
        None => Response::new(Reply::Now {
            data: Some(body),
            trailers: None,
        }),
    };
    if report_service {
        add_times(response.headers_mut(), served);
    }
    if let Some(quality) = quality {
        response.headers_mut().insert(QUALITY_HEARD, quality);
    }
    Ok(response)
}

/// Accepts any `Upgrade` and echoes all its data.
fn upgrade(request: &mut Request<Incoming>) -> Response<Reply> {
    let protocol = request.headers().get(header::UPGRADE).cloned();
    let on_upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        if let Ok(upgraded) = on_upgrade.await {
            let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    });
    let mut response = Response::new(Reply::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::UPGRADE, protocol);
    }
    response
}

/// Returns the number of parts of the response's body, from `stream=N` in the query. Returns `None`
/// if the query doesn't ask for a streamed response.
fn parts(query: &str) -> Option<usize> {
    let number = query.split('&').find_map(|p| p.strip_prefix("stream="))?;
    number.parse().ok().filter(|parts| *parts > 0)
}

/// The remaining body of a streamed response: server-sent events, or the messages of a gRPC call.
/// Each part takes a service of its own, and is sent when this service ends.
struct Parts {
    station: Arc<Station>,
    kind: usize,
    path: String,
    fixed: Option<Duration>,
    ticket: Ticket,
    left: usize,
    grpc: bool,
}

impl Parts {
    /// Returns the next part and the rest of the body.
    fn next(mut self) -> Part {
        Box::pin(async move {
            self.ticket.served().await?;
            self.left -= 1;
            let (data, trailers) = if self.grpc {
                (EMPTY_MESSAGE, Some(grpc_trailers()))
            } else {
                (EVENT, None)
            };
            let rest = if self.left > 0 {
                self.ticket = (self.station).enter(self.kind, &self.path, self.fixed, None);
                Reply::Late(self.next())
            } else {
                Reply::Now {
                    data: None,
                    trailers,
                }
            };
            Some((Bytes::from_static(data), rest))
        })
    }
}

fn grpc_trailers() -> HeaderMap {
    let status = HeaderName::from_static("grpc-status");
    HeaderMap::from_iter([(status, HeaderValue::from_static("0"))])
}

fn grpc_ok(message: Bytes) -> Response<Reply> {
    let message = if message.is_empty() {
        Bytes::from_static(EMPTY_MESSAGE)
    } else {
        message
    };
    let mut response = Response::new(Reply::Now {
        data: Some(message),
        trailers: Some(grpc_trailers()),
    });
    (response.headers_mut()).insert(header::CONTENT_TYPE, GRPC);
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<Reply> {
    let data = (!text.is_empty()).then(|| Bytes::from_static(text.as_bytes()));
    let mut response = Response::new(Reply::Now {
        data,
        trailers: None,
    });
    *response.status_mut() = status;
    response
}

fn add_times(headers: &mut HeaderMap, served: Served) {
    headers.insert(SERVICE_US, HeaderValue::from(micros(served.service)));
    headers.insert(WAIT_US, HeaderValue::from(micros(served.wait)));
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// A response body.
enum Reply {
    /// A body that is available at once, or the rest of one.
    Now {
        data: Option<Bytes>,
        trailers: Option<HeaderMap>,
    },
    /// A part that is available when its service ends, and the rest of the body.
    Late(Part),
}

/// A future part of a body, with the rest of the body.
type Part = Pin<Box<dyn Future<Output = Option<(Bytes, Reply)>> + Send>>;

impl Reply {
    fn empty() -> Self {
        Self::Now {
            data: None,
            trailers: None,
        }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = match &mut *self {
            Self::Now { data, trailers } => {
                let frame = data
                    .take()
                    .map(Frame::data)
                    .or_else(|| trailers.take().map(Frame::trailers));
                return Poll::Ready(frame.map(Ok));
            }
            Self::Late(future) => std::task::ready!(future.as_mut().poll(cx)),
        };
        let (data, rest) = part.map_or((None, Self::empty()), |(data, rest)| (Some(data), rest));
        *self = rest;
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(
            self,
            Self::Now {
                data: None,
                trailers: None
            }
        )
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Now {
                data,
                trailers: None,
            } => hyper::body::SizeHint::with_exact(data.as_ref().map_or(0, |d| d.len() as u64)),
            _ => hyper::body::SizeHint::default(),
        }
    }
}
