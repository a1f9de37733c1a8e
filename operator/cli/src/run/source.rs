//! The source of the policies of `headgate run`: a folder, or the API server of a cluster.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use clap::Args;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use headgate_api::plan::Plan;
use headgate_controller::kubernetes::authorize::Authorizer;
use headgate_controller::kubernetes::ca_bundle::CaBundle;
use headgate_controller::kubernetes::client::Access;
use headgate_controller::kubernetes::deliver::DeliverArgs;
use headgate_controller::kubernetes::deliver::object::dns;
use headgate_controller::kubernetes::leader::Leadership;
use headgate_controller::kubernetes::operate::{Operator, Settings, Writing};
use headgate_controller::kubernetes::store::Observations;
use headgate_controller::kubernetes::tokens::ProxyTokens;
use headgate_controller::metrics::Metrics;
use headgate_controller::source;
use headgate_controller::xds::module::Modules;
use headgate_controller::xds::registry::Registry;

/// The source of policies: a folder or a cluster.
#[derive(Debug, Clone, Args)]
pub struct SourceArgs {
    /// Folder with AdmissionPolicy files (*.yaml, *.yml)
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "kubernetes",
        conflicts_with = "kubernetes"
    )]
    pub config_dir: Option<PathBuf>,
    /// Read AdmissionPolicies from the API server, and write their status
    #[arg(long)]
    pub kubernetes: bool,
    /// Kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the Pod's service account]
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    pub context: Option<String>,
    /// Namespace of this operator and of its Lease [default: that of the Pod or of the context]
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub pod_namespace: Option<String>,
    /// Name of this replica among all [default: random]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// Lease in the operator's namespace, whose holder writes; one for all replicas
    #[arg(long, value_name = "NAME", default_value = "headgate")]
    pub lease: String,
    /// Service in the operator's namespace with the admin addresses of all replicas
    #[arg(long, value_name = "NAME", default_value = "headgate-metrics")]
    pub peers_service: String,
    /// File with the bearer token for queries to the other replicas about their proxies; it is read
    /// for each request
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub peers_token: Option<PathBuf>,
    /// Namespace whose policies, Services, Pods, gateways and routes are watched, and in which
    /// objects are written; may be given several times [default: all]
    #[arg(
        long = "watch-namespace",
        value_name = "NAME",
        requires = "kubernetes",
        value_parser = namespace
    )]
    pub watch_namespaces: Vec<String>,
    /// Selector of the watched namespaces by their labels, in place of --watch-namespace: those
    /// that get the labels are watched, and those that lose them are let go like deleted ones
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

impl SourceArgs {
    /// # Errors
    /// Returns one line if the folder is missing.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match &self.config_dir {
            Some(dir) if !dir.is_dir() => bail!(
                "--config-dir {}: no such folder; create it and put AdmissionPolicy files in",
                dir.display()
            ),
            _ => Ok(()),
        }
    }

    /// Returns the name of the source for messages.
    pub(super) fn name(&self) -> String {
        match &self.config_dir {
            Some(dir) => dir.display().to_string(),
            None => "the API server".to_owned(),
        }
    }

    /// Returns the access to the API server.
    pub(super) fn access(&self) -> Access {
        Access {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
        }
    }

    /// Returns the namespace of this operator, if given.
    pub(super) fn namespace(&self) -> Option<String> {
        self.pod_namespace.clone().filter(|n| !n.is_empty())
    }

    /// Starts the source, which sends plans.
    ///
    /// # Errors
    /// Returns one line if no API server is known.
    pub(super) async fn start(
        &self,
        publish_ca: Option<(String, PathBuf)>,
        ca_bundle: Option<CaBundle>,
        plans: watch::Sender<Arc<Plan>>,
        metrics: Metrics,
        shutdown: watch::Receiver<bool>,
    ) -> anyhow::Result<Source> {
        if let Some(dir) = &self.config_dir {
            let watching = source::dir::watch(dir.clone(), plans, shutdown, metrics);
            let name = format!("--config-dir {}", dir.display());
            return Ok(Source::Folder(Watching {
                name,
                task: tokio::spawn(watching),
            }));
        }
        let settings = Settings {
            access: self.access(),
            namespace: self.namespace(),
            identity: self.pod_name.clone().filter(|n| !n.is_empty()),
            lease: self.lease.clone(),
            peers_service: self.peers_service.clone(),
            peers_token: self.peers_token.clone(),
            watch_namespaces: BTreeSet::from_iter(self.watch_namespaces.clone())
                .into_iter()
                .collect(),
            namespace_selector: self.namespace_selector.clone(),
            deliver: self.deliver.clone(),
            publish_ca,
            ca_bundle,
        };
        let operator = Operator::start(settings, plans, metrics, shutdown).await?;
        Ok(Source::Cluster(Box::new(operator)))
    }
}

