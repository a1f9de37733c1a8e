//! The parts of the operator's Deployment that checks need.

use headgate_deliver::istio::VERSION_LABEL;
use k8s_openapi::api::apps::v1::Deployment;

/// The name of the port at which modules are served.
const MODULES_PORT_NAME: &str = "http-modules";
/// The default number of the port at which modules are served.
const MODULES_PORT: i32 = 18_002;

/// The operator's Deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Installation {
    /// The name of the Deployment.
    pub(crate) name: String,
    /// The namespace of the Deployment.
    pub(crate) namespace: String,
    /// The ServiceAccount of the Deployment's Pods.
    pub(crate) service_account: String,
    /// The program's arguments.
    pub(crate) arguments: Vec<String>,
    /// The names of the Secrets that the Deployment's Pods mount.
    pub(crate) secrets: Vec<String>,
    /// The number of desired replicas.
    pub(crate) replicas: i32,
    /// The number of ready replicas.
    pub(crate) ready: i32,
    /// The port at which the Deployment's Pods serve modules.
    pub(crate) modules_port: i32,
    /// The version in the label of the Deployment.
    pub(crate) version: Option<String>,
}

impl Installation {
    /// Returns the parts of a Deployment that checks need.
    pub(crate) fn of(deployment: Deployment) -> Self {
        let metadata = deployment.metadata;
        let spec = deployment.spec.unwrap_or_default();
        let pod = spec.template.spec.unwrap_or_default();
        let mut containers = pod.containers.into_iter();
        let program = containers
            .find(|c| c.name == "headgate")
            .unwrap_or_default();
        let mut ports = program.ports.into_iter().flatten();
        let modules = ports.find(|port| port.name.as_deref() == Some(MODULES_PORT_NAME));
        let volumes = pod.volumes.into_iter().flatten();
        Self {
            name: metadata.name.unwrap_or_default(),
            namespace: metadata.namespace.unwrap_or_default(),
            service_account: pod.service_account_name.unwrap_or("default".to_owned()),
            arguments: program.args.unwrap_or_default(),
            modules_port: modules.map_or(MODULES_PORT, |port| port.container_port),
            secrets: volumes
                .filter_map(|volume| volume.secret?.secret_name)
                .collect(),
            replicas: spec.replicas.unwrap_or(1),
            ready: deployment
                .status
                .and_then(|s| s.ready_replicas)
                .unwrap_or_default(),
            version: metadata
                .labels
                .and_then(|mut labels| labels.remove(VERSION_LABEL)),
        }
    }

    fn values<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a str> {
        self.arguments
            .iter()
            .filter_map(move |a| a.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='))
    }

    /// Returns the last value of `--name=VALUE`.
    pub(crate) fn argument<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.values(name).next_back()
    }

    /// Whether the operator has the argument `--name`.
    pub(crate) fn has(&self, name: &str) -> bool {
        let mut arguments = self.arguments.iter();
        arguments.any(|a| a.strip_prefix("--") == Some(name))
    }

    /// Returns the name of the leader's Lease.
    pub(crate) fn lease(&self) -> &str {
        self.argument("lease").unwrap_or(&self.name)
    }

    /// Whether the operator's replicas elect a leader.
    pub(crate) fn elects(&self) -> bool {
        self.argument("leader-elect") != Some("false")
    }

    /// Returns the namespaces that the operator watches. An empty list means all namespaces.
    pub(crate) fn watched(&self) -> Vec<&str> {
        self.values("watch-namespace").collect()
    }

    /// Returns the control planes for which the operator writes objects.
    pub(crate) fn adapters(&self) -> Vec<&str> {
        let named = self.argument("adapters").unwrap_or_default().split(',');
        named.filter(|n| !["", "none"].contains(n)).collect()
    }
}
