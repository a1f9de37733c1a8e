//! The admission webhook that adds an Envoy to Pods when they are created.
//!
//! The API server sends only the Pod, without its Services and NetworkPolicies, so a Service that
//! refers to the application's port by number bypasses Envoy. A Pod that can't be injected is
//! admitted unchanged, with a warning. No Pod is refused.
//!
//! The API server can't be authenticated unless its administrator configures a client certificate
//! for webhooks. So requests of any client are answered. Responses contain nothing secret, and
//! requests are limited in size, number and time.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tracing::{debug, info};

use super::mark::INJECTED_ANNOTATION;
use super::{Outcome, Settings, inject, name_of};
use headgate_xds::http_server::{HttpLimits, serve};
use headgate_xds::tls::Trust;

/// The path of the webhook.
const PATH: &str = "/inject";
/// The largest AdmissionReview, in bytes. Pods take some KiB, and their annotations at most 256.
const MAX_BYTES: usize = 512 << 10;
/// Limits of the webhook. A connection carries one request. If the API server reused a connection
/// just as the webhook closes it, a Pod would be created without Envoy. The same would happen if
/// the webhook closed a connection because many others are open. So further connections wait. An
/// API server opens one for each Pod that is created, all from one address.
const LIMITS: HttpLimits = HttpLimits {
    connections: 64,
    connections_per_address: 32,
    waiting: 1_024,
    head: Duration::from_secs(5),
    connection: Duration::from_secs(10),
    keep_alive: false,
};
/// The annotation of mirror Pods. They are copies, on the API server, of Pods that the kubelet runs
/// from files.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The parts of a Pod that injection changes. It never removes a part.
const CHANGED: [&str; 5] = [
    "/metadata/annotations",
    "/metadata/labels",
    "/spec/containers",
    "/spec/initContainers",
    "/spec/volumes",
];

/// A webhook that is listening.
pub struct Webhook {
    /// The socket on which the webhook listens.
    pub listener: TcpListener,
    /// The options of injections.
    pub settings: Settings,
    /// The certificate that the webhook presents.
    pub trust: watch::Receiver<Arc<Trust>>,
}

impl Webhook {
    /// Serves over HTTPS until `shutdown` holds `true`.
    pub async fn run(self, shutdown: watch::Receiver<bool>) {
        let app = app(Arc::new(Mutex::new(self.settings)));
        let (listener, trust) = (self.listener, Some(self.trust));
        serve(listener, "injection", LIMITS, trust, app, || {}, shutdown).await;
    }
}

/// The settings, locked by the review that is being answered. Reviews are parsed one at a time,
/// because a parsed review may take more than a hundred times its size.
type Turn = Arc<Mutex<Settings>>;

fn app(turn: Turn) -> Router {
    Router::new()
        .route(PATH, post(review))
        .layer(DefaultBodyLimit::max(MAX_BYTES))
        .with_state(turn)
}

async fn review(State(turn): State<Turn>, body: Bytes) -> Response {
    let settings = turn.lock().await;
    let review = serde_json::from_slice(&body).map_err(|error| error.to_string());
    match review.and_then(|review| answer(review, &settings)) {
        Ok(answer) => {
            let json = [(header::CONTENT_TYPE, "application/json")];
            (json, answer.to_string()).into_response()
        }
        Err(problem) => (StatusCode::BAD_REQUEST, problem).into_response(),
    }
}

/// Returns the answer to an AdmissionReview (admission.k8s.io/v1) of a Pod.
///
/// # Errors
/// Returns one line that says that `review` isn't an AdmissionReview.
pub(super) fn answer(mut review: Value, settings: &Settings) -> Result<Value, String> {
    let pod = review.pointer_mut("/request/object").map(Value::take);
    let request = &review["request"];
    let uid = request["uid"].as_str().filter(|uid| !uid.is_empty());
    let uid = uid.ok_or("request.uid: missing; an AdmissionReview has it")?;
    let mut response = json!({"uid": uid, "allowed": true});
    let (patch, warning) = patch(pod.unwrap_or_default(), settings);
    if let Some(patch) = patch {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(BASE64_STANDARD.encode(patch.to_string()));
    }
    if let Some(warning) = warning {
        let namespace = request["namespace"].as_str().unwrap_or_default();
        info!(namespace, "{warning}");
        response["warnings"] = json!([format!("headgate: {warning}")]);
    }
    Ok(json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    }))
}

/// Returns the JSON Patch that injects a Pod, and a warning if it isn't injected, if no Service can
/// reach its Envoy yet, or if a port of its node bypasses Envoy.
fn patch(mut pod: Value, settings: &Settings) -> (Option<Value>, Option<String>) {
    let annotation = |name: &str| !pod["metadata"]["annotations"][name].is_null();
    if annotation(INJECTED_ANNOTATION) {
        let why = format!("{}: already injected", name_of(&pod));
        return (None, Some(why));
    }
    if annotation(MIRROR_ANNOTATION) {
        let why = "not injected: the kubelet runs it from a file";
        return (None, Some(format!("{}: {why}", name_of(&pod))));
    }
    let before = CHANGED.map(|at| (at, pod.pointer(at).cloned()));
    let one = match inject(&mut pod, settings) {
        Ok(Outcome::Injected(one)) => one,
        Ok(Outcome::NoWorkload) => return (None, Some("not injected: no Pod".to_owned())),
        Ok(Outcome::Skipped(why)) => return (None, Some(why)),
        Err(problem) => return (None, Some(format!("{problem} (not injected)"))),
    };
    debug!("{}: injected", one.workload);
    let operations = before.into_iter().filter_map(|(at, before)| {
        let after = pod.pointer_mut(at).map(Value::take);
        let mut operation = json!({"op": "add", "path": at});
        // `json!` would copy the value.
        operation["value"] = (before != after).then_some(after)?.unwrap_or_default();
        Some(operation)
    });
    let operations = operations.collect();
    let warning = (!one.took_name).then(|| {
        format!(
            "{}: port {} has no name, so Services reach Envoy only as targetPort {}; name the port",
            one.workload, one.app_port, one.port_name
        )
    });
    (Some(operations), warning.or(one.host_port))
}

#[cfg(test)]
mod tests;
