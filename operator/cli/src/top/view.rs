//! The view: policies with their types and workflows, and proxies, computed from two responses of
//! each proxy.
//!
//! Proxies that enforce the same policy are shown as one: rates, slots and queues add up,
//! percentiles are those of all requests. Nothing here asks, waits or draws; the same responses
//! always give the same view.
//!
//! Rates are in requests/s over the window, times in ms. Values that a proxy's version doesn't have
//! are absent rather than 0.

mod build;
mod proxies;
mod types;
mod workflows;

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use serde::Serialize;

use super::fleet::Fleet;
use headgate_controller::xds::timestamp::rfc3339;

/// All values to show.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// The time of the view, RFC 3339.
    pub time: String,
    /// The time that rates are over, s. Less right after the start.
    pub window_seconds: f64,
    /// By place.
    pub proxies: Vec<ProxyRow>,
    /// Policies, the one with the most refused or late requests first.
    pub policies: Vec<PolicyRow>,
}

/// A proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct ProxyRow {
    /// The place of its admin interface.
    pub proxy: String,
    /// Whether it answers.
    pub state: State,
    /// The reason why it doesn't answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Time since the first of its failures in a row, s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<f64>,
    /// Node id.
    pub node: String,
    /// Version of Envoy.
    pub version: String,
    /// The kind of filter that it runs, `wasm` or `native`; none if no policy is in force.
    pub filter: Option<&'static str>,
    /// Age of its process, s.
    pub uptime_seconds: Option<u64>,
    /// The number of observed restarts.
    pub restarts: u32,
    /// Policies that it enforces.
    pub policies: Vec<String>,
    /// Requests that arrived.
    pub arrival_rate: Option<f64>,
    /// Requests that were refused, by types or by the rates of workflows.
    pub refused_rate: Option<f64>,
    /// Slots in use.
    pub slots_in_use: Option<u64>,
    /// Slots.
    pub slots: Option<u64>,
    /// Requests/s that were refused, or late beyond the share that objectives allow.
    pub hurt: f64,
}

/// Whether a proxy answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
pub enum State {
    /// It has not responded yet.
    #[default]
    Asked,
    /// It answers.
    Answers,
    /// It doesn't answer, and is asked again.
    Unreachable,
}

/// A policy, over all proxies that enforce it.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRow {
    /// `namespace/name`.
    pub policy: String,
    /// The number of proxies that were added up.
    pub proxies: usize,
    /// Requests that the backend may work on at once.
    pub slots: Option<u64>,
    /// Slots in use.
    pub slots_in_use: Option<u64>,
    /// Requests that wait for a slot.
    pub queue_length: Option<u64>,
    /// Time that the backend is expected to need for queued requests, ms.
    pub queued_work_ms: Option<f64>,
    /// Requests of all types.
    pub traffic: Traffic,
    /// Requests that passed without a decision because a host call failed.
    pub unmanaged_rate: Option<f64>,
    /// Proxies at which starvation avoidance needs more slots than exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floors_over_capacity: Option<u64>,
    /// Types, the one with the most refused or late requests first.
    pub types: Vec<TypeRow>,
    /// Requests/s that were refused, or late beyond the share that objectives allow.
    pub hurt: f64,
    /// Its workflows; none if they aren't configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflows: Option<Workflows>,
}

/// Requests, and the decisions about them.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Arrived.
    pub arrival_rate: Option<f64>,
    /// Decided to admit.
    pub accepted_rate: Option<f64>,
    /// Refused.
    pub refused_rate: Option<f64>,
    /// Would have been refused, but the policy is in dry run.
    pub would_refuse_rate: Option<f64>,
    /// Answered by the backend.
    pub completed_rate: Option<f64>,
    /// Decisions to refuse, by reason; those of a dry run included.
    pub refused_by_reason: BTreeMap<String, f64>,
}

/// A type of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct TypeRow {
    /// Its name; `_other` for those that share stats.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its requests.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Time in the queue.
    pub queue_wait_ms: Option<Percentiles>,
    /// Time in the queue and in the backend.
    pub response_time_ms: Option<Percentiles>,
    /// Its objectives, and their attainment.
    pub objectives: Vec<Objective>,
    /// Requests/s that were refused, or late beyond the share that objectives allow.
    pub hurt: f64,
}

