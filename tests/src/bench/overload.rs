//! The same overload under each protection: the number of requests that are answered within their
//! objective.
//!
//! Every protection gets the same seeded arrivals and service times, at several loads. The measure
//! is goodput: 2xx per second within the p90 objective of the request's type, measured from the
//! moment when the request should have been sent. Goodput is compared with the backend's capacity,
//! and with the ideal: an oracle that keeps all slots busy and refuses the costliest requests
//! first.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use super::lab::{Lab, Protection};
use super::native_filters::{self, Protected};
use super::table::{Table, percent, times};
use crate::backend::{BackendConfig, OnDisconnect};
use crate::demo::result::ideal_rps;
use crate::demo::timeline::{Totals, totals};
use crate::load::{self, Ended, LoadSpec};
use crate::mix::{self, QueryType};
use crate::policy;

/// The options of a benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// Offered load as a multiple of capacity.
    pub load: f64,
    /// Measured time per protection.
    pub measured: Duration,
    /// Duration of the load before the measured time, in which a protection adapts.
    pub warmup: Duration,
    /// Names of the protections to run. An empty list means all.
    pub only: Vec<String>,
    /// Worker threads of Envoy.
    pub workers: u32,
    /// The number of requests that the backend serves at once.
    pub parallelism: usize,
    /// Multiplies the paper's service times and objectives.
    pub scale: f64,
}

impl Options {
    /// Returns the load, which is the same for all protections.
    pub fn spec(&self, target: SocketAddr, mix: &[QueryType]) -> LoadSpec {
        let rate = self.load * mix::capacity_rps(mix, self.parallelism);
        let mut spec = LoadSpec::for_mix(target, mix, rate, self.warmup + self.measured);
        spec.warmup = self.warmup;
        // An answer that arrives more than a second after the end has missed every objective.
        spec.drain = Duration::from_secs(1);
        // This is the largest possible number, because each request takes two file descriptors of
        // Envoy.
        spec.max_outstanding = 8_000;
        spec
    }
}

/// The results of one protection at one load.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Short name of the protection.
    pub protection: &'static str,
    /// A short description.
    pub title: &'static str,
    /// Offered load as a multiple of capacity.
    pub load: f64,
    /// 2xx answers per second within the p90 objective.
    pub goodput_rps: f64,
    /// Goodput as a multiple of the backend's capacity.
    pub goodput_per_capacity: f64,
    /// Goodput as a multiple of the ideal's goodput at this load.
    pub goodput_per_ideal: f64,
    /// Share of the backend's work that was spent on answers within the objective, ratio 0..=1.
    pub work_for_goodput: f64,
    /// Share of the slots in use, ratio 0..=1.
    pub utilization: f64,
    /// The largest number of requests in the backend at once.
    pub max_in_flight: usize,
    /// 99th percentile of the generator's lateness, ms.
    pub generator_late_p99_ms: f64,
    /// The percentile or mean that the strategy controls ÷ its target, of the answers of all types,
    /// or `None` for other strategies.
    pub per_target: Option<f64>,
    /// Results by type, in the mix's order.
    pub types: Vec<TypeRow>,
}

/// The results of one type in a [`Row`].
#[derive(Debug, Clone, Serialize)]
pub struct TypeRow {
    /// Name.
    pub name: &'static str,
    /// Share of the type's requests that were answered 2xx, ratio 0..=1.
    pub acceptance: f64,
    /// Whether both percentiles of the answered requests are inside their objectives, or `None` if
    /// less than 1% were answered.
    pub in_slo: Option<bool>,
    /// Counts and percentiles of the type.
    pub totals: Totals,
}

/// The share of answered requests below which a type counts as starved, because its percentiles
/// aren't meaningful.
const STARVED: f64 = 0.01;

/// Whether both percentiles are inside their objectives, or `None` if the type is starved.
pub fn in_slo(totals: &Totals, query: &QueryType) -> Option<bool> {
    let within = |measured: f64, objective: Duration| measured <= objective.as_secs_f64() * 1e3;
    let (p50, p90) = (totals.p50_ms?, totals.p90_ms?);
    (totals.acceptance() >= STARVED).then(|| within(p50, query.p50) && within(p90, query.p90))
}

