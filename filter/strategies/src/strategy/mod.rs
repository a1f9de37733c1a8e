//! Admission strategies, which decide whether a request of a type may enter the queue now.
//!
//! A strategy decides at point 1 of Bouncer's Figure 1 and is updated at points 2 and 3. It has
//! neither slots nor a queue. Its inputs are in [`View`]. A [`Strategy`] has a base, which
//! implements [`Admission`]. It may have [`Avoidance`], which overrides some of the base's
//! refusals. It may also have a limit on utilization ([`AcceptFraction`]), which applies to the
//! requests that the base and the avoidance admit.
//!
//! A new base needs a file here with its algorithm, a case in [`base`], and a row in the
//! conformance suite (`tests/strategies/strategy_conformance.rs`). A new rule of starvation
//! avoidance needs a file with its algorithm and a case in [`avoidance`]. CONTRIBUTING.md lists the
//! places in other crates.

mod accept_fraction;
mod acceptance_allowance;
pub mod avoidance;
mod backlog_control;
mod bouncer;
mod controlled;
mod error_budget;
mod helping_the_underserved;
mod max_queue_length;
mod max_queue_wait;
mod response_time_controller;
mod value_cut;

use std::time::Duration;

use crate::config::{StageConfig, StrategyConfig, TypeConfig};
use crate::demand::Demand;
use crate::host::{HostError, Shared};
use crate::reason::Reason;
use crate::request::{Attributes, ClassId, Served};
use crate::rng::Rng;
use crate::service_times::ServiceTimes;
use crate::time::Instant;

pub use accept_fraction::AcceptFraction;
pub use acceptance_allowance::AcceptanceAllowance;
pub use avoidance::Avoidance;
pub use backlog_control::{BacklogControl, Gains, hint};
pub use bouncer::Bouncer;
pub use controlled::Controlled;
pub use helping_the_underserved::HelpingTheUnderserved;
pub use value_cut::{End, ValueCut};

pub use crate::request::TypeId;

use error_budget::ErrorBudget;
use max_queue_length::MaxQueueLength;
use max_queue_wait::MaxQueueWait;
use response_time_controller::ResponseTimeController;

/// The state of the stage when a request arrives. It is a strategy's input.
#[derive(Debug)]
pub struct View<'a> {
    /// The time of the request's arrival.
    pub now: Instant,
    /// P, the number of slots.
    pub parallelism: u32,
    /// The number of slots in use, over all workers. It is 0 unless
    /// [`Admission::needs_slots_in_use`].
    pub slots_in_use: u32,
    /// The number of waiting requests, over all workers.
    pub queue_length: u32,
    /// The work of the waiting requests, in the unit of [`crate::work`].
    pub queue_work: u64,
    /// The work that this request would add to the queue.
    pub work: u64,
    /// The mean queue wait by which this request is judged. It is that of Bouncer's Eq. 2, or the
    /// estimate that fits the actual discipline of the queue
    /// ([`Order::admits_by_drain`](crate::discipline::Order::admits_by_drain)). With a value cut,
    /// it is the wait that this request can expect.
    pub queue_wait: Duration,
    /// The queue wait of this request's rival under a value cut ([`ValueCut::rival`]). It is zero
    /// without a rival.
    pub rival_wait: Duration,
    /// The measured processing times by type.
    pub service_times: &'a ServiceTimes,
}

/// An admission strategy, the base of a [`Strategy`]. No method allocates or calls the host.
pub trait Admission: std::fmt::Debug + Send {
    /// Decides at point 1 of Bouncer's Figure 1. Admits a request that arrives at `view.now`, or
    /// returns the reason for its refusal. `rng` is the only source of randomness.
    fn decide(
        &mut self,
        request: &Attributes,
        view: &View<'_>,
        rng: &mut Rng,
    ) -> Result<(), Reason>;

    /// Whether the decision on a request of `work` needs [`View::slots_in_use`]. Reading that
    /// number costs a host call.
    fn needs_slots_in_use(&self, _queue_length: u32, _work: u64) -> bool {
        false
    }

    /// Records that the request that was just admitted was refused after all, because the queue is
    /// full or the request's deadline is too close.
    fn withdrawn(&mut self, _request: &Attributes) {}

    /// Records the stage's final decision on a request, even if the strategy wasn't asked.
    fn decided(&mut self, _admitted: bool) {}

    /// Records that an admitted request ran out of time in the queue, and is refused after all.
    fn expired(&mut self) {}

    /// Records that a request entered the stage. The request waits, or was sent to the backend.
    fn entered(&mut self, _kind: TypeId, _class: ClassId) {}

    /// Records that a request left the stage, whether it was served or not.
    fn left(&mut self, _kind: TypeId, _class: ClassId) {}

    /// Records a request that was served (point 3 of Bouncer's Figure 1).
    fn completed(&mut self, _served: &Served, _now: Instant) {}

    /// Does periodic work at every tick. Ticks come at irregular intervals of about 10 to 50 ms.
    fn tick(&mut self, _now: Instant) {}

