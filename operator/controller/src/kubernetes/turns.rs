//! Limits the number of token reviews in flight at the API server.
//!
//! A review may hang, for example if the API server delegates it to a webhook that doesn't answer.
//! So each client address has few turns, and each namespace that tokens claim has a share of all
//! turns. Then the tokens of one namespace or one client can't block the others. The claim isn't
//! verified, but a client with a false claim can't take more than the turns of its address.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::review::claimed_namespace;
use crate::in_use::InUse;

/// The largest number of reviews in flight. Further reviews wait.
const MAX: usize = 32;
/// The largest number of reviews in flight whose tokens claim the same namespace, or none.
const OF_NAMESPACE: usize = MAX / 4;
/// The largest number of reviews in flight of one client address.
const OF_ADDRESS: usize = 2;

/// The turns of all clients.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    addresses: InUse<IpAddr, Semaphore>,
    namespaces: InUse<String, Semaphore>,
}

/// A turn for one review. Dropping it ends the turn.
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
    /// Waits for a turn to review `token` of the client at `address`. Never returns `None`, which
    /// would mean that a semaphore is closed.
    pub(super) async fn take(&self, address: IpAddr, token: &str) -> Option<Turn> {
        let of = |most| move || Semaphore::new(most);
        let address = self.addresses.get(address.to_canonical(), of(OF_ADDRESS));
        let namespace = claimed_namespace(token).unwrap_or_default();
        let namespace = self.namespaces.get(namespace, of(OF_NAMESPACE));
        // The narrowest share is taken first, so that a waiting client holds no turn that others
        // could use.
        let _permits = [
            address.acquire_owned().await.ok()?,
            namespace.acquire_owned().await.ok()?,
            Arc::clone(&self.all).acquire_owned().await.ok()?,
        ];
        Some(Turn { _permits })
    }
}
