//! Runs the demo: the same load twice, the second time with Headgate and with edits of its policy on the way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::claims;
use super::result::{
    DemoResult, Edit, FilterPercentile, Phase, Setup, TypeResult, TypeSetup, ideal_rps,
};
use super::timeline::{curve, totals};
use crate::backend::{Backend, BackendConfig, BackendStats};
use crate::bench::lab::{Lab, Protection};
use crate::bench::native_filters::{self, NativeFilter};
use crate::envoy::EnvoyProcess;
use crate::load::{self, Ended, LoadSpec, Sample};
use crate::mix::{self, QueryType};
use crate::policy;
use crate::rig::Rig;

/// Load before the overload. Low enough that a queue is rare, so that the overload is what changes.
const CALM_LOAD: f64 = 0.6;
const CALM: Duration = Duration::from_secs(5);
/// From the begin of the overload to the begin of counting: what a queue that starts empty needs to fill.
const SETTLING: Duration = Duration::from_secs(2);
/// How long each edit is watched.
const TIGHTENED: Duration = Duration::from_secs(6);
const WITH_ALLOWANCE: Duration = Duration::from_secs(10);
/// The objective that the first edit sets, as a share of the old one: enough for all types to be answered within it, too
/// little for the queue that was there.
const TIGHTENED_TO: f64 = 0.75;
/// Share of every type that the second edit admits at least.
pub(super) const ALLOWANCE: f64 = 0.1;
/// How often the operator is asked whether Envoy has acknowledged an edit: the error of that time.
const POLL: Duration = Duration::from_millis(2);

/// How to run the demo.
#[derive(Debug, Clone)]
pub struct Options {
    /// Length of the overload that is compared.
    pub overload: Duration,
    /// Offered load in overload, as a multiple of capacity.
    pub load: f64,
    /// Worker threads of Envoy.
    pub workers: u32,
    /// Requests the backend serves at once.
    pub parallelism: usize,
    /// Multiplies the paper's service times and objectives.
    pub scale: f64,
}

/// Hears how the demo goes on.
pub trait Progress {
    /// Something starts that takes about `expected`.
    fn begin(&mut self, what: &str, expected: Duration);
    /// It goes on: `elapsed` since its start, and what can be seen at the moment.
    fn tick(&mut self, elapsed: Duration, seen: &str);
    /// It is over.
    fn end(&mut self);
}

/// Runs all of it.
///
/// # Errors
/// If a part of the system doesn't start or run. A claim that isn't seen is no error.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<DemoResult> {
    let mix = mix::bouncer(options.scale);
    let capacity_rps = mix::capacity_rps(&mix, options.parallelism);
    let compared = CALM + options.overload;
    let mut demo = Demo {
        options,
        mix: &mix,
        capacity_rps,
        envoy_version: String::new(),
        progress,
    };

    let (without, _) = demo.without(compared)?;
    let Watched {
        phase,
        edits,
        samples,
        tightened,
    } = demo.with(compared)?;
    let setup = Setup {
        envoy: demo.envoy_version,
        envoy_workers: options.workers as usize,
        parallelism: options.parallelism,
        capacity_rps,
        ideal_rps: ideal_rps(&mix, capacity_rps, options.load),
        calm_load: CALM_LOAD,
        overload: options.load,
        overload_at_s: CALM.as_secs_f64(),
        counted_s: ((CALM + SETTLING).as_secs_f64(), compared.as_secs_f64()),
        types: mix.iter().map(TypeSetup::from).collect(),
    };
    let claims = claims::claims(&claims::Seen {
        setup: &setup,
        without: &without,
        with: &phase,
        edits: &edits,
        mix: &mix,
        tightened: &tightened,
        samples: &samples,
    });
    Ok(DemoResult {
        setup,
        without,
        with: phase,
        edits,
        claims,
    })
}

struct Demo<'a> {
    options: &'a Options,
    mix: &'a [QueryType],
    capacity_rps: f64,
    envoy_version: String,
    progress: &'a mut dyn Progress,
}

/// The run with Headgate.
struct Watched {
    phase: Phase,
    edits: Vec<Edit>,
    samples: Vec<Sample>,
    /// The mix with the objectives of the first edit.
    tightened: Vec<QueryType>,
}

