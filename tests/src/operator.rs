//! `headgate run --kubernetes` as a child process.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::headgate::{HEADGATE_ENV, address, binary_path, module_path};
use crate::http;
use crate::process::Child;
use crate::wait::{DEADLINE, until};

/// Returns an address of this machine outside the loopback network. The function sends no packet.
///
/// # Errors
/// If the machine has no such address.
pub fn own_address() -> Result<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket
        .connect((Ipv4Addr::new(203, 0, 113, 1), 9))
        .context("this machine has no address but the loopback's")?;
    match socket.local_addr()? {
        SocketAddr::V4(address) => Ok(*address.ip()),
        SocketAddr::V6(address) => bail!("{address} is no IPv4 address"),
    }
}

/// The settings of an operator.
#[derive(Debug, Clone)]
pub struct OperatorOptions {
    /// The name of the operator among the replicas.
    pub name: String,
    /// The namespace of the operator, which contains the Lease.
    pub namespace: String,
    /// The address of the admin port. If the replicas query each other, the others must be able to
    /// reach it.
    pub admin: SocketAddr,
    /// A token for the admin port, which a request needs unless the address is a loopback address.
    pub token: Option<String>,
    /// Additional arguments of `headgate run`.
    pub extra: Vec<String>,
    /// The empty folder for the operator's log and module. The default is a new folder.
    pub dir: Option<PathBuf>,
    /// The path of the program.
    pub program: PathBuf,
}

impl OperatorOptions {
    /// Returns the settings of an operator of this name with free ports of 127.0.0.1.
    pub fn new(name: &str, namespace: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            token: None,
            extra: Vec::new(),
            dir: None,
            program: binary_path(),
        }
    }
}

/// A running operator.
#[derive(Debug)]
pub struct Operator {
    child: Child,
    xds: SocketAddr,
    admin: SocketAddr,
    injection: Option<SocketAddr>,
    token: Option<String>,
    _dir: Option<TempDir>,
}

impl Operator {
    /// Starts an operator and waits until it serves.
    ///
    /// # Errors
    /// If the operator can't be started or ends. The error contains its last lines of output.
    pub fn start(kubeconfig: &Path, options: &OperatorOptions) -> Result<Self> {
        let (mut child, dir) = Self::spawn(kubeconfig, options)?;
        let line = child.wait_for_line("headgate: xds=")?;
        Ok(Self {
            xds: address(&line, "xds")?,
            admin: address(&line, "admin")?,
            injection: address(&line, "injection").ok(),
            child,
            token: options.token.clone(),
            _dir: dir,
        })
    }

    /// Starts an operator without waiting until it serves.
    ///
    /// # Errors
    /// If the operator can't be started.
    pub fn spawn(kubeconfig: &Path, options: &OperatorOptions) -> Result<(Child, Option<TempDir>)> {
        let (dir, path) = match &options.dir {
            Some(path) => (None, path.clone()),
            None => {
                let dir = tempfile::Builder::new().prefix("headgate-").tempdir()?;
                let path = dir.path().to_owned();
                (Some(dir), path)
            }
        };
        let modules = path.join("modules");
        std::fs::create_dir_all(&modules)?;
        let mut command = Command::new(&options.program);
        command
            .args(["run", "--kubernetes", "--xds=127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg(format!("--admin={}", options.admin))
            .arg("--wasm")
            .arg(module_path())
            .arg("--module-dir")
            .arg(&modules)
            .args(&options.extra)
            .env("POD_NAME", &options.name)
            .env("POD_NAMESPACE", &options.namespace);
        let log = path.join("headgate.log");
        // The log of a previous operator in this folder would have a first line, too.
        let _ = std::fs::remove_file(&log);
        // The operator ends with this process, because an operator in a static is never dropped.
        let child = Child::spawn_tied(&options.name, &command, &log)
            .with_context(|| format!("build it with scripts/build, or set {HEADGATE_ENV}"))?;
        Ok((child, dir))
    }

    /// Returns the address of the operator's xDS server.
    pub fn xds(&self) -> SocketAddr {
        self.xds
    }

    /// Returns the address of the operator's admin port.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Returns the address of the operator's injection webhook, if it has one.
    pub fn injection(&self) -> Option<SocketAddr> {
        self.injection
    }

    /// Returns the status code and the text of `/readyz`.
    ///
    /// # Errors
    /// If the operator doesn't answer.
    pub fn ready(&self) -> Result<(u16, String)> {
        let answer = http::get(self.admin, "/readyz")?;
        Ok((answer.status, answer.body))
    }

    fn get(&self, path: &str) -> Result<http::Answer> {
        let Some(token) = &self.token else {
            return http::get(self.admin, path);
        };
        let bearer = format!("Bearer {token}");
        http::get_with(self.admin, path, &[("authorization", &bearer)])
    }

    /// Returns the operator's status, as JSON.
    ///
    /// # Errors
    /// If the operator doesn't answer.
    pub fn status(&self) -> Result<Value> {
        let answer = self.get("/status")?;
        serde_json::from_str(&answer.body).with_context(|| answer.body.clone())
    }

    /// Returns a metric of the operator. The value is the sum of all series of this name whose
    /// labels contain `labels`.
    ///
    /// # Errors
    /// If the operator doesn't answer.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let text = self.get("/metrics")?.body;
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (series_name, series_labels) = series.split_once('{').unwrap_or((series, ""));
            let wanted = series_name == name && labels.iter().all(|l| series_labels.contains(l));
            wanted.then(|| value.parse::<f64>().ok())?
        });
        Ok(values.sum())
    }

    /// Waits until the operator leads.
    ///
    /// # Errors
    /// If the operator doesn't lead in time.
    pub fn until_leading(&self) -> Result<()> {
        until("leadership", || match self.metric("headgate_leader", &[]) {
            Ok(1.0) => Ok(()),
            other => Err(format!("{other:?}\n{}", self.child.tail())),
        })
    }

    /// Returns the operator's log.
    pub fn output(&self) -> String {
        self.child.output()
    }

    /// Returns the operator's process.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Ends the operator as Kubernetes does, and waits for its end. Returns its output.
    ///
    /// # Errors
    /// If the operator doesn't end in time, or fails.
    pub fn stop(mut self) -> Result<String> {
        self.child.terminate();
        let status = self.child.wait_for_end(DEADLINE)?;
        match status.success() {
            true => Ok(self.child.output()),
            false => Err(anyhow!("{status}\n{}", self.child.tail())),
        }
    }

    /// Kills the operator.
    ///
    /// # Errors
    /// If the operator can't be killed.
    pub fn kill(self) -> Result<()> {
        self.child.kill()
    }
}
