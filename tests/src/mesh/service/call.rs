//! Calls to other services, through the outbound listener of the sidecar.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::plan::{Call, Route};
use super::stats::End;
use crate::mesh::sidecar;

/// The time for which an idle connection is kept. This time is shorter than Envoy's, so that no
/// call is lost because both ends close the connection at once.
const IDLE: Duration = Duration::from_secs(30);

/// Connections to the sidecar.
#[derive(Debug)]
pub(super) struct Client {
    sidecar: Option<SocketAddr>,
    pool: Pool<HttpConnector, Empty<Bytes>>,
}

impl Client {
    pub(super) fn new(sidecar: Option<SocketAddr>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Self { sidecar, pool }
    }

    /// Sends one call and reads its answer. Dropping the future hangs up.
    pub(super) async fn send(
        &self,
        call: &Call,
        path: &str,
        context: &HeaderMap,
        timeout: Duration,
    ) -> End {
        let Some(request) = self.request(call, path, context) else {
            return End::Failed;
        };
        match tokio::time::timeout(timeout, self.exchange(request)).await {
            Ok(end) => end,
            Err(_) => End::TimedOut,
        }
    }

    fn request(
        &self,
        call: &Call,
        path: &str,
        context: &HeaderMap,
    ) -> Option<Request<Empty<Bytes>>> {
        let path = call.path.as_deref().unwrap_or(path);
        let uri: Uri = format!("http://{}{path}", self.sidecar?).parse().ok()?;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri;
        *request.headers_mut() = context.clone();
        // The `Host` header selects the proxy's route.
        let host = match &call.route {
            Route::RoundRobin => call.service.clone(),
            Route::Hash(name) => sidecar::hash_host(&call.service, name),
            Route::Process(number) => sidecar::process_host(&call.service, *number),
        };
        request
            .headers_mut()
            .insert(header::HOST, HeaderValue::from_str(&host).ok()?);
        Some(request)
    }

    async fn exchange(&self, request: Request<Empty<Bytes>>) -> End {
        let Ok(response) = self.pool.request(request).await else {
            return End::Failed;
        };
        let end = if response.headers().contains_key("x-headgate-refused") {
            End::Refused
        } else if response.status().is_success() {
            End::Ok
        } else {
            End::Failed
        };
        // The answer is read to its end, so that the connection can be reused.
        match response.into_body().collect().await {
            Ok(_) => end,
            Err(_) => End::Failed,
        }
    }
}
