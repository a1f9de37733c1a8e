//! Fakes for the unit tests of the operator's crates: an API server, and a policy of a plan.

// A failed test panics.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use headgate_api::plan::{PolicyState, TargetRef};
use headgate_core::config::Mode;
use http::{Method, Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// Returns a client of an API server that answers with `answer`, which gets the JSON body of the
/// request and returns a status code and a body. A request for which it returns `None` gets no
/// answer.
pub fn api_server(
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

/// Returns an accepted policy of a plan, without conflicts or warnings.
pub fn accepted(name: &str, targets: Vec<TargetRef>) -> PolicyState {
    PolicyState {
        name: name.to_owned(),
        source: String::new(),
        generation: 1,
        targets,
        accepted: Ok(()),
        has_version: true,
        conflicts: Vec::new(),
        overridden: Vec::new(),
        without_workflows: Vec::new(),
        warnings: Vec::new(),
        beyond_limit: BTreeMap::new(),
        not_found: Vec::new(),
        mode: Mode::Enforce,
        endpoint_slots: None,
        revision: "r".to_owned(),
    }
}
