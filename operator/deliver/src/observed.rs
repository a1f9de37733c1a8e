//! The observed state of Headgate's own objects, and the kinds that the API server serves.
//!
//! A list of a kind that isn't served returns 404. Retrying the list periodically detects a new CRD
//! without the right to read CRDs.

use std::collections::BTreeMap;

use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::info;

use crate::adapter::Adapter;
use crate::cluster::ObjectKey;
use crate::installed::Installed;
use crate::object::{ADAPTER_LABEL, MANAGED_BY, other_operator};
use crate::read::{Keyed, key};
use crate::settings::Settings;
use crate::watch::{self, Namespaces, Watch};

/// A watched resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Objects of an adapter.
    Objects(Adapter),
    /// GatewayClasses, which name the controller of a Gateway.
    GatewayClasses,
}

impl Source {
    /// Returns the resources to watch with these settings. Other resources aren't watched, so no
    /// rights to them are needed.
    pub fn needed(settings: &Settings) -> Vec<Self> {
        // Both of Istio's kinds are watched, so that objects of the old kind are deleted once their
        // successors exist.
        let is_written = |adapter: &Adapter| {
            !adapter.is_of_istio() || adapter.is_plugin() == settings.args.istio_native.is_none()
        };
        let on = { Adapter::ALL.into_iter() }.filter(|adapter| settings.delivers(*adapter));
        let needed = on.filter(|adapter| !settings.args.keep_leftovers || is_written(adapter));
        let mut all: Vec<Self> = needed.map(Self::Objects).collect();
        if settings.istio || settings.envoy_gateway {
            all.push(Self::GatewayClasses);
        }
        all
    }

    /// Returns the adapters whose delivery is off. Objects of an earlier delivery may remain.
    pub fn off(settings: &Settings) -> Vec<Adapter> {
        let is_off =
            |adapter: &Adapter| *adapter != Adapter::ConfigMap && !settings.delivers(*adapter);
        let all = Adapter::ALL.into_iter().filter(is_off);
        all.filter(|_| !settings.args.keep_leftovers).collect()
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::Objects(adapter) => adapter.resource(),
            Self::GatewayClasses => {
                let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "GatewayClass");
                ApiResource::from_gvk_with_plural(&kind, "gatewayclasses")
            }
        }
    }
}

/// An observation from one source. An object of another operator is `None`.
pub type Seen = (Source, watch::Seen<Keyed<Option<Value>>>);

/// Watches all of `sources` until the returned tasks are dropped.
pub fn follow(
    client: &Client,
    sources: &[Source],
    settings: &Settings,
    out: &mpsc::Sender<Seen>,
) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    for &source in sources {
        let resource = source.resource();
        let (kind, client) = (resource.kind.clone(), client.clone());
        let api = move |namespace: &str| watch::api_of(&resource, &client, namespace);
        let (namespaces, labels) = match source {
            Source::Objects(_) => (&*settings.watch_namespaces, Some(ours())),
            Source::GatewayClasses => (&[][..], None),
        };
        let mut watch = Watch::new(&kind, &Namespaces::fixed(namespaces), api);
        watch.config.label_selector = labels;
        watch.longest_pause = settings.retry;
        let operator = settings.operator.clone();
        let read = move |object| keyed(object, &operator);
        let wrap = move |seen| (source, seen);
        watches.spawn(watch.follow(read, wrap, out.clone()));
    }
    watches
}

/// Returns the label selector of the objects that Headgate delivers.
pub(crate) fn ours() -> String {
    format!("{}={},{ADAPTER_LABEL}", MANAGED_BY.0, MANAGED_BY.1)
}

/// The current state of all watched resources.
#[derive(Debug, Default)]
pub struct Observed {
    sources: BTreeMap<Source, Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Whether the kind is served and may be listed. `None` until the first answer.
    served: Option<bool>,
    objects: BTreeMap<ObjectKey, Value>,
}

impl Observed {
    /// Returns the state before any answer for `sources`.
    pub fn new(sources: &[Source]) -> Self {
        let known = |&s| (s, Known::default());
        Self {
            sources: sources.iter().map(known).collect(),
        }
    }

