//! Checks of a mesh file beyond its shape.

use std::time::Duration;

use headgate_core::config::MAX_PARALLELISM;

use super::calls::Tasks;
use super::{
    ClientsEntry, MeshFile, NetworkEntry, OperationEntry, Plan, ServiceEntry, WorkflowEntry,
};
use crate::mesh::{Arrivals, Graph, Load, Network, Service, Workflow};
use crate::workload::ServiceTime;
use crate::workload::file::problem::{Checks, HOUR_MS, MOST_CLIENTS, Step, below, item};
use crate::workload::file::{Problem, ProcessName, Time};
use crate::workload::request::SampleRequest;

const MOST_SERVICES: usize = 100;
const MOST_PROCESSES: i64 = 100;
const MOST_WORKFLOWS: usize = 100;
const HIGHEST_RATE: f64 = 1_000_000.0;
const MOST_SEEDS: i64 = 1_000;
/// Default length of a run, ms.
const DURATION_MS: f64 = 60_000.0;
/// Default time after which a process gives up a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest name, bytes.
const MOST_NAME: usize = 256;

impl MeshFile {
    /// Returns the plan that the file describes.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn plan(&self) -> Result<Plan, Vec<Problem>> {
        let mut checks = Checks::default();
        let duration = optional(&mut checks, &[], "duration", self.duration.as_ref(), 1.0);
        let duration = duration.unwrap_or(DURATION_MS);
        let warm_up = optional(&mut checks, &[], "warmUp", self.warm_up.as_ref(), 0.0);
        let warm_up = warm_up.unwrap_or(duration / 4.0);
        if warm_up >= duration {
            let right = format!("less than the duration of {} s", duration / 1e3);
            let found = format!("{} s", warm_up / 1e3);
            checks.add(&below(&[], "warmUp"), found, right);
        }
        let seeds = checks.whole("seeds", self.seeds, MOST_SEEDS);
        if let Some(seed) = self.seed.filter(|seed| *seed < 0) {
            let right = "a whole number of at least 0";
            checks.add(&below(&[], "seed"), seed.to_string(), right);
        }
        let services = services(&self.services, &mut checks);
        let tasks = Tasks::of(&self.services, &mut checks);
        let (workflows, loads) = workflows(&self.workflows, &tasks, duration, &mut checks);
        let network = network(&self.network, &mut checks);
        if !checks.0.is_empty() {
            return Err(checks.0);
        }
        Ok(Plan {
            graph: Graph {
                services,
                tasks: tasks.tasks,
                workflows,
                network,
            },
            loads,
            requests: self
                .services
                .iter()
                .flat_map(|s| &s.operations)
                .map(OperationEntry::sample)
                .collect(),
            duration: duration / 1e3,
            warm_up: warm_up / 1e3,
            seeds: seeds.and_then(|n| u32::try_from(n).ok()),
            seed: self.seed.and_then(|n| u64::try_from(n).ok()),
        })
    }
}

impl OperationEntry {
    fn sample(&self) -> SampleRequest {
        let mut request = self.request.clone().unwrap_or_default();
        request
            .path
            .get_or_insert_with(|| format!("/{}", self.name));
        SampleRequest::from(&request)
    }
}

/// Returns a time of at least `min` ms. It is `None` if the field is missing or invalid; an invalid
/// one is noted.
fn optional(
    checks: &mut Checks,
    at: &[Step],
    field: &'static str,
    time: Option<&Time>,
    min: f64,
) -> Option<f64> {
    checks.time(&below(at, field), time?, min, HOUR_MS)
}

fn duration(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

/// Notes names that are too long, missing or duplicate.
fn names<'a>(at: &[Step], names: impl Iterator<Item = &'a str>, checks: &mut Checks) {
    let mut known: Vec<&str> = Vec::new();
    for (i, name) in names.enumerate() {
        let here = below(&item(at, i), "name");
        if name.is_empty() || name.len() > MOST_NAME {
            let right = format!("1 to {MOST_NAME} bytes");
            checks.add(&here, format!("{} bytes", name.len()), right);
        } else if known.contains(&name) {
            checks.add(&here, format!("{name:?} a second time"), "another name");
        }
        known.push(name);
    }
}

fn services(entries: &[ServiceEntry], checks: &mut Checks) -> Vec<Service> {
    let at = below(&[], "services");
    if !(1..=MOST_SERVICES).contains(&entries.len()) {
        let right = format!(
            "1 to {MOST_SERVICES}, such as [{{name: front, parallelism: 10, operations: …}}]"
        );
        checks.add(&at, format!("{} services", entries.len()), right);
    }
    names(&at, entries.iter().map(|s| s.name.as_str()), checks);
    let service = |(i, entry): (usize, &ServiceEntry)| {
        let at = item(&at, i);
        let mut whole = |field, n: Option<i64>, max| {
            let n = checks.whole_at(&below(&at, field), n, max);
            n.and_then(|n| u32::try_from(n).ok())
        };
        let processes = whole("processes", entry.processes, MOST_PROCESSES);
        let most = i64::from(MAX_PARALLELISM);
        let slots = whole("parallelism", Some(entry.parallelism), most);
        let threads = whole("threads", entry.threads, most);
        Service {
            name: entry.name.clone(),
            processes: processes.unwrap_or(1) as usize,
            slots: slots.unwrap_or(1),
            threads,
        }
    };
    entries.iter().enumerate().map(service).collect()
}

