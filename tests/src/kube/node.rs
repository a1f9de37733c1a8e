//! A real Kubernetes with a real node: kubelet, containerd, kube-proxy and CoreDNS in their own
//! Linux namespaces. So Pods, probes, Services and rolling updates work as in a real cluster.
//!
//! The node uses no port, mount, process or network interface of this machine. It shares only the
//! control groups. They are in a separate folder, which is removed at the end. The node needs no
//! container engine and no registry, because images are archives that `scripts/build test-images`
//! makes.

mod cgroups;
mod config;

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use self::cgroups::Cgroups;
use super::access::Access;
use super::control_plane::{ControlPlane, Place, SERVICE_RANGE};
use super::programs;
use super::workspace::Workspace;
use crate::process::{self, Child};
use crate::skip::skip;
use crate::wait;

/// The node's address, which exists only in its own network.
pub const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// The name of the node.
pub const NODE_NAME: &str = "node1";

/// The time within which a node must be ready. It needs some 15 s on an idle machine.
const READY_DEADLINE: Duration = Duration::from_secs(180);

/// A running cluster of one node, which dereferences to its [`Access`]. Everything in the cluster
/// ends when this value is dropped, or when this process ends in any way.
pub struct Node {
    access: Access,
    network: fs::File,
    // The fields are dropped in this order: first the processes, then what they leave behind.
    machine: Option<Child>,
    first_process: u32,
    _programs: Vec<Child>,
    _plane: ControlPlane,
    cgroups: Cgroups,
    workspace: Workspace,
}

impl Deref for Node {
    type Target = Access;

    fn deref(&self) -> &Access {
        &self.access
    }
}

/// Whether a node can run here. If it can't, reports the running test as skipped.
///
/// # Errors
/// If a program that the node needs is available here, but getting it failed.
pub fn can_run() -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        skip("a node needs root, to make namespaces");
        return Ok(false);
    }
    Ok(programs::or_skip(programs::node_tools())?.is_some())
}

impl Node {
    /// Starts a cluster, imports `images` (OCI archives), and waits until its node is ready for
    /// Pods (some 15 s).
    ///
    /// # Errors
    /// If this process isn't root, the programs aren't available, or a program doesn't start. The
    /// error contains the last lines of its output.
    pub fn start(images: &[PathBuf]) -> Result<Self> {
        let workspace = Workspace::create()?;
        let dir = workspace.path().to_owned();
        let cgroups = Cgroups::create(&dir)?;
        config::write(&dir, &cgroups.name, &programs::node_environment()?)?;

        let mut machine = start_machine(&dir)?;
        let first_process = first_process(&mut machine)?;
        let network = fs::File::open(format!("/proc/{first_process}/ns/net"))?;
        let place = Place {
            dir: dir.clone(),
            address: NODE_ADDRESS,
            services: SERVICE_RANGE,
            launcher: launcher(first_process)?,
            scheduler: true,
        };
        let mut programs_running = vec![containerd(&place)?];
        let plane = ControlPlane::start(place)?;
        let access = plane.access();
        let mut images = images.to_vec();
        images.push(image("pause"));
        for archive in &images {
            import(&access, &dir, archive).with_context(|| programs_running[0].tail())?;
        }
        programs_running.extend(node_programs(&plane)?);
        let node = Self {
            access,
            network,
            machine: Some(machine),
            first_process,
            _programs: programs_running,
            _plane: plane,
            cgroups,
            workspace,
        };
        node.wait_until_ready()?;
        Ok(node)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let ready = wait::until_within(READY_DEADLINE, "the node", || {
            let status = self.kubectl(&["wait", "--for=condition=Ready", "node", NODE_NAME]);
            status.map(drop).map_err(|error| format!("{error:#}"))
        });
        ready.map_err(|error| {
            let tails: String = self._programs.iter().map(Child::tail).collect();
            anyhow!("{error}\n{tails}")
        })
    }

    /// Returns the folder of the node's logs. The folder is kept when a test fails.
    pub fn dir(&self) -> &Path {
        self.workspace.path()
    }

    /// Runs a program of this machine on the node, with the node's network, name server and
    /// processes. Relative paths start at the repository's root.
    ///
    /// # Errors
    /// If the program fails. The error contains its standard error.
    pub fn exec_in(&self, command: &[&str]) -> Result<String> {
        let Some((program, arguments)) = command.split_first() else {
            bail!("no command");
        };
        let mut whole = self.access.command(Path::new(program));
        whole.args(arguments);
        process::run(&mut whole, None).with_context(|| command.join(" "))
    }

