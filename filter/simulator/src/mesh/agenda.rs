//! The events of a run, in the order of their times.
//!
//! Most events occur a fixed time after their cause. Most scheduled events are timeouts, because
//! nearly all calls end long before theirs. A heap with all of them would be too large for the
//! processor's caches.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::lanes::Lanes;

/// The time of an event and its number in the order of creation.
type Key = (u64, u64);

const NEVER: Key = (u64::MAX, u64::MAX);

/// Events by time. Events at the same time are in the order of their creation.
#[derive(Debug)]
pub(super) struct Agenda<E> {
    created: u64,
    by_delay: Lanes<Key, E>,
    others: BinaryHeap<Reverse<(Key, E)>>,
}

impl<E: Ord> Agenda<E> {
    pub(super) fn new() -> Self {
        Self {
            created: 0,
            by_delay: Lanes::new(NEVER),
            others: BinaryHeap::new(),
        }
    }

    fn key(&mut self, time: u64) -> Key {
        self.created += 1;
        (time, self.created)
    }

    /// Schedules `event` for `time`.
    pub(super) fn at(&mut self, time: u64, event: E) {
        let key = self.key(time);
        self.others.push(Reverse((key, event)));
    }

    /// Schedules `event` for `delay` after `now`, which never decreases from one call to the next.
    /// There are only a few different delays.
    pub(super) fn after(&mut self, now: u64, delay: u64, event: E) {
        let key = self.key(now + delay);
        self.by_delay.push(delay, key, event);
    }

    /// Returns the next event and its time.
    pub(super) fn next(&mut self) -> Option<(u64, E)> {
        let other = self.others.peek();
        let other = other.map_or(NEVER, |Reverse((key, _))| *key);
        let ((time, _), event) = if self.by_delay.peek() < other {
            self.by_delay.next()?
        } else {
            self.others.pop()?.0
        };
        Some((time, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_times_and_then_of_their_creation() {
        let mut agenda = Agenda::new();
        agenda.at(6, 'a');
        agenda.after(0, 6, 'b');
        agenda.after(1, 1, 'c');
        agenda.at(2, 'd');
        agenda.after(1, 5, 'e');
        agenda.after(1, 6, 'f');
        agenda.at(1, 'g');
        let all: Vec<(u64, char)> = std::iter::from_fn(|| agenda.next()).collect();
        let expected = [
            (1, 'g'),
            (2, 'c'),
            (2, 'd'),
            (6, 'a'),
            (6, 'b'),
            (6, 'e'),
            (7, 'f'),
        ];
        assert_eq!(all, expected);
    }
}
