//! Fair queues: every flow of requests gets a share of slot time in proportion to its weight.
//!
//! The queue adds up each flow's slot time, divided by its weight. The next request is from the
//! flow whose sum, with this request, is smallest. Two disciplines differ in how finely they count:
//!
//! - *Deficit round robin* (M. Shreedhar, G. Varghese: "Efficient Fair Queueing using Deficit Round
//!   Robin", SIGCOMM '95; Wisp §4.2 shares services by it) counts rounds. In each, a flow may spend
//!   a quantum Q times its weight w, plus the rest of the previous round. Within a round requests
//!   are served in order of arrival. So requests of a flow follow each other, and a flow waits for
//!   up to a round of the others.
//! - A *weighted fair queue* (self-clocked: S. J. Golestani, "A Self-Clocked Fair Queueing Scheme
//!   for Broadband Applications", INFOCOM '94) orders requests by the finish tags themselves. It
//!   suits requests that are small compared with any quantum, such as 0.4 ms at weights of 8 : 4 :
//!   1.
//!
//! Both are one formula. A request is served in the round in which the sum of its flow's quanta
//! first covers the cost of all requests that the flow has made since it became active. So the
//! round is known when the request arrives:
//!
//! ```text
//! start  = max(finish, round now − 1)
//! finish = start + cost / (Q · w)             rounds
//! rank   = ⌈finish⌉, equal ones in order of arrival
//! ```
//!
//! A weighted fair queue uses a Q below every cost: 16 µs at the least weight of all flows.
//!
//! *Round now* is the smallest rank that waited on any worker when a request last left the queue
//! for a slot. It is usually the rank of the request that left. The two differ if a worker serves a
//! request before its turn, because the worker with the first request was woken and has not
//! answered yet. With the rank of the served request as the round, all flows would lose their
//! unused quanta to a flow whose single request takes many rounds. The maximum in the formula of
//! `start` removes the quanta that a flow did not use while it had no requests. A flow that was
//! idle for longer than a round has one quantum for the round in progress. A flow that returns
//! within the round has the rest of its quantum. (Textbook deficit round robin takes the rest away
//! at once and puts the flow at the end of its list, into the round in progress or the next. That
//! would require all workers to agree on when a flow is empty.)
//!
//! **Cost.** Both disciplines were made for packets, whose length is known. The slot time of a
//! request is only known when it ends. So a flow is charged twice, as by J. Mace et al. ("2DFQ:
//! Two-Dimensional Fair Queuing for Multi-Tenant Cloud Services", SIGCOMM '16: retroactive
//! charging). The first charge is an estimate: the mean processing time of the request's type, or
//! the time of its stated cost ([`crate::work`]), times the ratio of actual to expected time
//! of the flow's requests ([`super::cost`]; where flows are types, their means already contain it).
//! The second charge, at the end, is the difference to the actual slot time. Shares are therefore
//! shares of slot time, regardless of the estimates, even among flows whose requests have the same
//! type. Wisp §4.3 requires that a request is charged to its flow. The request's cost in other
//! processes doesn't count, because slots are the shared resource here.
//!
//! With [`TokenCost`] a flow is charged for tokens instead of slot time, because the requests that
//! a server of language models decodes together share its time. The charge `w_p · input + w_q ·
//! output` is the virtual token counter of Y. Sheng et al. ("Fairness in Serving Large Language
//! Models", OSDI '24, Alg. 2). The first charge uses the request's size and, by the ratio above,
//! the output of the flow's earlier requests. The second charge uses the output tokens that were
//! counted. A request without a size counts as one of size 1.
//!
//! A correction also counts for requests that are waiting already. It is added to *corrected* of
//! its flow, and a request that becomes the first of its flow on its worker gets the rank
//!
//! ```text
//! rank = ⌈finish at its arrival + corrected now − corrected at its arrival⌉
//! ```
//!
//! Without this correction, a flow whose requests turn out to be expensive would have its whole
//! queue served before the charge has an effect. Before any measurement all costs are 0 and the
//! order is a FIFO's. A request that finds a free slot is not charged, since no other request
//! waited.
//!
//! Wisp gives a flow credits by the share that bottleneck fairness assigns to it. A fair queue
//! needs no such share: among the waiting flows it is max-min fair by itself, in proportion to
//! their weights. The shares of dominant resource fairness are not implemented here.
//!
//! Two flows that always have requests waiting are served in proportion to their weights. Their
//! service divided by weight differs by at most Q + the largest cost / the smaller weight, plus the
//! error of the estimates of requests that have a slot. With the flows' requests spread over
//! several workers, overtaking adds up to `ORDER_TOLERANCE` of `headgate-core`.
//!
//! All workers share, as gauges: round now, `finish` and `corrected` of each flow (fixed point).
//! That is four host calls when a request is queued, two or three when it gets its slot, two or
//! three when it ends, and none for requests that find a free slot. Gauges of flows are defined
//! when first needed. Without a lock the numbers can be wrong in these ways, all bounded:
//!
//! - Two workers raise the `finish` of an idle flow at the same moment. One of the two costs is
//!   then lost, once.
//! - Requests leave the queue early. Their cost is taken back, and their turn goes to the next
//!   request of the flow (`queue` of `headgate-core`).
//! - A worker dies, a weight or quantum is edited, or a gauge has an outdated value. `finish` is
//!   then clamped between round now and the most that a flow may owe, which is a minute of a slot,
//!   or twice the queued work if all queued requests cost as much as this one.
//! - Flows that are neither types nor classes have ids of a bounded directory (`beside` of
//!   `headgate-core`). If an id passes to another name, round now has already passed its `finish`.
//! - A late writer lowers round now. The next request that gets a slot corrects it.
//! - Rounds reach half of the range of a rank, 2³⁷ in deficit round robin (two weeks of load at
//!   100,000 rounds a second) and 2⁴³ in a weighted fair queue (16 days of 100 slots without a
//!   pause). Rounds then start over from 0 as soon as the queue is empty, and a `finish` from
//!   before counts as none. If the queue is never empty, all requests end up in the last round, in
//!   FIFO order.

