//! Checks of workflows, and of outbound configurations.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::super::bounds::{at_most, ensure, header_name, positive, within};
use super::super::{
    ConfigError, Direction, FilterConfig, MAX_SMOOTHING_US, MAX_WORKFLOW_NAME, MAX_WORKFLOW_PEERS,
    MAX_WORKFLOW_QUANTILES, MAX_WORKFLOW_QUEUE, MAX_WORKFLOW_SERVICES, MAX_WORKFLOW_SOURCES,
    MAX_WORKFLOWS, OutboundConfig, ResourceReport, SharingConfig, SmoothingConfig, StageConfig,
    WorkflowConfig, WorkflowSource, WorkflowsConfig,
};

/// Longest key, header name, cluster or metric, bytes.
const MAX_TEXT: usize = 256;
/// Longest SPIFFE id (the specification's bound), bytes.
const MAX_PEER: usize = 2048;
/// The maximum number of elements of a path to a value in metadata.
const MAX_PATH: usize = 8;
const INTERVALS_US: RangeInclusive<u64> = 10_000..=10_000_000;
const HOUR_US: u64 = 3_600_000_000;

impl FilterConfig {
    /// Checks that only inbound configurations have stages, and that a gateway's calls belong to
    /// one of its stages.
    pub(super) fn check_direction(&self) -> Result<(), ConfigError> {
        let is_inbound = self.direction == Direction::Inbound;
        ensure(is_inbound || self.stages.is_empty(), "stages", || {
            "given with direction Outbound, which has none".to_owned()
        })?;
        let Some(outbound) = &self.outbound else {
            return Ok(());
        };
        let policy = &outbound.policy;
        let is_it = |s: &StageConfig| {
            s.policy == *policy && (s.workflows.is_some() || s.class_admission.is_some())
        };
        let is_known = !is_inbound || self.stages.iter().any(is_it);
        ensure(is_known, "outbound.policy", || {
            format!(
                "\"{policy}\", which is no stage with workflows or class admission of this gateway"
            )
        })?;
        outbound.check()
    }
}

impl OutboundConfig {
    fn check(&self) -> Result<(), ConfigError> {
        ensure(!self.policy.is_empty(), "outbound.policy", || {
            "empty; namespace/name of the policy".to_owned()
        })?;
        let (field, most) = ("outbound.services", MAX_WORKFLOW_SERVICES);
        at_most(field, self.services.len(), most)?;
        for (cluster, service) in &self.services {
            pattern(field, cluster)?;
            name(field, service)?;
        }
        let field = "outbound.class_admission";
        at_most(field, self.class_admission.len(), most)?;
        for (service, admission) in &self.class_admission {
            name(field, service)?;
            admission.check(&format!("outbound.class_admission.{service}"))?;
        }
        if let Some(range) = &self.smoothing {
            smoothing("outbound.smoothing", range)?;
        }
        for (cluster, range) in &self.service_smoothing {
            let field = "outbound.service_smoothing";
            ensure(self.services.contains_key(cluster), field, || {
                format!("\"{cluster}\"; a cluster of outbound.services")
            })?;
            smoothing(field, range)?;
        }
        peers("outbound.peers", &self.peers)
    }
}

impl WorkflowsConfig {
    pub(super) fn check(&self, at: &str) -> Result<(), ConfigError> {
        let field = |name: &str| format!("{at}.{name}");
        at_most(field("identify"), self.identify.len(), MAX_WORKFLOW_SOURCES)?;
        ensure(!self.identify.is_empty(), field("identify"), || {
            "empty; one source or more".to_owned()
        })?;
        for source in &self.identify {
            source.check(&field("identify"))?;
        }
        quantile(&field("quantile"), self.quantile)?;
        quantiles(at, &self.service_quantiles, MAX_WORKFLOW_SERVICES)?;
        within(field("interval_us"), self.interval_us, INTERVALS_US)?;
        let (least, ttl) = (2 * self.interval_us, self.rate_ttl_us);
        ensure(
            (least..=HOUR_US).contains(&ttl),
            field("rate_ttl_us"),
            || format!("{ttl}; 2 intervals, so {least}, to {HOUR_US}"),
        )?;
        self.sharing.check(&field("sharing"))?;
        let most = field("max_workflows");
        within(most, self.max_workflows, 1..=MAX_WORKFLOWS)?;
        let (longest, most) = (self.max_queue_length, MAX_WORKFLOW_QUEUE);
        ensure(longest <= most, field("max_queue_length"), || {
            format!("{longest}; at most {most}")
        })?;
        let workflows = field("workflows");
        // The workflow `_other` may have settings, too.
        at_most(
            &workflows,
            self.workflows.len(),
            usize::from(self.max_workflows) + 1,
        )?;
        for (id, workflow) in &self.workflows {
            name(&workflows, id)?;
            workflow.check(&format!("{workflows}.{id}"))?;
        }
        peers(&field("peers"), &self.peers)
    }
}

