//! `spec.workflows`: the ids and rates of workflows, and the trusted peers.

pub(super) mod identity;
pub(super) mod named;
pub(super) mod peers;
pub(super) mod services;
pub(super) mod sharing;
pub(super) mod smoothing;
mod warnings;

use std::collections::BTreeMap;

use headgate_core::config::{
    MAX_WORKFLOW_QUEUE, MAX_WORKFLOW_SERVICES, MAX_WORKFLOWS, Mode, OutboundConfig, WorkflowsConfig,
};

use super::{
    At, By, Field, HOUR, MILLISECOND, Open, SECOND, Stored, Table, micros, real, time, whole,
};
use crate::validate::rules::schema::{Rule, SchemaField};
use crate::{AdmissionPolicySpec, Duration, Smoothing};

pub(super) use warnings::warnings;

/// The longest text without another limit, in bytes.
const MAX_BYTES: usize = 256;
const QUANTILE: &str = "a quantile, 0 (the slowest process) to 1 (the fastest)";
pub(super) static FIELDS: Table = fields! {
    "quantile" => real(Stored(0.5), 0.0, 1.0, "").words(QUANTILE),
    "interval" => time(Stored(100.0 * MILLISECOND), 10.0 * MILLISECOND, 10.0 * SECOND),
    // The default depends on the interval.
    "rateTimeout" => time(Open, 20.0 * MILLISECOND, HOUR),
    "maxWorkflows" => whole(Stored(100.0), 1, MAX_WORKFLOWS as u32),
    "maxQueueLength" => whole(Stored(100.0), 0, MAX_WORKFLOW_QUEUE),
    "services" => Field::List(MAX_WORKFLOW_SERVICES, "services", By::Key("name")),
    "services[].name" => services::NAME,
    "services[].quantile" => real(Open, 0.0, 1.0, "").words(QUANTILE),
};
/// The default lifetime of a rate without renewal, in intervals. This lifetime allows for lost
/// responses, and for workflows that seldom call.
const RATE_INTERVALS: u64 = 10;

/// Returns the policy's workflows in the filter's types: the inbound settings, and the settings of
/// calls to other services. Both are `None` without workflows.
pub(super) fn workflows(
    spec: &AdmissionPolicySpec,
    policy: &str,
    at: &At<'_>,
) -> (Option<WorkflowsConfig>, Option<OutboundConfig>) {
    let Some(given) = &spec.workflows else {
        return (None, None);
    };
    let interval_us = at.field("interval").time();
    let max_workflows = at.field("maxWorkflows").whole();
    let peers = peers::peers(&given.peers, &at.field("peers"));
    let inbound = WorkflowsConfig {
        identify: identity::identify(&given.identify_by, &at.field("identifyBy")),
        quantile: at.field("quantile").real(),
        service_quantiles: services::quantiles(&given.services, &at.field("services")),
        interval_us,
        rate_ttl_us: rate_timeout(given, interval_us, &at.field("rateTimeout")),
        sharing: sharing::sharing(&given.sharing, &at.field("sharing")),
        max_workflows: u16::try_from(max_workflows).unwrap_or(MAX_WORKFLOWS),
        max_queue_length: at.field("maxQueueLength").whole(),
        workflows: named::named(&given.named, max_workflows, &at.field("named")),
        edge: given.edge,
        peers: peers.clone(),
    };
    let enforced = spec.mode == Mode::Enforce;
    let at = at.field("outbound");
    let outbound = outbound((policy, enforced), &given.outbound, peers, &at);
    (Some(inbound), Some(outbound))
}

/// Returns the settings of a backend's calls, as given.
pub(super) fn outbound(
    (policy, enforced): (&str, bool),
    given: &crate::Outbound,
    peers: Vec<String>,
    at: &At<'_>,
) -> OutboundConfig {
    let smoothed = |given: &Option<Smoothing>, at: &At<'_>| {
        smoothing::smoothing(given.as_ref(), enforced, &at.field("smoothing"))
    };
    let own = given
        .services
        .iter()
        .enumerate()
        .filter_map(|(i, service)| {
            let range = smoothed(&service.smoothing, &at.field("services").item(i))?;
            Some((service.cluster.clone(), range))
        });
    OutboundConfig {
        policy: policy.to_owned(),
        services: services::clusters(&given.services, &at.field("services")),
        peers,
        class_admission: BTreeMap::new(),
        smoothing: smoothed(&given.smoothing, at),
        service_smoothing: own.collect(),
    }
}

/// Returns the lifetime of a rate, µs.
fn rate_timeout(given: &crate::Workflows, interval_us: u64, at: &At<'_>) -> u64 {
    let Some(timeout) = &given.rate_timeout else {
        return (interval_us * RATE_INTERVALS).max(micros(SECOND));
    };
    let known = at.found();
    let timeout_us = at.time();
    if at.found() == known && timeout_us < 2 * interval_us {
        let interval = Duration::of_micros(interval_us);
        let problem = format!("{timeout}; at least 2 intervals of {interval}");
        at.add(problem);
    }
    timeout_us
}

pub(super) fn schema(workflows: &mut SchemaField<'_>) {
    let right = format!(
        "has(self.rateTimeout) && {} && {}",
        workflows.right("interval"),
        workflows.right("rateTimeout")
    );
    let ms = |field: &str| format!("duration(self.{field}).getMilliseconds()");
    let (timeout, interval) = (ms("rateTimeout"), ms("interval"));
    workflows.rule(
        Rule::words(
            format!("!({right}) || {timeout} >= 2 * {interval}"),
            "%s; at least 2 intervals of %s",
            &["self.rateTimeout", "self.interval"],
        )
        .on(".rateTimeout"),
    );
    identity::schema(&mut workflows.at("identifyBy"));
    services::outbound_schema(&mut workflows.at("outbound"));
    named::schema(workflows);
}
