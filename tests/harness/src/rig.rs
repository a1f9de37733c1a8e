//! A whole running system: backend, operator and Envoy, from one policy.

mod builder;
mod lineup;
mod offer;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;

use crate::backend::{Backend, BackendConfig, Fault, FaultKind};
use crate::envoy::EnvoyProcess;
use crate::headgate::{Headgate, RunOptions};
use crate::http::{self, Answer, Pending};
use crate::wait::{self, MachineLock};
use crate::{file, policy};

pub use builder::RigBuilder;
pub use lineup::{Lineup, Waiter, inversions};
pub use offer::Offered;

/// A running system. Dropping it ends all its parts, Envoy first.
#[derive(Debug)]
pub struct Rig {
    /// The proxy.
    pub envoy: EnvoyProcess,
    /// The operator. `None` while a test keeps it stopped.
    pub headgate: Option<Headgate>,
    /// The protected backend.
    pub backend: Backend,
    backend_config: BackendConfig,
    addr: SocketAddr,
    // The number of owners is one more than the number of open connections of the rig's own
    // requests.
    clients: Arc<()>,
    options: RunOptions,
    _dir: TempDir,
    _lock: MachineLock,
}

impl Rig {
    /// Returns the builder of a system with `policy` (see [`crate::policy`]) in front of `backend`.
    pub fn builder(backend: BackendConfig, policy: Value) -> RigBuilder {
        RigBuilder::new(backend, policy)
    }

