//! etcd, kube-apiserver, kube-controller-manager and, for a node, kube-scheduler, as child
//! processes.

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use super::access::Access;
use super::certificates::Authority;
use super::programs;
use crate::process::Child;
use crate::wait;

/// The time within which the control plane must be ready. It needs seconds on an idle machine, and
/// far more on a machine that compiles.
const START_DEADLINE: Duration = Duration::from_secs(120);

/// The first address of [`SERVICE_RANGE`], which the API server uses for its own Service.
const API_SERVICE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// The range of Services' addresses.
pub(super) const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The range of Pods' addresses.
pub(super) const POD_RANGE: &str = "10.244.0.0/16";

/// A policy that logs requests and their users without bodies. The stage `RequestReceived` is
/// omitted, because it would only log every request twice.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n\
                            omitStages: [RequestReceived]\n\
                            rules: [{level: Metadata}]\n";

/// The environment of a control plane.
pub(super) struct Place {
    /// The folder of its data and logs.
    pub(super) dir: PathBuf,
    /// The address on which the API server listens.
    pub(super) address: Ipv4Addr,
    /// The ranges of Services' addresses, one for each address family.
    pub(super) services: &'static str,
    /// The prefix of the commands that start programs, such as `nsenter …`, or empty for the
    /// machine's own namespaces.
    pub(super) launcher: Vec<OsString>,
    /// Whether to run a scheduler, which assigns Pods to nodes.
    pub(super) scheduler: bool,
}

impl Place {
    /// Starts `program`, whose output goes to the file `NAME.log`.
    pub(super) fn spawn(&self, name: &str, program: &Path, arguments: &[String]) -> Result<Child> {
        let mut command = self.access(Path::new("")).command(program);
        command.args(arguments);
        Child::spawn_tied(name, &command, &self.dir.join(format!("{name}.log")))
    }

    fn access(&self, kubeconfig: &Path) -> Access {
        Access {
            kubeconfig: kubeconfig.to_owned(),
            launcher: self.launcher.clone(),
        }
    }
}

/// A running control plane. Killed when dropped.
pub(super) struct ControlPlane {
    place: Place,
    authority: Authority,
    admin: PathBuf,
    ports: Ports,
    controllers: Option<Child>,
    scheduler: Option<Child>,
    api_server: Option<Child>,
    etcd: Option<Child>,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    api: u16,
    etcd: u16,
    etcd_peer: u16,
    controllers: u16,
    scheduler: u16,
}

impl Ports {
    fn free() -> Result<Self> {
        let mut taken = Vec::new();
        let mut next = || free_port(&mut taken);
        Ok(Self {
            api: next()?,
            etcd: next()?,
            etcd_peer: next()?,
            controllers: next()?,
            scheduler: next()?,
        })
    }
}

/// Returns a free port below the kernel's range for outgoing connections, so that the port is still
/// free when a stopped server restarts.
pub(super) fn free_port(taken: &mut Vec<u16>) -> Result<u16> {
    for _ in 0..1_000 {
        let port = rand::random_range(18_100..32_000);
        if !taken.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            taken.push(port);
            return Ok(port);
        }
    }
    bail!("no free port of 127.0.0.1 between 18100 and 32000")
}

