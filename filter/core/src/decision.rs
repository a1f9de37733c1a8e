//! The types of decisions on requests, shared by strategies, stages, engines and the proxy's glue.

use crate::refusal::{Origin, Refusal};
use crate::request::Attributes;

/// A policy's number within its engine. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyId(pub u32);

/// A request's place in the table of its policy, from its arrival to its end. After its end, the
/// ticket is void, because the slot is reused with another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The request's policy.
    pub policy: PolicyId,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Ticket {
    /// Returns the request's place in the table of its policy.
    #[must_use]
    pub fn slot(self) -> u32 {
        self.slot
    }
}

/// A request that arrives at a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// The caller's id for the request, unique among the unfinished requests.
    pub stream: u32,
    /// The request's attributes, with its type and class.
    pub attributes: Attributes,
    /// The request's origin.
    pub origin: Origin,
}

/// The decision on an arriving request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// No policy manages the request, so the caller lets it through.
    PassBy,
    /// The caller must send the request to the backend now.
    Forward(Ticket),
    /// The caller must hold the request until an [`Action`] names its stream.
    Hold(Ticket),
    /// The caller must answer the request with this refusal now.
    Refuse(Refusal),
}

/// An action that the caller must execute on a request or an outbound call that it holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// Send the request to the backend, because it has a slot or its policy was removed.
    Resume {
        /// The caller's id for the request.
        stream: u32,
        /// The ticket with which the request was held.
        ticket: Ticket,
    },
    /// Answer the request. Its ticket is void.
    Refuse {
        /// The caller's id for the request.
        stream: u32,
        /// The answer.
        refusal: Refusal,
    },
    /// Send the outbound call, because its delay is over.
    Send {
        /// The caller's id for the call.
        stream: u32,
    },
}

impl Action {
    /// Returns the caller's id for the request or the call.
    #[must_use]
    pub fn stream(&self) -> u32 {
        match *self {
            Self::Resume { stream, .. } | Self::Refuse { stream, .. } | Self::Send { stream } => {
                stream
            }
        }
    }
}
