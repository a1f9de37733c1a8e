//! Tests of class admission on real Envoys: three senders without workflows call one service
//! through their sidecars.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use headgate_tests::backend::{Backend, BackendConfig};
use headgate_tests::http;
use headgate_tests::load::{self, Lateness};
use headgate_tests::wait::{lock_machine, until};

use super::sidecar::{self, Sidecar, compiled, of};

/// The number of slots of the service. A call keeps a slot busy for [`WORK`], so the capacity is
/// 200 calls/s.
const SLOTS: usize = 4;
const WORK: Duration = Duration::from_millis(20);
/// The target of the class `high`, in addition to the work, for 90% of the calls.
const TARGET: Duration = Duration::from_millis(100);
const SENDERS: usize = 3;
/// The tolerated lateness of the backend in tests of shares. Calls of each class always wait, so a
/// response that is late by the work of one call changes no share.
const TOLERABLE_FOR_SHARES: Duration = WORK;

/// Returns the policies. `admission` has the settings of class admission of `shop/stock`.
fn policies(admission: &str) -> String {
    let stock = format!(
        "  parallelism: {{total: {SLOTS}}}
  strategy: {{type: MaxQueueLength}}
  classes:
  - {{name: high, matches: [{{headers: [{{name: x-priority, value: high}}]}}]}}
  - {{name: medium, matches: [{{headers: [{{name: x-priority, value: medium}}]}}]}}
  - {{name: low}}
  queue:
    maxLength: 500
    timeout: 30s
    discipline: WFQ
    wfq: {{by: Class, weights: {{high: 8, medium: 4, low: 1}}}}
  classAdmission: {{{admission}}}"
    );
    sidecar::policies(&stock, "")
}

/// The service with its sidecar, and the sidecars of its senders.
struct Incast {
    senders: Vec<Sidecar>,
    stock: Sidecar,
    backend: Backend,
}

impl Incast {
    fn start(admission: &str) -> Result<Self> {
        let compiled = compiled(&policies(admission))?;
        let calls = compiled.outbound.get("shop/app").context("calls")?;
        let backend = Backend::start(&BackendConfig::constant(SLOTS, WORK))?;
        let stock = Sidecar::start(backend.addr(), of(&compiled, "stock")?, None, |_| Ok(()))?;
        let services = [("stock", stock.addr)];
        let sender = |_| {
            let calls = Some((&**calls, &services[..]));
            Sidecar::start(backend.addr(), of(&compiled, "app")?, calls, |_| Ok(()))
        };
        Ok(Self {
            senders: (0..SENDERS).map(sender).collect::<Result<_>>()?,
            stock,
            backend,
        })
    }

    /// Returns a stat of a sender about the calls that request `class`.
    fn stat(&self, sender: usize, name: &str, class: &str) -> Result<u64> {
        let name = format!("service.stock.{name}.class.{class}");
        self.senders[sender].stat(&name)
    }

