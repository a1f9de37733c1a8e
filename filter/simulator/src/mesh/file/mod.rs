//! A mesh as people write it: services that call each other, and the clients of its workflows.
//!
//! As [`crate::workload::file`]: these types take what a file hands over and refuse unknown fields, and
//! [`MeshFile::plan`] makes of them a [`Plan`] that can't be wrong, or says of every field that is wrong what would be
//! right.

mod calls;
mod check;
#[cfg(test)]
mod tests;

use serde::Deserialize;

use super::{Graph, Load};
use crate::workload::file::{ProcessName, RequestEntry, ServiceTimeEntry, Time};
use crate::workload::request::SampleRequest;

/// What to simulate, as a file says it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Services and workflows.
    pub graph: Graph,
    /// Clients.
    pub loads: Vec<Load>,
    /// What requests look like, by task.
    pub(crate) requests: Vec<SampleRequest>,
    /// How long a run is, s.
    pub duration: f64,
    /// Time before results count, s; less than that.
    pub warm_up: f64,
    /// Runs.
    pub seeds: Option<u32>,
    /// Seed of the first run.
    pub seed: Option<u64>,
}

/// Services, workflows and their clients.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with services and workflows"
)]
pub struct MeshFile {
    /// The services.
    pub services: Vec<ServiceEntry>,
    /// The workflows, with their clients.
    pub workflows: Vec<WorkflowEntry>,
    /// What is between processes.
    pub network: NetworkEntry,
    /// How long a run is; 60s by default.
    pub duration: Option<Time>,
    /// Time before results count; a quarter of the duration by default.
    pub warm_up: Option<Time>,
    /// Runs, each with a seed of its own; 1 by default.
    pub seeds: Option<i64>,
    /// Seed of the first run.
    pub seed: Option<i64>,
}

/// A service: processes that are alike, each with a proxy.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with name, parallelism and operations"
)]
pub struct ServiceEntry {
    /// Its name.
    pub name: String,
    /// How many there are; 1 by default.
    #[serde(default)]
    pub processes: Option<i64>,
    /// Slots of each.
    pub parallelism: i64,
    /// Requests that compute at once in each, where these are fewer than its slots.
    #[serde(default)]
    pub threads: Option<i64>,
    /// What it does for requests.
    pub operations: Vec<OperationEntry>,
}

/// What a service does for a request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with steps and, where there are several operations, a name"
)]
pub struct OperationEntry {
    /// Its name; none, where the service has no other.
    #[serde(default)]
    pub name: String,
    /// What its requests look like, from which the rules of the service's policy tell their type and class: `GET` of `/`
    /// and the operation's name by default.
    #[serde(default)]
    pub request: Option<RequestEntry>,
    /// One after the other.
    pub steps: Vec<StepEntry>,
}

/// A step: either of them.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with compute, or with call"
)]
pub struct StepEntry {
    /// The process computes.
    pub compute: Option<ServiceTimeEntry>,
    /// It calls another service.
    pub call: Option<CallEntry>,
}

/// Calls of a service.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with service"
)]
pub struct CallEntry {
    /// Whom.
    pub service: String,
    /// For what; the service's only operation by default.
    #[serde(default)]
    pub operation: String,
    /// How many calls, 1 by default: the amplification factor.
    #[serde(default)]
    pub count: Option<i64>,
    /// All at once rather than one after the other.
    #[serde(default)]
    pub at_once: bool,
    /// Which of its processes.
    #[serde(default)]
    pub route: RouteName,
    /// Always this one, counted from 1, in place of a route.
    #[serde(default)]
    pub process: Option<i64>,
}

/// Which process gets a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum RouteName {
    /// The next.
    #[default]
    RoundRobin,
    /// Each in turn, from the first: a request asks all of them when it makes as many calls as there are.
    Each,
}

/// A workflow and its clients.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a mapping with name, service and clients"
)]
pub struct WorkflowEntry {
    /// Its name, as policies have it.
    pub name: String,
    /// The service at which it enters.
    pub service: String,
    /// What for; the service's only operation by default.
    #[serde(default)]
    pub operation: String,
    /// When its clients give up; never by default.
    #[serde(default)]
    pub timeout: Option<Time>,
    /// What they tell as the time that they have; nothing by default.
    #[serde(default)]
    pub deadline: Option<Time>,
    /// Who sends its requests.
    pub clients: Vec<ClientsEntry>,
}

/// Clients: an open loop with a rate, or a closed loop of so many.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with rate, or with count"
)]
pub struct ClientsEntry {
    /// Requests per second.
    pub rate: Option<f64>,
    /// How gaps between them vary.
    pub process: ProcessName,
    /// Clients that each wait for an answer before they send the next request.
    pub count: Option<i64>,
    /// How long they pause in between; 0 by default, 1ms at least.
    pub think: Option<Time>,
    /// When they begin; at once by default.
    pub from: Option<Time>,
    /// When they end; with the run by default.
    pub until: Option<Time>,
}

/// What is between processes.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    default,
    expecting = "a mapping with delay, timeout and lost"
)]
pub struct NetworkEntry {
    /// One way; 250us by default.
    pub delay: Option<Time>,
    /// When a process gives up a call of its own; 5s by default.
    pub timeout: Option<Time>,
    /// Part of the responses that never arrive; none by default.
    pub lost: Option<f64>,
}
