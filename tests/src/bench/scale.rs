//! Many policies and many proxies on one operator: the time until every proxy that an edit is for
//! has accepted it, and the cost to the operator and the API server.
//!
//! Two shapes: each proxy has a policy of its own, and an edit is for one proxy; or all proxies
//! have the same policy, and an edit is for all of them. Both shapes have all the policies.

mod source;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::table::Table;
use crate::quantiles::Durations;
use crate::xds_clients::{ClientSpec, Fleet};

pub use source::Source;
use source::{NAMESPACE, Running, name};

const MIB: f64 = 1_048_576.0;

/// Sizes of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Policies.
    pub policies: usize,
    /// Simulated proxies.
    pub clients: usize,
    /// Edits in each shape.
    pub edits: usize,
    /// Time without a change, in which the operator's writes are counted.
    pub quiet: Duration,
}

/// One source in one shape.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The source of the policies.
    pub source: &'static str,
    /// Proxies that an edit is for.
    pub proxies: usize,
    /// From the start of the first stream until all proxies had their first configuration, ms.
    pub first_ms: f64,
    /// From an edit's apply to the last acceptance, median, ms.
    pub p50_ms: f64,
    /// The same, 99th percentile, ms.
    pub p99_ms: f64,
    /// Responses to proxies for each edit.
    pub responses_per_edit: f64,
    /// Resident memory of the operator, MiB.
    pub rss_mib: f64,
    /// Requests of the operator to the API server for each edit, watches and its Lease apart.
    pub requests_per_edit: Option<f64>,
    /// Writes of the operator while nothing changed, its Lease apart.
    pub quiet_writes: Option<usize>,
}

/// Measures both shapes with policies from `source`.
///
/// # Errors
/// If something doesn't start, or proxies don't get what they should.
pub fn run(source: Source, options: &Options, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    progress(&format!("{}: {} policies", source.name(), options.policies));
    let running = Running::start(source, options.policies)?;
    let mut rows = Vec::new();
    for shared in [false, true] {
        let shape = if shared { "one policy" } else { "each its own" };
        progress(&format!(
            "{}: {} proxies, {shape}",
            source.name(),
            options.clients
        ));
        rows.push(measure(&running, source, options, shared)?);
    }
    Ok(rows)
}

fn measure(running: &Running, source: Source, options: &Options, shared: bool) -> Result<Row> {
    let policy_of = |client: usize| if shared { 0 } else { client % options.policies };
    let started = Instant::now();
    let specs = (0..options.clients).map(|client| spec(client, policy_of(client)));
    let fleet = Fleet::start(running.xds(), specs.collect())
        .with_context(|| running.operators_last_words())?;
    let first = fleet.wait_for(0..options.clients, "\"policy\":")?;

    // Each new connection makes the operator write a status; edits are measured without these
    // writes.
    running.settle()?;
    let before = fleet.responses();
    let mark = running.mark();
    let mut times = Durations::new();
    for edit in 0..options.edits {
        let policy = policy_of(edit * 7);
        let marker = running.edit(policy)?;
        let last = fleet.wait_for(
            (0..options.clients).filter(|c| policy_of(*c) == policy),
            &marker.text,
        )?;
        times.record(last.duration_since(marker.applied));
    }
    let edits = options.edits.max(1) as f64;
    let requests = running.requests(mark)?;
    let responses = fleet.responses() - before;

    // The operator settles, then its writes are counted for a fixed time: no event marks the
    // absence of writes.
    running.settle()?;
    let mark = running.mark();
    thread::sleep(options.quiet);
    let quiet_writes = running.writes(mark)?;
    Ok(Row {
        source: source.name(),
        proxies: (0..options.clients)
            .filter(|c| policy_of(*c) == policy_of(0))
            .count(),
        first_ms: first.duration_since(started).as_secs_f64() * 1e3,
        p50_ms: times.quantile_ms(0.5),
        p99_ms: times.quantile_ms(0.99),
        responses_per_edit: responses as f64 / edits,
        rss_mib: running.resident_bytes()? as f64 / MIB,
        requests_per_edit: requests.map(|n| n as f64 / edits),
        quiet_writes,
    })
}

fn spec(client: usize, policy: usize) -> ClientSpec {
    let name = name(policy);
    ClientSpec {
        node: format!("proxy-{client}"),
        namespace: NAMESPACE.to_owned(),
        labels: vec![("app".to_owned(), name.clone())],
        target: Some(format!("Service/{NAMESPACE}/{name}")),
    }
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "policies from",
        "proxies of an edit",
        "all connected, ms",
        "apply to last ACK, p50 ms",
        "p99 ms",
        "responses/edit",
        "RSS, MiB",
        "API requests/edit",
        "writes when quiet",
    ]);
    for row in rows {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.row([
            row.source.to_owned(),
            row.proxies.to_string(),
            format!("{:.0}", row.first_ms),
            format!("{:.1}", row.p50_ms),
            format!("{:.1}", row.p99_ms),
            format!("{:.1}", row.responses_per_edit),
            format!("{:.0}", row.rss_mib),
            or_none(row.requests_per_edit.map(|n| format!("{n:.1}"))),
            or_none(row.quiet_writes.map(|n| n.to_string())),
        ]);
    }
    table
}
