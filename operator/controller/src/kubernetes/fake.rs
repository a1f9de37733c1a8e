//! A fake API server for tests.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// Returns a client of an API server that answers with `answer`, which gets the JSON body of the
/// request and returns a status code and a body. A request for which it returns `None` gets no
/// answer.
pub(crate) fn api_server(
    answer: impl Fn(&Method, &Uri, Value) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> Client {
    let answer = Arc::new(answer);
    let serve = move |request: Request<Body>| {
        let answer = Arc::clone(&answer);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let Some((code, body)) = answer(&head.method, &head.uri, body) else {
                return std::future::pending().await;
            };
            let body = Body::from(format!("{body}\n").into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    };
    Client::new(tower::service_fn(serve), "default")
}
