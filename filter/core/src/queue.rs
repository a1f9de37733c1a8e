//! One worker's part of a stage's queue: who waits here, in the order of the discipline.
//!
//! Every discipline is a *rank*: a number given to a request when it arrives, and the smallest rank
//! goes first (FIFO's rank is the arrival). The process-wide order then needs no shared queue: each
//! worker publishes the rank of its first waiter, and the smallest of those goes first.
//!
//! An indexed binary heap, because clients leave from anywhere in the queue and must not linger in it.
//! Equal ranks keep their order of arrival.

/// Index of a request in its stage's table.
pub type Slot = u32;

const NOWHERE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiter {
    rank: u64,
    sequence: u64,
    slot: Slot,
}

/// Waiting requests of one worker, smallest rank first.
#[derive(Debug, Default)]
pub struct Queue {
    heap: Vec<Waiter>,
    /// Position in `heap` by slot.
    positions: Vec<u32>,
    sequence: u64,
}

impl Queue {
    /// Number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
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
        self.heap.iter().map(|w| w.slot)
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

    /// Removes the first waiter.
    pub fn pop(&mut self) -> Option<Slot> {
        let slot = self.heap.first()?.slot;
        self.remove(slot);
        Some(slot)
    }

    /// Removes a waiter wherever it stands; false if it doesn't wait.
    pub fn remove(&mut self, slot: Slot) -> bool {
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
                        let expected = if model.is_empty() { None } else { Some(model.remove(0).2) };
                        prop_assert_eq!(queue.pop(), expected);
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
    }
}
