//! A proxy beside an application. Its bootstrap is that of `headgate bootstrap`, and its
//! configurations come from files.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use headgate_api::compile::{Compiled, compile};
use headgate_api::validate::check_file;
use headgate_controller::bootstrap::{Bootstrap as Written, ConfigSource, Outbound, Pod, Uploads};
use headgate_core::config::FilterConfig;
use headgate_tests::bootstrap::Bootstrap;
use headgate_tests::envoy::EnvoyProcess;
use headgate_tests::file;
use headgate_tests::headgate as binary;
use headgate_tests::http::{self, Answer};
use headgate_tests::wait::until;
use headgate_xds::resource::discovery_json;
use headgate_xds::{DEFAULT_SLOT, OUTBOUND_SLOT};
use serde_json::json;
use tempfile::TempDir;

/// The policy of every sidecar in these tests.
pub(crate) const POLICY: &str = "shop/app";

/// Returns the configuration of an inbound slot with enough slots for all requests and these
/// `workflows`.
pub(crate) fn inbound(workflows: &serde_json::Value) -> Result<FilterConfig> {
    let stage = json!({
        "policy": POLICY,
        "parallelism": 100,
        "queue": {"max_length": 100, "timeout_us": 1_000_000},
        "strategy": {"type": "MaxQueueLength"},
        "types": [
            {"name": "search", "matches": [{"path": {"type": "PathPrefix", "value": "/search"}}]},
            {"name": "default"},
        ],
        "classes": [
            {"name": "gold", "matches": [{"headers": [
                {"name": "x-class", "type": "Exact", "value": "gold"},
            ]}]},
            {"name": "silver"},
        ],
        "workflows": workflows,
    });
    let config = json!({"revision": "test", "stages": [stage]});
    Ok(FilterConfig::from_json(config.to_string().as_bytes())?)
}

/// Returns workflows that are identified by baggage, then by a header, and share by bottleneck
/// fairness.
pub(crate) fn workflows() -> serde_json::Value {
    json!({
        "identify": [
            {"type": "Baggage", "key": "workflow"},
            {"type": "Header", "name": "x-headgate-workflow"},
        ],
        "quantile": 0.0,
        "interval_us": 100_000,
        "rate_ttl_us": 1_000_000,
        "sharing": {"type": "BottleneckFairness", "probe": 10.0, "max_utilization": 0.9},
        "max_workflows": 10,
        "max_queue_length": 0,
    })
}

/// Returns the configuration of the outbound slot, with the fields of `more` in addition to the
/// policy.
pub(crate) fn outbound(more: &serde_json::Value) -> Result<FilterConfig> {
    let mut outbound = json!({"policy": POLICY});
    for (key, value) in more.as_object().into_iter().flatten() {
        outbound[key] = value.clone();
    }
    let config = json!({"revision": "out", "direction": "Outbound", "outbound": outbound});
    Ok(FilterConfig::from_json(config.to_string().as_bytes())?)
}

/// Returns the policies of two services. `shop/app` calls `shop/stock`. `stock` has the further
/// fields of the spec of `shop/stock`, and `calls` those of the app's entry for the service.
pub(crate) fn policies(stock: &str, calls: &str) -> String {
    format!(
        "apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: stock, namespace: shop}}
spec:
  targetRefs: [{{kind: Service, name: stock}}]
  types: [{{name: default}}]
{stock}
---
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {{name: app, namespace: shop}}
spec:
  targetRefs: [{{kind: Service, name: app}}]
  strategy: {{type: MaxQueueLength}}
  types: [{{name: default}}]
  classAdmission:
    outbound: {{services: [{{cluster: 'stock*', name: stock{calls}}}]}}
"
    )
}

/// Compiles `policies`, for one endpoint of each service.
pub(crate) fn compiled(policies: &str) -> Result<Compiled> {
    let report = check_file("policies.yaml", policies.as_bytes());
    let mistakes: Vec<String> = report.all_problems().map(ToString::to_string).collect();
    ensure!(mistakes.is_empty(), "{mistakes:#?}");
    let policies: Vec<_> = report.policies().collect();
    Ok(compile(&policies, 1, 1))
}

