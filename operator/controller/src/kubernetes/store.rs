//! The observed cluster, updated by one change at a time.
//!
//! Each change is checked for its effect. A Pod's heartbeat, a status that this controller wrote,
//! or an unused annotation doesn't change the plan, and costs only a comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt as _;
use tracing::{info, warn};

use super::judge::judge;
use super::resource::{AdmissionPolicyStatus, PolicyResource};
use headgate_api::plan::{TargetKind, TargetRef};
use headgate_deliver::cluster::{
    Cluster, Gateway, ObjectKey, Pod, PolicyObject, Pool, Route, Service,
};
use headgate_deliver::read::{Keyed, Slice, key};
use headgate_deliver::watch::Seen;

/// The resources that must be listed before the first plan.
const RESOURCES: [&str; 8] = [
    "AdmissionPolicies",
    "Services",
    "EndpointSlices",
    "Pods",
    TargetKind::Gateway.as_str(),
    TargetKind::HttpRoute.as_str(),
    TargetKind::GrpcRoute.as_str(),
    TargetKind::InferencePool.as_str(),
];

/// A change on the API server.
#[derive(Debug)]
pub enum Change {
    /// A change of policies.
    Policies(Seen<Arc<PolicyResource>>),
    /// A change of Services.
    Services(Seen<Keyed<Service>>),
    /// A change of EndpointSlices.
    Slices(Seen<Keyed<Slice>>),
    /// A change of Pods. The value is `None` if the Pod has ended.
    Pods(Seen<Keyed<Option<Pod>>>),
    /// A change of Gateways.
    Gateways(Seen<Keyed<Gateway>>),
    /// A change of routes of this kind.
    Routes(TargetKind, Seen<Keyed<Route>>),
    /// A change of InferencePools.
    Pools(Seen<Keyed<Pool>>),
}

/// The effects of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effect {
    /// Whether the plan may have changed.
    pub plan: bool,
    /// Whether a policy's status may have to be written.
    pub status: bool,
    /// Whether the set of ready replicas may have changed.
    pub peers: bool,
}

impl Effect {
    /// Returns the union of both effects.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            plan: self.plan | other.plan,
            status: self.status | other.status,
            peers: self.peers | other.peers,
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
    /// Whether this is the same version of the object as `known`, or an older one. Versions are
    /// increasing numbers. A version that isn't a number counts as newer.
    fn is_older(&self, known: &Self) -> bool {
        let number = |o: &Self| o.resource_version.parse::<u128>().ok();
        match (number(self), number(known)) {
            (Some(new), Some(old)) if self.uid == known.uid => new <= old,
            _ => self == known,
        }
    }

    /// Returns the observed status of `policy`.
    pub fn new(policy: &PolicyResource) -> Self {
        Self {
            uid: policy.uid().unwrap_or_default(),
            generation: policy.metadata.generation.unwrap_or(0),
            resource_version: policy.resource_version().unwrap_or_default(),
            status: policy.status.clone(),
        }
    }
}

/// The policies' observed statuses, shared by the watch and the writer.
#[derive(Debug, Default)]
pub struct Observations(Mutex<BTreeMap<ObjectKey, Arc<Observed>>>);

impl Observations {
    /// Returns the status of one policy.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Observed>> {
        self.lock().get(key).cloned()
    }

    /// Records a status that a write returned, if it is newer than the known status of the same
    /// object. The answer of a write may arrive after the watch has reported that the policy was
    /// deleted, or replaced by another of its name. So only the watch adds objects. Returns whether
    /// anything changed.
    pub fn newer(&self, key: &ObjectKey, observed: Observed) -> bool {
        let mut all = self.lock();
        let known = all.get_mut(key).filter(|k| k.uid == observed.uid);
        let Some(known) = known.filter(|k| !observed.is_older(k)) else {
            return false;
        };
        *known = Arc::new(observed);
        true
    }

    /// Records an observation of the watch. Returns whether anything changed.
    pub(super) fn see(&self, seen: Seen<Keyed<Arc<Observed>>>) -> bool {
        seen.apply(&mut *self.lock(), |new, known| new.is_older(known))
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
    /// The elements of [`RESOURCES`] that have been listed, or that the API server doesn't serve.
    listed: BTreeSet<&'static str>,
    peers_service: ObjectKey,
}

