//! Admission strategies: may a request of this type enter the queue now?
//!
//! A strategy decides at point 1 of Bouncer's Figure 1 and learns at points 2 and 3. It holds no slots
//! and no queue; what it may look at is [`View`]. Starvation avoidance wraps any strategy that knows
//! types. The choice is the closed enum [`Strategy`], so a decision costs no virtual call and every
//! member passes one conformance suite.
//!
//! To add a strategy: a file here with its algorithm, a variant of [`Base`] (or of [`Strategy`], for a
//! decorator), a case in [`Strategy::from_config`], and a row in the conformance suite
//! (`tests/strategy_conformance.rs`).

mod accept_fraction;
mod acceptance_allowance;
mod backlog_control;
mod bouncer;
mod controlled;
mod helping_the_underserved;
mod max_queue_length;
mod max_queue_wait;
mod response_time_controller;

use std::time::Duration;

use crate::config::{StageConfig, StarvationAvoidance, StrategyConfig, TypeConfig};
use crate::demand::Demand;
use crate::request::{Attributes, ClassId, Served};
use crate::rng::Rng;
use crate::service_times::ServiceTimes;
use crate::time::Instant;
use crate::window::Window;

pub use accept_fraction::AcceptFraction;
pub use acceptance_allowance::AcceptanceAllowance;
pub use backlog_control::{BacklogControl, Gains, hint};
pub use bouncer::Bouncer;
pub use controlled::Controlled;
pub use helping_the_underserved::HelpingTheUnderserved;
pub use max_queue_length::MaxQueueLength;
pub use max_queue_wait::MaxQueueWait;
pub use response_time_controller::ResponseTimeController;

pub use crate::request::TypeId;

/// What a strategy sees of the stage when a request arrives.
#[derive(Debug)]
pub struct View<'a> {
    /// The request's arrival.
    pub now: Instant,
    /// P, the number of slots.
    pub parallelism: u32,
    /// Slots taken at the moment, over all workers; 0 unless [`Strategy::needs_slots_in_use`].
    pub slots_in_use: u32,
    /// Requests waiting, over all workers.
    pub queue_length: u32,
    /// Their work, in the unit of [`crate::work::Work`].
    pub queue_work: u64,
    /// What this request would add to it.
    pub work: u64,
    /// Mean queue wait that this request is to be judged by: Bouncer's Eq. 2, or what fits the discipline
    /// that the queue really uses ([`Order::admits_by_drain`](crate::discipline::Order::admits_by_drain)).
    pub queue_wait: Duration,
    /// Measured processing times by type.
    pub service_times: &'a ServiceTimes,
}

/// The answer of a strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Let it in.
    Admit,
    /// Turn it away now.
    Refuse(Reason),
}

/// Why a strategy refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The estimated response time at objective number `objective` of its type misses the objective
    /// (Bouncer Alg. 1).
    Objective {
        /// Index into the objectives of [`ServiceTimes::estimate`]: the type's, ascending by percentile,
        /// or, while the type is cold, those of `default`. The first that was missed.
        objective: u8,
    },
    /// The queue holds as many requests as it may.
    QueueFull,
    /// The estimated queue wait exceeds its limit (Bouncer §5.2.2).
    QueueWait,
    /// More is asked of the backend than the utilization it may have (Bouncer §5.2.3).
    Utilization,
    /// With it, more would wait than the mean service delay allows (Chronos Eq. 2).
    Backlog,
    /// Measured response times allow for no more requests a second (SEDA §3.2).
    ResponseTime,
}

impl Reason {
    /// Whether the request was refused for the sake of response times, rather than for lack of room.
    /// Starvation avoidance overrides only the former.
    #[must_use]
    pub const fn is_about_objectives(self) -> bool {
        match self {
            Self::Objective { .. } | Self::QueueWait | Self::Backlog | Self::ResponseTime => true,
            Self::QueueFull | Self::Utilization => false,
        }
    }
}

