//! Sends one HTTP/1.1 request on its own connection, with a limit on the size of the response.

use std::error::Error;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

/// Sends `request` over `stream` and returns the response. The stream is closed when the response
/// has arrived or the future is dropped. The caller sets the timeout.
///
/// # Errors
/// The connection ended early, the peer doesn't speak HTTP/1.1, or the body has more than
/// `max_body` bytes.
pub async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Empty<Bytes>>,
    max_body: usize,
) -> anyhow::Result<Response<Bytes>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let response = sender.send_request(request).await.context("no answer")?;
    whole(response, max_body).await
}

/// Returns a response with its whole body.
///
/// # Errors
/// The body ends early, or has more than `max_body` bytes.
pub async fn whole<B>(response: Response<B>, max_body: usize) -> anyhow::Result<Response<Bytes>>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let (head, body) = response.into_parts();
    let body = Limited::new(body, max_body).collect().await;
    let body = body.map_err(|error| anyhow!("reading the answer failed: {error}"))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
