//! Queues of events that occur a fixed time after their cause.
//!
//! Most events of a simulation are of this kind: a network's delay, transmission of a packet of one
//! of a few sizes, timeouts, ticks. Events with the same delay occur in the order of their causes,
//! so one queue per delay keeps the events sorted without the comparisons of a heap.

use std::collections::VecDeque;

/// Queues of events by delay. `K` is the key by which events are ordered: an event's time, or its
/// time and a number.
#[derive(Debug, Clone)]
pub(crate) struct Lanes<K, E> {
    /// The key of an empty lane, larger than the key of any event.
    never: K,
    /// The key of each lane's first event. In a list of their own, the keys of all lanes are in one
    /// cache line.
    firsts: Vec<K>,
    lanes: Vec<Lane<K, E>>,
}

#[derive(Debug, Clone)]
struct Lane<K, E> {
    delay: u64,
    events: VecDeque<(K, E)>,
}

impl<K: Ord + Copy, E> Lanes<K, E> {
    /// Creates queues without events. `never` must be larger than the key of any event.
    pub(crate) fn new(never: K) -> Self {
        Self {
            never,
            firsts: Vec::new(),
            lanes: Vec::new(),
        }
    }

    /// Schedules `event` for `at`, which is `delay` after its cause. `at` never decreases from one
    /// call with this delay to the next.
    pub(crate) fn push(&mut self, delay: u64, at: K, event: E) {
        let known = self.lanes.iter().position(|lane| lane.delay == delay);
        let lane = known.unwrap_or_else(|| {
            self.firsts.push(self.never);
            self.lanes.push(Lane {
                delay,
                events: VecDeque::new(),
            });
            self.lanes.len() - 1
        });
        self.firsts[lane] = self.firsts[lane].min(at);
        self.lanes[lane].events.push_back((at, event));
    }

    /// Returns the next event and its key. The sequence of events with the same key is arbitrary,
    /// but the same in every run.
    pub(crate) fn next(&mut self) -> Option<(K, E)> {
        let lane = (0..self.lanes.len()).min_by_key(|lane| self.firsts[*lane])?;
        let events = &mut self.lanes[lane].events;
        let next = events.pop_front();
        self.firsts[lane] = events.front().map_or(self.never, |(at, _)| *at);
        next
    }

    /// Returns the key of the next event; `never` without events.
    pub(crate) fn peek(&self) -> K {
        self.firsts.iter().copied().min().unwrap_or(self.never)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_the_order_of_their_times() {
        let mut lanes = Lanes::new(u64::MAX);
        for (now, delay) in [(0, 5), (1, 9), (1, 1), (2, 5), (2, 0), (3, 1)] {
            lanes.push(delay, now + delay, (now, delay));
        }
        assert_eq!(lanes.peek(), 2);
        let times: Vec<u64> = std::iter::from_fn(|| lanes.next()).map(|e| e.0).collect();
        assert_eq!(times, [2, 2, 4, 5, 7, 10]);
        assert_eq!(lanes.peek(), u64::MAX);
    }
}
