//! A real API server with its controllers but without nodes. Pods can be created, and the test
//! itself sets them to running.

use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Result, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::access::Access;
use super::audit::{self, AuditEvent, AuditMark};
use super::control_plane::{ControlPlane, Place, SERVICE_RANGE};
use super::programs;
use super::workspace::Workspace;
use crate::wait;

/// A running API server, which dereferences to its [`Access`]. Killed when dropped, or when this
/// process ends in any way.
pub struct ApiServer {
    access: Access,
    url: String,
    audit_log: PathBuf,
    namespaces: AtomicU32,
    plane: Mutex<ControlPlane>,
    // The folder is dropped after the processes that write into it.
    workspace: Workspace,
}

impl Deref for ApiServer {
    type Target = Access;

    fn deref(&self) -> &Access {
        &self.access
    }
}

impl ApiServer {
    /// Starts etcd, kube-apiserver and kube-controller-manager on free ports of 127.0.0.1 and waits
    /// until Pods can be created (about 5 s).
    ///
    /// # Errors
    /// If the programs aren't available or don't start. The error contains the last lines of their
    /// output.
    pub fn start() -> Result<Self> {
        Self::start_with_services(SERVICE_RANGE)
    }

    /// Starts an API server as [`start`](Self::start) does, with these ranges of Services'
    /// addresses, such as `10.96.0.0/16,fd00::/112` for a dual-stack cluster.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_with_services(services: &'static str) -> Result<Self> {
        let workspace = Workspace::create()?;
        let plane = ControlPlane::start(Place {
            dir: workspace.path().to_owned(),
            address: Ipv4Addr::LOCALHOST,
            services,
            launcher: Vec::new(),
            scheduler: false,
        })?;
        Ok(Self {
            access: plane.access(),
            url: plane.url(),
            audit_log: plane.audit_log(),
            namespaces: AtomicU32::new(0),
            plane: Mutex::new(plane),
            workspace,
        })
    }

    /// Returns the API server that all tests of this process share. Each test uses [a namespace of
    /// its own](Self::namespace) and doesn't disturb others. A test that restarts or pauses a part
    /// must start its own API server.
    ///
    /// # Panics
    /// If the API server can't be started. Every test that calls this function then panics.
    #[allow(clippy::panic)]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Result<ApiServer, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Self::start().map_err(|error| format!("{error:#}")));
        match shared {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Creates a namespace whose name starts with `prefix` and that no other test uses.
    ///
    /// # Errors
    /// If the namespace can't be created.
    pub fn namespace(&self, prefix: &str) -> Result<String> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{number}");
        self.kubectl(&["create", "namespace", &name])?;
        Ok(name)
    }

    /// Returns the address of the API server, `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the folder of the logs: `kube-apiserver.log`, `etcd.log`,
    /// `kube-controller-manager.log` and `audit.log`. The folder is kept when a test fails.
    pub fn dir(&self) -> &Path {
        self.workspace.path()
    }

    /// Returns the kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.access.kubeconfig
    }

    /// Issues a certificate for `user` in at most one group and returns a kubeconfig with it. The
    /// user has only the rights that the cluster's RBAC grants, initially none.
    ///
    /// # Errors
    /// If the kubeconfig can't be written.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let file = format!("user-{}", user.replace([':', '/'], "-"));
        self.plane()
            .authority()
            .kubeconfig(&self.url, &file, user, group)
    }

    /// Returns a kubeconfig with a token of an existing service account. The token's user has
    /// exactly the rights of a Pod of this account.
    ///
    /// # Errors
    /// If the account doesn't exist.
    pub fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let space = format!("--namespace={namespace}");
        let token = self.kubectl(&["create", "token", name, &space, "--duration=24h"])?;
        let file = format!("serviceaccount-{namespace}-{name}");
        self.plane()
            .authority()
            .token_kubeconfig(&self.url, &file, token.trim())
    }

    /// Returns a client with all rights. The client's background task belongs to the runtime that
    /// calls this function.
    ///
    /// # Errors
    /// If the kubeconfig isn't accepted.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.access.kubeconfig).await
    }

    /// Applies these objects in a dry run with strict validation and returns the output. With this
    /// validation, a field that the schema doesn't have is an error, not a warning.
    ///
    /// # Errors
    /// If the API server refuses an object.
    pub fn dry_run(&self, yaml: &str) -> Result<String> {
        let arguments = [
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "--filename=-",
        ];
        self.kubectl_as(self.kubeconfig(), &arguments, Some(yaml))
    }

    /// Installs the CRDs of the repository's folder `crds/`. Waits until the API server serves them
    /// and `kubectl explain` finds them.
    ///
    /// # Errors
    /// If the CRDs are refused.
    pub fn install_crds(&self) -> Result<()> {
        let folder = programs::repository().join("crds");
        let file = format!("--filename={}", folder.display());
        self.kubectl(&["apply", "--server-side", &file])?;
        self.wait_for_crds()?;
        // The server publishes the schemas for `kubectl explain` a moment later than the resources.
        wait::until("the CRDs to be explained", || {
            self.kubectl(&["explain", "admissionpolicies.spec"])
                .map(drop)
                .map_err(|error| format!("{error:#}"))
        })
    }

    /// Waits until every CRD is served.
    ///
    /// # Errors
    /// If a CRD isn't served in time.
    pub fn wait_for_crds(&self) -> Result<()> {
        // The command is repeated, because `kubectl wait` fails on a CRD that has no conditions
        // yet.
        wait::until("the CRDs to be served", || {
            self.kubectl(&[
                "wait",
                "crd",
                "--all",
                "--for=condition=Established",
                "--timeout=10s",
            ])
            .map(drop)
            .map_err(|error| format!("{error:#}"))
        })
    }

    /// Returns the current end of the audit log.
    pub fn audit_mark(&self) -> AuditMark {
        audit::mark(&self.audit_log)
    }

    /// Returns the requests since `mark`. The log may have a request only a moment after the client
    /// has its answer.
    ///
    /// # Errors
    /// If the log can't be read.
    pub fn audit(&self, mark: AuditMark) -> Result<Vec<AuditEvent>> {
        audit::read(&self.audit_log, mark)
    }

    /// Kills the API server. Etcd and the controllers continue.
    ///
    /// # Errors
    /// If the API server can't be killed.
    pub fn stop_api_server(&self) -> Result<()> {
        self.plane().kill_api_server()
    }

    /// Starts the API server on its previous port and waits until it is ready.
    ///
    /// # Errors
    /// If the API server doesn't start. The error contains its last lines of output.
    pub fn start_api_server(&self) -> Result<()> {
        let mut plane = self.plane();
        plane.start_api_server()?;
        plane.wait_until_ready()
    }

    /// Stops and starts the API server. All connections and watches break, and requests fail for a
    /// few seconds.
    ///
    /// # Errors
    /// The errors of [`start_api_server`](Self::start_api_server).
    pub fn restart_api_server(&self) -> Result<()> {
        self.stop_api_server()?;
        self.start_api_server()
    }

    /// Suspends the API server, as when a machine hangs. Connections stay open, and no request is
    /// answered.
    pub fn pause_api_server(&self) {
        if let Some(process) = self.plane().api_server() {
            process.pause();
        }
    }

    /// Resumes the API server after [`pause_api_server`](Self::pause_api_server).
    pub fn resume_api_server(&self) {
        if let Some(process) = self.plane().api_server() {
            process.resume();
        }
    }

    /// Suspends etcd. The API server then answers reads from its cache, and doesn't answer writes.
    pub fn pause_etcd(&self) {
        if let Some(process) = self.plane().etcd() {
            process.pause();
        }
    }

    /// Resumes etcd after [`pause_etcd`](Self::pause_etcd).
    pub fn resume_etcd(&self) {
        if let Some(process) = self.plane().etcd() {
            process.resume();
        }
    }

    /// Restarts the controllers, so that the garbage collector handles newly installed CRDs at
    /// once. Without a restart, that may take 30 s.
    ///
    /// # Errors
    /// If the controllers can't be started.
    pub fn restart_controllers(&self) -> Result<()> {
        self.plane().restart_controllers()
    }

    fn plane(&self) -> MutexGuard<'_, ControlPlane> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Returns a client for a kubeconfig. The client's background task belongs to the runtime that
/// calls this function.
///
/// # Errors
/// If the kubeconfig isn't accepted.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let options = KubeConfigOptions::default();
    let config = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(config, &options).await?;
    kube::Client::try_from(config).map_err(|error| anyhow!("{}: {error}", kubeconfig.display()))
}
