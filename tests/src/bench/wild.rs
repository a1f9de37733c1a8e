//! Services that were not written for Headgate, under open-loop load from k6.
//!
//! In the other benchmarks, service times, parallelism and one objective for all are known. Here
//! they are unknown: the services are ordinary programs with shared cores, locks and pools. Their
//! types of request have different objectives, and the proxy knows only these objectives.
//!
//! The measure is goodput, the number of 2xx answers per second within the p90 objective of their
//! type, as a client sees them. Each round runs all protections at all loads once, so that a slow
//! minute of the machine affects all of them.

pub mod experiments;
mod k6;
mod report;
mod rivals;
mod services;
mod variants;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use self::k6::{Answer, Outcome, Stage};
pub use self::report::{markdown, svg};
use self::rivals::Proxy;
pub use self::services::Service;
pub(super) use self::services::on_core;
use self::services::{Running, Site};
use self::variants::{Family, Variant, families, in_time};
use crate::demo::result::ideal_rps;
use crate::kube::programs;
use crate::mix::QueryType;

/// The options of a benchmark.
#[derive(Debug, Clone)]
pub struct Options {
    /// The services to measure.
    pub services: Vec<Service>,
    /// Offered loads as multiples of capacity.
    pub loads: Vec<f64>,
    /// Measured time of each run.
    pub measured: Duration,
    /// Duration of the load before the measured time, in which a protection adapts.
    pub warmup: Duration,
    /// The number of runs of each protection at each load.
    pub rounds: usize,
    /// Names of families or of their candidates to run, or `FAMILY=CANDIDATE,…` for a search among
    /// these candidates. An empty list means all families.
    pub only: Vec<String>,
    /// The values of P among which to search for Headgate.
    pub parallelism: Vec<usize>,
    /// Whether to run the changes of mix and of capacity too.
    pub changes: bool,
    /// The capacity of the services, requests/s. `None` to measure it.
    pub capacity_rps: Option<f64>,
    /// Whether to add runs to those of an earlier measurement of the service, with its capacity,
    /// service times and chosen candidates.
    pub resume: bool,
}

/// The results of one service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Name of the service.
    pub service: String,
    /// A short description.
    pub title: String,
    /// The reason why the service was not measured, or `None` if it was.
    pub skipped: Option<String>,
    /// The capacity: the largest number of requests of the mix that the service answers per second.
    pub capacity_rps: f64,
    /// The types of request.
    pub types: Vec<TypeReport>,
    /// The goodput of a work-conserving oracle, as pairs of load and requests/s.
    pub ideal: Vec<(f64, f64)>,
    /// The protections, in the order of the tables.
    pub rows: Vec<RowReport>,
    /// Runs at constant load.
    pub runs: Vec<Run>,
    /// Runs with a change in the middle.
    pub changes: Vec<ChangeRun>,
}

/// The measurements and objectives of one type of request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TypeReport {
    /// Name.
    pub name: String,
    /// Share of the requests, ratio 0..=1.
    pub share: f64,
    /// Mean response time without load, ms.
    pub mean_ms: f64,
    /// Objective for the median, ms.
    pub p50_ms: f64,
    /// Objective for the 90th percentile, ms.
    pub p90_ms: f64,
}

/// One protection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RowReport {
    /// The name of the family, or of the candidate that `--only` names.
    pub name: String,
    /// A short description.
    pub title: String,
    /// The candidate that the search chose, if there was a search.
    pub chosen: Option<String>,
    /// The candidates of the search with their goodput, requests/s.
    pub searched: Vec<(String, f64)>,
    /// The reason why the row was not run, or `None` if it was.
    pub skipped: Option<String>,
}

impl RowReport {
    /// Returns the position of the row's family among all families, for the order of rows and the
    /// style of lines. Candidates that `--only` names come last.
    fn family(&self) -> usize {
        let all = families(&[], &[]);
        let family = all.iter().position(|family| family.name == self.name);
        family.unwrap_or(all.len())
    }
}

