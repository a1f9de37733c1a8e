//! `--experiment`: faults, new processes and sudden overload, in front of the harness' own backend.
//!
//! Each case is a sequence of events under open-loop load. All rows get the same seeded arrivals:
//! Envoy without a filter, and Headgate with both filters, with P given and with P found. An answer
//! is in time within the p90 objective of its type.

mod cold;
mod hang;
mod picture;
mod retries;
mod spike;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};

pub use self::picture::svg;
use super::variants::in_time;
use crate::backend::{Backend, BackendConfig, Fault, OnDisconnect};
use crate::bench::cpu::median;
use crate::bench::lab::{Lab, Protection};
use crate::bench::native_filters;
use crate::bench::refusals;
use crate::bench::table::{Table, percent};
use crate::bootstrap::{Bootstrap, socket};
use crate::demo::timeline::{self, Totals};
use crate::load::{self, Ended, LoadReport, LoadSpec, Phase, RequestType, Sample};
use crate::mix::QueryType;
use crate::policy;

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Experiment {
    /// A part of the backend is broken.
    Hang,
    /// A newly started process, below and above capacity.
    Cold,
    /// A sudden overload.
    Spike,
    /// Clients retry while half of the workers are stopped, and afterwards.
    Retries,
}

/// The options of an experiment.
#[derive(Debug, Clone)]
pub struct Options {
    /// The number of runs of each row.
    pub rounds: usize,
    /// Whether runs are shortened.
    pub quick: bool,
    /// Names of rows and of cases to run. Without a row's name all rows run, and without a case's
    /// name all cases.
    pub only: Vec<String>,
    /// Worker threads of Envoy.
    pub workers: u32,
}

/// All runs of one case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// Name for `--only` and JSON.
    pub case: &'static str,
    /// The case, in a sentence.
    pub title: &'static str,
    /// The times of the case's events, s.
    pub events_s: Vec<f64>,
    /// The runs of the case.
    pub runs: Vec<Run>,
}

/// One run: a row of one case.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// Name of the row.
    pub row: &'static str,
    /// Number of the round.
    pub round: usize,
    /// The figures of the table.
    pub measures: Vec<Measure>,
    /// 99th percentile of the generator's lateness, ms.
    pub late_p99_ms: f64,
    /// Results by type, over the whole run.
    pub types: Vec<TypeRow>,
    /// Results by second of the run.
    pub seconds: Vec<Second>,
    /// Headgate's counters at the end, without zeros and without the policy's name.
    pub counters: BTreeMap<String, u64>,
}

/// One figure of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Measure {
    /// Heading of its column.
    pub name: String,
    /// The unit of the value.
    pub unit: Unit,
    /// The value, or `None` if the event didn't happen in the run.
    pub value: Option<f64>,
}

/// Unit of a [`Measure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A ratio, 0..=1.
    Share,
    /// A rate, 1/s.
    PerSecond,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// A count.
    Count,
    /// A multiple of a baseline.
    Times,
}

/// The results of one type in a [`Run`].
#[derive(Debug, Clone, Serialize)]
pub struct TypeRow {
    /// Name.
    pub name: &'static str,
    /// The number of refusals by the reason that the client gets.
    pub refused_by: BTreeMap<String, u64>,
    /// Counts and percentiles.
    #[serde(flatten)]
    pub totals: Totals,
}

/// The counts of one second of a [`Run`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Second {
    /// The number of first attempts.
    pub first: usize,
    /// The number of all attempts.
    pub sent: usize,
    /// The number of attempts answered in time.
    pub in_time: usize,
    /// The number of refused attempts.
    pub refused: usize,
}

/// A sequence of events under a load.
struct Case {
    name: &'static str,
    title: &'static str,
    /// Types of request. The shares are relative, so they can be rates.
    mix: Vec<QueryType>,
    /// The number of requests that each endpoint serves at once.
    workers: usize,
    endpoints: usize,
    /// The number of consecutive timeouts after which Envoy ejects an endpoint, or `None` without
    /// outlier detection.
    ejects: Option<u32>,
    /// Whether the workers of an endpoint share one processor.
    one_processor: bool,
    /// P in the rows that give it.
    parallelism: usize,
    /// A type that the policy lacks until [`Event::AddType`].
    added: Option<&'static str>,
    phases: Vec<Phase>,
    route_timeout: Option<Duration>,
    /// The time after which clients give up.
    patience: Option<Duration>,
    retries: u32,
    events: Vec<(Duration, Event)>,
    measures: fn(&Seen<'_>) -> Vec<Measure>,
}

/// A change of the backend or of the policy.
enum Event {
    /// Requests under a path get this fault, at the first endpoint or at all endpoints.
    Break(Fault),
    /// The faults end, and hanging requests are answered.
    Mend,
    /// The first endpoint gets another number of workers.
    Workers(usize),
    /// The policy gets the type that it lacked.
    AddType,
}

/// The record of a run.
struct Seen<'a> {
    case: &'a Case,
    samples: &'a [Sample],
    end: Duration,
}

