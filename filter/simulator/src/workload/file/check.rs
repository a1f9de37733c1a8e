//! Checks of a workload beyond its shape, and its plan under a policy.

use std::time::Duration;

use headgate_core::config::{MAX_PARALLELISM, MAX_SMOOTHING_US, StageConfig};
use headgate_mesh::smoothing::Smoothing;

use super::problem::{At, HOUR_MS, MOST_CLIENTS, Problem, checked};
use super::types::types;
use super::{
    Arrivals, ClientsEntry, Numbers, PhaseEntry, ProcessName, SmoothingEntry, Time, WorkloadFile,
};
use crate::trial::{Clients, Offered, Phase, Plan};
use crate::workload::recorded::{LONGEST_HOURS, Recording};
use crate::workload::{Bursts, Process, Rate, Workload};

/// The default loads, multiples of full load.
const LOADS: [f64; 5] = [0.8, 1.0, 1.2, 1.5, 2.0];
const HIGHEST_LOAD: f64 = 100.0;
const HIGHEST_RATE: f64 = 10_000_000.0;
const MOST_LOADS: usize = 100;
const MOST_REQUESTS: i64 = 1_000_000_000;
const MOST_SEEDS: i64 = 1_000;

impl WorkloadFile {
    /// Returns the plan of the file under `stage`. `recording` is the content of the file's
    /// `recorded.accessLog`.
    ///
    /// # Errors
    /// All problems found in the file.
    pub fn plan(
        &self,
        stage: &StageConfig,
        recording: Option<&Recording>,
    ) -> Result<Plan, Vec<Problem>> {
        checked(|at| {
            let offered = self.offered(stage, recording, at);
            let most_slots = i64::from(MAX_PARALLELISM);
            let warm_up = self.warm_up.as_ref();
            let warm_up = warm_up.and_then(|time| at.field("warmUp").time(time, 0.0, HOUR_MS));
            let seed = at.field("seed").seed(self.seed);
            let slots = at.field("parallelism").whole(self.parallelism, most_slots);
            let requests = at.field("requests").whole(self.requests, MOST_REQUESTS);
            let seeds = at.field("seeds").whole(self.seeds, MOST_SEEDS);
            Some(Plan {
                offered: offered?,
                parallelism: slots,
                requests,
                seeds,
                seed,
                warm_up: warm_up.map(|ms| Duration::from_secs_f64(ms / 1e3)),
            })
        })
    }

