//! A stage's stats. Every name is defined here, when the stage is configured.
//!
//! Names follow Envoy's style. They contain the policy and the type, which `stats_tags` turn into
//! labels:
//!
//! ```text
//! headgate.policy.<namespace>/<name>.slots                               gauge      P: requests that may be in the backend at once
//! headgate.policy.<namespace>/<name>.slots_in_use                        gauge      requests that hold a slot, as decisions read it
//! headgate.policy.<namespace>/<name>.tokens                              gauge      the budget of tokens, if the policy has one
//! headgate.policy.<namespace>/<name>.tokens_in_use                       gauge      tokens of the requests that hold a slot, if they are counted
//! headgate.policy.<namespace>/<name>.queue_length                        gauge      requests that wait, as of the last tick
//! headgate.policy.<namespace>/<name>.queued_work_us                      gauge      processing time of waiting requests, as of the last tick
//! headgate.policy.<namespace>/<name>.backlog_bound                       gauge      d_t: cost, µs if work is time, requests for FC-Q; AC's probability in millionths
//! headgate.policy.<namespace>/<name>.service_delay_us                    gauge      s(k) of backlog control, the last period's
//! headgate.policy.<namespace>/<name>.handover_us                         histogram  freed slot to its next request on another worker
//! headgate.policy.<namespace>/<name>.{rq_excluded,rq_unmanaged,rq_cost_unknown,ledger_corrected,workers_lost,offered_work_us}   counters
//! headgate.policy.<namespace>/<name>.type.<type>.<counter>               see [`Count`]
//! headgate.policy.<namespace>/<name>.type.<type>.rq_rejected.reason.<reason>        counter    rejected for this reason, enforced or not
//! headgate.policy.<namespace>/<name>.type.<type>.rq_slo_met.objective.<pNN>         counter    completed within the objective; `tpot_<pNN>` for the time per output token
//! headgate.policy.<namespace>/<name>.type.<type>.slo_response_time_us.objective.<pNN>   gauge    the objective; `tpot_<pNN>` for the time per output token
//! headgate.policy.<namespace>/<name>.type.<type>.slo_quantile_ppm.objective.<pNN>       gauge    500000: half of the responses
//! headgate.policy.<namespace>/<name>.type.<type>.queue_wait_us           histogram  arrival to slot
//! headgate.policy.<namespace>/<name>.type.<type>.processing_time_us      histogram  slot to the end of the response, or its first byte with `measure`
//! headgate.policy.<namespace>/<name>.type.<type>.response_time_us        histogram  the sum of both
//! headgate.policy.<namespace>/<name>.type.<type>.time_per_output_token_us  histogram  first token to the end of the response, divided by the number of the others; of types with `tpot`
//! headgate.policy.<namespace>/<name>.type.<type>.estimated_response_time_us.objective.<pNN>      histogram  the estimate for an admitted request; one in eight is recorded
//! headgate.policy.<namespace>/<name>.type.<type>.admission_rate_mhz[.class.<class>]  gauge      requests admitted in 1000 s, at most
//! headgate.policy.<namespace>/<name>.type.<type>.controlled_response_time_us[.class.<class>]   gauge   cur of SEDA §3.2
//! headgate.policy.<namespace>/<name>.type.<type>.quality_permille[.class.<class>]    gauge      1000: full
//! ```
//!
//! `<reason>` is the name of a [`Reason`]. A type has such a reason for each of its objectives, and
//! for each objective of `default`, because a cold type is judged by these.
//!
//! The last three belong to the response time controller. If one controller serves all types, their
//! names don't contain the type. Bouncer's value cut has
//!
//! ```text
//! headgate.policy.<namespace>/<name>.type.<type>.value_admitted_permille    gauge      part of the requests above the cut
//! headgate.policy.<namespace>/<name>.type.<type>.value_per_slot_second_milli   gauge   rank in the cut: thousandths of value that a second in a slot yields; 0 without a rank yet
//! headgate.policy.<namespace>/<name>.type.<type>.value_slots_asked_milli    gauge      slots that its arrivals demand, 1000: one
//! headgate.policy.<namespace>/<name>.value_budget_permille                  gauge      slots that are given out, 1000: P
//! headgate.policy.<namespace>/<name>.floors_over_capacity                   gauge      1: starvation avoidance demands more than P
//! ```
//!
//! Each worker adds up its counts, and adds the sums to the host's counters once a tick. That saves
//! several host calls per request. Distributions are recorded immediately.

mod gauges;
mod objectives;
mod outputs;

use std::fmt::Display;
use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::reason::{Reason, percentile_name};
use headgate_strategies::request::TypeId;
use headgate_strategies::strategy::Admission;
use headgate_strategies::time::micros;