/// One run: a protection at one load.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// Name of the row.
    pub row: String,
    /// Offered load as a multiple of capacity.
    pub load: f64,
    /// Number of the round.
    pub round: usize,
    /// The result.
    #[serde(flatten)]
    pub result: Measured,
}

/// The results of a part of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// 2xx answers per second within the p90 objective.
    pub goodput_rps: f64,
    /// Share of the requests that were refused (503, 429), ratio 0..=1.
    pub refused: f64,
    /// 99th percentile of the lateness of clients in sending, ms.
    pub late_p99_ms: f64,
    /// The CPU time of the proxy, in cores.
    pub envoy_cores: f64,
    /// The number of replicas needed according to Headgate's stats: the slots that the offered work
    /// occupies ÷ the service's slots, with P given. `None` for other rows and in runs with a
    /// change.
    #[serde(default)]
    pub needed_replicas: Option<f64>,
    /// The one-minute load average of the machine at the end.
    pub load_average: f64,
    /// The results by type, in the mix's order.
    pub types: Vec<TypeMeasured>,
}

/// The results of one type in a [`Measured`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TypeMeasured {
    /// Name.
    pub name: String,
    /// The number of requests.
    pub sent: usize,
    /// The number of 2xx answers.
    pub answered: usize,
    /// The number of 2xx answers within the p90 objective.
    pub good: usize,
    /// The number of refusals: 503, 429, and any other status with which Headgate refuses.
    pub refused: usize,
    /// The refusals by Headgate's reason.
    pub reasons: BTreeMap<String, usize>,
    /// The number of answers with another status, and of clients that gave up.
    pub failed: usize,
    /// Median response time of the 2xx answers, ms.
    pub p50_ms: Option<f64>,
    /// 90th percentile of the response time of the 2xx answers, ms.
    pub p90_ms: Option<f64>,
}

/// One run of a protection under a change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChangeRun {
    /// Name of the row.
    pub row: String,
    /// The change.
    pub change: Change,
    /// Number of the round.
    pub round: usize,
    /// The results before the change, in its first 10 s, in the rest of its time, and after its
    /// end.
    pub parts: Vec<Measured>,
    /// The goodput of each second, requests/s.
    pub curve: Vec<f64>,
}

/// A change in the middle of a run at 0.9 times the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// The costliest type gets three times its share, at the same total rate.
    Mix,
    /// Half of the core is taken, and half of the workers stop.
    Capacity,
}

impl Change {
    /// All changes.
    pub const ALL: [Self; 2] = [Self::Mix, Self::Capacity];

    /// Returns a short description.
    pub fn title(self) -> &'static str {
        match self {
            Self::Mix => "three times as many of the dearest requests",
            Self::Capacity => "half of the capacity",
        }
    }
}

/// The rows of a quick run. None of them needs a search.
pub const QUICK: [&str; 6] = [
    "none",
    "adaptive_concurrency",
    "headgate",
    "headgate-p2-shed",
    "headgate-p3-shed",
    "headgate-p6-shed",
];

/// The load at which candidates are compared, as a multiple of capacity. It lies between the loads
/// of the main runs.
const SEARCH_LOAD: f64 = 1.75;
/// Measured time of each candidate. The chosen one is measured again, so a random choice among
/// equal candidates does no harm.
const SEARCH_TIME: Duration = Duration::from_secs(5);
/// Load of the runs with a change, as a multiple of capacity.
const CHANGE_LOAD: f64 = 0.9;
/// The parts of a run before the change: the time to adapt, and the measured time.
const CALM: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(10)];
/// The parts of a run during the change: the time within which a protection should have adapted,
/// and the rest.
const CHANGED: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(15)];
/// The duration of a run after the change.
const AFTER: Duration = Duration::from_secs(15);
/// Returns the ends of the parts of a run with a change, from its start.
fn change_edges() -> [Duration; 5] {
    let [calm, changed] = [CALM, CHANGED].map(|parts| parts.iter().sum::<Duration>());
    let end = calm + changed;
    [CALM[0], calm, calm + CHANGED[0], end, end + AFTER]
}

/// The largest number of attempts at a run whose load differs from the requested one.
const ATTEMPTS: usize = 3;

