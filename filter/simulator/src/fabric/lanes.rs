//! Queues of events that occur a fixed time after their cause.
//!
//! Nearly all events of a network are of this kind: propagation, transmission of a packet of one of
//! a few sizes, timeouts. Events with the same delay occur in the order of their causes, so one
//! queue per delay keeps the events sorted without the comparisons of a heap.

use std::collections::VecDeque;

/// Queues of events by delay.
#[derive(Debug, Clone)]
pub(super) struct Lanes<E> {
    /// The time of each lane's first event; `u64::MAX` without events. In a list of their own, the
    /// times of all lanes are in one cache line.
    firsts: Vec<u64>,
    lanes: Vec<Lane<E>>,
}

#[derive(Debug, Clone)]
struct Lane<E> {
    delay: u64,
    events: VecDeque<(u64, E)>,
}

impl<E> Lanes<E> {
    pub(super) fn new() -> Self {
        Self {
            firsts: Vec::new(),
            lanes: Vec::new(),
        }
    }

    /// Schedules `event` for `delay` after `now`, which never decreases from one call to the next.
    pub(super) fn after(&mut self, now: u64, delay: u64, event: E) {
        let at = now + delay;
        let known = self.lanes.iter().position(|lane| lane.delay == delay);
        let lane = known.unwrap_or_else(|| {
            self.firsts.push(u64::MAX);
            self.lanes.push(Lane {
                delay,
                events: VecDeque::new(),
            });
            self.lanes.len() - 1
        });
        self.firsts[lane] = self.firsts[lane].min(at);
        self.lanes[lane].events.push_back((at, event));
    }

    /// Returns the next event and its time. The order of events at the same time is arbitrary, but
    /// the same in every run.
    pub(super) fn next(&mut self) -> Option<(u64, E)> {
        let lane = (0..self.lanes.len()).min_by_key(|lane| self.firsts[*lane])?;
        let events = &mut self.lanes[lane].events;
        let next = events.pop_front();
        self.firsts[lane] = events.front().map_or(u64::MAX, |(at, _)| *at);
        next
    }

    /// Returns the time of the next event; `u64::MAX` without events.
    pub(super) fn peek(&self) -> u64 {
        self.firsts.iter().copied().min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_times() {
        let mut lanes = Lanes::new();
        for (now, delay) in [(0, 5), (1, 9), (1, 1), (2, 5), (2, 0), (3, 1)] {
            lanes.after(now, delay, (now, delay));
        }
        assert_eq!(lanes.peek(), 2);
        let times: Vec<u64> = std::iter::from_fn(|| lanes.next()).map(|e| e.0).collect();
        assert_eq!(times, [2, 2, 4, 5, 7, 10]);
        assert_eq!(lanes.peek(), u64::MAX);
    }
}
