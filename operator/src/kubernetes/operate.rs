//! Puts the pieces together: from the API server to plans, and for the leader from proxies back to
//! statuses.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::authorize::Authorizer;
use super::client::{Access, connect};
use super::cluster::ObjectKey;
use super::controller::{Controller, Outputs, Resolved};
use super::deliver::{self, DeliverArgs, Delivered};
use super::leader::{Candidate, Leadership};
use super::peers::{self, Peers};
use super::publish::Publisher;
use super::resolve::Planner;
use super::store::{Observations, Store};
use super::tokens::ProxyTokens;
use super::writer::{Inputs, Writer};
use super::{events, watch::random};
use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::xds::module::Modules;
use crate::xds::registry::Registry;

/// What an operator in a cluster is told at its start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Which API server.
    pub access: Access,
    /// Its own namespace, where the Lease is; the client's by default.
    pub namespace: Option<String>,
    /// Its name among the replicas; made up by default.
    pub identity: Option<String>,
    /// The Lease, in its namespace, whose holder writes.
    pub lease: String,
    /// The Service, in its namespace, whose endpoints are the admin addresses of all replicas.
    pub peers_service: String,
    /// File with the token that the other replicas are shown.
    pub peers_token: Option<PathBuf>,
    /// Namespaces that are watched; all where none is named.
    pub watch_namespaces: Vec<String>,
    /// What is written for other control planes.
    pub deliver: DeliverArgs,
    /// The name of the ConfigMaps with the CA of proxies, and its file.
    pub publish_ca: Option<(String, PathBuf)>,
}

/// An operator that follows the cluster, and doesn't write yet.
pub struct Operator {
    client: Client,
    lease: ObjectKey,
    /// Its name among the replicas.
    pub identity: String,
    metrics: Metrics,
    /// The policies' statuses as the API server has them.
    pub observations: Arc<Observations>,
    observed: watch::Receiver<()>,
    replicas: watch::Receiver<BTreeSet<SocketAddr>>,
    resolved: watch::Receiver<Option<Resolved>>,
    peers_token: Option<PathBuf>,
    deliver: deliver::Settings,
    publisher: Option<Publisher>,
    /// What hasn't been listed yet; empty once everything has.
    pub waiting: watch::Receiver<String>,
    /// Ends with an error, or at the shutdown.
    pub following: JoinHandle<anyhow::Result<()>>,
}

impl Operator {
    /// Begins to follow the cluster. The first plan is sent when everything was listed once.
    ///
    /// # Errors
    /// One line: no API server is known.
    pub async fn start(
        settings: Settings,
        plans: watch::Sender<Arc<Plan>>,
        metrics: Metrics,
        shutdown: watch::Receiver<bool>,
    ) -> anyhow::Result<Self> {
        let (client, default_namespace) = connect(&settings.access, metrics.clone()).await?;
        let namespace = settings.namespace.unwrap_or(default_namespace);
        let identity = settings
            .identity
            .unwrap_or_else(|| format!("headgate-{:08x}", random() >> 32));
        let deliver = deliver::Settings {
            watch_namespaces: settings.watch_namespaces.clone(),
            ..deliver::Settings::new(&settings.deliver, &namespace)?
        };
        let publisher = settings.publish_ca.map(|(name, file)| {
            let config_maps = ObjectKey::new(namespace.clone(), name);
            Publisher::new(
                client.clone(),
                config_maps,
                file,
                settings.watch_namespaces.clone(),
            )
        });
        let lease = ObjectKey::new(namespace.clone(), settings.lease);
        let peers_service = ObjectKey::new(namespace, settings.peers_service);
        let (waiting, waiting_receiver) = watch::channel("the API server".to_owned());
        let (statuses, observed) = watch::channel(());
        let (replicas, replicas_receiver) = watch::channel(BTreeSet::new());
        let (resolved, resolved_receiver) = watch::channel(None);
        let outputs = Outputs {
            plans,
            resolved,
            delivers: deliver.is_on(),
            waiting,
            statuses,
            replicas,
        };
        let store = Store::new(peers_service);
        let namespaces = settings.watch_namespaces;
        let planner = Planner::new(&deliver.envoy_gateway_namespace);
        let controller = Controller::new(
            client.clone(),
            namespaces,
            store,
            planner,
            metrics.clone(),
            outputs,
        );
        let observations = controller.observations();
        let following = tokio::spawn(controller.run(shutdown));
        Ok(Self {
            client,
            lease,
            identity,
            metrics,
            observations,
            observed,
            replicas: replicas_receiver,
            resolved: resolved_receiver,
            peers_token: settings.peers_token,
            deliver,
            publisher,
            waiting: waiting_receiver,
            following,
        })
    }

    /// Asks the API server who may read what this operator shows.
    #[must_use]
    pub fn authorizer(&self) -> Authorizer {
        Authorizer::new(self.client.clone())
    }

