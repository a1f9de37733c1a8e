//! What a workload must obey beyond its shape, and what it means under a policy.

use std::borrow::Cow;
use std::time::Duration;

use headgate_core::classify::Classifier;
use headgate_core::config::{MAX_PARALLELISM, MAX_TYPES, StageConfig};

use super::{DistributionName, Numbers, PhaseEntry, ProcessName, Time, TypeEntry, WorkloadFile};
use crate::trial::{Offered, Phase, Plan};
use crate::workload::recorded::Recording;
use crate::workload::request::{Place, SampleRequest, place};
use crate::workload::{
    Bursts, Empirical, Process, Rate, ServiceTime, ServiceTimeError, TypeLoad, Workload,
};

/// Loads where none are given, × full load.
const LOADS: [f64; 5] = [0.8, 1.0, 1.2, 1.5, 2.0];
const HIGHEST_LOAD: f64 = 100.0;
const HIGHEST_RATE: f64 = 10_000_000.0;
const MOST_LOADS: usize = 100;
const MOST_REQUESTS: i64 = 1_000_000_000;
const MOST_SEEDS: i64 = 1_000;
const HOUR_MS: f64 = 3_600_000.0;

/// One step of the way to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A field of a mapping.
    Field(Cow<'static, str>),
    /// An item of a list, from 0.
    Item(usize),
}

/// A field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The way to the field.
    pub at: Vec<Step>,
    /// What was found.
    pub found: String,
    /// What would be right.
    pub right: Right,
}

/// What would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Right {
    /// In words.
    Text(String),
    /// One of these names, those of the policy's types; what was found is the name that was written.
    TypeOfPolicy(Vec<String>),
}

/// Gathers problems.
#[derive(Debug, Default)]
pub(super) struct Checks(Vec<Problem>);

impl Checks {
    pub(super) fn add(&mut self, at: &[Step], found: String, right: impl Into<String>) {
        self.0.push(Problem {
            at: at.to_vec(),
            found,
            right: Right::Text(right.into()),
        });
    }

    pub(super) fn missing(&mut self, at: &[Step], field: &'static str, right: &str) {
        self.add(&below(at, field), "missing".to_owned(), right);
    }

    /// What was made of settings, or its error as a problem.
    pub(super) fn made(
        &mut self,
        at: &[Step],
        made: Result<ServiceTime, ServiceTimeError>,
    ) -> Option<ServiceTime> {
        made.map_err(|error| {
            let error = error.to_string();
            let (found, right) = error.split_once("; ").unwrap_or((&error, "other settings"));
            self.add(at, found.to_owned(), right);
        })
        .ok()
    }

    /// The length of `time`, ms, within bounds.
    pub(super) fn time(&mut self, at: &[Step], time: &Time, min: f64, max: f64) -> Option<f64> {
        match time.ms() {
            Ok(ms) if (min..=max).contains(&ms) => Some(ms),
            Ok(_) => {
                self.add(at, time.0.clone(), format!("{} to {}", say(min), say(max)));
                None
            }
            Err(error) => {
                self.add(at, format!("{:?}", time.0), error.to_string());
                None
            }
        }
    }

    pub(super) fn positive(&mut self, at: &[Step], field: &'static str, n: f64) -> Option<f64> {
        let right = n > 0.0 && n.is_finite();
        if !right {
            self.add(&below(at, field), n.to_string(), "a number above 0");
        }
        right.then_some(n)
    }

    pub(super) fn not_negative(&mut self, at: &[Step], field: &'static str, n: f64) -> Option<f64> {
        let right = n >= 0.0 && n.is_finite();
        if !right {
            self.add(&below(at, field), n.to_string(), "a number of at least 0");
        }
        right.then_some(n)
    }

    fn whole(&mut self, field: &'static str, n: Option<i64>, max: i64) -> Option<i64> {
        let n = n?;
        if !(1..=max).contains(&n) {
            self.add(&below(&[], field), n.to_string(), format!("1 to {max}"));
            return None;
        }
        Some(n)
    }

    /// A number above 0 and up to `max`.
    fn within(&mut self, at: &[Step], n: f64, max: f64) -> Option<f64> {
        let right = n > 0.0 && n <= max;
        if !right {
            self.add(at, n.to_string(), format!("above 0, up to {max}"));
        }
        right.then_some(n)
    }
}

fn below(at: &[Step], field: &'static str) -> Vec<Step> {
    [at, &[Step::Field(field.into())]].concat()
}

