//! Turns the changes reported by watches into plans.
//!
//! One task owns the state of the cluster, so nothing here needs a lock. A burst of changes is
//! collected, and one plan is made for all of them. Planning runs on its own thread, so that ten
//! thousand Pods don't delay the proxies' streams.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::resolve::Planner;
use super::resource::PolicyResource;
use super::store::{Change, Effect, Store};
use crate::metrics::Metrics;
use crate::source::report;
use headgate_api::plan::{Plan, TargetKind};
use headgate_deliver::PlannedCluster;
use headgate_deliver::read;
use headgate_deliver::watch::{Namespaces, Seen, Watch, api, api_of, send_if_changed};

/// The longest pause between two changes of one burst.
const QUIET: Duration = Duration::from_millis(5);
/// The longest time for which a burst of changes is collected.
const LONGEST_WAIT: Duration = Duration::from_millis(30);
/// The capacity of the queue of changes. Watches wait while it is full.
const BACKLOG: usize = 1_024;

/// Watches the cluster and makes plans.
pub struct Controller {
    client: Client,
    namespaces: Namespaces,
    pub(super) store: Store,
    planner: Planner,
    metrics: Metrics,
    /// The newest plan. The first plan is sent once every resource has been listed.
    plans: watch::Sender<Arc<Plan>>,
    /// The last observed cluster, with its plan.
    pub(super) resolved: watch::Sender<Option<PlannedCluster>>,
    /// Whether any delivery is on. Deliveries read [`PlannedCluster::cluster`]. Without a delivery,
    /// that cluster stays empty, because a shared reference to it would force a copy at the next
    /// change.
    delivers: bool,
    /// The names of the resources that must be listed before the first plan.
    pub(super) waiting: watch::Sender<String>,
    /// Notified when a policy's status has changed on the API server.
    pub(super) statuses: watch::Sender<()>,
    /// The addresses of Headgate's ready replicas.
    pub(super) replicas: watch::Sender<BTreeSet<SocketAddr>>,
    changes: mpsc::Receiver<Change>,
    sender: mpsc::Sender<Change>,
    /// All watches, which end with the controller.
    watches: JoinSet<()>,
    /// Whether every resource has been listed and a first plan has been made.
    is_ready: bool,
}

impl Controller {
    /// Returns a controller for these namespaces. [`Self::run`] starts it.
    pub fn new(
        client: Client,
        namespaces: Namespaces,
        store: Store,
        planner: Planner,
        delivers: bool,
        plans: watch::Sender<Arc<Plan>>,
        metrics: Metrics,
    ) -> Self {
        let (sender, changes) = mpsc::channel(BACKLOG);
        Self {
            client,
            namespaces,
            store,
            planner,
            metrics,
            plans,
            resolved: watch::Sender::new(None),
            delivers,
            waiting: watch::Sender::new("the API server".to_owned()),
            statuses: watch::Sender::new(()),
            replicas: watch::Sender::default(),
            changes,
            sender,
            watches: JoinSet::new(),
            is_ready: false,
        }
    }

    /// Watches and plans until `shutdown` holds `true`.
    ///
    /// # Errors
    /// Returns an error only if planning panics.
    pub async fn run(mut self, mut shutdown: watch::Receiver<bool>) -> anyhow::Result<()> {
        self.begin();
        self.report_missing();
        loop {
            let change = tokio::select! {
                change = self.changes.recv() => change,
                _ = shutdown.wait_for(|stop| *stop) => return Ok(()),
            };
            // This task holds a sender, so the channel never closes.
            let Some(change) = change else { return Ok(()) };
            let effect = self.take_in(change).await;
            self.pass_on(effect).await?;
        }
    }

    /// Applies a change and the rest of its burst.
    async fn take_in(&mut self, first: Change) -> Effect {
        let mut effect = self.store.apply(first);
        let end = Instant::now() + LONGEST_WAIT;
        loop {
            let quiet = end.min(Instant::now() + QUIET);
            match timeout_at(quiet, self.changes.recv()).await {
                Ok(Some(change)) => effect = effect.and(self.store.apply(change)),
                Ok(None) | Err(_) => return effect,
            }
            // Without this check, queued changes could keep this loop busy forever.
            if Instant::now() >= end {
                return effect;
            }
        }
    }

    async fn pass_on(&mut self, effect: Effect) -> anyhow::Result<()> {
        if effect.peers {
            self.replicas.send_replace(self.store.replicas());
        }
        if effect.status {
            self.statuses.send_replace(());
        }
        if !self.is_ready && !self.report_missing() {
            return Ok(());
        }
        if effect.plan || !self.is_ready {
            self.plan().await?;
        }
        Ok(())
    }

