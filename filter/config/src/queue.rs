//! The configuration of the queue and its order, with its checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::place::{Checked, HOUR_US, Place};
use super::{ClassConfig, MAX_QUEUE_LENGTH, MAX_WORKFLOW_NAME, Measure, TypeConfig};

/// The queue in front of the slots.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueConfig {
    /// The place of the queue.
    #[serde(default)]
    pub mode: QueueMode,
    /// Order of the queue.
    #[serde(default)]
    pub discipline: Discipline,
    /// Longest queue, in requests. With 0, a request that finds no free slot is refused.
    pub max_length: u32,
    /// Longest wait in the queue, in µs. A request's own deadline may be shorter.
    pub timeout_us: u64,
}

/// The place of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum QueueMode {
    /// The proxy holds the queue: at most `parallelism` requests are in the backend.
    #[default]
    Hold,
    // From the arrival and completion order of a FIFO with P servers.
    /// The backend holds the queue, in its own order. The proxy reconstructs wait and processing
    /// time.
    Observe,
}

/// Order in which queued requests get slots. Under each discipline, the request with the smallest
/// rank over all workers goes first (see `discipline`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum Discipline {
    /// First in, first out.
    #[default]
    #[serde(rename = "FIFO")]
    Fifo,
    /// Earliest deadline first.
    #[serde(rename = "EDF")]
    Edf,
    /// Least slack time first: deadline less the remaining processing time (Wisp §4.2).
    #[serde(rename = "LSTF")]
    Lstf,
    /// Shortest job first, by total work.
    #[serde(rename = "SJF")]
    Sjf,
    /// Shortest remaining processing time first.
    #[serde(rename = "SRTF")]
    Srtf,
    /// Least attained service first, by work so far.
    #[serde(rename = "LASF")]
    Lasf,
    /// Deficit round robin: every flow gets a share of slot time in proportion to its weight.
    #[serde(rename = "DRR")]
    Drr {
        /// The flows that take turns.
        by: Flow,
        /// Slot time that a flow of weight 1 may use in a round, µs.
        quantum_us: u64,
        /// Weights of flows, by the name of the type or class or by the id of the workflow. Other
        /// flows have weight 1.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        weights: BTreeMap<String, f64>,
    },
    /// Weighted fair queue: the shares of deficit round robin, but in the order of finish tags
    /// instead of rounds.
    #[serde(rename = "WFQ")]
    Wfq {
        /// The flows that take turns.
        by: Flow,
        /// Weights of flows, as with [`Discipline::Drr`].
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        weights: BTreeMap<String, f64>,
        /// The cost of a request in tokens. Absent: the cost is the request's slot time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<TokenCost>,
    },
    /// Strict priority: requests of a class wait for the requests of all higher classes. Within a
    /// class, the order is first in, first out (Wisp §3.1).
    Priority,
    /// Earliest latest start first. The latest start is the arrival plus the shortest wait that the
    /// type's objectives allow.
    Slack,
}

/// The cost of a request in tokens: `input · size + output · output tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCost {
    /// Cost of a unit of the request's size ([`TypeConfig::cost`]): 0 to 1000.
    pub input: f64,
    /// Cost of an output token: 0 to 1000.
    pub output: f64,
}

impl Discipline {
    /// Returns the flows, the quantum in µs (only with deficit round robin) and the weights of a
    /// fair queue, or `None` for other disciplines.
    pub fn fair(&self) -> Option<(Flow, Option<u64>, &BTreeMap<String, f64>)> {
        match self {
            Self::Drr {
                by,
                quantum_us,
                weights,
            } => Some((*by, Some(*quantum_us), weights)),
            Self::Wfq { by, weights, .. } => Some((*by, None, weights)),
            _ => None,
        }
    }

    /// Returns the cost of a request in tokens, if a fair queue charges it in place of slot time.
    pub fn token_cost(&self) -> Option<TokenCost> {
        match self {
            Self::Wfq { tokens, .. } => *tokens,
            _ => None,
        }
    }
}

/// The flows of a fair queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Flow {
    /// Query types.
    #[default]
    Type,
    /// Classes.
    Class,
    /// Workflows. A request's workflow is its id as `workflows.identifyBy` finds it; without
    /// `identifyBy`, the header `x-headgate-workflow` or the member `workflow` of `baggage`.
    /// Requests without an id share one flow. So do requests with ids longer than 128 bytes, and
    /// workflows beyond the first `workflows.maxWorkflows`, or the first 1000 if the policy has no
    /// `workflows`.
    Workflow,
}

impl QueueConfig {
    pub(super) fn check(&self, at: &Place) -> Checked {
        let longest = self.max_length;
        at.ensure("max_length", longest <= MAX_QUEUE_LENGTH, || {
            format!("{longest}; at most {MAX_QUEUE_LENGTH} requests")
        })?;
        at.within("timeout_us", self.timeout_us, 1..=HOUR_US)
    }
}

impl Discipline {
    /// Checks the discipline at `at` of a stage with these types and classes, where slots become
    /// free at `release_slot`.
    pub(super) fn check(
        &self,
        at: &Place,
        types: &[TypeConfig],
        classes: &[ClassConfig],
        release_slot: Measure,
    ) -> Checked {
        let Some((by, quantum_us, weights)) = self.fair() else {
            return Ok(());
        };
        if let Some(quantum) = quantum_us {
            at.within("quantum_us", quantum, 100..=60_000_000)?;
        }
        let has_flows = by != Flow::Class || !classes.is_empty();
        at.ensure("by", has_flows, || {
            "Class without classes; Type, Workflow, or a stage with classes".to_owned()
        })?;
        if let Some(tokens) = self.token_cost() {
            at.within("tokens.input", tokens.input, 0.0..=1000.0)?;
            at.within("tokens.output", tokens.output, 0.0..=1000.0)?;
            at.ensure("tokens", release_slot == Measure::LastByte, || {
                "given with release_slot FirstByte; release_slot LastByte, or no tokens".to_owned()
            })?;
        }
        for (name, weight) in weights {
            let (known, right) = match by {
                Flow::Type => (
                    types.iter().any(|t| t.name == *name),
                    "the name of a type".to_owned(),
                ),
                Flow::Class => (
                    classes.iter().any(|c| c.name == *name),
                    "the name of a class".to_owned(),
                ),
                Flow::Workflow => (
                    (1..=MAX_WORKFLOW_NAME).contains(&name.len()),
                    format!("the id of a workflow, 1 to {MAX_WORKFLOW_NAME} bytes"),
                ),
            };
            at.ensure("weights", known, || format!("{name:?}; {right}"))?;
            at.ensure("weights", (0.01..=100.0).contains(weight), || {
                format!("{weight} for {name:?}; 0.01 to 100")
            })?;
        }
        Ok(())
    }
}