fn item(at: &[Step], i: usize) -> Vec<Step> {
    [at, &[Step::Item(i)]].concat()
}

fn say(ms: f64) -> String {
    match ms {
        HOUR_MS => "1h".to_owned(),
        ms if ms > HOUR_MS => format!("{}h", ms / HOUR_MS),
        ms if ms > 0.0 && ms < 1.0 => format!("{}us", ms * 1e3),
        ms => format!("{ms}ms"),
    }
}

impl WorkloadFile {
    /// What it means under `stage`, where `recording` is what its `recorded.accessLog` holds.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn plan(
        &self,
        stage: &StageConfig,
        recording: Option<&Recording>,
    ) -> Result<Plan, Vec<Problem>> {
        let mut checks = Checks::default();
        let offered = self.offered(stage, recording, &mut checks);
        let whole = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
        let small = |n: Option<i64>| n.and_then(|n| u32::try_from(n).ok());
        let warm_up = self.warm_up.as_ref();
        let warm_up =
            warm_up.and_then(|time| checks.time(&below(&[], "warmUp"), time, 0.0, HOUR_MS));
        if let Some(seed) = self.seed.filter(|seed| *seed < 0) {
            checks.add(
                &below(&[], "seed"),
                seed.to_string(),
                "a whole number of at least 0",
            );
        }
        let most_slots = i64::from(MAX_PARALLELISM);
        let plan = offered.map(|offered| Plan {
            offered,
            parallelism: small(checks.whole("parallelism", self.parallelism, most_slots)),
            requests: whole(checks.whole("requests", self.requests, MOST_REQUESTS)),
            seeds: small(checks.whole("seeds", self.seeds, MOST_SEEDS)),
            seed: whole(self.seed),
            warm_up: warm_up.map(|ms| Duration::from_secs_f64(ms / 1e3)),
        });
        match plan {
            Some(plan) if checks.0.is_empty() => Ok(plan),
            _ => Err(checks.0),
        }
    }

    fn offered(
        &self,
        stage: &StageConfig,
        recording: Option<&Recording>,
        checks: &mut Checks,
    ) -> Option<Offered> {
        if let (Some(recording), true) = (recording, self.types.is_empty()) {
            return self.replayed(recording, checks);
        }
        if self.types.is_empty() {
            let right = "such as [{name: default, serviceTime: {distribution: Exponential, mean: 20ms}}], \
                         or recorded: {accessLog: FILE}";
            checks.add(&below(&[], "types"), "none".to_owned(), right);
        }
        let process = self.process(checks);
        let types = types(&self.types, stage, recording, checks);
        let loads = self.loads(checks);
        let phases = self.phases(checks);
        let workload = Workload::new(types?);
        let workload = workload.map_err(|error| {
            let error = error.to_string();
            let (found, right) = error.split_once("; ").unwrap_or((&error, "other types"));
            checks.add(&below(&[], "types"), found.to_owned(), right);
        });
        let workload = workload.ok()?.by(process?);
        Some(match phases? {
            phases if phases.is_empty() => Offered::Loads {
                workload,
                loads: loads?,
            },
            phases => Offered::Phases { workload, phases },
        })
    }

    /// A recording as it was, faster or slower.
    fn replayed(&self, recording: &Recording, checks: &mut Checks) -> Option<Offered> {
        let mut refuse = |field: &'static str, given: bool, right: &str| {
            if given {
                checks.add(&below(&[], field), "given".to_owned(), right);
            }
        };
        let right = "a recording brings its own; give load to replay it faster";
        refuse(
            "arrivals",
            self.arrivals != super::Arrivals::default(),
            right,
        );
        refuse("rate", !self.rate.values.is_empty(), right);
        refuse("phases", !self.phases.is_empty(), right);
        refuse(
            "requests",
            self.requests.is_some(),
            "a recording is replayed to its end",
        );
        let speeds = match self.load.values.is_empty() {
            true => vec![1.0],
            false => self.numbers("load", &self.load, HIGHEST_LOAD, checks)?,
        };
        Some(Offered::Recorded {
            recording: recording.clone(),
            speeds,
        })
    }

    fn process(&self, checks: &mut Checks) -> Option<Process> {
        let at = below(&below(&[], "arrivals"), "bursty");
        match (self.arrivals.process, &self.arrivals.bursty) {
            (ProcessName::Poisson, None) => Some(Process::Poisson),
            (ProcessName::Constant, None) => Some(Process::Constant),
            (ProcessName::Bursty, settings) => {
                let settings = settings.clone().unwrap_or_default();
                let ratio = settings.ratio.unwrap_or(5.0);
                let share = settings.share.unwrap_or(0.1);
                let length = settings.length.unwrap_or(Time("1s".to_owned()));
                let length = checks.time(&below(&at, "length"), &length, 1.0, HOUR_MS);
                if !(ratio > 1.0 && ratio <= 1e6) {
                    let right = "above 1: how many times as many requests arrive in a burst";
                    checks.add(&below(&at, "ratio"), ratio.to_string(), right);
                    return None;
                }
                if !(share > 0.0 && share < 1.0) {
                    let right = "above 0, below 1: the part of the time that is burst";
                    checks.add(&below(&at, "share"), share.to_string(), right);
                    return None;
                }
                Some(Process::Bursty(Bursts {
                    ratio,
                    share,
                    length: Duration::from_secs_f64(length? / 1e3),
                }))
            }
            (process, Some(_)) => {
                let right = format!("settings of Bursty, and process is {process:?}");
                checks.add(&at, "given".to_owned(), right);
                None
            }
        }
    }

    fn loads(&self, checks: &mut Checks) -> Option<Vec<Rate>> {
        let (load, rate) = (&self.load, &self.rate);
        let both = !load.values.is_empty() && !rate.values.is_empty();
        if both || (!self.phases.is_empty() && !rate.values.is_empty()) {
            let other = if both { "load" } else { "phases" };
            let right = format!("{other} says how much arrives; keep one of them");
            checks.add(&below(&[], "rate"), "given".to_owned(), right);
            return None;
        }
        if !self.phases.is_empty() && !load.values.is_empty() {
            let right = "phases says how much arrives; keep one of them";
            checks.add(&below(&[], "load"), "given".to_owned(), right);
            return None;
        }
        if !rate.values.is_empty() {
            let rates = self.numbers("rate", rate, HIGHEST_RATE, checks)?;
            return Some(rates.into_iter().map(Rate::PerSecond).collect());
        }
        let loads = match load.values.is_empty() {
            true => LOADS.to_vec(),
            false => self.numbers("load", load, HIGHEST_LOAD, checks)?,
        };
        Some(loads.into_iter().map(Rate::Factor).collect())
    }

    fn numbers(
        &self,
        field: &'static str,
        numbers: &Numbers,
        max: f64,
        checks: &mut Checks,
    ) -> Option<Vec<f64>> {
        let at = below(&[], field);
        let count = numbers.values.len();
        if count > MOST_LOADS {
            checks.add(
                &at,
                format!("{count} numbers"),
                format!("at most {MOST_LOADS}"),
            );
            return None;
        }
        let mut all = Some(Vec::new());
        for (i, n) in numbers.values.iter().enumerate() {
            let here = if numbers.is_list {
                item(&at, i)
            } else {
                at.clone()
            };
            match (checks.within(&here, *n, max), &mut all) {
                (Some(n), Some(all)) => all.push(n),
                _ => all = None,
            }
        }
        all
    }

    fn phases(&self, checks: &mut Checks) -> Option<Vec<Phase>> {
        let mut all = Some(Vec::new());
        for (i, entry) in self.phases.iter().enumerate() {
            let at = item(&below(&[], "phases"), i);
            match (phase(entry, &at, checks), &mut all) {
                (Some(phase), Some(all)) => all.push(phase),
                _ => all = None,
            }
        }
        all
    }
}

