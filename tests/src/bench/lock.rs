//! Cost of the native filter's lock: one engine behind one lock, as in `filter/native`, with
//! threads that do nothing but process requests. Envoy's workers do far more between two requests,
//! so the measured contention is an upper bound.

use std::collections::HashMap;
use std::sync::{Barrier, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant as Clock};

use anyhow::{Result, anyhow};
use headgate_core::decision::Decision;
use headgate_core::engine::Prepared;
use headgate_core::host::{MetricId, MetricKind, Metrics};
use headgate_core::http::{Headers, Inbound, Property};
use headgate_mesh::Filter;
use headgate_simulator::host::Local;
use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;
use serde::Serialize;
use serde_json::json;

use super::table::Table;
use memory::MemoryStream;

#[path = "../../../filter/core/tests/memory/mod.rs"]
mod memory;

/// The headers of a request. A plain client sends the first twelve, and a browser behind proxies
/// sends all of them.
const HEADERS: [(&str, &str); 30] = [
    (":method", "GET"),
    (":path", "/t200/search?q=headgate&page=2"),
    (":authority", "shop.example"),
    (":scheme", "https"),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101",
    ),
    ("accept", "application/json"),
    ("accept-encoding", "gzip, br"),
    ("accept-language", "en-GB,en;q=0.7"),
    ("cookie", "session=4b1f0c2d9e8a7766554433221100ffee"),
    ("x-request-id", "7f9d2c66-3c53-4c5e-9a2b-4b1f0c2d9e8a"),
    ("x-forwarded-for", "192.0.2.7"),
    ("x-forwarded-proto", "https"),
    (
        "authorization",
        "Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6IjEifQ.e30.4b1f0c2d9e8a776655",
    ),
    ("referer", "https://shop.example/t200/?from=newsletter"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "cors"),
    ("sec-fetch-dest", "empty"),
    (
        "sec-ch-ua",
        "\"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\"",
    ),
    ("sec-ch-ua-mobile", "?0"),
    ("sec-ch-ua-platform", "\"Linux\""),
    ("cache-control", "no-cache"),
    ("pragma", "no-cache"),
    ("dnt", "1"),
    ("priority", "u=1, i"),
    (
        "traceparent",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    ("tracestate", "rojo=00f067aa0ba902b7"),
    ("x-b3-sampled", "1"),
    ("x-envoy-external-address", "192.0.2.7"),
    ("x-client-version", "4.18.2"),
    ("if-none-match", "\"33a64df551425fcc55e4d42a148795d9\""),
];
/// Time between two ticks of the main thread.
const TICK: Duration = Duration::from_millis(10);
/// The number of ticks between two new configurations. A configuration comes with a tick.
const EDIT: u32 = 20;
/// One of this number of waits is kept for the percentiles.
const SAMPLED: u64 = 16;

/// A load on the lock.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    headers: usize,
    types: usize,
    /// Whether the main thread applies new configurations.
    edits: bool,
}

const CASES: [Case; 3] = [
    Case {
        name: "12 headers, 2 types",
        headers: 12,
        types: 2,
        edits: false,
    },
    Case {
        name: "30 headers, 256 types",
        headers: 30,
        types: 256,
        edits: false,
    },
    Case {
        name: "30 headers, 256 types, 5 edits/s",
        headers: 30,
        types: 256,
        edits: true,
    },
];

/// The results of one number of threads under one load.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The load.
    pub case: &'static str,
    /// The number of threads.
    pub threads: usize,
    /// Requests per second, each from its headers to its end. A request takes the lock three times.
    pub requests_per_second: f64,
    /// Mean wait for the lock, ns.
    pub wait_ns: f64,
    /// 99th percentile of the waits for the lock, ns.
    pub wait_p99_ns: u64,
    /// The longest wait for the lock, ns.
    pub wait_max_ns: u64,
    /// Mean time for which the lock is held, ns.
    pub held_ns: f64,
    /// The longest time for which the main thread held the lock for a tick, ns.
    pub tick_ns: u64,
    /// The longest time for which the main thread held the lock for a configuration, ns.
    pub edit_ns: u64,
}

type Engine = Filter<Local>;

/// A metrics host that stores only names, without the lock.
#[derive(Debug, Default)]
struct Names;

static NAMES: LazyLock<Mutex<HashMap<String, u32>>> = LazyLock::new(Mutex::default);