use crate::config::{Objective, StageConfig, TypeConfig};
use crate::host::{MetricId, MetricKind, Metrics};

use gauges::Gauges;
use objectives::Objectives;
use outputs::Outputs;

/// The number of types with stats of their own. Further types share the stats of `_other`, because
/// each type needs some twenty metrics.
pub const MAX_TYPES_IN_STATS: usize = 256;

/// Counters of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Arrived.
    Total,
    /// Admitted, at arrival or from the queue; in a dry run, by the decision alone.
    Accepted,
    /// Decided to reject, at arrival or while queued, enforced or not.
    Rejected,
    /// Rejected, and actually refused (not in `DryRun`).
    RejectedEnforced,
    /// The part of `rq_rejected_enforced` that went on to another route (`onRefusal`).
    Diverted,
    /// Answered by the backend and measured.
    Completed,
    /// Left the stage without an answer from the backend, which didn't fail either: the client
    /// left, or the proxy replied itself.
    Unmeasured,
    /// The part of `rq_unmeasured` that left while queued.
    Abandoned,
    /// Answered with an error status as the policy defines it, or not answered because of a timeout
    /// or a reset. An estimate if answers are sampled: each counts with its weight.
    Failed,
    /// Answered or failed, but not measured, because the type got more than 800 requests a second
    /// ([`crate::stage::SAMPLES_PER_SECOND`]).
    Unsampled,
}

const COUNTERS: [&str; 10] = [
    "rq_total",
    "rq_accepted",
    "rq_rejected",
    "rq_rejected_enforced",
    "rq_diverted",
    "rq_completed",
    "rq_unmeasured",
    "rq_abandoned",
    "rq_failed",
    "rq_unsampled",
];

/// Counters of the stage itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageCount {
    /// Matched `exclude`: never held, refused or measured.
    Excluded,
    /// Passed because a host call failed: Headgate fails open.
    Unmanaged,
    /// The totals were corrected after a VM died between two bookings.
    LedgerCorrected,
    /// Dead workers whose share was given back.
    WorkersLost,
    /// Requests without a readable cost or size, although the policy names a header for it: counted
    /// as 1, or as an average request of their type.
    CostUnknown,
    /// Slot time that all arrivals need, including refused ones: for each, the mean of its type,
    /// less the part that is answered without the backend. Its rate ÷ 1,000,000 is the number of
    /// slots that the offered work keeps busy.
    OfferedWork,
}

const STAGE_COUNTERS: [&str; 6] = [
    "rq_excluded",
    "rq_unmanaged",
    "ledger_corrected",
    "workers_lost",
    "rq_cost_unknown",
    "offered_work_us",
];

/// Returns the name in stats of an objective for the time per output token: `tpot_p90`.
pub fn tpot_name(percentile: f64) -> String {
    format!("tpot_{}", percentile_name(percentile))
}

/// Returns the prefix of a stage's stat names.
pub fn prefix(policy: &str) -> String {
    format!("headgate.policy.{}", policy_name(policy))
}

/// Returns the name of a policy, `namespace/name`, as it is in stats, where dots separate parts.
pub fn policy_name(policy: &str) -> String {
    policy.replace('.', "_")
}

/// Counters whose counts are added to the host's counters together.
#[derive(Debug, Clone)]
pub struct Counters(Vec<Counter>);

#[derive(Debug, Clone)]
struct Counter {
    metric: MetricId,
    pending: u64,
}

impl Counters {
    /// Defines counters with these names below `prefix`.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a counter.
    pub fn new(
        host: &impl Metrics,
        prefix: &str,
        names: impl IntoIterator<Item: Display>,
    ) -> Result<Self, HostError> {
        let counters = names.into_iter().map(|name| {
            let metric = host.define(MetricKind::Counter, &format!("{prefix}.{name}"))?;
            let pending = 0;
            Ok(Counter { metric, pending })
        });
        counters.collect::<Result<_, _>>().map(Self)
    }

    /// Adds `n` to the counter with this index. Without such a counter, this function does nothing.
    pub fn add(&mut self, at: usize, n: u64) {
        if let Some(counter) = self.0.get_mut(at) {
            counter.pending = counter.pending.saturating_add(n);
        }
    }

