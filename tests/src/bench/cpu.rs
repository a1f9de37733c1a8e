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
use crate::bootstrap::Bootstrap;
use crate::load::{self, LoadSpec};
use crate::rig::Rig;
use crate::{headgate, mix, policy};

/// Service time of the backend: short, so that connections are few.
const SERVICE: Duration = Duration::from_micros(200);
/// The number of concurrent requests that the backend and the policies allow. The load never has so
/// many.
const ROOMY: usize = 256;
/// Service time of the backend for variants that refuse nearly all requests. With the next constant
/// as P, this backend serves 80 requests/s.
const SLOW_SERVICE: Duration = Duration::from_millis(50);
const NARROW: usize = 4;
/// The variant with span tags. It differs from the next one only in these tags.
const TAGGED: &str = "native_headgate_tagged";
const UNTAGGED: &str = "native_headgate_untagged";
/// Duration of the load before the measured time. Variants that refuse need the longer next one,
/// because the queue from before the first estimate must drain.
const WARMUP: Duration = Duration::from_secs(1);
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
    /// Whether Envoy traces every request.
    traces: bool,
    /// A native module in place of the default build.
    module: Option<&'static str>,
}

impl Variant {
    fn start(&self, backend: BackendConfig) -> Result<Lab> {
        let change = if self.traces {
            trace
        } else {
            |_: &mut _| Ok(())
        };
        match (&self.protection, self.module) {
            (Protection::Headgate { policy, .. }, Some(module)) => {
                let rig = Rig::builder(backend, policy.clone()).concurrency(1);
                let rig = rig.native().module(variant_module(module)?);
                rig.change(change).start().map(Lab::Headgate)
            }
            (protection, _) => Lab::start_with(protection, backend, 1, change),
        }
    }
}

/// Makes Envoy trace every request with OpenTelemetry. The backend receives the spans, 512 at a
/// time.
fn trace(bootstrap: &mut Bootstrap) -> Result<()> {
    bootstrap.manager()?["tracing"] = json!({"provider": {
        "name": "envoy.tracers.opentelemetry",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
            "http_service": {"http_uri": {
                "uri": "http://collector/v1/traces", "cluster": "upstream", "timeout": "1s",
            }},
            "service_name": "bench",
        },
    }});
    let layer = json!({
        "name": "spans",
        "static_layer": {"tracing": {"opentelemetry": {"min_flush_spans": 512}}},
    });
    match bootstrap.root()["layered_runtime"]["layers"].as_array_mut() {
        Some(layers) => layers.push(layer),
        None => bootstrap.root()["layered_runtime"] = json!({"layers": [layer]}),
    }
    Ok(())
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
    let lab = variant.start(BackendConfig::new(parallelism, types))?;
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
        traces: false,
        module: None,
    };
    let refuses = |protection| Variant {
        refuses: true,
        ..accepts(protection)
    };
    let traces = |name, title, module| Variant {
        traces: true,
        module,
        ..accepts(Protection::native_headgate(
            name,
            title,
            policy::for_mix(ROOMY, &mix::bouncer(1.0)),
        ))
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
        traces(
            TAGGED,
            "Headgate's native filter, accepting, with a tracer",
            None,
        ),
        traces(
            UNTAGGED,
            "the same without tags",
            Some("libheadgate-untagged.so"),
        ),
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
pub fn empty_wasm() -> Result<Protection> {
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

/// Returns the CPU time that span tags add to a request, µs: the median over rounds of the
/// difference in a round, and the range of its middle half. `None` unless both variants ran.
pub fn span_tags(rows: &[Row]) -> Option<(f64, f64, f64)> {
    let of = |name: &str| rows.iter().find(|row| row.variant == name);
    let pairs = of(TAGGED)?.rounds_us.iter().zip(&of(UNTAGGED)?.rounds_us);
    let mut added: Vec<f64> = pairs.map(|(with, without)| with - without).collect();
    added.sort_by(f64::total_cmp);
    let (quarter, last) = (added.len() / 4, added.len().checked_sub(1)?);
    Some((median(&added), added[quarter], added[last - quarter]))
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

    #[test]
    fn span_tags_cost_what_a_round_with_them_takes_longer() {
        let row = |variant, rounds_us: &[f64]| Row {
            variant,
            us_per_request: 0.0,
            rounds_us: rounds_us.to_vec(),
            idle_ms_per_s: 0.0,
        };
        let with = row(TAGGED, &[120.5, 130.0, 125.0, 90.0, 141.0]);
        let without = row(UNTAGGED, &[120.0, 129.0, 125.5, 70.0, 140.0]);
        assert_eq!(span_tags(&[without, with]), Some((1.0, 0.5, 1.0)));
        assert_eq!(span_tags(&[row(TAGGED, &[1.0])]), None);
    }
}