/// Runs an experiment. `progress` gets a line for each run as it ends.
///
/// # Errors
/// If a part of a system doesn't start or run.
pub fn run(
    experiment: Experiment,
    options: &Options,
    mut progress: impl FnMut(&str),
) -> Result<Vec<CaseReport>> {
    let mut cases = match experiment {
        Experiment::Hang => hang::cases(options.quick),
        Experiment::Cold => cold::cases(options.quick),
        Experiment::Spike => spike::cases(options.quick),
        Experiment::Retries => retries::cases(options.quick),
    };
    let named = |name: &str| options.only.iter().any(|only| only == name);
    if cases.iter().any(|case| named(case.name)) {
        cases.retain(|case| named(case.name));
    }
    let mut reports = Vec::new();
    for case in cases {
        let mut rows = rows(&case);
        if rows.iter().any(|row| named(row.name())) {
            rows.retain(|row| named(row.name()));
        }
        let mut runs = Vec::new();
        for round in 1..=options.rounds {
            for row in &rows {
                let run = case.run(row, round, options.workers)?;
                progress(&format!("{}: round {round}: {}", case.name, run.words()));
                runs.push(run);
            }
        }
        if experiment == Experiment::Cold {
            cold::relate(&mut runs);
        }
        reports.push(CaseReport {
            case: case.name,
            title: case.title,
            events_s: case.events_s(),
            runs,
        });
    }
    Ok(reports)
}

/// Returns the rows: Envoy without a filter, and Headgate with both filters, with P given and with
/// P found.
fn rows(case: &Case) -> Vec<Protection> {
    let given = policy::for_mix(case.parallelism, &case.mix);
    let found = policy::without_parallelism(given.clone());
    let wasm = |name, title, policy: &Value| Protection::headgate(name, title, policy.clone());
    let native =
        |name, title, policy: &Value| Protection::native_headgate(name, title, policy.clone());
    vec![
        Protection::Native(native_filters::plain()),
        wasm("wasm-p", "Headgate, Wasm, P given", &given),
        wasm("wasm", "Headgate, Wasm, P found", &found),
        native("native-p", "Headgate, native, P given", &given),
        native("native", "Headgate, native, P found", &found),
    ]
}