use super::Turn;
use super::cost::Cost;
use super::rank::{Layout, ROUND, TAG};
use crate::config::{Discipline, Flow, MAX_WORKFLOWS, StageConfig, TokenCost};
use crate::host::{HostError, Number, Shared};
use crate::request::Attributes;
use crate::time::Instant;

/// The binary logarithm of the maximum number of rounds that a request is charged.
const MAX_ROUNDS: u32 = 30;
/// The initial value of a sum of corrections. It is large because a gauge can't fall below 0.
const NONE_CORRECTED: u64 = 1 << 62;
/// The maximum slot time that a flow may owe if twice the queued work is less, µs.
const DEBT_US: u64 = 60_000_000;
/// Slot time that a flow of the least weight may use in a round of a weighted fair queue, µs.
const TAG_US: f64 = 16.0;

/// The charge for a token of cost 1, in the unit of slot time, µs.
const TOKEN_US: f64 = TAG_US;

/// Returns the charge for a request and the first `output` tokens of its response, µs. The charge
/// is at least 1.
fn charge(cost: TokenCost, request: &Attributes, output: u32) -> u64 {
    let size = f64::from(request.size.unwrap_or(1));
    let tokens = cost.input * size + cost.output * f64::from(output);
    ((tokens * TOKEN_US) as u64).max(1)
}

/// The granularity of a fair queue.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Grain {
    /// The cost that a flow of weight 1 may use in a round, µs.
    quantum_us: f64,
    /// The bits of a rank that hold the round.
    layout: Layout,
    /// The number of bits for a round's fraction in gauges.
    fraction: u32,
    /// The suffixes of the names of the three kinds of gauges.
    round: &'static str,
    finish: &'static str,
    corrected: &'static str,
}

