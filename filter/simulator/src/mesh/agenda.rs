//! The events of a run, in the order of their times.
//!
//! Most events occur a fixed time after their cause: the network's delay, a timeout, a tick. Those
//! with the same delay occur in the order of their causes, so a queue per delay keeps them sorted.
//! Timeouts are the most, because nearly all calls end long before: a heap with all of them would
//! be too large for the processor's caches.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An event with its time and its number in the order of creation.
type Dated<E> = (u64, u64, E);

/// Events by time. Events at the same time are in the order of their creation.
#[derive(Debug)]
pub(super) struct Agenda<E> {
    created: u64,
    others: BinaryHeap<Reverse<Dated<E>>>,
    /// Events by delay.
    lanes: Vec<(u64, VecDeque<Dated<E>>)>,
}

impl<E: Ord> Agenda<E> {
    pub(super) fn new() -> Self {
        Self {
            created: 0,
            others: BinaryHeap::new(),
            lanes: Vec::new(),
        }
    }

    fn dated(&mut self, time: u64, event: E) -> Dated<E> {
        self.created += 1;
        (time, self.created, event)
    }

    /// Schedules `event` for `time`.
    pub(super) fn at(&mut self, time: u64, event: E) {
        let event = self.dated(time, event);
        self.others.push(Reverse(event));
    }

    /// Schedules `event` for `delay` after `now`, which never decreases from one call to the next.
    /// There are only a few different delays.
    pub(super) fn after(&mut self, now: u64, delay: u64, event: E) {
        let event = self.dated(now + delay, event);
        if let Some((_, lane)) = self.lanes.iter_mut().find(|lane| lane.0 == delay) {
            lane.push_back(event);
            return;
        }
        self.lanes.push((delay, VecDeque::from([event])));
    }

    /// Returns the next event and its time.
    pub(super) fn next(&mut self) -> Option<(u64, E)> {
        const NEVER: (u64, u64) = (u64::MAX, u64::MAX);
        let other = self.others.peek();
        let other = other.map_or(NEVER, |Reverse((time, created, _))| (*time, *created));
        let (mut least, mut first) = (other, None);
        for (_, lane) in &mut self.lanes {
            let Some(&(time, created, _)) = lane.front() else {
                continue;
            };
            if (time, created) < least {
                (least, first) = ((time, created), Some(lane));
            }
        }
        let (time, _, event) = match first {
            Some(lane) => lane.pop_front()?,
            None => self.others.pop()?.0,
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