    /// Applies one observation.
    pub fn see(&mut self, (source, seen): Seen) {
        let known = self.sources.entry(source).or_default();
        let kind = source.resource().kind;
        match seen {
            watch::Seen::All(_) => {
                if known.served != Some(true) {
                    info!(kind, "the API server serves this kind: Headgate watches it");
                }
                known.served = Some(true);
            }
            watch::Seen::Failed { status: Some(404) } => {
                if known.served == Some(true) {
                    info!(kind, "the API server no longer serves this kind");
                }
                known.served = Some(false);
                known.objects.clear();
            }
            // Without the right to list a kind of objects, Headgate doesn't deliver it. A starting
            // API server may deny access briefly. Until GatewayClasses can be listed, objects for
            // Gateways don't change.
            watch::Seen::Failed { status: Some(403) }
                if known.served.is_none() && source != Source::GatewayClasses =>
            {
                known.served = Some(false);
            }
            _ => {}
        }
        seen.apply(&mut known.objects, is_older);
    }

    /// Whether every source has been answered at least once.
    pub fn complete(&self) -> bool {
        self.sources.values().all(|k| k.served.is_some())
    }

    /// Returns a kind that isn't known yet and without which `value`, a wanted or an observed
    /// object, can neither be written nor be deleted. The wanted object may exist already, and the
    /// observed one may still be needed.
    pub fn waits_for(&self, adapter: Adapter, value: &Value) -> Option<String> {
        let is_needed = |source: Source| match source {
            // An object of one kind of Istio takes the place of an object of another.
            Source::Objects(other) => {
                other == adapter || other.is_of_istio() && adapter.is_of_istio()
            }
            Source::GatewayClasses => adapter.is_of_gateway(value),
        };
        let mut sources = self.sources.iter();
        let unknown = sources.find(|(source, k)| is_needed(**source) && k.served.is_none());
        unknown.map(|(source, _)| source.resource().kind)
    }

    /// Returns the observed kinds and GatewayClasses of other control planes.
    pub fn installed(&self) -> Installed {
        let is_served = |adapter: &Adapter| {
            let known = self.sources.get(&Source::Objects(*adapter));
            known.is_some_and(|k| k.served == Some(true))
        };
        let classes = self.sources.get(&Source::GatewayClasses);
        let class = |(key, value): (&ObjectKey, &Value)| {
            let controller = value["spec"]["controllerName"].as_str()?;
            Some((key.name.clone(), controller.to_owned()))
        };
        Installed {
            served: Adapter::ALL.into_iter().filter(is_served).collect(),
            classes: classes
                .into_iter()
                .flat_map(|k| &k.objects)
                .filter_map(class)
                .collect(),
        }
    }

    /// Returns Headgate's object with this key, if it was observed.
    pub fn get(&self, adapter: Adapter, key: &ObjectKey) -> Option<&Value> {
        let known = self.sources.get(&Source::Objects(adapter))?;
        known.objects.get(key)
    }

    /// Returns the object with this key. If it doesn't exist, returns the plugin of Istio's other
    /// kind that it replaces.
    pub fn last(&self, adapter: Adapter, key: &ObjectKey) -> Option<&Value> {
        let plugins = { Adapter::ALL.into_iter() }.filter(|a| a.is_plugin() && adapter.is_plugin());
        let mut kinds = std::iter::once(adapter).chain(plugins);
        kinds.find_map(|kind| self.get(kind, key))
    }

    /// Returns all observed objects of Headgate.
    pub fn objects(&self) -> impl Iterator<Item = (Adapter, &ObjectKey, &Value)> {
        Adapter::ALL.into_iter().flat_map(|adapter| {
            let known = self.sources.get(&Source::Objects(adapter));
            let objects = known.into_iter().flat_map(|k| &k.objects);
            objects.map(move |(key, value)| (adapter, key, value))
        })
    }

    /// Records the API server's answer to a write, before the watch reports it.
    pub fn wrote(&mut self, adapter: Adapter, key: ObjectKey, value: Value) {
        let known = self.sources.entry(Source::Objects(adapter)).or_default();
        watch::Seen::Applied((key, value)).apply(&mut known.objects, is_older);
    }

    /// Records a deletion, before the watch reports it.
    pub fn deleted(&mut self, adapter: Adapter, key: &ObjectKey) {
        if let Some(known) = self.sources.get_mut(&Source::Objects(adapter)) {
            known.objects.remove(key);
        }
    }
}