impl Grain {
    /// Returns the granularity of deficit round robin.
    fn rounds(quantum_us: u64) -> Self {
        Self {
            quantum_us: quantum_us.max(1) as f64,
            layout: ROUND,
            fraction: 20,
            round: "drr_round",
            finish: "drr_finish",
            corrected: "drr_corrected",
        }
    }

    /// Returns the granularity of a weighted fair queue. `least_weight` is the smallest weight of
    /// its flows.
    fn tags(least_weight: f64) -> Self {
        Self {
            quantum_us: TAG_US / least_weight,
            layout: TAG,
            fraction: 14,
            round: "wfq_tag",
            finish: "wfq_finish",
            corrected: "wfq_corrected",
        }
    }

    /// Returns the fixed-point form of one round.
    const fn one(self) -> u64 {
        1 << self.fraction
    }

    /// Returns the round from which the count restarts at 0 as soon as the queue is empty.
    const fn start_over(self) -> u64 {
        self.layout.max_measure() / 2 + 1
    }
}

#[derive(Debug)]
struct FlowState {
    /// The flow's part of the names of its gauges.
    name: String,
    /// The weight of a type or class. The weight of any other flow comes with its requests.
    weight: f64,
    cost: Cost,
    /// The flow's gauges, which are defined when first needed.
    gauges: Option<Gauges>,
}

#[derive(Debug, Clone, Copy)]
struct Gauges {
    finish: Number,
    corrected: Number,
}

/// A fair queue, by rounds or by finish tags.
#[derive(Debug)]
pub(super) struct Fair {
    by: Flow,
    tokens: Option<TokenCost>,
    grain: Grain,
    round: Number,
    /// The prefix of the names of the flows' gauges. A flow's name follows it.
    prefix: String,
    flows: Vec<FlowState>,
}

impl Fair {
    /// Creates the fair queue of the checked `stage`. Returns `None` for any other discipline.
    pub(super) fn new(
        host: &impl Shared,
        prefix: &str,
        stage: &StageConfig,
        discipline: &Discipline,
    ) -> Result<Option<Self>, HostError> {
        let Some((by, quantum_us, weights)) = discipline.fair() else {
            return Ok(None);
        };
        let (kind, names): (&str, Vec<String>) = match by {
            Flow::Type => ("type", stage.types.iter().map(|t| t.name.clone()).collect()),
            Flow::Class => (
                "class",
                stage.classes.iter().map(|c| c.name.clone()).collect(),
            ),
            Flow::Workflow => {
                let ids = stage.max_flows().unwrap_or(MAX_WORKFLOWS);
                ("workflow", (0..=ids).map(|n| n.to_string()).collect())
            }
        };
        let weight = |name: &String| match by {
            Flow::Type | Flow::Class => weights.get(name).copied().unwrap_or(1.0),
            Flow::Workflow => 1.0,
        };
        let state = |name: String| FlowState {
            weight: weight(&name),
            name,
            cost: Cost::default(),
            gauges: None,
        };
        let flows: Vec<FlowState> = names.into_iter().map(state).collect();
        let of_requests = (by == Flow::Workflow).then(|| weights.values().copied());
        let all = flows.iter().map(|flow| flow.weight);
        let least = (all.chain(of_requests.into_iter().flatten())).reduce(f64::min);
        let grain = quantum_us.map_or_else(|| Grain::tags(least.unwrap_or(1.0)), Grain::rounds);
        Ok(Some(Self {
            by,
            tokens: discipline.token_cost(),
            grain,
            round: host.number(&format!("{prefix}.{}", grain.round))?,
            prefix: format!("{prefix}.{kind}"),
            flows,
        }))
    }

    /// Returns the number of flows.
    pub(super) fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Returns the flow of `request`.
    pub(super) fn flow_of(&self, request: &Attributes) -> u16 {
        let flow = match self.by {
            Flow::Type => request.kind.0,
            Flow::Class => u16::from(request.class.0),
            Flow::Workflow => request.flow,
        };
        if usize::from(flow) < self.flows.len() {
            flow
        } else {
            0
        }
    }

