//! Publishes the CA of the operator's certificate in a ConfigMap in every namespace, so that Pods
//! of proxies can mount it. Kubernetes does the same with `kube-root-ca.crt`, and Istio with
//! `istio-ca-root-cert`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::core::{PartialObjectMeta, Status};
use kube::runtime::watcher;
use kube::{Client, Error, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;

use super::keep_ca::{events, keep_ca};
use super::leader::Leadership;
use headgate_deliver::cluster::ObjectKey;
use headgate_deliver::object::{FIELD_MANAGER, MANAGED_BY};
use headgate_deliver::readable::{Readable, list};
use headgate_deliver::watch::{api, places};
use headgate_xds::tls::Trust;

/// The key of the CA in the ConfigMap.
pub const CA_KEY: &str = "ca.crt";
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(60);

/// Writes the CA into ConfigMaps.
pub(super) struct Publisher {
    pub(super) client: Client,
    /// The operator's namespace, and the name of the ConfigMaps.
    pub(super) config_maps: ObjectKey,
    /// The operator's certificate and its CA.
    pub(super) trust: watch::Receiver<Arc<Trust>>,
    /// The namespaces. If the list is empty, these are the namespaces that match `selector`, or
    /// all.
    pub(super) namespaces: Vec<String>,
    pub(super) selector: Option<String>,
}

impl Publisher {
    /// Publishes until cancelled, while this replica leads.
    pub(super) async fn run(self, leadership: Leadership) {
        let what = format!("ConfigMaps {}", self.config_maps.name);
        let trust = self.trust.clone();
        let write = |ca: Vec<u8>| self.publish(ca);
        keep_ca(leadership, trust, (&what, RETRY), || self.changes(), write).await;
    }

    /// Returns a stream with an item for each change of namespaces and ConfigMaps.
    fn changes(&self) -> BoxStream<'static, ()> {
        let only =
            watcher::Config::default().fields(&format!("metadata.name={}", self.config_maps.name));
        let config_maps = self.config_maps();
        let mut all: Vec<_> = config_maps.map(|api| events(api, only.clone())).collect();
        if self.namespaces.is_empty() {
            all.push(events(self.all_namespaces(), watcher::Config::default()));
        }
        select_all(all).boxed()
    }

    fn config_maps(&self) -> impl Iterator<Item = Api<Readable<ConfigMap>>> {
        places(&self.namespaces).map(|name| api(&self.client, name))
    }

    fn all_namespaces(&self) -> Api<Readable<PartialObjectMeta<Namespace>>> {
        Api::all(self.client.clone())
    }

    /// Writes the ConfigMaps that lack the CA.
    async fn publish(&self, ca: Vec<u8>) -> Result<(), Error> {
        let ca = &*String::from_utf8_lossy(&ca);
        let only =
            ListParams::default().fields(&format!("metadata.name={}", self.config_maps.name));
        let mut found = BTreeMap::new();
        let mut failed = Ok(());
        for api in self.config_maps() {
            match list(&api, &only).await {
                Ok(maps) => found.extend(maps.into_iter().map(|map| {
                    let namespace = map.namespace().unwrap_or_default();
                    (namespace, map.data.and_then(|mut data| data.remove(CA_KEY)))
                })),
                // One of several namespaces may have been deleted together with its Role. The other
                // namespaces still get the CA, and this namespace gets it once writing is permitted
                // again.
                Err(error) if self.namespaces.len() > 1 => failed = Err(error),
                Err(error) => return Err(error),
            }
        }
        let owner = self.owner().await?;
        for namespace in self.wanted().await? {
            // Only the CA is compared. A write wouldn't remove keys that others have added.
            if found.get(&namespace).and_then(Option::as_deref) == Some(ca) {
                continue;
            }
            match self.write(&namespace, ca, &owner).await {
                Ok(()) => {}
                // The namespace is deleted or terminating.
                Err(Error::Api(status)) if status.code == 404 || is_terminating(&status) => {}
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    async fn wanted(&self) -> Result<Vec<String>, Error> {
        if !self.namespaces.is_empty() {
            return Ok(self.namespaces.clone());
        }
        let of = ListParams {
            label_selector: self.selector.clone(),
            ..ListParams::default()
        };
        let all = list(&self.all_namespaces(), &of).await?.into_iter();
        let stays = all.filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
        Ok(stays.map(|namespace| namespace.name_any()).collect())
    }

    /// Returns an owner reference to the operator's namespace, so that the ConfigMaps are deleted
    /// with it.
    async fn owner(&self) -> Result<OwnerReference, Error> {
        let namespaces = self.all_namespaces();
        let own = namespaces.get(&self.config_maps.namespace).await?;
        Ok(own.owner_ref(&()).unwrap_or_default())
    }

    async fn write(&self, namespace: &str, ca: &str, owner: &OwnerReference) -> Result<(), Error> {
        let name = &self.config_maps.name;
        let api = api::<Readable<ConfigMap>>(&self.client, namespace);
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "labels": {MANAGED_BY.0: MANAGED_BY.1},
                "ownerReferences": [owner],
            },
            "data": {CA_KEY: ca},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        api.patch(name, &params, &Patch::Apply(map)).await.map(drop)
    }
}

fn is_terminating(status: &Status) -> bool {
    let details = status.details.iter().flat_map(|details| &details.causes);
    let mut reasons = details.map(|cause| cause.reason.as_str());
    status.code == 403 && reasons.any(|reason| reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Mutex;
    use std::time::SystemTime;

    use http::Method;

    use super::*;
    use headgate_fakes::api_server;
    use headgate_xds::certificate::{Authority, new_authority};
    use headgate_xds::tls::TlsFiles;

    async fn trust() -> watch::Receiver<Arc<Trust>> {
        let dir = tempfile::tempdir().unwrap();
        let (now, life) = (SystemTime::now(), Duration::from_secs(3_600));
        let ca = new_authority("test", life, now).unwrap();
        let signer = Authority::from_pem(ca.cert.as_bytes(), ca.key.as_bytes()).unwrap();
        let own = signer.server(&["headgate".to_owned()], life, now);
        let own = own.unwrap();
        let file = |name: &str, content: &str| {
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let files = TlsFiles {
            cert: file("tls.crt", &own.cert),
            key: file("tls.key", &own.key),
            client_ca: file("ca.crt", &ca.cert),
            tokens: true,
        };
        files.load().await.unwrap().subscribe()
    }

    async fn publisher(client: Client, namespaces: &[&str]) -> Publisher {
        Publisher {
            client,
            config_maps: ObjectKey::new("system", "ca"),
            trust: trust().await,
            namespaces: namespaces.iter().map(ToString::to_string).collect(),
            selector: None,
        }
    }

    /// A forced apply doesn't remove a key that it doesn't own, so it would be repeated at each
    /// change of any namespace.
    #[tokio::test]
    async fn a_key_of_another_owner_causes_no_write() {
        let map = |ca: &str| {
            let data = json!({CA_KEY: ca, "notes": "ours"});
            json!({"metadata": {"name": "ca", "namespace": "shop"}, "data": data})
        };
        for (known, writes) in [("pem", 0), ("old", 1)] {
            let written = Arc::new(Mutex::new(0));
            let (log, map) = (Arc::clone(&written), map(known));
            let client = api_server(move |method, uri, _| {
                if method == Method::PATCH {
                    *log.lock().unwrap() += 1;
                }
                Some(match uri.path().ends_with("/configmaps") {
                    true => (200, json!({"metadata": {}, "items": [map]})),
                    false => (200, json!({"metadata": {"name": "system", "uid": "u"}})),
                })
            });
            let publisher = publisher(client, &["shop"]).await;
            publisher.publish(b"pem".to_vec()).await.unwrap();
            assert_eq!(*written.lock().unwrap(), writes, "{known}");
        }
    }

    /// Users who may update their namespace may write such a time, which `jiff` can't represent.
    #[tokio::test]
    async fn a_namespace_with_odd_managed_fields_keeps_no_other_from_the_ca() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&written);
        let odd = json!([{"time": "9999-12-31T00:00:00Z"}]);
        let client = api_server(move |method, uri, _| {
            let path = uri.path().to_owned();
            Some(match path.rsplit('/').next() {
                Some("ca") => {
                    log.lock().unwrap().push(format!("{method} {path}"));
                    (
                        200,
                        json!({"metadata": {"name": "ca", "managedFields": odd}}),
                    )
                }
                Some("namespaces") => {
                    let items = ["odd", "shop"]
                        .map(|name| json!({"metadata": {"name": name, "managedFields": odd}}));
                    (200, json!({"metadata": {}, "items": items}))
                }
                Some("configmaps") => (200, json!({"metadata": {}, "items": []})),
                _ => (200, json!({"metadata": {"name": "system", "uid": "u"}})),
            })
        });
        let publisher = publisher(client, &[]).await;
        publisher.publish(b"pem".to_vec()).await.unwrap();
        let of = |name: &str| format!("PATCH /api/v1/namespaces/{name}/configmaps/ca");
        assert_eq!(*written.lock().unwrap(), [of("odd"), of("shop")]);
    }

    /// The Role of a namespace is deleted with the namespace.
    #[tokio::test]
    async fn a_namespace_that_is_gone_keeps_no_other_from_the_ca() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&written);
        let client = api_server(move |method, uri, _| {
            let path = uri.path().to_owned();
            Some(match (method, path.contains("/gone/")) {
                (_, true) => (
                    403,
                    json!({"kind": "Status", "status": "Failure", "code": 403}),
                ),
                (&Method::PATCH, _) => {
                    log.lock().unwrap().push(path);
                    (200, json!({"metadata": {}}))
                }
                _ if path.ends_with("/configmaps") => (200, json!({"metadata": {}, "items": []})),
                _ => (200, json!({"metadata": {"name": "system", "uid": "u"}})),
            })
        });
        let publisher = publisher(client, &["gone", "kept"]).await;
        let published = publisher.publish(b"pem".to_vec()).await;
        assert!(published.is_err(), "it is tried again");
        assert_eq!(
            *written.lock().unwrap(),
            ["/api/v1/namespaces/kept/configmaps/ca"]
        );
    }
}
