//! BacklogControl bounds the backlog so that the mean service delay stays at a target (Chronos
//! §2-4).
//!
//! Bouncer predicts each request's response time. Chronos controls one number by feedback: the mean
//! of queue wait plus processing time over all served requests. Every period the error of that mean
//! moves a bound on the backlog. A request is admitted while the backlog, including the request,
//! stays within the bound. The paper has three variants, its own and two baselines (Table 2):
//!
//! ```text
//! FC-D  Backlog        admit if d(t) + n_i ≤ d_t(k)       d(t) = Σ n_i over the queue    (Eq. 2)
//! FC-Q  QueueLength    admit if q(t) + 1   ≤ d_t(k)
//! AC    Proportional   refuse with probability (s(k) − S_t) / S_t, within 0..=1
//! ```
//!
//! The control law and its gains are in [`pi`], and n_i is in [`crate::work`]. About AC the paper
//! says only that it "applies admission control to incoming transactions in proportion to the
//! service delay error under overload". Here the probability is the relative error, times
//! `proportionalGain` if configured.
//!
//! All workers have one controller. d(t) comes from the ledger, over all workers. The counts of
//! served and refused requests, the period and the law are in one record ([`Controlled`]). The
//! first worker after a period's end runs the law.
//!
//! **Cases that the paper leaves open.**
//! - The backlog is the ready queue. A request that finds an empty queue and a free slot doesn't
//!   wait, so it is admitted under any bound. Otherwise a bound of 0, or a bound below the cost of
//!   every request, would stay forever. With such a bound, nothing would be served or measured, so
//!   nothing would raise the bound.
//! - A period without served requests gives no information about the delay, so e and the bound
//!   stay. The rule above ensures that such periods end.
//! - d_t(0) is "a small positive integer", of an unknown unit. If it is too small, a cold start
//!   refuses all requests that come while all slots are busy, for many periods. If it is too large,
//!   the first burst overshoots. So all requests are admitted until 20 requests were served, which
//!   takes milliseconds under load. If a period ends before that, one served request is enough.
//!   Then the bound starts at half of the bound that should keep the target: (S_t − mean processing
//!   time) / 2 · P / c̄, at least 1. Here c̄ is the time that a unit of cost takes in a slot. It
//!   may be wrong by a factor of two without an overshoot.
//! - max-data is the configured value. By default it is the longest queue, which FC-D multiplies by
//!   the largest cost that was served or is configured for a type.
//!
//! These parts of the paper are left out: the TCP connection delay c_i of §2 (a connection to a
//! proxy carries many requests), waits before the stage, delays of requests that expired in the
//! queue or whose client left, and the estimation of costs from a database's schema (§3.1). The
//! application gives the cost in a header, or the policy gives it per type.

pub mod hint;
mod pi;
mod record;

use std::time::Duration;

use super::{Admission, Bound, Controlled, View};
use crate::config::{BacklogControlConfig, BacklogSignal, CostConfig, StageConfig};
use crate::reason::Reason;
use crate::request::{Attributes, Served};
use crate::rng::{self, Rng};
use crate::shared;
use crate::time::Instant;
use crate::work::MAX_WORK;

pub use pi::Gains;

use pi::{Control, dead_time};
use record::{Record, Sums};

/// The number of served requests after which the first bound is set.
const FIRST_SERVED: f64 = 20.0;
/// The weight of the latest period in the moving averages of times per unit.
const NEW: f64 = 0.3;
/// The number of µs in a ms. Costs are counted in µs, but configured in ms.
const MICROS: f64 = 1e3;

/// A bound on the backlog that is set by feedback.
#[derive(Debug)]
pub struct BacklogControl {
    signal: BacklogSignal,
    target: Duration,
    period: Duration,
    /// The configured K_P, per unit of the signal.
    proportional: Option<f64>,
    integral: Option<f64>,
    /// max-data, the largest bound, in units of the signal.
    max: Option<f64>,
    /// The longest queue, requests.
    max_length: u32,
    hint: bool,
    /// Whether work is measured in µs instead of costs.
    work_is_time: bool,
    parallelism: u32,
    fingerprint: u64,
    /// This worker's counts that are not in the record yet.
    fresh: Sums,
    /// The largest cost of a request served by this worker, or configured for a type.
    largest: f64,
    /// The record when it was last read.
    known: Record,
    rejection_rate: f64,
}

