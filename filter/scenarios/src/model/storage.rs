//! The storage service of Wisp §6. Its services are front ends (FE), authentication (AUTH),
//! partition service (PS), and extent nodes (EN).
//!
//! The paper gives the tiers and the number of processes of each, the order of the calls between
//! them, exponential service times, and the RPC library's timeout. It also says that requests go to
//! the PS of their partition, and from there to blocks that are spread evenly over the ENs. The
//! paper doesn't give the slots, the network, the partitions, the blocks, nor service times except
//! those of workflow G. These values are chosen here or in the data.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_simulator::mesh::{
    Arrivals, Calls, Count, Graph, Item, Load, Network, Route, Run, Service, Setup, Step, Task,
    Workflow,
};
use headgate_simulator::{ServiceTime, SimulationError};
use headgate_strategies::rng::Rng;
use serde::Deserialize;

/// The services, with the number of their processes and the default number of slots of a process.
const TIERS: [(&str, usize, u32); 4] = [
    ("FE", 10, 128),
    ("AUTH", 5, 32),
    ("PS", 10, 64),
    ("EN", 10, 20),
];
const FE: usize = 0;
const AUTH: usize = 1;
const PS: usize = 2;
const EN: usize = 3;
/// The RPC library's timeout.
const RPC_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of blocks per partition.
const BLOCKS: u32 = 20;
/// The mean times of the steps at FE and AUTH, which are the same for all workflows, ms.
const FE_MS: f64 = 0.5;
const AUTH_MS: f64 = 1.0;
/// The longest run, s.
const LONGEST: u64 = 1_200;

/// The parameters of the storage service.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Storage {
    /// The number of slots of a process, by service.
    #[serde(default)]
    slots: BTreeMap<String, u32>,
    /// Whether service times are constant instead of exponential.
    #[serde(default)]
    constant: bool,
    workflows: Vec<WorkflowEntry>,
    /// Requests that are replayed in place of the workflows' loads.
    trace: Option<Trace>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WorkflowEntry {
    name: String,
    /// The steps of a request at its PS.
    steps: Vec<PsStep>,
    /// The range of PSs that hold the workflow's partitions, without the end of the range, or
    /// `None` for all PSs.
    partitions: Option<(usize, usize)>,
    /// The deadline, s, or `None` for the RPC timeout.
    deadline: Option<f64>,
    #[serde(default)]
    loads: Vec<LoadEntry>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum PsStep {
    /// Computes for this mean time, ms.
    Compute(f64),
    /// Calls to ENs: the number of calls, the number of calls at once, and the mean time of a call
    /// at the EN, ms.
    Calls(u32, u32, f64),
    /// Calls to ENs, as many as the request's size: the number of calls at once, and the mean time
    /// of a call at the EN, ms.
    Sized(u32, f64),
}

/// The clients of a workflow. They are a rate of random or evenly spaced requests, requests/s, or a
/// number of closed-loop clients.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoadEntry {
    rate: Option<f64>,
    even: Option<f64>,
    clients: Option<u32>,
    /// The start of the load, s.
    #[serde(default)]
    from: f64,
}

impl LoadEntry {
    pub(super) fn load(&self, workflow: usize, part: f64) -> Load {
        let arrivals = match (self.rate, self.even, self.clients) {
            (Some(rate), _, _) => Arrivals::Poisson(rate),
            (_, Some(rate), _) => Arrivals::Even(rate),
            (_, _, clients) => closed(clients.unwrap_or_default()),
        };
        Load::new(workflow, arrivals).between(self.from * part, f64::MAX)
    }
}

fn closed(clients: u32) -> Arrivals {
    Arrivals::Closed(clients, ServiceTime::Constant(0.0))
}

/// Random requests of the workflows, which closed-loop clients replay.
///
/// Each request's deadline is a multiple of its latency in an otherwise idle mesh. This latency is
/// measured first.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trace {
    clients: u32,
    deadline: u32,
    /// The ratio of requests that belong to each workflow, and the sizes of its requests.
    draws: Vec<(f64, Vec<u32>)>,
}

impl Storage {
    pub(super) fn entry() -> usize {
        FE
    }

    fn graph(&self) -> Graph {
        let service = |(name, processes, slots): (&str, usize, u32)| {
            Service::new(
                name,
                processes,
                self.slots.get(name).copied().unwrap_or(slots),
            )
        };
        let mut graph = Graph {
            services: TIERS.into_iter().map(service).collect(),
            network: Network {
                // The clients of a trace wait without a limit.
                timeout: self.trace.is_none().then_some(RPC_TIMEOUT),
                ..Network::default()
            },
            ..Graph::default()
        };
        for workflow in &self.workflows {
            self.add(&mut graph, workflow);
        }
        graph
    }

