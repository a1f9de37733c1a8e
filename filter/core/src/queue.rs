//! One worker's part of a stage's queue, in the order of the discipline.
//!
//! Every discipline gives a request a number when it arrives, its *rank*. The smallest rank goes
//! first. For a FIFO, the rank is the arrival time. So the process-wide order needs no shared
//! queue. Each worker publishes the rank of its first waiter, and the waiter with the smallest
//! published rank goes first.
//!
//! The queue is an indexed binary heap, because requests whose clients leave must be removed from
//! any position at once. Equal ranks keep their order of arrival.
//!
//! Waiters may be in *lines* (the flows of a fair queue). A line is first in, first out, and only
//! its first waiter is in the heap. Turns belong to the line and not to its waiters. If a waiter
//! leaves early, its turn goes to the waiter behind it, and the line's last turn is dropped. If
//! turns belonged to waiters, early turns would be lost with clients that give up. A flow of such
//! clients would then not be served until all others have used as many rounds as the flow has
//! waiters. The rank of a turn is only known when it is the first of its line, so the caller ranks
//! the next waiter of a line when the waiter before it is served.

use std::collections::VecDeque;

/// The index of a request in its stage's table.
pub type Slot = u32;

const NOWHERE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiter {
    rank: u64,
    sequence: u64,
    slot: Slot,
}

#[derive(Debug, Clone)]
struct Line {
    first: Slot,
    last: Slot,
    /// The turns in ascending order, one for each waiter.
    turns: VecDeque<i64>,
}

/// The neighbours of a slot in its line.
#[derive(Debug, Clone, Copy)]
struct Link {
    line: u16,
    before: Slot,
    behind: Slot,
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
    heap: Vec<Waiter>,
    /// The positions in `heap`, by slot.
    positions: Vec<u32>,
    sequence: u64,
    lines: Vec<Line>,
    /// The links by slot. `None` for waiters without a line.
    links: Vec<Option<Link>>,
    /// The number of waiters that are not the first of their line.
    behind: usize,
}

