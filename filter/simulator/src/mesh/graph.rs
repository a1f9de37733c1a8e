//! Who calls whom: services, and what they do for a request.

use std::time::Duration;

use crate::workload::ServiceTime;

/// Services and what they do for the workflows.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    /// The services.
    pub services: Vec<Service>,
    /// What services do; [`Workflow::entry`] and [`Calls::task`] are indices into it.
    pub tasks: Vec<Task>,
    /// The workflows.
    pub workflows: Vec<Workflow>,
    /// What is between processes.
    pub network: Network,
}

/// A service: processes that are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// How many processes it has, 1 or more.
    pub processes: usize,
    /// Requests that a process works on at once (the stage's P).
    pub slots: u32,
    /// Of those, how many compute at once, such as behind a semaphore; the others wait in the order in which they
    /// came. `None`: all.
    pub threads: Option<u32>,
}

impl Service {
    /// A service whose requests all compute at once.
    #[must_use]
    pub fn new(name: &str, processes: usize, slots: u32) -> Self {
        Self {
            name: name.to_owned(),
            processes,
            slots,
            threads: None,
        }
    }

    /// With so many threads in each process.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = Some(threads);
        self
    }
}

/// What a service does for a request: a node of an execution DAG.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Index of the service.
    pub service: usize,
    /// One after the other.
    pub steps: Vec<Step>,
}

/// A step of a [`Task`].
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Work of the process itself.
    Compute(ServiceTime),
    /// Calls of another service; the step ends when all have been answered. One that fails fails the task.
    Call(Calls),
}

/// Calls of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// Index of the task that is called.
    pub task: usize,
    /// How many.
    pub count: Count,
    /// How many of them at once; 1 is one after the other.
    pub at_once: u32,
    /// Which process of the service gets them.
    pub route: Route,
}

impl Calls {
    /// One call.
    #[must_use]
    pub fn one(task: usize, route: Route) -> Self {
        Self::several(task, 1, 1, route)
    }

    /// `count` calls, `at_once` of them at once.
    #[must_use]
    pub fn several(task: usize, count: u32, at_once: u32, route: Route) -> Self {
        Self {
            task,
            count: Count::Fixed(count),
            at_once,
            route,
        }
    }
}

/// How many calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Always as many.
    Fixed(u32),
    /// As many as the request's size ([`crate::mesh::load::Item::size`]) says.
    Size,
}

/// Which process of a service gets a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The next one, counted by each calling process for itself.
    RoundRobin,
    /// Each of the service's processes gets one call in turn, beginning with the first, whatever others call.
    Each,
    /// The process that holds the partition of the request, as consistent hashing finds it.
    Partition,
    /// One of this many blocks of the request's partition, drawn at random; blocks are spread evenly over the
    /// service's processes.
    Block(u32),
    /// Always this one.
    Fixed(usize),
}

/// A workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workflow {
    /// Its name.
    pub name: String,
    /// Index of the task with which its requests begin; the processes of that service get them in turn.
    pub entry: usize,
    /// Processes that hold its partitions; a request is of one of them, drawn at random. Empty: one partition, on
    /// process 0.
    pub partitions: Vec<usize>,
    /// When a client gives up; `None`: never.
    pub timeout: Option<Duration>,
    /// End-to-end deadline, which travels with requests where the run lets it.
    pub deadline: Option<Duration>,
}

impl Workflow {
    /// A workflow without partitions whose clients wait forever.
    #[must_use]
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

/// What is between processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// One way.
    pub delay: Duration,
    /// Part of the responses between processes that never arrive, ratio; only with a `timeout`.
    pub lost: f64,
    /// When a process gives up waiting for a call of its own; `None`: never.
    pub timeout: Option<Duration>,
}

impl Default for Network {
    /// What virtual machines of one data centre have between them.
    fn default() -> Self {
        Self {
            delay: Duration::from_micros(250),
            lost: 0.0,
            timeout: None,
        }
    }
}
