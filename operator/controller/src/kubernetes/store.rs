//! The observed cluster, updated one change at a time.
//!
//! Every change says whether it matters: a Pod's heartbeat, a status that this controller wrote
//! itself, or an unused annotation changes no plan, and so costs only a comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt as _;
use tracing::warn;

use super::cluster::{Cluster, Gateway, ObjectKey, Pod, PolicyObject, Route, Service};
use super::judge::judge;
use super::read::{Keyed, Slice, key};
use super::resource::{AdmissionPolicyStatus, PolicyResource};
use super::shared::Shared;
use super::watch::Seen;
use headgate_api::plan::{TargetKind, TargetRef};

/// Gateway API's kinds that policies target, by the names of their CustomResourceDefinitions.
pub const GATEWAY_KINDS: [(TargetKind, &str); 3] = [
    (TargetKind::Gateway, "gateways.gateway.networking.k8s.io"),
    (
        TargetKind::HttpRoute,
        "httproutes.gateway.networking.k8s.io",
    ),
    (
        TargetKind::GrpcRoute,
        "grpcroutes.gateway.networking.k8s.io",
    ),
];

/// One change on the API server.
#[derive(Debug)]
pub enum Change {
    /// Of policies.
    Policies(Seen<Box<PolicyResource>>),
    /// Of Services.
    Services(Seen<Keyed<Service>>),
    /// Of EndpointSlices.
    Slices(Seen<Keyed<Slice>>),
    /// Of Pods; `None` if it has ended.
    Pods(Seen<Keyed<Option<Pod>>>),
    /// Of CustomResourceDefinitions, by name.
    Definitions(Seen<String>),
    /// Of Gateways, by the watch of this number.
    Gateways(u64, Seen<Keyed<Gateway>>),
    /// Of routes of this kind, by the watch of this number.
    Routes(TargetKind, u64, Seen<Keyed<Route>>),
}

/// The effects of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effect {
    /// Whether a new plan may follow.
    pub plan: bool,
    /// Whether a policy's status may have to be written.
    pub status: bool,
    /// Whether the set of ready replicas may have changed.
    pub peers: bool,
    /// Whether a kind of Gateway API was installed or removed.
    pub kinds: bool,
}

impl Effect {
    /// Returns the union of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            plan: self.plan | other.plan,
            status: self.status | other.status,
            peers: self.peers | other.peers,
            kinds: self.kinds | other.kinds,
        }
    }

    fn plan(is: bool) -> Self {
        Self {
            plan: is,
            ..Self::default()
        }
    }
}

/// A policy's status as observed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observed {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `status`.
    pub status: Option<AdmissionPolicyStatus>,
}

impl Observed {
    /// Whether this is of another object, or newer. Versions are increasing numbers; a version that
    /// isn't a number would count as newer.
    fn is_newer_than(&self, known: &Self) -> bool {
        let number = |o: &Self| o.resource_version.parse::<u128>().ok();
        match (number(self), number(known)) {
            (Some(new), Some(old)) if self.uid == known.uid => new > old,
            _ => self != known,
        }
    }

    /// Returns the observed status of `policy`.
    #[must_use]
    pub fn new(policy: &PolicyResource) -> Self {
        Self {
            uid: policy.uid().unwrap_or_default(),
            generation: policy.metadata.generation.unwrap_or(0),
            resource_version: policy.resource_version().unwrap_or_default(),
            status: policy.status.clone(),
        }
    }
}

/// The policies' statuses, shared by their watch and their writer.
#[derive(Debug, Default)]
pub struct Observations(Mutex<BTreeMap<ObjectKey, Arc<Observed>>>);