/// Returns the configuration of a Service in the namespace `shop`.
pub(crate) fn of<'a>(compiled: &'a Compiled, service: &str) -> Result<&'a FilterConfig> {
    let target = format!("Service/shop/{service}").parse();
    let target = target.map_err(|e| anyhow::anyhow!("{e}"))?;
    let config = compiled.workloads.get(&target).context("a workload")?;
    Ok(config)
}

/// A running proxy, which ends when the value is dropped.
pub(crate) struct Sidecar {
    pub(crate) envoy: EnvoyProcess,
    pub(crate) addr: SocketAddr,
    /// The address to which the application sends its calls.
    pub(crate) outbound: Option<SocketAddr>,
    dir: TempDir,
}

impl Sidecar {
    /// Starts a sidecar in front of `app`. With `calls`, the sidecar also has an outbound listener,
    /// for the given configuration and services.
    pub(crate) fn start(
        app: SocketAddr,
        config: &FilterConfig,
        calls: Option<(&FilterConfig, &[(&str, SocketAddr)])>,
        change: impl FnOnce(&mut Bootstrap) -> Result<()>,
    ) -> Result<Self> {
        Self::start_by(app, config, calls, change, |bootstrap| {
            EnvoyProcess::start(bootstrap, 2)
        })
    }

    /// Starts a sidecar as [`start`](Self::start) does, with `envoy` to start its Envoy.
    pub(crate) fn start_by(
        app: SocketAddr,
        config: &FilterConfig,
        calls: Option<(&FilterConfig, &[(&str, SocketAddr)])>,
        change: impl FnOnce(&mut Bootstrap) -> Result<()>,
        envoy: impl FnOnce(&Bootstrap) -> Result<EnvoyProcess>,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("headgate-mesh-")
            .tempdir()?;
        let file = |slot: &str| dir.path().join(format!("{slot}.json"));
        write(&file(DEFAULT_SLOT), DEFAULT_SLOT, config)?;
        let mut outbound = None;
        if let Some((config, services)) = calls {
            write(&file(OUTBOUND_SLOT), OUTBOUND_SLOT, config)?;
            let mut endpoints = std::collections::BTreeMap::<_, Vec<_>>::new();
            for (name, addr) in services {
                let endpoint = addr.to_string().parse()?;
                endpoints
                    .entry((*name).to_owned())
                    .or_default()
                    .push(endpoint);
            }
            outbound = Some(Outbound {
                listen: "127.0.0.1:0".parse()?,
                services: endpoints,
                http2: false,
                config_file: Some(file(OUTBOUND_SLOT)),
            });
        }
        let written = Written {
            listen: "127.0.0.1:0".parse()?,
            upstream: app.to_string().parse()?,
            upstream_http2: false,
            source: ConfigSource::File(file(DEFAULT_SLOT)),
            outbound,
            admin: "127.0.0.1:0".parse()?,
            stats: None,
            target: None,
            pod: Pod::default(),
            node_id: "sidecar".into(),
            access_log: None,
            uploads: Uploads::default(),
            admission: None,
        };
        let mut bootstrap = Bootstrap::parse(&written.to_yaml()?)?;
        // Both workers of every listener get connections, so that a call can be on another worker
        // than its request.
        let listeners = bootstrap.root()["static_resources"]["listeners"].as_array_mut();
        for listener in listeners.into_iter().flatten() {
            listener["connection_balance_config"] = json!({"exact_balance": {}});
        }
        change(&mut bootstrap)?;
        let envoy = envoy(&bootstrap)?;
        let addr = envoy.listener("ingress")?;
        let outbound = match calls {
            Some(_) => Some(envoy.listener("outbound")?),
            None => None,
        };
        let sidecar = Self {
            envoy,
            addr,
            outbound,
            dir,
        };
        sidecar.wait_for_update(DEFAULT_SLOT, 0)?;
        if calls.is_some() {
            sidecar.wait_for_update(OUTBOUND_SLOT, 0)?;
        }
        Ok(sidecar)
    }

    /// Replaces the configuration of a slot, and waits until the configuration is in force.
    pub(crate) fn configure(&self, slot: &str, config: &FilterConfig) -> Result<()> {
        let before = self.updates(slot)?;
        write(&self.dir.path().join(format!("{slot}.json")), slot, config)?;
        self.wait_for_update(slot, before)
    }

