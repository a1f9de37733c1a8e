//! One protection in front of one backend, ready for load.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::native_filters::NativeFilter;
use crate::backend::{Backend, BackendConfig, ServiceType};
use crate::bootstrap::{Bootstrap, socket};
use crate::envoy::EnvoyProcess;
use crate::rig::Rig;
use crate::wait::{self, MachineLock};

/// The protection of the backend.
#[derive(Debug, Clone)]
pub enum Protection {
    /// One of Envoy's own protections, or none.
    Native(NativeFilter),
    /// Headgate with this policy.
    Headgate {
        /// Short name for `--only` and JSON.
        name: &'static str,
        /// A description in a few words.
        title: &'static str,
        /// The AdmissionPolicy.
        policy: Value,
        /// Whether Envoy loads the native filter in place of the Wasm filter.
        native: bool,
    },
}

impl Protection {
    /// Returns Headgate's Wasm filter with this policy.
    pub fn headgate(name: &'static str, title: &'static str, policy: Value) -> Self {
        Self::Headgate {
            name,
            title,
            policy,
            native: false,
        }
    }

    /// Returns Headgate's native filter with this policy.
    pub fn native_headgate(name: &'static str, title: &'static str, policy: Value) -> Self {
        Self::Headgate {
            name,
            title,
            policy,
            native: true,
        }
    }

    /// Returns the short name for `--only` and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Native(filter) => filter.name,
            Self::Headgate { name, .. } => name,
        }
    }

    /// Returns a description in a few words.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Native(filter) => filter.title,
            Self::Headgate { title, .. } => title,
        }
    }

    /// Returns Headgate's policy.
    pub fn policy(&self) -> Option<&Value> {
        match self {
            Self::Native(_) => None,
            Self::Headgate { policy, .. } => Some(policy),
        }
    }

    /// Returns Headgate's policy as a mutable reference.
    pub fn policy_mut(&mut self) -> Option<&mut Value> {
        match self {
            Self::Native(_) => None,
            Self::Headgate { policy, .. } => Some(policy),
        }
    }
}

/// A running system.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, never moved about"
)]
pub enum Lab {
    /// A backend and an Envoy.
    Native {
        /// The proxy.
        envoy: EnvoyProcess,
        /// The address of the proxy's listener.
        addr: SocketAddr,
        /// The protected backend.
        backend: Backend,
        /// Prevents other tests and benchmarks from running at the same time.
        _lock: MachineLock,
    },
    /// A backend, an Envoy and an operator.
    Headgate(Rig),
}

impl Lab {
    /// Starts `protection` in front of `backend`, with `workers` worker threads of Envoy.
    ///
    /// # Errors
    /// If a part doesn't start. The error contains its last lines of output.
    pub fn start(protection: &Protection, backend: BackendConfig, workers: u32) -> Result<Self> {
        Self::start_with(protection, backend, workers, |_| Ok(()))
    }

    /// Starts `protection` in front of a backend that runs elsewhere.
    ///
    /// # Errors
    /// If a part doesn't start. The error contains its last lines of output.
    pub fn start_before(
        protection: &Protection,
        upstream: SocketAddr,
        workers: u32,
    ) -> Result<Self> {
        // The lab's own backend is unused and gets no requests.
        let unused = BackendConfig::new(1, vec![ServiceType::constant("/", Duration::ZERO)]);
        Self::start_with(protection, unused, workers, move |bootstrap| {
            redirect(bootstrap, Some(upstream))
        })
    }

    /// Starts `protection` in front of `backend`, with a change to Envoy's bootstrap.
    ///
    /// # Errors
    /// If a part doesn't start. The error contains its last lines of output.
    pub fn start_with(
        protection: &Protection,
        backend: BackendConfig,
        workers: u32,
        change: impl FnOnce(&mut Bootstrap) -> Result<()> + 'static,
    ) -> Result<Self> {
        match protection {
            Protection::Native(filter) => native(filter, &backend, workers, change),
            Protection::Headgate { policy, native, .. } => {
                let mut rig = Rig::builder(backend, policy.clone()).concurrency(workers);
                if *native {
                    rig = rig.native();
                }
                rig.change(change).start().map(Self::Headgate)
            }
        }
        .with_context(|| format!("starting {}", protection.title()))
    }

    /// Returns the address to send requests to.
    pub fn addr(&self) -> SocketAddr {
        match self {
            Self::Native { addr, .. } => *addr,
            Self::Headgate(rig) => rig.addr(),
        }
    }

    /// Returns the protected backend.
    pub fn backend(&self) -> &Backend {
        match self {
            Self::Native { backend, .. } => backend,
            Self::Headgate(rig) => &rig.backend,
        }
    }

    /// Returns the proxy.
    pub fn envoy(&self) -> &EnvoyProcess {
        match self {
            Self::Native { envoy, .. } => envoy,
            Self::Headgate(rig) => &rig.envoy,
        }
    }
}

/// Redirects the bootstrap's upstream cluster to another address.
///
/// # Errors
/// If the bootstrap has no such cluster.
pub fn redirect(bootstrap: &mut Bootstrap, upstream: Option<SocketAddr>) -> Result<()> {
    if let Some(upstream) = upstream {
        let endpoint = &mut bootstrap.cluster("upstream")?["load_assignment"]["endpoints"][0]["lb_endpoints"]
            [0];
        endpoint["endpoint"]["address"] = socket(&upstream.ip().to_string(), upstream.port());
    }
    Ok(())
}

fn native(
    filter: &NativeFilter,
    backend: &BackendConfig,
    workers: u32,
    change: impl FnOnce(&mut Bootstrap) -> Result<()>,
) -> Result<Lab> {
    let lock = wait::lock_machine()?;
    let backend = Backend::start(backend)?;
    let mut bootstrap = Bootstrap::plain(backend.addr());
    change(&mut bootstrap)?;
    // Filters are prepended one by one, so the last one is added first.
    for http_filter in filter.http_filters.iter().rev() {
        bootstrap.prepend_filter(http_filter.clone())?;
    }
    if let Some(circuit_breakers) = &filter.circuit_breakers {
        bootstrap.cluster("upstream")?["circuit_breakers"] = circuit_breakers.clone();
    }
    if let Some(timeout) = filter.route_timeout {
        let route = bootstrap
            .routes()?
            .first_mut()
            .context("the plain bootstrap has a route")?;
        route["route"]["timeout"] = json!(format!("{}s", timeout.as_secs_f64()));
    }
    let envoy = EnvoyProcess::start(&bootstrap, workers)?;
    let addr = envoy.listener(&bootstrap.listener_name()?)?;
    Ok(Lab::Native {
        envoy,
        addr,
        backend,
        _lock: lock,
    })
}
