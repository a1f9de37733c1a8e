//! A bounded map that drops entries that have been unused for long.
//!
//! The map has two generations. New entries are added to the young generation. When the young
//! generation is full, it becomes the old one, and the previous old one is dropped. An entry that
//! is used moves to the young generation. So if a generation holds n entries, an entry stays at
//! least until n others have been used after it. Each operation costs O(1) on average, and a use
//! doesn't have to update a list.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use headgate_strategies::time::Instant;

use crate::Limits;

/// A bounded map of two generations.
#[derive(Debug, Clone)]
pub(crate) struct Recent<K, V> {
    /// The maximum number of entries of a generation.
    generation: usize,
    idle: Duration,
    young: HashMap<K, Entry<V>>,
    old: HashMap<K, Entry<V>>,
}

#[derive(Debug, Clone)]
struct Entry<V> {
    value: V,
    used: Instant,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            generation: (limits.channels / 2).max(1),
            idle: limits.idle,
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }

    /// Returns the value of `key` without marking the key as used. Returns `None` if the key is
    /// unknown or has been unused for the idle time.
    pub(crate) fn peek(&self, now: Instant, key: K) -> Option<&V> {
        let entry = self.young.get(&key).or_else(|| self.old.get(&key))?;
        (now.since(entry.used) < self.idle).then_some(&entry.value)
    }

    /// Returns the value of `key` and marks the key as just used.
    pub(crate) fn get(&mut self, now: Instant, key: K) -> Option<&mut V> {
        self.peek(now, key)?;
        if let Some(entry) = self.old.remove(&key) {
            self.insert(now, key, entry.value);
        }
        let entry = self.young.get_mut(&key)?;
        entry.used = now;
        Some(&mut entry.value)
    }

    /// Sets the value of `key` and marks the key as just used.
    pub(crate) fn insert(&mut self, now: Instant, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.generation && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, Entry { value, used: now });
    }

    pub(crate) fn remove(&mut self, key: K) {
        self.young.remove(&key);
        self.old.remove(&key);
    }

    /// Returns the number of entries for which memory is allocated. The map keeps its memory when
    /// entries are removed.
    pub(crate) fn capacity(&self) -> usize {
        self.young.capacity() + self.old.capacity()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        channels: 8,
        idle: Duration::from_secs(10),
    };

    proptest! {
        /// A look-up returns the inserted value, unless the entry is too old. An entry is evicted
        /// only after uses of as many other entries as a generation holds. The map never exceeds
        /// its bound.
        #[test]
        fn keeps_what_is_used_and_nothing_beyond_its_bound(
            steps in prop::collection::vec((0_u8..12, any::<bool>(), 0_u64..4), 1..200),
        ) {
            let mut map = Recent::new(LIMITS);
            // `model` has the value and the time of the last use of each key. `order` has the keys
            // in the order of their uses.
            let mut model: BTreeMap<u8, (usize, u64)> = BTreeMap::new();
            let mut order: Vec<u8> = Vec::new();
            let mut seconds = 0;
            for (step, (key, insert, later)) in steps.into_iter().enumerate() {
                seconds += later;
                let now = Instant::from_nanos(seconds * 1_000_000_000);
                let fresh = model.get(&key).copied().filter(|(_, used)| seconds - used < 10);
                let mut used = true;
                if insert {
                    map.insert(now, key, step);
                    model.insert(key, (step, seconds));
                } else {
                    let since = order.iter().rev().position(|k| *k == key);
                    let found = map.get(now, key).copied();
                    match (found, fresh) {
                        (Some(found), Some((value, _))) => prop_assert_eq!(found, value),
                        (Some(_), None) => prop_assert!(false, "found after it was idle"),
                        (None, Some(_)) => {
                            prop_assert!(since.is_some_and(|n| n >= 4), "lost too early");
                        }
                        (None, None) => {}
                    }
                    used = found.is_some();
                    if used {
                        model.entry(key).and_modify(|(_, at)| *at = seconds);
                    } else {
                        model.remove(&key);
                    }
                }
                if used {
                    order.retain(|k| *k != key);
                    order.push(key);
                }
                prop_assert!(map.len() <= LIMITS.channels);
            }
        }
    }

    #[test]
    fn a_removed_entry_is_gone() {
        let mut map = Recent::new(LIMITS);
        let now = Instant::default();
        (0..6).for_each(|key| map.insert(now, key, key));
        map.remove(1);
        map.remove(5);
        assert_eq!(map.peek(now, 1), None);
        assert_eq!(map.get(now, 5), None);
        assert_eq!(map.peek(now, 4), Some(&4));
    }
}
