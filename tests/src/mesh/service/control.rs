//! Answers `GET /stats` and `POST /reset`. These requests have a port of their own, so that they
//! never wait behind other requests.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
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
        _ => (StatusCode::NOT_FOUND, b"GET /stats, POST /reset\n".to_vec()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    Ok(response)
}
