//! The record of backlog control, which all workers share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::pi::Control;
use crate::time::{Instant, nanos};

/// Counts and sums. In the record they are those since the period started, and in a worker those
/// since its last sync.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Sums {
    /// The number of requests that were admitted or refused.
    pub(super) received: f64,
    /// The number of received requests that were refused, for any reason.
    pub(super) refused: f64,
    /// The number of requests that the bound refused.
    pub(super) over_bound: f64,
    /// The number of requests served.
    pub(super) served: f64,
    /// The sum of the service delays of served requests, s.
    pub(super) delay: f64,
    /// The sum of the processing times of served requests, s.
    pub(super) processing: f64,
    /// The sum of the times for which served requests held their slots, s.
    pub(super) slot: f64,
    /// The sum of the costs of served requests, in the unit of the controlled signal.
    pub(super) cost: f64,
    /// The sum of the work of served requests in the queue.
    pub(super) work: f64,
}

impl Sums {
    pub(super) fn is_empty(&self) -> bool {
        self.received + self.refused + self.over_bound + self.served == 0.0
    }

    pub(super) fn add(&mut self, more: &Self) {
        self.received += more.received;
        self.refused += more.refused;
        self.over_bound += more.over_bound;
        self.served += more.served;
        self.delay += more.delay;
        self.processing += more.processing;
        self.slot += more.slot;
        self.cost += more.cost;
        self.work += more.work;
    }
}

/// The record that [`Controlled`](crate::strategy::Controlled) shares.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// A number that identifies the controlled signal and its unit.
    pub(super) fingerprint: u64,
    /// The end of the period.
    pub(super) ends: Instant,
    /// The sums of the current period.
    pub(super) sums: Sums,
    /// The number of requests received in the last period.
    pub(super) received_before: f64,
    /// The number of these requests that were refused.
    pub(super) refused_before: f64,
    /// The state of the law, or `None` before the first bound.
    pub(super) control: Option<Control>,
    /// s(k), the mean service delay of the last period, s.
    pub(super) delay: f64,
    /// The time that a unit of the controlled signal takes in a slot, s. It is 0 until measured.
    pub(super) time_per_cost: f64,
    /// The time that a unit of work takes in a slot, s. It is 0 until measured.
    pub(super) time_per_work: f64,
    /// The largest cost of a request so far.
    pub(super) largest: f64,
}

crate::shared::record!(Record, 21);

impl Record {
    pub(super) fn new(fingerprint: u64, now: Instant, period: Duration) -> Self {
        Self {
            fingerprint,
            ends: now + period,
            ..Self::default()
        }
    }

    /// Whether the period is over. A period that ends more than twice its length from now was
    /// started with another clock, so it counts as over. A period may end slightly more than its
    /// length from now, if a worker that read the clock later started it.
    pub(super) fn is_due(&self, now: Instant, period: Duration) -> bool {
        now >= self.ends || self.ends > now + period * 2
    }

    /// Starts the next period at the end of the last one, or now if that was long ago. Returns the
    /// sums of the last period.
    pub(super) fn turn(&mut self, now: Instant, period: Duration) -> Sums {
        let (next, latest) = (self.ends + period, now + period);
        self.ends = if next > now { next.min(latest) } else { latest };
        let sums = std::mem::take(&mut self.sums);
        self.received_before = sums.received;
        self.refused_before = sums.refused;
        sums
    }

    /// Returns p, the ratio of refused requests in the last `period` before `now`. The previous
    /// period counts in proportion to the rest of the current one.
    pub(super) fn rejection_rate(&self, now: Instant, period: Duration) -> f64 {
        let left = nanos(self.ends.since(now)) as f64 / nanos(period).max(1) as f64;
        let left = left.min(1.0);
        let received = self.sums.received + left * self.received_before;
        let refused = self.sums.refused + left * self.refused_before;
        if received > 0.0 {
            (refused / received).clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_follow_each_other_and_a_late_one_starts_over() {
        let period = Duration::from_secs(1);
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut record = Record::new(1, at(0), period);
        assert!(!record.is_due(at(999), period));
        assert!(record.is_due(at(1_000), period));
        record.sums.delay = 3.0;
        assert_eq!(record.turn(at(1_030), period).delay, 3.0);
        assert_eq!(record.ends, at(2_000));
        assert_eq!(record.turn(at(7_500), period).delay, 0.0);
        assert_eq!(record.ends, at(8_500));
        assert!(
            !record.is_due(at(7_499), period),
            "begun a moment ago, elsewhere"
        );
        assert!(record.is_due(at(100), period), "another clock's");
        record.turn(at(100), period);
        assert_eq!(record.ends, at(1_100));
    }

    #[test]
    fn the_rejection_rate_fades_from_one_period_to_the_next() {
        let period = Duration::from_secs(1);
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut record = Record::new(1, at(0), period);
        assert_eq!(record.rejection_rate(at(500), period), 0.0);
        record.sums.received = 100.0;
        record.sums.refused = 50.0;
        assert_eq!(record.rejection_rate(at(500), period), 0.5);
        record.turn(at(1_000), period);
        assert_eq!(record.rejection_rate(at(1_000), period), 0.5);
        // Half of the last period's 100 requests count, and so do the current 50, of which none was
        // refused.
        record.sums.received = 50.0;
        assert_eq!(record.rejection_rate(at(1_500), period), 0.25);
        assert_eq!(record.rejection_rate(at(2_000), period), 0.0);
    }
}
