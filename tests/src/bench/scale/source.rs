//! Many policies in a folder or on a real API server, and an operator that serves them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt as _, stream};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::ClientTlsConfig;

use crate::headgate::{Headgate, RunOptions, module_path};
use crate::kube::ApiServer;
use crate::kube::audit::{AuditEvent, AuditMark};
use crate::pki::Pki;
use crate::{file, policy, wait};

/// The number of namespaces over which policies and proxies are distributed. The operator allows
/// one namespace at most half of the connections.
const NAMESPACES: usize = 20;
/// The operator's name in the audit log.
const USER: &str = "headgate-operator";
/// The number of objects that are created at once.
const CREATING: usize = 32;
/// The time without a write after which the operator counts as at rest.
const REST: Duration = Duration::from_secs(2);
/// The longest wait until the operator is at rest.
const PATIENCE: Duration = Duration::from_secs(900);

const KIND: &str = "AdmissionPolicy";
const PLURAL: &str = "admissionpolicies";

/// The source of the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A folder with a file for each policy.
    Folder,
    /// A real API server.
    Kubernetes,
}

impl Source {
    /// Returns the name of the source in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::Kubernetes => "API server",
        }
    }
}

/// An applied edit.
pub(super) struct Marker {
    /// The time just before the edit was applied.
    pub(super) applied: Instant,
    /// A text that a proxy's configuration contains once the proxy has the edit.
    pub(super) text: String,
}

/// A running operator with its policies.
pub(super) struct Running {
    // The operator is dropped before the source that it reads.
    headgate: Headgate,
    policies: Policies,
    edits: AtomicUsize,
}

enum Policies {
    Folder(TempDir),
    Cluster(Box<Cluster>),
}

struct Cluster {
    client: kube::Client,
    runtime: Runtime,
    server: ApiServer,
    pki: Pki,
    arguments: Vec<String>,
    _folder: TempDir,
}

/// Returns the name of a policy and of its Service.
pub(super) fn name(policy: usize) -> String {
    format!("service-{policy}")
}

/// Returns the namespace of a policy and of its Service.
pub(super) fn namespace(policy: usize) -> String {
    format!("scale-{}", policy % NAMESPACES)
}

fn object(number: usize, max_length: usize) -> Value {
    let mut policy = policy::queue_only(4, max_length);
    policy["metadata"] = json!({"name": name(number), "namespace": namespace(number)});
    policy["spec"]["targetRefs"][0]["name"] = json!(name(number));
    policy
}

fn service(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name(number), "namespace": namespace(number)},
        "spec": {"selector": {"app": name(number)}, "ports": [{"port": 80}]},
    })
}

impl Running {
    /// Creates the policies and starts an operator. Returns once the operator has read all
    /// policies.
    pub(super) fn start(source: Source, policies: usize, clients: usize) -> Result<Self> {
        let limit = format!("--max-connections={}", clients.max(1) * 2);
        let (headgate, policies) = match source {
            Source::Folder => folder(policies, limit)?,
            Source::Kubernetes => cluster(policies, limit)?,
        };
        Ok(Self {
            headgate,
            policies,
            edits: AtomicUsize::new(0),
        })
    }

    pub(super) fn xds(&self) -> SocketAddr {
        self.headgate.xds()
    }

    /// Returns the TLS settings of a proxy of `namespace`, or `None` without TLS.
    pub(super) fn tls(&self, namespace: &str) -> Result<Option<ClientTlsConfig>> {
        match &self.policies {
            Policies::Folder(_) => Ok(None),
            Policies::Cluster(cluster) => cluster.pki.client(namespace).map(Some),
        }
    }

    /// Kills the operator and starts another one in its place. Returns the time from its start
    /// until it serves, or `None` for a folder.
    pub(super) fn restart(&mut self) -> Result<Option<Duration>> {
        let Policies::Cluster(cluster) = &self.policies else {
            return Ok(None);
        };
        let started = Instant::now();
        let next = cluster.operator()?;
        std::mem::replace(&mut self.headgate, next).kill()?;
        Ok(Some(started.elapsed()))
    }

    /// Starts a second replica, kills the leader, and edits a policy. Returns the time from the
    /// leader's end until the status of the edit is written, or `None` for a folder.
    pub(super) fn change_leader(&mut self) -> Result<Option<Duration>> {
        let Policies::Cluster(cluster) = &self.policies else {
            return Ok(None);
        };
        // The current operator leads once it has written the status of an edit.
        self.edit(0)?;
        Self::until_written(cluster, 0)?;
        let next = cluster.operator()?;
        let ended = Instant::now();
        std::mem::replace(&mut self.headgate, next).kill()?;
        self.edit(0)?;
        let Policies::Cluster(cluster) = &self.policies else {
            return Ok(None);
        };
        Self::until_written(cluster, 0)?;
        Ok(Some(ended.elapsed()))
    }

    /// Waits until the status of a policy has the generation of its latest edit.
    fn until_written(cluster: &Cluster, number: usize) -> Result<()> {
        wait::until_within(PATIENCE, "the leader to write a status", || {
            let policies = cluster.policies(number);
            let policy = cluster.runtime.block_on(policies.get(&name(number)));
            let policy = policy.map_err(|error| error.to_string())?;
            let generation = json!(policy.metadata.generation);
            let conditions = &policy.data["status"]["conditions"];
            let written = conditions.as_array().is_some_and(|conditions| {
                (conditions.iter()).any(|c| c["observedGeneration"] == generation)
            });
            written.then_some(()).ok_or_else(|| conditions.to_string())
        })
    }

    /// Returns the last lines of the operator's log, for messages.
    pub(super) fn operators_last_words(&self) -> String {
        self.headgate.tail()
    }