/// A service with the results of its calibration.
struct Bench<'a> {
    options: &'a Options,
    k6: &'static Path,
    site: Site,
    mix: Vec<QueryType>,
    capacity_rps: f64,
}

/// Runs the whole benchmark. `reports` has the earlier results. The results of a service that is
/// measured now replace its earlier ones, or are added to them with [`Options::resume`]. `progress`
/// gets a line for each step, and `done` gets the reports after each step.
///
/// # Errors
/// If a part of a system doesn't start or run.
pub fn run(
    options: &Options,
    mut reports: Vec<ServiceReport>,
    mut progress: impl FnMut(&str),
    mut done: impl FnMut(&[ServiceReport]) -> Result<()>,
) -> Result<Vec<ServiceReport>> {
    let k6 = programs::k6()?;
    leave_core()?;
    for &service in &options.services {
        let earlier = reports
            .iter()
            .position(|report| report.service == service.name())
            .map(|index| reports.remove(index))
            .filter(|report| options.resume && report.skipped.is_none());
        progress(&format!("{}: {}", service.name(), service.title()));
        let site = match Site::prepare(service) {
            Ok(site) => site,
            Err(error) => match programs::why_unavailable(&error) {
                Some(why) => {
                    progress(&format!("{}: skipped: {why}", service.name()));
                    let skipped = || ServiceReport::new(service, Some(why.to_owned()));
                    reports.push(earlier.unwrap_or_else(skipped));
                    continue;
                }
                None => return Err(error),
            },
        };
        let mut bench = Bench {
            options,
            k6,
            site,
            mix: service.mix(),
            capacity_rps: 0.0,
        };
        let mut report = match earlier {
            Some(report) => {
                bench.take_over(&report)?;
                report
            }
            None => {
                bench.calibrate()?;
                ServiceReport::new(service, None)
            }
        };
        report.describe(&bench);
        progress(&format!("{}: {}", service.name(), report.description()));
        reports.push(report);
        let (report, before) = match reports.split_last_mut() {
            Some((last, before)) => (last, before.to_vec()),
            None => bail!("no report"),
        };
        let mut finished = |report: &ServiceReport| {
            let mut all = before.clone();
            all.push(report.clone());
            done(&all)
        };
        bench.compare(report, &mut progress, &mut finished)?;
    }
    Ok(reports)
}

/// Keeps this process and its children off the services' core.
pub(super) fn leave_core() -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    ensure!(
        cores > 1,
        "the benchmark needs two cores: one for the service, the others for proxy and load"
    );
    let mut others = CpuSet::new();
    (0..cores)
        .filter(|&core| core != services::CORE)
        .for_each(|core| others.set(core));
    sched_setaffinity(None, &others)?;
    Ok(())
}