/// Whether `value` is an older version of the object `known`.
fn is_older(value: &Value, known: &Value) -> bool {
    let version = |v: &Value| {
        let version = v["metadata"]["resourceVersion"].as_str();
        version?.parse::<u64>().ok()
    };
    value["metadata"]["uid"] == known["metadata"]["uid"] && version(value) < version(known)
}

fn keyed(object: DynamicObject, operator: &str) -> Keyed<Option<Value>> {
    let key = key(&object.metadata);
    if other_operator(object.annotations(), operator).is_some() {
        return (key, None);
    }
    // Serialization can't fail, because the object consists of maps with string keys.
    (key, Some(serde_json::to_value(object).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::settings;

    const PLUGINS: Source = Source::Objects(Adapter::Istio);

    fn plugin(name: &str, version: u64) -> Keyed<Option<Value>> {
        let metadata = json!({
            "name": name, "namespace": "a", "uid": name, "resourceVersion": version.to_string(),
        });
        let value = json!({"metadata": metadata});
        (ObjectKey::new("a", name), Some(value))
    }

    fn names(observed: &Observed) -> Vec<String> {
        observed.objects().map(|(_, k, _)| k.name.clone()).collect()
    }

    #[test]
    fn a_list_replaces_the_earlier_state() {
        let mut observed = Observed::new(&[PLUGINS]);
        assert!(!observed.complete());
        observed.see((PLUGINS, watch::Seen::All(vec![plugin("x", 1)])));
        assert!(observed.complete() && observed.installed().has(Adapter::Istio));
        observed.see((PLUGINS, watch::Seen::All(vec![plugin("y", 2)])));
        assert_eq!(names(&observed), ["y"]);
        let failed = |status| (PLUGINS, watch::Seen::Failed { status });
        for status in [Some(500), Some(403), None] {
            observed.see(failed(status));
        }
        assert_eq!(names(&observed), ["y"], "an error forgets nothing");
        let (_, z) = plugin("z", 3);
        observed.see((PLUGINS, watch::Seen::Applied((ObjectKey::new("b", "z"), z))));
        observed.see((PLUGINS, watch::Seen::Within("b".to_owned(), vec![])));
        assert_eq!(names(&observed), ["y"], "of another namespace");
        observed.see(failed(Some(404)));
        assert!(observed.complete() && !observed.installed().has(Adapter::Istio));
        assert!(names(&observed).is_empty());
    }

    #[test]
    fn a_watch_that_lags_behind_our_own_writes_is_not_believed() {
        let mut observed = Observed::new(&[PLUGINS]);
        let (key, written) = plugin("x", 7);
        observed.wrote(Adapter::Istio, key.clone(), written.unwrap());
        let version = |o: &Observed| {
            o.get(Adapter::Istio, &key).unwrap()["metadata"]["resourceVersion"].clone()
        };
        observed.see((PLUGINS, watch::Seen::Applied(plugin("x", 6))));
        assert_eq!(version(&observed), "7");
        observed.see((PLUGINS, watch::Seen::Applied(plugin("x", 8))));
        assert_eq!(version(&observed), "8");
    }

    #[test]
    fn only_what_is_written_is_watched_where_leftovers_are_kept() {
        let watched = |istio_native: Option<&str>, keep_leftovers| {
            let mut settings = settings();
            settings.envoy_gateway = false;
            settings.args.istio_native = istio_native.map(Into::into);
            settings.args.keep_leftovers = keep_leftovers;
            assert_eq!(Source::off(&settings).is_empty(), keep_leftovers);
            let mut sources = Source::needed(&settings);
            sources.retain(|s| matches!(s, Source::Objects(_)));
            sources
        };
        let plugins = [Adapter::Istio, Adapter::IstioExtension].map(Source::Objects);
        let filters = [Source::Objects(Adapter::IstioNative)];
        assert_eq!(watched(None, true), plugins);
        assert_eq!(watched(Some("/h.so"), true), filters);
        let all = [&plugins[..], &filters].concat();
        assert_eq!(watched(None, false), all);
        assert_eq!(watched(Some("/h.so"), false), all);
    }
}
