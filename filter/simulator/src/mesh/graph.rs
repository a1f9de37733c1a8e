//! The call graph: services, and their work for a request.

use std::time::Duration;

use crate::workload::ServiceTime;

/// Services and their work for the workflows.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The services.
    pub services: Vec<Service>,
    /// The tasks. [`Workflow::entry`] and [`Calls::task`] are indices into this list.
    pub tasks: Vec<Task>,
    /// The workflows.
    pub workflows: Vec<Workflow>,
    /// The network between processes.
    pub network: Network,
}

/// A service: a number of identical processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The service's name.
    pub name: String,
    /// The number of processes, 1 or more.
    pub processes: usize,
    /// The number of requests that a process works on at once (the stage's P).
    pub slots: u32,
    /// The number of these requests that compute at the same time, as behind a semaphore. The other
    /// requests wait first come, first served. `None` means that all requests compute at the same
    /// time.
    pub threads: Option<u32>,
}

impl Service {
    /// Returns a service that computes all requests with a slot at the same time.
    pub fn new(name: &str, processes: usize, slots: u32) -> Self {
        Self {
            name: name.to_owned(),
            processes,
            slots,
            threads: None,
        }
    }
}

/// The work of a service for a request: a node of an execution DAG.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Index of the service.
    pub service: usize,
    /// The steps, one after the other.
    pub steps: Vec<Step>,
}

/// A step of a [`Task`].
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Work of the process itself.
    Compute(ServiceTime),
    /// Calls to another service. The step ends when all calls are answered. A failed call fails the
    /// task.
    Call(Calls),
}

/// The calls of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// Index of the task that is called.
    pub task: usize,
    /// The number of calls.
    pub count: Count,
    /// The number of calls at once. With 1, calls are made one after the other.
    pub at_once: u32,
    /// The rule that selects the called process.
    pub route: Route,
}

impl Calls {
    /// Returns one call.
    pub fn one(task: usize, route: Route) -> Self {
        Self::several(task, 1, 1, route)
    }

    /// Returns `count` calls, of which `at_once` are made at the same time.
    pub fn several(task: usize, count: u32, at_once: u32, route: Route) -> Self {
        Self {
            task,
            count: Count::Fixed(count),
            at_once,
            route,
        }
    }
}

/// The number of calls of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// A fixed number.
    Fixed(u32),
    /// The request's size ([`crate::mesh::load::Item::size`]).
    Size,
}

/// The rule that selects the process of a service for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Round robin, counted separately by each calling process.
    RoundRobin,
    /// Round robin within the calling request, from the first process on, independent of other
    /// requests.
    Each,
    /// The process that holds the request's partition, as with consistent hashing.
    Partition,
    /// The process with a block that is drawn at random from this many blocks of the request's
    /// partition. Blocks are spread evenly over the service's processes.
    Block(u32),
    /// Always the process of this index.
    Fixed(usize),
}

/// A workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workflow {
    /// The workflow's name.
    pub name: String,
    /// Index of the task with which the workflow's requests begin. The processes of the task's
    /// service receive these requests round robin.
    pub entry: usize,
    /// The processes that hold the workflow's partitions. Each request belongs to a partition that
    /// is drawn at random. If the list is empty, the only partition is on process 0.
    pub partitions: Vec<usize>,
    /// The timeout of a client; `None` for none.
    pub timeout: Option<Duration>,
    /// The end-to-end deadline, which requests carry if the run's setup enables it.
    pub deadline: Option<Duration>,
}

impl Workflow {
    /// Returns a workflow without partitions whose clients wait forever.
    pub fn new(name: &str, entry: usize) -> Self {
        Self {
            name: name.to_owned(),
            entry,
            partitions: Vec::new(),
            timeout: None,
            deadline: None,
        }
    }
}

/// The network between processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// One-way delay.
    pub delay: Duration,
    /// The ratio of responses between processes that are lost; only with a `timeout`.
    pub lost: f64,
    /// The timeout of a call between processes; `None` for none.
    pub timeout: Option<Duration>,
}

impl Default for Network {
    /// Returns a typical network between virtual machines of one data centre.
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(250),
            lost: 0.0,
            timeout: None,
        }
    }
}