fn phase(entry: &PhaseEntry, at: &[Step], checks: &mut Checks) -> Option<Phase> {
    let duration = checks.time(&below(at, "duration"), &entry.duration, 1.0, 24.0 * HOUR_MS);
    let rate = match (entry.load, entry.rate) {
        (Some(load), None) => checks
            .within(&below(at, "load"), load, HIGHEST_LOAD)
            .map(Rate::Factor),
        (None, Some(rate)) => checks
            .within(&below(at, "rate"), rate, HIGHEST_RATE)
            .map(Rate::PerSecond),
        (None, None) => {
            checks.missing(at, "load", "multiples of full load, such as 1.5");
            None
        }
        (Some(_), Some(_)) => {
            let right = "load says how much arrives; keep one of them";
            checks.add(&below(at, "rate"), "given".to_owned(), right);
            None
        }
    };
    Some(Phase {
        duration: Duration::from_secs_f64(duration? / 1e3),
        rate: rate?,
    })
}

fn types(
    entries: &[TypeEntry],
    stage: &StageConfig,
    recording: Option<&Recording>,
    checks: &mut Checks,
) -> Option<Vec<TypeLoad>> {
    let at = below(&[], "types");
    if entries.len() > MAX_TYPES {
        checks.add(
            &at,
            format!("{} types", entries.len()),
            format!("at most {MAX_TYPES}"),
        );
        return None;
    }
    let classifier = match Classifier::new(stage) {
        Ok(classifier) => classifier,
        Err(error) => {
            checks.add(&[], "the policy's rules".to_owned(), error.to_string());
            return None;
        }
    };
    let mut all = Some(Vec::new());
    for (i, entry) in entries.iter().enumerate() {
        let here = item(&at, i);
        if let Some(first) = entries[..i].iter().position(|e| e.name == entry.name) {
            let right = format!("names are unique, and types[{first}] has this one");
            checks.add(&below(&here, "name"), format!("{:?}", entry.name), right);
        }
        match (
            kind(entry, &here, stage, &classifier, recording, checks),
            &mut all,
        ) {
            (Some(kind), Some(all)) => all.push(kind),
            _ => all = None,
        }
    }
    all
}

