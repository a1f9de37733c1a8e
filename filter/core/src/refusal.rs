//! What a refused client is told: why, and when it is worth coming back.
//!
//! The wait to come back is the time the queue needs to drain until the same request would be
//! admitted, with jitter on top so that refused clients don't return together.

use std::time::Duration;

use crate::request::TypeId;
use crate::rng::Rng;
use crate::workflows::{ProcessId, WorkflowId};

/// Why a request was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The estimated response time at this objective (index into the type's) misses it.
    Objective(u8),
    /// The queue holds as many requests as it may.
    QueueFull,
    /// The estimated queue wait exceeds the strategy's limit.
    QueueWait,
    /// More is asked of the backend than the strategy's utilization allows.
    Utilization,
    /// With it, more would wait than the strategy's target allows.
    Backlog,
    /// Measured response times allow for no more requests a second.
    ResponseTime,
    /// It waited, or would wait, longer than `queue.timeout`.
    QueueTimeout,
    /// The request's own deadline passes before it could be served.
    Deadline,
    /// Its workflow sends more than it may, here or at a process further down (Wisp §4.1).
    RateLimited,
}

impl Cause {
    /// HTTP status: 504 for the request's own deadline, 429 for a workflow over its rate, 503 for everything
    /// that overload causes.
    #[must_use]
    pub fn http_status(self) -> u32 {
        match self {
            Self::Deadline => 504,
            Self::RateLimited => 429,
            Self::Objective(_)
            | Self::QueueFull
            | Self::QueueWait
            | Self::Utilization
            | Self::Backlog
            | Self::ResponseTime
            | Self::QueueTimeout => 503,
        }
    }

    /// gRPC status code: 4 `DEADLINE_EXCEEDED`, 8 `RESOURCE_EXHAUSTED` or 14 `UNAVAILABLE`.
    #[must_use]
    pub fn grpc_status(self) -> i32 {
        match self {
            Self::Deadline => 4,
            Self::RateLimited => 8,
            Self::Objective(_)
            | Self::QueueFull
            | Self::QueueWait
            | Self::Utilization
            | Self::Backlog
            | Self::ResponseTime
            | Self::QueueTimeout => 14,
        }
    }
}

/// Whose request it was: a refusal, too, tells the process that sent it what it may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Its workflow.
    pub workflow: WorkflowId,
    /// The process that sent it; `None`: it enters the mesh here.
    pub upstream: Option<ProcessId>,
}

/// A request that was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Its type.
    pub kind: TypeId,
    /// Why.
    pub cause: Cause,
    /// When coming back is worth it; jitter included, never zero.
    pub retry_after: Duration,
    /// Whose request it was, where its stage has workflows.
    pub origin: Option<Origin>,
}

impl Refusal {
    /// `drain` is the time after which the same request would be admitted.
    #[must_use]
    pub fn new(kind: TypeId, cause: Cause, drain: Duration, rng: &mut Rng) -> Self {
        let base = drain.max(Duration::from_millis(1));
        Self {
            kind,
            cause,
            retry_after: base + base.mul_f64(rng.next_f64()),
            origin: None,
        }
    }

    /// The same, of a request from `origin`.
    #[must_use]
    pub fn to(self, origin: Origin) -> Self {
        Self {
            origin: Some(origin),
            ..self
        }
    }

    /// For `retry-after`, which counts whole seconds: at least 1, and jittered again because a drain of
    /// milliseconds would round to the same second for everybody.
    #[must_use]
    pub fn retry_after_secs(&self, rng: &mut Rng) -> u64 {
        let secs = self.retry_after.as_secs_f64().ceil().max(1.0);
        (secs + (rng.next_f64() * (secs + 1.0)).floor()) as u64
    }

    /// For `grpc-retry-pushback-ms`: at least 1.
    #[must_use]
    pub fn pushback_ms(&self) -> u64 {
        u64::try_from(self.retry_after.as_millis())
            .unwrap_or(u64::MAX)
            .max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_come_back_after_the_drain_and_not_together() {
        let mut rng = Rng::new(7);
        let refusal = |ms, rng: &mut Rng| {
            Refusal::new(TypeId(0), Cause::QueueFull, Duration::from_millis(ms), rng)
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
