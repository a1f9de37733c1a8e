//! What the native filter's lock costs: one engine behind one lock, as `filter/native` has it, and threads that do nothing
//! but requests. Envoy's workers do far more between two requests, so these are the most that threads can contend.

use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant as Clock};

use anyhow::{Result, anyhow};
use headgate_core::decision::Decision;
use headgate_core::host::Local;
use headgate_core::http::memory::MemoryStream;
use headgate_core::http::{Filter, Inbound, Property};
use headgate_core::time::Instant;
use serde::Serialize;
use serde_json::json;

use super::table::Table;

/// Headers of a request, as many as a browser sends.
const HEADERS: [(&str, &str); 12] = [
    (":method", "GET"),
    (":path", "/search?q=headgate&page=2"),
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
];
/// One wait in so many is kept for the percentiles.
const SAMPLED: u64 = 16;

/// What some threads did.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Threads.
    pub threads: usize,
    /// Requests, from their headers to their end, a second; each takes the lock three times.
    pub requests_per_second: f64,
    /// Mean wait for the lock, ns.
    pub wait_ns: f64,
    /// The 99th percentile of these waits, ns.
    pub wait_p99_ns: u64,
    /// Mean time with the lock, ns.
    pub held_ns: f64,
}

type Engine = Filter<Local<()>>;

/// What one thread saw.
#[derive(Default)]
struct Seen {
    requests: u64,
    locked: u64,
    wait_ns: u64,
    held_ns: u64,
    waits: Vec<u64>,
}

/// Measures each number of threads for this long.
///
/// # Errors
/// If the engine refuses its configuration.
pub fn run(threads: &[usize], measured: Duration) -> Result<Vec<Row>> {
    threads.iter().map(|&n| row(n, measured)).collect()
}

fn engine() -> Result<Engine> {
    let slo = json!([
        {"percentile": 50.0, "objective_us": 18_000},
        {"percentile": 90.0, "objective_us": 50_000},
    ]);
    let matches = json!([{"path": {"type": "PathPrefix", "value": "/search"}}]);
    let stage = json!({
        "policy": "default/search",
        "parallelism": 1_000,
        "queue": {"max_length": 100, "timeout_us": 1_000_000},
        "strategy": {"type": "Bouncer", "logic": "Any", "shed_by_value": true},
        "types": [{"name": "search", "matches": matches, "slo": slo}, {"name": "default", "slo": slo}],
    });
    let config = json!({"revision": "bench", "stages": [stage]}).to_string();
    let mut engine = Filter::new(Local::default(), 1);
    let proxy = MemoryStream::of(&[]);
    engine
        .configure(&proxy, Instant::default(), (1, ""), config.as_bytes())
        .map_err(|error| anyhow!("{error}"))?;
    engine.join(&proxy);
    Ok(engine)
}

fn row(threads: usize, measured: Duration) -> Result<Row> {
    let engine = Mutex::new(engine()?);
    let start = Barrier::new(threads + 1);
    let (seen, took) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| work(&engine, &start, measured)))
            .collect();
        start.wait();
        let began = Clock::now();
        let seen: Vec<Seen> = workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .collect();
        (seen, began.elapsed())
    });
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>() as f64;
    let locked = sum(|seen| seen.locked);
    let mut waits: Vec<u64> = seen.iter().flat_map(|seen| seen.waits.clone()).collect();
    waits.sort_unstable();
    Ok(Row {
        threads,
        requests_per_second: sum(|seen| seen.requests) / took.as_secs_f64(),
        wait_ns: sum(|seen| seen.wait_ns) / locked,
        wait_p99_ns: waits
            .get(waits.len() * 99 / 100)
            .copied()
            .unwrap_or_default(),
        held_ns: sum(|seen| seen.held_ns) / locked,
    })
}

/// Requests one after the other, until the time is over.
fn work(engine: &Mutex<Engine>, start: &Barrier, measured: Duration) -> Seen {
    let stream = MemoryStream::of(&HEADERS);
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
        let decision = locked(engine, &mut seen, |engine| {
            inbound.request_headers(engine, &stream)
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
    seen.held_ns += nanos(got.elapsed());
    if seen.locked.is_multiple_of(SAMPLED) {
        seen.waits.push(wait);
    }
    seen.locked += 1;
    result
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "threads",
        "requests/s",
        "wait for the lock, mean ns",
        "p99 ns",
        "time with it, mean ns",
    ]);
    for row in rows {
        table.row([
            row.threads.to_string(),
            format!("{:.0}", row.requests_per_second),
            format!("{:.0}", row.wait_ns),
            row.wait_p99_ns.to_string(),
            format!("{:.0}", row.held_ns),
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
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.requests_per_second > 0.0));
        // Three times each: none was refused.
        let engine = Mutex::new(engine().unwrap());
        let seen = work(&engine, &Barrier::new(1), Duration::from_millis(20));
        assert_eq!(seen.locked, 3 * seen.requests);
    }
}