impl Bench<'_> {
    /// Measures the service times and the capacity.
    fn calibrate(&mut self) -> Result<()> {
        let running = self.site.start()?;
        running.measure(&mut self.mix, 40)?;
        self.capacity_rps = match self.options.capacity_rps {
            Some(known) => known,
            None => self.ramp(&running)?,
        };
        Ok(())
    }

    /// Uses the service times and the capacity of an earlier measurement.
    fn take_over(&mut self, earlier: &ServiceReport) -> Result<()> {
        for query in &mut self.mix {
            let measured = earlier.types.iter().find(|kind| kind.name == query.name);
            let kind = measured.with_context(|| {
                format!("{} was measured without {}", earlier.service, query.name)
            })?;
            query.mean = Duration::from_secs_f64(kind.mean_ms / 1e3);
        }
        self.capacity_rps = earlier.capacity_rps;
        Ok(())
    }

    /// Returns the capacity: the largest rate of answers in any 5 s of a ramp from 0.4 to 1.8 times
    /// the rate that follows from the service times. Beyond its capacity, a service may answer
    /// fewer requests than at its capacity, so the end of the ramp isn't representative.
    fn ramp(&self, running: &Running) -> Result<f64> {
        const LENGTH: Duration = Duration::from_secs(40);
        const WINDOW: Duration = Duration::from_secs(5);
        let promised = crate::mix::capacity_rps(&self.mix, 1);
        let stages = [
            Stage::constant(Duration::from_secs(2), promised * 0.4, &self.mix),
            Stage {
                jump: false,
                ..Stage::constant(LENGTH, promised * 1.8, &self.mix)
            },
        ];
        let outcome = k6::run(self.k6, running.addr(), &self.mix, &stages, 1, |_| Ok(()))?;
        let ends: Vec<Duration> = outcome
            .answers
            .iter()
            .filter(|answer| answer.status == 200)
            .map(|answer| answer.sent + answer.latency)
            .collect();
        let most = (0..LENGTH.as_secs())
            .map(|from| {
                let from = Duration::from_secs(from);
                ends.iter()
                    .filter(|&&end| from <= end && end < from + WINDOW)
                    .count()
            })
            .max();
        Ok(most.unwrap_or(0) as f64 / WINDOW.as_secs_f64())
    }

    fn compare(
        &self,
        report: &mut ServiceReport,
        progress: &mut impl FnMut(&str),
        done: &mut impl FnMut(&ServiceReport) -> Result<()>,
    ) -> Result<()> {
        let mut chosen: Vec<(String, Variant)> = Vec::new();
        for family in self.families() {
            if let Some(choice) = chosen_before(&report.rows, &family)? {
                chosen.push(choice);
                continue;
            }
            let (row, variant) = self.choose(family, progress)?;
            chosen.extend(variant.map(|variant| (row.name.clone(), variant)));
            if report.rows.iter().all(|other| other.name != row.name) {
                report.rows.push(row);
            }
        }
        report.rows.sort_by_key(|row| row.family());
        let options = self.options;
        let changes = if options.changes {
            Change::ALL.len()
        } else {
            0
        };
        let constant = options.warmup + options.measured;
        let [.., changing] = change_edges();
        let one_round =
            constant.mul_f64(options.loads.len() as f64) + changing.mul_f64(changes as f64);
        let total = one_round.mul_f64((options.rounds * chosen.len()) as f64);
        let mut ran = Duration::ZERO;
        let started = Instant::now();
        let mut say = |what: String, length: Duration, result: &Measured| {
            ran += length;
            let done = ran.as_secs_f64() / total.as_secs_f64();
            let left = started.elapsed().mul_f64(1.0 / done - 1.0);
            progress(&format!(
                "{}: {what}: {} ({:.0}% done, {:.0} min left)",
                report.service,
                result.words(),
                done * 100.0,
                left.as_secs_f64() / 60.0
            ));
        };
        let rounds_before = report.rounds();
        for round in (1..=options.rounds).map(|round| rounds_before + round) {
            for &load in &options.loads {
                for (row, variant) in &chosen {
                    let result = self.constant(variant, load, options.measured, round)?;
                    say(format!("round {round}, {load}×, {row}"), constant, &result);
                    report.runs.push(Run {
                        row: row.clone(),
                        load,
                        round,
                        result,
                    });
                }
            }
            for change in Change::ALL.into_iter().take(changes) {
                for (row, variant) in &chosen {
                    let (parts, curve) = self.change(variant, change, round)?;
                    if let Some(late) = parts.get(2) {
                        say(
                            format!("round {round}, {}, {row}", change.title()),
                            changing,
                            late,
                        );
                    }
                    report.changes.push(ChangeRun {
                        row: row.clone(),
                        change,
                        round,
                        parts,
                        curve,
                    });
                }
            }
            done(report)?;
        }
        Ok(())
    }

    /// Returns the rows to run: all, or those that `--only` names. This option may also name
    /// candidates of a family.
    fn families(&self) -> Vec<Family> {
        let all = families(&self.mix, &self.options.parallelism);
        let only = &self.options.only;
        let mut rows = Vec::new();
        for family in all {
            if only.is_empty() || only.iter().any(|name| name == family.name) {
                rows.push(family);
                continue;
            }
            let narrowed = only.iter().find_map(|name| {
                let (of, candidates) = name.split_once('=')?;
                (of == family.name).then(|| candidates.split(',').collect::<Vec<_>>())
            });
            if let Some(names) = narrowed {
                let candidates = family.candidates.into_iter();
                rows.push(Family {
                    candidates: candidates
                        .filter(|candidate| names.contains(&candidate.name.as_str()))
                        .collect(),
                    ..family
                });
                continue;
            }
            for candidate in family.candidates {
                if only.contains(&candidate.name) {
                    rows.push(Family {
                        name: family.name,
                        title: family.title,
                        candidates: vec![candidate],
                    });
                }
            }
        }
        rows
    }

    /// Returns the best candidate of a family at [`SEARCH_LOAD`].
    fn choose(
        &self,
        family: Family,
        progress: &mut impl FnMut(&str),
    ) -> Result<(RowReport, Option<Variant>)> {
        let single = family.candidates.len() == 1;
        let mut row = RowReport {
            name: family.name.to_owned(),
            title: family.title.to_owned(),
            chosen: None,
            searched: Vec::new(),
            skipped: None,
        };
        let mut best: Option<(f64, Variant)> = None;
        for candidate in family.candidates {
            if let Some(refusal) = candidate.refusal()? {
                progress(&format!("{} is left out: {refusal}", candidate.name));
                row.skipped = Some(refusal);
                continue;
            }
            if single {
                if candidate.name != row.name {
                    row.title = candidate.name.clone();
                    row.name = candidate.name.clone();
                }
                return Ok((row, Some(candidate)));
            }
            let result = self.constant(
                &candidate,
                SEARCH_LOAD,
                SEARCH_TIME.min(self.options.measured),
                0,
            )?;
            progress(&format!("search: {}: {}", candidate.name, result.words()));
            row.searched
                .push((candidate.name.clone(), result.goodput_rps));
            if best
                .as_ref()
                .is_none_or(|(goodput, _)| result.goodput_rps > *goodput)
            {
                best = Some((result.goodput_rps, candidate));
            }
        }
        let best = best.map(|(_, variant)| variant);
        row.chosen = best.as_ref().map(|variant| variant.name.clone());
        Ok((row, best))
    }

    fn constant(
        &self,
        variant: &Variant,
        load: f64,
        measured: Duration,
        round: usize,
    ) -> Result<Measured> {
        let length = self.options.warmup + measured;
        let stages = [Stage::constant(length, load * self.capacity_rps, &self.mix)];
        let mut needed = None;
        let during = |begin: Instant, _: &mut Running, proxy: &Proxy| {
            sleep_until(begin + self.options.warmup);
            let before = (Instant::now(), proxy.offered_work()?);
            sleep_until(begin + length);
            let (time, after) = (before.0.elapsed(), proxy.offered_work()?);
            let work = before
                .1
                .zip(after)
                .map(|(from, to)| to.saturating_sub(from));
            needed = work
                .zip(variant.slots())
                .map(|(work, slots)| work.as_secs_f64() / time.as_secs_f64() / slots as f64);
            Ok(())
        };
        let (outcome, envoy_cores) = self.load(variant, &stages, round, during)?;
        Ok(Measured {
            needed_replicas: needed,
            ..self.measured(&outcome, self.options.warmup, length, envoy_cores)
        })
    }

    fn change(
        &self,
        variant: &Variant,
        change: Change,
        round: usize,
    ) -> Result<(Vec<Measured>, Vec<f64>)> {
        let [calm, changed] = [CALM, CHANGED].map(|parts| parts.iter().sum::<Duration>());
        let rate = CHANGE_LOAD * self.capacity_rps;
        let mut stages =
            [calm, changed, AFTER].map(|duration| Stage::constant(duration, rate, &self.mix));
        if change == Change::Mix {
            stages[1].rates = self.dearer().iter().map(|share| rate * share).collect();
        }
        let during = |begin, running: &mut Running, _: &Proxy| {
            if change == Change::Capacity {
                sleep_until(begin + calm);
                running.disturb()?;
                sleep_until(begin + calm + changed);
                running.recover();
            }
            Ok(())
        };
        let (outcome, envoy_cores) = self.load(variant, &stages, round, during)?;
        let edges = change_edges();
        let parts = edges
            .windows(2)
            .map(|edge| self.measured(&outcome, edge[0], edge[1], envoy_cores));
        let curve = (0..(calm + changed + AFTER).as_secs()).map(|second| {
            let (from, to) = (Duration::from_secs(second), Duration::from_secs(second + 1));
            self.measured(&outcome, from, to, envoy_cores).goodput_rps
        });
        Ok((parts.collect(), curve.collect()))
    }

    /// Returns the shares of a mix with three times the share of the last type, the costliest.
    fn dearer(&self) -> Vec<f64> {
        let last = self.mix.last().map_or(0.0, |query| query.share);
        let others = (1.0 - 3.0 * last) / (1.0 - last);
        let dearest = self.mix.len().saturating_sub(1);
        let share = |(kind, query): (usize, &QueryType)| {
            query.share * if kind == dearest { 3.0 } else { others }
        };
        self.mix.iter().enumerate().map(share).collect()
    }

    /// Runs a load in front of a fresh service behind a fresh proxy. Meanwhile calls `during` with
    /// the time at which the load began. Also returns the CPU time that the proxy used, in cores.
    fn load(
        &self,
        variant: &Variant,
        stages: &[Stage],
        seed: usize,
        mut during: impl FnMut(Instant, &mut Running, &Proxy) -> Result<()>,
    ) -> Result<(Outcome, f64)> {
        let mut dropped = 0;
        for _ in 0..ATTEMPTS {
            let mut running = self.site.start()?;
            let proxy = variant.start(running.addr())?;
            let begun = (Instant::now(), proxy.cpu_time()?);
            let outcome = k6::run(
                self.k6,
                proxy.addr(),
                &self.mix,
                stages,
                seed as u64,
                |begin| during(begin, &mut running, &proxy),
            )?;
            let cpu = proxy.cpu_time()?.saturating_sub(begun.1);
            if outcome.dropped == 0 {
                return Ok((outcome, cpu.as_secs_f64() / begun.0.elapsed().as_secs_f64()));
            }
            dropped = outcome.dropped;
        }
        bail!(
            "k6 did not offer the load in {ATTEMPTS} attempts: it dropped {dropped} requests in \
             the last"
        )
    }

    fn measured(
        &self,
        outcome: &Outcome,
        from: Duration,
        to: Duration,
        envoy_cores: f64,
    ) -> Measured {
        let of_kind = |(kind, query): (usize, &QueryType)| {
            let sent =
                |answer: &&Answer| answer.kind == kind && from <= answer.sent && answer.sent < to;
            let answers: Vec<&Answer> = outcome.answers.iter().filter(sent).collect();
            TypeMeasured::of(query, &answers)
        };
        let types: Vec<TypeMeasured> = self.mix.iter().enumerate().map(of_kind).collect();
        let total =
            |count: fn(&TypeMeasured) -> usize| types.iter().map(count).sum::<usize>() as f64;
        Measured {
            goodput_rps: total(|kind| kind.good) / (to - from).as_secs_f64(),
            refused: total(|kind| kind.refused) / total(|kind| kind.sent).max(1.0),
            late_p99_ms: outcome.late_p99_ms,
            envoy_cores,
            needed_replicas: None,
            load_average: load_average(),
            types,
        }
    }
}