    /// Asks the API server which accounts proxies' tokens are of.
    #[must_use]
    pub fn proxy_tokens(&self) -> ProxyTokens {
        ProxyTokens::new(self.client.clone())
    }

    /// Begins to write what became of policies, while this replica leads, until `shutdown` holds
    /// `true`. The task ends when the last write has ended and the Lease was given back, in this
    /// order.
    pub fn write(
        self,
        plans: watch::Receiver<Arc<Plan>>,
        registry: Arc<Registry>,
        modules: watch::Receiver<Arc<Modules>>,
        shutdown: watch::Receiver<bool>,
    ) -> Writing {
        let (candidate, leadership, interrupted) = Candidate::new(
            self.client.clone(),
            self.lease,
            self.identity.clone(),
            self.metrics.clone(),
        );
        let (peers, peers_receiver) = watch::channel(Peers::default());
        let (deliveries, deliveries_receiver) = watch::channel(Arc::default());
        let (news, news_receiver) = mpsc::channel(events::BACKLOG);
        let inputs = Inputs {
            plans,
            observations: self.observations,
            observed: self.observed,
            registry,
            peers: peers_receiver,
            deliveries: deliveries_receiver,
            leadership: leadership.clone(),
        };
        let leading_now = leadership.clone();
        let publishing_ca = self
            .publisher
            .map(|publisher| publisher.run(leadership.clone()));
        let writer = Writer::new(self.client.clone(), inputs, news, self.metrics.clone());
        let following_peers = peers::follow(
            self.replicas,
            self.identity.clone(),
            self.peers_token,
            leadership.clone(),
            peers,
            shutdown.clone(),
        );
        let delivering = deliver_while_leading(
            self.client.clone(),
            self.deliver,
            self.resolved,
            modules,
            leadership,
            interrupted,
            deliveries,
        );
        let publishing = events::publish(self.client, self.identity, news_receiver, self.metrics);
        let task = tokio::spawn(async move {
            let (stop_leading, stopped) = watch::channel(false);
            let leading = tokio::spawn(candidate.run(stopped));
            let mut others = JoinSet::new();
            others.spawn(following_peers);
            others.spawn(publishing);
            if let Some(publishing_ca) = publishing_ca {
                others.spawn(publishing_ca);
            }
            let delivering = tokio::spawn(delivering);
            writer.run(shutdown).await;
            delivering.abort();
            // A write that it was about is over when this is.
            let _ = delivering.await;
            // Dropping the set ends the others: an Event may be lost, a status may not.
            drop(others);
            stop_leading.send_replace(true);
            // The task has no panics; were there one, the Lease runs out by itself.
            let _ = leading.await;
        });
        Writing {
            following: self.following,
            leadership: leading_now,
            task,
        }
    }
}

/// An operator that follows the cluster and takes part in writing.
pub struct Writing {
    /// Ends with an error, or at the shutdown.
    pub following: JoinHandle<anyhow::Result<()>>,
    /// Whether this replica leads.
    pub leadership: Leadership,
    /// Ends after the shutdown, when nothing is written any more and the Lease was given back.
    pub task: JoinHandle<()>,
}

/// Writes objects for other control planes, while this replica leads: here, and nowhere else, a new
/// plan becomes objects.
async fn deliver_while_leading(
    client: Client,
    settings: deliver::Settings,
    mut resolved: watch::Receiver<Option<Resolved>>,
    mut modules: watch::Receiver<Arc<Modules>>,
    mut leadership: Leadership,
    interrupted: watch::Receiver<bool>,
    delivered: watch::Sender<Arc<Delivered>>,
) {
    let Some(first) = view(&mut resolved, &mut modules).await else {
        return;
    };
    let (views, view_receiver) = watch::channel(first);
    let following = async {
        loop {
            tokio::select! {
                Ok(()) = resolved.changed() => {}
                Ok(()) = modules.changed() => {}
                else => return,
            }
            if let Some(view) = view(&mut resolved, &mut modules).await {
                views.send_replace(view);
            }
        }
    };
    let leading = async {
        while leadership.wait_for(Option::is_some).await.is_ok() {
            let run = deliver::run(
                client.clone(),
                settings.clone(),
                *interrupted.borrow(),
                view_receiver.clone(),
                delivered.clone(),
            );
            tokio::select! {
                () = run => return,
                lost = leadership.wait_for(Option::is_none) => if lost.is_err() {
                    return;
                },
            }
        }
    };
    tokio::join!(following, leading);
}

/// What deliveries are made of now; `None` when nothing follows the cluster any more.
async fn view(
    resolved: &mut watch::Receiver<Option<Resolved>>,
    modules: &mut watch::Receiver<Arc<Modules>>,
) -> Option<deliver::View> {
    let resolved = resolved.wait_for(Option::is_some).await.ok()?.clone()?;
    Some(deliver::View {
        cluster: resolved.cluster,
        plan: resolved.plan,
        module_sha256: modules.borrow_and_update().wasm.sha256.clone(),
    })
}
