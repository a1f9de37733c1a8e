//! Workflows across a mesh (Wisp, SoCC '17). They refuse a request at the first hop instead of at
//! the last, where the work of all earlier hops would be lost.
//!
//! A *workflow* is a class of requests (a tenant, a feature) that crosses services. Each process
//! computes a rate for each of its workflows, from its own measurements and from the announcements
//! of the processes that it calls. The process enforces the rate and announces it to its callers
//! (Algorithm 1). A process communicates only with its neighbours.

pub mod adaptation;
pub mod baggage;
pub mod call_tree;
pub mod calls;
mod dominant;
mod downstream;
mod estimates;
mod exchange;
mod limiter;
pub mod measurements;
pub(crate) mod names;
mod pairs;
mod part;
pub mod process;
mod published;
mod quantile;
pub(crate) mod record;
pub mod resource;
mod shares;
mod sharing;
mod stats;
mod upstream;
pub mod wire;

pub use call_tree::Token;
pub use calls::{Announced, Call};
pub use process::Workflows;
pub(crate) use process::process;
pub(crate) use stats::stat_name;

use serde::{Deserialize, Serialize};

/// The index of a workflow in a process. It is [`OTHER`] for workflows beyond the cap.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct WorkflowId(pub u16);

/// The id of `_other`, which all workflows without an id of their own share.
pub const OTHER: WorkflowId = WorkflowId(0);
/// The name of [`OTHER`] in the configuration and in stats.
pub const OTHER_NAME: &str = "_other";

/// The id of a process of the mesh. It is drawn at random at the start, so a restarted process has
/// a new id.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct ProcessId(pub u64);

impl crate::shared::Record for ProcessId {
    const SCHEMA: u32 = 2;
}

impl ProcessId {
    /// The id of processes that don't name themselves. No process draws it.
    pub const UNKNOWN: Self = Self(0);
}

/// The maximum number of downstream services with their own id.
pub(crate) const MAX_SERVICES: u16 = 255;

/// The index of a downstream service in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceId(pub u16);