/// Returns the protections to compare: Envoy's own, then Headgate's.
pub fn protections(backend: Protected, mix: &[QueryType]) -> Vec<Protection> {
    let bouncer = policy::for_mix(backend.parallelism, mix);
    // All types have the same objectives.
    let target = mix.iter().map(|query| query.p50).max().unwrap_or_default();
    let headgate = [
        Protection::headgate("headgate", "Headgate, Bouncer", bouncer.clone()),
        Protection::headgate(
            "headgate_allowance",
            "Headgate + acceptance allowance 0.1",
            policy::with_allowance(bouncer.clone(), 0.1),
        ),
        Protection::headgate(
            "headgate_helping",
            "Headgate + helping the underserved",
            policy::with_helping(bouncer.clone(), 1.0),
        ),
        Protection::headgate(
            "headgate_response_time",
            "Headgate, ResponseTimeController",
            policy::with_response_time_controller(bouncer.clone()),
        ),
        Protection::headgate(
            "headgate_backlog",
            "Headgate, BacklogControl of the median objective",
            policy::with_backlog_control(bouncer.clone(), target),
        ),
    ];
    let controllers = CONTROLLERS.map(|(name, native_name, title, native_title)| {
        let policy = controller(name, &bouncer, mix);
        [
            Protection::headgate(name, title, policy.clone()),
            Protection::native_headgate(native_name, native_title, policy),
        ]
    });
    let native = native_filters::all(backend)
        .into_iter()
        .map(Protection::Native);
    let natively = Protection::native_headgate(
        "native_headgate",
        "Headgate's native filter, Bouncer",
        policy::for_mix(backend.parallelism, mix),
    );
    native
        .chain([natively])
        .chain(headgate)
        .chain(controllers.into_iter().flatten())
        .collect()
}

/// The strategies that control a response time: for each, the names with the Wasm filter and with
/// the native filter, and the two titles.
const CONTROLLERS: [(&str, &str, &str, &str); 2] = [
    (
        "response_time_controller",
        "native_response_time_controller",
        "ResponseTimeController of all types' p90",
        "The same with the native filter",
    ),
    (
        "backlog_control",
        "native_backlog_control",
        "BacklogControl of the mean delay",
        "The same with the native filter",
    ),
];

/// The time after which a controller has to hold its target.
const SETTLED: Duration = Duration::from_secs(10);

/// Returns the target of both controllers, the p90 objective.
fn target(mix: &[QueryType]) -> Duration {
    mix.iter().map(|query| query.p90).max().unwrap_or_default()
}

/// Returns a policy with the default constants.
fn controller(name: &str, policy: &Value, mix: &[QueryType]) -> Value {
    if name == "backlog_control" {
        return policy::with_backlog_control(policy.clone(), target(mix));
    }
    let mut policy = policy::with_response_time_controller(policy.clone());
    policy["spec"]["strategy"]["responseTimeController"] =
        json!({"scope": "Policy", "target": policy::duration(target(mix))});
    policy
}

/// Returns the response time that the protection of this name controls, divided by its target, or
/// `None` for protections without a target.
fn per_target(name: &str, samples: &[load::Sample], mix: &[QueryType]) -> Option<f64> {
    let is_mean = match name.trim_start_matches("native_") {
        "response_time_controller" => false,
        "backlog_control" => true,
        _ => return None,
    };
    let settled = |sample: &&load::Sample| sample.at >= SETTLED && sample.ended == Ended::Ok;
    let seconds = samples.iter().filter(settled);
    let mut seconds: Vec<f64> = seconds.map(|s| s.latency.as_secs_f64()).collect();
    seconds.sort_by(f64::total_cmp);
    let controlled = match is_mean {
        true => seconds.iter().sum::<f64>() / seconds.len() as f64,
        false => *seconds.get(seconds.len() * 9 / 10)?,
    };
    Some(controlled / target(mix).as_secs_f64())
}

/// Runs the whole benchmark. `progress` gets a line for each run as it starts.
///
/// # Errors
/// If a part of a system doesn't start or run.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    let mix = mix::bouncer(options.scale);
    let capacity_rps = mix::capacity_rps(&mix, options.parallelism);
    let backend = Protected {
        parallelism: options.parallelism,
        capacity_rps,
        p90: mix.iter().map(|query| query.p90).max().unwrap_or_default(),
    };
    let mut rows = Vec::new();
    for protection in protections(backend, &mix) {
        if options.only.is_empty() || options.only.iter().any(|name| name == protection.name()) {
            progress(&format!("{}× load: {}", options.load, protection.title()));
            rows.push(measure(&protection, options, &mix, |_| {})?);
        }
    }
    Ok(rows)
}

