//! The experiments of Wisp (§4.1.2 and §6). They measure the effect of rates, fair queues and
//! deadlines on the workflows of services that call each other.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use headgate_core::config::{Discipline, StageConfig, WorkflowsConfig};
use headgate_simulator::mesh::file::{MeshFile, Plan};
use headgate_simulator::mesh::seen::{ProcessSample, quantile};
use headgate_simulator::mesh::{
    Arrivals, Calls, Ended, Ending, Graph, Network, Policy, Route, Run, Seen, Service, Setup, Step,
    Task, Workflow,
};
use headgate_simulator::workload::file::Problem;
use headgate_simulator::{ServiceTime, SimulationError};
use serde::Deserialize;

use super::storage::{LoadEntry, Storage};
use super::{Amount, Span};
use crate::measured::{ALL, Measured, Points, deviation, mean};

/// The parameters of a mesh experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Mesh {
    services: Services,
    /// The control of every process. Calls carry deadlines if the control has workflows.
    #[serde(default)]
    control: Control,
    /// The policies of services in a file, by the name of the service. They replace `control`.
    #[serde(default)]
    policies: BTreeMap<String, StageConfig>,
    /// The factor for the rates of clients in a file.
    #[serde(default = "second")]
    times: f64,
    /// The length of the run, s.
    length: f64,
    /// Whether a smaller size shortens the run.
    #[serde(default = "yes")]
    scales: bool,
    /// The spans of time that the numbers cover, s.
    spans: Vec<Span<f64>>,
    /// A prefix of workflow names. Workflows with this prefix are also measured together, as one
    /// more kind.
    group: Option<String>,
    /// The length of the time spans in curves, s, or `None` for no curves.
    curves: Option<f64>,
    /// The time between two samples of the rates, s.
    #[serde(default = "second")]
    sample: f64,
    /// The latest time by which rates at the entry have settled, s. If set, the settling is
    /// measured, too.
    settled: Option<f64>,
    #[serde(default)]
    events: Vec<(f64, String)>,
}

const fn yes() -> bool {
    true
}