    /// Makes a plan and publishes it if it differs from the last one.
    async fn plan(&mut self) -> anyhow::Result<()> {
        let cluster = self.store.cluster();
        let seen = match self.delivers {
            true => Arc::clone(&cluster),
            false => Arc::default(),
        };
        let begun = Instant::now();
        let mut planner = std::mem::take(&mut self.planner);
        let (planner, plan) = tokio::task::spawn_blocking(move || {
            let plan = planner.plan(&cluster);
            (planner, plan)
        })
        .await
        .context("computing a plan failed")?;
        self.planner = planner;
        let before = Arc::clone(&self.plans.borrow());
        let changed = !self.is_ready || *before != plan;
        self.metrics.plan.made(begun.elapsed(), changed);
        let plan = match changed {
            true => Arc::new(plan),
            false => before,
        };
        if changed {
            report::log(&self.plans.borrow(), &plan);
            self.is_ready = true;
            self.plans.send_replace(Arc::clone(&plan));
        }
        // The cluster is published even if the plan is equal, because readers may need other
        // changes, such as a Gateway's class.
        let resolved = PlannedCluster {
            cluster: seen,
            plan,
        };
        self.resolved.send_replace(Some(resolved));
        Ok(())
    }

    /// Publishes the names of the resources that haven't been listed yet. Returns whether all have
    /// been listed.
    fn report_missing(&self) -> bool {
        let missing = self.store.waiting_for().join(", ");
        let done = missing.is_empty();
        send_if_changed(&self.waiting, missing);
        done
    }

    fn begin(&mut self) {
        let policies = self.objects();
        self.watch(policies, prune, Change::Policies);
        let services = self.objects();
        self.watch(services, read::service, Change::Services);
        // The watch includes the EndpointSlices of the replicas' own namespace, because replicas
        // discover each other through them.
        let mut slices = self.objects();
        slices.always = Some(self.store.own_namespace().to_owned());
        self.watch(slices, read::slice, Change::Slices);
        let pods = self.objects();
        self.watch(pods, read::pod, Change::Pods);
        let gateways = self.gateway_api(TargetKind::Gateway);
        self.watch(gateways, |object| read::gateway(&object), Change::Gateways);
        for kind in [TargetKind::HttpRoute, TargetKind::GrpcRoute] {
            let routes = self.gateway_api(kind);
            let wrap = move |seen| Change::Routes(kind, seen);
            self.watch(routes, |object| read::route(&object), wrap);
        }
        let pools = self.gateway_api(TargetKind::InferencePool);
        self.watch(pools, |object| read::pool(&object), Change::Pools);
    }

    /// Returns a watch of a kind that every API server serves.
    fn objects<K>(&self) -> Watch<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let client = self.client.clone();
        let api = move |namespace: &str| api(&client, namespace);
        Watch::new(&K::plural(&()), &self.namespaces, api)
    }

    /// Returns a watch of a kind of Gateway API or its inference extension. While the kind isn't
    /// installed, the API server returns 404 and the list is retried.
    fn gateway_api(&self, kind: TargetKind) -> Watch<DynamicObject> {
        let version = GroupVersionKind::gvk(kind.group(), "v1", kind.as_str());
        let (resource, client) = (ApiResource::from_gvk(&version), self.client.clone());
        let plural = resource.plural.clone();
        let api = move |namespace: &str| api_of(&resource, &client, namespace);
        Watch::new(&plural, &self.namespaces, api)
    }

    fn watch<K, V>(
        &mut self,
        watch: Watch<K>,
        read: impl Fn(K) -> V + Send + 'static,
        wrap: impl Fn(Seen<V>) -> Change + Send + 'static,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        V: Send + 'static,
    {
        let restarts = self.metrics.kubernetes.watch_restarts(&watch.what);
        let counted = move |seen: Seen<V>| {
            // A 404 isn't counted, because the list of a kind that isn't installed is retried
            // periodically.
            if matches!(seen, Seen::Failed { status } if status != Some(404)) {
                restarts.inc();
            }
            wrap(seen)
        };
        self.watches
            .spawn(watch.follow(read, counted, self.sender.clone()));
    }
}

/// Drops a policy's annotations, which Headgate never reads. They may be larger than the rest.
fn prune(mut policy: PolicyResource) -> Arc<PolicyResource> {
    policy.metadata.annotations = None;
    Arc::new(policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headgate_deliver::cluster::ObjectKey;
    use headgate_fakes::api_server;

    fn controller(delivers: bool) -> Controller {
        Controller::new(
            api_server(|_, _, _| None),
            Namespaces::fixed(&[]),
            Store::new(ObjectKey::new("a", "peers")),
            Planner::default(),
            delivers,
            watch::Sender::default(),
            Metrics::new(),
        )
    }

    /// Changes are made in place unless a snapshot of the cluster is held elsewhere.
    #[tokio::test]
    async fn a_cluster_is_kept_only_for_deliveries() {
        for (delivers, holders) in [(false, 1), (true, 2)] {
            let mut controller = controller(delivers);
            controller.plan().await.unwrap();
            let cluster = Arc::downgrade(&controller.store.cluster());
            assert_eq!(cluster.strong_count(), holders, "{delivers}");
        }
    }
}
