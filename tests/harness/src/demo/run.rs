//! Runs the demo: the same load twice, the second time with Headgate and with live edits of its
//! policy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::claims;
use super::filter_view::filter_view;
use super::result::{
    DemoResult, Edit, FilterPercentile, Phase, Setup, TypeResult, TypeSetup, attainable_rps,
};
use super::timeline::{curve, totals};
use super::value_cut::ValueCut;
use super::watch::{Watch, Watched};
use crate::backend::BackendConfig;
use crate::envoy::EnvoyProcess;
use crate::lab::{Lab, Protection};
use crate::load::{self, Lateness, LoadSpec, Sample};
use crate::mix::{self, QueryType};
use crate::native_filters::{self, NativeFilter};
use crate::policy;
use crate::rig::Rig;

/// Load before the overload. It is so low that a queue is rare, so the overload causes the
/// difference.
const CALM_LOAD: f64 = 0.6;
const CALM: Duration = Duration::from_secs(3);
/// Start of the counted span, two seconds after the start of the overload. In these seconds, the
/// empty queue fills.
const COUNTED_FROM: Duration = Duration::from_secs(5);
/// The observed time after the first edit.
const WITH_VALUE: Duration = Duration::from_secs(5);
/// The observed time after the second edit.
const WITH_ALLOWANCE: Duration = Duration::from_secs(7);
/// The value that the first edit gives to the costliest type. Until then, this type was refused
/// first.
pub(super) const VALUE: f64 = 100.0;
/// The least ratio of the requests of every type that the second edit admits.
pub(super) const ALLOWANCE: f64 = 0.1;
/// The time after which the demo gives up on an edit.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval of polls for Envoy's acknowledgement of an edit, which is the error of the time
/// until it.
const POLL: Duration = Duration::from_millis(2);

/// The options of the demo.
#[derive(Debug, Clone)]
pub struct Options {
    /// Length of the overload that is compared.
    pub overload: Duration,
    /// Offered load in overload, as a multiple of capacity.
    pub load: f64,
    /// Worker threads of Envoy.
    pub workers: u32,
    /// Requests that the backend serves at once.
    pub parallelism: usize,
    /// The factor of the paper's service times, and of the objectives.
    pub scale: f64,
}

/// A receiver of the demo's progress.
pub trait Progress {
    /// Reports the start of a step that takes about `expected`.
    fn begin(&mut self, what: &str, expected: Duration);
    /// Reports the current observations of the step, `elapsed` after its start.
    fn tick(&mut self, elapsed: Duration, seen: &str);
    /// Reports the end of the step.
    fn end(&mut self);
}

