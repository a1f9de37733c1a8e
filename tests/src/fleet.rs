//! An operator with several Envoys of different targets, over mutual TLS, as in a cluster.
//!
//! [`crate::rig::Rig`] has one operator and one Envoy, which suffices for most tests. Tests of sums
//! over proxies, and of a proxy with a false identity, need several Envoys.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::backend::{Backend, BackendConfig};
use crate::envoy::EnvoyProcess;
use crate::file;
use crate::headgate::{self, Headgate, RunOptions};
use crate::pki::Pki;
use crate::wait::{self, MachineLock};

/// A running fleet. Dropping it ends all its processes.
#[derive(Debug)]
pub struct Fleet {
    /// The proxies, by name.
    pub proxies: BTreeMap<String, Proxy>,
    /// The operator.
    pub headgate: Headgate,
    /// The backend of all proxies.
    pub backend: Backend,
    module: PathBuf,
    policies: PathBuf,
    pki: Pki,
    dir: TempDir,
    _lock: MachineLock,
}

/// A proxy.
#[derive(Debug)]
pub struct Proxy {
    /// The process of the proxy.
    pub envoy: EnvoyProcess,
    /// The address on which the proxy listens.
    pub addr: SocketAddr,
}

impl Fleet {
    /// Starts the backend, and the operator with `policies`.
    ///
    /// # Errors
    /// If the backend or the operator doesn't start. The error contains its last lines of output.
    pub fn start(backend: &BackendConfig, policies: &[Value]) -> Result<Self> {
        let lock = wait::lock_machine()?;
        let dir = tempfile::Builder::new()
            .prefix("headgate-fleet-")
            .tempdir()?;
        let folder = dir.path().join("policies");
        std::fs::create_dir(&folder)?;
        for policy in policies {
            let name = policy["metadata"]["name"].as_str().unwrap_or("policy");
            std::fs::write(folder.join(format!("{name}.yaml")), policy.to_string())?;
        }
        let module = dir.path().join("headgate.wasm");
        std::fs::copy(headgate::module_path(), &module)
            .context("build the filter with scripts/build")?;
        let pki = Pki::new(dir.path().join("pki"))?;
        let mut options = RunOptions::new(&folder);
        options.module.clone_from(&module);
        options.module_dir = Some(dir.path().join("modules"));
        options.arguments = pki.operator_arguments();
        Ok(Self {
            proxies: BTreeMap::new(),
            headgate: Headgate::start(&options)?,
            backend: Backend::start(backend)?,
            module,
            policies: folder,
            pki,
            dir,
            _lock: lock,
        })
    }

    /// Starts an Envoy that claims `target`, with the certificate of `namespace`.
    ///
    /// # Errors
    /// If the Envoy doesn't start. The error contains its last lines of output.
    pub fn add_proxy(&mut self, name: &str, target: &str, namespace: &str) -> Result<()> {
        let folder = self.dir.path().join(name);
        std::fs::create_dir(&folder)?;
        let file = folder.join("envoy.yaml");
        let mut arguments = vec![
            format!("--target={target}"),
            format!("--node-id={name}"),
            format!("--output={}", file.display()),
        ];
        arguments.extend(self.pki.proxy_arguments(namespace)?);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (upstream, xds) = (self.backend.addr(), self.headgate.xds());
        let mut bootstrap = headgate::bootstrap(upstream, xds, &arguments)?;
        // Envoy also updates histograms at this interval. The default of 5 s would dominate the
        // duration of tests.
        bootstrap.root()["stats_flush_interval"] = json!("1s");
        let listener = bootstrap.listener_name()?;
        let envoy = EnvoyProcess::start(&bootstrap, 2)?;
        let addr = envoy.listener(&listener)?;
        self.proxies.insert(name.to_owned(), Proxy { envoy, addr });
        Ok(())
    }

    /// Waits until the operator reports `count` streams in `state`, such as `Running`.
    ///
    /// # Errors
    /// If the operator doesn't report them in time. The error contains its status.
    pub fn wait_for_streams(&self, state: &str, count: usize) -> Result<()> {
        // Several Envoys compile the module at the same time.
        let patience = 2 * wait::DEADLINE;
        wait::until_within(patience, &format!("{count} streams {state}"), || {
            let status = self.headgate.status().map_err(|e| e.to_string())?;
            let proxies = status["proxies"].as_array().into_iter().flatten();
            match proxies.filter(|p| p["state"] == state).count() {
                n if n == count => Ok(()),
                n => Err(format!("{n}: {status:#}")),
            }
        })
    }

    /// Writes a file into the folder of policies, atomically.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn write_policy_file(&self, name: &str, text: &str) -> Result<()> {
        file::replace(&self.policies.join(name), text)
    }

    /// Replaces the module that proxies should load.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn replace_module(&self, bytes: &[u8]) -> Result<()> {
        file::replace(&self.module, bytes)
    }
}