/// What every strategy does. No method allocates or calls the host.
pub trait Admission {
    /// Point 1: decides about a request that arrives at `view.now`. `rng` is the only source of chance.
    fn decide(&mut self, request: &Attributes, view: &View<'_>, rng: &mut Rng) -> Verdict;

    /// The request that was just admitted was refused after all: the queue is full, or its deadline too
    /// near.
    fn withdrawn(&mut self, _request: &Attributes) {}

    /// A request is in the stage now: it waits, or was sent to the backend.
    fn entered(&mut self, _kind: TypeId, _class: ClassId) {}

    /// A request that entered is gone, served or not.
    fn left(&mut self, _kind: TypeId, _class: ClassId) {}

    /// Point 3: a request was served. Point 2 is behind it, so its queue wait is known, too.
    fn completed(&mut self, _served: &Served, _now: Instant) {}

    /// Time passed: about every 10 ms, irregularly.
    fn tick(&mut self, _now: Instant) {}
}

/// The strategies proper.
#[derive(Debug)]
pub enum Base {
    /// Bouncer Alg. 1.
    Bouncer(Bouncer),
    /// Bouncer §5.2.1.
    MaxQueueLength(MaxQueueLength),
    /// Bouncer §5.2.2, §5.5.
    MaxQueueWait(MaxQueueWait),
    /// Bouncer §5.2.3.
    AcceptFraction(AcceptFraction),
    /// Chronos §2-4.
    BacklogControl(Box<BacklogControl>),
    /// SEDA §3.2–3.4.
    ResponseTimeController(ResponseTimeController),
}

/// A strategy, perhaps wrapped in a decorator.
#[derive(Debug)]
pub enum Strategy {
    /// As it is.
    Plain(Base),
    /// Bouncer Alg. 2.
    AcceptanceAllowance(AcceptanceAllowance<Base>),
    /// Bouncer Alg. 3.
    HelpingTheUnderserved(HelpingTheUnderserved<Base>),
}

impl Strategy {
    /// The strategy that a checked configuration asks for.
    #[must_use]
    pub fn from_config(config: &StageConfig) -> Self {
        let base = Base::from_config(config);
        let window = |window_us, step_us| {
            let (duration, step) = (
                Duration::from_micros(window_us),
                Duration::from_micros(step_us),
            );
            Window::new(config.types.len(), duration, step)
        };
        match config.starvation_avoidance {
            None => Self::Plain(base),
            Some(StarvationAvoidance::AcceptanceAllowance {
                allowance,
                window_us,
                step_us,
            }) => {
                let window = window(window_us, step_us);
                Self::AcceptanceAllowance(AcceptanceAllowance::new(base, allowance, window))
            }
            Some(StarvationAvoidance::HelpingTheUnderserved {
                alpha,
                window_us,
                step_us,
            }) => {
                let window = window(window_us, step_us);
                Self::HelpingTheUnderserved(HelpingTheUnderserved::new(base, alpha, window))
            }
        }
    }

    fn base(&self) -> &Base {
        match self {
            Self::Plain(base) => base,
            Self::AcceptanceAllowance(s) => s.inner(),
            Self::HelpingTheUnderserved(s) => s.inner(),
        }
    }

    /// Whether the decision about a request of `work` looks at [`View::slots_in_use`], which costs a host
    /// call.
    #[must_use]
    pub fn needs_slots_in_use(&self, queue_length: u32, work: u64) -> bool {
        match self.base() {
            Base::MaxQueueLength(_) => true,
            Base::BacklogControl(s) => s.needs_slots_in_use(queue_length, work),
            Base::Bouncer(_)
            | Base::MaxQueueWait(_)
            | Base::AcceptFraction(_)
            | Base::ResponseTimeController(_) => false,
        }
    }

    /// The stage decided about a request, all things considered: also what no strategy has a say in.
    pub fn decided(&mut self, admitted: bool) {
        if let Some(control) = self.backlog_control_mut() {
            control.decided(admitted);
        }
    }

    /// The part of the requests that was refused lately, ratio 0..=1, if clients are to be told.
    #[must_use]
    pub fn rejection_rate(&self) -> Option<f64> {
        self.backlog_control()
            .and_then(BacklogControl::rejection_rate)
    }

    /// Time that a unit of work takes in a slot, s; `None` where work is time, or until it was measured.
    #[must_use]
    pub fn time_per_work(&self) -> Option<f64> {
        self.backlog_control()
            .and_then(BacklogControl::time_per_work)
    }

    /// Backlog control, if that is what decides.
    #[must_use]
    pub fn backlog_control(&self) -> Option<&BacklogControl> {
        match self.base() {
            Base::BacklogControl(control) => Some(control),
            _ => None,
        }
    }

    fn backlog_control_mut(&mut self) -> Option<&mut BacklogControl> {
        match self.base_mut() {
            Base::BacklogControl(control) => Some(control),
            _ => None,
        }
    }

    fn base_mut(&mut self) -> &mut Base {
        match self {
            Self::Plain(base) => base,
            Self::AcceptanceAllowance(s) => s.inner_mut(),
            Self::HelpingTheUnderserved(s) => s.inner_mut(),
        }
    }

    /// The demand that the strategy measures, for what other workers measured.
    pub fn demand_mut(&mut self) -> Option<&mut Demand> {
        match self.base_mut() {
            Base::Bouncer(_)
            | Base::MaxQueueLength(_)
            | Base::BacklogControl(_)
            | Base::ResponseTimeController(_) => None,
            Base::MaxQueueWait(s) => Some(s.demand_mut()),
            Base::AcceptFraction(s) => Some(s.demand_mut()),
        }
    }

