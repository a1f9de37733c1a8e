//! One worker's part of a stage's queue, in the order of the discipline.
//!
//! Every discipline gives a request a number when it arrives, its *rank*. The smallest rank goes
//! first. For a FIFO, the rank is the arrival time. So the process-wide order needs no shared
//! queue. Each worker publishes the rank of its first waiter, and the waiter with the smallest
//! published rank goes first.
//!
//! The waiters are in a sorted list. Equal ranks keep their order of arrival. Most requests join
//! the list near its end and leave it near its beginning, where that costs nothing. Elsewhere it
//! costs a search of O(log n) and a move of at most half of the list, 12 KB with 1,000 waiters.
//!
//! Waiters may be in *lines* (the flows of a fair queue). A line is first in, first out, and only
//! its first waiter is in the list. Turns belong to the line and not to its waiters. If a waiter
//! leaves early, its turn goes to the waiter behind it, and the line's last turn is dropped. If
//! turns belonged to waiters, early turns would be lost with clients that give up. A flow of such
//! clients would then not be served until all others have used as many rounds as the flow has
//! waiters. The rank of a turn is only known when it is the first of its line, so the caller ranks
//! the next waiter of a line when the waiter before it is served.

use std::collections::VecDeque;

/// The index of a request in its stage's table.
pub type Slot = u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiter {
    rank: u64,
    sequence: u64,
    slot: Slot,
}

#[derive(Debug, Clone, Default)]
struct Line {
    waiters: VecDeque<Slot>,
    /// The turns in ascending order, one for each waiter.
    turns: VecDeque<i64>,
}

/// The place of a slot in the queue.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// The entry in the sorted list.
    waiter: Option<Waiter>,
    line: Option<u16>,
}

/// The result of [`Queue::pop`], with the first waiter, which it has removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct First {
    /// The waiter's slot.
    pub slot: Slot,
    /// The waiter's rank.
    pub rank: u64,
    /// The request that is now the first of the line, and its turn. The caller ranks the request
    /// with [`Queue::push`].
    pub next: Option<(Slot, i64)>,
}

/// The waiting requests of one worker, smallest rank first.
#[derive(Debug, Default)]
pub struct Queue {
    sorted: VecDeque<Waiter>,
    /// The places by slot.
    places: Vec<Place>,
    sequence: u64,
    lines: Vec<Line>,
}

impl Queue {
    /// Whether the queue has no waiter.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Returns the first waiter and its rank.
    pub fn head(&self) -> Option<(Slot, u64)> {
        self.sorted.front().map(|w| (w.slot, w.rank))
    }

