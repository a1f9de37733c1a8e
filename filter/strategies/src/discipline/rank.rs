//! The composition of ranks.
//!
//! A rank is a `u64`, and the smallest rank goes first. An order by an instant uses the instant
//! itself, ns of the monotonic clock. Every other order has its measure in the upper bits and the
//! arrival in the lower ones, so that equal measures keep their order of arrival on all workers.
//! Both kinds of rank have time in the lower bits, so a span of time is a number that can be added
//! to a rank ([`Layout::tolerance`]).
//!
//! | layout | measure | arrival |
//! |---|---|---|
//! | [`WORK`] | 24 bits in units of 16 µs: 275 s at most | 36 bits in units of 131 µs: 104 days |
//! | [`ROUND`] | 38 bits of rounds | 22 bits in units of 262 µs: 18 minutes |
//! | [`TAG`] | 44 bits of rounds | 16 bits in units of 1 ms: 68 s |
//! | [`PRIORITY`] | 8 bits of the class | 52 bits in units of 1 µs: 146 years |
//!
//! When the arrival wraps around, requests of equal measure that arrived before and after the wrap
//! swap places, once.
//!
//! Ranks of different orders can't be compared, and while a policy is edited two workers may have
//! two orders. So a worker publishes the rank of its first waiter with the order's number in the
//! lowest four bits ([`announce`]), and others read the rank only if the number is that of their
//! own order ([`heard`]).

use std::time::Duration;

use crate::time::{Instant, nanos};

/// The number of low bits of a published rank that hold the order's number.
const ORDER_BITS: u32 = 4;
const ORDER: u64 = (1 << ORDER_BITS) - 1;

/// The layout of a rank: a measure, followed by the arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// The number of bits of the arrival.
    arrival_bits: u32,
    /// The unit of the arrival: 2^`unit` ns.
    unit: u32,
}

/// The unit of work: 2^14 ns = 16.4 µs.
const WORK_UNIT: u32 = 14;

/// The layout of orders by an amount of work or time.
pub(super) const WORK: Layout = Layout {
    arrival_bits: 36,
    unit: 17,
};
/// The layout of orders by a number of rounds.
pub(super) const ROUND: Layout = Layout {
    arrival_bits: 22,
    unit: 18,
};
/// The layout of orders by rounds that are so short that few requests share one.
pub(super) const TAG: Layout = Layout {
    arrival_bits: 16,
    unit: 20,
};
/// The layout of the order by class.
pub(super) const PRIORITY: Layout = Layout {
    arrival_bits: 52,
    unit: 10,
};

impl Layout {
    const fn measure_at(self) -> u32 {
        self.arrival_bits + ORDER_BITS
    }

    /// Returns the largest measure. Larger measures are clamped to it. The highest ranks stay
    /// unused, because the largest number means that no request waits.
    pub(super) const fn max_measure(self) -> u64 {
        (u64::MAX >> self.measure_at()) - 1
    }

    pub(super) fn rank(self, measure: u64, arrival: Instant) -> u64 {
        let arrival = (arrival.as_nanos() >> self.unit) & ((1 << self.arrival_bits) - 1);
        measure.min(self.max_measure()) << self.measure_at() | arrival << ORDER_BITS
    }

    /// Returns the measure of a rank.
    pub(super) const fn measure(self, rank: u64) -> u64 {
        rank >> self.measure_at()
    }

    /// Returns the difference between the ranks of two requests that arrive `span` apart.
    pub(super) fn tolerance(self, span: Duration) -> u64 {
        nanos(span) >> self.unit << ORDER_BITS
    }
}

/// Returns the rank of a request in an order by an amount of work or time, smallest first.
pub(super) fn by_work(work: Duration, arrival: Instant) -> u64 {
    WORK.rank(nanos(work) >> WORK_UNIT, arrival)
}

/// Returns the published form of `rank`, for an order with this `number` (below 16).
pub(super) const fn announce(rank: u64, number: u64) -> u64 {
    rank & !ORDER | number & ORDER
}

/// Returns the rank that another worker published, or `None` if its order has another number than
/// `number`.
pub(super) const fn heard(announced: u64, number: u64) -> Option<u64> {
    if announced & ORDER == number & ORDER {
        Some(announced & !ORDER)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_measure_decides_and_then_the_arrival() {
        for layout in [WORK, ROUND, TAG, PRIORITY] {
            let at = |us: u64| Instant::from_nanos(1_700_000_000_000_000_000 + us * 1_000);
            let later = at(1_200);
            assert!(layout.rank(3, later) < layout.rank(4, at(0)));
            assert!(layout.rank(3, at(0)) < layout.rank(3, later));
            assert_eq!(layout.measure(layout.rank(3, later)), 3);
            let most = layout.max_measure();
            assert_eq!(layout.measure(layout.rank(u64::MAX, later)), most);
            // A tolerance of 5 ms differs little from a difference of 5 ms in arrival.
            let rank = |us: u64| layout.rank(3, at(us));
            let tolerance = layout.tolerance(Duration::from_millis(5));
            assert!(rank(3_900) <= rank(0) + tolerance && rank(6_200) > rank(0) + tolerance);
        }
    }

    #[test]
    fn only_ranks_of_the_same_order_are_heard() {
        let rank = Instant::from_nanos(1_700_000_000_000_000_123).as_nanos();
        let heard_by = |number| heard(announce(rank, 3), number);
        assert_eq!(heard_by(3), Some(rank >> 4 << 4));
        assert_eq!(heard_by(4), None);
    }
}