    pub(super) fn resident_bytes(&self) -> Result<u64> {
        self.headgate.resident_bytes()
    }

    /// Changes a policy to a content that it didn't have before.
    pub(super) fn edit(&self, number: usize) -> Result<Marker> {
        let max_length = 10_001 + self.edits.fetch_add(1, Ordering::Relaxed);
        let text = format!("\"max_length\":{max_length},");
        let applied = Instant::now();
        match &self.policies {
            Policies::Folder(dir) => write(dir.path(), number, max_length)?,
            Policies::Cluster(cluster) => {
                let patch = json!({"spec": {"queue": {"maxLength": max_length}}});
                let (name, params) = (name(number), PatchParams::default());
                let patch = Patch::Merge(&patch);
                cluster
                    .runtime
                    .block_on(cluster.policies(number).patch(&name, &params, &patch))?;
            }
        }
        Ok(Marker { applied, text })
    }

    /// Returns the current end of the audit log.
    pub(super) fn mark(&self) -> AuditMark {
        match &self.policies {
            Policies::Folder(_) => AuditMark::default(),
            Policies::Cluster(cluster) => cluster.server.audit_mark(),
        }
    }

    /// Returns the number of the operator's requests since `mark`, without watches and the requests
    /// of its Lease.
    pub(super) fn requests(&self, mark: AuditMark) -> Result<Option<usize>> {
        self.count(mark, |_| true)
    }

    /// Returns the number of the operator's writes since `mark`, without those of its Lease.
    pub(super) fn writes(&self, mark: AuditMark) -> Result<Option<usize>> {
        self.count(mark, |is_write| is_write)
    }

    fn count(&self, mark: AuditMark, wanted: impl Fn(bool) -> bool) -> Result<Option<usize>> {
        let Policies::Cluster(cluster) = &self.policies else {
            return Ok(None);
        };
        let events = cluster.server.audit(mark)?;
        // Gateway API and its extension aren't installed, so the operator retries lists of their
        // kinds.
        let absent =
            |e: &AuditEvent| e.group.starts_with("gateway.") || e.group.starts_with("inference.");
        let others = |e: &AuditEvent| e.resource == "leases" || absent(e);
        let counted = events
            .iter()
            .filter(|e| e.user == USER && e.verb != "watch" && !others(e) && wanted(e.is_write()));
        Ok(Some(counted.count()))
    }

    /// Waits until the operator is at rest.
    pub(super) fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mark = self.mark();
            thread::sleep(REST);
            match self.writes(mark)? {
                None | Some(0) => return Ok(()),
                Some(writes) if Instant::now() > deadline => {
                    bail!(
                        "{PATIENCE:?} after the last edit the operator still writes: {writes} in \
                         {REST:?}"
                    )
                }
                Some(_) => {}
            }
        }
    }
}

fn folder(policies: usize, limit: String) -> Result<(Headgate, Policies)> {
    let dir = tempfile::Builder::new()
        .prefix("headgate-scale-")
        .tempdir()?;
    for number in 0..policies {
        write(dir.path(), number, 10_000)?;
    }
    let mut options = RunOptions::new(dir.path());
    options.arguments.push(limit);
    let headgate = Headgate::start(&options)?;
    Ok((headgate, Policies::Folder(dir)))
}

fn write(dir: &Path, number: usize, max_length: usize) -> Result<()> {
    let file = dir.join(format!("{}.yaml", name(number)));
    file::replace(&file, object(number, max_length).to_string())
}

fn cluster(policies: usize, limit: String) -> Result<(Headgate, Policies)> {
    let server = ApiServer::start()?;
    server.install_crds()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let client = runtime.block_on(server.client())?;
    server.kubectl(&["create", "namespace", "headgate-system"])?;
    for number in 0..NAMESPACES.min(policies) {
        server.kubectl(&["create", "namespace", &namespace(number)])?;
    }
    let objects = (0..policies).flat_map(|number| [service(number), object(number, 10_000)]);
    let creating = stream::iter(objects).map(|object| create(&client, object));
    runtime.block_on(async {
        let mut created = creating.buffer_unordered(CREATING);
        while let Some(created) = created.next().await {
            created?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let kubeconfig = server.user_kubeconfig(USER, Some("system:masters"))?;
    let folder = tempfile::tempdir()?;
    let pki = Pki::new(folder.path().join("pki"))?;
    let text = |path: &Path| path.display().to_string();
    let mut arguments = pki.operator_arguments();
    arguments.extend([
        "--kubernetes".to_owned(),
        "--pod-namespace=headgate-system".to_owned(),
        "--xds=127.0.0.1:0".to_owned(),
        format!("--kubeconfig={}", text(&kubeconfig)),
        format!("--wasm={}", text(&module_path())),
        format!("--module-dir={}", text(&folder.path().join("modules"))),
        limit,
    ]);
    let cluster = Cluster {
        client,
        runtime,
        server,
        pki,
        arguments,
        _folder: folder,
    };
    Ok((cluster.operator()?, Policies::Cluster(Box::new(cluster))))
}

async fn create(client: &kube::Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let types = object.types.clone().unwrap_or_default();
    let kind = GroupVersionKind::try_from(&types)?;
    let resource = match kind.kind.as_str() {
        KIND => ApiResource::from_gvk_with_plural(&kind, PLURAL),
        _ => ApiResource::from_gvk(&kind),
    };
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource);
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

impl Cluster {
    fn operator(&self) -> Result<Headgate> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        Headgate::start_with(&arguments)
    }

    /// Returns the policies of the namespace of policy `number`.
    fn policies(&self, number: usize) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("headgate.dev", "v1alpha1", KIND);
        let resource = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        Api::namespaced_with(self.client.clone(), &namespace(number), &resource)
    }
}