    /// The feedback control of the strategy, if it has one.
    pub fn controlled_mut(&mut self) -> Option<&mut dyn Controlled> {
        match self.base_mut() {
            Base::Bouncer(_)
            | Base::MaxQueueLength(_)
            | Base::MaxQueueWait(_)
            | Base::AcceptFraction(_) => None,
            Base::BacklogControl(s) => Some(s.as_mut()),
            Base::ResponseTimeController(s) => Some(s),
        }
    }

    /// The response time controller, if that is what decides.
    #[must_use]
    pub fn response_time_controller(&self) -> Option<&ResponseTimeController> {
        match self.base() {
            Base::ResponseTimeController(s) => Some(s),
            _ => None,
        }
    }

    /// The quality in which the application should answer requests of this type and class, ratio; `None`
    /// where the strategy doesn't degrade service.
    #[must_use]
    pub fn quality(&self, kind: TypeId, class: ClassId) -> Option<f64> {
        self.response_time_controller()?.quality(kind, class)
    }

    /// The window of starvation avoidance, for what other workers decided.
    pub fn window_mut(&mut self) -> Option<&mut Window> {
        match self {
            Self::Plain(_) => None,
            Self::AcceptanceAllowance(s) => Some(s.window_mut()),
            Self::HelpingTheUnderserved(s) => Some(s.window_mut()),
        }
    }
}

impl Base {
    fn from_config(config: &StageConfig) -> Self {
        let demand = |window_us: &u64, step_us: &u64| {
            Demand::new(
                Duration::from_micros(*window_us),
                Duration::from_micros(*step_us),
            )
        };
        match &config.strategy {
            StrategyConfig::Bouncer { logic } => Self::Bouncer(Bouncer::new(*logic)),
            StrategyConfig::MaxQueueLength => {
                Self::MaxQueueLength(MaxQueueLength::new(config.queue.max_length))
            }
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
                Self::MaxQueueWait(MaxQueueWait::new(limits, demand(window_us, step_us)))
            }
            StrategyConfig::AcceptFraction {
                max_utilization,
                window_us,
                step_us,
            } => Self::AcceptFraction(AcceptFraction::new(
                *max_utilization,
                demand(window_us, step_us),
                Duration::from_micros(*step_us),
            )),
            StrategyConfig::BacklogControl(control) => {
                Self::BacklogControl(Box::new(BacklogControl::new(control, config)))
            }
            StrategyConfig::ResponseTimeController(settings) => {
                Self::ResponseTimeController(ResponseTimeController::new(settings, config))
            }
        }
    }
}

/// Calls the same method of whichever strategy it is.
macro_rules! of_base {
    ($value:expr, $inner:ident => $call:expr) => {
        match $value {
            Base::Bouncer($inner) => $call,
            Base::MaxQueueLength($inner) => $call,
            Base::MaxQueueWait($inner) => $call,
            Base::AcceptFraction($inner) => $call,
            Base::BacklogControl($inner) => $call,
            Base::ResponseTimeController($inner) => $call,
        }
    };
}

/// Calls the same method of the strategy or of whatever wraps it.
macro_rules! of_strategy {
    ($value:expr, $inner:ident => $call:expr) => {
        match $value {
            Strategy::Plain($inner) => $call,
            Strategy::AcceptanceAllowance($inner) => $call,
            Strategy::HelpingTheUnderserved($inner) => $call,
        }
    };
}

impl Admission for Base {
    fn decide(&mut self, request: &Attributes, view: &View<'_>, rng: &mut Rng) -> Verdict {
        of_base!(self, s => s.decide(request, view, rng))
    }

    fn withdrawn(&mut self, request: &Attributes) {
        of_base!(self, s => s.withdrawn(request));
    }

    fn entered(&mut self, kind: TypeId, class: ClassId) {
        of_base!(self, s => s.entered(kind, class));
    }

    fn left(&mut self, kind: TypeId, class: ClassId) {
        of_base!(self, s => s.left(kind, class));
    }

    fn completed(&mut self, served: &Served, now: Instant) {
        of_base!(self, s => s.completed(served, now));
    }

    fn tick(&mut self, now: Instant) {
        of_base!(self, s => s.tick(now));
    }
}

impl Admission for Strategy {
    fn decide(&mut self, request: &Attributes, view: &View<'_>, rng: &mut Rng) -> Verdict {
        of_strategy!(self, s => s.decide(request, view, rng))
    }

    fn withdrawn(&mut self, request: &Attributes) {
        of_strategy!(self, s => s.withdrawn(request));
    }

    fn entered(&mut self, kind: TypeId, class: ClassId) {
        of_strategy!(self, s => s.entered(kind, class));
    }

    fn left(&mut self, kind: TypeId, class: ClassId) {
        of_strategy!(self, s => s.left(kind, class));
    }

    fn completed(&mut self, served: &Served, now: Instant) {
        of_strategy!(self, s => s.completed(served, now));
    }

    fn tick(&mut self, now: Instant) {
        of_strategy!(self, s => s.tick(now));
    }
}
