//! Quotas of connections and streams, in total and for each address or namespace.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A bounded count for each key.
#[derive(Debug)]
pub(crate) struct Quota<K: Eq + Hash> {
    state: Mutex<State<K>>,
    max: usize,
    max_each: usize,
}

/// Connections by address. IPv6 addresses count by /64, all of which one client usually has.
pub(crate) type Addresses = Quota<IpAddr>;

#[derive(Debug)]
struct State<K> {
    all: usize,
    /// Only keys with a count above zero.
    of_each: HashMap<K, usize>,
}

/// One counted item, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot<K: Eq + Hash> {
    quota: Arc<Quota<K>>,
    key: K,
}

/// The limit that one more item would exceed.
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

    /// Counts one more item of `key`, if no limit is reached.
    pub(crate) fn take(self: &Arc<Self>, key: K) -> Result<Slot<K>, Full> {
        let mut state = self.lock();
        if state.all >= self.max {
            return Err(Full::All);
        }
        let of_key = state.of_each.entry(key.clone()).or_insert(0);
        if *of_key >= self.max_each {
            return Err(Full::Each);
        }
        *of_key += 1;
        state.all += 1;
        drop(state);
        Ok(Slot {
            quota: Arc::clone(self),
            key,
        })
    }
}

impl Addresses {
    /// Counts one more connection of `address`, if no limit is reached.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Slot<IpAddr>, Full> {
        self.take(group(address))
    }
}

impl<K: Eq + Hash> Quota<K> {
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
        state.all -= 1;
        if let Some(of_key) = state.of_each.get_mut(&self.key) {
            *of_key -= 1;
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