impl Case {
    /// Returns a case with `mix` for one endpoint with this many workers, which is also P. The case
    /// has no events and no phases yet.
    fn new(mix: Vec<QueryType>, workers: usize, measures: fn(&Seen<'_>) -> Vec<Measure>) -> Self {
        Self {
            name: "",
            title: "",
            mix,
            workers,
            endpoints: 1,
            ejects: None,
            one_processor: false,
            parallelism: workers,
            added: None,
            phases: Vec::new(),
            route_timeout: None,
            patience: None,
            retries: 0,
            events: Vec::new(),
            measures,
        }
    }

    fn run(&self, row: &Protection, round: usize, workers: u32) -> Result<Run> {
        let mut backend = BackendConfig::for_mix(self.workers, &self.mix);
        backend.seed = round as u64;
        backend.one_processor = self.one_processor;
        // Most services finish a request even if the caller has left.
        backend.on_disconnect = OnDisconnect::Finish;
        let others = (1..self.endpoints)
            .map(|_| Backend::start(&backend))
            .collect::<Result<Vec<_>>>()?;
        let more: Vec<_> = others.iter().map(Backend::addr).collect();
        let (timeout, ejects) = (self.route_timeout, self.ejects);
        let first = self.first(row);
        let lab = Lab::start_with(&first, backend, workers, move |bootstrap| {
            let cluster = bootstrap.cluster("upstream")?;
            if let Some(failures) = ejects {
                cluster["outlier_detection"] = outlier_detection(failures);
            }
            let endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
                .as_array_mut()
                .context("the upstream cluster has endpoints")?;
            endpoints.extend(more.iter().map(|addr| {
                json!({"endpoint": {"address": socket(&addr.ip().to_string(), addr.port())}})
            }));
            set_route_timeout(bootstrap, timeout)
        })?;
        let running = load::start(self.spec(&lab, round))?;
        let started = Instant::now();
        for (at, event) in &self.events {
            std::thread::sleep((started + *at).saturating_duration_since(Instant::now()));
            event.happen(&lab, row)?;
        }
        let (report, samples) = running.wait_with_samples()?;
        let seen = Seen {
            case: self,
            samples: &samples,
            end: self.end(),
        };
        Ok(Run {
            row: row.name(),
            round,
            measures: (self.measures)(&seen),
            late_p99_ms: report.lateness_ms.p99,
            types: seen.types(&report),
            seconds: seen.seconds(),
            counters: counters(&lab)?,
        })
    }

    /// Returns `row` with the policy of its start.
    fn first(&self, row: &Protection) -> Protection {
        let mut row = row.clone();
        if let Some(added) = self.added
            && let Some(policy) = row.policy_mut()
            && let Some(types) = policy["spec"]["types"].as_array_mut()
        {
            types.retain(|kind| kind["name"] != added);
        }
        row
    }

    /// Returns the times of the events and of the phases after the first.
    fn events_s(&self) -> Vec<f64> {
        let events = self.events.iter().map(|(at, _)| *at);
        let ends = self.phases.iter().scan(Duration::ZERO, |end, phase| {
            *end += phase.duration;
            Some(*end)
        });
        let phases = ends.take(self.phases.len().saturating_sub(1));
        let all = events.chain(phases).filter(|at| !at.is_zero());
        all.map(|at| at.as_secs_f64()).collect()
    }

    fn end(&self) -> Duration {
        self.phases.iter().map(|phase| phase.duration).sum()
    }

    fn spec(&self, lab: &Lab, round: usize) -> LoadSpec {
        let mut spec = LoadSpec::for_mix(lab.addr(), &self.mix, 0.0, Duration::ZERO);
        spec.phases.clone_from(&self.phases);
        for kind in &mut spec.types {
            *kind = RequestType {
                abort_after: self.patience,
                retries: self.retries,
                ..kind.clone()
            };
        }
        spec.seed = round as u64;
        spec.drain = Duration::from_secs(1);
        // This is the largest possible number, because each request takes two file descriptors of
        // Envoy.
        spec.max_outstanding = 8_000;
        spec
    }
}

impl Event {
    /// Applies the event to `lab`, which runs `row`.
    fn happen(&self, lab: &Lab, row: &Protection) -> Result<()> {
        let backend = lab.backend();
        match self {
            Self::Break(fault) => backend.inject(fault.clone()),
            Self::Mend => {
                backend.clear_faults();
                backend.release();
            }
            Self::Workers(workers) => backend.set_workers(*workers),
            Self::AddType => {
                if let (Lab::Headgate(rig), Some(policy)) = (lab, row.policy()) {
                    rig.write_policy(policy)?;
                }
            }
        }
        Ok(())
    }
}

impl Seen<'_> {
    fn totals(&self, kind: usize, from: Duration, to: Duration) -> Totals {
        timeline::totals(self.samples, kind, &self.case.mix[kind], from, to)
    }

    fn types(&self, report: &LoadReport) -> Vec<TypeRow> {
        let types = self.case.mix.iter().enumerate().zip(&report.types);
        let row = |((kind, query), reported): ((usize, &QueryType), &load::TypeReport)| TypeRow {
            name: query.name,
            refused_by: reported.refused_by.clone(),
            totals: self.totals(kind, Duration::ZERO, self.end),
        };
        types.map(row).collect()
    }

    /// Returns the counts of each second.
    fn seconds(&self) -> Vec<Second> {
        let mut seconds = vec![Second::default(); self.end.as_secs() as usize];
        for sample in self.samples {
            let Some(second) = seconds.get_mut(sample.at.as_secs() as usize) else {
                continue;
            };
            second.sent += 1;
            second.first += usize::from(sample.attempt == 1);
            second.in_time += usize::from(self.in_time(sample));
            second.refused += usize::from(sample.ended == Ended::Refused);
        }
        seconds
    }

    fn in_time(&self, sample: &Sample) -> bool {
        sample.ended == Ended::Ok && in_time(&self.case.mix[sample.kind], sample.latency)
    }

