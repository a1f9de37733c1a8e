//! Composition of the operator. Watches of the API server are the input of plans. On the leader,
//! plans and proxies' answers are the input of statuses.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use headgate_api::validate::is_label;
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::ca_bundle::CaBundle;
use super::client::{Access, connect};
use super::controller::Controller;
use super::events;
use super::leader::{Candidate, ElectionArgs, Leadership, while_leading};
use super::peers::{self, Peers};
use super::publish::Publisher;
use super::resolve::Planner;
use super::selected::selected;
use super::store::{Observations, Store};
use super::writer::{Inputs, Writer};
use crate::metrics::Metrics;
use headgate_api::plan::Plan;
use headgate_deliver::cluster::ObjectKey;
use headgate_deliver::watch::Namespaces;
use headgate_deliver::{DeliverArgs, Settings};
use headgate_xds::module::Modules;
use headgate_xds::random::random;
use headgate_xds::registry::Registry;
use headgate_xds::review::authorize::Authorizer;
use headgate_xds::review::tokens::ProxyTokens;
use headgate_xds::tls::Trust;

/// The arguments of an operator in a cluster.
#[derive(Debug, Clone, Args)]
pub struct OperatorArgs {
    /// Kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the Pod's service account]
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    pub context: Option<String>,
    /// Namespace of this operator and of its Lease [default: that of the Pod or of the context]
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub pod_namespace: Option<String>,
    /// Unique name of this replica [default: random]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// Name of the Lease in the operator's namespace, the same for all replicas. Its holder is the
    /// leader
    #[arg(long, value_name = "NAME", default_value = "headgate")]
    pub lease: String,
    /// The election of the replica that writes
    #[command(flatten)]
    pub election: ElectionArgs,
    /// Service in the operator's namespace whose endpoints are the admin addresses of all replicas
    #[arg(long, value_name = "NAME", default_value = "headgate-metrics")]
    pub peers_service: String,
    /// File with the bearer token for queries to the other replicas about their proxies; read again
    /// for each query
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub peers_token: Option<PathBuf>,
    /// Namespace whose policies, Services, Pods, gateways and routes are watched, and in which
    /// objects are written; may be repeated [default: all]
    #[arg(
        long = "watch-namespace",
        value_name = "NAME",
        requires = "kubernetes",
        value_parser = namespace
    )]
    pub watch_namespaces: Vec<String>,
    /// Label selector of the watched namespaces, in place of --watch-namespace. A namespace that no
    /// longer matches counts as deleted
    #[arg(
        long,
        value_name = "SELECTOR",
        requires = "kubernetes",
        conflicts_with = "watch_namespaces"
    )]
    pub namespace_selector: Option<String>,
    /// Objects for other control planes
    #[command(flatten)]
    pub deliver: DeliverArgs,
}

impl OperatorArgs {
    /// Returns the access to the API server.
    pub fn access(&self) -> Access {
        Access {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
        }
    }

    /// Returns the namespace of this operator, if given.
    pub fn namespace(&self) -> Option<String> {
        self.pod_namespace.clone().filter(|n| !n.is_empty())
    }
}

/// Parses the name of a namespace.
fn namespace(text: &str) -> Result<String, String> {
    match is_label(text) {
        true => Ok(text.to_owned()),
        false => Err(
            "no namespace's name: at most 63 lower-case letters, digits and inner hyphens, such as \
             shop"
                .to_owned(),
        ),
    }
}

/// A running operator.
pub struct Operator {
    client: Client,
    /// The name of this replica.
    pub identity: String,
    /// The policies' statuses as observed.
    pub observations: Arc<Observations>,
    /// The resources that haven't been listed yet. Empty once all have been listed.
    pub waiting: watch::Receiver<String>,
    /// The time until which this replica leads, if it does.
    pub leadership: Leadership,
    /// The task that ends after the shutdown, once all writes have ended and the Lease has been
    /// released.
    pub writing: JoinHandle<()>,
}

/// The state that an operator shares with the servers of its process.
pub struct Shared {
    /// The plans for the servers.
    pub plans: watch::Sender<Arc<Plan>>,
    /// The registry of the xDS server's proxies.
    pub registry: Arc<Registry>,
    /// The modules of the filter.
    pub modules: watch::Receiver<Arc<Modules>>,
    /// The metrics of the process.
    pub metrics: Metrics,
}

