//! A refusal's reason and the time after which a retry is worthwhile.
//!
//! It is the time until the same request would be admitted, such as until the queue has drained so
//! far, or until the rule that refused it looks again. Jitter is added, so that refused clients
//! don't all return at once.

use std::fmt;
use std::time::Duration;

use crate::decision::PolicyId;
use crate::request::TypeId;
use crate::rng::Rng;
use crate::stats::percentile_name;

/// Defines [`Reason`], and the answer for each reason, from one list.
macro_rules! reasons {
    ($($(#[$doc:meta])+ $reason:ident { $($field:ident: $value:expr,)+ })+) => {
        /// The reason why a request was refused.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum Reason {
            /// The estimated response time at this percentile misses its objective (Bouncer Alg.
            /// 1).
            Objective(f64),
            $($(#[$doc])+ $reason,)+
        }

        impl Reason {
            /// All reasons but [`Reason::Objective`], in the order of their stats.
            pub const FIXED: &[Self] = &[$(Self::$reason),+];

            /// Returns the reason's name and the answer to the client.
            #[must_use]
            pub const fn answer(self) -> &'static Reply {
                match self {
                    Self::Objective(_) => &OBJECTIVE,
                    $(Self::$reason => &Reply { $($field: $value),+ },)+
                }
            }
        }
    };
}

/// The name of a reason and the answer to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The reason's name in headers, response code details and stats.
    pub name: &'static str,
    /// The end of the sentence "refused: …".
    pub text: &'static str,
    /// HTTP status code.
    pub http: u32,
    /// gRPC status code.
    pub grpc: i32,
    /// Whether the request was refused for its estimated response time rather than for a limit.
    /// Starvation avoidance may override only such refusals.
    pub about_objectives: bool,
    /// Whether more slots would have avoided the refusal. The search for P must then take it into
    /// account. False for strategies with a target of their own.
    pub lacks_slots: bool,
}

const OBJECTIVE: Reply = Reply {
    name: "slo",
    text: "its response time objective would be missed",
    http: 503,
    grpc: UNAVAILABLE,
    about_objectives: true,
    lacks_slots: true,
};
const DEADLINE_EXCEEDED: i32 = 4;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNAVAILABLE: i32 = 14;

reasons! {
    /// Other requests have more value per slot time (`strategy::value_cut`).
    Value {
        name: "value",
        text: "the slots are needed for requests that are worth more of their time",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: true,
        lacks_slots: true,
    }
    /// Requests of the same type hold slots and are not answered in time (`strategy::value_cut`).
    Unresponsive {
        name: "unresponsive",
        text: "requests of its type aren't answered in time and hold slots that others need",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: false,
        lacks_slots: false,
    }
    /// The queue has its maximum length.
    QueueFull {
        name: "queue_full",
        text: "the queue is full",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: false,
        lacks_slots: true,
    }
    /// The request waited, or would wait, longer than `queue.timeout`.
    QueueTimeout {
        name: "queue_timeout",
        text: "it would wait, or waited, longer than the queue's timeout",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: false,
        lacks_slots: true,
    }
    /// The request's own deadline passes before it could be served.
    Deadline {
        name: "deadline",
        text: "its own deadline would pass, or passed, before its answer",
        http: 504,
        grpc: DEADLINE_EXCEEDED,
        about_objectives: false,
        lacks_slots: false,
    }
    /// The estimated queue wait exceeds the strategy's limit (Bouncer §5.2.2).
    QueueWait {
        name: "queue_wait",
        text: "it would wait too long in the queue",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: true,
        lacks_slots: false,
    }
    /// The offered work exceeds the backend's allowed utilization (Bouncer §5.2.3).
    Utilization {
        name: "utilization",
        text: "the backend has more to do than it should have",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: false,
        lacks_slots: false,
    }
    /// With the request the backlog would exceed its bound (Chronos Eq. 2).
    Backlog {
        name: "backlog",
        text: "with it, more would wait than the target of response times allows",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: true,
        lacks_slots: false,
    }
    /// The request exceeds the rate that measured response times allow (SEDA §3.2).
    ResponseTime {
        name: "response_time",
        text: "response times allow for no more requests at the moment",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: true,
        lacks_slots: false,
    }
    /// The request is a retry, and first attempts of its type are refused ([`crate::retries`]).
    Retry {
        name: "retry",
        text: "it is a retry, and first attempts of its type are refused at the moment",
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: false,
        lacks_slots: false,
    }
    /// The request's workflow exceeds its rate, at this process or at a downstream process (Wisp
    /// §4.1).
    RateLimited {
        name: "rate_limit",
        text: "its workflow sends more than it may at the moment",
        http: 429,
        grpc: RESOURCE_EXHAUSTED,
        about_objectives: false,
        lacks_slots: false,
    }
}

/// Formats the reason as in headers, response code details and stats, e.g. `slo_p50` or
/// `queue_full`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.answer().name;
        match self {
            Self::Objective(percentile) => write!(f, "{name}_{}", percentile_name(*percentile)),
            _ => f.write_str(name),
        }
    }
}

/// The origin of a request, as ids that [`Beside`](crate::beside::Beside) assigns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The id of the request's flow, or 0 without a flow.
    pub flow: u16,
    /// The id of the process that sent the request, or `None` if unknown.
    pub sender: Option<u64>,
}

impl Origin {
    /// The origin of a request without Headgate's headers.
    pub const UNKNOWN: Self = Self {
        flow: 0,
        sender: None,
    };
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
    /// The request's origin, if [`Beside`](crate::beside::Beside) has set it.
    pub origin: Option<Origin>,
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
        origin: Option<Origin>,
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
            let (policy, drain) = (PolicyId(0), Duration::from_millis(ms));
            Refusal::new(policy, TypeId(0), Reason::QueueFull, drain, None, rng)
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
