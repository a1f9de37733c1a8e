//! Cost of workflows: the bytes and the CPU time that they add to a hop between two sidecars, and
//! the memory for each workflow.
//!
//! A hop is one call from a service through its sidecar to the sidecar of another service and back.
//! The same requests pass through the same two sidecars without Headgate, with Headgate but no
//! workflows, and with workflows. The CPU time is that of both sidecars. The bytes are those that
//! the calling sidecar sent and received on its connections to the other one. All figures are
//! reported next to the figures of the plain proxies in the same run.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::cpu::{cpu_time, median};
use super::table::{Table, times};
use crate::envoy::EnvoyProcess;
use crate::http;
use crate::load::{self, LoadSpec, RequestType};
use crate::mesh::{Mesh, Options as MeshOptions, Slots, Topology};

/// The number of calls that one request causes, so that hops dominate the measurement.
const CALLS: u64 = 10;
/// Requests/s. There are ten times as many hops.
const RATE: f64 = 40.0;
const WARMUP: Duration = Duration::from_secs(1);
/// The largest number of workflows with their own rate.
const CAP: usize = 1_000;
/// The number of offered workflows.
const OFFERED: usize = 10_000;
/// The number of clients that offer workflows.
const CLIENTS: usize = 4;

const HOP: &str = "
policy:
  parallelism: {total: 200}
  types: [{name: default}]
  strategy: {type: MaxQueueLength}
services:
- name: caller
  service: {workers: 64, operations: [{path: /, steps: [{call: {service: callee, count: 10}}]}]}
- name: callee
  service: {workers: 64, operations: [{path: /, steps: []}]}
";

/// The options of a benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// Measured time per variant and round.
    pub measured: Duration,
    /// Rounds over all variants.
    pub rounds: usize,
}

/// The cost of a hop in one variant.
#[derive(Debug, Clone, Serialize)]
pub struct Hop {
    /// Short name.
    pub variant: &'static str,
    /// CPU time of both sidecars per hop, µs: the median over rounds.
    pub us: f64,
    /// Bytes of a request between the sidecars, including headers.
    pub request_bytes: f64,
    /// Bytes of its response.
    pub response_bytes: f64,
}

/// The memory of a sidecar after requests of this many workflows.
#[derive(Debug, Clone, Serialize)]
pub struct Memory {
    /// The number of workflows that were offered since the sidecar's start.
    pub workflows: usize,
    /// Memory that Envoy reports as allocated, KiB, without that of the filter's VM.
    pub allocated_kib: f64,
    /// Resident memory of the process, KiB.
    pub resident_kib: f64,
}

/// All results.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The variants. The first is the plain proxy.
    pub hops: Vec<Hop>,
    /// The memory, by ascending number of workflows.
    pub memory: Vec<Memory>,
}

/// Returns the mesh whose policies have these workflows.
fn topology(workflows: Option<&str>) -> Result<Topology> {
    let mut topology = Topology::parse(HOP)?;
    if let Some(text) = workflows {
        let settings: Value = serde_saphyr::from_str(text)?;
        topology.policy["workflows"] = settings;
    }
    Ok(topology)
}

/// Runs all measurements. `progress` gets a line for each part.
///
/// # Errors
/// If a mesh doesn't start, or requests fail.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    let variants = [
        ("none", Slots::None, None),
        ("headgate", Slots::Files, None),
        ("workflows", Slots::Files, Some("{}")),
    ];
    let mut samples = vec![Vec::new(); variants.len()];
    for round in 1..=options.rounds {
        for ((name, slots, workflows), samples) in variants.iter().zip(&mut samples) {
            progress(&format!("{name}, round {round} of {}", options.rounds));
            samples.push(hop(&topology(*workflows)?, *slots, options).context(*name)?);
        }
    }
    let of = |samples: &[[f64; 3]], index: usize| {
        median(
            &samples
                .iter()
                .map(|sample| sample[index])
                .collect::<Vec<_>>(),
        )
    };
    let hops = variants
        .iter()
        .zip(&samples)
        .map(|((variant, ..), samples)| Hop {
            variant,
            us: of(samples, 0),
            request_bytes: of(samples, 1),
            response_bytes: of(samples, 2),
        })
        .collect();
    progress(&format!("{OFFERED} workflows"));
    Ok(Report {
        hops,
        memory: memory()?,
    })
}