impl WorkflowSource {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        match self {
            Self::Baggage { key } => text(at, key),
            Self::Header { name } => {
                text(at, name)?;
                header_name(at, name)
            }
            Self::Metadata { path } => {
                let names = path.len();
                ensure((2..=MAX_PATH).contains(&names), at, || {
                    format!("{names} names; 2 to {MAX_PATH}")
                })?;
                path.iter().try_for_each(|name| text(at, name))
            }
            Self::Type => Ok(()),
        }
    }
}

impl SharingConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        let (probe, max_utilization) = match self {
            Self::StaticGuarantees => return Ok(()),
            Self::BottleneckFairness {
                probe,
                max_utilization,
            } => (probe, max_utilization),
            Self::DominantResource {
                probe,
                max_utilization,
                resource,
            } => {
                let field = format_args!("{at}.resource.capacity");
                positive(field, resource.capacity, 1e15)?;
                let (ResourceReport::Orca { metric } | ResourceReport::ServerTiming { metric }) =
                    &resource.report;
                text(&format!("{at}.resource.report"), metric)?;
                (probe, max_utilization)
            }
        };
        positive(format_args!("{at}.probe"), *probe, 1e6)?;
        positive(format_args!("{at}.max_utilization"), *max_utilization, 1.0)
    }
}

impl WorkflowConfig {
    fn check(&self, at: &str) -> Result<(), ConfigError> {
        if let Some(q) = self.quantile {
            quantile(&format!("{at}.quantile"), q)?;
        }
        quantiles(at, &self.service_quantiles, MAX_WORKFLOW_QUANTILES)?;
        if let Some(guarantee) = self.guarantee {
            positive(format_args!("{at}.guarantee"), guarantee, 1e15)?;
        }
        within(format_args!("{at}.weight"), self.weight, 0.01..=100.0)?;
        match self.deadline_us {
            Some(us) => within(format_args!("{at}.deadline_us"), us, 1..=HOUR_US),
            None => Ok(()),
        }
    }
}

fn quantile(field: &str, q: f64) -> Result<(), ConfigError> {
    within(field, q, 0.0..=1.0)
}

fn quantiles(at: &str, by_service: &BTreeMap<String, f64>, most: usize) -> Result<(), ConfigError> {
    let field = format!("{at}.service_quantiles");
    at_most(&field, by_service.len(), most)?;
    for (service, q) in by_service {
        name(&field, service)?;
        quantile(&field, *q)?;
    }
    Ok(())
}

fn text(field: &str, text: &str) -> Result<(), ConfigError> {
    of_length(field, text, MAX_TEXT)
}

/// Checks the id of a workflow or the name of a service.
fn name(field: &str, name: &str) -> Result<(), ConfigError> {
    of_length(field, name, MAX_WORKFLOW_NAME)
}

fn of_length(field: &str, text: &str, most: usize) -> Result<(), ConfigError> {
    let is_right = (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
    ensure(is_right, field, || {
        format!("{text:?}; 1 to {most} bytes without control characters")
    })
}

fn smoothing(field: &str, range: &SmoothingConfig) -> Result<(), ConfigError> {
    let (least, most) = (range.least_us, range.most_us);
    let is_right = (1..=MAX_SMOOTHING_US).contains(&most) && least <= most;
    ensure(is_right, field, || {
        format!("{least} to {most} µs; 0 <= least <= most <= {MAX_SMOOTHING_US}")
    })
}

/// Checks a pattern, which may end in `*`.
fn pattern(field: &str, pattern: &str) -> Result<(), ConfigError> {
    text(field, pattern)?;
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    ensure(!name.contains('*'), field, || {
        format!("{pattern:?}; * only at the end")
    })
}

pub(super) fn peers(field: &str, peers: &[String]) -> Result<(), ConfigError> {
    at_most(field, peers.len(), MAX_WORKFLOW_PEERS)?;
    for peer in peers {
        let id = peer.strip_suffix('*').unwrap_or(peer);
        let is_id = id.starts_with("spiffe://") && !id.contains('*');
        ensure(is_id && peer.len() <= MAX_PEER, field, || {
            format!("{peer:?}; a SPIFFE id, exact or with * at its end")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
