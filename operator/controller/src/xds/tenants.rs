//! The tenants of a port, each with a share of its connections and of its streams or their bytes,
//! so that one can't take all of them.
//!
//! A connection is counted for its tenant from the first stream that proves the tenant. Before, it
//! counts for its address only.

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
    /// The unit of `streams`.
    unit: &'static str,
}

impl Tenants {
    /// Returns the shares of `limits`, with at most `streams` of `unit` in total and for each
    /// tenant.
    pub(super) fn new(
        tokens: Option<ProxyTokens>,
        limits: &Limits,
        unit: &'static str,
        (streams, streams_each): (usize, usize),
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens,
            connections: Quota::new(limits.connections, limits.connections_per_namespace),
            streams: Quota::new(streams, streams_each),
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
        let unproven = take(&self.streams, self.unit, Tenant::of(&peer), amount)?;
        let token = authorization.as_deref().and_then(bearer);
        let peer = peer.with_token(token, self.tokens.as_ref()).await?;
        drop(unproven);
        let tenant = Tenant::of(&peer);
        let is_proven = !matches!(peer.proven.as_deref(), Some(Err(_)));
        if is_proven && peer.connection.get().is_none() {
            let slot = take(&self.connections, "connections", tenant.clone(), 1)?;
            // Another stream of this connection may have counted it meanwhile.
            let _ = peer.connection.set(slot);
        }
        let slot = take(&self.streams, self.unit, tenant, amount)?;
        Ok((peer, slot))
    }
}

fn take(
    quota: &Arc<Quota<Tenant>>,
    what: &'static str,
    tenant: Tenant,
    amount: usize,
) -> Result<Slot<Tenant>, Refused> {
    quota.take(tenant, amount).map_err(|full| {
        let (most, of) = match full {
            Full::All => (quota.max, ""),
            Full::Each => (quota.max_each, " of this namespace"),
        };
        Refused::Full { most, what, of }
    })
}