impl Demo<'_> {
    /// Envoy as it comes, with its default circuit breakers.
    fn without(&mut self, compared: Duration) -> Result<(Phase, Vec<Sample>)> {
        let filter = NativeFilter {
            circuit_breakers: Some(json!({})),
            ..native_filters::plain()
        };
        let lab = Lab::start(
            &Protection::Native(filter),
            self.backend(),
            self.options.workers,
        )?;
        self.envoy_version = envoy_version(lab.envoy())?;
        let spec = self.spec(lab.addr(), compared, Duration::ZERO);
        self.progress.begin("Envoy alone", compared);
        let mut watch = Watch::start(spec, lab.backend())?;
        watch.until(compared, self.progress)?;
        self.progress.end();
        let (report, samples, before, after) = watch.finish()?;
        let phase = self.phase(
            &report,
            &samples,
            compared,
            compared,
            &before,
            &after,
            Vec::new(),
        );
        Ok((phase, samples))
    }

    fn with(&mut self, compared: Duration) -> Result<Watched> {
        let policy = policy::for_mix(self.options.parallelism, self.mix);
        let rig = Rig::builder(self.backend(), policy)
            .concurrency(self.options.workers)
            .start()?;
        let end = compared + TIGHTENED + WITH_ALLOWANCE;
        let spec = self.spec(rig.addr(), compared, TIGHTENED + WITH_ALLOWANCE);
        self.progress.begin("Envoy with Headgate", compared);
        let mut watch = Watch::start(spec, &rig.backend)?;
        watch.until(compared, self.progress)?;
        self.progress.end();
        let filter = self
            .mix
            .iter()
            .map(|query| filter_percentiles(&rig.envoy, query.name))
            .collect::<Result<_>>()?;

        let tightened = self.tightened();
        let mut edits = vec![self.edit(
            &rig,
            &mut watch,
            &format!(
                "p50 objective of all types from {:?} to {:?}",
                self.mix[0].p50, tightened[0].p50
            ),
            &policy::for_mix(self.options.parallelism, &tightened),
            TIGHTENED,
        )?];
        let relaxed = policy::for_mix(self.options.parallelism, self.mix);
        edits.push(self.edit(
            &rig,
            &mut watch,
            &format!(
                "p50 objective back, and an acceptance allowance of {:.0}% added",
                ALLOWANCE * 100.0
            ),
            &policy::with_allowance(relaxed, ALLOWANCE),
            WITH_ALLOWANCE,
        )?);
        let (report, samples, before, after) = watch.finish()?;
        rig.wait_until_idle()
            .context("after the load, everything must come back to zero")?;
        let phase = self.phase(&report, &samples, compared, end, &before, &after, filter);
        let seen: [fn(&[Sample], &Edit, &[QueryType]) -> Option<f64>; 2] =
            [claims::median_inside_after, claims::starved_answered_after];
        for (edit, seen) in edits.iter_mut().zip(seen) {
            edit.in_force_ms = seen(&samples, edit, &tightened);
        }
        Ok(Watched {
            phase,
            edits,
            samples,
            tightened,
        })
    }

    /// Saves `policy` while the load goes on, and watches it for `span`.
    fn edit(
        &mut self,
        rig: &Rig,
        watch: &mut Watch<'_>,
        what: &str,
        policy: &Value,
        span: Duration,
    ) -> Result<Edit> {
        self.progress.begin(&format!("Live edit: {what}"), span);
        let before = rig.revision()?;
        let written = Instant::now();
        rig.write_policy(policy)?;
        let at_s = (written - watch.started).as_secs_f64();
        while !acknowledged(rig, &before)? {
            if written.elapsed() > Duration::from_secs(10) {
                bail!(
                    "Envoy has not acknowledged the edit within 10 s: {}",
                    rig.status()?
                );
            }
            std::thread::sleep(POLL);
        }
        let acknowledged_ms = written.elapsed().as_secs_f64() * 1e3;
        let until = watch.now() + span.saturating_sub(written.elapsed());
        watch.until(until, self.progress)?;
        self.progress.end();
        Ok(Edit {
            what: what.to_owned(),
            at_s,
            acknowledged_ms,
            in_force_ms: None,
        })
    }

    fn backend(&self) -> BackendConfig {
        BackendConfig::for_mix(self.options.parallelism, self.mix)
    }

    fn tightened(&self) -> Vec<QueryType> {
        let tighten = |p50: Duration| {
            Duration::from_millis((p50.as_secs_f64() * TIGHTENED_TO * 1e3).round() as u64)
        };
        self.mix
            .iter()
            .map(|query| QueryType {
                p50: tighten(query.p50),
                ..query.clone()
            })
            .collect()
    }

    fn spec(&self, target: std::net::SocketAddr, compared: Duration, extra: Duration) -> LoadSpec {
        let overload = self.options.load * self.capacity_rps;
        let mut spec = LoadSpec::for_mix(target, self.mix, overload, Duration::ZERO);
        spec.phases = vec![
            load::Phase {
                duration: CALM,
                rate: CALM_LOAD * self.capacity_rps,
            },
            load::Phase {
                duration: compared - CALM + extra,
                rate: overload,
            },
        ];
        spec.drain = Duration::from_secs(5);
        spec
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one caller for each of two runs; a struct would only rename them"
    )]
    fn phase(
        &self,
        report: &load::LoadReport,
        samples: &[Sample],
        compared: Duration,
        end: Duration,
        before: &BackendStats,
        after: &BackendStats,
        mut filter: Vec<BTreeMap<String, FilterPercentile>>,
    ) -> Phase {
        filter.resize(self.mix.len(), BTreeMap::new());
        let (from, seconds) = (CALM + SETTLING, (compared - CALM - SETTLING).as_secs_f64());
        let types: Vec<TypeResult> = self
            .mix
            .iter()
            .zip(filter)
            .enumerate()
            .map(|(kind, (query, filter))| TypeResult {
                totals: totals(samples, kind, query, from, compared),
                curve: curve(samples, kind, query, end),
                filter,
            })
            .collect();
        Phase {
            goodput_rps: types
                .iter()
                .map(|kind| kind.totals.good as f64)
                .sum::<f64>()
                / seconds,
            types,
            max_in_flight: after.max_in_flight,
            utilization: after.utilization_since(before),
            generator_late_p99_ms: report.lateness_ms.p99,
        }
    }
}

