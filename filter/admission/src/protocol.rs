//! The exchange between senders and the server of centralized class admission, as JSON over HTTP/2.
//!
//! ```text
//! POST /v1/admission
//! {"process":"9f86d081884c7d65","services":[{"service":"shop/stock",
//!   "rules":{"targets_us":[15000],"percentile":99,"increase":0.01,"decrease":0.01,
//!            "min_probability":0.1,"scope":"Class",
//!            "method":{"type":"Misses","allowed":5,"period_us":1000000}},
//!   "classes":[{"misses":3}]}]}
//! 200
//! {"services":[{"service":"shop/stock","classes":[{"admit":1}]}]}
//! ```
//!
//! A report contains the calls that completed since the last report, and is also a request for
//! decisions. Classes are listed in order, the highest first. Each report contains the rules. So
//! the server needs no policies, and a replica that has just started can answer. Different rules of
//! a service have separate states, for example while a new policy is rolled out.
//!
//! Reports may be lost, and are never sent again. Readers skip unknown fields.

use std::borrow::Cow;
use std::num::NonZeroU32;

use headgate_config::ServiceAdmissionConfig;
pub use headgate_config::admission_law::Method;
use serde::{Deserialize, Serialize};

use crate::{Scope, Settings};

/// The path of the server's only resource.
pub const PATH: &str = "/v1/admission";
/// Envoy's name of the server's cluster.
pub const CLUSTER: &str = "headgate_admission";
/// The maximum number of services in one report.
pub const MAX_SERVICES: usize = 256;
/// The size of the largest report and the largest answer, bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// The rules of a service by which the server decides. Targets are per call. If the policy's
/// targets are per unit of cost, senders divide the latencies that they report by the cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// The classes' targets and the steps of the probability.
    #[serde(flatten)]
    pub settings: Settings,
    /// The scope of one state, which is the set of calls whose measurements share the state.
    pub scope: Scope,
    /// The server's method.
    #[serde(with = "AnyMethod")]
    pub method: Method,
}

/// [`Method`] in reports, which may come from newer senders. A filter's configuration refuses
/// unknown fields.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Method", tag = "type")]
enum AnyMethod {
    Misses { allowed: NonZeroU32, period_us: u64 },
    Incast { smoothing: f64 },
}

impl Rules {
    /// Returns the rules of a service, or `None` if each sender decides for itself.
    pub fn of(config: &ServiceAdmissionConfig) -> Option<Self> {
        let central = config.central.as_ref()?;
        Some(Self {
            settings: Settings {
                per_cost: false,
                ..config.settings()
            },
            scope: central.scope,
            method: central.method,
        })
    }
}

/// One sender's measurements since its last report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report<'a> {
    /// The sender's unique id.
    pub process: Cow<'a, str>,
    /// The services that the sender calls.
    pub services: Vec<ServiceReport<'a>>,
}

/// The part of a report about one service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceReport<'a> {
    /// The service's name, `namespace/name`.
    pub service: Cow<'a, str>,
    /// The rules by which the server decides.
    pub rules: Cow<'a, Rules>,
    /// The reports on each class except the lowest.
    pub classes: Vec<ClassReport>,
}

/// Calls that ran in a class. With [`Method::Misses`] only `misses` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassReport {
    /// The number of calls that missed the target, including calls that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub misses: u64,
    /// The number of calls with a known latency.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls: u64,
    /// The sum of the queue waits of these calls at the service (their incast delays), µs.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_us: u64,
    /// The sum of the latencies of these calls without their queue waits, µs.
    #[serde(skip_serializing_if = "is_zero")]
    pub round_trip_us: u64,
    /// The total cost of the calls with a known latency that missed the target.
    #[serde(skip_serializing_if = "is_zero")]
    pub missed: u64,
    /// The total cost of the calls that were refused for lack of room, or not answered in time.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // what serde calls
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The decisions for the sender until its next report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decisions<'a> {
    /// The decisions by service, for the services of the report.
    pub services: Vec<ServiceAnswer<'a>>,
}

/// Decisions for the calls to one service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceAnswer<'a> {
    /// The service's name, `namespace/name`.
    pub service: Cow<'a, str>,
    /// The decisions for each class except the lowest.
    pub classes: Vec<Decision>,
}

/// The decision for the calls of a class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The ratio of calls requesting the class that run in the class, 0 ..= 1.
    pub admit: f64,
    /// The time until the end of the period, after which all calls run in the class, µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_us: Option<u64>,
}