impl Observations {
    /// Returns the status of one policy.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Observed>> {
        self.lock().get(key).cloned()
    }

    /// Records a status that a watch reported or a write returned, unless a newer one of the same
    /// object is known: the two may arrive out of order. Returns whether it changed anything.
    pub fn newer(&self, key: ObjectKey, observed: Observed) -> bool {
        let mut all = self.lock();
        let is_news = all
            .get(&key)
            .is_none_or(|known| observed.is_newer_than(known));
        if is_news {
            all.insert(key, Arc::new(observed));
        }
        is_news
    }

    fn remove(&self, key: &ObjectKey) -> bool {
        self.lock().remove(key).is_some()
    }

    fn replace(&self, all: BTreeMap<ObjectKey, Arc<Observed>>) {
        *self.lock() = all;
    }

    fn replace_within(&self, namespace: &str, all: BTreeMap<ObjectKey, Arc<Observed>>) {
        let mut known = self.lock();
        known.retain(|key, _| key.namespace != namespace);
        known.extend(all);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ObjectKey, Arc<Observed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The observed cluster, with what is needed to update it.
#[derive(Debug, Default)]
pub struct Store {
    cluster: Arc<Cluster>,
    observations: Arc<Observations>,
    slices: Slices,
    definitions: BTreeSet<String>,
    listed: Listed,
    watches: BTreeMap<TargetKind, OptionalWatch>,
    last_watch: u64,
    peers_service: ObjectKey,
}

/// Whether each resource has been listed once.
#[derive(Debug, Default)]
struct Listed {
    policies: bool,
    services: bool,
    slices: bool,
    pods: bool,
    definitions: bool,
}

/// The watch of a kind that may not be installed.
#[derive(Debug)]
struct OptionalWatch {
    number: u64,
    /// Whether the kind has been listed, or is known not to be served.
    settled: bool,
}

impl Store {
    /// Returns an empty store. `peers_service` is the Service whose endpoints are Headgate's
    /// replicas.
    #[must_use]
    pub fn new(peers_service: ObjectKey) -> Self {
        Self {
            peers_service,
            ..Self::default()
        }
    }

    /// Returns the current cluster.
    #[must_use]
    pub fn cluster(&self) -> Arc<Cluster> {
        Arc::clone(&self.cluster)
    }

    /// Returns the policies' statuses.
    #[must_use]
    pub fn observations(&self) -> Arc<Observations> {
        Arc::clone(&self.observations)
    }

    /// Returns the resources that haven't been listed yet. A plan made earlier would lack policies
    /// or Pods, and proxies would lose their configuration.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<&'static str> {
        let Listed {
            policies,
            services,
            slices,
            pods,
            definitions,
        } = self.listed;
        let optional = GATEWAY_KINDS
            .iter()
            .map(|(kind, _)| (!self.is_pending(*kind), kind.as_str()));
        [
            (policies, "AdmissionPolicies"),
            (services, "Services"),
            (slices, "EndpointSlices"),
            (pods, "Pods"),
            (definitions, "CustomResourceDefinitions"),
        ]
        .into_iter()
        .chain(optional)
        .filter_map(|(listed, name)| (!listed).then_some(name))
        .collect()
    }

    fn is_pending(&self, kind: TargetKind) -> bool {
        self.wanted_kinds().contains(&kind) && self.watches.get(&kind).is_none_or(|w| !w.settled)
    }

    /// Returns the kinds of Gateway API with a CustomResourceDefinition.
    #[must_use]
    pub fn wanted_kinds(&self) -> BTreeSet<TargetKind> {
        GATEWAY_KINDS
            .iter()
            .filter(|(_, name)| self.definitions.contains(*name))
            .map(|(kind, _)| *kind)
            .collect()
    }

    /// Starts a watch of `kind`: from now on, only changes with this number count.
    pub fn watch_begins(&mut self, kind: TargetKind) -> u64 {
        self.last_watch += 1;
        let watch = OptionalWatch {
            number: self.last_watch,
            settled: false,
        };
        self.watches.insert(kind, watch);
        self.last_watch
    }

    /// Drops all objects of `kind`.
    pub fn watch_ends(&mut self, kind: TargetKind) -> Effect {
        self.watches.remove(&kind);
        Effect::plan(self.clear(kind))
    }

    fn clear(&mut self, kind: TargetKind) -> bool {
        if !self.cluster.served_kinds.contains(&kind) {
            return false;
        }
        let cluster = Arc::make_mut(&mut self.cluster);
        cluster.served_kinds.retain(|k| *k != kind);
        match kind {
            TargetKind::Gateway => cluster.gateways.clear(),
            _ => cluster.routes.retain(|route, _| route.kind != kind),
        }
        true
    }

    /// Returns the namespace of the replicas' own EndpointSlices.
    #[must_use]
    pub fn own_namespace(&self) -> &str {
        &self.peers_service.namespace
    }

    /// Returns the addresses of all ready replicas of Headgate, including this one.
    #[must_use]
    pub fn replicas(&self) -> BTreeSet<SocketAddr> {
        self.slices
            .of(&self.peers_service)
            .flat_map(|s| {
                // The Service has one port; if there were others, the admin port has this name.
                let port = s
                    .ports
                    .get("http-admin")
                    .or_else(|| s.ports.values().next());
                s.ready.iter().filter_map(move |e| {
                    Some(SocketAddr::new(e.address.parse::<IpAddr>().ok()?, *port?))
                })
            })
            .collect()
    }

    /// Applies a change.
    pub fn apply(&mut self, change: Change) -> Effect {
        match change {
            Change::Policies(seen) => self.policies(seen),
            Change::Services(seen) => {
                self.listed.services |= matches!(seen, Seen::All(_));
                Effect::plan(put(
                    &mut self.cluster,
                    |c| &c.services,
                    |c| &mut c.services,
                    seen,
                ))
            }
            Change::Pods(seen) => {
                self.listed.pods |= matches!(seen, Seen::All(_));
                let seen = running(seen);
                Effect::plan(put(&mut self.cluster, |c| &c.pods, |c| &mut c.pods, seen))
            }
            Change::Slices(seen) => self.endpoints(seen),
            Change::Definitions(seen) => {
                self.listed.definitions |= matches!(seen, Seen::All(_));
                Effect {
                    kinds: self.definitions(seen),
                    ..Effect::default()
                }
            }
            Change::Gateways(number, seen) => Effect::plan(
                self.serves(TargetKind::Gateway, number, &seen)
                    .is_some_and(|served| {
                        served
                            | put(
                                &mut self.cluster,
                                |c| &c.gateways,
                                |c| &mut c.gateways,
                                seen,
                            )
                    }),
            ),
            Change::Routes(kind, number, seen) => {
                let Some(served) = self.serves(kind, number, &seen) else {
                    return Effect::default();
                };
                Effect::plan(served | self.routes(kind, seen))
            }
        }
    }

    /// Returns whether this installs or removes `kind`; `None` if the watch has been ended.
    fn serves<V>(&mut self, kind: TargetKind, number: u64, seen: &Seen<V>) -> Option<bool> {
        let watch = self.watches.get_mut(&kind).filter(|w| w.number == number)?;
        match seen {
            Seen::All(_) => {
                watch.settled = true;
                let came = !self.cluster.served_kinds.contains(&kind);
                if came {
                    let cluster = Arc::make_mut(&mut self.cluster);
                    cluster.served_kinds.push(kind);
                    cluster.served_kinds.sort();
                }
                Some(came)
            }
            Seen::Failed { status: Some(404) } => {
                watch.settled = true;
                Some(self.clear(kind))
            }
            _ => Some(false),
        }
    }

    fn routes(&mut self, kind: TargetKind, seen: Seen<Keyed<Route>>) -> bool {
        let target = |key: ObjectKey| TargetRef {
            kind,
            namespace: key.namespace,
            name: key.name,
            section: None,
        };
        let seen = match seen.map(|(key, route)| (target(key), route)) {
            // The list has all routes of this kind only.
            Seen::All(mut all) => {
                let others = self.cluster.routes.iter().filter(|(t, _)| t.kind != kind);
                all.extend(others.map(|(t, r)| (t.clone(), r.clone())));
                Seen::All(all)
            }
            Seen::Within(namespace, mut all) => {
                let others = { self.cluster.routes.iter() }
                    .filter(|(t, _)| t.kind != kind && t.namespace == namespace);
                all.extend(others.map(|(t, r)| (t.clone(), r.clone())));
                Seen::Within(namespace, all)
            }
            seen => seen,
        };
        put(&mut self.cluster, |c| &c.routes, |c| &mut c.routes, seen)
    }

    fn definitions(&mut self, seen: Seen<String>) -> bool {
        let before = self.wanted_kinds();
        match seen {
            Seen::All(all) => self.definitions = all.into_iter().filter(|n| is_ours(n)).collect(),
            Seen::Applied(name) => {
                if is_ours(&name) {
                    self.definitions.insert(name);
                }
            }
            Seen::Deleted(name) => {
                self.definitions.remove(&name);
            }
            Seen::Within(..) | Seen::Failed { .. } => {}
        }
        before != self.wanted_kinds()
    }

    fn endpoints(&mut self, seen: Seen<Keyed<Slice>>) -> Effect {
        self.listed.slices |= matches!(seen, Seen::All(_));
        let replicas = self.replicas();
        let touched = self.slices.apply(seen);
        let mut changed = false;
        for service in touched {
            let count = self.slices.ready(&service);
            if self.cluster.ready_endpoints.get(&service).copied() != count {
                let counts = &mut Arc::make_mut(&mut self.cluster).ready_endpoints;
                match count {
                    Some(count) => counts.insert(service, count),
                    None => counts.remove(&service),
                };
                changed = true;
            }
        }
        Effect {
            plan: changed,
            peers: replicas != self.replicas(),
            ..Effect::default()
        }
    }

    fn policies(&mut self, seen: Seen<Box<PolicyResource>>) -> Effect {
        match seen {
            Seen::All(all) => {
                self.listed.policies = true;
                let observed = all
                    .iter()
                    .map(|p| (key(&p.metadata), Arc::new(Observed::new(p))))
                    .collect();
                self.observations.replace(observed);
                let judged = all.iter().map(|p| (key(&p.metadata), self.judge(p)));
                let judged = Seen::All(judged.collect());
                self.judged(judged)
            }
            Seen::Within(namespace, all) => {
                let observed = all
                    .iter()
                    .map(|p| (key(&p.metadata), Arc::new(Observed::new(p))))
                    .collect();
                self.observations.replace_within(&namespace, observed);
                let judged = all.iter().map(|p| (key(&p.metadata), self.judge(p)));
                let judged = Seen::Within(namespace, judged.collect());
                self.judged(judged)
            }
            Seen::Applied(policy) => {
                let key = key(&policy.metadata);
                let judged = self.judge(&policy);
                let changed = self.cluster.policies.get(&key) != Some(&judged);
                if changed {
                    let policies = &mut Arc::make_mut(&mut self.cluster).policies;
                    policies.insert(key.clone(), judged);
                }
                Effect {
                    plan: changed,
                    status: self.observations.newer(key, Observed::new(&policy)),
                    ..Effect::default()
                }
            }
            Seen::Deleted(policy) => {
                let key = key(&policy.metadata);
                let known = self.cluster.policies.contains_key(&key);
                if known {
                    Arc::make_mut(&mut self.cluster).policies.remove(&key);
                }
                Effect {
                    plan: known,
                    status: self.observations.remove(&key),
                    ..Effect::default()
                }
            }
            Seen::Failed { status } => {
                if status == Some(404) && !self.listed.policies {
                    warn!(
                        "the API server knows no AdmissionPolicy yet; install it: headgate crd | \
                         kubectl apply --server-side -f -"
                    );
                }
                Effect::default()
            }
        }
    }

    /// Applies a list of validated policies.
    fn judged(&mut self, listed: Seen<Keyed<Shared<PolicyObject>>>) -> Effect {
        let policies = put(
            &mut self.cluster,
            |c| &c.policies,
            |c| &mut c.policies,
            listed,
        );
        Effect {
            plan: policies,
            status: true,
            ..Effect::default()
        }
    }

    /// Validates a policy, unless only its status or metadata has changed.
    fn judge(&self, policy: &PolicyResource) -> Shared<PolicyObject> {
        let before = self.cluster.policies.get(&key(&policy.metadata));
        let same = before.filter(|b| {
            policy.metadata.uid.as_deref() == Some(b.uid.as_str())
                && policy.metadata.generation == Some(b.generation)
        });
        let before = before.map(|b| &**b);
        same.cloned()
            .unwrap_or_else(|| judge(policy, before).into())
    }
}

