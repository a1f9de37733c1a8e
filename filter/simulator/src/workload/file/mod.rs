//! The file format of a workload.
//!
//! These types accept the fields of a file, refuse unknown fields, and keep text fields unparsed.
//! [`WorkloadFile::plan`] turns a file into a valid [`Plan`](crate::trial::Plan), or returns a
//! problem for every invalid field: the value found and a valid example. A choice is a name with
//! optional settings beside it rather than an untagged union, so that messages can name the invalid
//! field.

mod check;
pub(crate) mod problem;
mod service_time;
mod text;
mod types;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub use problem::{Problem, Right};
pub use text::Time;

/// The arriving requests, and the size of their simulation.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkloadFile {
    /// The distribution of the gaps between requests.
    pub arrivals: Arrivals,
    /// Loads to simulate one after the other, in multiples of full load, or for a recording, in
    /// multiples of the recorded rate.
    pub load: Numbers,
    /// Loads in requests per second, in place of `load`.
    pub rate: Numbers,
    /// A load that changes over time, in place of `load` and `rate`.
    pub phases: Vec<PhaseEntry>,
    /// Closed-loop clients, in place of `load`, `rate` and `phases`.
    pub clients: Option<ClientsEntry>,
    /// Request types. With a recording, the default is all types of the policy.
    pub types: Vec<TypeEntry>,
    /// A recorded access log.
    pub recorded: Option<RecordedEntry>,
    /// Slots of the backend, in place of the policy's.
    pub parallelism: Option<i64>,
    /// Requests of each run that count in its results.
    pub requests: Option<i64>,
    /// The number of runs of each load.
    pub seeds: Option<i64>,
    /// Seed of the first run.
    pub seed: Option<i64>,
    /// Time before results count.
    pub warm_up: Option<Time>,
}

/// The distribution of the gaps between requests.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Arrivals {
    /// The arrival process.
    pub process: ProcessName,
    /// Settings of `Bursty`.
    pub bursty: Option<BurstyEntry>,
}

/// The name of an arrival process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum ProcessName {
    /// Exponential gaps.
    #[default]
    Poisson,
    /// Equal gaps.
    Constant,
    /// Poisson at a rate that jumps between two values.
    Bursty,
}

/// Settings of `Bursty`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BurstyEntry {
    /// Rate in a burst over the rate outside; 5 by default.
    pub ratio: Option<f64>,
    /// Ratio of the time in bursts; 0.1 by default.
    pub share: Option<f64>,
    /// Mean length of a burst; 1s by default.
    pub length: Option<Time>,
}

/// A span of time with one load.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PhaseEntry {
    /// The length of the phase.
    pub duration: Time,
    /// The load, in multiples of full load.
    pub load: Option<f64>,
    /// The rate, requests per second, in place of the load.
    pub rate: Option<f64>,
}

/// Clients of a closed loop. Each client waits for its answer before it sends its next request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientsEntry {
    /// The number of clients.
    pub count: i64,
    /// Think time between an answer, or a refusal, and the next request; 1ms by default.
    pub think: Option<Time>,
    /// The additional delay of clients that receive a rejection rate; none by default.
    pub smoothing: Option<SmoothingEntry>,
}

/// A range of additional delays of clients. The probability of a delay is the rejection rate that
/// the client received.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SmoothingEntry {
    /// The shortest delay.
    pub least: Time,
    /// The longest delay.
    pub most: Time,
}

/// A request type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TypeEntry {
    /// The type's name in results. Without `request`, this is the name of a type of the policy.
    pub name: String,
    /// The type's weight among the requests, relative to the other types; 1 by default.
    pub share: Option<f64>,
    /// A sample request. The policy's own rules derive the type of this request.
    pub request: Option<RequestEntry>,
    /// The backend's service time for one request.
    pub service_time: ServiceTimeEntry,
    /// The deadline of the type's requests, in place of the deadlines in their headers.
    pub timeout: Option<Time>,
    /// The cost in the header of the type's requests.
    pub cost: Option<i64>,
}

/// A sample request of a type or an operation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RequestEntry {
    /// The method; `GET` by default.
    pub method: Option<String>,
    /// The path, with or without a query string; `/` by default.
    pub path: Option<String>,
    /// Headers by name.
    pub headers: BTreeMap<String, String>,
    /// Name of the selected Envoy route.
    pub route: Option<String>,
}

/// A distribution of service times.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceTimeEntry {
    /// The family of the distribution.
    pub distribution: DistributionName,
    /// Mean.
    pub mean: Option<Time>,
    /// Median.
    pub median: Option<Time>,
    /// 90th percentile.
    pub p90: Option<Time>,
    /// The shape of `Pareto`. A larger shape has a lighter tail.
    pub shape: Option<f64>,
    /// The branches of `Hyperexponential`.
    pub branches: Option<Vec<BranchEntry>>,
    /// Measured times, for `Empirical`.
    pub values: Option<Vec<Time>>,
    /// A histogram of measured times, for `Empirical`.
    pub histogram: Option<Vec<BucketEntry>>,
}

/// The name of a family of distributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum DistributionName {
    /// Set by two of mean, median and p90.
    LogNormal,
    /// Set by its mean.
    Exponential,
    /// Always the mean.
    Constant,
    /// Set by its branches.
    Hyperexponential,
    /// Set by mean and shape.
    Pareto,
    /// Set by values or a histogram.
    Empirical,
    /// The service times of the recorded requests of the same type.
    Recorded,
}

/// A branch of a hyperexponential distribution.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BranchEntry {
    /// The branch's weight, relative to the other branches.
    pub share: f64,
    /// The mean of the branch's times.
    pub mean: Time,
}

/// A bucket of a histogram.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BucketEntry {
    /// The upper bound. The lower bound is the upper bound of the bucket before, or 0.
    pub up_to: Time,
    /// The bucket's weight, relative to the other buckets.
    pub share: f64,
}

/// A recorded access log.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordedEntry {
    /// The path of the file, relative to the folder of the workload.
    pub access_log: String,
}

/// A number or a list of numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Numbers {
    /// The numbers.
    pub values: Vec<f64>,
    /// Whether the numbers were written as a list, so that problems can name an item.
    pub is_list: bool,
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;

        fn one(value: f64) -> Numbers {
            Numbers {
                values: vec![value],
                is_list: false,
            }
        }

        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Numbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a list of numbers, such as [0.9, 1.2, 1.5]")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Numbers, E> {
                Ok(Numbers::default())
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Numbers, E> {
                Ok(one(value as f64))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Numbers, E> {
                Ok(one(value as f64))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Numbers, E> {
                Ok(one(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Numbers, A::Error> {
                let mut numbers = Numbers {
                    values: Vec::new(),
                    is_list: true,
                };
                while let Some(value) = seq.next_element()? {
                    numbers.values.push(value);
                }
                Ok(numbers)
            }
        }

        deserializer.deserialize_any(OneOrMany)
    }
}
