//! Tests of smoothing on real Envoys. The sidecars of clients delay their calls at the rejection
//! rate that the called service announces. As a result the clients send less, as Eq. 3 of Chronos
//! predicts.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headgate_core::config::FilterConfig;
use headgate_mesh::smoothing::Smoothing;
use headgate_tests::backend::{Backend, BackendConfig};
use headgate_tests::http;
use headgate_tests::load::{self, Clients, Lateness, LoadSpec, RequestType};
use headgate_tests::wait::lock_machine;

use super::sidecar::{self, Sidecar, compiled, of};

/// The number of slots of the service. A call keeps a slot busy for [`WORK`], so the capacity is
/// 200 calls/s.
const SLOTS: usize = 4;
const WORK: Duration = Duration::from_millis(20);
/// The tolerated lateness of the test harness. The time between two requests of a client is more
/// than twenty times as long.
const TOLERABLE: Duration = WORK;
/// The rate of calls of other clients without a sidecar, calls/s. With these calls, the service
/// always refuses some calls, whatever the clients do.
const OTHERS: f64 = 300.0;
const CLIENTS: usize = 200;
const THINK: Duration = Duration::from_millis(450);
const SMOOTHING: Smoothing = Smoothing {
    least: Duration::from_millis(200),
    most: Duration::from_millis(600),
};

/// Returns the policies. `shop/stock` announces its rejection rate.
fn policies(smoothing: &str) -> String {
    let stock = format!(
        "  parallelism: {{total: {SLOTS}}}
  strategy:
    type: BacklogControl
    backlogControl: {{target: 40ms}}"
    );
    sidecar::policies(&stock, smoothing)
}

/// Measurements of one run.
#[derive(Debug)]
struct Seen {
    /// The request rate of the clients, requests/s.
    rate: f64,
    /// The share of the clients' requests that were delayed.
    delayed: f64,
    /// The mean, over the clients' requests, of the rejection rate that the service announced when
    /// the request was sent.
    told: f64,
}

/// Polls the announced rejection rate from `begin` to `end`, and returns its mean over the clients'
/// requests. `sent` counts these requests. Clients send fewer requests while the rate is high, so
/// the mean over time would differ from the mean over requests.
fn ask(stock: SocketAddr, (begin, end): (Instant, Instant), sent: impl Fn() -> u64) -> Result<f64> {
    thread::sleep(begin.saturating_duration_since(Instant::now()));
    let first = sent();
    let (mut before, mut sum) = (first, 0.0);
    while Instant::now() < end {
        let answer = http::get_with(stock, "/", &[("host", "stock")])?;
        let rate = answer.header("x-headgate-rejection-rate");
        let rate: f64 = rate.context("no rate")?.parse()?;
        // The poll runs ten times as often as a client sends, so that it samples the rates that the
        // clients' requests get.
        thread::sleep(THINK / 10);
        let now = sent();
        sum += rate * (now - before) as f64;
        before = now;
    }
    Ok(sum / (before - first) as f64)
}

/// Runs the clients and the other callers at once. Measures after `settle`.
fn run(
    (client, stock): (&Sidecar, &Sidecar),
    settle: Duration,
    measured: Duration,
) -> Result<(Seen, f64)> {
    let whole = settle + measured;
    let all = || vec![RequestType::get("all", "/")];
    let others = LoadSpec::new(stock.addr, all(), OTHERS, whole);
    let outbound = client.outbound.context("outbound")?;
    let mut own = LoadSpec::new(outbound, all(), 0.0, whole);
    "stock".clone_into(&mut own.authority);
    let groups = 10;
    let group = |n: usize| Clients {
        count: CLIENTS / groups,
        from: THINK.mul_f64(n as f64 / groups as f64),
        until: whole,
        think: THINK,
    };
    own.clients = (0..groups).map(group).collect();
    let begin = Instant::now() + settle;
    let others = load::start(others)?;
    let own = load::start(own)?;
    let sent = || own.snapshot().total.offered;
    let count = || -> Result<(Instant, u64, u64)> {
        let delayed = client.stat("service.stock.calls_delayed")?;
        Ok((Instant::now(), sent(), delayed))
    };
    thread::sleep(begin.saturating_duration_since(Instant::now()));
    let first = count()?;
    let told = ask(stock.addr, (begin, begin + measured), sent)?;
    let last = count()?;
    own.stop();
    let own = own.wait()?;
    ensure!(own.total.transport_errors == 0, "{:?}", own.total);
    let calls = (last.1 - first.1) as f64;
    let seen = Seen {
        rate: calls / last.0.duration_since(first.0).as_secs_f64(),
        delayed: (last.2 - first.2) as f64 / calls,
        told,
    };
    Ok((seen, others.wait()?.lateness_ms.p99))
}

/// Measures clients whose sidecar smooths calls to the service with `smoothing`.
fn with(smoothing: &str, measured: Duration) -> Result<Seen> {
    load::undisturbed(TOLERABLE, |_| {
        let compiled = compiled(&policies(smoothing))?;
        let calls: &FilterConfig = compiled.outbound.get("shop/app").context("calls")?;
        let backend = Backend::start(&BackendConfig::constant(SLOTS, WORK))?;
        let stock = Sidecar::start(backend.addr(), of(&compiled, "stock")?, None, |_| Ok(()))?;
        let services = [("stock", stock.addr)];
        let calls = Some((calls, &services[..]));
        let client = Sidecar::start(backend.addr(), of(&compiled, "app")?, calls, |_| Ok(()))?;
        let (seen, generator_ms) = run((&client, &stock), Duration::from_secs(3), measured)?;
        println!("{smoothing:?}: {seen:?}");
        for sidecar in [&client, &stock] {
            let errors = sidecar.envoy.filter_errors();
            ensure!(errors.is_empty(), "{errors:#?}");
        }
        let lateness = Lateness {
            generator_ms,
            ..Lateness::of_backend(&backend.stats())
        };
        Ok((seen, lateness))
    })
}

#[test]
fn calls_are_delayed_as_often_as_others_are_refused_and_clients_send_less_by_equation_3()
-> Result<()> {
    let _lock = lock_machine()?;
    let without = with("", Duration::from_secs(4))?;
    assert_eq!(without.delayed, 0.0, "{without:?}");
    let with = with(
        ", smoothing: {least: 200ms, most: 600ms}",
        Duration::from_secs(10),
    )?;
    assert!((with.delayed - with.told).abs() <= 0.03, "{with:?}");
    // The time between two requests of a client, as measured without smoothing, is the client's own
    // pause plus the response time.
    let between = Duration::from_secs_f64(CLIENTS as f64 / without.rate);
    let expected = without.rate * (1.0 - SMOOTHING.reduction(with.told, between));
    println!("{expected:.1} requests/s expected, {:.1} seen", with.rate);
    assert!((with.rate / expected - 1.0).abs() <= 0.1, "{with:?}");
    // The test shows nothing if no request is delayed, or if all are.
    assert!((0.2..0.9).contains(&with.told), "{with:?}");
    Ok(())
}
