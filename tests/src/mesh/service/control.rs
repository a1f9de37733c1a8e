//! Answers requests for statistics and control requests. They have a port of their own, so that
//! they never wait behind other requests.
//!
//! The requests are `GET /stats`, `POST /reset`, and `POST /speed` with a number by which later
//! service times are divided.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;

use super::Service;

/// Answers a request for statistics, or a control request.
pub(super) async fn answer(
    service: Arc<Service>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/stats") => match serde_json::to_vec(&service.stats()) {
            Ok(body) => (StatusCode::OK, body),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into()),
        },
        (&Method::POST, "/reset") => {
            service.reset();
            (StatusCode::OK, b"reset\n".to_vec())
        }
        (&Method::POST, "/speed") => match speed(request).await {
            Some(speed) => {
                service.speed.store(speed.to_bits(), Ordering::Relaxed);
                (StatusCode::OK, b"set\n".to_vec())
            }
            None => (StatusCode::BAD_REQUEST, b"give a number above 0\n".to_vec()),
        },
        _ => (
            StatusCode::NOT_FOUND,
            b"GET /stats, POST /reset, /speed\n".to_vec(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    Ok(response)
}

async fn speed(request: Request<Incoming>) -> Option<f64> {
    let body = request.into_body().collect().await.ok()?.to_bytes();
    let speed: f64 = std::str::from_utf8(&body).ok()?.trim().parse().ok()?;
    (speed.is_finite() && speed > 0.0).then_some(speed)
}