impl Store {
    /// Returns an empty store. `peers_service` is the Service whose endpoints are Headgate's
    /// replicas.
    pub fn new(peers_service: ObjectKey) -> Self {
        Self {
            peers_service,
            ..Self::default()
        }
    }

    /// Returns the current cluster.
    pub fn cluster(&self) -> Arc<Cluster> {
        Arc::clone(&self.cluster)
    }

    /// Returns the policies' statuses.
    pub fn observations(&self) -> Arc<Observations> {
        Arc::clone(&self.observations)
    }

    /// Returns the resources that haven't been listed yet. A plan without them would lack policies
    /// or Pods, and proxies would lose their configuration.
    pub fn waiting_for(&self) -> Vec<&'static str> {
        let mut waiting = RESOURCES.to_vec();
        waiting.retain(|name| !self.listed.contains(name));
        waiting
    }

    /// Returns the namespace of the replicas' own EndpointSlices.
    pub fn own_namespace(&self) -> &str {
        &self.peers_service.namespace
    }

    /// Returns one address of each ready replica of Headgate, including this one. With both
    /// addresses of a dual-stack Service, a replica's proxies would be counted twice.
    pub fn replicas(&self) -> BTreeSet<SocketAddr> {
        let addresses = self.slices.of(&self.peers_service).flat_map(|s| {
            // The Service usually has one port. If it has several, the admin port has this name.
            let port = s
                .ports
                .get("http-admin")
                .or_else(|| s.ports.values().next());
            s.ready.iter().filter_map(move |e| {
                let address = SocketAddr::new(e.address.parse::<IpAddr>().ok()?, *port?);
                Some((&e.identity, address))
            })
        });
        addresses
            .collect::<BTreeMap<_, _>>()
            .into_values()
            .collect()
    }

    /// Applies a change.
    pub fn apply(&mut self, change: Change) -> Effect {
        match change {
            Change::Policies(seen) => self.policies(seen),
            Change::Services(seen) => {
                self.listed("Services", &seen);
                let news = seen.news(&self.cluster.services);
                Effect::plan(self.put(|c| &mut c.services, news))
            }
            Change::Pods(seen) => {
                self.listed("Pods", &seen);
                let news = seen.news(&self.cluster.pods);
                Effect::plan(self.put(|c| &mut c.pods, news))
            }
            Change::Slices(seen) => self.endpoints(seen),
            Change::Gateways(seen) => {
                let kind = TargetKind::Gateway;
                let changed = self.serves(kind, &seen);
                let news = seen.news(&self.cluster.gateways);
                Effect::plan(changed | self.put(|c| &mut c.gateways, news))
            }
            Change::Pools(seen) => {
                let changed = self.serves(TargetKind::InferencePool, &seen);
                let news = seen.news(&self.cluster.pools);
                Effect::plan(changed | self.put(|c| &mut c.pools, news))
            }
            Change::Routes(kind, seen) => {
                let changed = self.serves(kind, &seen);
                let target = |(key, route): Keyed<Route>| {
                    (TargetRef::new(kind, key.namespace, key.name), route)
                };
                let seen = seen.map(target);
                let mut news = seen.news(&self.cluster.routes);
                // The list of one kind doesn't delete routes of the other.
                news.retain(|(target, _)| target.kind == kind);
                Effect::plan(changed | self.put(|c| &mut c.routes, news))
            }
        }
    }

    /// Records that a resource has been listed, if `seen` is its list.
    fn listed<V>(&mut self, name: &'static str, seen: &Seen<V>) {
        if matches!(seen, Seen::All(_)) {
            self.listed.insert(name);
        }
    }

    /// Applies changes to one of the cluster's maps. Returns whether anything changed. The map is
    /// copied only if a plan or a delivery shares it.
    fn put<K: Ord + Clone, V: Clone>(
        &mut self,
        map: impl Fn(&mut Cluster) -> &mut Arc<BTreeMap<K, V>>,
        news: Vec<(K, Option<V>)>,
    ) -> bool {
        if news.is_empty() {
            return false;
        }
        let map = Arc::make_mut(map(Arc::make_mut(&mut self.cluster)));
        for (key, value) in news {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        true
    }

    /// Records whether a kind of Gateway API or its inference extension is served. Returns whether
    /// that has changed.
    fn serves<V>(&mut self, kind: TargetKind, seen: &Seen<V>) -> bool {
        let is_served = match seen {
            Seen::All(_) => true,
            Seen::Failed { status: Some(404) } => false,
            _ => return false,
        };
        self.listed.insert(kind.as_str());
        if self.cluster.served_kinds.contains(&kind) == is_served {
            return false;
        }
        let cluster = Arc::make_mut(&mut self.cluster);
        cluster.served_kinds.retain(|known| *known != kind);
        match (is_served, kind) {
            (true, _) => {
                info!("the API server has {kind}");
                cluster.served_kinds.push(kind);
                cluster.served_kinds.sort();
            }
            (false, TargetKind::Gateway) => Arc::make_mut(&mut cluster.gateways).clear(),
            (false, TargetKind::InferencePool) => Arc::make_mut(&mut cluster.pools).clear(),
            (false, _) => Arc::make_mut(&mut cluster.routes).retain(|route, _| route.kind != kind),
        }
        if !is_served {
            info!("{kind} is no longer served by the API server");
        }
        true
    }

    fn endpoints(&mut self, seen: Seen<Keyed<Slice>>) -> Effect {
        self.listed("EndpointSlices", &seen);
        let replicas = self.replicas();
        let touched = self.slices.apply(seen);
        let mut changed = false;
        for service in touched {
            let count = self.slices.ready(&service);
            if self.cluster.ready_endpoints.get(&service).copied() != count {
                let cluster = Arc::make_mut(&mut self.cluster);
                let counts = Arc::make_mut(&mut cluster.ready_endpoints);
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

    fn policies(&mut self, seen: Seen<Arc<PolicyResource>>) -> Effect {
        let name = "AdmissionPolicies";
        if seen == (Seen::Failed { status: Some(404) }) && !self.listed.contains(name) {
            warn!(
                "the CRD of AdmissionPolicy isn't installed yet; install it: headgate crd | \
                 kubectl apply --server-side -f -"
            );
        }
        self.listed(name, &seen);
        let seen = seen.map(|policy| (key(&policy.metadata), policy));
        let observed =
            |(key, policy): Keyed<Arc<PolicyResource>>| (key, Arc::new(Observed::new(&policy)));
        let status = self.observations.see(seen.clone().map(observed));
        let judged = seen.map(|(key, policy)| (key, self.judge(&policy)));
        let news = judged.news(&self.cluster.policies);
        Effect {
            plan: self.put(|c| &mut c.policies, news),
            status,
            ..Effect::default()
        }
    }

    /// Validates a policy. Reuses the known result if only its status or metadata has changed.
    fn judge(&self, policy: &PolicyResource) -> Arc<PolicyObject> {
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

/// The EndpointSlices, with an index by Service, because a rollout changes each slice several
/// times.
#[derive(Debug, Default)]
struct Slices {
    all: BTreeMap<ObjectKey, Slice>,
    /// The keys of the slices, by Service.
    of: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl Slices {
    /// Applies a change. Returns the Services whose slices may have changed.
    fn apply(&mut self, seen: Seen<Keyed<Slice>>) -> BTreeSet<ObjectKey> {
        let mut touched = BTreeSet::new();
        for (key, slice) in seen.news(&self.all) {
            touched.extend(self.remove(&key));
            let Some(slice) = slice else { continue };
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

    /// Returns the number of ready endpoints of a Service, each counted once. `None` if the Service
    /// has no slices.
    fn ready(&self, service: &ObjectKey) -> Option<u32> {
        self.of.get(service)?;
        let ready = self.of(service).flat_map(|slice| &slice.ready);
        let identities: BTreeSet<&str> = ready.map(|e| e.identity.as_str()).collect();
        Some(u32::try_from(identities.len()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests;