    fn check(&self) -> Result<()> {
        for sidecar in self.senders.iter().chain([&self.stock]) {
            let errors = sidecar.envoy.filter_errors();
            ensure!(errors.is_empty(), "{errors:#?}");
        }
        let in_use = "wasmcustom.headgate.policy.shop/stock.slots_in_use";
        until("slots to be free", || match self.stock.envoy.stat(in_use) {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    }
}

/// Clients of one sender that request a class.
#[derive(Debug, Clone, Copy)]
struct Clients {
    sender: usize,
    count: usize,
    /// The header with which a call requests its class.
    header: &'static str,
    class: &'static str,
    /// The time between two calls of a client, if the response arrives earlier. With zero, a call
    /// follows each response at once.
    every: Duration,
}

/// A call that got a response.
#[derive(Debug, Clone, Copy)]
struct Called {
    clients: usize,
    /// The time of the response since the start.
    at: Duration,
    took: Duration,
    downgraded: bool,
}

/// Runs one client until `end`. The first call is due at `first`.
fn client(
    addr: SocketAddr,
    (number, clients): (usize, Clients),
    start: Instant,
    first: Duration,
    end: Duration,
) -> Result<Vec<Called>> {
    let mut calls = Vec::new();
    let mut due = start + first;
    while start.elapsed() < end {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        let headers = [("host", "stock"), (clients.header, clients.class)];
        let answer = http::get_with(addr, "/", &headers)?;
        ensure!(answer.status == 200, "{answer:?}");
        let downgraded = match answer.header("x-headgate-downgraded") {
            None => false,
            Some(class) if class == clients.class => true,
            Some(_) => bail!("{answer:?}"),
        };
        calls.push(Called {
            clients: number,
            at: start.elapsed(),
            took: began.elapsed(),
            downgraded,
        });
        due = (due + clients.every).max(Instant::now());
    }
    Ok(calls)
}

/// Runs all clients at once. Returns the calls that got a response after `warmup`.
fn run(
    incast: &Incast,
    all: &[Clients],
    warmup: Duration,
    measured: Duration,
) -> Result<Vec<Called>> {
    let (start, end) = (Instant::now(), warmup + measured);
    let calls = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, clients) in all.iter().copied().enumerate() {
            let addr = incast.senders[clients.sender]
                .outbound
                .context("outbound")?;
            for of_sender in 0..clients.count {
                let first = clients
                    .every
                    .mul_f64(of_sender as f64 / clients.count as f64);
                threads
                    .push(scope.spawn(move || client(addr, (number, clients), start, first, end)));
            }
        }
        let mut calls = Vec::new();
        for thread in threads {
            let of_client = thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client died"))?;
            calls.extend(of_client?);
        }
        Ok::<_, anyhow::Error>(calls)
    })?;
    let counts = |call: &Called| (warmup..end).contains(&call.at);
    Ok(calls.into_iter().filter(counts).collect())
}

/// The number of clients of sender 2 and of sender 3. These two senders request far more than the
/// capacity of `high`.
const GREEDY: usize = 30;
/// The time between two calls of a client of sender 1, which requests less than its share. A client
/// that waits for a downgraded call is still in time for its next call.
const MODEST: Duration = Duration::from_secs(2);
const MODEST_CLIENTS: usize = 40;

fn incast_clients() -> [Clients; SENDERS] {
    let of = |sender, count, every| Clients {
        sender,
        count,
        header: "x-priority",
        class: "high",
        every,
    };
    [
        of(0, MODEST_CLIENTS, MODEST),
        of(1, GREEDY, Duration::ZERO),
        of(2, GREEDY, Duration::ZERO),
    ]
}

/// The outcomes of the calls that request `high`.
#[derive(Debug)]
struct Ends {
    /// Latency without the work, of calls that ran in `high`: the 90th and 97th percentiles.
    p90: Duration,
    p97: Duration,
    /// The rate of calls of each sender, calls/s, and the share of them that ran in `high`.
    rates: [f64; SENDERS],
    kept: [f64; SENDERS],
}

fn ends(calls: &[Called], measured: Duration) -> Result<Ends> {
    let mut latencies: Vec<Duration> = (calls.iter().filter(|c| !c.downgraded))
        .map(|c| c.took.saturating_sub(WORK))
        .collect();
    latencies.sort_unstable();
    ensure!(latencies.len() > 100, "{} calls in high", latencies.len());
    let (mut rates, mut kept) = ([0.0; SENDERS], [0.0; SENDERS]);
    for sender in 0..SENDERS {
        let own = || calls.iter().filter(|c| c.clients == sender);
        let count = own().count() as f64;
        rates[sender] = count / measured.as_secs_f64();
        kept[sender] = own().filter(|c| !c.downgraded).count() as f64 / count;
    }
    Ok(Ends {
        p90: latencies[latencies.len() * 9 / 10],
        p97: latencies[latencies.len() * 97 / 100],
        rates,
        kept,
    })
}

/// Runs for `warmup` and `measured` seconds under `settings`. At each sender, the probability of
/// admission to `high` must be at least `least` thousandths.
///
/// Without class admission the class would miss its target: the greedy senders alone would keep 60
/// calls in progress, which the service needs 300 ms to serve. The first claim of the scenario
/// `aequitas-fig8` shows such a miss.
fn under_incast(settings: &str, (warmup, measured): (u64, u64), least: u64) -> Result<Ends> {
    let [warmup, measured] = [warmup, measured].map(Duration::from_secs);
    load::undisturbed(load::tolerable(TARGET), |_| {
        let incast = Incast::start(settings)?;
        let calls = run(&incast, &incast_clients(), warmup, measured)?;
        let ends = ends(&calls, measured)?;
        println!("{settings}: {ends:?}");
        for sender in 0..SENDERS {
            let [calls, downgraded, admit] = ["calls", "calls_downgraded", "admit_permille"]
                .map(|name| incast.stat(sender, name, "high"));
            println!("sender {sender}: {calls:?} calls, {downgraded:?} downgraded, {admit:?}");
            ensure!(downgraded? <= calls? && (least..=1_000).contains(&admit?));
        }
        incast.check()?;
        Ok((ends, Lateness::of_backend(&incast.backend.stats())))
    })
}

