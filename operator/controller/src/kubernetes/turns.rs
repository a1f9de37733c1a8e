//! Turns at the API server's reviews of tokens, which bound the reviews in flight.
//!
//! A review may hang, such as one that the API server leaves to a webhook without an answer. So
//! each client address has few turns, and each namespace that tokens claim has a share of all
//! turns. The tokens of one namespace or one client then can't block the others. The claim isn't
//! verified; a client that lies about it takes no more than the turns of its address.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::review::claimed_namespace;
use crate::in_use::InUse;

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
        // The narrowest share first, so that a waiting client holds no turn that others could use.
        let _permits = [
            address.acquire_owned().await.ok()?,
            namespace.acquire_owned().await.ok()?,
            Arc::clone(&self.all).acquire_owned().await.ok()?,
        ];
        Some(Turn { _permits })
    }
}
