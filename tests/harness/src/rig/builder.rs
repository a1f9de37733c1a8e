//! Starts the parts of a [`Rig`] in order.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{Rig, write_policy};
use crate::backend::{Backend, BackendConfig};
use crate::bootstrap::Bootstrap;
use crate::envoy::EnvoyProcess;
use crate::headgate::{self, Headgate, RunOptions};
use crate::wait;

/// The target of the policies of [`crate::policy`].
const TARGET: &str = "Service/default/search";

/// A change to the bootstrap before Envoy starts.
type Change = Box<dyn FnOnce(&mut Bootstrap) -> Result<()>>;

/// The builder of a [`Rig`].
pub struct RigBuilder {
    backend: BackendConfig,
    policy: Value,
    concurrency: u32,
    module: Option<PathBuf>,
    native: bool,
    operator_late: bool,
    bootstrap_arguments: Vec<String>,
    changes: Vec<Change>,
}

impl RigBuilder {
    pub(super) fn new(backend: BackendConfig, policy: Value) -> Self {
        Self {
            backend,
            policy,
            concurrency: 2,
            module: None,
            native: headgate::is_native(),
            operator_late: false,
            bootstrap_arguments: vec![format!("--target={TARGET}")],
            changes: Vec::new(),
        }
    }

    /// Sets the number of Envoy's worker threads. The default is 2.
    #[must_use]
    pub fn concurrency(mut self, threads: u32) -> Self {
        self.concurrency = threads;
        self
    }

    /// Sets another module of the tested kind than the built one.
    #[must_use]
    pub fn module(mut self, path: PathBuf) -> Self {
        self.module = Some(path);
        self
    }

    /// Uses the native filter, even if the Wasm filter is tested.
    #[must_use]
    pub fn native(mut self) -> Self {
        self.native = true;
        self
    }

    /// Starts Envoy without a running operator. [`Rig::restart_headgate`] starts the operator.
    #[must_use]
    pub fn operator_late(mut self) -> Self {
        self.operator_late = true;
        self
    }

    /// Adds an argument of `headgate bootstrap`.
    #[must_use]
    pub fn bootstrap_argument(mut self, argument: &str) -> Self {
        self.bootstrap_arguments.push(argument.to_owned());
        self
    }

    /// Changes the bootstrap before Envoy starts.
    #[must_use]
    pub fn change(mut self, change: impl FnOnce(&mut Bootstrap) -> Result<()> + 'static) -> Self {
        self.changes.push(Box::new(change));
        self
    }

    /// Makes Envoy spread connections evenly over the workers. By default, the kernel decides at
    /// random.
    #[must_use]
    pub fn balanced(self) -> Self {
        self.change(|bootstrap| {
            let listener = &mut bootstrap.root()["static_resources"]["listeners"][0];
            listener["connection_balance_config"] = json!({"exact_balance": {}});
            Ok(())
        })
    }

    /// Starts all parts of the system. Returns once Envoy runs the policy.
    ///
    /// # Errors
    /// If a part doesn't start. The error contains its last lines of output.
    pub fn start(self) -> Result<Rig> {
        let lock = wait::lock_machine()?;
        let dir = tempfile::Builder::new().prefix("headgate-rig-").tempdir()?;
        let policies = dir.path().join("policies");
        std::fs::create_dir(&policies)?;
        write_policy(&policies, &self.policy)?;
        let backend = Backend::start(&self.backend)?;
        let mut options = RunOptions::new(&policies);
        options.module_dir = Some(dir.path().join("modules"));
        match (self.native, self.module) {
            (true, module) => options.native = module.or_else(|| Some(headgate::native_path())),
            (false, Some(module)) => options.module = module,
            (false, None) => {}
        }
        let headgate = Headgate::start(&options)?;
        let xds = headgate.xds();
        // When the operator restarts, it must use this port again, because proxies know no other.
        options.xds = xds;
        let headgate = if self.operator_late {
            headgate.stop()?;
            None
        } else {
            Some(headgate)
        };
        let tested = if self.native { "native" } else { "wasm" };
        let filter = format!("--filter={tested}");
        let arguments = self.bootstrap_arguments.iter().map(String::as_str);
        let arguments: Vec<&str> = arguments.chain([filter.as_str()]).collect();
        let mut bootstrap = headgate::bootstrap(backend.addr(), xds, &arguments)?;
        for change in self.changes {
            change(&mut bootstrap)?;
        }
        let listener = bootstrap.listener_name()?;
        let envoy = EnvoyProcess::start(&bootstrap, self.concurrency)?;
        let addr = envoy.listener(&listener)?;
        let rig = Rig {
            envoy,
            headgate,
            backend,
            backend_config: self.backend,
            addr,
            clients: Arc::default(),
            options,
            _dir: dir,
            _lock: lock,
        };
        if !self.operator_late {
            rig.wait_for_policy()?;
            let (accepted, message) = rig.accepted()?;
            ensure!(accepted, "the operator refuses the policy: {message}");
            let filter = &rig.status()?["proxies"][0]["filter"];
            ensure!(
                filter == tested,
                "Envoy got another filter than {tested}: {filter}"
            );
        }
        Ok(rig)
    }
}