    /// Adds the counts since the last call to the host's counters.
    ///
    /// # Errors
    /// [`HostError`]; counts that were not added are kept for the next call.
    pub fn flush(&mut self, host: &impl Metrics) -> Result<(), HostError> {
        for counter in self.0.iter_mut().filter(|counter| counter.pending > 0) {
            let amount = i64::try_from(counter.pending).unwrap_or(i64::MAX);
            host.add(counter.metric, amount)?;
            counter.pending = 0;
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct TypeStats {
    /// Whether any count is pending. A flush visits only types with pending counts.
    dirty: bool,
    counters: Counters,
    /// The reasons of the counters `rejected`.
    reasons: Vec<Reason>,
    rejected: Counters,
    slo_met: Counters,
    tpot_met: Counters,
    token_time: Option<MetricId>,
    estimated: Vec<MetricId>,
    queue_wait: MetricId,
    processing_time: MetricId,
    response_time: MetricId,
}

/// A stage's stats.
#[derive(Debug, Clone)]
pub struct StageStats {
    types: Vec<TypeStats>,
    dirty: Vec<u16>,
    counters: Counters,
    slots: MetricId,
    queue_length: MetricId,
    queued_work: MetricId,
    handover: MetricId,
    outputs: Outputs,
    objectives: Objectives,
    /// All gauges that only some policies have.
    gauges: Gauges,
}

impl StageStats {
    /// Defines every metric of the stage.
    ///
    /// # Errors
    /// [`HostError`] when the host refuses a metric.
    pub fn new(host: &impl Metrics, config: &StageConfig) -> Result<Self, HostError> {
        let prefix = prefix(&config.policy);
        let shown = config.types.len().min(MAX_TYPES_IN_STATS);
        let folded = config.types.len() - shown;
        let mut types = Vec::with_capacity(config.types.len());
        let mut names = Vec::with_capacity(config.types.len());
        for (i, kind) in config.types.iter().enumerate() {
            // `default` is the last and always shown.
            let name = if i < shown - 1 || i + 1 == config.types.len() || folded == 0 {
                kind.name.as_str()
            } else {
                "_other"
            };
            names.push(name);
            let general = config.types.last().map_or(&[][..], |default| &default.slo);
            let prefix = format!("{prefix}.type.{name}");
            types.push(TypeStats::new(host, &prefix, kind, general)?);
        }
        let mut gauges = Gauges::default();
        Ok(Self {
            dirty: Vec::with_capacity(types.len()),
            types,
            counters: Counters::new(host, &prefix, STAGE_COUNTERS)?,
            slots: host.define(MetricKind::Gauge, &format!("{prefix}.slots"))?,
            queue_length: host.define(MetricKind::Gauge, &format!("{prefix}.queue_length"))?,
            queued_work: host.define(MetricKind::Gauge, &format!("{prefix}.queued_work_us"))?,
            handover: host.define(MetricKind::Histogram, &format!("{prefix}.handover_us"))?,
            outputs: Outputs::new(host, &mut gauges, &prefix, &names, config)?,
            objectives: Objectives::new(host, &mut gauges, &prefix, &names, config)?,
            gauges,
        })
    }

    fn touch(&mut self, kind: TypeId) -> &mut TypeStats {
        let stats = &mut self.types[kind.0 as usize];
        if !stats.dirty {
            stats.dirty = true;
            self.dirty.push(kind.0);
        }
        stats
    }

    /// Counts one request of type `kind`.
    pub fn count(&mut self, kind: TypeId, count: Count) {
        self.count_n(kind, count, 1);
    }

    /// Counts `n` requests of type `kind`.
    pub fn count_n(&mut self, kind: TypeId, count: Count, n: u32) {
        self.touch(kind).counters.add(count as usize, n.into());
    }

    /// Adds `amount` to a counter of the stage.
    pub fn count_stage(&mut self, count: StageCount, amount: u64) {
        self.counters.add(count as usize, amount);
    }

    /// Counts a decision to reject, and whether it was enforced.
    pub fn rejected(&mut self, kind: TypeId, reason: Reason, enforced: bool) {
        self.count(kind, Count::Rejected);
        if enforced {
            self.count(kind, Count::RejectedEnforced);
        }
        let stats = self.touch(kind);
        if let Some(at) = stats.reasons.iter().position(|of| *of == reason) {
            stats.rejected.add(at, 1);
        }
    }

    /// Counts a response that met its objective.
    pub fn slo_met(&mut self, kind: TypeId, objective: usize) {
        self.touch(kind).slo_met.add(objective, 1);
    }

    /// Counts a response whose time per output token met its objective.
    pub fn tpot_met(&mut self, kind: TypeId, objective: usize) {
        self.touch(kind).tpot_met.add(objective, 1);
    }

    /// Records the time per output token of a response.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn token_time(
        &self,
        host: &impl Metrics,
        kind: TypeId,
        token_time: Duration,
    ) -> Result<(), HostError> {
        match self.types[kind.0 as usize].token_time {
            Some(metric) => host.record(metric, micros(token_time)),
            None => Ok(()),
        }
    }

    /// Records the estimate by which a request was admitted.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn estimated(
        &self,
        host: &impl Metrics,
        kind: TypeId,
        objective: usize,
        response_time: Duration,
    ) -> Result<(), HostError> {
        match self.types[kind.0 as usize].estimated.get(objective) {
            Some(&metric) => host.record(metric, micros(response_time)),
            None => Ok(()),
        }
    }

    /// Records a measured request.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn measured(
        &self,
        host: &impl Metrics,
        kind: TypeId,
        queue_wait: Duration,
        processing: Duration,
    ) -> Result<(), HostError> {
        let stats = &self.types[kind.0 as usize];
        host.record(stats.queue_wait, micros(queue_wait))?;
        host.record(stats.processing_time, micros(processing))?;
        host.record(stats.response_time, micros(queue_wait + processing))
    }

