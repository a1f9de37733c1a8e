//! Accepts connections: limits their number, and runs the TLS handshakes concurrently.
//!
//! Accepting waits for nothing but the next connection. A handshake is a task of its own, and waits
//! for its peer only: a slow or silent peer runs into a timeout.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::serve::Listener;
use futures::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::either::Either;
use tracing::{debug, warn};

use super::addresses::{Addresses, Full, Slot};
use super::limits::Limits;
use super::registry::Registry;
use super::socket::Socket;
use super::tls::Trust;

/// The number of ready connections that the HTTP/2 server hasn't taken yet.
const READY: usize = 64;
/// The shortest interval between two log lines about rejected connections.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// Returns the connections of `listener`, after their handshake if there is `trust`. Accepting ends
/// when the stream is dropped.
pub(super) fn incoming(
    listener: TcpListener,
    limits: Limits,
    trust: Option<watch::Receiver<Arc<Trust>>>,
    registry: Arc<Registry>,
) -> impl Stream<Item = io::Result<Socket>> {
    let (ready, sockets) = mpsc::channel(READY);
    let acceptor = Acceptor {
        connections: Addresses::new(limits.connections, limits.connections_per_address),
        shaking: Addresses::new(limits.connections, limits.handshakes_per_address),
        random: RandomState::new(),
        limits,
        trust,
        registry,
        ready,
        said: None,
    };
    tokio::spawn(acceptor.run(listener));
    ReceiverStream::new(sockets)
}

struct Acceptor {
    connections: Arc<Addresses>,
    /// Connections in their handshake.
    shaking: Arc<Addresses>,
    random: RandomState,
    limits: Limits,
    trust: Option<watch::Receiver<Arc<Trust>>>,
    registry: Arc<Registry>,
    ready: mpsc::Sender<io::Result<Socket>>,
    said: Option<Instant>,
}

impl Acceptor {
    async fn run(mut self, mut listener: TcpListener) {
        loop {
            let (stream, address) = tokio::select! {
                accepted = Listener::accept(&mut listener) => accepted,
                () = self.ready.closed() => return,
            };
            // An IPv4 client has an IPv6 address on a dual-stack socket.
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            match self.slots(address.ip()) {
                Ok((slot, shaking)) => self.begin(stream, address, slot, shaking),
                Err(full) => self.turn_away(address, full),
            }
        }
    }

    /// Returns the slots of a connection and of its handshake.
    fn slots(&self, address: IpAddr) -> Result<(Slot<IpAddr>, Option<Slot<IpAddr>>), Full> {
        let slot = self.connections.enter(address)?;
        let shaking = self.trust.as_ref().map(|_| self.shaking.enter(address));
        Ok((slot, shaking.transpose()?))
    }

    fn begin(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        slot: Slot<IpAddr>,
        shaking: Option<Slot<IpAddr>>,
    ) {
        // This fails only if the peer has gone already.
        let _ = stream.set_nodelay(true);
        let limits = self.limits;
        let max_age = jittered(limits.max_age, self.random.hash_one(address));
        let (trust, ready) = (self.trust.clone(), self.ready.clone());
        let registry = Arc::clone(&self.registry);
        tokio::spawn(async move {
            let io = match &trust {
                None => Either::Left(stream),
                Some(trust) => {
                    let config = Arc::clone(&trust.borrow().config);
                    let handshake = TlsAcceptor::from(config).accept(stream);
                    let shaken = timeout(limits.handshake_timeout, handshake).await;
                    match shaken.unwrap_or_else(|late| Err(late.into())) {
                        Ok(stream) => Either::Right(Box::new(stream)),
                        Err(why) => {
                            registry.metrics.xds.handshakes_failed.inc();
                            debug!(peer = %address, "TLS handshake failed: {why}");
                            return;
                        }
                    }
                }
            };
            drop(shaking);
            let socket = Socket::new(io, address, trust, limits.idle, max_age, slot);
            // The receiver is dropped when the server stops.
            let _ = ready.send(Ok(socket)).await;
        });
    }

    /// Closes a connection by dropping it. Log lines are limited, so that a flood is one line at a
    /// time.
    fn turn_away(&mut self, address: SocketAddr, full: Full) {
        self.registry.metrics.xds.connections_refused.inc();
        let now = Instant::now();
        if self
            .said
            .is_some_and(|at| now.duration_since(at) < SAY_AGAIN)
        {
            return;
        }
        self.said = Some(now);
        match full {
            Full::All => warn!(
                peer = %address,
                "connections are turned away: {} are open; run more replicas",
                self.limits.connections
            ),
            Full::Each => warn!(
                peer = %address,
                "connections of this address are turned away: it has {} open or {} in their TLS \
                 handshake",
                self.limits.connections_per_address, self.limits.handshakes_per_address
            ),
        }
    }
}

/// Returns `age` shortened by up to a quarter, depending on `random`.
fn jittered(age: Duration, random: u64) -> Duration {
    let share = f64::from(u32::try_from(random >> 32).unwrap_or_default()) / f64::from(u32::MAX);
    age.mul_f64(1.0 - share / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_up_to_a_quarter() {
        let age = Duration::from_secs(100);
        assert_eq!(jittered(age, 0), age);
        assert_eq!(jittered(age, u64::MAX), Duration::from_secs(75));
    }
}
