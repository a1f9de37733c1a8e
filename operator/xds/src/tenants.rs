//! Limits for each tenant of a port, so that one tenant can't take all connections or all streams
//! or their bytes.
//!
//! A connection counts for its tenant from the first stream that proves the tenant. Before that, it
//! counts only for its address. Over TLS, a stream without a proven namespace takes a slot of a
//! separate quota while its token is reviewed, because any client that reaches the port can open
//! such streams. The separate quota has the same total as the quota of reviewed streams, because
//! all proxies of a restarted operator reconnect at once. A stream that proves no namespace is
//! refused before any message is read.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::limits::Limits;
use crate::peer::Peer;
use crate::quota::{Full, Quota, Slot};
use crate::review::bearer;
use crate::review::tokens::{ProxyTokens, Refusal};

/// A tenant, which is the namespace that a certificate or token proves or, without a proven
/// namespace, the peer's address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Tenant {
    Namespace(String),
    Address(IpAddr),
}

impl Tenant {
    pub(crate) fn of(peer: &Peer) -> Self {
        match peer.proven.as_deref() {
            Some(Ok(spiffe)) => Self::Namespace(spiffe.namespace.clone()),
            _ => Self::Address(peer.address.ip()),
        }
    }
}

/// The reason why a stream is refused, in one line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(transparent)]
    Token(#[from] Refusal),
    #[error("{0}")]
    Unproven(String),
    #[error("{most} {what}{of} are open")]
    Full {
        most: usize,
        what: &'static str,
        of: &'static str,
    },
}

/// The quotas of one port.
pub(crate) struct Tenants {
    tokens: Option<ProxyTokens>,
    connections: Quota<Tenant>,
    streams: Quota<Tenant>,
    /// Streams whose token is being reviewed.
    unproven: Quota<Tenant>,
    /// The unit of `streams` and `unproven`.
    unit: &'static str,
}

impl Tenants {
    /// Returns the quotas of `limits`. The last argument is the largest number of `unit` in total,
    /// for each tenant, and for each address without a proven namespace.
    pub(crate) fn new(
        tokens: Option<ProxyTokens>,
        limits: &Limits,
        unit: &'static str,
        (streams, streams_each, unproven_each): (usize, usize, usize),
    ) -> Arc<Self> {
        Arc::new(Self {
            tokens,
            connections: Quota::new(limits.connections, limits.connections_per_namespace),
            streams: Quota::new(streams, streams_each),
            unproven: Quota::new(streams, unproven_each),
            unit,
        })
    }

    /// Returns the peer with the identity that the token in the stream's `headers` proves, and a
    /// quota slot of `amount` units for the stream.
    pub(crate) async fn admit(
        &self,
        peer: Peer,
        headers: &HeaderMap,
        amount: usize,
    ) -> Result<(Peer, Slot), Refused> {
        // The stream counts while its token is reviewed.
        let before = self.stream(&peer, amount)?;
        let token = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let token = token.and_then(bearer);
        let peer = peer.with_token(token, self.tokens.as_ref()).await?;
        drop(before);
        if let Some(Err(why)) = peer.proven.as_deref() {
            return Err(Refused::Unproven(why.clone()));
        }
        if peer.connection.get().is_none() {
            let slot = take(&self.connections, "connections", Tenant::of(&peer), 1)?;
            // Another stream of the connection may have set the slot meanwhile.
            let _ = peer.connection.set(slot);
        }
        let slot = self.stream(&peer, amount)?;
        Ok((peer, slot))
    }

    fn stream(&self, peer: &Peer, amount: usize) -> Result<Slot, Refused> {
        let quota = match peer.proven.as_deref() {
            Some(Err(_)) => &self.unproven,
            Some(Ok(_)) | None => &self.streams,
        };
        take(quota, self.unit, Tenant::of(peer), amount)
    }
}