fn kind(
    entry: &TypeEntry,
    at: &[Step],
    stage: &StageConfig,
    classifier: &Classifier,
    recording: Option<&Recording>,
    checks: &mut Checks,
) -> Option<TypeLoad> {
    if entry.name.is_empty() {
        checks.add(
            &below(at, "name"),
            "\"\"".to_owned(),
            "a name for the results",
        );
    }
    let place = match &entry.request {
        None => named(entry, at, stage, checks),
        Some(request) => {
            let place = place(classifier, &SampleRequest::from(request));
            if place.is_none() {
                let right = "the policy excludes such requests; leave the type out";
                checks.add(
                    &below(at, "request"),
                    "bypasses admission".to_owned(),
                    right,
                );
            }
            place
        }
    };
    let share = checks.not_negative(at, "share", entry.share.unwrap_or(1.0));
    let timeout = entry.timeout.as_ref().map(|timeout| {
        let ms = checks.time(&below(at, "timeout"), timeout, 1.0, HOUR_MS)?;
        Some(Duration::from_secs_f64(ms / 1e3))
    });
    let cost = match entry.cost.map(u32::try_from) {
        None => Some(None),
        Some(Ok(cost)) if cost > 0 => Some(Some(cost)),
        Some(_) => {
            let found = entry.cost.unwrap_or_default().to_string();
            checks.add(&below(at, "cost"), found, format!("1 to {}", u32::MAX));
            None
        }
    };
    let times = below(at, "serviceTime");
    let service_time = match entry.service_time.check(&times, checks) {
        None if entry.service_time.distribution == DistributionName::Recorded => {
            recorded(recording, place.as_ref(), &times, checks)
        }
        other => other,
    };
    let place = place?;
    Some(TypeLoad {
        class: place.class,
        cost: cost?.unwrap_or(place.cost),
        timeout: match timeout {
            Some(timeout) => Some(timeout?),
            None => place.deadline,
        },
        ..TypeLoad::new(entry.name.clone(), place.kind, share?, service_time?)
    })
}

/// A type that only names one of the policy's.
fn named(
    entry: &TypeEntry,
    at: &[Step],
    stage: &StageConfig,
    checks: &mut Checks,
) -> Option<Place> {
    let found = stage.types.iter().position(|kind| kind.name == entry.name);
    let Some(found) = found.and_then(|at| u16::try_from(at).ok()) else {
        checks.0.push(Problem {
            at: below(at, "name"),
            found: entry.name.clone(),
            right: Right::TypeOfPolicy(stage.types.iter().map(|kind| kind.name.clone()).collect()),
        });
        return None;
    };
    Some(Place::of(headgate_core::strategy::TypeId(found), stage))
}

/// What recorded requests of the same type of the policy took.
fn recorded(
    recording: Option<&Recording>,
    place: Option<&Place>,
    at: &[Step],
    checks: &mut Checks,
) -> Option<ServiceTime> {
    let distribution = below(at, "distribution");
    let Some(recording) = recording else {
        let right = "needs a recording; give recorded: {accessLog: FILE}";
        checks.add(&distribution, "\"Recorded\"".to_owned(), right);
        return None;
    };
    let times = recording.service_times_ms(place?.kind);
    if times.is_empty() {
        let right = "no recorded request is of this type; give another distribution";
        checks.add(&distribution, "\"Recorded\"".to_owned(), right);
        return None;
    }
    checks.made(at, Empirical::of_values(&times).map(ServiceTime::Empirical))
}
