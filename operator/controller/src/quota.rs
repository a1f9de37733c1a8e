//! Quotas of connections, streams and bytes, in total and for each address or namespace.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A bounded amount for each key.
#[derive(Debug)]
pub(crate) struct Quota<K: Eq + Hash> {
    state: Mutex<State<K>>,
    pub(crate) max: usize,
    pub(crate) max_each: usize,
}

/// Connections by address. IPv6 addresses count by /64, all of which one client usually has.
pub(crate) type Addresses = Quota<IpAddr>;

#[derive(Debug)]
struct State<K> {
    all: usize,
    /// Only keys with an amount above zero.
    of_each: HashMap<K, usize>,
}

/// An amount of one key, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot<K: Eq + Hash> {
    quota: Arc<Quota<K>>,
    key: K,
    amount: usize,
}

/// The limit that an amount would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The total limit.
    All,
    /// The limit of its key.
    Each,
}

impl<K: Eq + Hash + Clone> Quota<K> {
    /// Returns a quota of at most `max` in total and `max_each` for each key.
    pub(crate) fn new(max: usize, max_each: usize) -> Arc<Self> {
        let state = State {
            all: 0,
            of_each: HashMap::new(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            max,
            max_each,
        })
    }

    /// Counts `amount` more of `key`, if that exceeds no limit.
    pub(crate) fn take(self: &Arc<Self>, key: K, amount: usize) -> Result<Slot<K>, Full> {
        let mut state = self.lock();
        if amount > self.max - state.all {
            return Err(Full::All);
        }
        let of_key = state.of_each.get(&key).copied().unwrap_or_default();
        if amount > self.max_each.saturating_sub(of_key) {
            return Err(Full::Each);
        }
        state.of_each.insert(key.clone(), of_key + amount);
        state.all += amount;
        drop(state);
        Ok(Slot {
            quota: Arc::clone(self),
            key,
            amount,
        })
    }
}

impl Addresses {
    /// Counts one more connection of `address`, if no limit is reached.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Slot<IpAddr>, Full> {
        self.take(group(address), 1)
    }
}

impl<K: Eq + Hash> Quota<K> {
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the address by which `address` is counted: of IPv6, that of its /64.
pub(crate) fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
    }
}

impl<K: Eq + Hash> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut state = self.quota.lock();
        state.all -= self.amount;
        if let Some(of_key) = state.of_each.get_mut(&self.key) {
            *of_key -= self.amount;
            if *of_key == 0 {
                state.of_each.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_address_has_its_share_and_nothing_is_left_behind() {
        let all = Addresses::new(3, 2);
        let a = all.enter(ip("10.0.0.1")).unwrap();
        let b = all.enter(ip("10.0.0.1")).unwrap();
        assert_eq!(all.enter(ip("10.0.0.1")).unwrap_err(), Full::Each);
        assert_eq!(all.enter(ip("::ffff:10.0.0.1")).unwrap_err(), Full::Each);
        let c = all.enter(ip("10.0.0.2")).unwrap();
        assert_eq!(all.enter(ip("10.0.0.3")).unwrap_err(), Full::All);
        drop(a);
        assert!(all.enter(ip("10.0.0.1")).is_ok());
        drop((b, c));
        let state = all.lock();
        assert_eq!((state.all, state.of_each.len()), (0, 0));
    }

    #[test]
    fn a_network_of_addresses_counts_as_one() {
        let all = Addresses::new(10, 1);
        let _one = all.enter(ip("2001:db8::1")).unwrap();
        assert_eq!(all.enter(ip("2001:db8::ffff:2")).unwrap_err(), Full::Each);
        assert!(all.enter(ip("2001:db8:0:1::1")).is_ok());
    }
}
