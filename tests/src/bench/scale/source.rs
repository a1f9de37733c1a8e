//! Many policies in a folder or on a real API server, and an operator that serves them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::headgate::{Headgate, RunOptions, module_path};
use crate::kube::ApiServer;
use crate::kube::audit::AuditMark;
use crate::policy;

/// Namespace of all policies.
pub(super) const NAMESPACE: &str = "scale";
/// The operator's name in the audit log.
const USER: &str = "headgate-operator";
/// Objects that one kubectl applies.
const BATCH: usize = 250;
/// The operator is at rest when it has written nothing for this long.
const REST: Duration = Duration::from_secs(2);
/// The longest time until it is at rest.
const PATIENCE: Duration = Duration::from_secs(900);

/// The source of the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A file each in a folder.
    Folder,
    /// A real API server.
    Kubernetes,
}

impl Source {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::Kubernetes => "API server",
        }
    }
}

/// An edit.
pub(super) struct Marker {
    /// When it was about to be applied.
    pub(super) applied: Instant,
    /// A text that a proxy's configuration contains once it has the edit.
    pub(super) text: String,
}

/// A running operator with its policies.
pub(super) struct Running {
    // Dropped before the source that it reads.
    headgate: Headgate,
    policies: Policies,
    edits: AtomicUsize,
}

enum Policies {
    Folder(TempDir),
    Cluster(Box<Cluster>),
}

struct Cluster {
    api: Api<DynamicObject>,
    runtime: Runtime,
    server: ApiServer,
    _modules: TempDir,
}

/// Name of a policy and of its Service.
pub(super) fn name(policy: usize) -> String {
    format!("service-{policy}")
}

fn object(number: usize, max_length: usize) -> Value {
    let mut policy = policy::queue_only(4, max_length);
    policy["metadata"] = json!({"name": name(number), "namespace": NAMESPACE});
    policy["spec"]["targetRefs"][0]["name"] = json!(name(number));
    policy
}

fn service(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name(number), "namespace": NAMESPACE},
        "spec": {"selector": {"app": name(number)}, "ports": [{"port": 80}]},
    })
}

impl Running {
    /// Makes the policies and starts an operator, which has read all of them when this returns.
    pub(super) fn start(source: Source, policies: usize) -> Result<Self> {
        let (headgate, policies) = match source {
            Source::Folder => folder(policies)?,
            Source::Kubernetes => cluster(policies)?,
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

    /// The end of the operator's log, for messages.
    pub(super) fn operators_last_words(&self) -> String {
        self.headgate.tail()
    }

    pub(super) fn resident_bytes(&self) -> Result<u64> {
        self.headgate.resident_bytes()
    }

    /// Changes a policy to a content that it hasn't had.
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
                    .block_on(cluster.api.patch(&name, &params, &patch))?;
            }
        }
        Ok(Marker { applied, text })
    }

    /// The present end of the audit log.
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

    /// Returns the number of these requests that write.
    pub(super) fn writes(&self, mark: AuditMark) -> Result<Option<usize>> {
        self.count(mark, |is_write| is_write)
    }

    fn count(&self, mark: AuditMark, wanted: impl Fn(bool) -> bool) -> Result<Option<usize>> {
        let Policies::Cluster(cluster) = &self.policies else {
            return Ok(None);
        };
        let events = cluster.server.audit(mark)?;
        let counted = events.iter().filter(|e| {
            e.user == USER && e.verb != "watch" && e.resource != "leases" && wanted(e.is_write())
        });
        Ok(Some(counted.count()))
    }

    /// Waits until the operator has nothing left to write.
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

fn folder(policies: usize) -> Result<(Headgate, Policies)> {
    let dir = tempfile::Builder::new()
        .prefix("headgate-scale-")
        .tempdir()?;
    for number in 0..policies {
        write(dir.path(), number, 10_000)?;
    }
    let headgate = Headgate::start(&RunOptions::new(dir.path()))?;
    Ok((headgate, Policies::Folder(dir)))
}

fn write(dir: &Path, number: usize, max_length: usize) -> Result<()> {
    let next = dir.join(format!(".{}", name(number)));
    fs::write(&next, object(number, max_length).to_string())?;
    Ok(fs::rename(
        next,
        dir.join(format!("{}.yaml", name(number))),
    )?)
}

fn cluster(policies: usize) -> Result<(Headgate, Policies)> {
    let server = ApiServer::start()?;
    server.install_crds()?;
    for namespace in [NAMESPACE, "headgate-system"] {
        server.kubectl(&["create", "namespace", namespace])?;
    }
    let objects: Vec<Value> = (0..policies)
        .flat_map(|number| [service(number), object(number, 10_000)])
        .collect();
    for batch in objects.chunks(BATCH) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": batch});
        server.apply(&list.to_string())?;
    }
    let kubeconfig = server.user_kubeconfig(USER, Some("system:masters"))?;
    let modules = tempfile::tempdir()?;
    let text = |path: &Path| path.display().to_string();
    let headgate = Headgate::start_with(&[
        "--kubernetes",
        "--kubeconfig",
        &text(&kubeconfig),
        "--pod-namespace=headgate-system",
        "--xds=127.0.0.1:0",
        "--wasm",
        &text(&module_path()),
        "--module-dir",
        &text(modules.path()),
    ])?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let client = runtime.block_on(server.client())?;
    let kind = GroupVersionKind::gvk("headgate.dev", "v1alpha1", "AdmissionPolicy");
    let resource = ApiResource::from_gvk_with_plural(&kind, "admissionpolicies");
    let api = Api::namespaced_with(client, NAMESPACE, &resource);
    let cluster = Cluster {
        api,
        runtime,
        server,
        _modules: modules,
    };
    Ok((headgate, Policies::Cluster(Box::new(cluster))))
}
