//! The reason for which a request is refused, and the answer that it gets.

use std::fmt;

/// Defines [`Reason`], and the answer for each reason, from one list.
macro_rules! reasons {
    ($($(#[$doc:meta])+ $reason:ident => $answer:expr,)+) => {
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
                    Self::Objective(_) => const {
                        &Reply {
                            about_objectives: true,
                            lacks_slots: true,
                            ..overload("slo", "its response time objective would be missed")
                        }
                    },
                    $(Self::$reason => const { &$answer },)+
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

/// Returns the answer of an overloaded service, for a limit that more slots wouldn't change.
const fn overload(name: &'static str, text: &'static str) -> Reply {
    Reply {
        name,
        text,
        http: 503,
        grpc: UNAVAILABLE,
        about_objectives: false,
        lacks_slots: false,
    }
}

const DEADLINE_EXCEEDED: i32 = 4;
const RESOURCE_EXHAUSTED: i32 = 8;
const UNAVAILABLE: i32 = 14;

reasons! {
    /// Other requests have more value per slot time (`strategy::value_cut`).
    Value => Reply {
        about_objectives: true,
        lacks_slots: true,
        ..overload(
            "value",
            "other requests have more value per processing time and need the slots",
        )
    },
    /// Requests of the same type hold slots and are not answered in time (`strategy::value_cut`).
    Unresponsive => overload(
        "unresponsive",
        "requests of its type aren't answered in time and hold slots that other types need",
    ),
    /// The queue has its maximum length.
    QueueFull => Reply {
        lacks_slots: true,
        ..overload("queue_full", "the queue is full")
    },
    /// The request waited, or would wait, longer than `queue.timeout`.
    QueueTimeout => Reply {
        lacks_slots: true,
        ..overload(
            "queue_timeout",
            "it waited, or would wait, longer than the queue's timeout, or than its last objective \
             allows while P has no limit",
        )
    },
    /// The request's own deadline passes before it could be served.
    Deadline => Reply {
        http: 504,
        grpc: DEADLINE_EXCEEDED,
        ..overload(
            "deadline",
            "its own deadline passed, or would pass, before its response",
        )
    },
    /// The estimated queue wait exceeds the strategy's limit (Bouncer §5.2.2).
    QueueWait => Reply {
        about_objectives: true,
        ..overload("queue_wait", "its estimated wait in the queue exceeds the limit")
    },
    /// The offered work exceeds the backend's allowed utilization (Bouncer §5.2.3).
    Utilization => overload(
        "utilization",
        "the backend's utilization exceeds the limit",
    ),
    /// With the request the backlog would exceed its bound (Chronos Eq. 2).
    Backlog => Reply {
        about_objectives: true,
        ..overload(
            "backlog",
            "the backlog would exceed its bound",
        )
    },
    /// The request exceeds the rate that measured response times allow (SEDA §3.2).
    ResponseTime => Reply {
        about_objectives: true,
        ..overload(
            "response_time",
            "it exceeds the request rate that response times allow",
        )
    },
    /// The request is a retry, and first attempts of its type are refused ([`crate::retries`]).
    Retry => overload(
        "retry",
        "it is a retry, and first attempts of its type are being refused",
    ),
    /// The request's workflow exceeds its rate, at this process or at a downstream process (Wisp
    /// §4.1).
    RateLimited => Reply {
        http: 429,
        grpc: RESOURCE_EXHAUSTED,
        ..overload(
            "rate_limit",
            "its workflow exceeds its current rate",
        )
    },
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
pub fn percentile_name(percentile: f64) -> String {
    format!("p{percentile}").replace('.', "_")
}
