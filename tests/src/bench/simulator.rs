//! The speed of the simulator: simulated requests per second of CPU time on one core, beside the
//! same events without an engine, and the duration of one of the paper's tables.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headgate_simulator::backend::Network;
use headgate_simulator::{Backend, Outcome, Request, Silent, Simulation, Size};
use headgate_strategies::rng::Rng;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::json;

use super::table::{Table, times};
use crate::mix::{self, QueryType};
use crate::{policy, simulated};

/// The number of slots, as in the paper.
const P: usize = 100;
/// Offered load as a multiple of capacity.
const LOAD: f64 = 1.2;
/// The table that is timed. The next constants are its size in the paper.
const TABLE: &str = "bouncer-table3";
const TABLE_REQUESTS: u64 = 1_500_000;
const TABLE_SEEDS: u32 = 5;

/// The options of a benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The number of requests of each run. The fastest of [`Options::rounds`] runs counts.
    pub requests: u64,
    /// The number of rounds over all variants.
    pub rounds: usize,
    /// Whether the whole table is simulated rather than a small part.
    pub full: bool,
}

/// The results of one variant.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// A description of the simulated variant.
    pub what: &'static str,
    /// Simulated requests per second of CPU time.
    pub per_cpu_second: f64,
    /// Time per request as a multiple of that of the events without an engine.
    pub ratio: f64,
}

/// The results of a whole table on all cores.
#[derive(Debug, Clone, Serialize)]
pub struct TableRun {
    /// The name of the table.
    pub name: &'static str,
    /// The number of simulated requests.
    pub simulated: u64,
    /// Wall time of the simulation, s. It is more than `cpu_seconds / cores` if other programs run,
    /// too.
    pub seconds: f64,
    /// CPU time of all threads, s.
    pub cpu_seconds: f64,
    /// The number of cores used.
    pub cores: usize,
    /// The number of requests of the table at full size.
    pub full_requests: u64,
    /// CPU time of the table at full size, s: measured if all requests were simulated, else
    /// extrapolated.
    pub full_cpu_seconds: f64,
}

/// Measures all variants. `progress` gets a line for each as it starts.
///
/// # Errors
/// If a policy is refused or the engine fails.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    let mix = mix::bouncer(1.0);
    let bouncer = policy::for_mix(P, &mix);
    let mut everything = bouncer.clone();
    everything["spec"]["strategy"] = json!({"type": "MaxQueueLength"});
    let allowance = policy::with_allowance(bouncer.clone(), 0.3);
    let stages = [
        ("engine, MaxQueueLength", everything),
        (
            "engine, Bouncer, FIFO",
            policy::with_discipline(bouncer.clone(), "FIFO"),
        ),
        (
            "engine, Bouncer, slack order",
            policy::with_discipline(bouncer, "Slack"),
        ),
        (
            "engine, Bouncer + allowance, slack order",
            policy::with_discipline(allowance, "Slack"),
        ),
    ];
    let stages = stages
        .into_iter()
        .map(|(name, policy)| Ok((name, simulated::stage(&policy)?)))
        .collect::<Result<Vec<_>>>()?;
    let workload = simulated::workload(&mix)?;
    let per_second = LOAD * mix::capacity_rps(&mix, P);
    let mut best = vec![Duration::MAX; stages.len() + 1];
    for round in 1..=options.rounds {
        progress(&format!("round {round} of {}", options.rounds));
        // These events have half the load, because without admission control a queue would grow
        // without end.
        let bare = cpu_time(ClockId::ThreadCPUTime, || {
            Ok(bare_events(&mix, per_second / 2.0, options.requests))
        })?;
        best[0] = best[0].min(bare);
        for ((_, stage), best) in stages.iter().zip(&mut best[1..]) {
            let simulation = Simulation {
                stage,
                workload: &workload,
                per_second,
                warm_up: Duration::ZERO,
                requests: options.requests,
                seed: 1,
            };
            let took = cpu_time(ClockId::ThreadCPUTime, || {
                Ok::<Outcome, anyhow::Error>(simulation.run()?)
            })?;
            *best = (*best).min(took);
        }
    }
    let names = stages.iter().map(|(name, _)| *name);
    let baseline = best[0].as_secs_f64();
    Ok(std::iter::once("events only, no engine")
        .chain(names)
        .zip(&best)
        .map(|(what, took)| Row {
            what,
            per_cpu_second: options.requests as f64 / took.as_secs_f64(),
            ratio: took.as_secs_f64() / baseline,
        })
        .collect())
}

