//! A sorted, bounded set of entries for pairs of a workflow and a process.
//!
//! The numbers of processes per workflow and of pairs in all are bounded. Beyond a bound, the pair
//! that was silent for longest is evicted, up to [`EVICTIONS`] times in an interval. At most
//! [`ARRIVALS`] pairs are added in an interval, since each insertion moves other pairs.

use std::ops::{Deref, DerefMut};

use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use super::WorkflowId;

/// The maximum number of evictions in one interval. It bounds the time of a run for any arrivals.
pub(crate) const EVICTIONS: u32 = 16;
/// The maximum number of pairs that are added in one interval.
pub(crate) const ARRIVALS: u32 = 512;

/// An entry for a pair.
pub(super) trait Pair {
    /// The identity of the pair, ordered by the workflow first.
    type Key: Ord + Copy;
    /// The maximum number of processes of one workflow.
    const PER_WORKFLOW: usize;
    /// The maximum number of pairs.
    const TOTAL: usize;

    /// Creates the entry of `key`, first seen at `now`.
    fn new(key: Self::Key, now: Instant) -> Self;
    fn key(&self) -> Self::Key;
    fn workflow(key: Self::Key) -> WorkflowId;
    /// Returns the time at which the pair was last seen, or `None` if it was never seen.
    fn last_seen(&self) -> Option<Instant>;
    /// Whether the numbers of the entry are in their ranges.
    fn is_valid(&self) -> bool;
}

/// A bounded set of pairs, in ascending order of keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Pairs<P> {
    pairs: Vec<P>,
    #[serde(skip)]
    evicted: u32,
    #[serde(skip)]
    arrived: u32,
}

impl<P> Default for Pairs<P> {
    fn default() -> Self {
        Self {
            pairs: Vec::new(),
            evicted: 0,
            arrived: 0,
        }
    }
}

impl<P> Deref for Pairs<P> {
    type Target = [P];

    fn deref(&self) -> &[P] {
        &self.pairs
    }
}

impl<P> DerefMut for Pairs<P> {
    fn deref_mut(&mut self) -> &mut [P] {
        &mut self.pairs
    }
}

impl<P: Pair> Pairs<P> {
    /// Begins an interval, in which [`EVICTIONS`] and [`ARRIVALS`] are counted from 0.
    pub(super) fn begin(&mut self) {
        self.evicted = 0;
        self.arrived = 0;
    }

    /// Whether the set is within its total bound and in order, and all its entries are valid.
    pub(super) fn is_valid(&self) -> bool {
        let ascend = |pair: &[P]| pair[0].key() < pair[1].key();
        self.len() <= P::TOTAL
            && self.pairs.windows(2).all(ascend)
            && self.pairs.iter().all(P::is_valid)
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&P) -> bool) {
        self.pairs.retain(keep);
    }

    /// Returns the range of the indices of a workflow's pairs.
    pub(super) fn range(&self, workflow: WorkflowId) -> std::ops::Range<usize> {
        let of = |pair: &P| P::workflow(pair.key());
        let begin = self.partition_point(|pair| of(pair) < workflow);
        begin..self.partition_point(|pair| of(pair) <= workflow)
    }

    /// Returns the pair of `key`, which is added as seen at `now` if it is new. Returns `None` if
    /// there is no room for a new pair.
    pub(super) fn entry(&mut self, key: P::Key, now: Instant) -> Option<&mut P> {
        let at = match self.binary_search_by(|pair| pair.key().cmp(&key)) {
            Ok(at) => at,
            Err(_) => self.insert(key, now)?,
        };
        self.get_mut(at)
    }

    fn insert(&mut self, key: P::Key, now: Instant) -> Option<usize> {
        if self.arrived >= ARRIVALS {
            return None;
        }
        self.make_room(P::workflow(key), now)?;
        self.arrived += 1;
        let at = self.partition_point(|pair| pair.key() < key);
        self.pairs.insert(at, P::new(key, now));
        Some(at)
    }

    /// Evicts the pair that was silent for longest, if there are too many pairs. Returns `None` if
    /// there is still no room. A pair that was last seen at `now` is not evicted.
    fn make_room(&mut self, workflow: WorkflowId, now: Instant) -> Option<()> {
        let own = self.range(workflow);
        let range = if own.len() >= P::PER_WORKFLOW {
            own
        } else if self.len() >= P::TOTAL {
            0..self.len()
        } else {
            return Some(());
        };
        if self.evicted >= EVICTIONS {
            return None;
        }
        self.evicted += 1;
        let silent = range.min_by_key(|&at| self.pairs[at].last_seen())?;
        if self.pairs[silent].last_seen() >= Some(now) {
            return None;
        }
        self.pairs.remove(silent);
        Some(())
    }
}
