//! Workflows across a mesh (Wisp, SoCC '17): refuse work at the first hop instead of losing it at
//! the last.
//!
//! A *workflow* is a class of requests (a tenant, a feature) that crosses services. Each process
//! finds a rate for each of its workflows from its own measurements and from the announcements of
//! the processes that it calls, enforces it, and announces it to its callers (Algorithm 1). No
//! process knows more than its neighbours.

pub mod adaptation;
pub mod baggage;
pub mod call_tree;
pub mod calls;
pub mod dominant;
pub mod downstream;
pub mod estimates;
mod exchange;
pub mod limiter;
pub mod names;
pub mod pairs;
mod part;
pub mod process;
mod published;
pub mod quantile;
pub(crate) mod record;
pub mod resource;
pub mod shares;
pub mod sharing;
mod stats;
mod tally;
pub mod upstream;
pub mod wire;

pub use call_tree::Token;
pub use calls::{Answer, Call};
pub use process::Workflows;
pub(crate) use process::process;
pub(crate) use stats::stat_name;

use serde::{Deserialize, Serialize};

/// Index of a workflow among those that a process knows; [`OTHER`] for those beyond the cap.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct WorkflowId(pub u16);

/// Workflows that have no rate of their own share this one, `_other`.
pub const OTHER: WorkflowId = WorkflowId(0);
/// Its name in the configuration and in stats.
pub const OTHER_NAME: &str = "_other";

/// A process of the mesh, as it names itself: drawn at random when it starts, so that one that was
/// restarted is another.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct ProcessId(pub u64);

impl crate::shared::Record for ProcessId {
    const SCHEMA: u32 = 2;
}

impl ProcessId {
    /// A process that didn't name itself. No process draws this id.
    pub const UNKNOWN: Self = Self(0);
}

/// The origin of a request. A refusal, too, announces a rate to the process that sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Its workflow.
    pub workflow: WorkflowId,
    /// The process that sent it; `None`: it enters the mesh here.
    pub upstream: Option<ProcessId>,
}

impl Origin {
    /// The origin of a request without Headgate's headers.
    pub const UNKNOWN: Self = Self {
        workflow: OTHER,
        upstream: None,
    };
}

impl From<headgate_core::refusal::Origin> for Origin {
    fn from(origin: headgate_core::refusal::Origin) -> Self {
        Self {
            workflow: WorkflowId(origin.flow),
            upstream: origin.sender.map(ProcessId),
        }
    }
}

impl From<Origin> for headgate_core::refusal::Origin {
    fn from(origin: Origin) -> Self {
        Self {
            flow: origin.workflow.0,
            sender: origin.upstream.map(|process| process.0),
        }
    }
}

/// Index of a downstream service among those that a process calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceId(pub u16);
