//! The reason for which a request is refused, and the answer that it gets.

use std::fmt;

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

/// Returns an objective's name in stats, headers and response code details: `p50`, or `p99_9` for
/// 99.9.
#[must_use]
pub fn percentile_name(percentile: f64) -> String {
    format!("p{percentile}").replace('.', "_")
}