    fn updates(&self, slot: &str) -> Result<u64> {
        let name = format!("extension_config_discovery.http_filter.{slot}.config_reload");
        self.envoy.stat(&name)
    }

    fn wait_for_update(&self, slot: &str, before: u64) -> Result<()> {
        until(
            &format!("the slot {slot} to be configured"),
            || match self.updates(slot) {
                Ok(now) if now > before => Ok(()),
                other => Err(format!(
                    "{other:?} after {before}: {:?}",
                    self.envoy.filter_errors()
                )),
            },
        )
    }

    pub(crate) fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        http::get_with(self.addr, path, headers)
    }

    /// Returns a counter or gauge of the policy.
    pub(crate) fn stat(&self, name: &str) -> Result<u64> {
        self.envoy
            .stat(&format!("wasmcustom.headgate.policy.{POLICY}.{name}"))
    }

    /// Returns a counter or gauge of a workflow.
    pub(crate) fn workflow_stat(&self, workflow: &str, name: &str) -> Result<u64> {
        self.stat(&format!("workflow.{workflow}.{name}"))
    }

    /// Waits until a stat of a workflow is at least `least`.
    pub(crate) fn wait_for(&self, workflow: &str, name: &str, least: u64) -> Result<u64> {
        until(
            &format!("{name} of {workflow} to be {least} or more"),
            || match self.workflow_stat(workflow, name) {
                Ok(now) if now >= least => Ok(now),
                other => Err(format!("{other:?}; {:?}", self.stats())),
            },
        )
    }

    /// Waits until the rate of a workflow is above `least`, requests/s, or the workflow has no
    /// limit.
    pub(crate) fn wait_for_rate_above(&self, workflow: &str, least: u64) -> Result<()> {
        until(&format!("{workflow} to have more than {least}/s"), || {
            let stat = |name| self.workflow_stat(workflow, name);
            match (stat("limited"), stat("rate_mhz")) {
                (Ok(0), _) => Ok(()),
                (_, Ok(rate)) if rate > least * 1_000 => Ok(()),
                other => Err(format!("{other:?}; {:?}", self.stats())),
            }
        })
    }

    /// Waits until ten requests in a row are served. A gauge is the value of one worker, and the
    /// other worker may lift the limit a tick later.
    pub(crate) fn wait_until_served(&self, path: &str, headers: &[(&str, &str)]) -> Result<()> {
        until("ten requests in a row to be served", || {
            for _ in 0..10 {
                let answer = self.get(path, headers).map_err(|e| e.to_string())?;
                if answer.status != 200 {
                    return Err(format!("{answer:?}; {:?}", self.stats()));
                }
            }
            Ok(())
        })
    }

    /// Returns the stats of the policy that aren't 0.
    pub(crate) fn stats(&self) -> Vec<(String, u64)> {
        let all = self
            .envoy
            .stats_under(&format!("wasmcustom.headgate.policy.{POLICY}."));
        let all = all.unwrap_or_default().into_iter();
        all.filter(|(_, value)| *value != 0).collect()
    }

    /// Checks the conditions at the end of every test: the filter did not fail, no slot is taken,
    /// and all listeners share one VM per worker. The main thread has two more VMs: one to copy,
    /// and one to try configurations. The native filter has no VM and one engine.
    pub(crate) fn check(&self) -> Result<()> {
        let errors = self.envoy.filter_errors();
        anyhow::ensure!(errors.is_empty(), "{errors:#?}");
        let crashes = self.envoy.stats()?;
        let crashed = crashes
            .iter()
            .find(|(name, value)| name.contains("wasm") && name.contains("crash") && **value > 0);
        anyhow::ensure!(crashed.is_none(), "{crashed:?}");
        let active = self.envoy.stat("wasm.envoy.wasm.runtime.v8.active")?;
        let expected = if binary::is_native() { 0 } else { 4 };
        anyhow::ensure!(active == expected, "{active} VMs");
        until("slots to be free", || match self.stat("slots_in_use") {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    }
}

fn write(path: &Path, slot: &str, config: &FilterConfig) -> Result<()> {
    let response = discovery_json(config, slot, &binary::tested_module());
    file::replace(path, response.to_string())
}