impl Operator {
    /// Starts to watch the cluster. The first plan is sent once every resource has been listed.
    /// From then on, writes statuses and Events and delivers objects while this replica leads. The
    /// returned task watches. It ends with an error, or after `shutdown` holds `true`.
    ///
    /// # Errors
    /// Returns one line if the API server isn't configured, or if the times of the election
    /// contradict each other.
    pub async fn start(
        mut args: OperatorArgs,
        publish_ca: Option<(String, watch::Receiver<Arc<Trust>>)>,
        ca_bundle: Option<CaBundle>,
        shared: Shared,
        shutdown: watch::Receiver<bool>,
    ) -> anyhow::Result<(Self, JoinHandle<anyhow::Result<()>>)> {
        args.election.check()?;
        args.watch_namespaces.sort();
        args.watch_namespaces.dedup();
        let Shared {
            plans,
            registry,
            modules,
            metrics,
        } = shared;
        let (client, default_namespace) = connect(&args.access(), metrics.clone()).await?;
        let namespace = args.namespace().unwrap_or(default_namespace);
        let identity = args.pod_name.filter(|name| !name.is_empty());
        let identity = identity.unwrap_or_else(|| format!("headgate-{:08x}", random() >> 32));
        let lease = ObjectKey::new(namespace.clone(), args.lease);
        let deliver = Settings {
            watch_namespaces: args.watch_namespaces.clone(),
            ..Settings::new(args.deliver, &lease)?
        };
        let namespaces = match &args.namespace_selector {
            // Objects are delivered and removed in all namespaces, because a namespace that has
            // lost its label may still contain some.
            Some(selector) => selected(&client, selector),
            None => Namespaces::fixed(&args.watch_namespaces),
        };
        let (planned, mut first_plan) = (plans.subscribe(), plans.subscribe());
        let controller = Controller::new(
            client.clone(),
            namespaces,
            Store::new(ObjectKey::new(namespace.clone(), args.peers_service)),
            Planner::new(
                &deliver.args.envoy_gateway_namespace,
                deliver.args.envoy_gateway_native.is_some(),
            ),
            deliver.is_on(),
            plans,
            metrics.clone(),
        );
        let (candidate, leadership, outage) = Candidate::new(
            client.clone(),
            lease,
            identity.clone(),
            args.election,
            metrics.clone(),
        );
        let (peers, peers_receiver) = watch::channel(Peers::default());
        let (deliveries, deliveries_receiver) = watch::channel(Arc::default());
        let (news, news_receiver) = mpsc::channel(events::BACKLOG);
        let observations = controller.store.observations();
        let inputs = Inputs {
            plans: planned,
            observations: Arc::clone(&observations),
            observed: controller.statuses.subscribe(),
            registry,
            peers: peers_receiver,
            deliveries: deliveries_receiver,
            leadership: leadership.clone(),
        };
        let writer = Writer::new(client.clone(), inputs, news, metrics.clone());
        let mut others = JoinSet::new();
        others.spawn(peers::follow(
            controller.replicas.subscribe(),
            identity.clone(),
            args.peers_token,
            leadership.clone(),
            peers,
            shutdown.clone(),
        ));
        if let Some((name, trust)) = publish_ca {
            let publisher = Publisher {
                client: client.clone(),
                config_maps: ObjectKey::new(namespace, name),
                trust,
                namespaces: args.watch_namespaces,
                selector: args.namespace_selector,
            };
            others.spawn(publisher.run(leadership.clone()));
        }
        if let Some(bundle) = ca_bundle {
            others.spawn(bundle.run(client.clone(), leadership.clone()));
        }
        let (deliver_client, resolved) = (client.clone(), controller.resolved.subscribe());
        let delivering = tokio::spawn(while_leading(leadership.clone(), move || {
            headgate_deliver::run(
                deliver_client.clone(),
                deliver.clone(),
                Arc::clone(&outage),
                resolved.clone(),
                modules.clone(),
                deliveries.clone(),
            )
        }));
        others.spawn(events::publish(
            client.clone(),
            identity.clone(),
            news_receiver,
            metrics,
        ));
        let waiting = controller.waiting.subscribe();
        let watching = tokio::spawn(controller.run(shutdown.clone()));
        let operator = Self {
            client,
            identity,
            observations,
            waiting,
            leadership,
            writing: tokio::spawn(async move {
                let (stop_leading, stopped) = watch::channel(false);
                let leading = tokio::spawn(async move {
                    // A replica without a plan serves no proxies, and leaves the Lease to others.
                    if first_plan.changed().await.is_ok() {
                        candidate.run(stopped).await;
                    }
                });
                writer.run(shutdown).await;
                delivering.abort();
                // No write of a delivery is in flight after this.
                let _ = delivering.await;
                // Dropping the set aborts the other tasks. An Event may be lost, but the statuses
                // have been written.
                drop(others);
                stop_leading.send_replace(true);
                // The task doesn't panic. If it did, the Lease would expire by itself.
                let _ = leading.await;
            }),
        };
        Ok((operator, watching))
    }

    /// Returns the authorizer of requests for this operator's status and metrics.
    pub fn authorizer(&self) -> Authorizer {
        Authorizer::new(self.client.clone())
    }

    /// Returns the reviewer of proxies' tokens.
    pub fn proxy_tokens(&self) -> ProxyTokens {
        ProxyTokens::new(self.client.clone())
    }
}
