//! CPU time of Envoy per request, filter by filter.
//!
//! On a small machine, wall-clock benchmarks of a proxy measure the machine. The Envoy process's
//! CPU time for a fixed number of requests at a moderate rate is less noisy: the scheduler accounts
//! it in nanoseconds. Variants alternate in each round, so that a drift affects them all. The
//! medians over rounds are compared with that of the plain router in the same run.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

use super::lab::{Lab, Protection};
use super::native_filters::{self, NativeFilter};
use super::table::{Table, times};
use crate::backend::{BackendConfig, ServiceType};
use crate::load::{self, LoadSpec};
use crate::{headgate, mix, policy};

/// Service time of the backend: short, so that connections are few.
const SERVICE: Duration = Duration::from_micros(200);
/// The number of concurrent requests that the backend and the policies allow. The load never has so
/// many.
const ROOMY: usize = 256;
/// Service time of the backend for variants that refuse nearly all requests.
const SLOW_SERVICE: Duration = Duration::from_millis(50);
/// P of variants that refuse nearly all requests, with which the backend serves 80 requests/s.
const NARROW: usize = 4;
/// Duration of the load before the measured time.
const WARMUP: Duration = Duration::from_secs(1);
/// [`WARMUP`] of variants that refuse. It is longer, because the queue from before the first
/// estimate must drain.
const WARMUP_REFUSING: Duration = Duration::from_secs(4);

/// The options of a measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// Requests per second.
    pub rate: f64,
    /// Measured time per variant and round.
    pub measured: Duration,
    /// Rounds over all variants.
    pub rounds: usize,
    /// Names of the variants to run beside the baseline. An empty list means all.
    pub only: Vec<String>,
}

/// The results of one variant.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Short name.
    pub variant: &'static str,
    /// CPU time of the Envoy process per request, µs: the median over rounds.
    pub us_per_request: f64,
    /// The figures of all rounds, µs.
    pub rounds_us: Vec<f64>,
    /// CPU time of the Envoy process without requests, ms per second: the median over rounds.
    pub idle_ms_per_s: f64,
}

/// A protection to measure.
struct Variant {
    protection: Protection,
    /// Whether nearly all answers must be refusals.
    refuses: bool,
}

/// Runs the whole measurement. `progress` gets a line for each round.
///
/// # Errors
/// If a system doesn't start, or a variant answers otherwise than it should.
pub fn run(options: &Options, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    let variants: Vec<Variant> = variants()?
        .into_iter()
        .filter(|v| {
            let name = v.protection.name();
            name == "none"
                || options.only.is_empty()
                || options.only.iter().any(|wanted| wanted == name)
        })
        .collect();
    let mut measured = vec![Vec::new(); variants.len()];
    for round in 1..=options.rounds {
        progress(&format!("round {round} of {}", options.rounds));
        for (variant, samples) in variants.iter().zip(&mut measured) {
            let sample =
                measure(variant, options).with_context(|| variant.protection.title().to_owned())?;
            samples.push(sample);
        }
    }
    Ok(variants
        .iter()
        .zip(measured)
        .map(|(variant, samples)| row(variant.protection.name(), &samples))
        .collect())
}

fn row(variant: &'static str, samples: &[(f64, f64)]) -> Row {
    let rounds_us: Vec<f64> = samples.iter().map(|(us, _)| *us).collect();
    let idle: Vec<f64> = samples.iter().map(|(_, idle)| *idle).collect();
    Row {
        variant,
        us_per_request: median(&rounds_us),
        rounds_us,
        idle_ms_per_s: median(&idle),
    }
}

/// Returns the CPU time per request in µs, and without requests in ms per second.
fn measure(variant: &Variant, options: &Options) -> Result<(f64, f64)> {
    let (service, parallelism, warmup) = if variant.refuses {
        (SLOW_SERVICE, NARROW, WARMUP_REFUSING)
    } else {
        (SERVICE, ROOMY, WARMUP)
    };
    let types = vec![ServiceType::constant("/", service)];
    let backend = BackendConfig::new(parallelism, types);
    let lab = Lab::start(&variant.protection, backend, 1)?;
    let spec = |duration| LoadSpec::for_mix(lab.addr(), &mix::bouncer(1.0), options.rate, duration);
    let pid = lab.envoy().pid();
    load::run(spec(warmup))?;
    let idle_from = cpu_time(pid)?;
    std::thread::sleep(Duration::from_secs(1));
    let from = cpu_time(pid)?;
    let report = load::run(spec(options.measured))?;
    let cpu = cpu_time(pid)? - from;
    let total = &report.total;
    let wanted = if variant.refuses {
        total.refused
    } else {
        total.ok
    };
    if wanted * 100 < total.offered * 90 {
        bail!(
            "{} of {} requests ended otherwise than they should: {:?}, {:?}",
            total.offered - wanted,
            total.offered,
            total.status,
            total.refused_by
        );
    }
    Ok((
        cpu.as_secs_f64() * 1e6 / total.offered as f64,
        (from - idle_from).as_secs_f64() * 1e3,
    ))
}

