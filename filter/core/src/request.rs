//! The attributes of a request at its arrival, for strategies and queue disciplines.

use std::time::Duration;

/// A query type of a stage, as index into its configured types. Index 0..n; the last is `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u16);

/// A class of a stage, as index into its configured classes: 0 is the highest priority, and the
/// only class where none are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClassId(pub u8);

/// A request, as it arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attributes {
    /// Its query type.
    pub kind: TypeId,
    /// Its class.
    pub class: ClassId,
    /// Its own deadline, as a time from now.
    pub own_deadline: Option<Duration>,
    /// Its flow in fair queues whose flows aren't types or classes: the flow's own id, or 0 without
    /// one, and where no flow is needed.
    pub flow: u16,
    /// Weight of that flow, above 0.
    pub weight: f64,
    /// The cost that it states.
    pub cost: Option<u32>,
    /// Its size, if the cost of its type depends on it and the request names it.
    pub size: Option<u32>,
    /// Whether it repeats an earlier attempt ([`crate::retries`]).
    pub is_retry: bool,
    /// The progress of the work that it is part of.
    pub progress: Progress,
}

impl Attributes {
    /// Returns the attributes of a request that names only its type.
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
            is_retry: false,
            progress: Progress::UNKNOWN,
        }
    }
}

/// Progress metrics of the tree of calls that a request is part of (Wisp §4.2, Table 2). Processing
/// times and work, without waiting, but for the age.
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
    /// Time since it entered the mesh, waits included, without the time between proxies (SEDA
    /// §3.2). Zero if it enters here, or carries no trusted age.
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
    /// From where it entered the system to its arrival at the stage ([`Progress::age`]).
    pub age: Duration,
    /// From its arrival to its slot.
    pub queue_wait: Duration,
    /// From its slot to the end of its processing time, which `measure` says.
    pub processing: Duration,
    /// Time for which it holds its slot: as measured, or as expected of a stream that goes on.
    pub slot: Duration,
    /// The number of answers of its type that this sample counts for, itself included: not every
    /// answer is measured.
    pub weight: u32,
    /// Its work in the queue, in the unit of [`crate::work::Work`].
    pub work: u64,
}

impl Served {
    /// Queue wait and processing time.
    #[must_use]
    pub fn response_time(&self) -> Duration {
        self.queue_wait + self.processing
    }
}
