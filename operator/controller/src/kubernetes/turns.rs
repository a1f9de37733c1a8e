//! Turns at the API server's reviews of tokens, which bound the reviews in flight.
//!
//! A review may hang, such as one that the API server leaves to a webhook without an answer. So
//! each client address has few turns, and each namespace that tokens claim a part of all: the
//! tokens of one namespace, or of one client, don't keep others from theirs. The claim isn't
//! verified; a client that lies about it takes no more than the turns of its address.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::review::claimed_namespace;

/// The number of reviews in flight; further ones wait.
const MAX: usize = 32;
/// The number of these whose tokens claim one namespace, or none.
const OF_NAMESPACE: usize = MAX / 4;
/// The number of these of one client address. Of IPv6 it isn't that of a /64, which all Pods of a
/// node may share.
const OF_ADDRESS: usize = 2;

/// Turns of all clients.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    addresses: InUse<IpAddr, Semaphore>,
    namespaces: InUse<String, Semaphore>,
}

/// A turn at a review, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _permits: [OwnedSemaphorePermit; 3],
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MAX)),
            addresses: InUse::default(),
            namespaces: InUse::default(),
        }
    }
}

impl Turns {
    /// Waits for a turn at the review of `token`, which the client at `address` shows. `None` never
    /// happens: it would mean that a semaphore is closed.
    pub(super) async fn take(&self, address: IpAddr, token: &str) -> Option<Turn> {
        let of = |most| move || Semaphore::new(most);
        let address = self.addresses.get(address.to_canonical(), of(OF_ADDRESS));
        let namespace = claimed_namespace(token).unwrap_or_default();
        let namespace = self.namespaces.get(namespace, of(OF_NAMESPACE));
        // The narrowest share first, so that a client waits for others with nothing of theirs.
        let _permits = [
            address.acquire_owned().await.ok()?,
            namespace.acquire_owned().await.ok()?,
            Arc::clone(&self.all).acquire_owned().await.ok()?,
        ];
        Some(Turn { _permits })
    }
}

/// Values by key, each as long as somebody uses it.
#[derive(Debug)]
pub(super) struct InUse<K, V>(Mutex<Entries<K, V>>);

#[derive(Debug)]
struct Entries<K, V> {
    values: HashMap<K, Weak<V>>,
    /// The number of entries from which unused ones are dropped: twice as many as were in use, so
    /// that many insertions share the cost of one search.
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
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> V) -> Arc<V> {
        self.get_if(key, |_| true, make)
    }

    /// Returns the value of `key` that is in use, if it `is_good`, or else a new one.
    pub(super) fn get_if(
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
    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap().values.len()
    }
}