fn variants() -> Result<Vec<Variant>> {
    let accepts = |protection| Variant {
        protection,
        refuses: false,
    };
    let refuses = |protection| Variant {
        protection,
        refuses: true,
    };
    let adaptive = native_filters::adaptive_concurrency()
        .http_filters
        .remove(0);
    Ok(vec![
        accepts(Protection::Native(native_filters::plain())),
        accepts(empty_wasm()?),
        accepts(Protection::headgate(
            "headgate_accepting",
            "Headgate, accepting",
            policy::for_mix(ROOMY, &mix::bouncer(1.0)),
        )),
        accepts(Protection::native_headgate(
            "native_headgate_accepting",
            "Headgate's native filter, accepting",
            policy::for_mix(ROOMY, &mix::bouncer(1.0)),
        )),
        accepts(native(
            "local_ratelimit",
            "local_ratelimit, accepting",
            native_filters::token_bucket(1e6),
        )),
        accepts(native(
            "adaptive_concurrency",
            "adaptive_concurrency",
            calm(adaptive),
        )),
        refuses(Protection::headgate(
            "headgate_refusing",
            "Headgate, refusing",
            refuse_most(),
        )),
        refuses(Protection::native_headgate(
            "native_headgate_refusing",
            "Headgate's native filter, refusing",
            refuse_most(),
        )),
        refuses(native(
            "local_ratelimit_refusing",
            "local_ratelimit, refusing",
            native_filters::token_bucket(1.0),
        )),
    ])
}

/// Returns a policy with few slots: nearly all requests are refused because they would wait too
/// long.
fn refuse_most() -> Value {
    let mut mix = mix::bouncer(1.0);
    for query in &mut mix {
        (query.p50, query.p90) = (SLOW_SERVICE + SLOW_SERVICE / 5, 2 * SLOW_SERVICE);
    }
    let mut policy = policy::for_mix(NARROW, &mix);
    policy["spec"]["strategy"] = json!({"type": "Bouncer", "bouncer": {"minSamples": 10}});
    policy
}

/// Returns `filter` with a high concurrency limit in its minimum-RTT window. With the default, the
/// window would admit only a few requests at once.
fn calm(mut filter: Value) -> Value {
    filter["typed_config"]["gradient_controller_config"]["min_rtt_calc_params"]["min_concurrency"] =
        json!(100);
    filter
}

/// Returns the path of a filter module that only tests and benchmarks load.
///
/// # Errors
/// If the module isn't built.
pub fn variant_module(name: &str) -> Result<PathBuf> {
    let module = headgate::variant_path(name);
    if !module.exists() {
        bail!(
            "no {}; build it with scripts/build variants",
            module.display()
        );
    }
    Ok(module.canonicalize()?)
}

fn native(name: &'static str, title: &'static str, filter: Value) -> Protection {
    Protection::Native(NativeFilter {
        name,
        title,
        http_filters: vec![filter],
        ..native_filters::plain()
    })
}

/// Returns a Wasm filter that does nothing, to measure the cost of any Wasm filter.
///
/// # Errors
/// If the module isn't built.
fn empty_wasm() -> Result<Protection> {
    let module = variant_module("empty.wasm")?;
    let filter = native_filters::http_filter(
        "envoy.filters.http.wasm",
        json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "empty",
                "vm_config": {
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": module}},
                },
            },
        }),
    );
    Ok(native("empty_wasm", "empty Wasm filter", filter))
}

/// Returns plain Envoy, the empty Wasm filter, and Headgate in Wasm and natively with this many
/// slots.
///
/// # Errors
/// If a module isn't built.
pub(super) fn without_and_with_headgate(slots: usize) -> Result<[Protection; 4]> {
    let policy = policy::for_mix(slots, &mix::bouncer(1.0));
    Ok([
        Protection::Native(native_filters::plain()),
        empty_wasm()?,
        Protection::headgate("headgate", "Headgate", policy.clone()),
        Protection::native_headgate("native_headgate", "Headgate's native filter", policy),
    ])
}

/// Returns the CPU time of a process since its start, in nanoseconds if the scheduler records them.
///
/// # Errors
/// If the process has ended.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let mut nanos = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = task?.path().join("schedstat");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let running = text
            .split_whitespace()
            .next()
            .and_then(|n| n.parse::<u64>().ok());
        nanos += running.with_context(|| format!("{}: {text:?}", path.display()))?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// Returns the median. For an even number of values, this is the mean of the two middle ones.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns the rows as a table, each beside the plain router and the empty Wasm filter.
pub fn table(rows: &[Row]) -> Table {
    let of = |name: &str| {
        rows.iter()
            .find(|row| row.variant == name)
            .map(|row| row.us_per_request)
    };
    let (router, empty) = (of("none").unwrap_or(f64::NAN), of("empty_wasm"));
    let mut table = Table::new(&[
        "Envoy CPU",
        "µs/request",
        "÷ router",
        "added µs",
        "÷ empty Wasm's",
        "rounds",
        "idle ms/s",
    ]);
    for row in rows {
        let added = row.us_per_request - router;
        let spread =
            |f: fn(f64, f64) -> f64| row.rounds_us.iter().copied().reduce(f).unwrap_or(f64::NAN);
        table.row([
            row.variant.to_owned(),
            format!("{:.1}", row.us_per_request),
            times(row.us_per_request / router),
            format!("{added:+.1}"),
            empty.map_or_else(|| "–".to_owned(), |empty| times(added / (empty - router))),
            format!("{:.1}…{:.1}", spread(f64::min), spread(f64::max)),
            format!("{:.2}", row.idle_ms_per_s),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