/// Returns CPU time (µs), bytes of the request and bytes of the response of one hop.
fn hop(topology: &Topology, slots: Slots, options: &Options) -> Result<[f64; 3]> {
    let mesh = Mesh::start(
        topology,
        MeshOptions {
            slots,
            concurrency: 1,
        },
    )?;
    let (caller, callee) = (mesh.node("caller-1")?, mesh.node("callee-1")?);
    let envoys = [caller.sidecar()?, callee.sidecar()?];
    let mut request = RequestType::get("request", "/");
    request = request.header("baggage", "workflow=checkout").header(
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    let send = |duration| {
        let spec = LoadSpec::new(caller.inbound(), vec![request.clone()], RATE, duration);
        load::run(spec)
    };
    send(WARMUP)?;
    let cpu = || {
        envoys
            .iter()
            .map(|envoy| cpu_time(envoy.pid()))
            .sum::<Result<Duration>>()
    };
    let bytes =
        |name: &str| envoys[0].stat(&format!("cluster.callee.upstream_cx_{name}_bytes_total"));
    let before = (cpu()?, bytes("tx")?, bytes("rx")?);
    let report = send(options.measured)?;
    let after = (cpu()?, bytes("tx")?, bytes("rx")?);
    let total = &report.total;
    ensure!(
        total.ok * 100 >= total.offered * 95,
        "of {} requests {} were served: {:?}",
        total.offered,
        total.ok,
        total.status
    );
    let hops = (total.ok * CALLS) as f64;
    Ok([
        (after.0 - before.0).as_secs_f64() * 1e6 / hops,
        (after.1 - before.1) as f64 / hops,
        (after.2 - before.2) as f64 / hops,
    ])
}

fn memory() -> Result<Vec<Memory>> {
    let topology = topology(Some(&format!("{{maxWorkflows: {CAP}}}")))?;
    let options = MeshOptions {
        slots: Slots::Files,
        concurrency: 1,
    };
    let mesh = Mesh::start(&topology, options)?;
    let callee = mesh.node("callee-1")?;
    let (envoy, addr) = (callee.sidecar()?, callee.inbound());
    let mut offered = 0;
    let mut rows = Vec::new();
    // The first ten workflows also cause the memory that doesn't depend on the number of workflows.
    for workflows in [10, CAP, OFFERED] {
        offer(addr, offered..workflows)?;
        offered = workflows;
        rows.push(measure(envoy, workflows)?);
    }
    // These workflows have new names, beyond the limit. If memory were kept for names that never
    // return, it would grow again.
    offer(addr, OFFERED..2 * OFFERED)?;
    rows.push(measure(envoy, 2 * OFFERED)?);
    Ok(rows)
}

/// Sends one request of each of these workflows.
fn offer(addr: SocketAddr, workflows: std::ops::Range<usize>) -> Result<()> {
    let numbers: Vec<usize> = workflows.collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = numbers
            .chunks(numbers.len().div_ceil(CLIENTS).max(1))
            .map(|part| {
                scope.spawn(move || {
                    part.iter().try_for_each(|n| {
                        let member = format!("workflow=tenant-{n}");
                        let answer = http::get_with(addr, "/", &[("baggage", &member)])?;
                        // The filter has seen the workflow, whether it refused the request or not.
                        ensure!(matches!(answer.status, 200 | 429 | 503), "{answer:?}");
                        Ok(())
                    })
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| {
            client
                .join()
                .map_err(|_| anyhow::anyhow!("a client died"))?
        })
    })
}

fn measure(envoy: &EnvoyProcess, workflows: usize) -> Result<Memory> {
    let text = envoy.admin_get("/memory")?;
    let answer: Value = serde_json::from_str(&text)?;
    // 64-bit numbers are strings in protobuf's JSON.
    let allocated = answer["allocated"]
        .as_str()
        .and_then(|n| n.parse::<f64>().ok());
    Ok(Memory {
        workflows,
        allocated_kib: allocated.with_context(|| text.clone())? / 1_024.0,
        resident_kib: envoy.resident_bytes()? as f64 / 1_024.0,
    })
}

/// Returns the hops as a table.
pub fn hop_table(report: &Report) -> Table {
    let mut table = Table::new(&[
        "a hop",
        "CPU of both sidecars, µs",
        "÷ plain",
        "request, bytes",
        "added",
        "answer, bytes",
        "added",
    ]);
    let Some(plain) = report.hops.first() else {
        return table;
    };
    for hop in &report.hops {
        table.row([
            hop.variant.to_owned(),
            format!("{:.0}", hop.us),
            times(hop.us / plain.us),
            format!("{:.0}", hop.request_bytes),
            format!("{:+.0}", hop.request_bytes - plain.request_bytes),
            format!("{:.0}", hop.response_bytes),
            format!("{:+.0}", hop.response_bytes - plain.response_bytes),
        ]);
    }
    table
}

/// Returns the memory as a table.
pub fn memory_table(report: &Report) -> Table {
    let mut table = Table::new(&[
        "workflows offered",
        "allocated, KiB",
        "for each more, bytes",
        "resident, KiB",
        "for each more, bytes",
    ]);
    let each = |now: f64, before: f64, count: usize| {
        format!("{:+.0}", (now - before) * 1_024.0 / count as f64)
    };
    for (index, row) in report.memory.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|i| report.memory.get(i));
        let more = before.map(|b| (b, row.workflows - b.workflows));
        table.row([
            row.workflows.to_string(),
            format!("{:.0}", row.allocated_kib),
            more.map_or_else(String::new, |(b, n)| {
                each(row.allocated_kib, b.allocated_kib, n)
            }),
            format!("{:.0}", row.resident_kib),
            more.map_or_else(String::new, |(b, n)| {
                each(row.resident_kib, b.resident_kib, n)
            }),
        ]);
    }
    table
}