/// Runs the whole demo.
///
/// # Errors
/// If a part of the system doesn't start or run. The error is [`load::TooBusy`] if the machine
/// disturbs every run. An unobserved claim is not an error.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<DemoResult> {
    let mix = mix::natural(options.scale);
    let capacity_rps = mix::capacity_rps(&mix, options.parallelism);
    let compared = CALM + options.overload;
    let mut demo = Demo {
        options,
        mix: &mix,
        capacity_rps,
        envoy_version: String::new(),
        progress,
    };

    let without = demo.without(compared)?;
    let WithHeadgate {
        phase: with,
        edits,
        samples,
    } = demo.with(compared)?;
    let setup = Setup {
        envoy: demo.envoy_version,
        envoy_workers: options.workers as usize,
        parallelism: options.parallelism,
        capacity_rps,
        ideal_rps: attainable_rps(
            &mix,
            options.parallelism,
            options.load * capacity_rps,
            Duration::from_secs_f64(with.backend_late_mean_ms / 1e3),
        ),
        calm_load: CALM_LOAD,
        overload: options.load,
        overload_at_s: CALM.as_secs_f64(),
        counted_s: (COUNTED_FROM.as_secs_f64(), compared.as_secs_f64()),
        types: mix.iter().map(TypeSetup::from).collect(),
    };
    let claims = claims::claims(&claims::Seen {
        setup: &setup,
        without: &without,
        with: &with,
        edits: &edits,
        mix: &mix,
        samples: &samples,
    });
    Ok(DemoResult {
        setup,
        without,
        with,
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

/// The results of the load through Headgate.
struct WithHeadgate {
    phase: Phase,
    edits: Vec<Edit>,
    samples: Vec<Sample>,
}

impl Demo<'_> {
    fn without(&mut self, compared: Duration) -> Result<Phase> {
        load::undisturbed(self.bound(), |discarded| {
            let mut phase = self.run_without(compared)?;
            phase.discarded = discarded.to_vec();
            let lateness = phase.lateness;
            Ok((phase, lateness))
        })
    }

    fn with(&mut self, compared: Duration) -> Result<WithHeadgate> {
        load::undisturbed(self.bound(), |discarded| {
            let mut with = self.run_with(compared)?;
            with.phase.discarded = discarded.to_vec();
            let lateness = with.phase.lateness;
            Ok((with, lateness))
        })
    }

    /// Returns the largest accepted lateness of the harness.
    fn bound(&self) -> Duration {
        load::tolerable(self.mix[0].p50)
    }

    /// Runs Envoy as shipped, with its default circuit breakers.
    fn run_without(&mut self, compared: Duration) -> Result<Phase> {
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
        self.progress.begin("Envoy alone", compared);
        let spec = self.spec(lab.addr(), compared);
        let mut watch = Watch::start(spec, lab.backend(), COUNTED_FROM)?;
        watch.until(compared, self.progress)?;
        self.progress.end();
        let judged = [COUNTED_FROM..compared];
        Ok(self.phase(&watch.finish()?, compared, compared, &judged, Vec::new()))
    }

    fn run_with(&mut self, compared: Duration) -> Result<WithHeadgate> {
        let policy =
            policy::without_parallelism(policy::for_mix(self.options.parallelism, self.mix));
        let rig = Rig::builder(self.backend(), policy.clone())
            .concurrency(self.options.workers)
            .start()?;
        let end = compared + WITH_VALUE + WITH_ALLOWANCE;
        self.progress.begin("Envoy with Headgate", compared);
        let mut watch = Watch::start(self.spec(rig.addr(), end), &rig.backend, COUNTED_FROM)?;
        watch.until(compared, self.progress)?;
        self.progress.end();
        let filter = self
            .mix
            .iter()
            .map(|query| filter_view(&rig.envoy, query.name))
            .collect::<Result<_>>()?;

        let of_policy = format!("wasmcustom.headgate.policy.{}.", policy::NAME);
        let stats = rig.envoy.stats_under(&of_policy)?;
        let slots = stats.get("slots").copied().unwrap_or(0);
        let names: Vec<&str> = self.mix.iter().map(|query| query.name).collect();
        let value_cut = ValueCut::of(&stats, &names)?;

        let costliest = claims::costliest(self.mix);
        let mut valued = policy.clone();
        valued["spec"]["types"][costliest]["value"] = json!(VALUE);
        let valuing = Change {
            what: format!(
                "an answer to {} is worth {VALUE:.0}",
                self.mix[costliest].name
            ),
            policy: valued,
            span: WITH_VALUE,
        };
        let allowing = Change {
            what: format!(
                "all are worth the same again, and at least {:.0}% of each type are let in",
                ALLOWANCE * 100.0
            ),
            policy: policy::with_allowance(policy, ALLOWANCE),
            span: WITH_ALLOWANCE,
        };
        let mut first = self.edit(&rig, &mut watch, &valuing)?;
        let mut second = self.edit(&rig, &mut watch, &allowing)?;
        let watched = watch.finish()?;
        rig.wait_until_idle()
            .context("after the load, everything must come back to zero")?;
        let shows = |edit: &Edit, answered: bool| {
            claims::costliest_answered_after(&watched.samples, edit, self.mix, answered)
        };
        (first.in_force_ms, second.in_force_ms) = (shows(&first, true), shows(&second, false));
        let edited = [first.at_s, second.at_s].map(Duration::from_secs_f64);
        let judged = [COUNTED_FROM..compared, edited[0]..edited[1], edited[1]..end];
        Ok(WithHeadgate {
            phase: Phase {
                slots_found: Some(slots),
                value_cut: Some(value_cut),
                ..self.phase(&watched, compared, end, &judged, filter)
            },
            edits: vec![first, second],
            samples: watched.samples,
        })
    }

    /// Writes another policy during the load, and observes the effect.
    fn edit(&mut self, rig: &Rig, watch: &mut Watch<'_>, change: &Change) -> Result<Edit> {
        self.progress
            .begin(&format!("Live edit: {}", change.what), change.span);
        let before = rig.revision()?;
        let (at, written) = (watch.now(), Instant::now());
        rig.write_policy(&change.policy)?;
        while !acknowledged(rig, &before)? {
            if written.elapsed() > PATIENCE {
                bail!(
                    "Envoy has not acknowledged the edit within {PATIENCE:?}: {}",
                    rig.status()?
                );
            }
            std::thread::sleep(POLL);
        }
        let acknowledged_ms = written.elapsed().as_secs_f64() * 1e3;
        watch.until(at + change.span, self.progress)?;
        self.progress.end();
        Ok(Edit {
            what: change.what.clone(),
            at_s: at.as_secs_f64(),
            acknowledged_ms,
            in_force_ms: None,
        })
    }

    fn backend(&self) -> BackendConfig {
        BackendConfig::for_mix(self.options.parallelism, self.mix)
    }

    /// Returns a load that is low at first, and then in overload until `end`.
    fn spec(&self, target: SocketAddr, end: Duration) -> LoadSpec {
        let rate = |load: f64| load * self.capacity_rps;
        let mut spec = LoadSpec::for_mix(target, self.mix, 0.0, Duration::ZERO);
        spec.phases = vec![
            load::Phase {
                duration: CALM,
                rate: rate(CALM_LOAD),
            },
            load::Phase {
                duration: end - CALM,
                rate: rate(self.options.load),
            },
        ];
        spec.drain = Duration::from_secs(5);
        spec
    }

    /// Returns totals up to `compared`, curves up to `end`, and the generator's lateness in the
    /// `judged` spans.
    fn phase(
        &self,
        watched: &Watched,
        compared: Duration,
        end: Duration,
        judged: &[Range<Duration>],
        mut filter: Vec<BTreeMap<String, FilterPercentile>>,
    ) -> Phase {
        filter.resize(self.mix.len(), BTreeMap::new());
        let of_type = |(kind, (query, filter)): (usize, (&QueryType, _))| TypeResult {
            totals: totals(&watched.samples, kind, query, COUNTED_FROM, compared),
            curve: curve(&watched.samples, kind, query, end),
            filter,
        };
        let types: Vec<TypeResult> = self
            .mix
            .iter()
            .zip(filter)
            .enumerate()
            .map(of_type)
            .collect();
        let good: u64 = types.iter().map(|kind| kind.totals.good).sum();
        let late_p99_ms = |span: &Range<Duration>| {
            let judged = watched.samples.iter().filter(|s| span.contains(&s.at));
            load::lateness(judged).p99
        };
        Phase {
            goodput_rps: good as f64 / (compared - COUNTED_FROM).as_secs_f64(),
            types,
            max_in_flight_at_first: watched.most.0,
            max_in_flight: watched.most.1,
            slots_found: None,
            value_cut: None,
            utilization: watched.utilization,
            lateness: Lateness {
                generator_ms: judged.iter().map(late_p99_ms).fold(0.0, f64::max),
                backend_ms: watched.backend.late_ms.p99,
            },
            backend_late_mean_ms: watched.backend.late_ms.mean,
            discarded: Vec::new(),
        }
    }
}

/// A live edit.
struct Change {
    what: String,
    policy: Value,
    /// The observed time after the edit.
    span: Duration,
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

/// Returns Envoy's version, such as `1.40.0`, which is a part of
/// `e19b5c9…/1.40.0/Clean/RELEASE/BoringSSL`.
fn envoy_version(envoy: &EnvoyProcess) -> Result<String> {
    let info: Value = serde_json::from_str(&envoy.admin_get("/server_info")?)?;
    let version = info["version"].as_str().unwrap_or_default();
    Ok(version.split('/').nth(1).unwrap_or(version).to_owned())
}
