//! Serves `/__headgate/…`: the backend's counts and its commands, on a port of their own.
//!
//! The requests are `GET stats`, `GET arrivals`, `POST reset`, `POST fault` (a [`Fault`] as JSON),
//! `POST clear` and `POST release`.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpListener;

use super::Fault;
use super::station::Station;

/// Accepts connections until it is cancelled.
pub(super) async fn serve(listener: TcpListener, station: Arc<Station>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let station = Arc::clone(&station);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(Arc::clone(&station), request));
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    station: Arc<Station>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let action = request
        .uri()
        .path()
        .strip_prefix("/__headgate/")
        .unwrap_or_default()
        .to_owned();
    let response = match (request.method(), action.as_str()) {
        (&Method::GET, "stats") => json(&station.stats()),
        (&Method::GET, "arrivals") => json(&station.arrivals()),
        (&Method::POST, "reset") => {
            station.reset();
            text(StatusCode::OK, "reset\n".into())
        }
        (&Method::POST, "clear") => {
            station.clear_faults();
            text(StatusCode::OK, "cleared\n".into())
        }
        (&Method::POST, "release") => text(StatusCode::OK, format!("{}\n", station.release())),
        (&Method::POST, "fault") => match fault(request).await {
            Ok(fault) => {
                station.inject(fault);
                text(StatusCode::OK, "injected\n".into())
            }
            Err(reason) => text(StatusCode::BAD_REQUEST, format!("{reason}\n")),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "GET stats|arrivals, POST reset|fault|clear|release\n".into(),
        ),
    };
    Ok(response)
}

async fn fault(request: Request<Incoming>) -> Result<Fault, String> {
    let body = request
        .into_body()
        .collect()
        .await
        .map_err(|e| e.to_string())?;
    serde_json::from_slice(&body.to_bytes()).map_err(|e| e.to_string())
}

fn json<T: Serialize>(value: &T) -> Response<Full<Bytes>> {
    match serde_json::to_vec(value) {
        Ok(body) => Response::new(Full::new(body.into())),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}
