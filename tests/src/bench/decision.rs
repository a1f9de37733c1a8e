//! Cost of one decision: inside the guest in a real Envoy, and natively.
//!
//! In Envoy, a filter built with `decision-timing` measures its own decisions. It reads the clock
//! at the start and at the end of a decision, so the figure includes one clock reading (0.1 µs).
//! The native figures come from `cargo bench -p headgate-strategies`, and are read from criterion's
//! folder.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use super::closed_loop;
use super::cpu::variant_module;
use super::lab::redirect;
use super::table::Table;
use crate::backend::{BackendConfig, ServiceType};
use crate::load::{self, LoadSpec};
use crate::rig::Rig;
use crate::{mix, policy, wait};

/// The module of the filter that measures its own decisions.
const MODULE: &str = "headgate-decision-timing.wasm";

/// The name of the filter's histogram, ns.
const HISTOGRAM: &str = "wasmcustom.headgate.decision_ns";

/// The number of connections that saturate a worker.
const CLIENTS: usize = 16;

/// The time of decisions in the guest.
#[derive(Debug, Clone, Serialize)]
pub struct InGuest {
    /// The load, as text.
    pub load: String,
    /// The number of decisions.
    pub count: u64,
    /// Mean, µs.
    pub mean_us: f64,
    /// Median, µs.
    pub p50_us: f64,
    /// 99th percentile, µs.
    pub p99_us: f64,
}

/// Measures the time of decisions in an Envoy with `workers` worker threads, under the paper's mix
/// at `loads` times the backend's capacity. This capacity is some hundred requests per second, so
/// the caches are cold at each decision.
///
/// # Errors
/// If the system doesn't start or the filter reports nothing.
pub fn in_guest(loads: &[f64], measured: Duration, workers: u32) -> Result<Vec<InGuest>> {
    const P: usize = 20;
    const SCALE: f64 = 4.0;
    let mix = mix::bouncer(SCALE);
    let measure = |&load: &f64| {
        let rig = Rig::builder(BackendConfig::for_mix(P, &mix), policy::for_mix(P, &mix))
            .module(variant_module(MODULE)?)
            .concurrency(workers)
            .start()?;
        let rate = load * mix::capacity_rps(&mix, P);
        load::run(LoadSpec::for_mix(rig.addr(), &mix, rate, measured))?;
        read(&rig, format!("{load}× load, {rate:.0} requests/s"))
    };
    loads.iter().map(measure).collect()
}

/// Measures one worker of Envoy that gets as many requests as it can process. It admits all of
/// them, and its caches are warm.
///
/// # Errors
/// If the system doesn't start or the filter reports nothing.
pub fn in_saturated_guest(measured: Duration) -> Result<InGuest> {
    let upstream = closed_loop::start_responder()?;
    let unused = BackendConfig::new(1, vec![ServiceType::constant("/", Duration::ZERO)]);
    let rig = Rig::builder(unused, policy::for_mix(4 * CLIENTS, &mix::bouncer(1.0)))
        .module(variant_module(MODULE)?)
        .concurrency(1)
        .change(move |bootstrap| redirect(bootstrap, Some(upstream)))
        .start()?;
    let rps = closed_loop::requests_per_second(rig.addr(), CLIENTS, Duration::ZERO, measured)?;
    read(&rig, format!("saturated, {rps:.0} requests/s"))
}

fn read(rig: &Rig, load: String) -> Result<InGuest> {
    // Envoy merges the workers' histograms every 5 s.
    let quantile = |p: f64| {
        wait::until("the filter's decision times", || {
            let found = rig.envoy.histogram(HISTOGRAM).map_err(|e| e.to_string())?;
            let quantile = found.iter().find(|(percent, _)| *percent == p);
            quantile
                .map(|(_, ns)| *ns)
                .ok_or_else(|| format!("no {HISTOGRAM}"))
        })
    };
    let (p50_us, p99_us) = (quantile(50.0)? / 1e3, quantile(99.0)? / 1e3);
    let stats = rig
        .envoy
        .admin_get("/stats/prometheus?filter=decision_ns")?;
    let (sum, count) = sum_and_count(&stats);
    Ok(InGuest {
        load,
        count: count as u64,
        mean_us: sum / count / 1e3,
        p50_us,
        p99_us,
    })
}

/// Returns `_sum` and `_count` of the only histogram in a text in Prometheus' format.
fn sum_and_count(text: &str) -> (f64, f64) {
    let value = |suffix: &str| {
        let line = text
            .lines()
            .find(|line| !line.starts_with('#') && line.contains(suffix));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or(f64::NAN)
    };
    (value("decision_ns_sum"), value("decision_ns_count"))
}

/// One figure of a native benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct Native {
    /// Name of the benchmark, such as `decide/bouncer`.
    pub name: String,
    /// Number of types.
    pub types: u64,
    /// Mean, ns.
    pub mean_ns: f64,
}

/// Returns the figures that the last `cargo bench -p headgate-strategies` left in criterion's
/// folder. The list is empty if the benchmark never ran.
///
/// # Errors
/// If the folder can't be read.
pub fn native(criterion: &Path) -> Result<Vec<Native>> {
    let mut figures = Vec::new();
    if !criterion.is_dir() {
        return Ok(figures);
    }
    for group in std::fs::read_dir(criterion)? {
        let group = group?.path();
        let Ok(entries) = std::fs::read_dir(&group) else {
            continue;
        };
        for entry in entries {
            let folder = entry?.path();
            let Ok(text) = std::fs::read_to_string(folder.join("new/estimates.json")) else {
                continue;
            };
            let estimates: Value =
                serde_json::from_str(&text).with_context(|| folder.display().to_string())?;
            let benchmark = std::fs::read_to_string(folder.join("new/benchmark.json"))?;
            let benchmark: Value = serde_json::from_str(&benchmark)?;
            let types = benchmark["value_str"]
                .as_str()
                .and_then(|text| text.parse().ok());
            if let (Some(types), Some(mean_ns)) =
                (types, estimates["mean"]["point_estimate"].as_f64())
            {
                let name = benchmark["group_id"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                figures.push(Native {
                    name,
                    types,
                    mean_ns,
                });
            }
        }
    }
    figures.sort_by(|a, b| (&a.name, a.types).cmp(&(&b.name, b.types)));
    Ok(figures)
}

/// Returns the guest's figures as a table.
pub fn guest_table(rows: &[InGuest]) -> Table {
    let mut table = Table::new(&[
        "decision in Envoy",
        "mean µs",
        "p50 µs",
        "p99 µs",
        "decisions",
    ]);
    for row in rows {
        table.row([
            row.load.clone(),
            format!("{:.2}", row.mean_us),
            format!("{:.2}", row.p50_us),
            format!("{:.2}", row.p99_us),
            row.count.to_string(),
        ]);
    }
    table
}

/// Returns the native figures as a table: one line for each benchmark, one column for each number
/// of types.
pub fn native_table(figures: &[Native]) -> Table {
    let mut sizes: Vec<u64> = figures.iter().map(|figure| figure.types).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let headings: Vec<String> = std::iter::once("native, ns".to_owned())
        .chain(sizes.iter().map(|n| format!("{n} types")))
        .collect();
    let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    let mut names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
    names.dedup();
    for name in names {
        let of = |size: &u64| {
            figures
                .iter()
                .find(|figure| figure.name == name && figure.types == *size)
        };
        let cells = sizes
            .iter()
            .map(|size| of(size).map_or_else(|| "–".to_owned(), |f| format!("{:.0}", f.mean_ns)));
        table.row(std::iter::once(name.to_owned()).chain(cells));
    }
    table
}