impl Metrics for Names {
    fn define(&self, _kind: MetricKind, name: &str) -> Result<MetricId, HostError> {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return Ok(MetricId(*known));
        }
        let id = u32::try_from(names.len()).unwrap_or(u32::MAX);
        names.insert(name.to_owned(), id);
        Ok(MetricId(id))
    }

    fn add(&self, _metric: MetricId, _delta: i64) -> Result<(), HostError> {
        Ok(())
    }

    fn record(&self, _metric: MetricId, _value: u64) -> Result<(), HostError> {
        Ok(())
    }
}

/// The measurements of one thread.
#[derive(Default)]
struct Seen {
    requests: u64,
    locked: u64,
    wait_ns: u64,
    held_ns: u64,
    longest_held_ns: u64,
    longest_wait_ns: u64,
    waits: Vec<u64>,
}

/// Measures each number of threads for this long.
///
/// # Errors
/// If the engine refuses its configuration.
pub fn run(threads: &[usize], measured: Duration) -> Result<Vec<Row>> {
    let cases = CASES
        .iter()
        .flat_map(|case| threads.iter().map(move |&n| (case, n)));
    cases.map(|(case, n)| row(case, n, measured)).collect()
}

/// Returns the configuration of a case. `slots` makes one edit differ from another.
fn config(case: &Case, slots: u32) -> String {
    let slo = json!([
        {"percentile": 50.0, "objective_us": 18_000},
        {"percentile": 90.0, "objective_us": 50_000 + slots},
    ]);
    let matches = |n: usize| json!([{"path": {"type": "PathPrefix", "value": format!("/t{n}")}}]);
    let named = |n| json!({"name": format!("t{n}"), "matches": matches(n), "slo": slo});
    // The requests are of type `t200`. With few types, it is the last one before `default`.
    let numbers = (0..case.types - 1).map(|n| n + 202_usize.saturating_sub(case.types));
    let mut types: Vec<_> = numbers.map(named).collect();
    types.push(json!({"name": "default", "slo": slo}));
    let stage = json!({
        "policy": "default/search",
        "parallelism": slots,
        "queue": {"max_length": 100, "timeout_us": 1_000_000},
        "strategy": {"type": "Bouncer", "logic": "Any", "shed_by_value": true},
        "types": types,
    });
    json!({"revision": "bench", "stages": [stage]}).to_string()
}

fn engine(case: &Case) -> Result<Engine> {
    let mut engine = Filter::new(Local::default(), 1);
    let proxy = MemoryStream::of(&[]);
    engine
        .configure(
            &proxy,
            Instant::default(),
            (0, ""),
            config(case, 1_000).as_bytes(),
        )
        .map_err(|error| anyhow!("{error}"))?;
    engine.join(&proxy);
    Ok(engine)
}

fn row(case: &Case, threads: usize, measured: Duration) -> Result<Row> {
    let engine = Mutex::new(engine(case)?);
    let start = Barrier::new(threads + 2);
    let (seen, main, took) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| work(case, &engine, &start, measured)))
            .collect();
        let main = scope.spawn(|| main_thread(case, &engine, &start, measured));
        start.wait();
        let began = Clock::now();
        let seen: Vec<Seen> = workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .collect();
        (seen, main.join().ok(), began.elapsed())
    });
    let [ticks, edits] = main.unwrap_or_default();
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>() as f64;
    let locked = sum(|seen| seen.locked);
    let mut waits: Vec<u64> = seen.iter().flat_map(|seen| seen.waits.clone()).collect();
    waits.sort_unstable();
    let longest = seen.iter().map(|seen| seen.longest_wait_ns).max();
    Ok(Row {
        case: case.name,
        threads,
        requests_per_second: sum(|seen| seen.requests) / took.as_secs_f64(),
        wait_ns: sum(|seen| seen.wait_ns) / locked,
        wait_p99_ns: waits
            .get(waits.len() * 99 / 100)
            .copied()
            .unwrap_or_default(),
        wait_max_ns: longest.unwrap_or_default(),
        held_ns: sum(|seen| seen.held_ns) / locked,
        tick_ns: ticks.longest_held_ns,
        edit_ns: edits.longest_held_ns,
    })
}

