//! Tests of a server of class admission and of the sidecars that report to it, started as users
//! start them. Policies come by xDS, and both ends have certificates.

use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use headgate_tests::backend::{Backend, BackendConfig};
use headgate_tests::envoy::EnvoyProcess;
use headgate_tests::headgate::{self as binary, Headgate, RunOptions};
use headgate_tests::http;
use headgate_tests::pki::Pki;
use headgate_tests::wait::{lock_machine, until, wait_until};
use headgate_xds::{DEFAULT_SLOT, OUTBOUND_SLOT};

use super::sidecar;

/// Returns the policies. The only slot of `shop/stock` is busy for [`WORK`] with each call.
fn policies(centralized: &str) -> String {
    let stock = format!(
        "  parallelism: {{total: 1}}
  strategy: {{type: MaxQueueLength}}
  classes:
  - {{name: high, matches: [{{headers: [{{name: x-priority, value: high}}]}}]}}
  - {{name: low}}
  queue: {{discipline: WFQ, wfq: {{by: Class, weights: {{high: 8, low: 1}}}}}}
  classAdmission:
    method: Centralized
    targets: {{high: 1ms}}
    percentile: 90
    distributed: {{decrease: 1, minProbability: 0.000001}}
    centralized: {{{centralized}, report: 50ms, fallback: Admit}}"
    );
    sidecar::policies(&stock, "")
}

const WORK: Duration = Duration::from_millis(20);
/// The number of calls that are sent at once. All but the first wait for [`WORK`] or longer.
const CLIENTS: usize = 4;

/// A proxy with a bootstrap of `headgate bootstrap`, and the listener to which tests send requests.
struct Proxy {
    envoy: EnvoyProcess,
    addr: SocketAddr,
}

impl Proxy {
    fn start(
        dir: &Path,
        (name, target): (&str, &str),
        (backend, operator, pki): (SocketAddr, &Headgate, &Pki),
        more: &[String],
    ) -> Result<Self> {
        let file = dir.join(name).join("envoy.yaml");
        std::fs::create_dir(dir.join(name))?;
        let mut arguments = vec![
            format!("--target=Service/shop/{target}"),
            format!("--node-id={name}"),
            format!("--filter={}", binary::tested_kind()),
            format!("--output={}", file.display()),
        ];
        arguments.extend(pki.proxy_arguments("shop")?);
        arguments.extend_from_slice(more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let bootstrap = binary::bootstrap(backend, operator.xds(), &arguments)?;
        let envoy = EnvoyProcess::start(&bootstrap, 2)?;
        let (slots, listener) = match more {
            [] => (&[DEFAULT_SLOT][..], "ingress"),
            _ => (&[DEFAULT_SLOT, OUTBOUND_SLOT][..], "outbound"),
        };
        let addr = envoy.listener(listener)?;
        for slot in slots {
            let reloads = format!("extension_config_discovery.http_filter.{slot}.config_reload");
            until(
                &format!("{name}'s slot {slot} to be configured"),
                || match envoy.stat(&reloads) {
                    Ok(1..) => Ok(()),
                    other => Err(format!("{other:?}")),
                },
            )?;
        }
        Ok(Self { envoy, addr })
    }

    /// Sends a call that requests class `high`, and returns whether it ran in another class. The
    /// call must succeed.
    fn is_downgraded(&self) -> Result<bool> {
        let answer = http::get_with(self.addr, "/", &[("host", "stock"), ("x-priority", "high")])?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(answer.header("x-headgate-downgraded") == Some("high"))
    }

    fn stat(&self, name: &str) -> Result<u64> {
        self.envoy
            .stat(&format!("wasmcustom.headgate.policy.shop/app.{name}"))
    }

    /// Waits until a counter is above 0. Workers publish their counts only at a tick.
    fn wait_for(&self, name: &str) -> Result<()> {
        until(&format!("{name} to be counted"), || match self.stat(name) {
            Ok(1..) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    }
}

/// Sends the calls of all clients at once, and returns the number of downgraded calls.
fn together(sender: &Proxy) -> Result<usize> {
    let calls: Vec<Result<bool>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| sender.is_downgraded()))
            .collect();
        let ended = clients.into_iter().map(|client| {
            client
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a client died")))
        });
        ended.collect()
    });
    let calls: Vec<bool> = calls.into_iter().collect::<Result<_>>()?;
    Ok(calls.into_iter().filter(|downgraded| *downgraded).count())
}

/// Repeats `calls` until it returns true, and fails at once if a call fails.
fn calls_until(what: &str, mut calls: impl FnMut() -> Result<bool>) -> Result<()> {
    until(what, || match calls() {
        Ok(true) => Ok(Ok(())),
        Ok(false) => Err("not yet".to_owned()),
        Err(error) => Ok(Err(error)),
    })?
}

/// Checks that a class that misses its target is withdrawn from its sender, and with the method
/// `Misses` from all other senders as well. Once the server is gone, the fallback decides. No call
/// fails meanwhile.
fn a_class_that_misses_is_downgraded_until_the_server_is_gone(centralized: &str) -> Result<()> {
    let _lock = lock_machine()?;
    let dir = tempfile::tempdir()?;
    let folder = dir.path().join("policies");
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join("shop.yaml"), policies(centralized))?;
    let pki = Pki::new(dir.path().join("pki"))?;
    let mut options = RunOptions::new(&folder);
    options.module_dir = Some(dir.path().join("modules"));
    options.native = binary::is_native().then(binary::native_path);
    options.arguments = pki.operator_arguments();
    options.arguments.push("--admission=127.0.0.1:0".to_owned());
    let operator = Headgate::start(&options)?;
    let admission = operator.admission().context("an admission address")?;

    let backend = Backend::start(&BackendConfig::constant(CLIENTS, WORK))?;
    let with = (backend.addr(), &operator, &pki);
    let stock = Proxy::start(dir.path(), ("stock", "stock"), with, &[])?;
    let calls = [
        format!("--outbound=stock={}", stock.addr),
        "--outbound-listen=127.0.0.1:0".to_owned(),
        format!("--admission={admission}"),
    ];
    let culprit = Proxy::start(dir.path(), ("culprit", "app"), with, &calls)?;
    let other = Proxy::start(dir.path(), ("other", "app"), with, &calls)?;

    calls_until("calls of the class to be downgraded", || {
        Ok(together(&culprit)? > 0)
    })?;
    let mut senders = vec![&culprit];
    if centralized.contains("Misses") {
        calls_until("those of another sender, too", || other.is_downgraded())?;
        senders.push(&other);
    }
    for sender in senders {
        sender.wait_for("admission_reports")?;
        let errors = sender.envoy.filter_errors();
        assert!(errors.is_empty(), "{errors:#?}");
    }
    let admit = culprit.stat("service.stock.admit_permille.class.high")?;
    assert!(admit < 1_000, "{admit}");

    operator.kill()?;
    calls_until("the fallback to decide", || Ok(together(&culprit)? == 0))?;
    culprit.wait_for("admission_reports_lost")?;
    wait_until("Envoy's log to say so", || {
        culprit.envoy.output().contains("does not answer")
    })
}

#[test]
fn misses_end_a_class_for_all_senders_while_the_server_answers() -> Result<()> {
    a_class_that_misses_is_downgraded_until_the_server_is_gone(
        "method: Misses, misses: 3, period: 1m",
    )
}

#[test]
fn waits_lower_the_probability_of_a_sender_while_the_server_answers() -> Result<()> {
    a_class_that_misses_is_downgraded_until_the_server_is_gone("method: Incast, smoothing: 0")
}