    /// Returns the mean rate of answers in time between two times, requests/s.
    fn rate_in_time(&self, from: Duration, to: Duration) -> f64 {
        let inside = |sample: &&Sample| (from..to).contains(&sample.at) && self.in_time(sample);
        self.samples.iter().filter(inside).count() as f64 / (to - from).as_secs_f64()
    }

    /// Returns the share of the requests between two times that were refused.
    fn refused(&self, from: Duration, to: Duration) -> f64 {
        let sent = self
            .samples
            .iter()
            .filter(|sample| (from..to).contains(&sample.at));
        let refused = sent.clone().filter(|sample| sample.ended == Ended::Refused);
        refused.count() as f64 / sent.count().max(1) as f64
    }

    /// Returns the number of types with answers between two times that are outside their
    /// objectives.
    fn outside(&self, from: Duration, to: Duration) -> usize {
        let totals = (0..self.case.mix.len()).map(|kind| self.totals(kind, from, to));
        totals
            .filter(|totals| totals.answered > 0 && !totals.inside())
            .count()
    }

    /// Whether requests were answered between two times, and all types were inside their
    /// objectives.
    fn inside(&self, from: Duration, to: Duration) -> bool {
        self.rate_in_time(from, to) > 0.0 && self.outside(from, to) == 0
    }

    /// Returns the time from `event` until nearly all requests are answered in time, at any
    /// attempt, in whole seconds. Returns `None` if this isn't the case at the end of the run.
    fn well_after(&self, event: Duration) -> Option<f64> {
        const NEARLY_ALL: f64 = 0.95;
        let seconds = self.seconds();
        let later = seconds.get(event.as_secs() as usize..)?;
        let well =
            |second: &Second| second.in_time as f64 >= NEARLY_ALL * second.first.max(1) as f64;
        let ill = later.iter().rposition(|second| !well(second));
        let from = ill.map_or(0, |last| last + 1);
        (from < later.len()).then_some(from as f64)
    }
}

impl Measure {
    fn new(name: impl Into<String>, unit: Unit, value: impl Into<Option<f64>>) -> Self {
        Self {
            name: name.into(),
            unit,
            value: value.into(),
        }
    }

    /// Returns the ratio of `count` to `whole`. Its value is `None` if `whole` is 0.
    fn share(name: impl Into<String>, count: u64, whole: u64) -> Self {
        let share = (whole > 0).then(|| count as f64 / whole as f64);
        Self::new(name, Unit::Share, share)
    }
}

impl Unit {
    fn write(self, value: f64) -> String {
        match self {
            Self::Share => percent(value),
            Self::PerSecond => format!("{value:.0}/s"),
            Self::Seconds => format!("{value:.0} s"),
            Self::Milliseconds => format!("{value:.0} ms"),
            Self::Count => format!("{value:.0}"),
            Self::Times => format!("{value:.3}×"),
        }
    }
}

impl Run {
    /// Returns a summary for a line of progress.
    fn words(&self) -> String {
        let measures = self.measures.iter().map(|measure| {
            let value = measure.value.map(|value| measure.unit.write(value));
            format!("{} {}", measure.name, value.unwrap_or("–".to_owned()))
        });
        format!("{}: {}", self.row, measures.collect::<Vec<_>>().join(", "))
    }
}

/// Returns the settings of outlier detection by consecutive gateway failures, which include
/// timeouts of the route. An ejected endpoint stays ejected to the end of a run.
fn outlier_detection(failures: u32) -> Value {
    json!({
        "consecutive_gateway_failure": failures,
        "enforcing_consecutive_gateway_failure": 100,
        "base_ejection_time": "60s",
        "max_ejection_percent": 50,
    })
}

/// Sets `timeout` on all routes, or no timeout if it is `None`.
fn set_route_timeout(bootstrap: &mut Bootstrap, timeout: Option<Duration>) -> Result<()> {
    let seconds = timeout.unwrap_or_default().as_secs_f64();
    for route in bootstrap.routes()? {
        route["route"]["timeout"] = json!(format!("{seconds}s"));
    }
    Ok(())
}

/// Returns Headgate's counters that are not 0.
fn counters(lab: &Lab) -> Result<BTreeMap<String, u64>> {
    let Lab::Headgate(rig) = lab else {
        return Ok(BTreeMap::new());
    };
    let mut counters = rig.policy_stats()?;
    counters.retain(|_, value| *value > 0);
    Ok(counters)
}

