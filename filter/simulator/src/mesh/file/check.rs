//! Checks of a mesh file beyond its shape.

use std::time::Duration;

use headgate_core::config::MAX_PARALLELISM;

use super::calls::Tasks;
use super::{
    ClientsEntry, MeshFile, NetworkEntry, OperationEntry, Plan, ServiceEntry, WorkflowEntry,
};
use crate::mesh::{Arrivals, Graph, Load, Network, Service, Workflow};
use crate::workload::ServiceTime;
use crate::workload::file::problem::{At, HOUR_MS, MOST_CLIENTS, checked};
use crate::workload::file::{Problem, ProcessName, Time};
use crate::workload::request::SampleRequest;

const MOST_SERVICES: usize = 100;
const MOST_PROCESSES: i64 = 100;
const MOST_WORKFLOWS: usize = 100;
const HIGHEST_RATE: f64 = 1_000_000.0;
const MOST_SEEDS: i64 = 1_000;
/// The default length of a run, ms.
const DURATION_MS: f64 = 60_000.0;
/// The default timeout of a call between processes.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The length of the longest name, bytes.
const MOST_NAME: usize = 256;

impl MeshFile {
    /// Returns the plan that the file describes.
    ///
    /// # Errors
    /// All problems found in the file.
    pub fn plan(&self) -> Result<Plan, Vec<Problem>> {
        checked(|at| {
            let duration = optional(&at.field("duration"), self.duration.as_ref(), 1.0);
            let duration = duration.unwrap_or(DURATION_MS);
            let at_warm_up = at.field("warmUp");
            let warm_up = optional(&at_warm_up, self.warm_up.as_ref(), 0.0);
            let warm_up = warm_up.unwrap_or(duration / 4.0);
            if warm_up >= duration {
                let right = format!("less than the duration of {} s", duration / 1e3);
                at_warm_up.note(format!("{} s", warm_up / 1e3), right);
            }
            let seeds = at.field("seeds").whole(self.seeds, MOST_SEEDS);
            let seed = at.field("seed").seed(self.seed);
            let services = services(&self.services, &at.field("services"));
            let tasks = Tasks::of(&self.services, &at.field("services"));
            let (workflows, loads) =
                workflows(&self.workflows, &tasks, duration, &at.field("workflows"));
            let operations = self.services.iter().flat_map(|s| &s.operations);
            Some(Plan {
                graph: Graph {
                    services,
                    tasks: tasks.tasks,
                    workflows,
                    network: network(&self.network, &at.field("network")),
                },
                loads,
                requests: operations.map(OperationEntry::sample).collect(),
                duration: duration / 1e3,
                warm_up: warm_up / 1e3,
                seeds,
                seed,
            })
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

/// Returns a time of at least `min` ms; `None` if the field is missing or invalid. An invalid time
/// is recorded as a problem.
fn optional(at: &At<'_>, time: Option<&Time>, min: f64) -> Option<f64> {
    at.time(time?, min, HOUR_MS)
}

fn duration(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

/// Records names that are too long, missing or duplicate as problems.
fn names<'a>(at: &At<'_>, names: impl Iterator<Item = &'a str>) {
    let mut known: Vec<&str> = Vec::new();
    for (i, name) in names.enumerate() {
        let at = at.item(i).field("name");
        if name.is_empty() || name.len() > MOST_NAME {
            at.note(
                format!("{} bytes", name.len()),
                format!("1 to {MOST_NAME} bytes"),
            );
        } else if known.contains(&name) {
            at.note(format!("{name:?} appears twice"), "names are unique");
        }
        known.push(name);
    }
}

fn services(entries: &[ServiceEntry], at: &At<'_>) -> Vec<Service> {
    if !(1..=MOST_SERVICES).contains(&entries.len()) {
        let right = format!(
            "1 to {MOST_SERVICES}, such as [{{name: front, parallelism: 10, operations: …}}]"
        );
        at.note(format!("{} services", entries.len()), right);
    }
    names(at, entries.iter().map(|s| s.name.as_str()));
    let service = |(i, entry): (usize, &ServiceEntry)| {
        let at = at.item(i);
        let whole = |field, n: Option<i64>, max| at.field(field).whole(n, max);
        let processes = whole("processes", entry.processes, MOST_PROCESSES);
        let most = i64::from(MAX_PARALLELISM);
        let slots = whole("parallelism", Some(entry.parallelism), most);
        Service {
            name: entry.name.clone(),
            processes: processes.map_or(1, |n: u32| n as usize),
            slots: slots.unwrap_or(1),
            threads: whole("threads", entry.threads, most),
        }
    };
    entries.iter().enumerate().map(service).collect()
}

fn workflows(
    entries: &[WorkflowEntry],
    tasks: &Tasks<'_>,
    run_ms: f64,
    at: &At<'_>,
) -> (Vec<Workflow>, Vec<Load>) {
    if !(1..=MOST_WORKFLOWS).contains(&entries.len()) {
        let right = format!(
            "1 to {MOST_WORKFLOWS}, such as [{{name: checkout, service: front, clients: \
             [{{rate: 100}}]}}]"
        );
        at.note(format!("{} workflows", entries.len()), right);
    }
    names(at, entries.iter().map(|w| w.name.as_str()));
    let (mut workflows, mut loads) = (Vec::new(), Vec::new());
    for (i, entry) in entries.iter().enumerate() {
        let at = at.item(i);
        let task = tasks.find(&at, &entry.service, &entry.operation);
        let timeout = optional(&at.field("timeout"), entry.timeout.as_ref(), 1.0);
        let deadline = optional(&at.field("deadline"), entry.deadline.as_ref(), 1.0);
        workflows.push(Workflow {
            timeout: timeout.map(duration),
            deadline: deadline.map(duration),
            ..Workflow::new(&entry.name, task.unwrap_or(0))
        });
        let at = at.field("clients");
        if entry.clients.is_empty() {
            at.note("none", "such as [{rate: 100}] or [{count: 20, think: 1s}]");
        }
        let clients = entry.clients.iter().enumerate();
        loads.extend(clients.filter_map(|(c, entry)| load(i, &at.item(c), entry, run_ms)));
    }
    (workflows, loads)
}

fn load(workflow: usize, at: &At<'_>, entry: &ClientsEntry, run_ms: f64) -> Option<Load> {
    let at_think = at.field("think");
    let arrivals = match (entry.rate, entry.count) {
        (Some(rate), None) => {
            if entry.think.is_some() {
                let right = "leave it out, or use count: clients with a rate don't wait for \
                             responses";
                at_think.note("given with rate", right);
            }
            let rate = at.field("rate").within(rate, HIGHEST_RATE);
            match entry.process {
                ProcessName::Poisson => rate.map(Arrivals::Poisson),
                ProcessName::Constant => rate.map(Arrivals::Even),
                ProcessName::Bursty => {
                    let right = "Poisson or Constant; for a burst, add clients with from and until";
                    at.field("process").refuse("Bursty", right)
                }
            }
        }
        (None, count @ Some(_)) => {
            let count = at.field("count").whole(count, MOST_CLIENTS);
            let think = optional(&at_think, entry.think.as_ref(), 1.0);
            // Without think time, a refused client would send requests in an infinite loop at one
            // instant.
            let think = ServiceTime::Constant(think.unwrap_or(1.0));
            count.map(|count| Arrivals::Closed(count, think))
        }
        (rate, _) => {
            let found = match rate {
                Some(_) => "rate and count",
                None => "neither rate nor count",
            };
            let right = "rate for an open loop, such as 100, or count for a closed loop, such as \
                         20";
            at.refuse(found, right)
        }
    };
    let at_until = at.field("until");
    let from = optional(&at.field("from"), entry.from.as_ref(), 0.0).unwrap_or(0.0);
    let until = optional(&at_until, entry.until.as_ref(), 0.0).unwrap_or(run_ms);
    if from >= until {
        let right = format!("after from ({} s)", from / 1e3);
        at_until.note(format!("{} s", until / 1e3), right);
    }
    Some(Load::new(workflow, arrivals?).between(from / 1e3, until / 1e3))
}

fn network(entry: &NetworkEntry, at: &At<'_>) -> Network {
    let delay = optional(&at.field("delay"), entry.delay.as_ref(), 0.0);
    let timeout = optional(&at.field("timeout"), entry.timeout.as_ref(), 1.0);
    let lost = entry.lost.unwrap_or(0.0);
    let right = "0 or more, below 1: the share of the responses that are lost";
    let lost = at
        .field("lost")
        .number(lost, (0.0..1.0).contains(&lost), right);
    Network {
        delay: delay.map_or(Network::default().delay, duration),
        lost: lost.unwrap_or(0.0),
        timeout: Some(timeout.map_or(CALL_TIMEOUT, duration)),
    }
}