    /// Yields the slots of all waiters, in no particular order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let alone = self.sorted.iter().map(|waiter| waiter.slot);
        let alone = alone.filter(|slot| self.places[*slot as usize].line.is_none());
        alone.chain(self.lines.iter().flat_map(|line| &line.waiters).copied())
    }

    fn place(&mut self, slot: Slot) -> &mut Place {
        let at = slot as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, Place::default());
        }
        &mut self.places[at]
    }

    /// Adds a waiter that has no line or is the first of its line. A slot must not be added twice.
    pub fn push(&mut self, slot: Slot, rank: u64) {
        self.sequence += 1;
        let waiter = Waiter {
            rank,
            sequence: self.sequence,
            slot,
        };
        let before = self.place(slot).waiter.replace(waiter);
        debug_assert_eq!(before, None, "slot waits twice");
        let at = self.sorted.partition_point(|other| *other < waiter);
        self.sorted.insert(at, waiter);
    }

    /// Adds a waiter to the end of `line`, with one more turn for it. Returns whether the waiter is
    /// the first of the line. The caller must then rank it with [`Queue::push`].
    #[must_use]
    pub fn line_up(&mut self, line: u16, slot: Slot, turn: i64) -> bool {
        let before = self.place(slot).line.replace(line);
        debug_assert_eq!(before, None, "slot waits twice");
        if self.lines.len() <= line as usize {
            self.lines.resize(line as usize + 1, Line::default());
        }
        let Line { waiters, turns } = &mut self.lines[line as usize];
        // A turn may be lower than the turn before it if another worker took a charge back, but
        // turns must not decrease within a line.
        turns.push_back(turns.back().map_or(turn, |last| turn.max(*last)));
        waiters.push_back(slot);
        waiters.len() == 1
    }

    /// Removes and returns the first waiter.
    pub fn pop(&mut self) -> Option<First> {
        let Waiter { slot, rank, .. } = self.sorted.pop_front()?;
        let place = std::mem::take(self.place(slot));
        let next = place.line.and_then(|line| {
            let Line { waiters, turns } = &mut self.lines[line as usize];
            // The waiter is served, so its turn is used and not passed on.
            waiters.pop_front();
            turns.pop_front();
            waiters.front().copied().zip(turns.front().copied())
        });
        Some(First { slot, rank, next })
    }

    /// Removes a waiter from any position. Returns false if the waiter isn't in the queue.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let Place { waiter, line } = std::mem::take(self.place(slot));
        if let Some(waiter) = waiter
            && let Ok(at) = self.sorted.binary_search(&waiter)
        {
            self.sorted.remove(at);
        }
        let Some(line) = line else {
            return waiter.is_some();
        };
        let Line { waiters, turns } = &mut self.lines[line as usize];
        turns.pop_back();
        if let Some(at) = waiters.iter().position(|other| *other == slot) {
            waiters.remove(at);
        }
        // The next waiter of the line takes the place in the list.
        if let Some((next, waiter)) = waiters.front().copied().zip(waiter) {
            self.push(next, waiter.rank);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the queue with a simple model, a vector sorted by rank and then by arrival.
        #[test]
        fn behaves_like_a_sorted_list(
            steps in prop::collection::vec((0u8..4, 0u32..24, 0u64..6), 1..200),
        ) {
            let mut queue = Queue::default();
            let mut model: Vec<(u64, usize, Slot)> = Vec::new();
            for (n, (step, slot, rank)) in steps.into_iter().enumerate() {
                match step {
                    0 | 1 => if !model.iter().any(|&(_, _, s)| s == slot) {
                        queue.push(slot, rank);
                        model.push((rank, n, slot));
                        model.sort_unstable();
                    },
                    2 => {
                        let expected = if model.is_empty() { None } else { Some(model.remove(0)) };
                        prop_assert_eq!(
                            queue.pop(),
                            expected.map(|(rank, _, slot)| First {
                                slot,
                                rank,
                                next: None
                            })
                        );
                    }
                    _ => {
                        let there = model.iter().position(|&(_, _, s)| s == slot);
                        if let Some(at) = there { model.remove(at); }
                        prop_assert_eq!(queue.remove(slot), there.is_some());
                    }
                }
                prop_assert_eq!(queue.head(), model.first().map(|&(rank, _, slot)| (slot, rank)));
                prop_assert_eq!(queue.slots().count(), model.len());
            }
        }

        /// Compares the queue with a simple model. For each line, the model has a list of waiters
        /// and a list of turns, each in order of arrival.
        #[test]
        fn a_line_passes_its_turns_on(
            steps in prop::collection::vec((0_u8..5, 0_u32..24, 0_u64..9), 1..200),
        ) {
            let mut queue = Queue::default();
            let mut model: [(Vec<Slot>, Vec<u64>); 3] = Default::default();
            for (step, slot, rank) in steps {
                let line = slot as usize % 3;
                let (waiters, turns) = &mut model[line];
                match step {
                    0..3 => if !waiters.contains(&slot) {
                        let turn = turns.last().map_or(rank, |last| rank.max(*last));
                        let first = queue.line_up(line as u16, slot, rank.cast_signed());
                        prop_assert_eq!(first, waiters.is_empty());
                        if first {
                            queue.push(slot, rank);
                        }
                        waiters.push(slot);
                        turns.push(turn);
                    },
                    3 => {
                        let least = model
                            .iter()
                            .filter_map(|(_, turns)| turns.first())
                            .min()
                            .copied();
                        let popped = queue.pop();
                        prop_assert_eq!(popped.map(|first| first.rank), least);
                        if let Some(First { slot, rank, next }) = popped {
                            let (waiters, turns) = &mut model[slot as usize % 3];
                            prop_assert_eq!((waiters.remove(0), turns.remove(0)), (slot, rank));
                            let turn = turns.first().map(|turn| turn.cast_signed());
                            prop_assert_eq!(next, waiters.first().copied().zip(turn));
                            if let Some((next, turn)) = next {
                                queue.push(next, turn.cast_unsigned());
                            }
                        }
                    }
                    _ => {
                        let there = waiters.iter().position(|s| *s == slot);
                        if let Some(at) = there {
                            waiters.remove(at);
                            turns.pop();
                        }
                        prop_assert_eq!(queue.remove(slot), there.is_some());
                    }
                }
                let mut slots: Vec<Slot> = queue.slots().collect();
                slots.sort_unstable();
                let mut expected: Vec<Slot> = model
                    .iter()
                    .flat_map(|(waiters, _)| waiters.clone())
                    .collect();
                expected.sort_unstable();
                prop_assert_eq!(slots, expected);
            }
        }
    }
}
