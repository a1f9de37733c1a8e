//! Fair queues: every flow of requests gets the same share of the slots' time, or its weight's, by turns.
//!
//! Each flow spends time of the slots, weighted, and the next request is that of the flow that has spent least when
//! it is served. Two disciplines differ in how finely that is counted:
//!
//! - *Deficit round robin* (M. Shreedhar, G. Varghese: "Efficient Fair Queueing using Deficit Round Robin", SIGCOMM
//!   '95; Wisp §4.2 shares services among workflows by it) counts rounds, in each of which a flow may spend a quantum
//!   Q times its weight w, plus what it had left. Within a round requests are served as they arrived: requests of a
//!   flow follow each other, and a flow waits for up to a round of the others.
//! - A *weighted fair queue* (self-clocked: S. J. Golestani, "A Self-Clocked Fair Queueing Scheme for Broadband
//!   Applications", INFOCOM '94) orders by the finish tags themselves. It is for requests that are small beside any
//!   quantum, such as 0.4 ms at weights of 8 : 4 : 1.
//!
//! Both are one formula. Request n of a flow is served in the round in which the sum of quanta first covers all that
//! the flow has asked for since it became active, so that the round can be told when the request arrives:
//!
//! ```text
//! start  = max(finish, round now − 1)
//! finish = start + cost / (Q · w)             rounds
//! rank   = ⌈finish⌉, equal ones in order of arrival
//! ```
//!
//! A weighted fair queue is that with a Q below every cost: 16 µs at the least weight of all flows.
//!
//! *Round now* is the rank of the last request that left the queue for a slot. The maximum takes away
//! what a flow did not spend while it had nothing to send: one that was away for longer has one quantum
//! for the round in progress, one that comes back within the round has what it left of it. (The textbook
//! of deficit round robin takes the rest away at once and puts the flow at the end of its list, into the round in
//! progress or the next: to know that here, all workers would have to agree on when a flow is empty.) *Cost* is
//! the time that the request is expected to take of a slot here: the mean processing time of its type, or
//! what its stated cost comes to ([`crate::work::Work`]). What it costs elsewhere in its tree doesn't count: slots are
//! what is shared here. Before anything was measured all costs are 0 and
//! the order is a FIFO's.
//!
//! Where Wisp §4.3 has more: its credits follow the workflow's share from bottleneck fairness, and a request uses up
//! what its *workflow* costs. Here weights are the configured ones, and the mean is the type's, whichever flow sends:
//! among flows that share a type, each request counts the same.
//!
//! Two flows that have requests waiting all the time are served in proportion to their weights: what each
//! got, divided by its weight, differs by at most Q + the largest cost / the smaller weight. Workers
//! among which the flows' requests are spread add to it what they overtake by
//! ([`crate::stage::ORDER_TOLERANCE`]).
//!
//! Shared by all workers, as gauges: round now, and `finish` of each flow (fixed point). Three host calls when a
//! request is queued, one or two when it gets its slot, none for requests that find a slot free. Gauges of flows are
//! defined when first needed. What can go wrong with numbers that nobody locks, and what bounds it:
//!
//! - Two workers raise an idle flow at the same moment: one of the two costs is lost, once.
//! - Requests leave the queue early: their cost is taken back, and their turn goes to the next of the
//!   flow ([`crate::queue`]).
//! - A worker dies, a weight or quantum is edited, a gauge is left from long ago: `finish` is never
//!   believed beyond round now + all that is queued + 1.
//! - Ids of two workflows with weights fall into one flow: it has one of the two weights.
//! - Round now falls back by a late writer: the next start corrects it.
//! - Rounds reach half of what a rank can tell, 2³⁷ in deficit round robin (two weeks of load at 100,000 rounds a
//!   second) and 2⁴³ in a weighted fair queue (16 days of 100 slots without a pause): they start over from 0 as soon
//!   as the queue is empty. Should that never happen, the last round makes the order a FIFO's.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Turn;
use super::rank::{Layout, ROUND, TAG};
use crate::config::{Flow, StageConfig};
use crate::host::{HostError, Number, Shared};
use crate::ledger::QueueState;
use crate::request::Attributes;
use crate::time::Instant;
use crate::workflow;

