//! Removal of objects whose delivery has been turned off.
//!
//! The kind of such objects is no longer watched, so they would stay in force without updates. A
//! leader lists them only once, at its start, because settings change only with a new process.

use kube::api::{DynamicObject, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use tracing::{info, warn};

use crate::adapter::Adapter;
use crate::apply;
use crate::cluster::ObjectKey;
use crate::object::other_operator;
use crate::observed::{Source, ours};
use crate::read::key;
use crate::readable::{Readable, list};
use crate::settings::Settings;
use crate::watch::{api_of, places};

/// The number of objects in a page of a list.
const PAGE: u32 = 100;

/// The API of the metadata of objects of one kind.
type MetadataApi = Api<Readable<PartialObjectMeta<DynamicObject>>>;

/// Removes this operator's objects of all deliveries that are off. Retries after a failure, with
/// the pause from the settings.
pub(crate) async fn remove(client: Client, settings: Settings) {
    for adapter in Source::off(&settings) {
        for namespace in places(&settings.watch_namespaces) {
            let api = api_of(&adapter.resource(), &client, namespace);
            while let Err(why) = remove_from(&client, adapter, &api, &settings.operator).await {
                warn!(
                    kind = adapter.kind(),
                    "deleting the objects of a disabled delivery failed and is retried: {why}"
                );
                tokio::time::sleep(settings.retry).await;
            }
        }
    }
}

async fn remove_from(
    client: &Client,
    adapter: Adapter,
    api: &MetadataApi,
    operator: &str,
) -> Result<(), String> {
    let goes = |object: &PartialObjectMeta<DynamicObject>, _: &ObjectKey| {
        other_operator(object.annotations(), operator).is_none()
    };
    match delete_all(client, adapter, api, &ours(), goes).await {
        Ok(_) => Ok(()),
        Err(Stopped::Forbidden(why)) => {
            warn!(
                kind = adapter.kind(),
                "the objects of a disabled delivery can't be deleted: {why}; grant list and \
                 delete, or set --keep-leftovers"
            );
            Ok(())
        }
        Err(Stopped::Failed(why)) => Err(why),
    }
}

/// The reason why not all objects were deleted, in one line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Listing the objects is forbidden.
    Forbidden(String),
    /// Another failure.
    Failed(String),
}

/// Deletes the objects of one kind that have these labels and for which `goes` returns true.
/// Returns their keys. Returns no keys if the kind isn't served.
pub(crate) async fn delete_all(
    client: &Client,
    adapter: Adapter,
    api: &MetadataApi,
    labels: &str,
    mut goes: impl FnMut(&PartialObjectMeta<DynamicObject>, &ObjectKey) -> bool,
) -> Result<Vec<ObjectKey>, Stopped> {
    let mut page = ListParams::default().labels(labels).limit(PAGE);
    let mut deleted = Vec::new();
    loop {
        let list = match list(api, &page).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(deleted),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Err(Stopped::Forbidden(status.message.clone()));
            }
            Err(error) => return Err(Stopped::Failed(apply::line(&error))),
        };
        for object in &list.items {
            let key = key(&object.metadata);
            if !goes(object, &key) {
                continue;
            }
            let observed = serde_json::to_value(object);
            let observed = observed.map_err(|e| Stopped::Failed(e.to_string()))?;
            let done = apply::delete(client, adapter, &key, &observed).await;
            done.map_err(Stopped::Failed)?;
            info!(kind = adapter.kind(), object = %key, "deleted");
            deleted.push(key);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(deleted),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::object::OPERATOR_ANNOTATION;
    use crate::tests::settings;
    use headgate_fakes::api_server;

    /// Returns an API server with two pages of WasmPlugins, and the requests that it received. It
    /// doesn't serve EnvoyFilters, forbids TrafficExtensions, and fails the first request.
    fn server() -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let client = api_server(move |method, uri, _| {
            let (path, query) = (uri.path(), uri.query().unwrap_or(""));
            let kind = path.rsplit('/').next().unwrap_or_default();
            let is_first = {
                let mut log = log.lock().unwrap();
                log.push(format!("{method} {path}"));
                log.len() == 1
            };
            let failed = |code: u16| {
                let body = json!({
                    "kind": "Status",
                    "status": "Failure",
                    "code": code,
                    "message": "no",
                    "reason": "R",
                });
                (code, body)
            };
            let page = |name: &str, next: &str| {
                // Any user who may write the object may set this time.
                let metadata = json!({
                    "name": name, "namespace": "a", "uid": "u", "resourceVersion": "1",
                    "managedFields": [{"time": "9999-12-31T00:00:00Z"}],
                });
                let mut other = json!({"metadata": metadata});
                other["metadata"]["name"] = "of-another-release".into();
                other["metadata"]["annotations"] = json!({OPERATOR_ANNOTATION: "b/headgate"});
                let items = json!([{"metadata": metadata}, other]);
                (200, json!({"metadata": {"continue": next}, "items": items}))
            };
            let (code, body) = match (method, kind) {
                _ if is_first => failed(500),
                (&Method::DELETE, _) => (200, json!({"kind": "Status", "status": "Success"})),
                (_, "envoyfilters") => failed(404),
                (_, "trafficextensions") => failed(403),
                _ if query.contains("continue=next") => page("second", ""),
                _ => page("first", "next"),
            };
            assert!(code != 200 || *method == Method::DELETE || query.contains("managed-by"));
            Some((code, body))
        });
        (client, asked)
    }

    #[tokio::test]
    async fn objects_of_a_disabled_delivery_are_deleted() {
        let (client, asked) = server();
        let settings = Settings {
            istio: false,
            envoy_gateway: true,
            retry: Duration::from_millis(1),
            ..settings()
        };
        let removed = remove(client, settings);
        let in_time = tokio::time::timeout(Duration::from_secs(10), removed).await;
        in_time.expect("a failure is not repeated");
        let plugins = "/apis/extensions.istio.io/v1alpha1";
        assert_eq!(
            *asked.lock().unwrap(),
            [
                format!("GET {plugins}/wasmplugins"),
                format!("GET {plugins}/wasmplugins"),
                format!("DELETE {plugins}/namespaces/a/wasmplugins/first"),
                format!("GET {plugins}/wasmplugins"),
                format!("DELETE {plugins}/namespaces/a/wasmplugins/second"),
                format!("GET {plugins}/trafficextensions"),
                "GET /apis/networking.istio.io/v1alpha3/envoyfilters".to_owned(),
            ]
        );
    }
}