/// Returns the candidate of a family that an earlier search chose, with the name of its row.
///
/// # Errors
/// If the family no longer has the candidate, because runs of two candidates don't belong in one
/// row.
fn chosen_before(rows: &[RowReport], family: &Family) -> Result<Option<(String, Variant)>> {
    let earlier = rows.iter().find(|row| row.name == family.name);
    let Some(chosen) = earlier.and_then(|row| row.chosen.as_deref()) else {
        return Ok(None);
    };
    let mut candidates = family.candidates.iter();
    let variant = candidates
        .find(|candidate| candidate.name == chosen)
        .with_context(|| format!("{} was measured with {chosen}", family.name))?;
    Ok(Some((family.name.to_owned(), variant.clone())))
}

impl TypeMeasured {
    fn of(query: &QueryType, answers: &[&Answer]) -> Self {
        let refusal =
            |answer: &&&Answer| answer.reason.is_some() || matches!(answer.status, 429 | 503);
        let mut latencies: Vec<Duration> = answers
            .iter()
            .filter(|answer| (200..300).contains(&answer.status))
            .map(|answer| answer.latency)
            .collect();
        latencies.sort();
        let quantile = |percent: usize| {
            let latency = latencies.get(latencies.len() * percent / 100);
            latency.map(|latency| latency.as_secs_f64() * 1e3)
        };
        let mut reasons = BTreeMap::new();
        for reason in answers.iter().filter_map(|answer| answer.reason.clone()) {
            *reasons.entry(reason).or_insert(0) += 1;
        }
        let good = |latency: &&Duration| in_time(query, **latency);
        let (answered, refused) = (latencies.len(), answers.iter().filter(refusal).count());
        Self {
            name: query.name.to_owned(),
            sent: answers.len(),
            answered,
            good: latencies.iter().filter(good).count(),
            refused,
            reasons,
            failed: answers.len() - answered - refused,
            p50_ms: quantile(50),
            p90_ms: quantile(90),
        }
    }
}

