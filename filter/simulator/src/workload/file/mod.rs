//! A workload as people write it.
//!
//! These types take what a file hands over, refuse unknown fields, and keep texts as texts;
//! [`WorkloadFile::plan`] turns them into a [`Plan`](crate::trial::Plan) that can't be wrong, or says of
//! every field that is wrong what was found and what would be right. Choices are a name beside optional
//! settings rather than untagged unions, so that messages can name the field at fault.

mod check;
pub(crate) mod problem;
mod service_time;
mod text;
mod types;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub use problem::{Problem, Right, Step};
pub use text::{Time, TimeError};

/// What arrives, and how much of it to simulate.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with types and load, or with recorded"
)]
pub struct WorkloadFile {
    /// How gaps between requests vary.
    pub arrivals: Arrivals,
    /// Loads to simulate one after the other, in multiples of full load (of a recording: of its rate).
    pub load: Numbers,
    /// The same in requests per second.
    pub rate: Numbers,
    /// In place of both: a load that changes over time.
    pub phases: Vec<PhaseEntry>,
    /// In place of all of these: clients that wait for their answers.
    pub clients: Option<ClientsEntry>,
    /// Request types; of a recording all that the policy has.
    pub types: Vec<TypeEntry>,
    /// A recorded access log.
    pub recorded: Option<RecordedEntry>,
    /// Slots of the backend, in place of the policy's.
    pub parallelism: Option<i64>,
    /// Requests of each run that count.
    pub requests: Option<i64>,
    /// Runs of each load.
    pub seeds: Option<i64>,
    /// Seed of the first run.
    pub seed: Option<i64>,
    /// Time before results count.
    pub warm_up: Option<Time>,
}

/// How gaps between requests vary.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with process and its settings"
)]
pub struct Arrivals {
    /// Which process.
    pub process: ProcessName,
    /// Settings of `Bursty`.
    pub bursty: Option<BurstyEntry>,
}

/// Which process.
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
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with ratio, share and length"
)]
pub struct BurstyEntry {
    /// Rate in a burst over the rate outside; 5 by default.
    pub ratio: Option<f64>,
    /// Part of the time that is burst; 0.1 by default.
    pub share: Option<f64>,
    /// Mean length of a burst; 1s by default.
    pub length: Option<Time>,
}

/// A part of the time.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with duration and load, or with duration and rate"
)]
pub struct PhaseEntry {
    /// How long.
    pub duration: Time,
    /// Multiples of full load.
    #[serde(default)]
    pub load: Option<f64>,
    /// In place of it, requests per second.
    #[serde(default)]
    pub rate: Option<f64>,
}

/// Clients that wait for their answers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with count, think and smoothing"
)]
pub struct ClientsEntry {
    /// How many.
    pub count: i64,
    /// From an answer, or a refusal, to the next request; 1ms by default.
    #[serde(default)]
    pub think: Option<Time>,
    /// Who is told that requests are refused thinks longer; nobody does by default.
    #[serde(default)]
    pub smoothing: Option<SmoothingEntry>,
}

/// By how much clients think longer, with the rejection rate that they are told as the probability.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with least and most"
)]
pub struct SmoothingEntry {
    /// Shortest delay.
    pub least: Time,
    /// Longest delay.
    pub most: Time,
}

/// A request type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with name, share and serviceTime"
)]
pub struct TypeEntry {
    /// Its name in results; without `request`, that of a type of the policy.
    pub name: String,
    /// Its part of the requests, relative to the other types' parts; 1 by default.
    #[serde(default)]
    pub share: Option<f64>,
    /// What its requests look like: the policy's own rules tell their type.
    #[serde(default)]
    pub request: Option<RequestEntry>,
    /// How long the backend works on one.
    pub service_time: ServiceTimeEntry,
    /// The time that its requests give themselves, in place of their headers'.
    #[serde(default)]
    pub timeout: Option<Time>,
    /// What its requests say they cost.
    #[serde(default)]
    pub cost: Option<i64>,
}

/// What requests look like.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with method, path, headers and route"
)]
pub struct RequestEntry {
    /// `GET` by default.
    pub method: Option<String>,
    /// With or without a query string; `/` by default.
    pub path: Option<String>,
    /// Headers by name.
    pub headers: BTreeMap<String, String>,
    /// Name of the Envoy route that is selected.
    pub route: Option<String>,
}

/// A distribution of service times.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with distribution and its settings"
)]
pub struct ServiceTimeEntry {
    /// Which family.
    pub distribution: DistributionName,
    /// Mean.
    #[serde(default)]
    pub mean: Option<Time>,
    /// Median.
    #[serde(default)]
    pub median: Option<Time>,
    /// 90th percentile.
    #[serde(default)]
    pub p90: Option<Time>,
    /// Of `Pareto`: how fast the tail thins out.
    #[serde(default)]
    pub shape: Option<f64>,
    /// Of `Hyperexponential`: what it is mixed of.
    #[serde(default)]
    pub branches: Option<Vec<BranchEntry>>,
    /// Of `Empirical`: measured times.
    #[serde(default)]
    pub values: Option<Vec<Time>>,
    /// Of `Empirical`: a histogram of measured times.
    #[serde(default)]
    pub histogram: Option<Vec<BucketEntry>>,
}

/// Which family of distributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum DistributionName {
    /// By two of mean, median and p90.
    LogNormal,
    /// By mean.
    Exponential,
    /// Always the mean.
    Constant,
    /// By branches.
    Hyperexponential,
    /// By mean and shape.
    Pareto,
    /// By values or histogram.
    Empirical,
    /// What the recorded requests of the same type took.
    Recorded,
}

/// A branch of a hyperexponential distribution.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with share and mean"
)]
pub struct BranchEntry {
    /// Its part, relative to the others'.
    pub share: f64,
    /// Mean of its times.
    pub mean: Time,
}

/// A bucket of a histogram.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with upTo and share"
)]
pub struct BucketEntry {
    /// Upper bound; the lower is that of the bucket before, or 0.
    pub up_to: Time,
    /// Its part, relative to the others'.
    pub share: f64,
}

/// A recorded access log.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with accessLog"
)]
pub struct RecordedEntry {
    /// The file, from the folder of the workload.
    pub access_log: String,
}

/// A number or a list of numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Numbers {
    /// The numbers.
    pub values: Vec<f64>,
    /// Whether they were written as a list, whose items have places of their own.
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
