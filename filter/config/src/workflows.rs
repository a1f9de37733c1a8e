//! The configuration of workflows (Wisp): their ids and rates, and trusted peers, with its checks.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::place::{Checked, HOUR_US, Place};
use super::types::one;
use super::{
    MAX_QUANTITY, MAX_WORKFLOW_QUANTILES, MAX_WORKFLOW_QUEUE, MAX_WORKFLOW_SERVICES,
    MAX_WORKFLOW_SOURCES, MAX_WORKFLOWS,
};

/// The maximum number of elements of a path to a value in metadata.
const MAX_PATH: usize = 8;
const INTERVALS_US: RangeInclusive<u64> = 10_000..=10_000_000;

/// Workflows of a stage (Wisp §4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowsConfig {
    /// The places where a request may name its workflow, 1 to 8. The first one with a name counts.
    pub identify: Vec<WorkflowSource>,
    /// q, a ratio 0..=1. With 0, a workflow adopts the rate of the slowest process of a downstream
    /// service. With 1, it adopts the rate of the fastest process.
    pub quantile: f64,
    /// q by downstream service, which takes precedence over the q of a workflow.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_quantiles: BTreeMap<String, f64>,
    /// Time between two runs of Algorithm 1, µs: 10,000 ..= 10,000,000.
    pub interval_us: u64,
    /// Time after which an announced rate expires unless it is renewed, µs. It is at least 2
    /// intervals.
    pub rate_ttl_us: u64,
    /// The policy by which the process shares its capacity among workflows (Alg. 1 line 1).
    pub sharing: SharingConfig,
    /// The number of workflows with rates of their own, 1 ..= 1000. Later workflows share `_other`.
    pub max_workflows: u16,
    /// Longest queue of the rate limiter, in requests of one workflow. With 0, requests above the
    /// rate are refused at once.
    pub max_queue_length: u32,
    /// Settings of workflows by name. Those of `_other` apply to workflows without a rate of their
    /// own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub workflows: BTreeMap<String, WorkflowConfig>,
    /// Whether requests come from outside the mesh. Their Headgate headers are then not trusted and
    /// are removed.
    #[serde(default)]
    pub edge: bool,
    /// SPIFFE ids of the trusted peers, each exact or with a trailing `*`. The Headgate headers of
    /// other peers are removed. Empty: all peers are trusted, as without mutual TLS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
}

/// The place where a request names its workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum WorkflowSource {
    /// A member of W3C Baggage.
    Baggage {
        /// The member's key.
        key: String,
    },
    /// A request header.
    Header {
        /// The header's name, in lower case.
        name: String,
    },
    /// A value in Envoy's dynamic metadata, such as a claim of a verified JWT.
    Metadata {
        /// The namespace of the filter that wrote the value, followed by keys:
        /// `["envoy.filters.http.jwt_authn", "claims", "tenant"]`.
        path: Vec<String>,
    },
    /// The query type of the request.
    Type,
}

/// Settings of one workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkflowConfig {
    /// q of this workflow, for downstream services without a q of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantile: Option<f64>,
    /// q of this workflow by downstream service, which takes precedence over the workflow's q and
    /// the service's q.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub service_quantiles: BTreeMap<String, f64>,
    /// The rate that this process always admits, regardless of the fair share, requests/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<f64>,
    /// Weight in fair shares, relative to other workflows. Above 0.
    #[serde(default = "one")]
    pub weight: f64,
    /// End-to-end deadline of requests without one, from the entry point on, µs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u64>,
}

impl Default for WorkflowConfig {
    fn default() -> Self {
        Self {
            quantile: None,
            service_quantiles: BTreeMap::new(),
            guarantee: None,
            weight: one(),
            deadline_us: None,
        }
    }
}

/// The local policy, by which a process shares its capacity among workflows (Wisp §4.3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum SharingConfig {
    /// Workflows get their guarantees. Those without a guarantee share the rest in proportion to
    /// their weights.
    StaticGuarantees,
    /// Rates rise by a probe while there is spare capacity. Without spare capacity, rates are
    /// max-min fair shares.
    BottleneckFairness {
        /// β: the increase of a rate in an interval in which all capacity is free, requests/s.
        probe: f64,
        /// Utilization of the slots above which the process counts as overloaded, ratio 0 < u <= 1.
        max_utilization: f64,
    },
    /// Bottleneck fairness, with dominant resource fairness over the slots and a second resource
    /// that the backend reports.
    DominantResource {
        /// β, as with bottleneck fairness, requests/s.
        probe: f64,
        /// Utilization of either resource above which the process counts as overloaded, ratio 0 < u
        /// <= 1.
        max_utilization: f64,
        /// The second resource.
        resource: ResourceConfig,
    },
}

