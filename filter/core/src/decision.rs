//! The types of decisions on requests, shared by strategies, stages, engines and the proxy's glue.

use crate::refusal::{Origin, Refusal};
use crate::request::Attributes;

/// A policy's number within its engine; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyId(pub u32);

/// A request's place in the table of its policy, from its arrival to its end. After that the ticket
/// is void: its slot is reused with another generation.
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
    /// No policy manages it: let it through.
    PassBy,
    /// Send it to the backend now.
    Forward(Ticket),
    /// Hold it until an [`Action`] names its stream.
    Hold(Ticket),
    /// Answer it now.
    Refuse(Refusal),
}

/// An action that the caller must execute on a request or an outbound call that it holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// Send it to the backend: it has a slot, or its policy was removed.
    Resume {
        /// The caller's id for the request.
        stream: u32,
        /// The ticket with which it was held.
        ticket: Ticket,
    },
    /// Answer it; its ticket is void.
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
    /// The caller's id for the request.
    #[must_use]
    pub fn stream(&self) -> u32 {
        match *self {
            Self::Resume { stream, .. } | Self::Refuse { stream, .. } | Self::Send { stream } => {
                stream
            }
        }
    }
}
