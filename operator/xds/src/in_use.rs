//! Values by key, shared by their users. A value is dropped with its last user.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Values by key, each kept as long as it is used.
#[derive(Debug)]
pub(crate) struct InUse<K, V>(Mutex<Entries<K, V>>);

#[derive(Debug)]
struct Entries<K, V> {
    values: HashMap<K, Weak<V>>,
    /// The number of entries at which unused entries are dropped. It is twice the number that were
    /// in use at the last search, so that many insertions share the cost of one search.
    limit: usize,
}

impl<K, V> Default for InUse<K, V> {
    fn default() -> Self {
        let (values, limit) = (HashMap::new(), 0);
        Self(Mutex::new(Entries { values, limit }))
    }
}

impl<K: Eq + Hash, V> InUse<K, V> {
    /// Returns the value of `key` that is in use, or else a new one.
    pub(crate) fn get(&self, key: K, make: impl FnOnce() -> V) -> Arc<V> {
        self.get_if(key, |_| true, make)
    }

    /// Returns the value of `key` that is in use, if it `is_good`, or else a new one.
    pub(crate) fn get_if(
        &self,
        key: K,
        is_good: impl FnOnce(&V) -> bool,
        make: impl FnOnce() -> V,
    ) -> Arc<V> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = entries.values.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| is_good(known)) {
            return known;
        }
        if entries.values.len() >= entries.limit {
            entries.values.retain(|_, value| value.strong_count() > 0);
            entries.limit = 2 * entries.values.len() + 1;
        }
        let value = Arc::new(make());
        entries.values.insert(key, Arc::downgrade(&value));
        value
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().values.len()
    }
}
