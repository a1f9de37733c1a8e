//! Class admission: a sender runs a call in a lower class if the class that the call requests
//! misses its target. This crate has the law of admit probabilities, the methods that decide, and
//! the server that decides for all senders. The filter's side is in `headgate-mesh`.
//!
//! Weighted fair queues give each class a share of a receiver. Latency targets hold as long as the
//! classes above the lowest stay within their shares. No queue enforces this condition, because
//! every sender may request the highest class. Refusing the excess would lose calls for which the
//! lowest class has room. So admission *downgrades* calls. Each call is sent in its own class or in
//! the lowest one, which has no target. Calls are never downgraded to a class in between, because
//! they could make it miss its target.
//!
//! Each method learns from the latencies of the calls that ran in their class:
//!
//! | | where | decides by | source |
//! |---|---|---|---|
//! | [`Distributed`] | each sender | an admit probability for each (receiver, class) | Aequitas |
//! | [`Misses`] | one server | K misses a period, for all senders | centralized Aequitas §3.1 |
//! | [`Incast`] | one server | an admit probability, by the mean incast delay | §3.2 |
//!
//! *Aequitas* is Y. Zhang et al.: "Aequitas: Admission Control for Performance-Critical RPCs in
//! Datacenters", SIGCOMM '22, with the constants of its simulator. *Centralized Aequitas* is D.
//! Chowdary, W. Xie, Y. Zhong: "Centralize the Aequitas Admission Control Mechanism".
//!
//! The filter keeps the state of [`Distributed`] in numbers that its workers share
//! (`headgate_mesh::channels`). A [`Server`] holds the state of [`Misses`] and [`Incast`] for many
//! services. Senders exchange batches of reports and decisions with it ([`protocol`]).
//!
//! All state is bounded ([`Limits`]). An entry that doesn't fit is dropped, and its calls are then
//! admitted.

mod distributed;
mod incast;
mod law;
mod misses;
pub mod protocol;
mod recent;
mod server;

use std::time::Duration;

pub use distributed::Distributed;
pub use headgate_config::admission_law::{Scope, Settings};
pub use incast::Incast;
pub use law::{Change, ChannelLaw};
pub use misses::Misses;
pub use server::{ReportError, Server};

use headgate_strategies::request::ClassId;

/// A call that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The class in which the call ran. It may be lower than the class that the call requested.
    pub class: ClassId,
    /// The RPC network latency. It is the time from the sender's handover to the last answer,
    /// without the receiver's service time.
    pub latency: Duration,
    /// The size in the unit of costs (packets in the paper). A size of 0 counts as 1.
    pub size: u32,
}

/// The bounds of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of channels. A channel is a sender, a receiver and a class. The least
    /// recently used channels are dropped first.
    pub channels: usize,
    /// The time without a call after which a channel is forgotten.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            channels: 16_384,
            idle: Duration::from_secs(60),
        }
    }
}

/// Returns the part of a key that distinguishes the classes of `scope`.
const fn class_of(scope: Scope, class: ClassId) -> ClassId {
    match scope {
        Scope::Destination => ClassId(0),
        Scope::Class => class,
    }
}