    /// Gives `request` the next turn of its flow, and returns the request's present rank and this
    /// turn. The request came at `arrived`, found `queued` others, and is expected to take
    /// `expected_us` of slot time.
    pub(super) fn place(
        &mut self,
        host: &impl Shared,
        arrived: Instant,
        request: &Attributes,
        expected_us: u64,
        queued: u32,
    ) -> Result<(u64, Turn), HostError> {
        let flow = self.flow_of(request);
        let gauges = self.gauges(host, flow)?;
        let expected_us = self.expected(request, expected_us);
        let cost_us = self.flows[usize::from(flow)].cost.of(expected_us);
        let share = self.rounds(request, cost_us);
        let Grain {
            layout, fraction, ..
        } = self.grain;
        let mut round = host.get(self.round)?.min(layout.max_measure());
        if queued == 0 && round >= self.grain.start_over() {
            round = 0;
            host.set(self.round, 0)?;
        }
        let least = round.saturating_sub(1) << fraction;
        // Allow one more round, because another worker may have raised `finish` for a request that
        // it has not announced yet.
        let waiting_us = cost_us.saturating_mul(2 * u64::from(queued));
        let owed = self.rounds(request, waiting_us.max(DEBT_US)) + 2 * self.grain.one();
        let found = host.get(gauges.finish)?;
        let half = self.grain.start_over() / 2;
        let start = if round < half && found >> fraction > half + self.grain.start_over() / 4 {
            // `finish` is from before rounds started over.
            least
        } else {
            found.clamp(least, least + owed)
        };
        let corrected = host.get(gauges.corrected)?.cast_signed();
        if start == found {
            // An addition is not lost if another worker adds at the same moment.
            host.add_to(gauges.finish, share.cast_signed())?;
        } else {
            host.set(gauges.finish, start + share)?;
        }
        let finish = start + share;
        let turn = Turn {
            flow,
            share,
            at: finish.cast_signed().wrapping_sub(corrected),
        };
        Ok((self.rank_at(finish, arrived), turn))
    }

    /// Returns the rank of the first request of `flow` on a worker. The request came at `arrived`
    /// and has turn `at`.
    pub(super) fn rank(
        &mut self,
        host: &impl Shared,
        flow: u16,
        at: i64,
        arrived: Instant,
    ) -> Result<u64, HostError> {
        let gauges = self.gauges(host, flow)?;
        let corrected = host.get(gauges.corrected)?.cast_signed();
        let finish = at.wrapping_add(corrected).max(0).cast_unsigned();
        Ok(self.rank_at(finish, arrived))
    }

    fn rank_at(&self, finish: u64, arrived: Instant) -> u64 {
        let round = finish.div_ceil(self.grain.one());
        self.grain.layout.rank(round, arrived)
    }

    /// Returns the number of rounds, in fixed point, that the flow of `request` needs to use `us`
    /// of slot time. Any cost above 0 takes at least one step of the fixed point, so that a flow of
    /// cheap requests advances, too.
    fn rounds(&self, request: &Attributes, us: u64) -> u64 {
        let weight = match self.by {
            Flow::Type | Flow::Class => self.flows[usize::from(self.flow_of(request))].weight,
            Flow::Workflow => request.weight,
        };
        let per_us = self.grain.one() as f64 / (self.grain.quantum_us * weight);
        let most = (1_u64 << (self.grain.fraction + MAX_ROUNDS)) as f64;
        let least = if us > 0 { 1.0 } else { 0.0 };
        (us as f64 * per_us).clamp(least, most) as u64
    }

    /// Records that a request left the queue for a slot. `least` is the smallest rank of all
    /// waiting requests at that time.
    pub(super) fn started(&self, host: &impl Shared, least: u64) -> Result<(), HostError> {
        let round = self.grain.layout.measure(least);
        if host.get(self.round)? < round {
            host.set(self.round, round)?;
        }
        Ok(())
    }