/// Runs the loop of Envoy's main thread: ticks and configurations. Returns the measurements of the
/// ticks, then those of the configurations.
fn main_thread(
    case: &Case,
    engine: &Mutex<Engine>,
    start: &Barrier,
    measured: Duration,
) -> [Seen; 2] {
    let stream = MemoryStream::of(&[]);
    let (mut ticks, mut edits) = (Seen::default(), Seen::default());
    start.wait();
    let began = Clock::now();
    for n in 1_u32.. {
        std::thread::sleep((began + TICK * n).saturating_duration_since(Clock::now()));
        if began.elapsed() >= measured {
            break;
        }
        let now = Instant::default() + began.elapsed();
        stream.now.set(Some(now));
        locked(engine, &mut ticks, |engine| engine.tick(&stream));
        if case.edits && n.is_multiple_of(EDIT) {
            let json = config(case, 1_000 + n);
            let prepared = Prepared::from_json(&Names, json.as_bytes());
            let taken = locked(engine, &mut edits, |engine| {
                engine.take_over(&stream, now, (n, ""), prepared)
            });
            // Like Envoy, the loop removes the previous configuration after the switch.
            if taken.is_ok() {
                locked(engine, &mut edits, |engine| {
                    engine.gone(&stream, n.saturating_sub(EDIT));
                });
            }
        }
    }
    [ticks, edits]
}

/// Processes requests one after the other until `measured` has passed.
fn work(case: &Case, engine: &Mutex<Engine>, start: &Barrier, measured: Duration) -> Seen {
    let stream = MemoryStream::of(&HEADERS[..case.headers]);
    stream.set(Property::ResponseCodeDetails, "via_upstream");
    let status = (":status".to_owned(), "200".to_owned());
    stream.response.borrow_mut().push(status);
    let mut seen = Seen::default();
    start.wait();
    let began = Clock::now();
    while began.elapsed() < measured {
        let now = Instant::default() + began.elapsed();
        stream.now.set(Some(now));
        let mut inbound = Inbound::default();
        let headers = Headers::of_request(&stream);
        let decision = locked(engine, &mut seen, |engine| {
            inbound.request(engine, &stream, headers)
        });
        if matches!(decision, Decision::Forward(_)) {
            locked(engine, &mut seen, |engine| {
                inbound.response_headers(engine, &stream, false);
            });
            locked(engine, &mut seen, |engine| {
                inbound.response_end(engine, &stream);
            });
        }
        seen.requests += 1;
    }
    seen
}

fn locked<T>(engine: &Mutex<Engine>, seen: &mut Seen, f: impl FnOnce(&mut Engine) -> T) -> T {
    let asked = Clock::now();
    let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
    let got = Clock::now();
    let result = f(&mut engine);
    engine.actions().clear();
    drop(engine);
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let wait = nanos(got - asked);
    seen.wait_ns += wait;
    let held = nanos(got.elapsed());
    seen.held_ns += held;
    seen.longest_held_ns = seen.longest_held_ns.max(held);
    seen.longest_wait_ns = seen.longest_wait_ns.max(wait);
    if seen.locked.is_multiple_of(SAMPLED) {
        seen.waits.push(wait);
    }
    seen.locked += 1;
    result
}

/// Returns the rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "load",
        "threads",
        "requests/s",
        "wait for the lock, mean ns",
        "p99 ns",
        "longest µs",
        "time with it, mean ns",
        "a tick's longest µs",
        "an edit's longest µs",
    ]);
    for row in rows {
        table.row([
            row.case.to_owned(),
            row.threads.to_string(),
            format!("{:.0}", row.requests_per_second),
            format!("{:.0}", row.wait_ns),
            row.wait_p99_ns.to_string(),
            (row.wait_max_ns / 1_000).to_string(),
            format!("{:.0}", row.held_ns),
            (row.tick_ns / 1_000).to_string(),
            (row.edit_ns / 1_000).to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_does_requests_that_pass() {
        let rows = run(&[1, 3], Duration::from_millis(50)).unwrap();
        assert_eq!(rows.len(), 2 * CASES.len());
        assert!(rows.iter().all(|row| row.requests_per_second > 0.0));
        // A request that isn't refused takes the lock three times.
        let case = &CASES[2];
        let engine = Mutex::new(engine(case).unwrap());
        let seen = work(case, &engine, &Barrier::new(1), Duration::from_millis(20));
        assert_eq!(seen.locked, 3 * seen.requests);
    }
}