impl Queue {
    /// Returns the number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len() + self.behind
    }

    /// Whether the queue has no waiter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns the first waiter and its rank.
    #[must_use]
    pub fn head(&self) -> Option<(Slot, u64)> {
        self.heap.first().map(|w| (w.slot, w.rank))
    }

    /// Yields the slots of all waiters, in no particular order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.heap
            .iter()
            .flat_map(|w| std::iter::successors(Some(w.slot), |slot| self.behind(*slot)))
    }

    fn link(&self, slot: Slot) -> Option<Link> {
        self.links.get(slot as usize).copied().flatten()
    }

    fn behind(&self, slot: Slot) -> Option<Slot> {
        let behind = self.link(slot)?.behind;
        (behind != NOWHERE).then_some(behind)
    }

    /// Adds a waiter that has no line or is the first of its line. A slot must not be added twice.
    pub fn push(&mut self, slot: Slot, rank: u64) {
        let needed = slot as usize + 1;
        if self.positions.len() < needed {
            self.positions.resize(needed, NOWHERE);
        }
        debug_assert_eq!(self.positions[slot as usize], NOWHERE, "slot waits twice");
        self.sequence += 1;
        self.heap.push(Waiter {
            rank,
            sequence: self.sequence,
            slot,
        });
        self.rise(self.heap.len() - 1);
    }

    /// Adds a waiter to the end of `line`, with one more turn for it. Returns whether the waiter is
    /// the first of the line. The caller must then rank it with [`Queue::push`].
    #[must_use]
    pub fn line_up(&mut self, line: u16, slot: Slot, turn: i64) -> bool {
        let needed = slot as usize + 1;
        if self.links.len() < needed {
            self.links.resize(needed, None);
        }
        if self.lines.len() <= line as usize {
            let empty = Line {
                first: NOWHERE,
                last: NOWHERE,
                turns: VecDeque::new(),
            };
            self.lines.resize(line as usize + 1, empty);
        }
        debug_assert!(self.link(slot).is_none(), "slot waits twice");
        let Line { first, last, turns } = &mut self.lines[line as usize];
        // A turn may be lower than the turn before it if another worker took a charge back, but
        // turns must not decrease within a line.
        turns.push_back(turns.back().map_or(turn, |last| turn.max(*last)));
        let before = std::mem::replace(last, slot);
        self.links[slot as usize] = Some(Link {
            line,
            before,
            behind: NOWHERE,
        });
        if before == NOWHERE {
            *first = slot;
            return true;
        }
        if let Some(before) = &mut self.links[before as usize] {
            before.behind = slot;
        }
        self.behind += 1;
        false
    }

    /// Removes and returns the first waiter.
    pub fn pop(&mut self) -> Option<First> {
        let (slot, rank) = self.head()?;
        self.take(slot);
        let next = self.link(slot).and_then(|link| {
            let next = self.leave_line(slot, link);
            // The waiter is served, so its turn is used and not passed on.
            let turns = &mut self.lines[link.line as usize].turns;
            turns.pop_front();
            next.zip(turns.front().copied())
        });
        Some(First { slot, rank, next })
    }

    /// Removes a waiter from any position. Returns false if the waiter isn't in the queue.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let rank = self.take(slot);
        let Some(link) = self.link(slot) else {
            return rank.is_some();
        };
        let next = self.leave_line(slot, link);
        self.lines[link.line as usize].turns.pop_back();
        if let (Some(next), Some(rank)) = (next, rank) {
            self.push(next, rank);
        }
        true
    }

    /// Removes `slot` from its line. If `slot` was the first, returns the new first waiter.
    fn leave_line(&mut self, slot: Slot, link: Link) -> Option<Slot> {
        let Link {
            line,
            before,
            behind,
        } = link;
        self.links[slot as usize] = None;
        for (of, to, end) in [(before, behind, false), (behind, before, true)] {
            let end_of = &mut self.lines[line as usize];
            match self.links.get_mut(of as usize).and_then(Option::as_mut) {
                Some(link) if end => link.before = to,
                Some(link) => link.behind = to,
                None if end => end_of.last = to,
                None => end_of.first = to,
            }
        }
        let was_first = before == NOWHERE;
        let next = (was_first && behind != NOWHERE).then_some(behind);
        if !was_first || next.is_some() {
            self.behind -= 1;
        }
        next
    }

    /// Removes `slot` from the heap. Returns its rank if it was in the heap.
    fn take(&mut self, slot: Slot) -> Option<u64> {
        let at = match self.positions.get(slot as usize) {
            Some(&at) if at != NOWHERE => at as usize,
            _ => return None,
        };
        self.positions[slot as usize] = NOWHERE;
        let taken = self.heap.swap_remove(at);
        if at < self.heap.len() {
            // The waiter that moved here from the end of the heap may belong above or below this
            // position.
            self.rise(at);
            self.sink(at);
        }
        Some(taken.rank)
    }

    fn put(&mut self, at: usize, waiter: Waiter) {
        self.heap[at] = waiter;
        // The cast loses nothing, because a heap of 2^32 waiters doesn't fit in a wasm32 VM.
        self.positions[waiter.slot as usize] = at as u32;
    }

    fn rise(&mut self, mut at: usize) {
        let waiter = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent] <= waiter {
                break;
            }
            self.put(at, self.heap[parent]);
            at = parent;
        }
        self.put(at, waiter);
    }

    fn sink(&mut self, mut at: usize) {
        let waiter = self.heap[at];
        loop {
            let mut child = 2 * at + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.heap[child + 1] < self.heap[child] {
                child += 1;
            }
            if waiter <= self.heap[child] {
                break;
            }
            self.put(at, self.heap[child]);
            at = child;
        }
        self.put(at, waiter);
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
                prop_assert_eq!(queue.len(), model.len());
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
                prop_assert_eq!(queue.len(), expected.len());
                prop_assert_eq!(slots, expected);
            }
        }
    }
}