impl Measured {
    /// Returns a summary for a line of progress.
    fn words(&self) -> String {
        let types = self.types.iter().map(|kind| {
            let share = |count: usize| 100.0 * count as f64 / kind.sent.max(1) as f64;
            let ms = |value: Option<f64>| value.map_or("–".to_owned(), |ms| format!("{ms:.0}"));
            format!(
                "{} {:.0}% good, {:.0}% refused, {:.0}% failed, {}/{} ms",
                kind.name,
                share(kind.good),
                share(kind.refused),
                share(kind.failed),
                ms(kind.p50_ms),
                ms(kind.p90_ms)
            )
        });
        format!(
            "goodput {:.1}/s ({}); late {:.0} ms, proxy {:.2} cores, load average {:.1}",
            self.goodput_rps,
            types.collect::<Vec<_>>().join("; "),
            self.late_p99_ms,
            self.envoy_cores,
            self.load_average
        )
    }
}

impl ServiceReport {
    fn new(service: Service, skipped: Option<String>) -> Self {
        Self {
            service: service.name().to_owned(),
            title: service.title().to_owned(),
            skipped,
            capacity_rps: 0.0,
            types: Vec::new(),
            ideal: Vec::new(),
            rows: Vec::new(),
            runs: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn describe(&mut self, bench: &Bench<'_>) {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        self.capacity_rps = bench.capacity_rps;
        self.types = bench
            .mix
            .iter()
            .map(|query| TypeReport {
                name: query.name.to_owned(),
                share: query.share,
                mean_ms: ms(query.mean),
                p50_ms: ms(query.p50),
                p90_ms: ms(query.p90),
            })
            .collect();
        for &load in &bench.options.loads {
            if self.ideal.iter().all(|(known, _)| *known != load) {
                let ideal = ideal_rps(&bench.mix, bench.capacity_rps, load);
                self.ideal.push((load, ideal));
            }
        }
        self.ideal
            .sort_by(|(left, _), (right, _)| left.total_cmp(right));
    }

    /// Returns the number of the last round.
    fn rounds(&self) -> usize {
        let constant = self.runs.iter().map(|run| run.round);
        let changing = self.changes.iter().map(|run| run.round);
        constant.chain(changing).max().unwrap_or(0)
    }

    /// Returns capacity and types in one line.
    fn description(&self) -> String {
        let types = self.types.iter().map(|kind| {
            format!(
                "{} {:.0}% × {:.1} ms (p50 {:.0} ms, p90 {:.0} ms)",
                kind.name,
                kind.share * 100.0,
                kind.mean_ms,
                kind.p50_ms,
                kind.p90_ms
            )
        });
        format!(
            "capacity {:.0} requests/s; {}",
            self.capacity_rps,
            types.collect::<Vec<_>>().join(", ")
        )
    }
}

fn sleep_until(deadline: Instant) {
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
}

/// Returns the one-minute load average, or 0 if it can't be read.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .next()
        .and_then(|first| first.parse().ok())
        .unwrap_or(0.0)
}