/// Most rounds that a request or a queue can ask for: beyond this all are alike.
const MAX_ROUNDS: u32 = 30;
/// µs that a flow of the least weight may spend in a round of a weighted fair queue.
const TAG_US: f64 = 16.0;

/// How finely turns are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Grain {
    /// µs of cost that a flow of weight 1 may spend in a round.
    quantum_us: f64,
    /// The bits of a rank that hold the round.
    layout: Layout,
    /// Bits of a round's fraction in gauges.
    fraction: u32,
    /// Ends of the names of the two kinds of gauges.
    round: &'static str,
    finish: &'static str,
}

impl Grain {
    /// Deficit round robin.
    fn rounds(quantum_us: u64) -> Self {
        Self {
            quantum_us: quantum_us.max(1) as f64,
            layout: ROUND,
            fraction: 20,
            round: "drr_round",
            finish: "drr_finish",
        }
    }

    /// A weighted fair queue of flows whose least weight is `least_weight`.
    fn tags(least_weight: f64) -> Self {
        Self {
            quantum_us: TAG_US / least_weight,
            layout: TAG,
            fraction: 14,
            round: "wfq_tag",
            finish: "wfq_finish",
        }
    }

    /// One round, fixed point.
    const fn one(self) -> u64 {
        1 << self.fraction
    }

    /// Rounds start over from here when the queue is empty.
    const fn start_over(self) -> u64 {
        self.layout.max_measure() / 2 + 1
    }
}

#[derive(Debug)]
struct FlowState {
    /// Fixed-point rounds that a µs of cost takes.
    rounds_per_us: f64,
    /// Defined when first needed.
    finish: Option<Number>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Fair {
    by: Flow,
    grain: Grain,
    round: Number,
    /// Start of the stats' names of the flows, and their names where they have some.
    prefix: String,
    names: Vec<String>,
    flows: Vec<FlowState>,
}

impl Fair {
    /// Deficit round robin.
    pub(super) fn by_rounds(
        host: &impl Shared,
        prefix: &str,
        stage: &StageConfig,
        by: Flow,
        quantum_us: u64,
        weights: &BTreeMap<String, f64>,
    ) -> Result<Self, HostError> {
        let grain = |_| Grain::rounds(quantum_us);
        Self::new(host, prefix, stage, by, weights, grain)
    }

    /// A weighted fair queue.
    pub(super) fn by_tags(
        host: &impl Shared,
        prefix: &str,
        stage: &StageConfig,
        by: Flow,
        weights: &BTreeMap<String, f64>,
    ) -> Result<Self, HostError> {
        Self::new(host, prefix, stage, by, weights, Grain::tags)
    }

    /// `grain` is told the least weight.
    fn new(
        host: &impl Shared,
        prefix: &str,
        stage: &StageConfig,
        by: Flow,
        weights: &BTreeMap<String, f64>,
        grain: impl Fn(f64) -> Grain,
    ) -> Result<Self, HostError> {
        let (kind, names): (&str, Vec<String>) = match by {
            Flow::Type => ("type", stage.types.iter().map(|t| t.name.clone()).collect()),
            Flow::Class => (
                "class",
                stage.classes.iter().map(|c| c.name.clone()).collect(),
            ),
            Flow::Workflow => (
                "workflow",
                (0..workflow::FLOWS).map(|n| n.to_string()).collect(),
            ),
        };
        let weight = |name: &String| weights.get(name).copied().unwrap_or(1.0);
        let mut shares: Vec<f64> = names.iter().map(weight).collect();
        if by == Flow::Workflow {
            shares.fill(1.0);
            for (id, weight) in weights {
                if let Some(share) = shares.get_mut(usize::from(workflow::flow(id.as_bytes()))) {
                    *share = *weight;
                }
            }
        }
        let grain = grain(shares.iter().copied().reduce(f64::min).unwrap_or(1.0));
        let state = |weight: f64| FlowState {
            rounds_per_us: grain.one() as f64 / (grain.quantum_us * weight),
            finish: None,
        };
        Ok(Self {
            by,
            grain,
            round: host.number(&format!("{prefix}.{}", grain.round))?,
            prefix: format!("{prefix}.{kind}"),
            flows: shares.into_iter().map(state).collect(),
            names,
        })
    }