    /// Adopts P, the number of slots, before a run of the control law. The worker that runs the law
    /// may have had no request to decide on since P changed.
    fn set_slots(&mut self, _slots: u32) {}

    /// Returns the strategy's measured demand, so that the caller can add other workers'
    /// measurements.
    fn demand_mut(&mut self) -> Option<&mut Demand> {
        None
    }

    /// Returns the strategy's feedback controller, if it has one.
    fn controlled_mut(&mut self) -> Option<&mut dyn Controlled> {
        None
    }

    /// Returns the strategy's value cut, if it has one.
    fn value_cut(&self) -> Option<&ValueCut> {
        None
    }

    /// Returns the strategy's value cut, if it has one, so that the caller can update it from
    /// measurements.
    fn value_cut_mut(&mut self) -> Option<&mut ValueCut> {
        None
    }

    /// Returns the recent ratio of refused requests, 0..=1. Returns `None` if the policy doesn't
    /// announce it to clients.
    fn rejection_rate(&self) -> Option<f64> {
        None
    }

    /// Returns the time that a unit of work takes in a slot, s. Returns `None` if work is time, or
    /// before the time is measured.
    fn time_per_work(&self) -> Option<f64> {
        None
    }

    /// Returns the quality that the application should deliver for this type and class, ratio.
    /// Returns `None` if the strategy doesn't degrade service.
    fn quality(&self, _kind: TypeId, _class: ClassId) -> Option<f64> {
        None
    }

    /// Returns the rate up to which requests of this type and class are admitted, requests/s.
    /// Returns `None` if the strategy sets no rate.
    fn admission_rate(&self, _kind: TypeId, _class: ClassId) -> Option<f64> {
        None
    }

    /// Returns the smoothed response time that controls the rate for requests of this type and
    /// class. Returns `None` before the first response time, and if the strategy measures none.
    fn controlled_response_time(&self, _kind: TypeId, _class: ClassId) -> Option<Duration> {
        None
    }

    /// Returns the time after which a request like `request`, which was just refused for `reason`,
    /// is admitted. It is the estimated queue wait, unless the strategy has a better estimate.
    fn retry_after(
        &self,
        _request: &Attributes,
        _reason: Reason,
        queue_wait: Duration,
        _service_times: &ServiceTimes,
    ) -> Duration {
        queue_wait
    }

    /// Returns the bound on the queue that a feedback controller sets, for stats. Returns `None`
    /// before the first bound.
    fn controlled_bound(&self) -> Option<Bound> {
        None
    }
}

/// A bound on the queue, and the measurement behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// The bound, in the unit of the controlled signal.
    pub value: u64,
    /// The mean service delay of the last control period.
    pub service_delay: Duration,
}

/// A base with its starvation avoidance and its limit on utilization.
#[derive(Debug)]
pub struct Strategy {
    /// The base. If [`Strategy`] and the base have a method of the same name, such as
    /// [`Strategy::decide`], callers use the method of [`Strategy`].
    pub base: Box<dyn Admission>,
    /// The rule of starvation avoidance, Bouncer's Alg. 2 or 3.
    pub avoidance: Option<Avoidance>,
    /// The limit on utilization, alone or in addition to Bouncer. It is needed because objectives
    /// alone don't limit utilization (Bouncer §2). Its refusals are random and final, so it
    /// measures and judges only requests that the base and the avoidance admit.
    pub capacity: Option<AcceptFraction>,
}

impl Strategy {
    /// Creates the strategy of a checked configuration.
    pub fn from_config(config: &StageConfig) -> Self {
        let capacity = config.strategy.accept_fraction();
        Self {
            base: base(config),
            avoidance: Avoidance::from_config(config),
            capacity: capacity.map(AcceptFraction::from_config),
        }
    }

