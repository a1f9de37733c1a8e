//! The storage service of §6: front ends (FE), authentication (AUTH), partition service (PS), extent nodes (EN).
//!
//! From the paper: the tiers and how many processes each has, who calls whom in which order, requests that go to the
//! PS of their partition and from there to blocks that are spread evenly over the ENs, exponential service times, and
//! the RPC library's timeout. What the paper doesn't say, and is chosen here: slots, service times but that of
//! workflow G, the network, partitions and blocks.

use std::time::Duration;

use crate::mesh::{Calls, Count, Graph, Network, Route, Service, Step, Task, Workflow};
use crate::workload::ServiceTime;

/// Services of [`Storage::graph`].
pub(super) const FE: usize = 0;
pub(super) const AUTH: usize = 1;
pub(super) const PS: usize = 2;
pub(super) const EN: usize = 3;
/// Their names.
pub(super) const TIERS: [&str; 4] = ["FE", "AUTH", "PS", "EN"];
/// Processes of each service: from the paper.
pub(super) const PROCESSES: [usize; 4] = [10, 5, 10, 10];
/// Slots of a process, by service.
pub(super) const SLOTS: [u32; 4] = [128, 32, 64, 20];
/// The RPC library's timeout.
pub(super) const RPC_TIMEOUT: Duration = Duration::from_secs(10);
/// Blocks of a partition.
const BLOCKS: u32 = 20;
/// Mean time of the steps that are the same for all workflows, ms.
const FE_MS: f64 = 0.5;
const AUTH_MS: f64 = 1.0;

/// A step of a PS.
#[derive(Debug, Clone, Copy)]
pub(super) enum PsStep {
    /// It computes; mean, ms.
    Compute(f64),
    /// It calls ENs: how often, how many calls at once, and the mean time of each at the EN, ms.
    Calls(Count, u32, f64),
}

impl PsStep {
    /// One call.
    pub(super) fn call(ms: f64) -> Self {
        Self::Calls(Count::Fixed(1), 1, ms)
    }

    /// `count` calls at once.
    pub(super) fn parallel(count: u32, ms: f64) -> Self {
        Self::Calls(Count::Fixed(count), count, ms)
    }

    /// `count` calls, one after the other.
    pub(super) fn sequence(count: u32, ms: f64) -> Self {
        Self::Calls(Count::Fixed(count), 1, ms)
    }
}

/// The services and their workflows.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    pub(super) graph: Graph,
    constant: bool,
}

impl Storage {
    pub(super) fn new() -> Self {
        let services = TIERS.iter().zip(PROCESSES).zip(SLOTS);
        let services =
            services.map(|((name, processes), slots)| Service::new(name, processes, slots));
        Self {
            graph: Graph {
                services: services.collect(),
                network: Network {
                    timeout: Some(RPC_TIMEOUT),
                    ..Network::default()
                },
                ..Graph::default()
            },
            constant: false,
        }
    }

    /// With constant instead of exponential service times.
    pub(super) fn constant(mut self) -> Self {
        self.constant = true;
        self
    }

    /// Adds a workflow, whose partitions are on all PSs; gives its index.
    pub(super) fn workflow(&mut self, name: &str, ps: &[PsStep]) -> usize {
        let constant = self.constant;
        let compute = move |ms| {
            Step::Compute(match constant {
                true => ServiceTime::Constant(ms),
                false => ServiceTime::Exponential(ms),
            })
        };
        let mut steps = Vec::new();
        for step in ps {
            steps.push(match *step {
                PsStep::Compute(ms) => compute(ms),
                PsStep::Calls(count, at_once, ms) => {
                    let task = self.task(EN, vec![compute(ms)]);
                    Step::Call(Calls {
                        task,
                        count,
                        at_once,
                        route: Route::Block(BLOCKS),
                    })
                }
            });
        }
        let auth = self.task(AUTH, vec![compute(AUTH_MS)]);
        let ps = self.task(PS, steps);
        let fe = vec![
            compute(FE_MS),
            Step::Call(Calls::one(auth, Route::RoundRobin)),
            Step::Call(Calls::one(ps, Route::Partition)),
        ];
        let entry = self.task(FE, fe);
        let workflows = &mut self.graph.workflows;
        workflows.push(Workflow {
            partitions: (0..PROCESSES[PS]).collect(),
            timeout: Some(RPC_TIMEOUT),
            deadline: Some(RPC_TIMEOUT),
            ..Workflow::new(name, entry)
        });
        workflows.len() - 1
    }

    /// In words, for reports.
    pub(super) fn in_words(&self) -> String {
        let services = self.graph.services.iter();
        let services: Vec<String> = services
            .map(|s| format!("{} {} with {} slots", s.processes, s.name, s.slots))
            .collect();
        let times = if self.constant {
            "constant"
        } else {
            "exponential"
        };
        format!("{}; {times} service times", services.join(", "))
    }

    fn task(&mut self, service: usize, steps: Vec<Step>) -> usize {
        self.graph.tasks.push(Task { service, steps });
        self.graph.tasks.len() - 1
    }
}
