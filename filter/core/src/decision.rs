//! The types of decisions on requests, shared by stages, engines and the proxy's glue.
//!
//! A refusal contains the time after which a retry is worthwhile. It is the time until the same
//! request would be admitted, such as until the queue has drained so far, or until the rule that
//! refused it looks again. Jitter is added, so that refused clients don't all return at once.

use std::time::Duration;

use headgate_strategies::reason::Reason;
use headgate_strategies::request::{Attributes, TypeId};
use headgate_strategies::rng::Rng;

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

/// The origin of a request, as ids that [`Beside`](crate::beside::Beside) assigns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The id of the request's flow, or 0 without a flow.
    pub flow: u16,
    /// The id of the process that sent the request, or `None` if unknown.
    pub sender: Option<u64>,
}

/// A refused request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refusal {
    /// The policy that refused the request.
    pub policy: PolicyId,
    /// The request's type.
    pub kind: TypeId,
    /// The reason for the refusal.
    pub reason: Reason,
    /// The time after which a retry is worthwhile, with jitter. Never zero.
    pub retry_after: Duration,
    /// The request's origin.
    pub origin: Origin,
    /// Whether the request would have waited for the rate of its workflow.
    pub by_rate: bool,
}

impl Refusal {
    /// Creates a refusal. `drain` is the time after which the same request would be admitted.
    #[must_use]
    pub fn new(
        policy: PolicyId,
        kind: TypeId,
        reason: Reason,
        drain: Duration,
        origin: Origin,
        rng: &mut Rng,
    ) -> Self {
        let base = drain.max(Duration::from_millis(1));
        Self {
            policy,
            kind,
            reason,
            retry_after: base + base.mul_f64(rng.next_f64()),
            origin,
            by_rate: false,
        }
    }

    /// Returns the value for `retry-after`, in whole seconds. It is at least 1, and has additional
    /// jitter, because a drain of milliseconds would round to the same second for all clients.
    #[must_use]
    pub fn retry_after_secs(&self, rng: &mut Rng) -> u64 {
        let secs = self.retry_after.as_secs_f64().ceil().max(1.0);
        (secs + (rng.next_f64() * (secs + 1.0)).floor()) as u64
    }

    /// Returns the value for `grpc-retry-pushback-ms`, at least 1.
    pub fn pushback_ms(&self) -> u64 {
        u64::try_from(self.retry_after.as_millis())
            .unwrap_or(u64::MAX)
            .max(1)
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
    pub fn stream(&self) -> u32 {
        match *self {
            Self::Resume { stream, .. } | Self::Refuse { stream, .. } | Self::Send { stream } => {
                stream
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_come_back_after_the_drain_and_not_together() {
        let mut rng = Rng::new(7);
        let refusal = |ms, rng: &mut Rng| {
            let (policy, drain) = (PolicyId(0), Duration::from_millis(ms));
            Refusal::new(
                policy,
                TypeId(0),
                Reason::QueueFull,
                drain,
                Origin::default(),
                rng,
            )
        };
        let pushbacks: Vec<u64> = (0..100)
            .map(|_| refusal(40, &mut rng).pushback_ms())
            .collect();
        assert!(
            pushbacks.iter().all(|ms| (40..=80).contains(ms)),
            "{pushbacks:?}"
        );
        assert!(pushbacks.iter().any(|&ms| ms > 60) && pushbacks.iter().any(|&ms| ms < 60));
        assert_eq!(refusal(0, &mut rng).pushback_ms().max(2), 2, "never zero");
        let secs: Vec<u64> = (0..100)
            .map(|_| refusal(40, &mut rng).retry_after_secs(&mut rng))
            .collect();
        assert!(secs.contains(&1) && secs.contains(&2) && secs.iter().all(|s| (1..=2).contains(s)));
    }
}