fn workflows(
    entries: &[WorkflowEntry],
    tasks: &Tasks,
    run_ms: f64,
    checks: &mut Checks,
) -> (Vec<Workflow>, Vec<Load>) {
    let at = below(&[], "workflows");
    if !(1..=MOST_WORKFLOWS).contains(&entries.len()) {
        let right = format!(
            "1 to {MOST_WORKFLOWS}, such as [{{name: checkout, service: front, clients: \
             [{{rate: 100}}]}}]"
        );
        checks.add(&at, format!("{} workflows", entries.len()), right);
    }
    names(&at, entries.iter().map(|w| w.name.as_str()), checks);
    let (mut workflows, mut loads) = (Vec::new(), Vec::new());
    for (i, entry) in entries.iter().enumerate() {
        let at = item(&at, i);
        let task = tasks.find(&at, &entry.service, &entry.operation, checks);
        let timeout = optional(checks, &at, "timeout", entry.timeout.as_ref(), 1.0);
        let deadline = optional(checks, &at, "deadline", entry.deadline.as_ref(), 1.0);
        workflows.push(Workflow {
            timeout: timeout.map(duration),
            deadline: deadline.map(duration),
            ..Workflow::new(&entry.name, task.unwrap_or(0))
        });
        let at = below(&at, "clients");
        if entry.clients.is_empty() {
            checks.add(
                &at,
                "none".to_owned(),
                "such as [{rate: 100}] or [{count: 20, think: 1s}]",
            );
        }
        for (at, clients) in (entry.clients.iter().enumerate()).map(|(c, e)| (item(&at, c), e)) {
            loads.extend(load(i, &at, clients, run_ms, checks));
        }
    }
    (workflows, loads)
}

fn load(
    workflow: usize,
    at: &[Step],
    entry: &ClientsEntry,
    run_ms: f64,
    checks: &mut Checks,
) -> Option<Load> {
    let arrivals = match (entry.rate, entry.count) {
        (Some(rate), None) => {
            if entry.think.is_some() {
                let right = "clients with a rate don't wait for answers; a count of clients does";
                checks.add(&below(at, "think"), "given with rate".to_owned(), right);
            }
            let rate = checks.within(&below(at, "rate"), rate, HIGHEST_RATE);
            match entry.process {
                ProcessName::Poisson => rate.map(Arrivals::Poisson),
                ProcessName::Constant => rate.map(Arrivals::Even),
                ProcessName::Bursty => {
                    let right = "Poisson or Constant; a burst is clients with from and until";
                    checks.add(&below(at, "process"), "Bursty".to_owned(), right);
                    None
                }
            }
        }
        (None, count @ Some(_)) => {
            let count = checks.whole_at(&below(at, "count"), count, MOST_CLIENTS);
            let think = optional(checks, at, "think", entry.think.as_ref(), 1.0);
            // A refused client that asked again at once would loop without end in no time.
            let think = ServiceTime::Constant(think.unwrap_or(1.0));
            let count = count.and_then(|n| u32::try_from(n).ok());
            count.map(|count| Arrivals::Closed(count, think))
        }
        (rate, _) => {
            let found = if rate.is_some() {
                "rate and count"
            } else {
                "neither rate nor count"
            };
            let right = "rate for an open loop, such as 100, or count for so many clients that \
                         wait for answers";
            checks.add(at, found.to_owned(), right);
            None
        }
    };
    let from = optional(checks, at, "from", entry.from.as_ref(), 0.0).unwrap_or(0.0);
    let until = optional(checks, at, "until", entry.until.as_ref(), 0.0).unwrap_or(run_ms);
    if from >= until {
        let found = format!("{} s", until / 1e3);
        let right = format!("after their beginning at {} s", from / 1e3);
        checks.add(&below(at, "until"), found, right);
    }
    Some(Load::new(workflow, arrivals?).between(from / 1e3, until / 1e3))
}

fn network(entry: &NetworkEntry, checks: &mut Checks) -> Network {
    let at = below(&[], "network");
    let delay = optional(checks, &at, "delay", entry.delay.as_ref(), 0.0);
    let timeout = optional(checks, &at, "timeout", entry.timeout.as_ref(), 1.0);
    let lost = entry.lost.unwrap_or(0.0);
    if !(0.0..1.0).contains(&lost) {
        let right = "0 or more, below 1: the part of the responses that never arrive";
        checks.add(&below(&at, "lost"), lost.to_string(), right);
    }
    Network {
        delay: delay.map_or(Network::default().delay, duration),
        lost,
        timeout: Some(timeout.map_or(CALL_TIMEOUT, duration)),
    }
}
