//! Checks of a workload beyond its shape, and its plan under a policy.

use std::time::Duration;

use headgate_core::config::{MAX_PARALLELISM, MAX_SMOOTHING_US, StageConfig};
use headgate_mesh::smoothing::Smoothing;

use super::problem::{Checks, HOUR_MS, MOST_CLIENTS, Problem, Step, below, item};
use super::types::types;
use super::{
    Arrivals, ClientsEntry, Numbers, PhaseEntry, ProcessName, SmoothingEntry, Time, WorkloadFile,
};
use crate::trial::{Clients, Offered, Phase, Plan};
use crate::workload::recorded::Recording;
use crate::workload::{Bursts, Process, Rate, Workload};

/// Default loads, × full load.
const LOADS: [f64; 5] = [0.8, 1.0, 1.2, 1.5, 2.0];
const HIGHEST_LOAD: f64 = 100.0;
const HIGHEST_RATE: f64 = 10_000_000.0;
const MOST_LOADS: usize = 100;
const MOST_REQUESTS: i64 = 1_000_000_000;
const MOST_SEEDS: i64 = 1_000;

impl WorkloadFile {
    /// Returns the plan of the file under `stage`; `recording` is the content of its
    /// `recorded.accessLog`.
    ///
    /// # Errors
    /// All problems of the file.
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
            let right = "such as [{name: default, serviceTime: {distribution: Exponential, \
                         mean: 20ms}}], or recorded: {accessLog: FILE}";
            checks.add(&below(&[], "types"), "none".to_owned(), right);
            return None;
        }
        let process = self.process(checks);
        let types = types(&self.types, stage, recording, checks);
        let clients = self.clients.as_ref();
        let clients = clients.map(|entry| self.clients(entry, checks));
        let loads = self.loads(checks);
        let phases = self.phases(checks);
        let workload = Workload::new(types?);
        let workload = workload.map_err(|error| {
            let error = error.to_string();
            let (found, right) = error.split_once("; ").unwrap_or((&error, "other types"));
            checks.add(&below(&[], "types"), found.to_owned(), right);
        });
        let workload = workload.ok()?.by(process?);
        if let Some(clients) = clients {
            let clients = clients?;
            return Some(Offered::Clients { workload, clients });
        }
        Some(match phases? {
            phases if phases.is_empty() => Offered::Loads {
                workload,
                loads: loads?,
            },
            phases => Offered::Phases { workload, phases },
        })
    }

    /// Returns a recording at its own speed, or at the speeds in the file.
    fn replayed(&self, recording: &Recording, checks: &mut Checks) -> Option<Offered> {
        let mut refuse = |field: &'static str, given: bool, right: &str| {
            if given {
                checks.add(&below(&[], field), "given".to_owned(), right);
            }
        };
        let right = "a recording brings its own; give load to replay it faster";
        refuse("arrivals", self.arrivals != Arrivals::default(), right);
        refuse("rate", !self.rate.values.is_empty(), right);
        refuse("phases", !self.phases.is_empty(), right);
        refuse("clients", self.clients.is_some(), right);
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

    /// Returns the clients, which determine their own rate.
    fn clients(&self, entry: &ClientsEntry, checks: &mut Checks) -> Option<Clients> {
        for (field, given) in [
            ("arrivals", self.arrivals != Arrivals::default()),
            ("load", !self.load.values.is_empty()),
            ("rate", !self.rate.values.is_empty()),
            ("phases", !self.phases.is_empty()),
        ] {
            if given {
                let right = "clients send when they were answered; keep one of them";
                checks.add(&below(&[], field), "given".to_owned(), right);
            }
        }
        let at = below(&[], "clients");
        let count = checks.whole_at(&below(&at, "count"), Some(entry.count), MOST_CLIENTS);
        let think = entry.think.clone().unwrap_or(Time("1ms".to_owned()));
        // A refused client that asked again at once would loop without end in no time.
        let think = checks.time(&below(&at, "think"), &think, 1.0, HOUR_MS);
        let at = below(&at, "smoothing");
        let smoothing = entry.smoothing.as_ref();
        let smoothing = smoothing.map(|entry| smoothed(entry, &at, checks));
        Some(Clients {
            count: u32::try_from(count?).ok()?,
            think: Duration::from_secs_f64(think? / 1e3),
            smoothing: match smoothing {
                Some(smoothing) => Some(smoothing?),
                None => None,
            },
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

fn smoothed(entry: &SmoothingEntry, at: &[Step], checks: &mut Checks) -> Option<Smoothing> {
    let longest = MAX_SMOOTHING_US as f64 / 1e3;
    let least = checks.time(&below(at, "least"), &entry.least, 0.0, longest);
    let most = checks.time(&below(at, "most"), &entry.most, 1.0, longest);
    let (least, most) = (least?, most?);
    if least > most {
        let right = format!("at most {}, as most is", entry.most.0);
        checks.add(&below(at, "least"), entry.least.0.clone(), right);
        return None;
    }
    Some(Smoothing {
        least: Duration::from_secs_f64(least / 1e3),
        most: Duration::from_secs_f64(most / 1e3),
    })
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
