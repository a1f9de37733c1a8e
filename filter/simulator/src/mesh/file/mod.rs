//! The file format of a mesh: services that call each other, and the clients of its workflows.
//!
//! As in [`crate::workload::file`], these types accept the fields of a file and refuse unknown
//! fields. [`MeshFile::plan`] turns a file into a valid [`Plan`], or returns a problem for every
//! invalid field, with a valid example.

mod calls;
mod check;
#[cfg(test)]
mod tests;

use serde::Deserialize;

use super::{Graph, Load};
use crate::workload::file::{ProcessName, RequestEntry, ServiceTimeEntry, Time};
use crate::workload::request::SampleRequest;

/// The simulation of a mesh that a file describes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Services and workflows.
    pub graph: Graph,
    /// Clients.
    pub loads: Vec<Load>,
    /// Sample requests by task.
    pub(crate) requests: Vec<SampleRequest>,
    /// Length of a run, s.
    pub duration: f64,
    /// Time before results count, s; less than `duration`.
    pub warm_up: f64,
    /// The number of runs.
    pub seeds: Option<u32>,
    /// Seed of the first run.
    pub seed: Option<u64>,
}

/// Services, workflows and their clients.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MeshFile {
    /// The services.
    pub services: Vec<ServiceEntry>,
    /// The workflows, with their clients.
    pub workflows: Vec<WorkflowEntry>,
    /// The network between processes.
    pub network: NetworkEntry,
    /// Length of a run; 60s by default.
    pub duration: Option<Time>,
    /// Time before results count; a quarter of the duration by default.
    pub warm_up: Option<Time>,
    /// The number of runs, each with its own seed; 1 by default.
    pub seeds: Option<i64>,
    /// Seed of the first run.
    pub seed: Option<i64>,
}

/// A service: identical processes, each with a proxy.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceEntry {
    /// The service's name.
    pub name: String,
    /// The number of processes; 1 by default.
    pub processes: Option<i64>,
    /// Slots of each process.
    pub parallelism: i64,
    /// The number of requests that compute at once in each process, if fewer than its slots.
    pub threads: Option<i64>,
    /// The service's operations.
    pub operations: Vec<OperationEntry>,
}

/// The work of a service for a request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperationEntry {
    /// The operation's name; empty if the service has no other operation.
    #[serde(default)]
    pub name: String,
    /// A sample request, from which the rules of the service's policy derive type and class; by
    /// default `GET` of `/` and the operation's name.
    pub request: Option<RequestEntry>,
    /// The steps, one after the other.
    pub steps: Vec<StepEntry>,
}

/// A step. Exactly one of the two fields is set.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StepEntry {
    /// Work of the process itself.
    pub compute: Option<ServiceTimeEntry>,
    /// Calls to another service.
    pub call: Option<CallEntry>,
}

/// Calls to a service.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CallEntry {
    /// The called service.
    pub service: String,
    /// The called operation; the service's only operation by default.
    #[serde(default)]
    pub operation: String,
    /// The number of calls, 1 by default: the amplification factor.
    pub count: Option<i64>,
    /// Whether all calls are made at once rather than one after the other.
    #[serde(default)]
    pub at_once: bool,
    /// The rule that selects the called process.
    #[serde(default)]
    pub route: RouteName,
    /// The called process, counted from 1, in place of a route.
    pub process: Option<i64>,
}

/// The rule that selects the process for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum RouteName {
    /// Round robin over the processes, for each caller.
    #[default]
    RoundRobin,
    /// Round robin that starts at the first process for each request, so that a request with as
    /// many calls as processes reaches all processes.
    Each,
}

/// A workflow and its clients.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkflowEntry {
    /// The workflow's name, as in policies.
    pub name: String,
    /// The service that the workflow's requests enter.
    pub service: String,
    /// The operation that the workflow's requests enter; the service's only operation by default.
    #[serde(default)]
    pub operation: String,
    /// The timeout of clients; none by default.
    pub timeout: Option<Time>,
    /// The deadline that clients send; none by default.
    pub deadline: Option<Time>,
    /// The clients that send the workflow's requests.
    pub clients: Vec<ClientsEntry>,
}

/// Clients: an open loop with a rate, or a closed loop with a number of clients.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientsEntry {
    /// Requests per second.
    pub rate: Option<f64>,
    /// The distribution of the gaps between requests.
    pub process: ProcessName,
    /// The number of clients that each wait for an answer before they send the next request.
    pub count: Option<i64>,
    /// Think time; 0 by default, 1ms at least.
    pub think: Option<Time>,
    /// The start; the start of the run by default.
    pub from: Option<Time>,
    /// The end; the end of the run by default.
    pub until: Option<Time>,
}

/// The network between processes.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetworkEntry {
    /// One-way delay; 250us by default.
    pub delay: Option<Time>,
    /// The timeout of a call between processes; 5s by default.
    pub timeout: Option<Time>,
    /// The ratio of responses that are lost; 0 by default.
    pub lost: Option<f64>,
}
