//! How many connections there are in all, and from each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts connections; bounded by its own limit.
#[derive(Debug)]
pub(crate) struct Addresses {
    state: Mutex<State>,
    max: usize,
    max_per_address: usize,
}

#[derive(Debug, Default)]
struct State {
    all: usize,
    /// Only addresses that have some.
    by_address: HashMap<IpAddr, usize>,
}

/// One connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    addresses: Arc<Addresses>,
    key: IpAddr,
}

/// Which limit a connection is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// That of all.
    All,
    /// That of its address.
    Address,
}

impl Addresses {
    /// At most `max` in all and `max_per_address` of each.
    pub(crate) fn new(max: usize, max_per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            max,
            max_per_address,
        })
    }

    /// Counts one more of `address`, if there is room.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Slot, Full> {
        let key = group(address);
        let mut state = self.lock();
        if state.all >= self.max {
            return Err(Full::All);
        }
        let of_address = state.by_address.entry(key).or_insert(0);
        if *of_address >= self.max_per_address {
            return Err(Full::Address);
        }
        *of_address += 1;
        state.all += 1;
        drop(state);
        Ok(Slot {
            addresses: Arc::clone(self),
            key,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// IPv6 addresses count by /64: whoever has one address of it has them all.
fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) => IpAddr::V4(v4),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.addresses.lock();
        state.all -= 1;
        if let Some(of_address) = state.by_address.get_mut(&self.key) {
            *of_address -= 1;
            if *of_address == 0 {
                state.by_address.remove(&self.key);
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
        assert_eq!(all.enter(ip("10.0.0.1")).unwrap_err(), Full::Address);
        assert_eq!(all.enter(ip("::ffff:10.0.0.1")).unwrap_err(), Full::Address);
        let c = all.enter(ip("10.0.0.2")).unwrap();
        assert_eq!(all.enter(ip("10.0.0.3")).unwrap_err(), Full::All);
        drop(a);
        assert!(all.enter(ip("10.0.0.1")).is_ok());
        drop((b, c));
        let state = all.lock();
        assert_eq!((state.all, state.by_address.len()), (0, 0));
    }

    #[test]
    fn a_network_of_addresses_counts_as_one() {
        let all = Addresses::new(10, 1);
        let _one = all.enter(ip("2001:db8::1")).unwrap();
        assert_eq!(
            all.enter(ip("2001:db8::ffff:2")).unwrap_err(),
            Full::Address
        );
        assert!(all.enter(ip("2001:db8:0:1::1")).is_ok());
    }
}