/// Counts `amount` of `what` more for a tenant.
///
/// # Errors
/// A limit is reached.
pub(crate) fn take(
    quota: &Quota<Tenant>,
    what: &'static str,
    tenant: Tenant,
    amount: usize,
) -> Result<Slot, Refused> {
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
    use std::convert::Infallible;
    use std::net::SocketAddr;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::sync::watch;
    use tokio::task::{JoinSet, yield_now};

    use super::*;
    use crate::peer::Spiffe;
    use crate::review::tokens::AUDIENCE;

    /// Returns a reviewer for tokens `namespace/…`, whose API server answers once `open` is true.
    fn reviews(open: watch::Receiver<bool>) -> ProxyTokens {
        let answer = move |request: Request<Body>| {
            let mut open = open.clone();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                let token = review["spec"]["token"].as_str().unwrap();
                let namespace = token.split_once('/').unwrap().0;
                let user = format!("system:serviceaccount:{namespace}:web");
                review["status"] = json!({
                    "authenticated": true, "user": {"username": user}, "audiences": [AUDIENCE],
                });
                let _ = open.wait_for(|open| *open).await;
                let body = Body::from(review.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(201).body(body).unwrap())
            }
        };
        ProxyTokens::new(Client::new(tower::service_fn(answer), "default"))
    }

    /// Returns the peer with this number. Each peer has its own address, all in one network.
    fn peer(number: usize) -> Peer {
        let number = u16::try_from(number).unwrap();
        let address = [0xfd00, 0, 0, 0, 0, 0, 0, number];
        Peer::new(SocketAddr::from((address, 1)), Some(&[]))
    }

    /// Opens a stream of `peer` with `token`.
    fn open(
        streams: &mut JoinSet<Result<(Peer, Slot), Refused>>,
        tenants: &Arc<Tenants>,
        (peer, token): (Peer, &str),
    ) {
        let (tenants, header) = (Arc::clone(tenants), format!("Bearer {token}"));
        let headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
        streams.spawn(async move { tenants.admit(peer, &headers, 1).await });
    }

    /// The streams wait for the review of a token, valid or not.
    #[tokio::test]
    async fn clients_without_an_identity_leave_room_for_all_namespaces() {
        let limits = Limits::default();
        let each = limits.streams_per_namespace;
        let (_gate, is_open) = watch::channel(false);
        let tenants = Tenants::new(
            Some(reviews(is_open)),
            &limits,
            "streams",
            limits.of_streams(),
        );
        let of_address = 2 * limits.connections_per_address;
        let clients = 2 * limits.streams / of_address;
        let mut streams = JoinSet::new();
        for stream in 0..=of_address {
            let token = format!("none/0/{stream}");
            open(&mut streams, &tenants, (peer(0), &token));
        }
        let refused = streams.join_next().await.unwrap().unwrap().unwrap_err();
        let expected = format!("{of_address} streams of this address are open");
        assert_eq!(refused.to_string(), expected);
        while tenants.unproven.taken() < of_address {
            assert_eq!(streams.len(), of_address);
            yield_now().await;
        }
        for client in 1..clients {
            for stream in 0..=of_address {
                let token = format!("none/{client}/{stream}");
                open(&mut streams, &tenants, (peer(client), &token));
            }
        }
        let opened = of_address + (clients - 1) * (of_address + 1);
        for _ in 0..opened - limits.streams {
            let refused = streams.join_next().await.unwrap().unwrap();
            assert!(matches!(refused, Err(Refused::Full { .. })), "{refused:?}");
        }
        assert_eq!(tenants.unproven.taken(), limits.streams);
        let mut held = Vec::new();
        for namespace in ["a", "b"] {
            let mut peer = Peer::new(SocketAddr::from(([10, 0, 1, 1], 1)), None);
            peer.proven = Some(Arc::new(Ok(Spiffe {
                id: format!("spiffe://cluster.local/ns/{namespace}/sa/x"),
                namespace: namespace.to_owned(),
                validity: None,
            })));
            for open in 0..each {
                let admitted = tenants.admit(peer.clone(), &HeaderMap::new(), 1).await;
                held.push(
                    admitted
                        .unwrap_or_else(|e| panic!("{namespace} {open}: {e}"))
                        .1,
                );
            }
        }
    }

    /// All proxies of a restarted operator reconnect. There are as many as it accepts, each with a
    /// stream for requests and one for calls.
    #[tokio::test]
    async fn all_proxies_may_reconnect_at_once() {
        let limits = Limits::default();
        let (gate, is_open) = watch::channel(false);
        let tenants = Tenants::new(
            Some(reviews(is_open)),
            &limits,
            "streams",
            limits.of_streams(),
        );
        let mut streams = JoinSet::new();
        for proxy in 0..limits.connections {
            let peer = peer(proxy);
            let token = format!("{}/{proxy}", ["a", "b"][proxy % 2]);
            for _ in 0..2 {
                open(&mut streams, &tenants, (peer.clone(), &token));
            }
        }
        while tenants.unproven.taken() < limits.streams {
            if let Some(ended) = streams.try_join_next() {
                panic!("before its review: {:?}", ended.unwrap().map(|_| ()));
            }
            yield_now().await;
        }
        gate.send_replace(true);
        let mut held = Vec::new();
        while let Some(ended) = streams.join_next().await {
            held.push(ended.unwrap().unwrap());
        }
        assert_eq!(held.len(), limits.streams);
        assert_eq!(tenants.connections.taken(), limits.connections);
    }
}