    /// Takes back the charge of a request that left the queue without a slot.
    pub(super) fn left(&mut self, host: &impl Shared, turn: Turn) -> Result<(), HostError> {
        let gauges = self.gauges(host, turn.flow)?;
        take_back(host, gauges.finish, turn.share)
    }

    /// Returns the charge that is expected for `request`, which needs `time_us` of slot time.
    fn expected(&self, request: &Attributes, time_us: u64) -> u64 {
        self.tokens.map_or(time_us, |cost| charge(cost, request, 0))
    }

    /// Corrects the charge of a request that held its slot for `taken_us`, with `output` tokens in
    /// its response. `usual_us` is the usual time of such requests, or 0 if it is not known.
    pub(super) fn ended(
        &mut self,
        host: &impl Shared,
        request: &Attributes,
        turn: Option<Turn>,
        output: u32,
        (usual_us, taken_us): (u64, u64),
    ) -> Result<(), HostError> {
        let flow = self.flow_of(request);
        let usual_us = self.expected(request, usual_us);
        let tokens = self.tokens;
        let taken_us = tokens.map_or(taken_us, |cost| charge(cost, request, output));
        // If flows are types, the expected time is already the mean of the flow.
        if self.by != Flow::Type || tokens.is_some() {
            self.flows[usize::from(flow)].cost.learn(usual_us, taken_us);
        }
        let Some(turn) = turn else {
            return Ok(());
        };
        let taken = self.rounds(request, taken_us);
        let more = taken.cast_signed() - turn.share.cast_signed();
        let gauges = self.gauges(host, turn.flow)?;
        let charged = match more {
            0 => return Ok(()),
            1.. => host.add_to(gauges.finish, more),
            _ => take_back(host, gauges.finish, more.unsigned_abs()),
        };
        charged.and(host.add_to(gauges.corrected, more))
    }

    /// Whether the id `flow` can be reused without loss. It can if its `finish` is behind round
    /// now, because the rest of its quantum is then forfeited.
    pub(super) fn is_idle(&mut self, host: &impl Shared, flow: u16) -> Result<bool, HostError> {
        if usize::from(flow) >= self.flows.len() {
            return Ok(true);
        }
        let gauges = self.gauges(host, flow)?;
        let round = host.get(self.round)?.min(self.grain.layout.max_measure());
        Ok(host.get(gauges.finish)? <= round.saturating_sub(1) << self.grain.fraction)
    }

    /// Resets the learned cost of `flow`, whose id now belongs to other requests.
    pub(super) fn forget(&mut self, flow: u16) {
        if let Some(state) = self.flows.get_mut(usize::from(flow)) {
            state.cost = Cost::default();
        }
    }

    /// Returns the gauges of `flow`, which is below [`Fair::flows`].
    fn gauges(&mut self, host: &impl Shared, flow: u16) -> Result<Gauges, HostError> {
        let state = &mut self.flows[usize::from(flow)];
        if let Some(known) = state.gauges {
            return Ok(known);
        }
        let gauge = |what| host.number(&format!("{}.{}.{what}", self.prefix, state.name));
        let defined = Gauges {
            finish: gauge(self.grain.finish)?,
            corrected: gauge(self.grain.corrected)?,
        };
        if host.get(defined.corrected)? == 0 {
            host.set(defined.corrected, NONE_CORRECTED)?;
        }
        state.gauges = Some(defined);
        Ok(defined)
    }
}

/// Lowers `finish` by `share`, unless `finish` was lowered or cleared already.
fn take_back(host: &impl Shared, finish: Number, share: u64) -> Result<(), HostError> {
    if share == 0 || host.get(finish)? < share {
        return Ok(());
    }
    host.add_to(finish, -share.cast_signed())
}

#[cfg(test)]
mod tests;
