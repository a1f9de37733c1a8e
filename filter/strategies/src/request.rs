//! The attributes of a request at its arrival, for strategies and queue disciplines.

use std::time::Duration;

/// A query type of a stage, as an index into its configured types. The last type is `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u16);

/// A class of a stage, as an index into its configured classes. 0 is the class of the highest
/// priority, and the only class if none are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClassId(pub u8);

/// The attributes of a request at its arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attributes {
    /// The request's query type.
    pub kind: TypeId,
    /// The request's class.
    pub class: ClassId,
    /// The request's own deadline, as a time from its arrival.
    pub own_deadline: Option<Duration>,
    /// The id of the request's flow, in fair queues whose flows are neither types nor classes. 0
    /// without a flow.
    pub flow: u16,
    /// The weight of that flow, above 0.
    pub weight: f64,
    /// The cost that the request states.
    pub cost: Option<u32>,
    /// The size that the request states, if the cost of its type depends on the size.
    pub size: Option<u32>,
    /// The maximum number of tokens that the request needs in the backend. 0 without a budget of
    /// tokens.
    pub tokens: u32,
    /// The part of `tokens` that is the request's prompt.
    pub prompt_tokens: u32,
    /// The expected number of output tokens. 0 without a budget of tokens.
    pub output: u32,
    /// Whether the request is a retry ([`crate::retries`]).
    pub is_retry: bool,
    /// The progress of the request's call tree.
    pub progress: Progress,
}

impl Attributes {
    /// Returns the attributes of a request of which only the type is known.
    pub fn of(kind: TypeId) -> Self {
        Self {
            kind,
            class: ClassId(0),
            flow: 0,
            weight: 1.0,
            own_deadline: None,
            cost: None,
            size: None,
            tokens: 0,
            prompt_tokens: 0,
            output: 0,
            is_retry: false,
            progress: Progress::default(),
        }
    }
}

/// Progress metrics of a request's call tree (Wisp §4.2, Table 2), which are processing times and
/// work. Only the age includes waits.
/// The default is the progress of a request that has just entered the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Service time of the call tree so far.
    pub elapsed: Duration,
    /// Expected service time of the whole tree.
    pub total: Option<Duration>,
    /// Work of the call tree so far.
    pub work: Duration,
    /// Expected work of the whole tree.
    pub total_work: Option<Duration>,
    /// Time since the request entered the mesh, with waits, but without the time between proxies
    /// (SEDA §3.2). Zero if the request enters at this proxy, or carries no trusted age.
    pub age: Duration,
}

/// A request that was served and measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The request's query type.
    pub kind: TypeId,
    /// The request's class.
    pub class: ClassId,
    /// Time from the request's entry into the system to its arrival at the stage
    /// ([`Progress::age`]).
    pub age: Duration,
    /// Time from the request's arrival to its slot.
    pub queue_wait: Duration,
    /// Time from the request's slot to the moment that `measure` selects as the end.
    pub processing: Duration,
    /// Time for which the request holds its slot. Estimated for a stream that continues, otherwise
    /// measured.
    pub slot: Duration,
    /// The number of answers of the request's type that this sample represents, because not every
    /// answer is measured.
    pub weight: u32,
    /// The request's work in the queue, in the unit of [`crate::work`].
    pub work: u64,
}

impl Served {
    /// Returns the sum of queue wait and processing time.
    pub fn response_time(&self) -> Duration {
        self.queue_wait + self.processing
    }
}
