//! Limits the number of token reviews in flight at the API server.
//!
//! A review may hang, for example if the API server delegates it to a webhook that doesn't answer.
//! So each client address has few turns, and each namespace that tokens claim has a share of all
//! turns. Then the tokens of one namespace or one client can't block the others. The claim isn't
//! verified, but a client with a false claim can't take more than the turns of its address.

use std::net::IpAddr;

use super::claimed_namespace;
use crate::quota::{Addresses, Quota, Slot};

/// The largest number of reviews in flight. Further reviews wait.
const MAX: usize = 32;
/// The largest number of reviews in flight whose tokens claim the same namespace, or none.
const OF_NAMESPACE: usize = MAX / 4;
/// The largest number of reviews in flight of one client address.
const OF_ADDRESS: usize = 2;

/// The turns of all clients.
#[derive(Debug)]
pub(super) struct Turns {
    addresses: Addresses,
    namespaces: Quota<String>,
}

/// A turn for one review. Dropping it ends the turn.
pub(super) type Turn = [Slot; 2];

impl Default for Turns {
    fn default() -> Self {
        Self {
            // The quota of namespaces limits all turns together, so this one has no total limit.
            addresses: Quota::new(usize::MAX, OF_ADDRESS),
            namespaces: Quota::new(MAX, OF_NAMESPACE),
        }
    }
}

impl Turns {
    /// Waits for a turn to review `token` of the client at `address`. Never returns `None`, which
    /// would mean that a semaphore is closed.
    pub(super) async fn take(&self, address: IpAddr, token: &str) -> Option<Turn> {
        let namespace = claimed_namespace(token).unwrap_or_default();
        // The narrowest share is taken first, so that a waiting client holds no turn that others
        // could use.
        let address = self.addresses.wait(address).await.ok()?;
        Some([address, self.namespaces.wait_for(namespace).await.ok()?])
    }
}