/// Simulates the whole table, or a hundredth of its requests, on all cores.
///
/// # Errors
/// If the engine fails.
pub fn table_run(options: &Options) -> Result<TableRun> {
    let scenario = headgate_scenarios::by_name(TABLE)?;
    let scenario = scenario.with_context(|| format!("no scenario {TABLE}"))?;
    let size = |requests: u64, seeds: u32| Size {
        requests: Some(requests),
        seeds: Some(seeds),
        ..Size::default()
    };
    let whole = size(TABLE_REQUESTS, TABLE_SEEDS);
    let part = if options.full {
        whole
    } else {
        size(TABLE_REQUESTS / 20, 1)
    };
    let started = Instant::now();
    let cpu = cpu_time(
        ClockId::ProcessCPUTime,
        || Ok(scenario.run(&part, &Silent)?),
    )?;
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), cpu.as_secs_f64());
    let (simulated, full_requests) = (scenario.expected(&part)?, scenario.expected(&whole)?);
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    Ok(TableRun {
        name: TABLE,
        simulated,
        seconds,
        cpu_seconds,
        cores,
        full_requests,
        full_cpu_seconds: cpu_seconds * full_requests as f64 / simulated as f64,
    })
}

/// Does the work that any simulation of this traffic needs. Draws requests, and keeps the ends of
/// their services in order.
fn bare_events(mix: &[QueryType], per_second: f64, requests: u64) -> u64 {
    let mut rng = Rng::new(1);
    let mut backend = Network::of_servers(P as u32);
    let shares: Vec<f64> = mix
        .iter()
        .scan(0.0, |sum, query| {
            *sum += query.share;
            Some(*sum)
        })
        .collect();
    // For a lognormal distribution, ln(mean / median) = σ² / 2.
    let sigmas: Vec<f64> = mix
        .iter()
        .map(|q| (2.0 * (q.mean.as_secs_f64() / q.median.as_secs_f64()).ln()).sqrt())
        .collect();
    let (mut now, mut served) = (0.0, 0);
    for id in 0..requests {
        now += -(1.0 - rng.next_f64()).ln() / per_second * 1e9;
        let share = rng.next_f64();
        let kind = shares.iter().position(|&upto| share < upto).unwrap_or(0);
        // This is the Box–Muller transform.
        let radius = (-2.0 * (1.0 - rng.next_f64()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * rng.next_f64()).cos();
        let median = mix[kind].median.as_secs_f64() * 1e9;
        let service = median * (sigmas[kind] * normal).exp();
        let at = now as u64;
        while backend.next_end() <= at {
            let end = backend.next_end();
            served += u64::from(backend.end(end).is_some());
        }
        let request = Request::new(at, kind, service as u64);
        backend.take(at, id as u32, &request);
    }
    served
}

/// Returns the CPU time of `work` by `clock`: that of this thread, or of all threads.
fn cpu_time<T>(clock: ClockId, work: impl FnOnce() -> Result<T>) -> Result<Duration> {
    let now = || {
        let time = clock_gettime(clock);
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        )
    };
    let before = now();
    std::hint::black_box(work()?);
    Ok(now().saturating_sub(before))
}

/// Returns the rows as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "one core",
        "million requests per CPU second",
        "time per request ÷ events only",
    ]);
    for row in rows {
        table.row([
            row.what.to_owned(),
            format!("{:.2}", row.per_cpu_second / 1e6),
            times(row.ratio),
        ]);
    }
    table
}

/// Returns a sentence about the table's duration.
pub fn table_words(run: &TableRun) -> String {
    let million = |n: u64| n as f64 / 1e6;
    let cores = run.cores as f64;
    let whole = if run.simulated == run.full_requests {
        "all of it".to_owned()
    } else {
        format!(
            "at that speed all {:.0} million take {:.0} s of {} cores",
            million(run.full_requests),
            run.full_cpu_seconds / cores,
            run.cores
        )
    };
    format!(
        "{}: {:.1} million requests in {:.1} s of CPU time, {:.2} million per second and core \
         ({:.1} s of wall time); {whole}",
        run.name,
        million(run.simulated),
        run.cpu_seconds,
        million(run.simulated) / run.cpu_seconds,
        run.seconds,
    )
}
