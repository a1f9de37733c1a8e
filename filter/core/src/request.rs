//! What is known of a request when it arrives: what strategies decide by and disciplines order by.

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
    /// The time that it gives itself, from now.
    pub own_deadline: Option<Duration>,
    /// Flow of its workflow in fair queues: an id of its own, or 0 for those that have none, and
    /// where nobody asks.
    pub workflow: u16,
    /// Weight of its workflow in fair queues, above 0.
    pub weight: f64,
    /// What it says it costs.
    pub cost: Option<u32>,
    /// Whether it repeats an earlier attempt ([`crate::retries`]).
    pub is_retry: bool,
    /// How far the work it is part of has come.
    pub progress: Progress,
}

impl Attributes {
    /// A request that says nothing of itself.
    #[must_use]
    pub const fn of(kind: TypeId) -> Self {
        Self {
            kind,
            class: ClassId(0),
            workflow: 0,
            weight: 1.0,
            own_deadline: None,
            cost: None,
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
    /// Time since it entered the mesh, waits included, but for what it spent between proxies (SEDA
    /// §3.2). Zero where it enters, and where it says nothing that is believed.
    pub age: Duration,
}

impl Progress {
    /// Nothing is known: a request that just entered.
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
    /// How long it holds its slot: as measured, or as expected of a stream that goes on.
    pub slot: Duration,
    /// Answers of its type that it stands for, itself included: not every answer is measured.
    pub weight: u32,
    /// What it added to the work of the queue, in the unit of [`crate::work::Work`].
    pub work: u64,
}

impl Served {
    /// Queue wait and processing time.
    #[must_use]
    pub fn response_time(&self) -> Duration {
        self.queue_wait + self.processing
    }
}
