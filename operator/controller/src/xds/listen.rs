//! Accepts connections: limits their number, and runs the TLS handshakes concurrently.
//!
//! Accepting waits for nothing but the next connection. A handshake is a task of its own, and waits
//! for its peer only: a slow or silent peer runs into a timeout.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, warn};

use super::addresses::{Addresses, Full};
use super::limits::Limits;
use super::registry::Registry;
use super::socket::{Lifetime, Socket};
use super::tls::Trust;

/// The number of ready connections that the HTTP/2 server hasn't taken yet.
const READY: usize = 64;
/// The pause after a failed `accept`, which means that the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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
        accepted: 0,
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
    accepted: u64,
    said: Option<Instant>,
}

impl Acceptor {
    async fn run(mut self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.ready.closed() => return,
            };
            match accepted {
                Ok((stream, address)) => {
                    // An IPv4 client has an IPv6 address on a dual-stack socket.
                    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                    self.begin(stream, address);
                }
                Err(error) => {
                    warn!("xDS address: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, address: SocketAddr) {
        let slots = self.connections.enter(address.ip()).and_then(|slot| {
            let shaking = match self.trust {
                Some(_) => Some(self.shaking.enter(address.ip())?),
                None => None,
            };
            Ok((slot, shaking))
        });
        let (slot, shaking) = match slots {
            Ok(slots) => slots,
            Err(full) => return self.turn_away(address, full),
        };
        // This fails only if the peer has gone already.
        let _ = stream.set_nodelay(true);
        self.accepted += 1;
        let lifetime = Lifetime {
            idle: self.limits.idle,
            max_age: jittered(self.limits.max_age, self.random.hash_one(self.accepted)),
        };
        let ready = self.ready.clone();
        let Some(trust) = self.trust.clone() else {
            let socket = Socket::plain(stream, address, lifetime, slot);
            tokio::spawn(async move {
                // The receiver is dropped when the server stops.
                let _ = ready.send(Ok(socket)).await;
            });
            return;
        };
        let registry = Arc::clone(&self.registry);
        let timeout = self.limits.handshake_timeout;
        tokio::spawn(async move {
            let config = Arc::clone(&trust.borrow().config);
            let handshake = TlsAcceptor::from(config).accept(stream);
            match tokio::time::timeout(timeout, handshake).await {
                Ok(Ok(stream)) => {
                    drop(shaking);
                    let socket = Socket::tls(stream, address, lifetime, trust, slot);
                    let _ = ready.send(Ok(socket)).await;
                }
                failed => {
                    registry.metrics.xds.handshakes_failed.inc();
                    let why = failed.map_or_else(
                        |_| "it took too long".to_owned(),
                        |r| r.err().map(|e| e.to_string()).unwrap_or_default(),
                    );
                    debug!(peer = %address, "TLS handshake failed: {why}");
                }
            }
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
