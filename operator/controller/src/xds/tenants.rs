//! The tenants of a port, each with a share of its connections and of its streams or their bytes,
//! so that one can't take all of them.
//!
//! A connection is counted for its tenant from the first stream that proves the tenant. Before, it
//! counts for its address only. Over TLS, a stream without a proven namespace waits for the review
//! of its token, or is refused after its first message. Such streams have a share of their own:
//! everybody who reaches the port can open them.

use std::net::IpAddr;
use std::sync::Arc;

use super::addresses::{Full, Quota, Slot, group};
use super::limits::Limits;
use super::peer::Peer;
use crate::kubernetes::review::bearer;
use crate::kubernetes::tokens::{ProxyTokens, Refusal};

/// The namespace of a certificate or token, or the address of a peer without either.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Tenant {
    Namespace(String),
    Address(IpAddr),
}

impl Tenant {
    fn of(peer: &Peer) -> Self {
        match peer.proven.as_deref() {
            Some(Ok(spiffe)) => Self::Namespace(spiffe.namespace.clone()),
            _ => Self::Address(group(peer.address.ip())),
        }
    }
}

/// The reason why a stream is refused, one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error(transparent)]
    Token(#[from] Refusal),
    #[error("{most} {what}{of} are open")]
    Full {
        most: usize,
        what: &'static str,
        of: &'static str,
    },
}

/// The shares of the tenants of one port.
#[derive(Debug)]
pub(super) struct Tenants {
    tokens: Option<ProxyTokens>,
    connections: Arc<Quota<Tenant>>,
    streams: Arc<Quota<Tenant>>,
    /// Streams without a proven namespace.
    unproven: Arc<Quota<Tenant>>,
    /// The unit of `streams` and `unproven`.
    unit: &'static str,
}

impl Tenants {
    /// Returns the shares of `limits`, with at most `streams` of `unit` in total, for each tenant,
    /// and for each address without a proven namespace. All addresses without one have half of the
    /// total.
    pub(super) fn new(
        tokens: Option<ProxyTokens>,
        limits: &Limits,
        unit: &'static str,
        (streams, streams_each, unproven_each): (usize, usize, usize),
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens,
            connections: Quota::new(limits.connections, limits.connections_per_namespace),
            streams: Quota::new(streams, streams_each),
            unproven: Quota::new(streams.div_ceil(2), unproven_each),
            unit,
        })
    }

    /// Returns the peer with the identity that the token in `authorization` proves, and the slot of
    /// one stream of `amount` units.
    pub(super) async fn admit(
        &self,
        peer: Peer,
        authorization: Option<String>,
        amount: usize,
    ) -> Result<(Peer, Slot<Tenant>), Refused> {
        // The stream is counted while the API server reviews the token.
        let before = self.stream(&peer, amount)?;
        let token = authorization.as_deref().and_then(bearer);
        let peer = peer.with_token(token, self.tokens.as_ref()).await?;
        drop(before);
        if !is_unproven(&peer) && peer.connection.get().is_none() {
            let slot = take(&self.connections, "connections", Tenant::of(&peer), 1)?;
            // Another stream of this connection may have counted it meanwhile.
            let _ = peer.connection.set(slot);
        }
        let slot = self.stream(&peer, amount)?;
        Ok((peer, slot))
    }

    fn stream(&self, peer: &Peer, amount: usize) -> Result<Slot<Tenant>, Refused> {
        let quota = match is_unproven(peer) {
            true => &self.unproven,
            false => &self.streams,
        };
        take(quota, self.unit, Tenant::of(peer), amount)
    }
}

/// Whether a peer over TLS has proven no namespace.
fn is_unproven(peer: &Peer) -> bool {
    matches!(peer.proven.as_deref(), Some(Err(_)))
}

fn take(
    quota: &Arc<Quota<Tenant>>,
    what: &'static str,
    tenant: Tenant,
    amount: usize,
) -> Result<Slot<Tenant>, Refused> {
    let of_each = match tenant {
        Tenant::Namespace(_) => " of this namespace",
        Tenant::Address(_) => " of this address",
    };
    quota.take(tenant, amount).map_err(|full| {
        let (most, of) = match full {
            Full::All => (quota.max, ""),
            Full::Each => (quota.max_each, of_each),
        };
        Refused::Full { most, what, of }
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::peer::Spiffe;
    use super::*;

    /// Streams that wait for the review of a token, true or not, or send nothing.
    #[tokio::test]
    async fn clients_without_an_identity_leave_room_for_all_namespaces() {
        let limits = Limits::default();
        let each = limits.streams_per_namespace;
        let tenants = Tenants::new(None, &limits, "streams", limits.of_streams());
        let mut held = Vec::new();
        for client in 1..=40 {
            let address = SocketAddr::from(([10, 0, 0, client], 1));
            let peer = Peer::new(address, Some(&[]));
            let before = held.len();
            while let Ok((_, slot)) = tenants.admit(peer.clone(), None, 1).await {
                held.push(slot);
            }
            assert!(held.len() - before <= 2 * limits.connections_per_address);
        }
        assert_eq!(held.len(), limits.streams / 2);
        for namespace in ["a", "b"] {
            let mut peer = Peer::new(SocketAddr::from(([10, 0, 1, 1], 1)), None);
            peer.proven = Some(Arc::new(Ok(Spiffe {
                id: format!("spiffe://cluster.local/ns/{namespace}/sa/x"),
                namespace: namespace.to_owned(),
                expires: None,
            })));
            for open in 0..each {
                let admitted = tenants.admit(peer.clone(), None, 1).await;
                held.push(
                    admitted
                        .unwrap_or_else(|e| panic!("{namespace} {open}: {e}"))
                        .1,
                );
            }
        }
    }
}
