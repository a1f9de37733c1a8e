//! One worker's part of a stage's queue: who waits here, in the order of the discipline.
//!
//! Every discipline is a *rank*: a number given to a request when it arrives, and the smallest rank
//! goes first (FIFO's rank is the arrival). The process-wide order then needs no shared queue: each
//! worker publishes the rank of its first waiter, and the smallest of those goes first.
//!
//! An indexed binary heap, because clients leave from anywhere in the queue and must not linger in it.
//! Equal ranks keep their order of arrival.
//!
//! Waiters may stand in *lines* (the flows of deficit round robin). A line is served first come, first
//! served; ranks are its turns and not its waiters': whoever leaves a line gives its turn to the one
//! behind, and the last turn is void. Else the early turns would be lost with the clients that give up, and
//! a flow whose clients do so would not be served until all others have used as many rounds as it has
//! waiters. Only the first of a line is in the heap.

use std::collections::VecDeque;

/// Index of a request in its stage's table.
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
    /// Ranks, ascending; as many as waiters.
    turns: VecDeque<u64>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            first: NOWHERE,
            last: NOWHERE,
            turns: VecDeque::new(),
        }
    }
}

/// Where a slot stands in its line.
#[derive(Debug, Clone, Copy)]
struct Link {
    line: u16,
    before: Slot,
    behind: Slot,
}

/// Waiting requests of one worker, smallest rank first.
#[derive(Debug, Default)]
pub struct Queue {
    heap: Vec<Waiter>,
    /// Position in `heap` by slot.
    positions: Vec<u32>,
    sequence: u64,
    lines: Vec<Line>,
    /// By slot; `None` for those that stand in no line.
    links: Vec<Option<Link>>,
    /// Waiters in lines that are not the first.
    behind: usize,
}

impl Queue {
    /// Number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len() + self.behind
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The first waiter and its rank.
    #[must_use]
    pub fn head(&self) -> Option<(Slot, u64)> {
        self.heap.first().map(|w| (w.slot, w.rank))
    }

    /// Slots of all waiters, in no particular order.
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

    /// Adds a waiter. A slot waits at most once.
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

    /// Adds a waiter to the end of `line`, with one more turn for it.
    pub fn push_into(&mut self, line: u16, slot: Slot, turn: u64) {
        let needed = slot as usize + 1;
        if self.links.len() < needed {
            self.links.resize(needed, None);
        }
        if self.lines.len() <= line as usize {
            self.lines.resize(line as usize + 1, Line::default());
        }
        debug_assert!(self.link(slot).is_none(), "slot waits twice");
        let Line { last, turns, .. } = &mut self.lines[line as usize];
        // Ranks fall where another worker took a cost back; within the line they can't.
        let turn = turns.back().map_or(turn, |last| turn.max(*last));
        turns.push_back(turn);
        let before = std::mem::replace(last, slot);
        self.links[slot as usize] = Some(Link {
            line,
            before,
            behind: NOWHERE,
        });
        if before == NOWHERE {
            self.lines[line as usize].first = slot;
            self.push(slot, turn);
        } else {
            if let Some(before) = &mut self.links[before as usize] {
                before.behind = slot;
            }
            self.behind += 1;
        }
    }

    /// Removes the first waiter; returns it with the rank that it was served by.
    pub fn pop(&mut self) -> Option<(Slot, u64)> {
        let (slot, rank) = self.head()?;
        if let Some(link) = self.link(slot) {
            // Served: this turn is used, not passed on.
            self.lines[link.line as usize].turns.pop_front();
            self.leave_line(slot, link);
        } else {
            self.take(slot);
        }
        Some((slot, rank))
    }

    /// Removes a waiter wherever it stands; false if it doesn't wait.
    pub fn remove(&mut self, slot: Slot) -> bool {
        if let Some(link) = self.link(slot) {
            self.lines[link.line as usize].turns.pop_back();
            self.leave_line(slot, link);
            return true;
        }
        self.take(slot)
    }

    /// Closes the gap in the line; its turns are already without one.
    fn leave_line(&mut self, slot: Slot, link: Link) {
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
        if before != NOWHERE {
            self.behind -= 1;
            return;
        }
        self.take(slot);
        if behind != NOWHERE
            && let Some(&turn) = self.lines[line as usize].turns.front()
        {
            self.behind -= 1;
            self.push(behind, turn);
        }
    }

    /// Takes `slot` out of the heap.
    fn take(&mut self, slot: Slot) -> bool {
        let at = match self.positions.get(slot as usize) {
            Some(&at) if at != NOWHERE => at as usize,
            _ => return false,
        };
        self.positions[slot as usize] = NOWHERE;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            // The one that came from the end may belong above or below.
            self.rise(at);
            self.sink(at);
        }
        true
    }

    fn put(&mut self, at: usize, waiter: Waiter) {
        self.heap[at] = waiter;
        // A heap of 2^32 waiters doesn't fit in a wasm32 VM.
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
        /// Against the obvious model: a vector, sorted by rank and then arrival.
        #[test]
        fn behaves_like_a_sorted_list(steps in prop::collection::vec((0u8..4, 0u32..24, 0u64..6), 1..200)) {
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
                        prop_assert_eq!(queue.pop(), expected.map(|(rank, _, slot)| (slot, rank)));
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

        /// Against the obvious model: for each line, waiters in their order of arrival and turns in
        /// theirs.
        #[test]
        fn a_line_passes_its_turns_on(steps in prop::collection::vec((0_u8..5, 0_u32..24, 0_u64..9), 1..200)) {
            let mut queue = Queue::default();
            let mut model: [(Vec<Slot>, Vec<u64>); 3] = Default::default();
            for (step, slot, rank) in steps {
                let line = slot as usize % 3;
                match step {
                    0..3 => if !model[line].0.contains(&slot) {
                        let turn = model[line].1.last().map_or(rank, |last| rank.max(*last));
                        queue.push_into(line as u16, slot, rank);
                        model[line].0.push(slot);
                        model[line].1.push(turn);
                    },
                    3 => {
                        let least = model.iter().filter_map(|(_, turns)| turns.first()).min().copied();
                        let popped = queue.pop();
                        prop_assert_eq!(popped.map(|(_, rank)| rank), least);
                        if let Some((slot, _)) = popped {
                            let (waiters, turns) = &mut model[slot as usize % 3];
                            prop_assert_eq!((waiters.remove(0), Some(turns.remove(0))), (slot, least));
                        }
                    }
                    _ => {
                        let there = model[line].0.iter().position(|s| *s == slot);
                        if let Some(at) = there {
                            model[line].0.remove(at);
                            model[line].1.pop();
                        }
                        prop_assert_eq!(queue.remove(slot), there.is_some());
                    }
                }
                let mut slots: Vec<Slot> = queue.slots().collect();
                slots.sort_unstable();
                let mut expected: Vec<Slot> = model.iter().flat_map(|(waiters, _)| waiters.clone()).collect();
                expected.sort_unstable();
                prop_assert_eq!(queue.len(), expected.len());
                prop_assert_eq!(slots, expected);
            }
        }
    }
}