    fn offered(
        &self,
        stage: &StageConfig,
        recording: Option<&Recording>,
        at: &At<'_>,
    ) -> Option<Offered> {
        if let (Some(recording), true) = (recording, self.types.is_empty()) {
            return self.replayed(recording, at);
        }
        let at_types = at.field("types");
        if self.types.is_empty() {
            let right = "such as [{name: default, serviceTime: {distribution: Exponential, \
                         mean: 20ms}}], or recorded: {accessLog: FILE}";
            return at_types.refuse("none", right);
        }
        let process = self.process(&at.field("arrivals").field("bursty"));
        let types = types(&self.types, stage, recording, at);
        let clients = self.clients.as_ref();
        let clients = clients.map(|entry| self.clients(entry, at));
        let loads = self.loads(at);
        let phases = at.field("phases").each(&self.phases, phase);
        let workload = at_types.made(Workload::new(types?))?.by(process?);
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

    /// Returns the settings that determine the arriving requests, and whether they are set.
    fn arriving(&self) -> [(&'static str, bool); 4] {
        [
            ("arrivals", self.arrivals != Arrivals::default()),
            ("load", !self.load.values.is_empty()),
            ("rate", !self.rate.values.is_empty()),
            ("phases", !self.phases.is_empty()),
        ]
    }

    /// Returns a recording at its own speed, or at the speeds in the file.
    fn replayed(&self, recording: &Recording, at: &At<'_>) -> Option<Offered> {
        let others = self
            .arriving()
            .into_iter()
            .filter(|(field, _)| *field != "load");
        for (field, given) in others.chain([("clients", self.clients.is_some())]) {
            if given {
                let right = "a recording has its own; leave it out, or use load to replay at \
                             another speed";
                at.field(field).note("given", right);
            }
        }
        if self.requests.is_some() {
            at.field("requests")
                .note("given", "a recording is replayed to its end; leave it out");
        }
        let speeds = match self.load.values.is_empty() {
            true => vec![1.0],
            false => numbers(&self.load, HIGHEST_LOAD, &at.field("load"))?,
        };
        let least = recording.least_speed();
        if let Some(slow) = speeds.iter().find(|speed| **speed < least) {
            let right = format!("at least {least:?}; a replay takes {LONGEST_HOURS} hours at most");
            return at.field("load").refuse(format!("{slow:?}"), right);
        }
        Some(Offered::Recorded {
            recording: recording.clone(),
            speeds,
        })
    }

    /// Returns the clients, which determine their own rate.
    fn clients(&self, entry: &ClientsEntry, at: &At<'_>) -> Option<Clients> {
        for (field, given) in self.arriving() {
            if given {
                let right = "clients determine the rate; keep one of the two";
                at.field(field).note("given", right);
            }
        }
        let at = at.field("clients");
        let count = at.field("count").whole(Some(entry.count), MOST_CLIENTS);
        let think = entry.think.clone().unwrap_or(Time("1ms".to_owned()));
        // Without think time, a refused client would send requests in an infinite loop at one
        // instant.
        let think = at.field("think").time(&think, 1.0, HOUR_MS);
        let smoothing = entry.smoothing.as_ref();
        let smoothing = smoothing.map(|entry| smoothed(entry, &at.field("smoothing")));
        Some(Clients {
            count: count?,
            think: Duration::from_secs_f64(think? / 1e3),
            smoothing: match smoothing {
                Some(smoothing) => Some(smoothing?),
                None => None,
            },
        })
    }

    /// Returns the arrival process. `at` is the path of the settings of `Bursty`.
    fn process(&self, at: &At<'_>) -> Option<Process> {
        match (self.arrivals.process, &self.arrivals.bursty) {
            (ProcessName::Poisson, None) => Some(Process::Poisson),
            (ProcessName::Constant, None) => Some(Process::Constant),
            (ProcessName::Bursty, settings) => {
                let settings = settings.clone().unwrap_or_default();
                let ratio = settings.ratio.unwrap_or(5.0);
                let share = settings.share.unwrap_or(0.1);
                let length = settings.length.unwrap_or(Time("1s".to_owned()));
                let length = at.field("length").time(&length, 1.0, HOUR_MS);
                let right = "above 1: the arrival rate in bursts relative to that between bursts";
                let is_right = ratio > 1.0 && ratio <= 1e6;
                let ratio = at.field("ratio").number(ratio, is_right, right);
                let right = "above 0, below 1: the share of the time in bursts";
                let is_right = share > 0.0 && share < 1.0;
                let share = at.field("share").number(share, is_right, right);
                Some(Process::Bursty(Bursts {
                    ratio: ratio?,
                    share: share?,
                    length: Duration::from_secs_f64(length? / 1e3),
                }))
            }
            (process, Some(_)) => {
                let found = format!("given with process {process:?}");
                at.refuse(found, "leave it out or use process Bursty")
            }
        }
    }

    fn loads(&self, at: &At<'_>) -> Option<Vec<Rate>> {
        let [_, (_, load), (_, rate), (_, phases)] = self.arriving();
        let twice = match (load, rate, phases) {
            (true, true, _) => Some(("rate", "load")),
            (_, true, true) => Some(("rate", "phases")),
            (true, _, true) => Some(("load", "phases")),
            _ => None,
        };
        if let Some((field, other)) = twice {
            let right = format!("{other} determines the rate; keep one of the two");
            return at.field(field).refuse("given", right);
        }
        if rate {
            let rates = numbers(&self.rate, HIGHEST_RATE, &at.field("rate"))?;
            return Some(rates.into_iter().map(Rate::PerSecond).collect());
        }
        let loads = match load {
            true => numbers(&self.load, HIGHEST_LOAD, &at.field("load"))?,
            false => LOADS.to_vec(),
        };
        Some(loads.into_iter().map(Rate::Factor).collect())
    }
}

fn numbers(numbers: &Numbers, max: f64, at: &At<'_>) -> Option<Vec<f64>> {
    let count = numbers.values.len();
    if count > MOST_LOADS {
        return at.refuse(format!("{count} numbers"), format!("at most {MOST_LOADS}"));
    }
    at.each(&numbers.values, |item, n| match numbers.is_list {
        true => item.within(*n, max),
        false => at.within(*n, max),
    })
}

fn smoothed(entry: &SmoothingEntry, at: &At<'_>) -> Option<Smoothing> {
    let longest = MAX_SMOOTHING_US as f64 / 1e3;
    let at_least = at.field("least");
    let least = at_least.time(&entry.least, 0.0, longest);
    let most = at.field("most").time(&entry.most, 1.0, longest);
    let (least, most) = (least?, most?);
    if least > most {
        let right = format!("0 to most ({})", entry.most.0);
        return at_least.refuse(&entry.least.0, right);
    }
    Some(Smoothing {
        least: Duration::from_secs_f64(least / 1e3),
        most: Duration::from_secs_f64(most / 1e3),
    })
}

fn phase(at: &At<'_>, entry: &PhaseEntry) -> Option<Phase> {
    let duration = at
        .field("duration")
        .time(&entry.duration, 1.0, 24.0 * HOUR_MS);
    let (at_load, at_rate) = (at.field("load"), at.field("rate"));
    let rate = match (entry.load, entry.rate) {
        (Some(load), None) => at_load.within(load, HIGHEST_LOAD).map(Rate::Factor),
        (None, Some(rate)) => at_rate.within(rate, HIGHEST_RATE).map(Rate::PerSecond),
        (None, None) => at_load.refuse("missing", "multiples of full load, such as 1.5"),
        (Some(_), Some(_)) => {
            at_rate.refuse("given", "load determines the rate; keep one of the two")
        }
    };
    Some(Phase {
        duration: Duration::from_secs_f64(duration? / 1e3),
        rate: rate?,
    })
}