/// Whether a CustomResourceDefinition is one of the relevant kinds of Gateway API.
fn is_ours(name: &str) -> bool {
    GATEWAY_KINDS.iter().any(|(_, ours)| *ours == name)
}

/// The EndpointSlices, also by their Services: a rollout changes each of a cluster's slices several
/// times.
#[derive(Debug, Default)]
struct Slices {
    all: BTreeMap<ObjectKey, Slice>,
    /// The keys of the slices of each Service that has some.
    of: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl Slices {
    /// Applies a change. Returns the Services whose slices may have changed.
    fn apply(&mut self, seen: Seen<Keyed<Slice>>) -> BTreeSet<ObjectKey> {
        let (gone, new): (Vec<ObjectKey>, _) = match seen {
            Seen::All(all) => (self.all.keys().cloned().collect(), all),
            Seen::Within(namespace, all) => {
                let known = self.all.keys().filter(|key| key.namespace == namespace);
                (known.cloned().collect(), all)
            }
            Seen::Applied((key, slice)) => (vec![key.clone()], vec![(key, slice)]),
            Seen::Deleted((key, _)) => (vec![key], Vec::new()),
            Seen::Failed { .. } => return BTreeSet::new(),
        };
        let gone = gone.iter().filter_map(|key| self.remove(key));
        let mut touched: BTreeSet<ObjectKey> = gone.collect();
        for (key, slice) in new {
            if let Some(service) = &slice.service {
                touched.insert(service.clone());
                let of = self.of.entry(service.clone()).or_default();
                of.insert(key.clone());
            }
            self.all.insert(key, slice);
        }
        touched
    }

    /// Removes a slice. Returns its Service.
    fn remove(&mut self, key: &ObjectKey) -> Option<ObjectKey> {
        let service = self.all.remove(key)?.service?;
        if let Some(of) = self.of.get_mut(&service) {
            of.remove(key);
            if of.is_empty() {
                self.of.remove(&service);
            }
        }
        Some(service)
    }

    /// Returns the slices of a Service.
    fn of(&self, service: &ObjectKey) -> impl Iterator<Item = &Slice> {
        let keys = self.of.get(service).into_iter().flatten();
        keys.filter_map(|key| self.all.get(key))
    }

    /// Returns the number of ready endpoints of a Service, each counted once; `None` if it has no
    /// slices.
    fn ready(&self, service: &ObjectKey) -> Option<u32> {
        self.of.get(service)?;
        let ready = self.of(service).flat_map(|slice| &slice.ready);
        let identities: BTreeSet<&str> = ready.map(|e| e.identity.as_str()).collect();
        Some(u32::try_from(identities.len()).unwrap_or(u32::MAX))
    }
}

/// Turns the change of a Pod that has ended into its deletion.
fn running(seen: Seen<Keyed<Option<Pod>>>) -> Seen<Keyed<Pod>> {
    let running = |all: Vec<Keyed<Option<Pod>>>| -> Vec<Keyed<Pod>> {
        let running = all.into_iter().filter_map(|(key, pod)| Some((key, pod?)));
        running.collect()
    };
    match seen {
        Seen::All(all) => Seen::All(running(all)),
        Seen::Within(namespace, all) => Seen::Within(namespace, running(all)),
        Seen::Applied((key, Some(pod))) => Seen::Applied((key, pod)),
        Seen::Applied((key, None)) | Seen::Deleted((key, _)) => {
            Seen::Deleted((key, Pod::default()))
        }
        Seen::Failed { status } => Seen::Failed { status },
    }
}

/// The namespace of a key.
trait Namespaced {
    /// `metadata.namespace`.
    fn namespace(&self) -> &str;
}

impl Namespaced for ObjectKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Namespaced for TargetRef {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Applies a change to one of the cluster's maps. Returns whether it changed anything. The map is
/// copied only if a plan or a delivery holds it, and only if the change is effective.
fn put<K, V>(
    cluster: &mut Arc<Cluster>,
    map: impl Fn(&Cluster) -> &BTreeMap<K, V>,
    map_mut: impl Fn(&mut Cluster) -> &mut BTreeMap<K, V>,
    seen: Seen<(K, V)>,
) -> bool
where
    K: Ord + Namespaced,
    V: PartialEq,
{
    match seen {
        Seen::All(all) => {
            let all: BTreeMap<K, V> = all.into_iter().collect();
            let changed = *map(cluster) != all;
            if changed {
                *map_mut(Arc::make_mut(cluster)) = all;
            }
            changed
        }
        Seen::Within(namespace, all) => {
            let all: BTreeMap<K, V> = all.into_iter().collect();
            let known = map(cluster).iter();
            let changed = !{ known }
                .filter(|(key, _)| key.namespace() == namespace)
                .eq(&all);
            if changed {
                let map = map_mut(Arc::make_mut(cluster));
                map.retain(|key, _| key.namespace() != namespace);
                map.extend(all);
            }
            changed
        }
        Seen::Applied((key, value)) => {
            let changed = map(cluster).get(&key) != Some(&value);
            if changed {
                map_mut(Arc::make_mut(cluster)).insert(key, value);
            }
            changed
        }
        Seen::Deleted((key, _)) => {
            let changed = map(cluster).contains_key(&key);
            if changed {
                map_mut(Arc::make_mut(cluster)).remove(&key);
            }
            changed
        }
        Seen::Failed { .. } => false,
    }
}

#[cfg(test)]
mod tests;
