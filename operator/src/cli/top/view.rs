//! The view: policies with their types and workflows, and proxies, worked out of two answers of each proxy.
//!
//! Proxies that enforce the same policy are shown as one: rates, slots and queues add up, percentiles are those of all
//! requests. Nothing here asks, waits or draws; the same answers always give the same view.
//!
//! Rates are in requests/s over the window, times in ms. What a proxy's version doesn't have is absent rather than 0.

mod build;
mod proxies;
mod types;
mod workflows;

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use serde::Serialize;

use super::fleet::Fleet;
use crate::xds::timestamp::rfc3339;

/// Everything that is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// When, RFC 3339.
    pub time: String,
    /// The time that rates are over, s. Less right after the start.
    pub window_seconds: f64,
    /// By place.
    pub proxies: Vec<ProxyRow>,
    /// Those that hurt most come first.
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
    /// Why it doesn't.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// For how long it hasn't, s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<f64>,
    /// Node id.
    pub node: String,
    /// Version of Envoy.
    pub version: String,
    /// The kind of filter that it runs, `wasm` or `native`; none where no policy is in force.
    pub filter: Option<&'static str>,
    /// Age of its process, s.
    pub uptime_seconds: Option<u64>,
    /// How often it was seen to have started anew.
    pub restarts: u32,
    /// Policies that it enforces.
    pub policies: Vec<String>,
    /// Requests that arrived.
    pub arrival_rate: Option<f64>,
    /// Requests that were refused, by types or by the rates of workflows.
    pub refused_rate: Option<f64>,
    /// Slots that are taken.
    pub slots_in_use: Option<u64>,
    /// Slots.
    pub slots: Option<u64>,
    /// Requests/s that were refused or, beyond what objectives allow, late.
    pub hurt: f64,
}

/// Whether a proxy answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Default)]
pub enum State {
    /// It has not been heard of yet.
    #[default]
    Asked,
    /// It answers.
    Answers,
    /// It doesn't, and is asked again.
    Unreachable,
}

/// A policy, over all proxies that enforce it.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRow {
    /// `namespace/name`.
    pub policy: String,
    /// How many proxies were added up.
    pub proxies: usize,
    /// Requests that the backend may work on at once.
    pub slots: Option<u64>,
    /// Those that are taken.
    pub slots_in_use: Option<u64>,
    /// Requests that wait for a slot.
    pub queue_length: Option<u64>,
    /// Time that the backend is expected to need for them, ms.
    pub queued_work_ms: Option<f64>,
    /// Requests of all types.
    pub traffic: Traffic,
    /// Requests that passed without a decision because a host call failed.
    pub unmanaged_rate: Option<f64>,
    /// Proxies at which starvation avoidance asks for more slots than there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floors_over_capacity: Option<u64>,
    /// Those that hurt most come first.
    pub types: Vec<TypeRow>,
    /// Requests/s that were refused or, beyond what objectives allow, late.
    pub hurt: f64,
    /// Its workflows; none where they aren't configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflows: Option<Workflows>,
}

/// Requests, and what became of them.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Arrived.
    pub arrival_rate: Option<f64>,
    /// Decided to admit.
    pub accepted_rate: Option<f64>,
    /// Refused.
    pub refused_rate: Option<f64>,
    /// Would have been refused, but the policy only counts.
    pub would_refuse_rate: Option<f64>,
    /// Answered by the backend.
    pub completed_rate: Option<f64>,
    /// Decisions to refuse, by reason; those that only count among them.
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
    /// Queue and backend.
    pub response_time_ms: Option<Percentiles>,
    /// Its objectives, and how far they are met.
    pub objectives: Vec<Objective>,
    /// Requests/s that were refused or, beyond what objectives allow, late.
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
    /// The response time that is promised, ms.
    pub response_time_ms: Option<f64>,
    /// Share of responses that have to be in time, ratio 0..=1.
    pub target: Option<f64>,
    /// Share of responses that were; none without responses.
    pub attainment: Option<f64>,
}

/// Workflows of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct Workflows {
    /// How many have rates of their own, in the process that knows most.
    pub known: Option<u64>,
    /// Requests of workflows beyond the cap, which share a rate.
    pub folded_rate: Option<f64>,
    /// Rates that nobody renewed, per second.
    pub rates_expired_rate: Option<f64>,
    /// Announcements that weren't believed, per second.
    pub rates_refused_rate: Option<f64>,
    /// Those that hurt most come first.
    pub rows: Vec<WorkflowRow>,
}

/// A workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowRow {
    /// Its name; `_other` for those beyond the cap.
    pub workflow: String,
    /// λ as the processes see it, whatever is refused included.
    pub demand_rate: Option<f64>,
    /// Arrived.
    pub offered_rate: Option<f64>,
    /// σ, the rate in force, over all processes; none where some process limits nothing.
    pub limit_rate: Option<f64>,
    /// The rate that the processes themselves could do (Wisp, Algorithm 1, line 1).
    pub local_limit_rate: Option<f64>,
    /// Let in.
    pub admitted_rate: Option<f64>,
    /// Rejected for the rate, in a dry run too.
    pub rate_limited_rate: Option<f64>,
    /// Rejected for its deadline, in a dry run too.
    pub deadline_rate: Option<f64>,
    /// Rejected and refused.
    pub refused_rate: Option<f64>,
    /// Rejected by a dry run, which refuses nobody.
    pub would_refuse_rate: Option<f64>,
    /// Answered.
    pub completed_rate: Option<f64>,
    /// Calls to other services on its behalf.
    pub calls_rate: Option<f64>,
    /// Requests that the rate limiter holds.
    pub queue_length: Option<u64>,
    /// Time that it held them.
    pub wait_ms: Option<Percentiles>,
    /// Mean time from admission to the end, here and below.
    pub completion_ms: Option<f64>,
    /// The limits that set the rate, the most frequent first; none where no rate is in force.
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
    /// How many proxies say so.
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

    /// How many proxies don't answer.
    #[must_use]
    pub fn unreachable(&self) -> usize {
        let silent = |p: &&ProxyRow| p.state == State::Unreachable;
        self.proxies.iter().filter(silent).count()
    }
}

/// The sum of the parts that are known; none if no part is.
pub(super) fn sum<T: std::ops::Add<Output = T>>(
    parts: impl Iterator<Item = Option<T>>,
) -> Option<T> {
    parts.flatten().reduce(std::ops::Add::add)
}

impl Objective {
    /// Share of the responses that were late beyond what the objective allows, ratio 0..=1.
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
