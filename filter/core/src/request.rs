//! The attributes of a request at its arrival, for strategies and queue disciplines.

use std::time::Duration;

/// A query type of a stage: an index into its configured types; the last one is `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u16);

/// A class of a stage: an index into its configured classes. 0 is the highest priority, and the
/// only class if none are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClassId(pub u8);

/// The attributes of a request at its arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attributes {
    /// Its query type.
    pub kind: TypeId,
    /// Its class.
    pub class: ClassId,
    /// Its own deadline, as a time from now.
    pub own_deadline: Option<Duration>,
    /// The id of the request's flow, in fair queues whose flows are neither types nor classes; 0
    /// without a flow.
    pub flow: u16,
    /// Weight of that flow, above 0.
    pub weight: f64,
    /// The cost that the request states.
    pub cost: Option<u32>,
    /// Its size, if the cost of its type depends on it and the request states it.
    pub size: Option<u32>,
    /// The maximum number of tokens that it needs in the backend; 0 without a budget of tokens.
    pub tokens: u32,
    /// The part of `tokens` that is its prompt.
    pub prompt_tokens: u32,
    /// The expected number of its output tokens; 0 without a budget of tokens.
    pub output: u32,
    /// Whether it is a retry ([`crate::retries`]).
    pub is_retry: bool,
    /// The progress of the request's call tree.
    pub progress: Progress,
}

impl Attributes {
    /// Returns the attributes of a request with only the type known.
    #[must_use]
    pub const fn of(kind: TypeId) -> Self {
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
            progress: Progress::UNKNOWN,
        }
    }
}

/// Progress metrics of a request's call tree (Wisp §4.2, Table 2): processing times and work. Only
/// the age includes waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Service time so far.
    pub elapsed: Duration,
    /// Expected service time of the whole tree.
    pub total: Option<Duration>,
    /// Work so far.
    pub work: Duration,
    /// Expected work of the whole tree.
    pub total_work: Option<Duration>,
    /// Time since it entered the mesh, with waits, but without the time between proxies (SEDA
    /// §3.2). Zero if it enters at this proxy, or carries no trusted age.
    pub age: Duration,
}

impl Progress {
    /// No progress: a request that just entered.
    pub const UNKNOWN: Self = Self {
        elapsed: Duration::ZERO,
        total: None,
        work: Duration::ZERO,
        total_work: None,
        age: Duration::ZERO,
    };
}

/// A request that was served and measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Its query type.
    pub kind: TypeId,
    /// Its class.
    pub class: ClassId,
    /// Time from its entry into the system to its arrival at the stage ([`Progress::age`]).
    pub age: Duration,
    /// Time from its arrival to its slot.
    pub queue_wait: Duration,
    /// Time from its slot to the moment that `measure` selects as the end.
    pub processing: Duration,
    /// Time for which the request holds its slot; estimated for a stream that continues, otherwise
    /// measured.
    pub slot: Duration,
    /// The number of answers of its type that this sample represents, because not every answer is
    /// measured.
    pub weight: u32,
    /// Its work in the queue, in the unit of [`crate::work::Work`].
    pub work: u64,
}

impl Served {
    /// Returns the sum of queue wait and processing time.
    #[must_use]
    pub fn response_time(&self) -> Duration {
        self.queue_wait + self.processing
    }
}