    /// Returns the address of Envoy's listener.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends a `GET` through Envoy and reads the answer.
    ///
    /// # Errors
    /// If no answer arrives.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.request(path, &[])?.answer()
    }

    /// Sends a `GET` with headers through Envoy and doesn't read the answer.
    ///
    /// # Errors
    /// If the request can't be sent.
    pub fn request(&self, path: &str, headers: &[(&str, &str)]) -> Result<Pending> {
        let pending = http::send(self.addr, "GET", path, headers, None)?;
        Ok(pending.counted_by(&self.clients))
    }

    /// Sends `count` requests through Envoy and doesn't read the answers.
    ///
    /// # Errors
    /// If a request can't be sent.
    pub fn send(&self, path: &str, count: usize) -> Result<Vec<Pending>> {
        (0..count).map(|_| self.request(path, &[])).collect()
    }

    /// Sends `count` requests that the backend doesn't answer until [`Backend::release`]. Waits
    /// until all of them are in the backend.
    ///
    /// # Errors
    /// If not all of them reach the backend.
    pub fn occupy(&self, path: &str, count: usize) -> Result<Vec<Pending>> {
        let expected = self.backend.stats().busy + count;
        let prefix = path.split('?').next().unwrap_or(path);
        self.backend
            .inject(Fault::new(FaultKind::Hang, prefix, count as u64));
        let pending = self.send(path, count)?;
        wait::until(&format!("{expected} requests in service"), || {
            match self.backend.stats().busy {
                busy if busy == expected => Ok(()),
                busy => Err(format!(
                    "{busy}; {:?}",
                    self.policy_stats().unwrap_or_default()
                )),
            }
        })?;
        Ok(pending)
    }

    /// Waits for an empty queue, sends `count` requests and waits until all of them are queued.
    ///
    /// # Errors
    /// If not all requests are queued.
    pub fn enqueue(&self, path: &str, count: usize) -> Result<Vec<Pending>> {
        self.wait_for_stat("queue_length", 0)?;
        let pending = self.send(path, count)?;
        self.wait_for_stat("queue_length", count as u64)?;
        Ok(pending)
    }

    /// Returns the folder of policies.
    pub fn policies(&self) -> &Path {
        &self.options.config_dir
    }

    /// Replaces the policy, without waiting for an effect.
    ///
    /// # Errors
    /// If the policy can't be written.
    pub fn write_policy(&self, policy: &Value) -> Result<()> {
        write_policy(self.policies(), policy)
    }

    /// Replaces the policy and waits until Envoy runs it.
    ///
    /// # Errors
    /// If Envoy doesn't run it in time.
    pub fn edit_policy(&self, policy: &Value) -> Result<()> {
        let before = self.revision()?;
        self.write_policy(policy)?;
        wait::until("another revision", || match self.revision() {
            Ok(now) if now != before => Ok(()),
            Ok(_) => Err(format!("still {before}")),
            Err(error) => Err(error.to_string()),
        })?;
        self.wait_for_policy()
    }

    /// Returns whether the operator accepts the policy, and its message.
    ///
    /// # Errors
    /// If the operator isn't running or knows no policy.
    pub fn accepted(&self) -> Result<(bool, String)> {
        let status = self.status()?;
        let accepted = &status["policies"][0]["accepted"];
        let holds = accepted["status"]
            .as_bool()
            .with_context(|| format!("no policy in {status:#}"))?;
        Ok((
            holds,
            accepted["message"].as_str().unwrap_or_default().to_owned(),
        ))
    }

    /// Deletes the policy, without waiting for an effect.
    ///
    /// # Errors
    /// If the policy can't be deleted.
    pub fn delete_policy(&self) -> Result<()> {
        std::fs::remove_file(self.policies().join(FILE)).context("cannot delete the policy")
    }

    /// Waits until every connected proxy runs its current configuration.
    ///
    /// # Errors
    /// If a proxy doesn't run it in time. The error contains the operator's status.
    pub fn wait_for_policy(&self) -> Result<()> {
        wait::until("Envoy to run the policy", || {
            let status = self.status().map_err(|e| e.to_string())?;
            let proxies = status["proxies"].as_array().cloned().unwrap_or_default();
            let mut connected = proxies
                .iter()
                .filter(|p| p["state"] != "Disconnected")
                .peekable();
            let in_sync = connected.peek().is_some() && connected.all(|p| p["state"] == "Running");
            if in_sync {
                Ok(())
            } else {
                Err(format!("{status:#}"))
            }
        })
    }

    /// Returns the operator's status.
    ///
    /// # Errors
    /// If the operator isn't running.
    pub fn status(&self) -> Result<Value> {
        self.headgate
            .as_ref()
            .context("the operator is down")?
            .status()
    }

    /// Returns the hash of the operator's module of the tested kind.
    ///
    /// # Errors
    /// If the operator isn't running.
    pub fn module_hash(&self) -> Result<String> {
        let kind = if crate::headgate::is_native() {
            "native"
        } else {
            "module"
        };
        let hash = self.status()?[kind]["hash"].as_str().map(str::to_owned);
        hash.with_context(|| format!("no {kind} in the operator's status"))
    }

    /// Returns the revision of the enforced policy.
    ///
    /// # Errors
    /// If the operator isn't running.
    pub fn revision(&self) -> Result<String> {
        let status = self.status()?;
        let policies = status["policies"].as_array().cloned().unwrap_or_default();
        Ok(policies
            .iter()
            .filter_map(|p| p["revision"].as_str())
            .collect::<Vec<_>>()
            .join(","))
    }

    /// Restarts the operator, on the same port and folder.
    ///
    /// # Errors
    /// If the operator doesn't start.
    pub fn restart_headgate(&mut self) -> Result<()> {
        if let Some(old) = self.headgate.take() {
            old.stop()?;
        }
        self.headgate = Some(Headgate::start(&self.options)?);
        Ok(())
    }

    /// Restarts the backend, on the same ports.
    ///
    /// # Errors
    /// If the backend doesn't start.
    pub fn restart_backend(&mut self) -> Result<()> {
        self.backend_config.listen = self.backend.addr();
        self.backend_config.control = self.backend.control_addr();
        self.backend.halt();
        self.backend = Backend::start(&self.backend_config)?;
        Ok(())
    }

    /// Returns a gauge or counter of the policy `default/search`, such as `slots_in_use`.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn policy_stat(&self, name: &str) -> Result<u64> {
        self.envoy.stat(&format!(
            "wasmcustom.headgate.policy.{}.{name}",
            policy::NAME
        ))
    }

    /// Returns a gauge or counter of one type of the policy `default/search`, such as `rq_total`.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn type_stat(&self, kind: &str, name: &str) -> Result<u64> {
        self.policy_stat(&format!("type.{kind}.{name}"))
    }

    /// Returns all counters and gauges of the policy `default/search`.
    ///
    /// # Errors
    /// If Envoy doesn't answer.
    pub fn policy_stats(&self) -> Result<BTreeMap<String, u64>> {
        self.envoy
            .stats_under(&format!("wasmcustom.headgate.policy.{}.", policy::NAME))
    }

    /// Waits until a gauge or counter of the policy is `value`.
    ///
    /// # Errors
    /// If it doesn't have this value in time. The error contains all stats of the policy.
    pub fn wait_for_stat(&self, name: &str, value: u64) -> Result<()> {
        wait::until(&format!("{name} = {value}"), || {
            match self.policy_stat(name) {
                Ok(now) if now == value => Ok(()),
                Ok(now) => Err(format!(
                    "{name} = {now}; {:?}",
                    self.policy_stats().unwrap_or_default()
                )),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    /// Waits until the system is idle, with no slot in use, no request queued, no queued work, and
    /// no request in the backend.
    ///
    /// # Errors
    /// If the system doesn't become idle in time, for example because a slot leaked.
    pub fn wait_until_idle(&self) -> Result<()> {
        for gauge in ["slots_in_use", "queue_length", "queued_work_us"] {
            self.wait_for_stat(gauge, 0)?;
        }
        wait::until("an empty backend", || {
            match self.backend.stats().in_flight {
                0 => Ok(()),
                n => Err(format!("{n} in flight")),
            }
        })
    }
}

/// The name of the policy's file.
const FILE: &str = "policy.yaml";

fn write_policy(dir: &Path, policy: &Value) -> Result<()> {
    let text = match policy {
        // A string value is a text that isn't a policy, which the operator refuses.
        Value::String(text) => text.clone(),
        policy => serde_json::to_string_pretty(policy)?,
    };
    file::replace(&dir.join(FILE), text)
}