/// Parses the name of a namespace.
fn namespace(text: &str) -> Result<String, String> {
    const LONGEST: usize = 63;
    if text.is_empty() || dns(text, LONGEST) != text {
        return Err(format!(
            "no namespace's name: at most {LONGEST} lower-case letters, digits and inner hyphens, \
             such as shop"
        ));
    }
    Ok(text.to_owned())
}

/// A task that sends plans.
pub(super) struct Watching {
    name: String,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Watching {
    /// Waits until the task ends; returns the reason.
    async fn failed(&mut self) -> anyhow::Error {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) | Err(_) => anyhow!("{}: watching it ended", self.name),
        }
    }
}

/// A source that sends plans.
pub(super) enum Source {
    Folder(Watching),
    Cluster(Box<Operator>),
}

impl Source {
    /// Returns the objects that the first plan waits for.
    pub(super) fn missing(&self) -> watch::Receiver<String> {
        match self {
            Self::Folder(_) => watch::channel("the folder to be read".to_owned()).1,
            Self::Cluster(operator) => operator.waiting.clone(),
        }
    }

    /// Returns the name of this process among its replicas.
    pub(super) fn instance(&self) -> &str {
        match self {
            Self::Folder(_) => "",
            Self::Cluster(operator) => &operator.identity,
        }
    }

    /// Returns the check of readers' rights by the API server; `None` for a folder.
    pub(super) fn authorizer(&self) -> Option<Authorizer> {
        match self {
            Self::Folder(_) => None,
            Self::Cluster(operator) => Some(operator.authorizer()),
        }
    }

    /// Returns the check of proxies' tokens; `None` without an API server.
    pub(super) fn proxy_tokens(&self) -> Option<ProxyTokens> {
        match self {
            Self::Folder(_) => None,
            Self::Cluster(operator) => Some(operator.proxy_tokens()),
        }
    }

    /// Returns the policies' statuses as observed at the API server; `None` for a folder.
    pub(super) fn statuses(&self) -> Option<Arc<Observations>> {
        match self {
            Self::Folder(_) => None,
            Self::Cluster(operator) => Some(Arc::clone(&operator.observations)),
        }
    }

    /// Waits until it fails.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match self {
            Self::Folder(watching) => watching.failed().await,
            Self::Cluster(operator) => match (&mut operator.following).await {
                Ok(Err(error)) => error,
                Ok(Ok(())) | Err(_) => anyhow!("--kubernetes: watching the API server ended"),
            },
        }
    }

    /// Starts to write statuses, once the plans are served.
    pub(super) fn serving(
        self,
        plans: watch::Receiver<Arc<Plan>>,
        registry: Arc<Registry>,
        modules: watch::Receiver<Arc<Modules>>,
        metrics: &Metrics,
        shutdown: watch::Receiver<bool>,
    ) -> Serving {
        match self {
            Self::Folder(watching) => {
                // The process is the only one for its folder.
                metrics.plan.set_leader(true);
                Serving::Folder(watching)
            }
            Self::Cluster(operator) => {
                Serving::Cluster(operator.write(plans, registry, modules, shutdown))
            }
        }
    }
}

/// A source whose plans are served.
pub(super) enum Serving {
    Folder(Watching),
    Cluster(Writing),
}

impl Serving {
    /// Waits until it fails.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        match self {
            Self::Folder(watching) => watching.failed().await,
            Self::Cluster(writing) => match (&mut writing.following).await {
                Ok(Err(error)) => error,
                Ok(Ok(())) | Err(_) => anyhow!("--kubernetes: watching the API server ended"),
            },
        }
    }

    /// Whether this process leads its replicas; `None` without replicas.
    pub(super) fn leadership(&self) -> Option<Leadership> {
        match self {
            Self::Folder(_) => None,
            Self::Cluster(writing) => Some(writing.leadership.clone()),
        }
    }

    /// Waits, after the shutdown, until all writes have ended.
    pub(super) async fn ended(self) {
        match self {
            Self::Folder(watching) => watching.task.abort(),
            // Its tasks don't panic; even after a panic nothing is left to wait for.
            Self::Cluster(writing) => drop(writing.task.await),
        }
    }
}