/// Returns a table of the medians over runs, with least and greatest values, and below the table
/// the refusals of all runs by type and reason.
pub fn table(report: &CaseReport) -> String {
    let mut names: Vec<&'static str> = Vec::new();
    for run in &report.runs {
        if !names.contains(&run.row) {
            names.push(run.row);
        }
    }
    let measures = report
        .runs
        .first()
        .map_or(&[][..], |run| run.measures.as_slice());
    let mut headings = vec![""];
    headings.extend(measures.iter().map(|measure| measure.name.as_str()));
    headings.push("sent late, p99");
    let mut table = Table::new(&headings);
    let mut refusals = String::new();
    for name in names {
        let runs: Vec<&Run> = report.runs.iter().filter(|run| run.row == name).collect();
        let mut cells = vec![name.to_owned()];
        cells.extend(measures.iter().enumerate().map(|(index, measure)| {
            let values = runs.iter().map(|run| run.measures[index].value);
            spread(values.collect(), measure.unit)
        }));
        let late = runs.iter().map(|run| Some(run.late_p99_ms)).collect();
        cells.push(spread(late, Unit::Milliseconds));
        table.row(cells);
        refusals += &refusal_words(name, &runs);
    }
    format!("\n{}: {}\n{table}{refusals}", report.case, report.title)
}

/// Returns `median (least–greatest)`. The time of an event that didn't happen counts as later than
/// all others, and is shown as `–`. For other units than times, runs without a value are left out.
fn spread(values: Vec<Option<f64>>, unit: Unit) -> String {
    let absent = matches!(unit, Unit::Seconds | Unit::Milliseconds).then_some(f64::INFINITY);
    let values: Vec<f64> = values
        .into_iter()
        .filter_map(|value| value.or(absent))
        .collect();
    let write = |value: f64| match value.is_finite() {
        true => unit.write(value),
        false => "–".to_owned(),
    };
    match values.as_slice() {
        [] => "–".to_owned(),
        [only] => write(*only),
        _ => {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let middle = median(&values);
            format!("{} ({}–{})", write(middle), write(least), write(most))
        }
    }
}

/// Returns the refusals in Headgate's stats as text, summed over runs.
fn refusal_words(row: &str, runs: &[&Run]) -> String {
    let mut sums: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
    for (name, count) in runs.iter().flat_map(|run| &run.counters) {
        let parts = name
            .strip_prefix("type.")
            .and_then(|name| name.split_once(".rq_rejected.reason."));
        if let Some((kind, reason)) = parts {
            let of_type = sums.entry(kind).or_default();
            *of_type.entry(reason.to_owned()).or_default() += count;
        }
    }
    if sums.is_empty() {
        return String::new();
    }
    let words = refusals::words(sums.iter().map(|(kind, reasons)| (*kind, reasons)));
    format!("  {row} refused: {words}\n")
}

/// Returns a type whose requests all take `ms`, with the objectives of cheap requests.
fn cheap(name: &'static str, path: &'static str, rate: f64, ms: u64) -> QueryType {
    let time = Duration::from_millis(ms);
    QueryType {
        name,
        path,
        share: rate,
        mean: time,
        median: time,
        p50: Duration::from_millis(50),
        p90: Duration::from_millis(150),
    }
}

/// Returns a type whose requests all take `ms`, with the objectives of costly requests.
fn dear(name: &'static str, path: &'static str, rate: f64, ms: u64) -> QueryType {
    QueryType {
        p50: Duration::from_millis(200),
        p90: Duration::from_millis(500),
        ..cheap(name, path, rate, ms)
    }
}

/// Returns a phase of `seconds` with all types at their rates.
fn constant(mix: &[QueryType], seconds: u64) -> Vec<Phase> {
    vec![Phase {
        duration: Duration::from_secs(seconds),
        rate: mix.iter().map(|query| query.share).sum(),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_the_median_of_all_runs_with_least_and_greatest() {
        assert_eq!(
            spread(vec![Some(0.9), Some(0.7)], Unit::Share),
            format!("{} ({}–{})", percent(0.8), percent(0.7), percent(0.9)),
        );
        assert_eq!(
            spread(vec![Some(3.0), None, Some(1.0)], Unit::Seconds),
            "3 s (1 s––)"
        );
        assert_eq!(
            spread(vec![None, Some(0.5)], Unit::Share),
            percent(0.5),
            "a share of nothing is not a best share"
        );
        assert_eq!(spread(vec![None, None], Unit::Share), "–");
    }
}
