//! Tests of proxies with the native filter and with the Wasm filter under one policy, and of
//! proxies that can't load the native filter.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use headgate_tests::backend::{Backend, BackendConfig, Fault, FaultKind};
use headgate_tests::envoy::EnvoyProcess;
use headgate_tests::headgate::{self, Headgate, RunOptions};
use headgate_tests::wait::{MachineLock, lock_machine, until};
use headgate_tests::{file, http, policy};
use serde_json::Value;
use tempfile::TempDir;

/// An Envoy and its backend.
struct Proxy {
    node: &'static str,
    envoy: EnvoyProcess,
    addr: SocketAddr,
    backend: Backend,
}

/// Proxies and their operator.
struct Fleet {
    proxies: Vec<Proxy>,
    headgate: Headgate,
    folder: TempDir,
    _lock: MachineLock,
}

impl Fleet {
    /// Starts proxies with these names and with the kinds of filter that they request. Returns once
    /// all of them enforce a policy with two slots.
    fn start(native: PathBuf, proxies: &[(&'static str, &str)]) -> Result<Self> {
        let lock = lock_machine()?;
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("policies"))?;
        let mut options = RunOptions::new(&folder.path().join("policies"));
        options.module_dir = Some(folder.path().join("modules"));
        options.native = Some(native);
        let mut fleet = Self {
            proxies: Vec::new(),
            headgate: Headgate::start(&options)?,
            folder,
            _lock: lock,
        };
        fleet.write(2)?;
        for (node, filter) in proxies {
            fleet.add(node, filter)?;
        }
        fleet.wait_for_slots(2)?;
        Ok(fleet)
    }

    fn write(&self, slots: usize) -> Result<()> {
        let file = self.folder.path().join("policies/policy.yaml");
        Ok(std::fs::write(
            file,
            policy::queue_only(slots, 10).to_string(),
        )?)
    }

    fn add(&mut self, node: &'static str, filter: &str) -> Result<()> {
        let backend = BackendConfig::constant(100, std::time::Duration::from_millis(1));
        let backend = Backend::start(&backend)?;
        let arguments = [
            "--target=Service/default/search".to_owned(),
            format!("--node-id={node}"),
            format!("--filter={filter}"),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let bootstrap = headgate::bootstrap(backend.addr(), self.headgate.xds(), &arguments)?;
        let envoy = EnvoyProcess::start(&bootstrap, 2)?;
        let addr = envoy.listener(&bootstrap.listener_name()?)?;
        self.proxies.push(Proxy {
            node,
            envoy,
            addr,
            backend,
        });
        Ok(())
    }

    fn wait_for_slots(&self, slots: u64) -> Result<()> {
        for proxy in &self.proxies {
            until(&format!("{slots} slots of {}", proxy.node), || {
                // The filter of a worker writes its gauges from its first request on.
                http::get(proxy.addr, "/").map_err(|e| e.to_string())?;
                match proxy.stat("slots") {
                    Ok(now) if now == slots => Ok(()),
                    other => Err(format!("{other:?}; {}", self.headgate.tail())),
                }
            })?;
        }
        Ok(())
    }

    /// Returns the operator's report of a proxy, once its state is Running.
    fn reported(&self, node: &str) -> Result<Value> {
        until(&format!("{node} to run the policy"), || {
            let status = self.headgate.status().map_err(|e| e.to_string())?;
            let proxies = status["proxies"].as_array().cloned().unwrap_or_default();
            let found = proxies.into_iter().find(|p| p["node"] == node);
            found
                .filter(|p| p["state"] == "Running")
                .ok_or_else(|| format!("{status:#}"))
        })
    }

    fn shown(&self) -> Result<String> {
        headgate::run_command(&["status", "--admin", &self.headgate.admin().to_string()])
    }

    fn top(&self) -> Result<String> {
        let admins: Vec<String> = self
            .proxies
            .iter()
            .map(|p| format!("--proxy={}", p.envoy.admin()))
            .collect();
        let mut arguments = vec!["top", "--once", "--window=1s", "--view=proxies"];
        arguments.extend(admins.iter().map(String::as_str));
        headgate::run_full(&arguments)
    }
}

impl Proxy {
    fn stat(&self, name: &str) -> Result<u64> {
        let policy = policy::NAME;
        self.envoy
            .stat(&format!("wasmcustom.headgate.policy.{policy}.{name}"))
    }

    /// Checks that the backend gets as many requests as the policy has slots, and that one more
    /// waits.
    fn enforces(&self, slots: usize) -> Result<()> {
        let fault = Fault::new(FaultKind::Hang, "/", slots as u64);
        self.backend.inject(fault);
        let send = || http::send(self.addr, "GET", "/", &[], None);
        let mut sent = Vec::new();
        for _ in 0..=slots {
            sent.push(send()?);
        }
        until(&format!("{slots} requests in service"), || {
            let (busy, queued) = (self.backend.stats().busy, self.stat("queue_length"));
            match queued {
                Ok(1) if busy == slots => Ok(()),
                queued => Err(format!("{busy} in service, {queued:?} queued")),
            }
        })?;
        self.backend.release();
        for request in sent {
            assert_eq!(request.answer()?.status, 200, "{}", self.node);
        }
        Ok(())
    }
}

#[test]
fn native_and_wasm_filters_enforce_the_same_policy_and_status_distinguishes_them() -> Result<()> {
    let fleet = Fleet::start(
        headgate::native_path(),
        &[("one", "native"), ("two", "wasm")],
    )?;
    for slots in [2, 3] {
        fleet.write(slots)?;
        fleet.wait_for_slots(slots as u64)?;
        for proxy in &fleet.proxies {
            proxy.enforces(slots)?;
        }
        for (node, filter) in [("one", "native"), ("two", "wasm")] {
            let reported = fleet.reported(node)?;
            assert_eq!(reported["filter"], filter, "{reported:#}");
            assert_eq!(reported["fallback"], Value::Null, "{reported:#}");
        }
    }
    let shown = fleet.shown()?;
    for (node, filter) in [("one ", " native "), ("two ", " wasm ")] {
        let line = shown.lines().find(|line| line.starts_with(node));
        let line = line.with_context(|| shown.clone())?;
        assert!(line.contains(filter), "{shown}");
    }
    let top = fleet.top()?;
    for (node, filter) in [(" one ", " native "), (" two ", " wasm ")] {
        let line = top.lines().find(|line| line.contains(node));
        let line = line.with_context(|| top.clone())?;
        assert!(line.contains(filter), "{top}");
    }
    Ok(())
}

/// The module is a shared object that no loader accepts, such as one for another processor or for a
/// newer C library.
#[test]
fn an_envoy_that_cannot_load_the_native_module_gets_the_wasm_filter_and_status_says_why()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    let broken = folder.path().join("libheadgate.so");
    std::fs::write(&broken, b"\x7fELF, and no tables")?;
    let fleet = Fleet::start(broken.clone(), &[("one", "native")])?;
    let proxy = &fleet.proxies[0];
    proxy.enforces(2)?;
    let reported = fleet.reported("one")?;
    assert_eq!(reported["filter"], "wasm", "{reported:#}");
    let shown = fleet.shown()?;
    let remark = "one: has the Wasm filter, not the native one: Envoy refused it: ";
    assert!(shown.contains(remark), "{shown}");

    fleet.write(3)?;
    fleet.wait_for_slots(3)?;
    proxy.enforces(3)?;
    assert_eq!(fleet.reported("one")?["filter"], "wasm");

    // The proxy tries another module, which it can load.
    file::replace(&broken, std::fs::read(headgate::native_path())?)?;
    until("the native filter to run", || {
        let reported = fleet.reported("one").map_err(|e| e.to_string())?;
        match reported["filter"] == "native" && reported["fallback"].is_null() {
            true => Ok(()),
            false => Err(format!("{reported:#}")),
        }
    })?;
    proxy.enforces(3)
}
