//! AcceptFraction accepts the fraction of requests that fits the capacity (Bouncer §5.2.3).
//!
//! ```text
//! f = min(1, MaxUtil · |PU| / (qps_mavg · pt_mavg))        accept with probability f
//! ```
//!
//! The arrival rate and the processing time are averages over a sliding window of D in steps of Δ.
//! The demand is computed every Δ. |PU|, the number of processing units, is P unless configured,
//! because a service may work on more requests than it has cores. The strategy uses neither types
//! nor the queue. It keeps the backend below a utilization, which bounds response times only if
//! arrivals are steady. It refuses at random even while slots are free, because leaving slots free
//! is its purpose.
//!
//! The stage applies the paper's second rule, which refuses requests that would time out in the
//! queue. Under any strategy, a request that finds no free slot is refused if its estimated wait
//! exceeds its longest queue wait. The estimate comes from Eq. 2, or from the queue's order. The
//! paper uses Eq. 5. Without completions in the window the demand is 0 and f = 1 (footnote 6).
//!
//! In combination with Bouncer (§2), the arrivals are the requests that Bouncer admits. The budget
//! of its value cut is limited to the slots that may be in use, so that the cut selects the
//! requests to refuse.

use std::time::Duration;

use super::View;
use crate::config::AcceptFractionConfig;
use crate::demand::Demand;
use crate::reason::Reason;
use crate::rng::Rng;
use crate::time::Instant;

/// A limit on utilization, which accepts with probability f.
#[derive(Debug)]
pub struct AcceptFraction {
    max_utilization: f64,
    units: Option<f64>,
    demand: Demand,
    step: Duration,
    computed: Option<Instant>,
    /// dpc, the number of demanded slots.
    demanded: f64,
}

impl AcceptFraction {
    /// Creates the limit from checked settings.
    pub fn from_config(settings: &AcceptFractionConfig) -> Self {
        let step = Duration::from_micros(settings.step_us);
        Self {
            max_utilization: settings.max_utilization,
            units: settings.units,
            demand: Demand::new(Duration::from_micros(settings.window_us), step),
            step,
            computed: None,
            demanded: 0.0,
        }
    }

    /// Whether |PU| is configured. Otherwise it is P.
    pub fn has_units(&self) -> bool {
        self.units.is_some()
    }

    /// Returns MaxUtil · |PU|, the number of slots that may be in use, with P = `parallelism`.
    pub fn available(&self, parallelism: u32) -> f64 {
        self.max_utilization * self.units.unwrap_or(f64::from(parallelism))
    }

    /// Admits a request that arrives at `view.now`, or returns the reason for its refusal.
    pub(super) fn decide(&mut self, view: &View<'_>, rng: &mut Rng) -> Result<(), Reason> {
        self.demand.add(view.now, 1, 0, 0);
        let available = self.available(view.parallelism);
        // The quotient is infinite without demand, so the request is always admitted. It is always
        // defined, because `available` is positive.
        if rng.chance(available / self.demanded) {
            Ok(())
        } else {
            Err(Reason::Utilization)
        }
    }

    /// Returns the measured demand.
    pub(super) fn demand_mut(&mut self) -> &mut Demand {
        &mut self.demand
    }

    /// Sets |PU|. `None` means P.
    pub(super) fn set_units(&mut self, units: Option<f64>) {
        self.units = units;
    }

    /// Records `weight` requests that were served and held their slots for `slot` each.
    pub fn served(&mut self, now: Instant, slot: Duration, weight: u32) {
        self.demand.completed(now, slot, weight);
    }

    /// Computes the demand, if that is due.
    pub(super) fn tick(&mut self, now: Instant) {
        let computed = *self.computed.get_or_insert(now);
        // An update is also due if the clock stepped back.
        if now >= computed && now.since(computed) < self.step {
            return;
        }
        self.computed = Some(now);
        self.demanded = self.demand.slots(now);
    }
}