/// A load that is watched, with the backend's numbers at the begin and the end of counting.
struct Watch<'a> {
    running: load::Running,
    started: Instant,
    backend: &'a Backend,
    before: Option<BackendStats>,
    after: Option<BackendStats>,
}

impl<'a> Watch<'a> {
    fn start(spec: LoadSpec, backend: &'a Backend) -> Result<Self> {
        let running = load::start(spec)?;
        Ok(Self {
            running,
            started: Instant::now(),
            backend,
            before: None,
            after: None,
        })
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Lets the load go on until `end` after its start. The first end closes the span that is counted.
    fn until(&mut self, end: Duration, progress: &mut dyn Progress) -> Result<()> {
        let begun = self.now();
        while self.now() < end {
            if self.before.is_none() && self.now() >= CALM + SETTLING {
                self.before = Some(self.backend.stats());
            }
            if self.running.is_finished() && self.now() + Duration::from_secs(1) < end {
                bail!("the load ended early");
            }
            let left = end.saturating_sub(self.now());
            std::thread::sleep(left.min(Duration::from_millis(200)));
            let report = self.running.snapshot();
            progress.tick(self.now() - begun, &at_the_moment(&report));
        }
        if self.after.is_none() {
            self.after = Some(self.backend.stats());
        }
        Ok(())
    }

    fn finish(self) -> Result<(load::LoadReport, Vec<Sample>, BackendStats, BackendStats)> {
        let (report, samples) = self.running.wait_with_samples()?;
        let (Some(before), Some(mut after)) = (self.before, self.after) else {
            bail!("the load was too short to count anything");
        };
        // The bound on the backend's in-flight requests holds to the very end, not only in the counted span.
        after.max_in_flight = self.backend.stats().max_in_flight;
        Ok((report, samples, before, after))
    }
}

/// The last second and a half in a few words; the last bin isn't full yet.
fn at_the_moment(report: &load::LoadReport) -> String {
    let full = report.total.series.len().saturating_sub(1);
    let Some(bin) = report.total.series[..full].last() else {
        return String::new();
    };
    let per_second = |count: u64| count as f64 / report.bin_seconds;
    format!(
        "{:>5.0} offered/s  {:>5.0} answered/s  {:>5.0} refused/s  p90 {:>6.0} ms",
        per_second(bin.offered),
        per_second(bin.ok),
        per_second(bin.refused),
        bin.p90_ms
    )
}

/// Whether every proxy has acknowledged a revision other than `before`.
fn acknowledged(rig: &Rig, before: &str) -> Result<bool> {
    let status = rig.status()?;
    let wanted = status["policies"][0]["revision"]
        .as_str()
        .unwrap_or_default();
    let proxies = status["proxies"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    Ok(wanted != before
        && !proxies.is_empty()
        && proxies
            .iter()
            .all(|proxy| proxy["acked"]["revision"].as_str() == Some(wanted)))
}

/// `1.40.0` of `e19b5c9…/1.40.0/Clean/RELEASE/BoringSSL`.
fn envoy_version(envoy: &EnvoyProcess) -> Result<String> {
    let info: Value = serde_json::from_str(&envoy.admin_get("/server_info")?)?;
    let version = info["version"].as_str().unwrap_or_default();
    Ok(version.split('/').nth(1).unwrap_or(version).to_owned())
}

/// The filter's own view of one type over Envoy's last statistics interval (5 s): for each objective the median of its
/// estimates, and the same percentile of what it measured.
fn filter_percentiles(
    envoy: &EnvoyProcess,
    kind: &str,
) -> Result<BTreeMap<String, FilterPercentile>> {
    let prefix = format!("wasmcustom.headgate.policy.{}.type.{kind}.", policy::NAME);
    let measured = histogram(envoy, &format!("{prefix}response_time_us"))?;
    let mut percentiles = BTreeMap::new();
    for (name, percentile) in [("p50", 50.0), ("p90", 90.0)] {
        let estimated = histogram(
            envoy,
            &format!("{prefix}estimated_response_time_us.objective.{name}"),
        )?;
        if let (Some(estimated_us), Some(measured_us)) =
            (estimated.get(50.0), measured.get(percentile))
        {
            let percentile = FilterPercentile {
                estimated_ms: estimated_us / 1e3,
                measured_ms: measured_us / 1e3,
            };
            percentiles.insert(name.to_owned(), percentile);
        }
    }
    Ok(percentiles)
}

/// An Envoy histogram's computed quantiles: (percentile, value of the last interval).
struct IntervalQuantiles(Vec<(f64, Option<f64>)>);

impl IntervalQuantiles {
    fn get(&self, percentile: f64) -> Option<f64> {
        self.0
            .iter()
            .find(|(p, _)| *p == percentile)
            .and_then(|(_, value)| *value)
    }
}

fn histogram(envoy: &EnvoyProcess, name: &str) -> Result<IntervalQuantiles> {
    let filter = name.replace('.', "[.]");
    let answer: Value =
        serde_json::from_str(&envoy.admin_get(&format!("/stats?format=json&filter=^{filter}$"))?)?;
    let histograms = answer["stats"]
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|entry| entry.get("histograms"));
    let Some(histograms) = histograms else {
        return Ok(IntervalQuantiles(Vec::new()));
    };
    let quantiles = histograms["supported_quantiles"]
        .as_array()
        .into_iter()
        .flatten();
    let values = histograms["computed_quantiles"][0]["values"]
        .as_array()
        .into_iter()
        .flatten();
    Ok(IntervalQuantiles(
        quantiles
            .zip(values)
            .filter_map(|(q, value)| Some((q.as_f64()?, value["interval"].as_f64())))
            .collect(),
    ))
}

/// Whether a request was answered; shared with the claims.
pub(super) fn answered(sample: &Sample) -> bool {
    sample.ended == Ended::Ok
}