    /// How many flows there are.
    pub(super) fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The flow of `request`.
    pub(super) fn flow_of(&self, request: &Attributes) -> u16 {
        let flow = match self.by {
            Flow::Type => request.kind.0,
            Flow::Class => u16::from(request.class.0),
            Flow::Workflow => request.workflow,
        };
        if usize::from(flow) < self.flows.len() {
            flow
        } else {
            0
        }
    }

    /// Gives `request`, which costs `cost_us` and meets `queue`, its turn.
    pub(super) fn place(
        &mut self,
        host: &impl Shared,
        now: Instant,
        request: &Attributes,
        cost_us: u64,
        queue: QueueState,
    ) -> Result<(u64, Turn), HostError> {
        let flow = self.flow_of(request);
        let finish_of = self.finish(host, flow)?;
        let rounds_per_us = self.flows[usize::from(flow)].rounds_per_us;
        let Grain {
            layout, fraction, ..
        } = self.grain;
        let most_rounds = (1_u64 << (fraction + MAX_ROUNDS)) as f64;
        // Saturates; at least a step where there is any cost, so that a flow of cheap requests moves on.
        let rounds = |us: u64| {
            let step = if us > 0 { 1.0 } else { 0.0 };
            (us as f64 * rounds_per_us).clamp(step, most_rounds) as u64
        };
        let mut round = host.get(self.round)?.min(layout.max_measure());
        if queue.length == 0 && round >= self.grain.start_over() {
            round = 0;
            host.set(self.round, 0)?;
        }
        let (least, share) = (round.saturating_sub(1) << fraction, rounds(cost_us));
        let found = host.get(finish_of)?;
        // Another worker may have raised `finish` for a request that it has not announced yet: a round
        // to spare.
        let most = least + rounds(queue.work) + 2 * self.grain.one();
        let start = found.clamp(least, most);
        if start == found {
            // Adding loses nothing when another worker adds at the same moment.
            host.add_to(finish_of, share.cast_signed())?;
        } else {
            host.set(finish_of, start + share)?;
        }
        let rank = layout.rank((start + share).div_ceil(self.grain.one()), now);
        Ok((rank, Turn { flow, share }))
    }

    /// What `span` of arrival time is in ranks.
    pub(super) fn tolerance(&self, span: Duration) -> u64 {
        self.grain.layout.tolerance(span)
    }

    /// A request of `rank` left the queue for a slot.
    pub(super) fn started(&self, host: &impl Shared, rank: u64) -> Result<(), HostError> {
        let round = self.grain.layout.measure(rank);
        if host.get(self.round)? < round {
            host.set(self.round, round)?;
        }
        Ok(())
    }

    /// A request left the queue without a slot: its flow has not spent its share.
    pub(super) fn left(&mut self, host: &impl Shared, turn: Turn) -> Result<(), HostError> {
        let finish = self.finish(host, turn.flow)?;
        if turn.share == 0 || host.get(finish)? < turn.share {
            return Ok(());
        }
        host.add_to(finish, -turn.share.cast_signed())
    }

    fn finish(&mut self, host: &impl Shared, flow: u16) -> Result<Number, HostError> {
        let (Some(state), Some(name)) = (
            self.flows.get_mut(usize::from(flow)),
            self.names.get(usize::from(flow)),
        ) else {
            // Of an order that was edited away.
            return Ok(self.round);
        };
        if let Some(known) = state.finish {
            return Ok(known);
        }
        let name = format!("{}.{name}.{}", self.prefix, self.grain.finish);
        let defined = host.number(&name)?;
        state.finish = Some(defined);
        Ok(defined)
    }
}

#[cfg(test)]
mod tests;