    fn add(&self, graph: &mut Graph, entry: &WorkflowEntry) {
        let compute = |ms| {
            Step::Compute(match self.constant {
                true => ServiceTime::Constant(ms),
                false => ServiceTime::Exponential(ms),
            })
        };
        let mut task = |service, steps| {
            graph.tasks.push(Task { service, steps });
            graph.tasks.len() - 1
        };
        let mut steps = Vec::new();
        for step in &entry.steps {
            let (count, at_once, ms) = match *step {
                PsStep::Compute(ms) => {
                    steps.push(compute(ms));
                    continue;
                }
                PsStep::Calls(count, at_once, ms) => (Count::Fixed(count), at_once, ms),
                PsStep::Sized(at_once, ms) => (Count::Size, at_once, ms),
            };
            steps.push(Step::Call(Calls {
                task: task(EN, vec![compute(ms)]),
                count,
                at_once,
                route: Route::Block(BLOCKS),
            }));
        }
        let auth = task(AUTH, vec![compute(AUTH_MS)]);
        let ps = task(PS, steps);
        let fe = vec![
            compute(FE_MS),
            Step::Call(Calls::one(auth, Route::RoundRobin)),
            Step::Call(Calls::one(ps, Route::Partition)),
        ];
        let entered = task(FE, fe);
        let (first, end) = entry.partitions.unwrap_or((0, TIERS[PS].1));
        let limit = self.trace.is_none().then_some(RPC_TIMEOUT);
        graph.workflows.push(Workflow {
            partitions: (first..end).collect(),
            timeout: limit,
            deadline: entry.deadline.map(Duration::from_secs_f64).or(limit),
            ..Workflow::new(&entry.name, entered)
        });
    }

    /// Returns the services, the clients, and the number of requests after which a run ends.
    pub(super) fn mesh(
        &self,
        requests: u64,
        part: f64,
        seed: u64,
    ) -> Result<(Graph, Vec<Load>, u64), SimulationError> {
        let graph = self.graph();
        if let Some(trace) = &self.trace {
            let items = trace.items(&graph, requests, seed)?;
            let loads = vec![Load::replay(items, closed(trace.clients))];
            return Ok((graph, loads, requests));
        }
        let loads = self.workflows.iter().enumerate();
        let loads =
            loads.flat_map(|(w, entry)| entry.loads.iter().map(move |load| load.load(w, part)));
        Ok((graph, loads.collect(), u64::MAX))
    }
}

impl Trace {
    fn items(&self, graph: &Graph, requests: u64, seed: u64) -> Result<Vec<Item>, SimulationError> {
        let alone = self.alone(graph, seed)?;
        let mut rng = Rng::new(seed ^ 0x7ab1e);
        let mut draw = || {
            let mut left = rng.next_f64();
            let workflow = self.draws.iter().position(|(part, _)| {
                left -= part;
                left < 0.0
            });
            let workflow = workflow.unwrap_or(self.draws.len() - 1);
            let sizes = &self.draws[workflow].1;
            let size = sizes[(rng.next_f64() * sizes.len() as f64) as usize % sizes.len()];
            let mut kinds = alone.iter();
            let kind = kinds.find(|(item, _)| item.workflow == workflow && item.size == size);
            Item {
                workflow,
                size,
                deadline: kind.map(|(_, took)| *took * self.deadline),
            }
        };
        Ok((0..requests).map(|_| draw()).collect())
    }

    /// Measures the latency of each kind of request in an otherwise idle mesh.
    fn alone(&self, graph: &Graph, seed: u64) -> Result<Vec<(Item, Duration)>, SimulationError> {
        let item = |workflow, size: &u32| Item {
            workflow,
            size: *size,
            deadline: None,
        };
        let kinds = self.draws.iter().enumerate();
        let kinds = kinds.flat_map(|(w, (_, sizes))| sizes.iter().map(move |size| item(w, size)));
        let kinds: Vec<Item> = kinds.collect();
        let run = Run {
            graph,
            loads: &[Load::replay(kinds.clone(), closed(1))],
            setup: &Setup::default(),
            until: Duration::from_secs(LONGEST),
            sample_every: Duration::from_secs(1),
            requests: kinds.len() as u64,
            seed,
        };
        let seen = run.make()?;
        let took = seen
            .ended
            .iter()
            .map(|e| Duration::from_nanos(e.at - e.sent));
        Ok(kinds.into_iter().zip(took).collect())
    }
}