    /// Creates the strategy of one of several workers. Its windows have the requests of all workers
    /// that use the same `prefix`.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn new(host: &impl Shared, prefix: &str, config: &StageConfig) -> Result<Self, HostError> {
        let mut this = Self::from_config(config);
        if let Some(demand) = this.demand_mut() {
            demand.share(host, prefix)?;
        }
        if let Some(avoidance) = &mut this.avoidance {
            avoidance.share(host, prefix, config)?;
        }
        Ok(this)
    }

    /// Exchanges the counts of windows with the other workers.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn exchange(&mut self, host: &impl Shared, now: Instant) -> Result<(), HostError> {
        if let Some(demand) = self.demand_mut() {
            demand.exchange(host, now)?;
        }
        match &mut self.avoidance {
            Some(avoidance) => avoidance.exchange(host, now),
            None => Ok(()),
        }
    }

    /// Decides at point 1 of Bouncer's Figure 1. Admits a request that arrives at `view.now`, or
    /// returns the reason for its refusal.
    pub fn decide(
        &mut self,
        request: &Attributes,
        view: &View<'_>,
        rng: &mut Rng,
    ) -> Result<(), Reason> {
        let slots = view.parallelism;
        let available = self
            .capacity
            .as_ref()
            .map(|capacity| capacity.available(slots));
        let bounded = View {
            parallelism: available.map_or(slots, |available| slots.min(available as u32)),
            ..*view
        };
        let mut decision = self.base.decide(request, &bounded, rng);
        if let Some(avoidance) = &mut self.avoidance {
            decision = avoidance.review(decision, request.kind, view.now, rng);
        }
        if let (Ok(()), Some(capacity)) = (decision, &mut self.capacity) {
            decision = capacity.decide(view, rng);
            if decision.is_err() {
                self.withdrawn(request);
                if let Some(cut) = self.base.value_cut_mut() {
                    cut.overruled(view.now);
                }
            }
        }
        decision
    }

    /// Records a request that was served (point 3 of Bouncer's Figure 1).
    pub fn completed(&mut self, served: &Served, now: Instant) {
        self.base.completed(served, now);
        if let Some(capacity) = &mut self.capacity {
            capacity.served(now, served.slot, served.weight);
        }
    }

    /// Does periodic work.
    pub fn tick(&mut self, now: Instant) {
        self.base.tick(now);
        if let Some(capacity) = &mut self.capacity {
            capacity.tick(now);
        }
    }

    fn demand_mut(&mut self) -> Option<&mut Demand> {
        match &mut self.capacity {
            Some(capacity) => Some(capacity.demand_mut()),
            None => self.base.demand_mut(),
        }
    }

    /// Whether configured processing units limit the slots that may be in use to fewer than
    /// `slots`.
    #[inline]
    pub fn is_bounded(&self, slots: u32) -> bool {
        let capacity = self
            .capacity
            .as_ref()
            .filter(|capacity| capacity.has_units());
        capacity.is_some_and(|capacity| capacity.available(slots) < f64::from(slots))
    }

    /// Adopts the processing units of `config`, which [continues](StrategyConfig::continues) the
    /// strategy's configuration.
    pub fn set_units(&mut self, config: &StrategyConfig) {
        if let (Some(capacity), Some(config)) = (&mut self.capacity, config.accept_fraction()) {
            capacity.set_units(config.units);
        }
    }

    /// Updates the inputs of the value cut, if there is a cut. The caller calls this function
    /// before every run of the cut's law. `tokens` is as in [`ValueCut::learn`].
    pub fn learn(
        &mut self,
        now: Instant,
        slots: u32,
        is_open: bool,
        times: &ServiceTimes,
        tokens: impl Fn(TypeId) -> f64,
    ) {
        let Self {
            base,
            avoidance,
            capacity,
        } = self;
        if let Some(cut) = base.value_cut_mut().filter(|cut| cut.due(now)) {
            let most = capacity
                .as_ref()
                .map_or(f64::INFINITY, |c| c.available(slots));
            let floor = |kind| avoidance.as_ref().map_or(0.0, |a| a.floor(kind));
            cut.learn((f64::from(slots), most), is_open, times, tokens, floor);
        }
    }

    /// Records that the request that was just admitted was refused after all.
    pub fn withdrawn(&mut self, request: &Attributes) {
        if let Some(avoidance) = &mut self.avoidance {
            avoidance.withdraw(request.kind);
        }
        self.base.withdrawn(request);
    }
}

/// The base of a strategy that is only a limit on utilization.
#[derive(Debug)]
struct AdmitAll;

impl Admission for AdmitAll {
    fn decide(
        &mut self,
        _request: &Attributes,
        _view: &View<'_>,
        _rng: &mut Rng,
    ) -> Result<(), Reason> {
        Ok(())
    }
}

/// Returns the base of a checked configuration.
fn base(config: &StageConfig) -> Box<dyn Admission> {
    match &config.strategy {
        StrategyConfig::Bouncer {
            logic,
            shed_by_value,
            ..
        } => Box::new(Bouncer::new(config, *logic, *shed_by_value)),
        StrategyConfig::MaxQueueLength => Box::new(MaxQueueLength::new(config.queue.max_length)),
        StrategyConfig::MaxQueueWait {
            limit_us,
            type_limits_us,
            window_us,
            step_us,
        } => {
            let limit = |kind: &TypeConfig| {
                let micros = type_limits_us.get(&kind.name).unwrap_or(limit_us);
                Duration::from_micros(*micros)
            };
            let limits = config.types.iter().map(limit).collect();
            let span = |us: &u64| Duration::from_micros(*us);
            let demand = Demand::new(span(window_us), span(step_us));
            Box::new(MaxQueueWait::new(limits, demand))
        }
        StrategyConfig::AcceptFraction(_) => Box::new(AdmitAll),
        StrategyConfig::BacklogControl(control) => Box::new(BacklogControl::new(control, config)),
        StrategyConfig::ResponseTimeController(settings) => {
            Box::new(ResponseTimeController::new(settings, config))
        }
    }
}