const fn second() -> f64 {
    1.0
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type")]
enum Services {
    /// The storage service of §6.
    Storage(Storage),
    /// A chain of services.
    Chain(Chain),
    /// The services of a mesh file.
    File(Box<MeshFile>),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Control {
    discipline: Discipline,
    workflows: Option<WorkflowsConfig>,
}

/// A chain of services, of which each calls the next. The last service has less capacity than the
/// load.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chain {
    hops: usize,
    /// The number of processes of each service.
    processes: usize,
    /// The number of slots of each process of the last service. `service` is its mean service time,
    /// ms.
    slots: u32,
    service: f64,
    /// The ratio of responses that are lost.
    lost: f64,
    /// The timeout of a caller, s.
    timeout: f64,
    loads: Vec<LoadEntry>,
}

impl Chain {
    fn graph(&self) -> Graph {
        let timeout = Duration::from_secs_f64(self.timeout);
        let mut graph = Graph {
            network: Network {
                lost: self.lost,
                timeout: Some(timeout),
                ..Network::default()
            },
            ..Graph::default()
        };
        // The last service is built first, since calls refer to tasks that are already built.
        for service in (0..=self.hops).rev() {
            let last = service == self.hops;
            let ms = if last { self.service } else { 1.0 };
            let mut steps = vec![Step::Compute(ServiceTime::Exponential(ms))];
            if !last {
                let below = graph.tasks.len() - 1;
                steps.push(Step::Call(Calls::one(below, Route::RoundRobin)));
            }
            graph.tasks.push(Task { service, steps });
        }
        let service = |at: usize| {
            let slots = if at == self.hops { self.slots } else { 1_000 };
            Service::new(&format!("s{at}"), self.processes, slots)
        };
        graph.services = (0..=self.hops).map(service).collect();
        graph.workflows = vec![Workflow {
            deadline: Some(2 * timeout),
            ..Workflow::new("w", graph.tasks.len() - 1)
        }];
        graph
    }
}

impl Mesh {
    pub(super) fn run(&self, amount: &Amount, seed: u64) -> Result<Measured, SimulationError> {
        let part = if self.scales { amount.part } else { 1.0 };
        let wrong =
            |problems: Vec<Problem>| SimulationError::Results(format!("the mesh: {problems:?}"));
        let mut own = Vec::new();
        let (graph, loads, requests) = match &self.services {
            Services::Storage(storage) => storage.mesh(amount.requests, part, seed)?,
            Services::Chain(chain) => {
                let loads = chain.loads.iter().map(|load| load.load(0, part));
                (chain.graph(), loads.collect(), u64::MAX)
            }
            Services::File(file) => {
                let mut plan = file.plan().map_err(wrong)?;
                for load in &mut plan.loads {
                    if let Arrivals::Poisson(rate) | Arrivals::Even(rate) = &mut load.arrivals {
                        *rate *= self.times;
                    }
                }
                own = self.own_policies(&plan)?;
                (plan.graph, plan.loads, u64::MAX)
            }
        };
        let Control {
            discipline,
            workflows,
        } = &self.control;
        let mut setup = Setup::alike(&graph, discipline, workflows.as_ref());
        for (policy, own) in setup.policies.iter_mut().zip(own) {
            *policy = own.or(policy.take());
        }
        let run = Run {
            graph: &graph,
            loads: &loads,
            setup: &setup,
            until: Duration::from_secs_f64(self.length * part),
            sample_every: Duration::from_secs_f64(self.sample),
            requests,
            seed,
        };
        let seen = run.make()?;
        Ok(self.measure(&graph, &seen, part))
    }

    /// Returns the policies of the services of a mesh file, by service. A service that `policies`
    /// doesn't name has `None`.
    fn own_policies(&self, plan: &Plan) -> Result<Vec<Option<Policy>>, SimulationError> {
        let policy = |(at, service): (usize, &Service)| {
            let stage = self.policies.get(&service.name);
            stage
                .map(|stage| Policy::new(stage.clone(), plan, at))
                .transpose()
        };
        let policies = plan.graph.services.iter().enumerate().map(policy);
        Ok(policies.collect::<Result<_, _>>()?)
    }

    fn measure(&self, graph: &Graph, seen: &Seen, part: f64) -> Measured {
        let mut measured = Measured::default();
        let names: Vec<&str> = graph.workflows.iter().map(|w| w.name.as_str()).collect();
        for span in &self.spans {
            let time = span.from * part..span.until * part;
            for (w, name) in names.iter().enumerate() {
                clients(&mut measured, name, &span.name, seen, &[w], &time);
                for (s, service) in graph.services.iter().enumerate() {
                    let metric = |what: &str| format!("sigma_{}_{what}{}", service.name, span.name);
                    let rates = rates(seen, s, w, &time);
                    measured.note(name, metric("rps"), mean(&rates));
                    measured.note(
                        name,
                        metric("spread_pct"),
                        spread(&rates).map(|s| s * 100.0),
                    );
                }
            }
            if let Some(group) = &self.group {
                let members: Vec<usize> = (0..names.len())
                    .filter(|w| names[*w].starts_with(group.as_str()))
                    .collect();
                clients(&mut measured, group, &span.name, seen, &members, &time);
            }
            clients(
                &mut measured,
                ALL,
                &span.name,
                seen,
                &(0..names.len()).collect::<Vec<_>>(),
                &time,
            );
            self.services(&mut measured, graph, &span.name, seen, &time);
        }
        if let Some(step) = self.curves {
            let (end, entry) = (self.length * part, Storage::entry());
            for (w, name) in names.iter().enumerate() {
                measured.draw(name, "rt_p50_s", seen.medians(w, end, step));
                let moments = (1..=(end / step).round() as usize).map(|n| n as f64 * step);
                let rate = |at: f64| (at, Some(seen.throughput(w, at - step..at)));
                measured.draw(name, "throughput_rps", moments.map(rate));
            }
            for (w, name) in names.iter().enumerate() {
                measured.draw(
                    &format!("rate of {name}"),
                    "sigma_rps",
                    seen.rates(entry, w),
                );
            }
        }
        if let Some(settled) = self.settled {
            let capacity = self.capacity();
            settling(
                &mut measured,
                seen,
                settled * part,
                self.length * part,
                capacity,
            );
        }
        measured.events = self
            .events
            .iter()
            .map(|(at, what)| (at * part, what.clone()))
            .collect();
        measured
    }

    /// Returns the capacity of a chain's last service, requests/s, or NaN without a chain.
    fn capacity(&self) -> f64 {
        match &self.services {
            Services::Chain(chain) => {
                chain.processes as f64 * f64::from(chain.slots) * 1e3 / chain.service
            }
            Services::Storage(_) | Services::File(_) => f64::NAN,
        }
    }

    /// Measures each service, and each process of a service in a file.
    fn services(
        &self,
        measured: &mut Measured,
        graph: &Graph,
        span: &str,
        seen: &Seen,
        time: &Range<f64>,
    ) {
        let sum = |counts: &[u64]| counts.iter().sum::<u64>() as f64;
        for (s, service) in graph.services.iter().enumerate() {
            let processes = seen.services[s].clone();
            let mut kinds = vec![(service.name.clone(), processes.clone())];
            if let Services::File(_) = self.services {
                let each = processes
                    .enumerate()
                    .map(|(n, p)| (format!("{}{}", service.name, n + 1), p..p + 1));
                kinds.extend(each.filter(|_| service.processes > 1));
            }
            for (kind, processes) in kinds {
                let per_second = |value: &dyn Fn(&ProcessSample) -> f64| {
                    seen.per_second_of(processes.clone(), time.clone(), value)
                };
                let slots = processes.len() as f64 * f64::from(service.slots);
                let (offered, refused) = (
                    per_second(&|p| sum(&p.offered)),
                    per_second(&|p| sum(&p.refused)),
                );
                let mut note = |metric: &str, value: f64| {
                    measured.note(&kind, format!("{metric}{span}"), value);
                };
                note("utilization_pct", 100.0 * per_second(&|p| p.busy) / slots);
                note("refused_rps", refused);
                note("completed_rps", per_second(&|p| sum(&p.completed)));
                note("refused_pct", 100.0 * refused / offered.max(1e-9));
            }
        }
    }
}

/// Measures the clients of these workflows.
fn clients(
    measured: &mut Measured,
    kind: &str,
    span: &str,
    seen: &Seen,
    workflows: &[usize],
    time: &Range<f64>,
) {
    let sent: Vec<&Ended> = seen
        .sent_in(None, time.clone())
        .filter(|ended| workflows.contains(&usize::from(ended.workflow)))
        .collect();
    let served = || sent.iter().filter(|ended| ended.is_served());
    let part = |ending| {
        let ended = sent.iter().filter(|ended| ended.ending == ending).count();
        (!sent.is_empty()).then(|| 100.0 * ended as f64 / sent.len() as f64)
    };
    let sorted = |value: fn(&Ended) -> f64| {
        let mut values: Vec<f64> = served().map(|ended| value(ended)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let latencies = sorted(Ended::latency_s);
    // `lnd` is the latency divided by the deadline.
    let lnd = sorted(|ended| ended.latency_s() * 1e9 / ended.within as f64);
    let late = lnd.iter().filter(|lnd| **lnd > 1.0).count() as f64 / lnd.len() as f64;
    let mut note =
        |metric: &str, value: Option<f64>| measured.note(kind, format!("{metric}{span}"), value);
    note(
        "throughput_rps",
        Some(
            workflows
                .iter()
                .map(|w| seen.throughput(*w, time.clone()))
                .sum(),
        ),
    );
    note("rt_mean_ms", mean(&latencies).map(|s| s * 1e3));
    note("rt_p50_ms", quantile(&latencies, 0.5).map(|s| s * 1e3));
    note("rt_p90_ms", quantile(&latencies, 0.9).map(|s| s * 1e3));
    note("rt_p99_ms", quantile(&latencies, 0.99).map(|s| s * 1e3));
    note(
        "pt_p50_ms",
        quantile(&sorted(|ended| ended.held as f64 / 1e6), 0.5),
    );
    note("lnd_mean", mean(&lnd));
    note("lnd_p95", quantile(&lnd, 0.95));
    note("lnd_p99", quantile(&lnd, 0.99));
    note("late_pct", Some(late * 100.0));
    note("timed_out_pct", part(Ending::TimedOut));
    note("failed_pct", part(Ending::Failed));
    note("refused_pct", part(Ending::Refused));
    note(
        "dropped_pct",
        part(Ending::Served).map(|served| 100.0 - served),
    );
}

/// Returns a workflow's rates at the times within `time` at which a rate is in force, summed over a
/// service's processes, requests/s.
fn rates(seen: &Seen, service: usize, workflow: usize, time: &Range<f64>) -> Vec<f64> {
    let rates = seen.rates(service, workflow).into_iter();
    rates
        .filter(|(at, _)| time.contains(at))
        .filter_map(|(_, rate)| rate)
        .collect()
}

/// Returns the coefficient of variation, which is the standard deviation divided by the mean.
fn spread(values: &[f64]) -> Option<f64> {
    Some(deviation(values)? / mean(values)?.max(1e-9))
}

/// The largest relative distance from the later mean at which rates count as converged.
const BAND: f64 = 0.2;
/// The number of samples in the moving mean of the rates, which is compared with [`BAND`].
const MEAN_OVER: usize = 10;

/// Measures the settling time of the rates at the entry of a chain. Measures the level and the
/// steadiness of the rates from `settled` on, s.
fn settling(measured: &mut Measured, seen: &Seen, settled: f64, end: f64, capacity: f64) {
    let late = rates(seen, 0, 0, &(settled..f64::INFINITY));
    let level = mean(&late).unwrap_or(f64::INFINITY);
    let smoothed = smoothed(&seen.rates(0, 0));
    let off = |rate: Option<f64>| rate.map_or(f64::INFINITY, |rate| (rate / level - 1.0).abs());
    let last = smoothed.iter().rposition(|(_, rate)| off(*rate) > BAND);
    // Rates that leave the band in the last tenth have not settled.
    let reached = match last {
        None => Some(0.0),
        Some(at) => smoothed
            .get(at + 1)
            .map(|(at, _)| *at)
            .filter(|at| *at < end - end / 10.0),
    };
    let after = smoothed.iter().filter(|(at, _)| *at >= settled);
    let band = after.map(|(_, rate)| off(*rate)).fold(0.0, f64::max);
    let answered = seen.throughput(0, settled..end);
    measured.note(ALL, "reached_s", reached);
    measured.note(ALL, "sigma_entry_rps", level);
    measured.note(ALL, "band_pct", band * 100.0);
    measured.note(ALL, "answered_rps", answered);
    measured.note(ALL, "answered_pct", 100.0 * answered / capacity);
    measured.draw(ALL, "sigma_rps", smoothed);
}

fn smoothed(rates: &[(f64, Option<f64>)]) -> Points {
    let moment = |at: usize| {
        let window = &rates[(at + 1).saturating_sub(MEAN_OVER)..=at];
        let known: Option<Vec<f64>> = window.iter().map(|(_, rate)| *rate).collect();
        (rates[at].0, known.and_then(|known| mean(&known)))
    };
    (0..rates.len()).map(moment).collect()
}