/// Percentiles of times, ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// An objective.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Objective {
    /// `p90`, `p99_9`.
    pub objective: String,
    /// The response time of the objective, ms.
    pub response_time_ms: Option<f64>,
    /// Share of responses that have to be in time, ratio 0..=1.
    pub target: Option<f64>,
    /// Share of responses that were in time; none without responses.
    pub attainment: Option<f64>,
}

/// Workflows of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Workflows {
    /// The number of workflows with rates of their own, in the process that knows most.
    pub known: Option<u64>,
    /// Requests of workflows beyond the cap, which share a rate.
    pub folded_rate: Option<f64>,
    /// Rates that expired without renewal, per second.
    pub rates_expired_rate: Option<f64>,
    /// Announcements by peers that aren't trusted, per second.
    pub rates_refused_rate: Option<f64>,
    /// Workflows, the one with the most refused requests first.
    pub rows: Vec<WorkflowRow>,
}

/// A workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRow {
    /// Its name; `_other` for those beyond the cap.
    pub workflow: String,
    /// λ as the processes measure it, refused requests included.
    pub demand_rate: Option<f64>,
    /// Arrived.
    pub offered_rate: Option<f64>,
    /// σ, the rate in force, over all processes; none if some process has no limit.
    pub limit_rate: Option<f64>,
    /// The rate that the processes themselves can serve (Wisp, Algorithm 1, line 1).
    pub local_limit_rate: Option<f64>,
    /// Admitted.
    pub admitted_rate: Option<f64>,
    /// Rejected for the rate, in a dry run too.
    pub rate_limited_rate: Option<f64>,
    /// Rejected for its deadline, in a dry run too.
    pub deadline_rate: Option<f64>,
    /// Rejected and refused.
    pub refused_rate: Option<f64>,
    /// Rejected by a dry run, which refuses no request.
    pub would_refuse_rate: Option<f64>,
    /// Answered.
    pub completed_rate: Option<f64>,
    /// Calls to other services on its behalf.
    pub calls_rate: Option<f64>,
    /// Requests that the rate limiter holds.
    pub queue_length: Option<u64>,
    /// Time that the rate limiter held them.
    pub wait_ms: Option<Percentiles>,
    /// Mean time from admission to the end, here and downstream.
    pub completion_ms: Option<f64>,
    /// The limits that set the rate, the most frequent first; none if no rate is in force.
    pub bottlenecks: Vec<Bottleneck>,
    /// Requests/s that were refused.
    pub hurt: f64,
}

/// The place that sets a rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bottleneck {
    /// `local`, or the downstream service.
    pub place: String,
    /// The number of proxies with this bottleneck.
    pub proxies: usize,
}

impl View {
    /// Computes the view of `fleet` at `now`; of one proxy if `only` names it.
    #[must_use]
    pub fn new(fleet: &Fleet, only: Option<&str>, now: Instant, time: SystemTime) -> Self {
        let mut view = build::policies(fleet, only);
        view.proxies = proxies::rows(fleet, now);
        view.time = rfc3339(time);
        view
    }

    /// Returns the number of proxies that don't answer.
    #[must_use]
    pub fn unreachable(&self) -> usize {
        let silent = |p: &&ProxyRow| p.state == State::Unreachable;
        self.proxies.iter().filter(silent).count()
    }
}

/// Returns the sum of the known parts; `None` if no part is known.
pub(super) fn sum<T: std::ops::Add<Output = T>>(
    parts: impl Iterator<Item = Option<T>>,
) -> Option<T> {
    parts.flatten().reduce(std::ops::Add::add)
}

impl Objective {
    /// Returns the share of the responses that were late beyond the share that the objective
    /// allows, ratio 0..=1.
    #[must_use]
    pub fn shortfall(&self) -> f64 {
        match (self.target, self.attainment) {
            (Some(target), Some(attainment)) => (target - attainment).max(0.0),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests;