/// Runs one protection under [`Options::spec`], modified by `change`. Ignores [`Options::only`].
///
/// # Errors
/// If a part of the system doesn't start or run.
pub fn measure(
    protection: &Protection,
    options: &Options,
    mix: &[QueryType],
    change: impl FnOnce(&mut LoadSpec),
) -> Result<Row> {
    let load = options.load;
    let capacity_rps = mix::capacity_rps(mix, options.parallelism);
    let mut backend = BackendConfig::for_mix(options.parallelism, mix);
    backend.report_service = true;
    // Most services finish a request even if the caller has left.
    backend.on_disconnect = OnDisconnect::Finish;
    let lab = Lab::start(protection, backend, options.workers)?;
    let end = options.warmup + options.measured;
    let mut spec = options.spec(lab.addr(), mix);
    change(&mut spec);
    let started = Instant::now();
    let running = load::start(spec)?;
    sleep_until(started + options.warmup);
    let before = lab.backend().stats();
    sleep_until(started + end);
    let after = lab.backend().stats();
    let (report, samples) = running.wait_with_samples()?;

    let good = |sample: &&load::Sample| {
        sample.at >= options.warmup
            && sample.ended == Ended::Ok
            && sample.latency <= mix[sample.kind].p90
    };
    let good_work: Duration = samples
        .iter()
        .filter(good)
        .map(|sample| sample.service)
        .sum();
    let types: Vec<TypeRow> = mix
        .iter()
        .enumerate()
        .map(|(kind, query)| {
            let totals = totals(&samples, kind, query, options.warmup, end);
            TypeRow {
                name: query.name,
                acceptance: totals.acceptance(),
                in_slo: in_slo(&totals, query),
                totals,
            }
        })
        .collect();
    let goodput_rps = types.iter().map(|row| row.totals.good as f64).sum::<f64>()
        / options.measured.as_secs_f64();
    Ok(Row {
        protection: protection.name(),
        title: protection.title(),
        load,
        goodput_rps,
        goodput_per_capacity: goodput_rps / capacity_rps,
        goodput_per_ideal: goodput_rps / ideal_rps(mix, capacity_rps, load),
        work_for_goodput: good_work.as_secs_f64() * 1e3 / (after.busy_ms - before.busy_ms),
        utilization: after.utilization_since(&before),
        max_in_flight: after.max_in_flight,
        generator_late_p99_ms: report.lateness_ms.p99,
        per_target: per_target(protection.name(), &samples, mix),
        types,
    })
}

fn sleep_until(deadline: Instant) {
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
}

fn mark(in_slo: Option<bool>) -> char {
    match in_slo {
        Some(true) => '✓',
        Some(false) => '✗',
        None => '–',
    }
}

/// Returns the rows of one load as a table.
pub fn table(rows: &[Row], mix: &[QueryType], load: f64) -> String {
    let mut headings = vec![
        "",
        "goodput/s",
        "÷ capacity",
        "÷ ideal",
        "work for it",
        "slots busy",
        "max in flight",
        "÷ target",
    ];
    headings.extend(mix.iter().map(|query| query.name));
    let mut table = Table::new(&headings);
    for row in rows {
        let mut cells = vec![
            row.title.to_owned(),
            format!("{:.0}", row.goodput_rps),
            times(row.goodput_per_capacity),
            times(row.goodput_per_ideal),
            percent(row.work_for_goodput),
            percent(row.utilization),
            row.max_in_flight.to_string(),
            row.per_target.map_or_else(String::new, times),
        ];
        let kinds = row.types.iter();
        cells.extend(
            kinds.map(|kind| format!("{} {}", percent(kind.acceptance), mark(kind.in_slo))),
        );
        table.row(cells);
    }
    let ideal = ideal_rps(mix, 1.0, load);
    format!(
        "\nLoad {load}× of capacity; the ideal answers {ideal:.2}× of capacity. By type: share \
         answered, and whether p50 and p90 of the answers are inside their objectives (✓ ✗, \
         – starved). Both controllers: p90 and mean of all answers from {} s on ÷ target.\n{table}",
        SETTLED.as_secs()
    )
}
