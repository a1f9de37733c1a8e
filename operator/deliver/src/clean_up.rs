//! Removal of delivered objects before the operators are uninstalled.
//!
//! The operators would write the objects again, so they are stopped first. Their Deployment is
//! scaled to zero, and removal starts once its Pods have ended. Proxies then get a configuration
//! without the filter from their control plane and lose no request. A ConfigMap that a Pod mounts
//! stays, because without it no further Pod of the same workload could start.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{PartialObjectMeta, Selector};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::adapter::Adapter;
use crate::apply::line;
use crate::cluster::ObjectKey;
use crate::leftovers::{Stopped, delete_all};
use crate::object::{ADAPTER_LABEL, MANAGED_BY, other_operator};
use crate::observed::ours;
use crate::read;
use crate::readable::{Readable, list};
use crate::watch::{api, api_of, places};

/// The number of Pods in a page of a list.
const PAGE: u32 = 500;
/// The pause between two lists of the Pods that haven't ended.
const PAUSE: Duration = Duration::from_secs(1);

/// The objects that a clean-up deleted, and the objects that stay.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CleanedUp {
    /// The deleted objects.
    pub deleted: Vec<(Adapter, ObjectKey)>,
    /// ConfigMaps that Pods mount.
    pub mounted: Vec<ObjectKey>,
}