impl ControlPlane {
    /// Starts the control plane and waits until Pods can be created.
    pub(super) fn start(place: Place) -> Result<Self> {
        fs::create_dir_all(&place.dir)?;
        fs::write(place.dir.join("audit-policy.yaml"), AUDIT_POLICY)?;
        let authority = Authority::create(&place.dir.join("pki"))?;
        let ports = Ports::free()?;
        let url = format!("https://{}:{}", place.address, ports.api);
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        let addresses = [
            IpAddr::V4(place.address),
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            API_SERVICE_ADDRESS,
        ];
        authority.server("apiserver", &names, &addresses)?;
        authority.client(
            "apiserver-kubelet-client",
            "kube-apiserver-kubelet-client",
            Some("system:masters"),
        )?;
        let admin = authority.kubeconfig(&url, "admin", "admin", Some("system:masters"))?;
        for user in ["system:kube-controller-manager", "system:kube-scheduler"] {
            authority.kubeconfig(&url, user.trim_start_matches("system:"), user, None)?;
        }
        let mut this = Self {
            place,
            authority,
            admin,
            ports,
            controllers: None,
            scheduler: None,
            api_server: None,
            etcd: None,
        };
        this.start_etcd()?;
        this.start_api_server()?;
        // The controllers and the scheduler exit if the API server isn't ready to authorize them.
        this.wait_until_ready()?;
        this.start_controllers()?;
        if this.place.scheduler {
            this.start_scheduler()?;
        }
        this.wait_for_service_accounts()?;
        Ok(this)
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the address of the API server, `https://ADDRESS:PORT`.
    pub(super) fn url(&self) -> String {
        format!("https://{}:{}", self.place.address, self.ports.api)
    }

    /// Returns kubectl and helm for an administrator.
    pub(super) fn access(&self) -> Access {
        self.place.access(&self.admin)
    }

    pub(super) fn audit_log(&self) -> PathBuf {
        self.place.dir.join("audit.log")
    }

    pub(super) fn etcd(&self) -> Option<&Child> {
        self.etcd.as_ref()
    }

    pub(super) fn api_server(&self) -> Option<&Child> {
        self.api_server.as_ref()
    }

    fn start_etcd(&mut self) -> Result<()> {
        let client = format!("http://127.0.0.1:{}", self.ports.etcd);
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        let arguments = [
            format!("--data-dir={}", self.place.dir.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // The data of a test needn't survive a crash of the machine.
            "--unsafe-no-fsync".to_owned(),
        ];
        let program = programs::kubernetes()?.join("etcd");
        self.etcd = Some(self.place.spawn("etcd", &program, &arguments)?);
        Ok(())
    }

    /// Starts the API server if it isn't running, without waiting until it is ready.
    pub(super) fn start_api_server(&mut self) -> Result<()> {
        if self.api_server.is_some() {
            return Ok(());
        }
        let file = |name: &str| self.authority.file(name).display().to_string();
        let arguments = [
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports.etcd),
            format!("--bind-address={}", self.place.address),
            format!("--advertise-address={}", self.place.address),
            format!("--secure-port={}", self.ports.api),
            // The API server keeps refusing a loopback address as an endpoint of the Service
            // `kubernetes`.
            format!(
                "--endpoint-reconciler-type={}",
                if self.place.address.is_loopback() {
                    "none"
                } else {
                    "lease"
                }
            ),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            format!("--service-cluster-ip-range={}", self.place.services),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!(
                "--kubelet-client-certificate={}",
                file("apiserver-kubelet-client.crt")
            ),
            format!(
                "--kubelet-client-key={}",
                file("apiserver-kubelet-client.key")
            ),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!(
                "--audit-policy-file={}",
                self.place.dir.join("audit-policy.yaml").display()
            ),
            format!("--audit-log-path={}", self.audit_log().display()),
            "--audit-log-maxsize=4096".to_owned(),
        ];
        let program = programs::kubernetes()?.join("kube-apiserver");
        self.api_server = Some(self.place.spawn("kube-apiserver", &program, &arguments)?);
        Ok(())
    }

    /// Kills the API server. Its watches break as they do when a machine is lost.
    pub(super) fn kill_api_server(&mut self) -> Result<()> {
        self.api_server.take().map_or(Ok(()), Child::kill)
    }

    fn start_controllers(&mut self) -> Result<()> {
        let file = |name: &str| self.authority.file(name).display().to_string();
        let kubeconfig = file("kube-controller-manager.kubeconfig");
        let arguments = [
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.ports.controllers),
            "--leader-elect=false".to_owned(),
            "--use-service-account-credentials".to_owned(),
            format!("--service-account-private-key-file={}", file("sa.key")),
            format!("--root-ca-file={}", file("ca.crt")),
            format!("--cluster-signing-cert-file={}", file("ca.crt")),
            format!("--cluster-signing-key-file={}", file("ca.key")),
            "--allocate-node-cidrs=true".to_owned(),
            format!("--cluster-cidr={POD_RANGE}"),
        ];
        let program = programs::kubernetes()?.join("kube-controller-manager");
        self.controllers = Some(self.place.spawn(
            "kube-controller-manager",
            &program,
            &arguments,
        )?);
        Ok(())
    }

    /// Kills the controllers and starts them again. The garbage collector looks for new CRDs only
    /// every 30 s, and after a restart.
    pub(super) fn restart_controllers(&mut self) -> Result<()> {
        self.controllers.take().map_or(Ok(()), Child::kill)?;
        self.start_controllers()
    }

    fn start_scheduler(&mut self) -> Result<()> {
        let kubeconfig = self.authority.file("kube-scheduler.kubeconfig");
        let kubeconfig = kubeconfig.display();
        let arguments = [
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.ports.scheduler),
            "--leader-elect=false".to_owned(),
        ];
        let program = programs::kubernetes()?.join("kube-scheduler");
        self.scheduler = Some(self.place.spawn("kube-scheduler", &program, &arguments)?);
        Ok(())
    }

    /// Waits until the API server reports that it is ready.
    pub(super) fn wait_until_ready(&mut self) -> Result<()> {
        let access = self.access();
        let server = &mut self.api_server;
        let ready = wait::until_within(START_DEADLINE, "the API server", || {
            if !server.as_mut().is_some_and(Child::is_running) {
                return Ok(false);
            }
            access
                .kubectl(&["get", "--raw=/readyz"])
                .map(|_| true)
                .map_err(|error| format!("{error:#}"))
        });
        let tail = || self.api_server.as_ref().map(Child::tail);
        match ready {
            Ok(true) => Ok(()),
            Ok(false) => bail!("the API server ended\n{}", tail().unwrap_or_default()),
            Err(error) => bail!("{error}\n{}", tail().unwrap_or_default()),
        }
    }

    /// Waits until the controllers have created the account `default`. Until then, every Pod that
    /// names no account is refused.
    fn wait_for_service_accounts(&self) -> Result<()> {
        let access = self.access();
        let arguments = ["get", "serviceaccount", "default", "--namespace=default"];
        let made = wait::until_within(START_DEADLINE, "the default service account", || {
            access
                .kubectl(&arguments)
                .map_err(|error| format!("{error:#}"))
        });
        let tail = || {
            self.controllers
                .as_ref()
                .map(Child::tail)
                .unwrap_or_default()
        };
        made.map(drop)
            .map_err(|error| anyhow!("{error}\n{}", tail()))
    }
}