    /// Runs `work` on a thread in the node's network, so `work` can reach Pods and Services by
    /// their addresses. Threads and connections that `work` starts stay in this network, even after
    /// `work` has returned.
    ///
    /// # Errors
    /// If the thread can't enter the network.
    pub fn in_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        use std::os::fd::AsFd as _;
        let network = self.network.as_fd();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(network, Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(machine) = self.machine.take() {
            let _ = machine.kill();
        }
        // The first process ends all other processes of its namespace, and disappears only after
        // them.
        let gone = || !Path::new(&format!("/proc/{}", self.first_process)).exists();
        let _ = wait::wait_until("the end of the node's processes", gone);
        self.cgroups.remove();
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("dir", &self.workspace.path())
            .finish_non_exhaustive()
    }
}

/// Returns the path of an image that `scripts/build test-images` makes: `headgate`,
/// `headgate-backend`, `envoy` or `pause`.
pub fn image(name: &str) -> PathBuf {
    programs::repository()
        .join("dist")
        .join(format!("{name}-image.tar"))
}

/// Creates the namespaces, which exist as long as the first process in them.
fn start_machine(dir: &Path) -> Result<Child> {
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--mount", "--propagation=slave", "--pid"])
        .args(["--fork", "--kill-child", "--mount-proc", "--"])
        .arg(programs::repository().join("tests/kube/node-namespaces"))
        .arg(dir)
        .arg(NODE_ADDRESS.to_string());
    Child::spawn_tied("node-namespaces", &command, &dir.join("namespaces.log"))
}

/// Returns the process id of the first process in the namespace, once it is ready. The id is that
/// outside of the namespace. The process is the only child of `unshare`.
fn first_process(machine: &mut Child) -> Result<u32> {
    machine.wait_for_line("ready")?;
    let pid = machine.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let first = children.split_whitespace().next();
    first
        .and_then(|pid| pid.parse().ok())
        .ok_or_else(|| anyhow!("unshare has no child\n{}", machine.tail()))
}

/// Returns the command prefix that runs a program on the node. The program ends with its parent, as
/// with [`Child::spawn_tied`].
fn launcher(first_process: u32) -> Result<Vec<OsString>> {
    let root = programs::repository().canonicalize()?;
    let mut words: Vec<OsString> = vec![
        "nsenter".into(),
        format!("--target={first_process}").into(),
        "--net".into(),
        "--mount".into(),
        "--pid".into(),
        format!("--wdns={}", root.display()).into(),
        "--".into(),
        "env".into(),
    ];
    words.extend(
        programs::node_environment()?
            .iter()
            .map(|(key, value)| format!("{key}={value}").into()),
    );
    words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(OsString::from));
    Ok(words)
}

fn containerd(place: &Place) -> Result<Child> {
    let config = format!("--config={}", place.dir.join("containerd.toml").display());
    place.spawn("containerd", Path::new("containerd"), &[config])
}

fn import(access: &Access, dir: &Path, archive: &Path) -> Result<()> {
    if !archive.is_file() {
        bail!(
            "no image {}; make it with scripts/build test-images",
            archive.display()
        );
    }
    wait::until("containerd to import an image", || {
        let mut command = access.command(Path::new("ctr"));
        command
            .arg(format!(
                "--address={}",
                dir.join("containerd.sock").display()
            ))
            .args(["--namespace=k8s.io", "images", "import"])
            .arg(archive);
        process::run(&mut command, None).map_err(|error| format!("{error:#}"))
    })
    .map(drop)
    .with_context(|| archive.display().to_string())
}

/// Starts kubelet, kube-proxy and CoreDNS.
fn node_programs(plane: &ControlPlane) -> Result<Vec<Child>> {
    let (authority, url) = (plane.authority(), plane.url());
    let kubelet = authority.kubeconfig(
        &url,
        "kubelet",
        &format!("system:node:{NODE_NAME}"),
        Some("system:nodes"),
    )?;
    authority.kubeconfig(&url, "kube-proxy", "system:kube-proxy", None)?;
    authority.server("kubelet-server", &[NODE_NAME], &[NODE_ADDRESS.into()])?;
    let folder = programs::kubernetes()?;
    let dir = plane.place().dir.display();
    let starts: [(&str, Vec<String>); 3] = [
        (
            "kubelet",
            vec![
                format!("--config={dir}/kubelet.yaml"),
                format!("--kubeconfig={}", kubelet.display()),
                format!("--hostname-override={NODE_NAME}"),
                format!("--node-ip={NODE_ADDRESS}"),
                format!("--root-dir={dir}/kubelet"),
                format!("--cert-dir={dir}/kubelet/pki"),
            ],
        ),
        (
            "kube-proxy",
            vec![format!("--config={dir}/kube-proxy.yaml")],
        ),
        ("coredns", vec![format!("-conf={dir}/Corefile")]),
    ];
    starts
        .iter()
        .map(|(name, arguments)| plane.place().spawn(name, &folder.join(name), arguments))
        .collect()
}