/// Scales a Deployment to zero and waits until its Pods have ended. Does nothing if the Deployment
/// doesn't exist.
///
/// # Errors
/// Returns the API server's answer in one line.
pub async fn stop(client: &Client, deployment: &ObjectKey) -> Result<(), String> {
    let deployments = Api::<Deployment>::namespaced(client.clone(), &deployment.namespace);
    let name = &deployment.name;
    let failed = |error: kube::Error| format!("Deployment {deployment}: {}", line(&error));
    let Some(found) = deployments.get_opt(name).await.map_err(failed)? else {
        return Ok(());
    };
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    let parameters = PatchParams::default();
    let scaled = deployments.patch_scale(name, &parameters, &none);
    scaled.await.map_err(failed)?;
    let selector = found.spec.map(|spec| spec.selector).unwrap_or_default();
    let selector = Selector::try_from(selector).map_err(|e| e.to_string())?;
    let pods = api::<Readable<PartialObjectMeta<Pod>>>(client, &deployment.namespace);
    // The ReplicaSet leaves Pods that have ended, such as evicted ones, in place for weeks.
    let left = ListParams::default()
        .labels_from(&selector)
        .fields("status.phase!=Failed,status.phase!=Succeeded");
    loop {
        match list(&pods, &left).await {
            Ok(left) if left.items.is_empty() => return Ok(()),
            Err(kube::Error::Api(status)) if (400..429).contains(&status.code) => {
                return Err(failed(kube::Error::Api(status)));
            }
            // Pods are left, or the API server doesn't answer.
            Ok(_) | Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Deletes the objects that `operator` (see [`Settings`](crate::Settings)) or, without it, any
/// operator has delivered, and the ConfigMaps with the name `ca` that publish the CA, in these
/// namespaces. An empty list of namespaces means all namespaces.
///
/// # Errors
/// Returns the first failure in one line.
pub async fn clean_up(
    client: &Client,
    operator: Option<&str>,
    namespaces: &[String],
    ca: Option<&str>,
) -> Result<CleanedUp, String> {
    let mut done = CleanedUp::default();
    let objects = |adapter: Adapter| {
        let resource = adapter.resource();
        places(namespaces).map(move |name| api_of(&resource, client, name))
    };
    let is_own = |object: &PartialObjectMeta<DynamicObject>| {
        operator.is_none_or(|own| other_operator(object.annotations(), own).is_none())
    };
    for adapter in Adapter::ALL {
        if adapter == Adapter::ConfigMap {
            continue;
        }
        for api in objects(adapter) {
            let deleted = delete_all(client, adapter, &api, &ours(), |o, _| is_own(o)).await;
            let deleted = deleted.map_err(|why| failed(adapter, why))?;
            done.deleted
                .extend(deleted.into_iter().map(|k| (adapter, k)));
        }
    }
    let mounted = mounted(client, namespaces).await?;
    let managed = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    for api in objects(Adapter::ConfigMap) {
        let mut kept = Vec::new();
        let goes = |object: &PartialObjectMeta<DynamicObject>, key: &ObjectKey| {
            let is_delivered = object.labels().contains_key(ADAPTER_LABEL);
            let is_ours = match is_delivered {
                true => is_own(object),
                false => ca == Some(key.name.as_str()),
            };
            if !is_ours {
                return false;
            }
            let is_mounted = mounted.contains(key);
            if is_mounted {
                kept.push(key.clone());
            }
            !is_mounted
        };
        let adapter = Adapter::ConfigMap;
        let deleted = delete_all(client, adapter, &api, &managed, goes).await;
        let deleted = deleted.map_err(|why| failed(adapter, why))?;
        done.deleted
            .extend(deleted.into_iter().map(|k| (adapter, k)));
        done.mounted.extend(kept);
    }
    Ok(done)
}

fn failed(adapter: Adapter, why: Stopped) -> String {
    let (Stopped::Forbidden(why) | Stopped::Failed(why)) = why;
    format!("{}: {why}", adapter.kind())
}

/// Returns the ConfigMaps that Pods mount.
async fn mounted(client: &Client, namespaces: &[String]) -> Result<BTreeSet<ObjectKey>, String> {
    let mut mounted = BTreeSet::new();
    for api in places(namespaces).map(|name| api::<Readable<Pod>>(client, name)) {
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = list(&api, &page).await;
            let list = list.map_err(|e| format!("Pod: {}", line(&e)))?;
            for pod in list.items {
                let namespace = pod.namespace().unwrap_or_default();
                let key = |name| ObjectKey::new(namespace.clone(), name);
                mounted.extend(read::mounted(pod.spec).map(key));
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(next) => page = page.continue_token(&next),
                None => break,
            }
        }
    }
    Ok(mounted)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::object::OPERATOR_ANNOTATION;
    use headgate_fakes::api_server;

    /// Returns the API server's answer to a request about the Deployment of the operators.
    fn of_deployment(uri: &http::Uri) -> serde_json::Value {
        match uri.path().ends_with("/scale") {
            true => json!({"metadata": {"name": "d"}}),
            false => json!({
                "metadata": {"name": "d"},
                "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": {}},
            }),
        }
    }

    #[tokio::test]
    async fn a_failure_is_the_api_servers_message_in_one_line() {
        let client = api_server(|_, _, _| {
            let status = json!({
                "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                "message": "not for you",
            });
            Some((403, status))
        });
        let stopped = stop(&client, &ObjectKey::new("a", "d")).await;
        assert_eq!(stopped, Err("Deployment a/d: not for you".to_owned()));
        let mounted = mounted(&client, &[]).await;
        assert_eq!(mounted, Err("Pod: not for you".to_owned()));
    }

    #[tokio::test]
    async fn objects_of_another_release_stay() {
        let client = api_server(|method, uri, _| {
            let object = |name: &str, annotations: serde_json::Value| {
                let labels = json!({ADAPTER_LABEL: "x"});
                json!({"metadata": {
                    "name": name, "namespace": "a", "uid": "u", "resourceVersion": "1",
                    "labels": labels, "annotations": annotations,
                }})
            };
            let of = |operator: &str| json!({OPERATOR_ANNOTATION: operator});
            let items = match uri.path().rsplit('/').next() {
                Some("wasmplugins" | "configmaps") => json!([
                    object("before-0.2", json!({})),
                    object("own", of("system/headgate")),
                    object("theirs", of("other/headgate")),
                ]),
                _ => json!([]),
            };
            Some(match *method == http::Method::DELETE {
                true => (200, json!({"kind": "Status", "status": "Success"})),
                false => (200, json!({"metadata": {}, "items": items})),
            })
        });
        for (operator, of_kind) in [
            (Some("system/headgate"), &["before-0.2", "own"][..]),
            (None, &["before-0.2", "own", "theirs"]),
        ] {
            let done = clean_up(&client, operator, &[], None).await.unwrap();
            let deleted = done.deleted.iter().map(|(_, key)| key.name.as_str());
            assert_eq!(deleted.collect::<Vec<_>>(), of_kind.repeat(2));
        }
    }

    /// The API server applies field selectors. Nothing deletes the only Pod, which was evicted.
    #[tokio::test]
    async fn a_pod_that_was_evicted_is_not_waited_for() {
        let (listed, again) = (AtomicBool::new(false), Arc::new(Notify::new()));
        let waits = Arc::clone(&again);
        let client = api_server(move |_, uri, _| {
            if !uri.path().ends_with("/pods") {
                return Some((200, of_deployment(uri)));
            }
            let query = uri.query().unwrap_or_default();
            if listed.swap(true, Ordering::Relaxed) {
                waits.notify_one();
                return None;
            }
            let failed = json!({"metadata": {"name": "p", "namespace": "a"}});
            let items = match query.contains("status.phase%21%3DFailed") {
                true => json!([]),
                false => json!([failed]),
            };
            Some((
                200,
                json!({"metadata": {"resourceVersion": "1"}, "items": items}),
            ))
        });
        let deployment = ObjectKey::new("a", "d");
        tokio::select! {
            stopped = stop(&client, &deployment) => stopped.unwrap(),
            () = again.notified() => panic!("it waits for the Pod"),
        }
    }

    #[tokio::test]
    async fn pods_have_not_ended_while_the_api_server_does_not_answer() {
        let (listed, again) = (AtomicBool::new(false), Arc::new(Notify::new()));
        let asked = Arc::clone(&again);
        let client = api_server(move |_, uri, _| {
            let body = match uri.path().rsplit('/').next() {
                // The first list has a Pod. The second list isn't answered.
                Some("pods") => match listed.swap(true, Ordering::Relaxed) {
                    false => json!({
                        "metadata": {"resourceVersion": "1"},
                        "items": [{"metadata": {"name": "p", "namespace": "a"}}],
                    }),
                    true => {
                        again.notify_one();
                        return None;
                    }
                },
                _ => of_deployment(uri),
            };
            Some((200, body))
        });
        let deployment = ObjectKey::new("a", "d");
        tokio::select! {
            stopped = stop(&client, &deployment) => panic!("{stopped:?}"),
            () = asked.notified() => {}
        }
    }
}
