//! Many policies and many proxies on one operator: the time until every affected proxy has accepted
//! an edit, and the cost for the operator and the API server.
//!
//! With an API server, proxies use TLS with certificates of their namespaces. Two more times are
//! then measured. One is the time until a restarted operator has configured all proxies. The other
//! is the time until another replica writes statuses in place of a killed leader.
//!
//! Two shapes are measured. In the first, each proxy has its own policy, so an edit affects one
//! proxy. In the second, all proxies have the same policy, so an edit affects all of them. Both
//! shapes contain all the policies.

mod source;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::table::Table;
use crate::quantiles::Durations;
use crate::xds::Claims;
use crate::xds_clients::{ClientSpec, Fleet};

pub use source::Source;
use source::{Running, name, namespace};

const MIB: f64 = 1_048_576.0;

/// Sizes of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The number of policies.
    pub policies: usize,
    /// The number of simulated proxies.
    pub clients: usize,
    /// The number of edits in each shape.
    pub edits: usize,
    /// The time without a change, in which the operator's writes are counted.
    pub quiet: Duration,
}

/// The results of one source in one shape.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The source of the policies.
    pub source: &'static str,
    /// The number of proxies that an edit affects.
    pub proxies: usize,
    /// Time from the start of the first stream until all proxies had their first configuration, ms.
    pub first_ms: f64,
    /// Time from the apply of an edit to the last acceptance, median, ms.
    pub p50_ms: f64,
    /// Time from the apply of an edit to the last acceptance, 99th percentile, ms.
    pub p99_ms: f64,
    /// The number of responses to proxies for each edit.
    pub responses_per_edit: f64,
    /// Resident memory of the operator, MiB.
    pub rss_mib: f64,
    /// The number of the operator's requests to the API server for each edit, without watches and
    /// requests of its Lease.
    pub requests_per_edit: Option<f64>,
    /// The number of the operator's writes while nothing changed, without writes of its Lease.
    pub quiet_writes: Option<usize>,
    /// Time from the start of another operator until it serves, ms.
    pub restart_ready_ms: Option<f64>,
    /// Time from the start of another operator until it has configured all proxies, ms.
    pub restart_ms: Option<f64>,
    /// Time from the end of the leader until another replica has written the status of an edit, ms.
    pub leader_ms: Option<f64>,
}

/// Measures both shapes with policies from `source`.
///
/// # Errors
/// If a part doesn't start, or proxies don't get the expected configuration.
pub fn run(source: Source, options: &Options, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    progress(&format!("{}: {} policies", source.name(), options.policies));
    let mut running = Running::start(source, options.policies, options.clients)?;
    let mut rows = Vec::new();
    for shared in [false, true] {
        let shape = if shared { "one policy" } else { "each its own" };
        progress(&format!(
            "{}: {} proxies, {shape}",
            source.name(),
            options.clients
        ));
        let row = measure(&mut running, source, options, shared, &mut progress)?;
        progress(&serde_json::to_string(&row)?);
        rows.push(row);
    }
    Ok(rows)
}

fn measure(
    running: &mut Running,
    source: Source,
    options: &Options,
    shared: bool,
    progress: &mut impl FnMut(&str),
) -> Result<Row> {
    let policy_of = |client: usize| if shared { 0 } else { client % options.policies };
    let started = Instant::now();
    let (fleet, first) = connect(running, options.clients, policy_of)?;

    progress(&format!(
        "all configured after {:.0} ms",
        ms(first.duration_since(started))
    ));
    // Each new connection causes a write of a status. Edits are measured without these writes.
    running.settle()?;
    progress(&format!(
        "all statuses written after {:.0} s",
        started.elapsed().as_secs_f64()
    ));
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
    progress(&format!(
        "edits: p50 {:.0} ms, p99 {:.0} ms",
        times.quantile_ms(0.5),
        times.quantile_ms(0.99)
    ));
    let edits = options.edits.max(1) as f64;
    let requests = running.requests(mark)?;
    let responses = fleet.responses() - before;

    // After the operator has settled, its writes are counted for a fixed time, because no event
    // marks the absence of writes.
    running.settle()?;
    let mark = running.mark();
    thread::sleep(options.quiet);
    let quiet_writes = running.writes(mark)?;
    let rss_mib = running.resident_bytes()? as f64 / MIB;
    drop(fleet);
    let begun = Instant::now();
    let restart_ready_ms = running.restart()?.map(ms);
    let restart_ms = match restart_ready_ms {
        Some(_) => {
            let (_, last) = connect(running, options.clients, policy_of)?;
            Some(ms(last.duration_since(begun)))
        }
        None => None,
    };
    let leader_ms = running.change_leader()?.map(ms);
    Ok(Row {
        source: source.name(),
        proxies: (0..options.clients)
            .filter(|c| policy_of(*c) == policy_of(0))
            .count(),
        first_ms: first.duration_since(started).as_secs_f64() * 1e3,
        p50_ms: times.quantile_ms(0.5),
        p99_ms: times.quantile_ms(0.99),
        responses_per_edit: responses as f64 / edits,
        rss_mib,
        requests_per_edit: requests.map(|n| n as f64 / edits),
        quiet_writes,
        restart_ready_ms,
        restart_ms,
        leader_ms,
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Connects all proxies. Returns the proxies, and the time at which the last of them had a
/// configuration.
fn connect(
    running: &Running,
    clients: usize,
    policy_of: impl Fn(usize) -> usize,
) -> Result<(Fleet, Instant)> {
    let specs = (0..clients).map(|client| spec(running, client, policy_of(client)));
    let specs: Result<Vec<_>> = specs.collect();
    let fleet =
        Fleet::start(running.xds(), specs?).with_context(|| running.operators_last_words())?;
    let last = fleet.wait_for(0..clients, "\"policy\":");
    let last = last.with_context(|| running.operators_last_words())?;
    Ok((fleet, last))
}

fn spec(running: &Running, client: usize, policy: usize) -> Result<ClientSpec> {
    let (namespace, name) = (namespace(policy), name(policy));
    let id = format!("proxy-{client}");
    Ok(ClientSpec {
        claims: Claims {
            target: Some(format!("Service/{namespace}/{name}")),
            ..Claims::pod(&id, &namespace, &[("app", &name)])
        },
        tls: running.tls(&namespace)?,
    })
}

/// Returns the rows as a table.
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
        "restart: serves, ms",
        "all configured, ms",
        "leader change, ms",
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
            or_none(row.restart_ready_ms.map(|n| format!("{n:.0}"))),
            or_none(row.restart_ms.map(|n| format!("{n:.0}"))),
            or_none(row.leader_ms.map(|n| format!("{n:.0}"))),
        ]);
    }
    table
}
