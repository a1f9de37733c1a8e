//! The backend as a process of its own, so that its work doesn't share a thread or an allocator with the load generator.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use super::{BackendConfig, BackendStats, Fault, OnDisconnect};
use crate::http;
use crate::process::Child;

/// A backend in a child process. Killed when dropped.
#[derive(Debug)]
pub struct BackendProcess {
    child: Child,
    addr: SocketAddr,
    control: SocketAddr,
}

impl BackendProcess {
    /// Starts `program` (the `headgate-backend` binary) with `config`.
    ///
    /// # Errors
    /// If it can't be started or doesn't announce its ports.
    pub fn start(program: &Path, config: &BackendConfig) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .arg(format!("--workers={}", config.workers))
            .arg(format!("--seed={}", config.seed))
            .arg(format!("--scale={}", config.scale))
            .arg(format!("--listen={}", config.listen))
            .arg(format!("--control={}", config.control));
        for service in &config.types {
            let (mean, median) = (
                service.mean.as_secs_f64() * 1e3,
                service.median.as_secs_f64() * 1e3,
            );
            command.arg(format!("--type={}={mean}/{median}", service.prefix));
        }
        if config.on_disconnect == OnDisconnect::Finish {
            command.arg("--finish-on-disconnect");
        }
        if config.report_service {
            command.arg("--report-service");
        }
        let mut child = Child::spawn("headgate-backend", &mut command)?;
        let line = child.wait_for_line("listening=")?;
        let field = |name: &str| -> Result<SocketAddr> {
            let value = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value
                .and_then(|v| v.parse().ok())
                .ok_or_else(|| anyhow!("no {name}= in {line:?}"))
        };
        let (addr, control) = (field("listening")?, field("control")?);
        Ok(Self {
            child,
            addr,
            control,
        })
    }

    /// Where requests are served.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where `/__headgate/…` is served.
    pub fn control_addr(&self) -> SocketAddr {
        self.control
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Its numbers since the start or the last reset.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub fn stats(&self) -> Result<BackendStats> {
        let answer = http::get(self.control, "/__headgate/stats")?;
        serde_json::from_str(&answer.body).context("the backend's stats")
    }

    /// Starts all counts and maxima again.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub fn reset(&self) -> Result<()> {
        http::post(self.control, "/__headgate/reset", "").map(|_| ())
    }

    /// Makes coming requests go wrong.
    ///
    /// # Errors
    /// If it doesn't answer.
    pub fn inject(&self, fault: &Fault) -> Result<()> {
        http::post(
            self.control,
            "/__headgate/fault",
            &serde_json::to_string(fault)?,
        )
        .map(|_| ())
    }

    /// Ends it.
    ///
    /// # Errors
    /// If it can't be waited for.
    pub fn stop(self) -> Result<()> {
        self.child.stop()
    }
}
