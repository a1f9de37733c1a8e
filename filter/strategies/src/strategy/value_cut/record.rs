//! The value cut's record, which the workers share: arrival rates by cell, and ρ.

use serde::{Deserialize, Serialize};

use super::delivery::{Delivery, Held};

/// The time between two steps of the law, s, less a margin for the rounding of times.
const STEP: f64 = 0.1 - 1e-6;
/// The time constant of arrival rates, s.
const RATE_TIME: f64 = 1.0;
/// The time constant of arrival rates after a significant change, s.
const QUICK_TIME: f64 = 0.1;
/// The least change of arrival rates that is significant, standard errors.
const SIGNIFICANT: f64 = 3.0;
/// The arrival rate below which a cell has no traffic, slots. An average would never reach 0, and a
/// type without traffic needs no slots. One request of 3 ms counts for 15 s.
const LEAST: f64 = 1e-9;
/// The part of the value above the cut that may be refused before ρ is lowered.
const TOLERATED: f64 = 0.02;
/// The largest relative decrease of ρ in a second.
const DECREASE: f64 = 0.2;
/// The increase of ρ in a second.
const INCREASE: f64 = 0.04;
/// The number of requests above the cut after which ρ moves.
const ENOUGH: f64 = 50.0;
/// The time after which ρ moves even with fewer than [`ENOUGH`] requests, s.
const LONGEST: f64 = 1.0;
/// The range of ρ without a limit on utilization.
pub(super) const RHO: (f64, f64) = (0.3, 1.3);
/// The time constant of the averages that decide whether the ceilings apply, s.
const PROTECTION: f64 = 3.0;

/// Sums over requests. In the record they are those since the last step or the last move of ρ, and
/// in a worker those since its last exchange.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Totals {
    /// The number of requests that arrived.
    pub(super) arrivals: f64,
    /// The value of requests above the cut that were decided.
    pub(super) above: f64,
    /// The number of these requests.
    pub(super) count: f64,
    /// The refused part of `above`.
    pub(super) refused: f64,
    /// The part of `above` that Alg. 1 refused.
    pub(super) missed: f64,
}

impl Totals {
    pub(super) fn add(&mut self, more: &Self) {
        self.arrivals += more.arrivals;
        self.above += more.above;
        self.count += more.count;
        self.refused += more.refused;
        self.missed += more.missed;
    }
}

/// The record that [`Controlled`] shares.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// A number that identifies the types and classes of the rows.
    pub(super) fingerprint: u64,
    /// The time of the last step, s.
    pub(super) stepped: f64,
    /// The time of the first step, s.
    pub(super) first: f64,
    pub(super) rho: f64,
    /// The sums in this step.
    pub(super) fresh: Totals,
    /// Decaying sums of `above` and `missed`.
    pub(super) recent: (f64, f64),
    /// The sums since ρ last moved, up to this step.
    pub(super) judged: Totals,
    /// The time at which ρ last moved, s.
    pub(super) since: f64,
    /// The average rate of arrivals, 1/s.
    pub(super) arrival_rate: f64,
    /// The direction in which the last step deviated significantly from that rate: 1, -1 or 0.
    pub(super) direction: f64,
    /// The work by cell.
    pub(super) rows: Vec<Work>,
    /// The deliveries by type.
    pub(super) deliveries: Vec<Delivery>,
    /// The requests of broken types on each worker.
    pub(super) held: Vec<Held>,
}

crate::shared::record!(Record, 22);

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Work {
    /// The number of demanded slots, λm.
    pub(super) rate: f64,
    /// The work that arrived in this step, s of slot time.
    pub(super) fresh: f64,
}

impl Record {
    pub(super) fn new(fingerprint: u64, secs: f64, cells: usize, kinds: usize) -> Self {
        Self {
            fingerprint,
            stepped: secs,
            first: secs,
            rho: RHO.1,
            since: secs,
            rows: vec![Work::default(); cells],
            deliveries: vec![Delivery::default(); kinds],
            ..Self::default()
        }
    }

    /// Advances the averages, and ρ to at most `most`, if a step is due. Returns whether a step was
    /// due.
    pub(super) fn step(&mut self, secs: f64, slots: f64, most: f64) -> bool {
        let elapsed = secs - self.stepped;
        // A new step also starts if the clock stepped back.
        if (0.0..STEP).contains(&elapsed) {
            return false;
        }
        let fresh = std::mem::take(&mut self.fresh);
        let weight = if elapsed > 0.0 {
            let age = (secs - self.first).max(elapsed);
            let time = if self.has_changed(elapsed, fresh.arrivals) {
                QUICK_TIME
            } else {
                RATE_TIME
            };
            (1.0 - (-elapsed / time).exp()).max((elapsed / age).min(1.0))
        } else {
            self.first = secs;
            0.0
        };
        let average = |rate: &mut f64, fresh: f64| {
            *rate += weight * (fresh / elapsed.max(STEP) - *rate);
        };
        average(&mut self.arrival_rate, fresh.arrivals);
        for row in &mut self.rows {
            average(&mut row.rate, std::mem::take(&mut row.fresh));
            if row.rate < LEAST {
                row.rate = 0.0;
            }
        }
        for delivery in &mut self.deliveries {
            delivery.step(secs, slots);
        }
        let fade = (-elapsed.max(0.0) / PROTECTION).exp();
        self.recent.0 = fade * self.recent.0 + fresh.above;
        self.recent.1 = fade * self.recent.1 + fresh.missed;
        self.judged.add(&fresh);
        self.stepped = secs;
        self.follow(secs, most);
        true
    }

    /// Whether the numbers of `arrivals` in this step and in the step before deviate in the same
    /// direction from the average, by more than chance (in a Poisson process). A single step may be
    /// a burst, or may contain more or fewer reports of other workers than usual. The numbers of
    /// arrivals are compared instead of their work, because work also changes with service times.
    fn has_changed(&mut self, elapsed: f64, arrivals: f64) -> bool {
        let usual = self.arrival_rate * elapsed;
        let deviation = arrivals - usual;
        let direction = if deviation.abs() > SIGNIFICANT * usual.max(1.0).sqrt() {
            deviation.signum()
        } else {
            0.0
        };
        let before = std::mem::replace(&mut self.direction, direction);
        direction * before > 0.0
    }

    /// Moves ρ, to at most `most`, after enough requests or time.
    fn follow(&mut self, secs: f64, most: f64) {
        let elapsed = secs - self.since;
        if self.judged.count < ENOUGH && (0.0..LONGEST).contains(&elapsed) {
            return;
        }
        let elapsed = elapsed.clamp(0.0, LONGEST);
        let Totals { above, refused, .. } = self.judged;
        let lost = if above > 0.0 { refused / above } else { 0.0 };
        let next = if lost <= TOLERATED {
            self.rho + INCREASE * elapsed
        } else {
            self.rho * (1.0 - lost.min(DECREASE * elapsed))
        };
        self.rho = next.clamp(RHO.0, most);
        (self.judged, self.since) = (Totals::default(), secs);
    }
}
