//! Quotas of connections, streams and bytes, in total and for each address or namespace.

use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::in_use::InUse;

/// A limited amount in total and for each key.
#[derive(Debug)]
pub(crate) struct Quota<K> {
    all: Arc<Semaphore>,
    of_each: InUse<K, Semaphore>,
    pub(crate) max: usize,
    pub(crate) max_each: usize,
}

/// A quota of connections by address. IPv6 addresses aren't grouped by /64, because a /64 is often
/// the range of a whole cluster.
pub(crate) type Addresses = Quota<IpAddr>;

/// An amount counted for one key. Dropping the slot frees the amount.
#[derive(Debug)]
pub(crate) struct Slot {
    _permits: [OwnedSemaphorePermit; 2],
}

/// The limit that an amount would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The total limit.
    All,
    /// The limit of the key.
    Each,
}

impl<K: Eq + Hash> Quota<K> {
    /// Returns a quota of at most `max` in total and `max_each` for each key.
    pub(crate) fn new(max: usize, max_each: usize) -> Self {
        let [max, max_each] = [max, max_each].map(|most| most.min(Semaphore::MAX_PERMITS));
        Self {
            all: Arc::new(Semaphore::new(max)),
            of_each: InUse::default(),
            max,
            max_each,
        }
    }

    /// Counts `amount` more for `key`, unless that exceeds a limit.
    pub(crate) fn take(&self, key: K, amount: usize) -> Result<Slot, Full> {
        let take = |semaphore: Arc<Semaphore>| {
            let amount = u32::try_from(amount).ok()?;
            semaphore.try_acquire_many_owned(amount).ok()
        };
        let of_all = take(Arc::clone(&self.all)).ok_or(Full::All)?;
        let of_each = self.of_each.get(key, || Semaphore::new(self.max_each));
        let of_each = take(of_each).ok_or(Full::Each)?;
        Ok(Slot {
            _permits: [of_all, of_each],
        })
    }

    /// Waits until one more for `key` is within the limits, and counts it. Waiters of one key are
    /// first in, first out. The error, a closed semaphore, never occurs.
    pub(crate) async fn wait_for(&self, key: K) -> Result<Slot, AcquireError> {
        // The share of the key is taken first, so that a waiter holds nothing that others could
        // use.
        let of_each = self.of_each.get(key, || Semaphore::new(self.max_each));
        let of_each = of_each.acquire_owned().await?;
        let of_all = Arc::clone(&self.all).acquire_owned().await?;
        Ok(Slot {
            _permits: [of_all, of_each],
        })
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.max - self.all.available_permits()
    }
}

impl Addresses {
    /// Counts one more connection of `address`, unless a limit is reached.
    pub(crate) fn enter(&self, address: IpAddr) -> Result<Slot, Full> {
        self.take(address.to_canonical(), 1)
    }

    /// Waits until one more connection of `address` is within the limits, and counts it, as
    /// [`Quota::wait_for`] does.
    pub(crate) async fn wait(&self, address: IpAddr) -> Result<Slot, AcquireError> {
        self.wait_for(address.to_canonical()).await
    }
}

/// Limits how often a log line about rejected connections or streams is written, so that a flood
/// doesn't fill the log.
#[derive(Debug, Default)]
pub(crate) struct Pace(Option<Instant>);

impl Pace {
    /// The shortest interval between two lines.
    const INTERVAL: Duration = Duration::from_secs(10);

    /// Whether a line is due now. Then the next one is due after the interval.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = { self.0 }.is_none_or(|last| now.duration_since(last) >= Self::INTERVAL);
        if is_due {
            self.0 = Some(now);
        }
        is_due
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
        assert_eq!(all.taken(), 0);
        assert!(
            all.enter(ip("10.0.0.2")).is_ok(),
            "nothing of its share is left behind"
        );
    }

    /// The range fd00::/104 is Cilium's default for all Pods of a cluster.
    #[test]
    fn pods_with_a_common_ipv6_network_have_a_share_each() {
        let all = Addresses::new(10, 1);
        let _one = all.enter(ip("fd00::1")).unwrap();
        assert_eq!(all.enter(ip("fd00::1")).unwrap_err(), Full::Each);
        assert!(all.enter(ip("fd00::2")).is_ok());
    }
}
