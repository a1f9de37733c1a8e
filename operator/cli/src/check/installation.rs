//! The parts of the operator's Deployment that checks need.

use k8s_openapi::api::apps::v1::Deployment;

/// The label with the version of the program.
const VERSION_LABEL: &str = "app.kubernetes.io/version";

/// The name of the port at which modules are served.
const MODULES_PORT_NAME: &str = "http-modules";
/// The default number of that port.
const MODULES_PORT: i32 = 18_002;

/// The operator's Deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Installation {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The account of its Pods.
    pub service_account: String,
    /// The program's arguments.
    pub arguments: Vec<String>,
    /// Secrets that its Pods mount.
    pub secrets: Vec<String>,
    /// The number of desired replicas.
    pub replicas: i32,
    /// The number of ready replicas.
    pub ready: i32,
    /// The port at which its Pods serve modules.
    pub modules_port: i32,
    /// The version in its label.
    pub version: Option<String>,
}

impl Installation {
    /// Extracts these parts from a Deployment.
    #[must_use]
    pub fn of(deployment: Deployment) -> Self {
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
    #[must_use]
    pub fn argument<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.values(name).next_back()
    }

    /// Whether it has the argument `--name`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let mut arguments = self.arguments.iter();
        arguments.any(|a| a.strip_prefix("--") == Some(name))
    }

    /// Returns the name of the leader's Lease.
    #[must_use]
    pub fn lease(&self) -> &str {
        self.argument("lease").unwrap_or(&self.name)
    }

    /// Whether its replicas elect a leader.
    #[must_use]
    pub fn elects(&self) -> bool {
        self.argument("leader-elect") != Some("false")
    }

    /// Returns the namespaces that it watches; empty for all.
    #[must_use]
    pub fn watched(&self) -> Vec<&str> {
        self.values("watch-namespace").collect()
    }

    /// Returns the control planes that it writes objects for.
    #[must_use]
    pub fn adapters(&self) -> Vec<&str> {
        let named = self.argument("adapters").unwrap_or_default().split(',');
        named.filter(|n| !["", "none"].contains(n)).collect()
    }
}
