//! Removal of all delivered objects, before the operators are uninstalled.
//!
//! The operators would write the objects again, so they end first: their Deployment is scaled to
//! zero, and its Pods must have ended. Proxies then get a configuration without the filter from
//! their control plane and lose no request. A ConfigMap that a Pod mounts stays: without it no
//! further Pod of the same workload could start.

use std::collections::BTreeSet;
use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{PartialObjectMeta, Selector};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use super::leftovers::{Stopped, delete_all};
use super::object::{ADAPTER_LABEL, Adapter, MANAGED_BY};
use super::observed::ours;
use crate::kubernetes::cluster::ObjectKey;
use crate::kubernetes::read;
use crate::kubernetes::watch::{apis, apis_of};

/// The number of Pods in one page of a list.
const PAGE: u32 = 500;

/// The objects that were removed, and those that stay.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CleanedUp {
    /// The deleted objects.
    pub deleted: Vec<(Adapter, ObjectKey)>,
    /// ConfigMaps that Pods mount.
    pub mounted: Vec<ObjectKey>,
}

/// Scales a Deployment to zero and waits until its Pods have ended. Does nothing if it doesn't
/// exist.
///
/// # Errors
/// The API server's answer, in one line.
pub async fn stop(client: &Client, deployment: &ObjectKey) -> Result<(), String> {
    let api = Api::<Deployment>::namespaced(client.clone(), &deployment.namespace);
    let name = &deployment.name;
    let line = |error: kube::Error| format!("Deployment {deployment}: {error}");
    let Some(found) = api.get_opt(name).await.map_err(line)? else {
        return Ok(());
    };
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    let scaled = api.patch_scale(name, &PatchParams::default(), &none).await;
    scaled.map_err(line)?;
    let selector = found.spec.map(|spec| spec.selector).unwrap_or_default();
    let selector = Selector::try_from(selector).map_err(|e| e.to_string())?;
    let pods = Api::<PartialObjectMeta<Pod>>::namespaced(client.clone(), &deployment.namespace);
    let config = watcher::Config::default().labels_from(&selector);
    let mut events = pin!(watcher(pods, config).default_backoff());
    let (mut left, mut listed) = (BTreeSet::new(), false);
    while let Some(event) = events.next().await {
        let name = |pod: PartialObjectMeta<Pod>| pod.name_any();
        match event {
            Ok(Event::Init) => left.clear(),
            Ok(Event::InitApply(pod) | Event::Apply(pod)) => _ = left.insert(name(pod)),
            Ok(Event::Delete(pod)) => _ = left.remove(&name(pod)),
            Ok(Event::InitDone) => listed = true,
            Err(watcher::Error::InitialListFailed(error @ kube::Error::Api(_))) => {
                return Err(line(error));
            }
            // It is retried.
            Err(_) => {}
        }
        if listed && left.is_empty() {
            return Ok(());
        }
    }
    Err(format!(
        "Deployment {deployment}: the watch of its Pods ended"
    ))
}

/// Deletes all delivered objects in these namespaces, in all if the list is empty, and the
/// ConfigMaps of this name in which the CA is published.
///
/// # Errors
/// The first failure, in one line.
pub async fn clean_up(
    client: &Client,
    namespaces: &[String],
    ca: Option<&str>,
) -> Result<CleanedUp, String> {
    let mut done = CleanedUp::default();
    let objects = |adapter: Adapter| apis_of(&adapter.resource(), client, namespaces);
    for adapter in Adapter::ALL {
        if adapter == Adapter::ConfigMap {
            continue;
        }
        for api in objects(adapter) {
            let deleted = delete_all(client, adapter, &api, &ours(), |_, _| true).await;
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
            if !is_delivered && ca != Some(key.name.as_str()) {
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
    for api in apis::<Pod>(client, namespaces) {
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api.list(&page).await.map_err(|e| format!("Pod: {e}"))?;
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