impl BacklogControl {
    /// Creates the strategy of `control` in `stage`.
    pub fn new(control: &BacklogControlConfig, stage: &StageConfig) -> Self {
        let work_is_time = control.cost == CostConfig::Measured;
        let unit = if work_is_time && control.control == BacklogSignal::Backlog {
            MICROS
        } else {
            1.0
        };
        let largest = match &control.cost {
            CostConfig::Type { costs } => costs.iter().copied().max().unwrap_or(1),
            CostConfig::Measured | CostConfig::Header { .. } => 1,
        };
        Self {
            signal: control.control,
            target: Duration::from_micros(control.target_us),
            period: Duration::from_micros(control.period_us),
            proportional: control.proportional_gain.map(|gain| gain * unit),
            integral: control.integral_gain,
            max: control.max_backlog.map(|max| max * unit),
            max_length: stage.queue.max_length,
            hint: control.hint,
            work_is_time,
            parallelism: stage.parallelism,
            fingerprint: fingerprint(control),
            fresh: Sums::default(),
            largest: f64::from(largest),
            known: Record::default(),
            rejection_rate: 0.0,
        }
    }

    /// Returns the bound on the controlled signal, or AC's probability. Returns `None` until enough
    /// requests were served for the first bound.
    pub fn bound(&self) -> Option<f64> {
        let control = self.known.control?;
        Some(self.bound_of(&control, &self.known))
    }

    /// Sets the first bound, and ends the period, if either is due. Returns whether the period
    /// ended.
    fn advance(&self, now: Instant, record: &mut Record) -> bool {
        let due = record.is_due(now, self.period);
        if record.control.is_none() {
            let first = if due { 1.0 } else { FIRST_SERVED };
            if record.sums.served >= first && record.sums.cost > 0.0 {
                self.start(record);
            }
        }
        if !due {
            return false;
        }
        let sums = record.turn(now, self.period);
        if sums.served > 0.0 {
            self.learn(&sums, record);
            record.delay = sums.delay / sums.served;
            let error = self.target.as_secs_f64() - record.delay;
            let refused = sums.over_bound > 0.0;
            let next = |control| self.law(control, error, refused, record);
            record.control = record.control.map(next);
        }
        true
    }

    /// Sets the first bound, d_t(0).
    fn start(&self, record: &mut Record) {
        let sums = record.sums;
        self.learn(&sums, record);
        let room = self.target.as_secs_f64() - sums.processing / sums.served;
        let bound = match self.signal {
            BacklogSignal::Proportional => 0.0,
            _ => (room / 2.0 / self.drain(record))
                .round()
                .max(1.0)
                .min(self.max(record)),
        };
        record.control = Some(Control {
            bound,
            ..Control::default()
        });
    }

    /// Moves the times per unit of cost and per unit of work towards the measured times.
    fn learn(&self, sums: &Sums, record: &mut Record) {
        let moved = |average: f64, units: f64| {
            let measured = sums.slot / units;
            match (units > 0.0 && measured > 0.0, average > 0.0) {
                (false, _) => average,
                (true, false) => measured,
                (true, true) => average + NEW * (measured - average),
            }
        };
        record.time_per_cost = if self.signal == BacklogSignal::Backlog && self.work_is_time {
            // The cost is the time, in µs. Requests whose type had no estimate yet would distort a
            // measurement.
            1e-6
        } else {
            moved(record.time_per_cost, sums.cost)
        };
        record.time_per_work = moved(record.time_per_work, sums.work);
    }

    /// Returns the state of the law after a period with this `error`. `refused` is true if the
    /// bound refused a request.
    fn law(&self, control: Control, error: f64, refused: bool, record: &Record) -> Control {
        let derived = Gains::derived(self.drain(record), self.target, self.period);
        if self.signal == BacklogSignal::Proportional {
            let gain = self.proportional.unwrap_or(1.0);
            let probability = -error / self.target.as_secs_f64() * gain;
            return Control {
                bound: probability.clamp(0.0, 1.0),
                error: Some(error),
                ..Control::default()
            };
        }
        let gains = Gains {
            proportional: self.proportional.unwrap_or(derived.proportional),
            integral: self.integral.unwrap_or(derived.integral),
        };
        let dead_time = dead_time(self.target, self.period);
        let control = Control {
            bound: self.bound_of(&control, record),
            ..control
        };
        control.next(error, gains, self.max(record), refused, dead_time)
    }

    /// Returns d_t, or AC's probability. An edit that lowers max-data applies at once, even if the
    /// law doesn't move d_t.
    fn bound_of(&self, control: &Control, record: &Record) -> f64 {
        match self.signal {
            BacklogSignal::Backlog | BacklogSignal::QueueLength => {
                control.bound.min(self.max(record))
            }
            BacklogSignal::Proportional => control.bound,
        }
    }

    /// Returns g, the time in which all slots together serve one unit of the signal, s.
    fn drain(&self, record: &Record) -> f64 {
        record.time_per_cost.max(1e-15) / f64::from(self.parallelism.max(1))
    }

    /// Returns max-data, the largest bound, in units of the signal.
    fn max(&self, record: &Record) -> f64 {
        let each = match self.signal {
            BacklogSignal::Backlog => record.largest.max(1.0),
            BacklogSignal::QueueLength | BacklogSignal::Proportional => 1.0,
        };
        self.max.unwrap_or(f64::from(self.max_length) * each)
    }
}