#[test]
fn under_incast_a_class_keeps_its_target_by_admission_only() -> Result<()> {
    let _lock = lock_machine()?;
    let settings = "targets: {high: 100ms, medium: 1h}, percentile: 90, \
                    distributed: {increase: 0.05, decrease: 0.02, minProbability: 0.5}";
    let with = under_incast(settings, (14, 8), 500)?;
    // The clients' times include the time of the connection to their sidecar.
    let beside = Duration::from_millis(10);
    assert!(with.p90 <= TARGET + beside, "{with:?}");
    // A sender that requests less than its share runs nearly all of its calls in the class. The
    // other senders are downgraded more often.
    let modest = MODEST_CLIENTS as f64 / MODEST.as_secs_f64();
    let [own, others @ ..] = with.kept;
    assert!(
        own > 0.85 && others.iter().all(|kept| *kept < own),
        "{with:?}"
    );
    assert!(with.rates[0] > 0.95 * modest, "{with:?}");
    Ok(())
}

/// With the default constants, the probabilities of the greedy senders fall within seconds. During
/// the quarter of an hour in which the probabilities rise again, these senders have less than their
/// share of the class. The test `class_admission` of headgate-admission covers this time.
#[test]
fn the_constants_that_ship_keep_the_target_and_the_share_of_the_modest() -> Result<()> {
    let _lock = lock_machine()?;
    let settings = "targets: {high: 100ms, medium: 1h}";
    let seen = under_incast(settings, (5, 8), 100)?;
    let beside = Duration::from_millis(10);
    // The test doesn't use the 99th percentile, because for a few hundred calls it is one of the
    // longest times. A pause of the machine delays several calls, but too few services of the
    // backend are late for the run to be repeated. So a further 2% of the calls may be late, as
    // during a pause of 160 ms in 8 s.
    assert!(seen.p97 <= TARGET + beside, "{seen:?}");
    let modest = MODEST_CLIENTS as f64 / MODEST.as_secs_f64();
    let [own, others @ ..] = seen.kept;
    assert!(
        own > 0.6 && others.iter().all(|kept| *kept < own / 2.0),
        "{seen:?}"
    );
    assert!(seen.rates[0] > 0.95 * modest, "{seen:?}");
    Ok(())
}

#[test]
fn classes_that_senders_name_share_by_weight() -> Result<()> {
    let _lock = lock_machine()?;
    let weights = [("high", 8.0), ("medium", 4.0), ("low", 1.0)];
    // Each class of each sender has calls in progress at all times.
    let clients: Vec<Clients> = (0..SENDERS)
        .flat_map(|sender| {
            weights.map(|(class, _)| Clients {
                sender,
                count: 6,
                // The service knows the class of a call only from the header that the sender sets.
                header: "x-headgate-class",
                class,
                every: Duration::ZERO,
            })
        })
        .collect();
    let (warmup, measured) = (Duration::from_secs(2), Duration::from_secs(8));
    let shares = load::undisturbed(TOLERABLE_FOR_SHARES, |_| {
        let incast = Incast::start("targets: {high: 1h, medium: 1h}")?;
        let calls = run(&incast, &clients, warmup, measured)?;
        let of = |class: &str| {
            let own = calls.iter().filter(|c| clients[c.clients].class == class);
            own.count() as f64
        };
        let shares = weights.map(|(class, weight)| of(class) / weight);
        println!("{:?} calls", weights.map(|(class, _)| of(class)));
        ensure!(calls.iter().all(|call| !call.downgraded));
        incast.check()?;
        Ok((shares, Lateness::of_backend(&incast.backend.stats())))
    })?;
    let mean = shares.iter().sum::<f64>() / 3.0;
    for share in shares {
        assert!((0.95..=1.05).contains(&(share / mean)), "{shares:?}");
    }
    Ok(())
}
