//! A service as a child process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use super::{ServiceConfig, ServiceStats};
use crate::headgate::address;
use crate::http;
use crate::process::Child;

/// The environment variable with the path of the service's program. Without it, `headgate-service`
/// is searched for beside this program.
pub const PROGRAM_ENV: &str = "HEADGATE_SERVICE";

const NAME: &str = "headgate-service";

/// A service in a child process. Killed when dropped.
#[derive(Debug)]
pub struct ServiceProcess {
    child: Child,
    addr: SocketAddr,
    control: SocketAddr,
    _config: NamedTempFile,
}

impl ServiceProcess {
    /// Starts the program and waits until it serves.
    ///
    /// # Errors
    /// If the program doesn't exist, or ends. The error contains its last lines of output.
    pub fn start(config: &ServiceConfig) -> Result<Self> {
        let file = NamedTempFile::with_prefix("headgate-service-")?;
        std::fs::write(file.path(), serde_json::to_vec(config)?)?;
        let program = program()?;
        let mut child = Child::spawn(&config.process, Command::new(&program).arg(file.path()))?;
        let line = child.wait_for_line("listening=")?;
        Ok(Self {
            child,
            addr: address(&line, "listening")?,
            control: address(&line, "control")?,
            _config: file,
        })
    }

    /// Returns the address of the service's requests.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the process id of the service.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Returns the counts of the service since its start or the last reset.
    ///
    /// # Errors
    /// If the service doesn't answer.
    pub fn stats(&self) -> Result<ServiceStats> {
        let answer = http::get(self.control, "/stats")?;
        serde_json::from_str(&answer.body).context("a service's statistics")
    }

    /// Resets all counts.
    ///
    /// # Errors
    /// If the service doesn't answer.
    pub fn reset(&self) -> Result<()> {
        http::post(self.control, "/reset", "").map(|_| ())
    }

    /// Suspends the process (SIGSTOP). It keeps its sockets and answers nothing.
    pub fn pause(&self) {
        self.child.pause();
    }

    /// Resumes the process after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.child.resume();
    }
}

/// Returns the path of the program. The binaries of tests are in the subfolder `deps/` of the
/// programs' folder.
fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(PROGRAM_ENV) {
        return Ok(path.into());
    }
    let this = std::env::current_exe()?;
    let folders = this.ancestors().skip(1).take(2).map(Path::to_owned);
    let mut candidates = folders.map(|folder| folder.join(NAME));
    candidates.find(|path| path.is_file()).with_context(|| {
        format!(
            "no {NAME} beside {}; build the bins of headgate-tests, or set {PROGRAM_ENV}",
            this.display()
        )
    })
}