impl Admission for BacklogControl {
    fn needs_slots_in_use(&self, queue_length: u32, work: u64) -> bool {
        // AC refuses at random, and `decide` draws once. Any bound above 0 may refuse.
        queue_length == 0
            && self.bound().is_some_and(|bound| match self.signal {
                BacklogSignal::Backlog => work as f64 > bound,
                BacklogSignal::QueueLength => bound < 1.0,
                BacklogSignal::Proportional => bound > 0.0,
            })
    }

    fn set_slots(&mut self, slots: u32) {
        self.parallelism = slots;
    }

    fn decided(&mut self, admitted: bool) {
        self.fresh.received += 1.0;
        self.fresh.refused += f64::from(!admitted);
    }

    /// Counts the request as refused. p(k) counts busy messages, and an expired request gets a busy
    /// message, too (§3.2).
    fn expired(&mut self) {
        self.fresh.refused += 1.0;
    }

    fn time_per_work(&self) -> Option<f64> {
        Some(self.known.time_per_work).filter(|time| *time > 0.0 && !self.work_is_time)
    }

    fn rejection_rate(&self) -> Option<f64> {
        self.hint.then_some(self.rejection_rate)
    }

    /// Returns the bound, or AC's probability in millionths.
    fn controlled_bound(&self) -> Option<Bound> {
        let scale = match self.signal {
            BacklogSignal::Backlog | BacklogSignal::QueueLength => 1.0,
            BacklogSignal::Proportional => 1e6,
        };
        Some(Bound {
            value: (self.bound()? * scale).round() as u64,
            service_delay: Duration::try_from_secs_f64(self.known.delay).unwrap_or_default(),
        })
    }

    fn controlled_mut(&mut self) -> Option<&mut dyn Controlled> {
        Some(self)
    }

    fn decide(
        &mut self,
        _request: &Attributes,
        view: &View<'_>,
        rng: &mut Rng,
    ) -> Result<(), Reason> {
        let cost = view.work as f64;
        let Some(bound) = self.bound() else {
            return Ok(());
        };
        if view.queue_length == 0 && view.slots_in_use < view.parallelism {
            return Ok(());
        }
        let over = match self.signal {
            BacklogSignal::Backlog => view.queue_work as f64 + cost > bound,
            BacklogSignal::QueueLength => f64::from(view.queue_length) + 1.0 > bound,
            BacklogSignal::Proportional => rng.next_f64() < bound,
        };
        if over {
            self.fresh.over_bound += 1.0;
            Err(Reason::Backlog)
        } else {
            Ok(())
        }
    }

    fn completed(&mut self, served: &Served, _now: Instant) {
        let weight = f64::from(served.weight);
        // Only served requests count, because a cost that a client merely claims must not raise the
        // limit permanently.
        self.largest = self.largest.max(served.work as f64);
        let sums = &mut self.fresh;
        sums.served += weight;
        sums.delay += weight * served.response_time().as_secs_f64();
        sums.processing += weight * served.processing.as_secs_f64();
        sums.slot += weight * served.slot.as_secs_f64();
        sums.work += weight * served.work as f64;
        sums.cost += weight
            * match self.signal {
                BacklogSignal::Backlog => served.work as f64,
                BacklogSignal::QueueLength | BacklogSignal::Proportional => 1.0,
            };
    }
}

impl Controlled for BacklogControl {
    fn schema(&self) -> u32 {
        <Record as shared::Record>::SCHEMA
    }

    fn sync(&mut self, now: Instant, record: &mut Vec<u8>) -> bool {
        let ours = |record: &Record| record.fingerprint == self.fingerprint;
        let read = shared::decode_finite(record).filter(ours);
        let mut known = read.unwrap_or_else(|| Record::new(self.fingerprint, now, self.period));
        let mut changed = read.is_none() || !self.fresh.is_empty();
        known.sums.add(&self.fresh);
        known.largest = known.largest.max(self.largest);
        changed |= self.advance(now, &mut known);
        self.rejection_rate = known.rejection_rate(now, self.period);
        self.known = known;
        shared::encode(&known, record);
        changed
    }

    fn stored(&mut self) {
        self.fresh = Sums::default();
    }
}

/// Returns a number that differs between configurations whose records must not be mixed. These are
/// configurations with another controlled signal or unit.
fn fingerprint(control: &BacklogControlConfig) -> u64 {
    let signal = match control.control {
        BacklogSignal::Backlog => 1,
        BacklogSignal::QueueLength => 2,
        BacklogSignal::Proportional => 3,
    };
    let unit: Vec<u8> = match &control.cost {
        CostConfig::Measured => b"time".to_vec(),
        CostConfig::Type { costs } => costs.iter().flat_map(|cost| cost.to_le_bytes()).collect(),
        CostConfig::Header { header } => header.bytes().collect(),
    };
    rng::hash(unit.into_iter().chain([signal]))
}

const _: () = assert!(MAX_WORK < 1 << 53, "costs are exact as f64");

#[cfg(test)]
mod tests;
