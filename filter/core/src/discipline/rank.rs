//! What a rank is made of.
//!
//! A rank is a `u64`, the smallest goes first. An order by an instant takes the instant itself, ns of the
//! monotonic clock. Every other order puts its measure in front and the arrival behind, so that equal
//! ones keep their order of arrival on all workers. Both read as time in the lower bits, so a span of time
//! is a number to add to a rank ([`tolerance`]).
//!
//! | layout | measure | arrival |
//! |---|---|---|
//! | [`WORK`] | 24 bits in units of 16 µs: 275 s, longer ones are alike | 40 bits in units of 16 µs: 208 days |
//! | [`ROUND`] | 40 bits of rounds | 24 bits in units of 262 µs: 73 minutes |
//!
//! When the arrival wraps, requests of equal measure before and after it change places, once.

use std::time::Duration;

use crate::time::{Instant, nanos};

/// A measure, and the arrival behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Bits of the arrival.
    arrival_bits: u32,
    /// ns in a unit of the arrival, as a shift.
    unit: u32,
}

/// ns in a unit of work, as a shift: 16.4 µs.
const WORK_UNIT: u32 = 14;

/// Orders by an amount of work or time.
pub(super) const WORK: Layout = Layout {
    arrival_bits: 40,
    unit: WORK_UNIT,
};
/// Orders by a count of rounds.
pub(super) const ROUND: Layout = Layout {
    arrival_bits: 24,
    unit: 18,
};

impl Layout {
    /// The largest measure; larger ones count as this. The rank of "nobody" stays free.
    pub(super) const fn max_measure(self) -> u64 {
        (u64::MAX >> self.arrival_bits) - 1
    }

    pub(super) fn rank(self, measure: u64, arrival: Instant) -> u64 {
        let arrival = (arrival.as_nanos() >> self.unit) & ((1 << self.arrival_bits) - 1);
        measure.min(self.max_measure()) << self.arrival_bits | arrival
    }

    /// The measure of a rank.
    pub(super) const fn measure(self, rank: u64) -> u64 {
        rank >> self.arrival_bits
    }

    /// What `span` of arrival time is in ranks.
    pub(super) fn tolerance(self, span: Duration) -> u64 {
        nanos(span) >> self.unit
    }
}

/// The rank by an amount of work or time, least first.
pub(super) fn by_work(work: Duration, arrival: Instant) -> u64 {
    WORK.rank(nanos(work) >> WORK_UNIT, arrival)
}
