//! A layer that counts requests to the API server, so that a metric shows a hot loop early.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower::layer::layer_fn;
use tower::{Layer, Service};

use crate::metrics::Metrics;

/// Returns a layer that counts the requests of a client.
pub fn count_requests<S>(metrics: Metrics) -> impl Layer<S, Service = Counting<S>> {
    layer_fn(move |inner| Counting {
        inner,
        metrics: metrics.clone(),
    })
}

/// The service of [`count_requests`].
#[derive(Debug, Clone)]
pub struct Counting<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, B, R> Service<Request<B>> for Counting<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let operation = request.extensions().get::<&'static str>().copied();
        let (operation, uri) = (operation.unwrap_or("other"), request.uri().clone());
        let metrics = self.metrics.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await;
            let status = response.as_ref().ok().map(Response::status);
            metrics.kubernetes.requested(operation, &uri, status);
            response
        })
    }
}