    /// Records the time for which a freed slot was idle before a request on another worker got it.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn handover(&self, host: &impl Metrics, idle: Duration) -> Result<(), HostError> {
        host.record(self.handover, micros(idle))
    }

    /// Publishes P, if it is found automatically.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn slots(&self, host: &impl Metrics, slots: u32) -> Result<(), HostError> {
        host.record(self.slots, u64::from(slots))
    }

    /// Publishes the queue for dashboards. Decisions read one packed number instead.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn queue(&self, host: &impl Metrics, length: u32, work: Duration) -> Result<(), HostError> {
        host.record(self.queue_length, u64::from(length))?;
        host.record(self.queued_work, micros(work))
    }

    /// Publishes the outputs of the strategy's feedback controllers.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn control(
        &mut self,
        host: &impl Metrics,
        strategy: &dyn Admission,
    ) -> Result<(), HostError> {
        self.outputs.publish(host, strategy)
    }

    /// Publishes the configured P, budget and objectives.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn configured(&self, host: &impl Metrics, parallelism: u32) -> Result<(), HostError> {
        host.record(self.slots, u64::from(parallelism))?;
        self.objectives.publish(host)
    }

    /// Resets the gauges that `kept`, the successor of these stats, lacks.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn withdrawn(&self, host: &impl Metrics, kept: &Self) -> Result<(), HostError> {
        self.gauges.withdraw(host, &kept.gauges)
    }

    /// Resets the gauges, because the policy is removed.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn retired(&self, host: &impl Metrics) -> Result<(), HostError> {
        host.record(self.slots, 0)?;
        self.gauges.withdraw(host, &Gauges::default())
    }

    /// Adds the counts since the last call to the host's counters.
    ///
    /// # Errors
    /// [`HostError`]; counts that were not added are kept for the next call.
    pub fn flush(&mut self, host: &impl Metrics) -> Result<(), HostError> {
        while let Some(&kind) = self.dirty.last() {
            let stats = &mut self.types[kind as usize];
            stats.counters.flush(host)?;
            stats.rejected.flush(host)?;
            stats.slo_met.flush(host)?;
            stats.tpot_met.flush(host)?;
            stats.dirty = false;
            self.dirty.pop();
        }
        self.counters.flush(host)
    }
}

impl TypeStats {
    /// Creates the stats of a type. `general` are the objectives of `default`, because a cold type
    /// is judged by these.
    fn new(
        host: &impl Metrics,
        prefix: &str,
        config: &TypeConfig,
        general: &[Objective],
    ) -> Result<Self, HostError> {
        let histogram =
            |name: &str| host.define(MetricKind::Histogram, &format!("{prefix}.{name}"));
        let of = |o: &Objective| Reason::Objective(o.percentile);
        let mut reasons: Vec<Reason> = config.slo.iter().map(of).collect();
        let others = general.iter().map(of).filter(|r| !reasons.contains(r));
        let others: Vec<Reason> = others.collect();
        reasons.extend(others);
        reasons.extend(Reason::FIXED);
        let objectives = config.slo.iter();
        let named: Vec<String> = objectives.map(|o| percentile_name(o.percentile)).collect();
        let met = &format!("{prefix}.rq_slo_met.objective");
        let tpot = config.tpot.iter().map(|o| tpot_name(o.percentile));
        Ok(Self {
            dirty: false,
            counters: Counters::new(host, prefix, COUNTERS)?,
            rejected: Counters::new(host, &format!("{prefix}.rq_rejected.reason"), &reasons)?,
            reasons,
            slo_met: Counters::new(host, met, &named)?,
            tpot_met: Counters::new(host, met, tpot)?,
            token_time: { config.tpot.first() }
                .map(|_| histogram("time_per_output_token_us"))
                .transpose()?,
            estimated: named
                .iter()
                .map(|p| histogram(&format!("estimated_response_time_us.objective.{p}")))
                .collect::<Result<_, _>>()?,
            queue_wait: histogram("queue_wait_us")?,
            processing_time: histogram("processing_time_us")?,
            response_time: histogram("response_time_us")?,
        })
    }
}