/// A resource whose use the backend reports with its responses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceConfig {
    /// The capacity, units/s.
    pub capacity: f64,
    /// The place in the response where the backend reports the request's use.
    pub report: ResourceReport,
}

/// The place in a response where the backend reports the request's use of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum ResourceReport {
    /// `request_cost` of an ORCA load report: header `endpoint-load-metrics`, in its text or JSON
    /// form.
    Orca {
        /// Key in `request_cost`.
        metric: String,
    },
    /// The `dur` of a metric in `server-timing`.
    ServerTiming {
        /// Name of the metric.
        metric: String,
    },
}

impl WorkflowsConfig {
    pub(super) fn check(&self, at: &Place) -> Checked {
        at.at_most("identify", self.identify.len(), MAX_WORKFLOW_SOURCES)?;
        at.ensure("identify", !self.identify.is_empty(), || {
            format!("empty; 1 to {MAX_WORKFLOW_SOURCES} sources")
        })?;
        for source in &self.identify {
            source.check(at)?;
        }
        quantile(at, "quantile", self.quantile)?;
        quantiles(at, &self.service_quantiles, MAX_WORKFLOW_SERVICES)?;
        at.within("interval_us", self.interval_us, INTERVALS_US)?;
        let (least, ttl) = (2 * self.interval_us, self.rate_ttl_us);
        at.ensure("rate_ttl_us", (least..=HOUR_US).contains(&ttl), || {
            format!("{ttl}; 2 × interval_us ({least}) to {HOUR_US}")
        })?;
        self.sharing.check(&at.field("sharing"))?;
        at.within("max_workflows", self.max_workflows, 1..=MAX_WORKFLOWS)?;
        let (longest, most) = (self.max_queue_length, MAX_WORKFLOW_QUEUE);
        at.ensure("max_queue_length", longest <= most, || {
            format!("{longest}; at most {most}")
        })?;
        // The workflow `_other` may have settings, too.
        let most = usize::from(self.max_workflows) + 1;
        at.at_most("workflows", self.workflows.len(), most)?;
        for (id, workflow) in &self.workflows {
            at.name("workflows", id)?;
            workflow.check(&at.field("workflows").field(id))?;
        }
        at.peers(&self.peers)
    }
}

impl WorkflowSource {
    /// Checks a source of the workflows at `at`.
    fn check(&self, at: &Place) -> Checked {
        let field = "identify";
        match self {
            Self::Baggage { key } => at.text(field, key),
            Self::Header { name } => {
                at.text(field, name)?;
                at.header_name(field, name)
            }
            Self::Metadata { path } => {
                let names = path.len();
                at.ensure(field, (2..=MAX_PATH).contains(&names), || {
                    format!("a metadata path of {names} names; 2 to {MAX_PATH} names")
                })?;
                path.iter().try_for_each(|name| at.text(field, name))
            }
            Self::Type => Ok(()),
        }
    }
}

impl SharingConfig {
    fn check(&self, at: &Place) -> Checked {
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
                at.positive("resource.capacity", resource.capacity, MAX_QUANTITY)?;
                let (ResourceReport::Orca { metric } | ResourceReport::ServerTiming { metric }) =
                    &resource.report;
                at.text("resource.report", metric)?;
                (probe, max_utilization)
            }
        };
        at.positive("probe", *probe, 1e6)?;
        at.positive("max_utilization", *max_utilization, 1.0)
    }
}

impl WorkflowConfig {
    fn check(&self, at: &Place) -> Checked {
        if let Some(q) = self.quantile {
            quantile(at, "quantile", q)?;
        }
        quantiles(at, &self.service_quantiles, MAX_WORKFLOW_QUANTILES)?;
        if let Some(guarantee) = self.guarantee {
            at.positive("guarantee", guarantee, MAX_QUANTITY)?;
        }
        at.within("weight", self.weight, 0.01..=100.0)?;
        match self.deadline_us {
            Some(us) => at.within("deadline_us", us, 1..=HOUR_US),
            None => Ok(()),
        }
    }
}

fn quantile(at: &Place, field: &str, q: f64) -> Checked {
    at.within(field, q, 0.0..=1.0)
}

fn quantiles(at: &Place, by_service: &BTreeMap<String, f64>, most: usize) -> Checked {
    let field = "service_quantiles";
    at.at_most(field, by_service.len(), most)?;
    for (service, q) in by_service {
        at.name(field, service)?;
        quantile(at, field, *q)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
