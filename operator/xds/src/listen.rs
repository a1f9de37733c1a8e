//! Serves HTTP/2 connections. It limits their number, runs the TLS handshakes concurrently, and
//! ends connections.
//!
//! The accept loop waits only for the next connection. Each connection has its own task, whose
//! handshake waits only for its own peer. A slow or silent peer times out.
//!
//! HTTP/2 never ends a connection that answers pings. So the task ends connections that have no
//! streams or are too old, and those whose certificate has expired or would no longer be accepted.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::Extension;
use axum::serve::Listener;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tracing::{debug, warn};

use crate::limits::Limits;
use crate::peer::Peer;
use crate::quota::{Addresses, Full, Pace, Slot};
use crate::random::random;
use crate::registry::Registry;
use crate::stream::stopped;
use crate::tls::Trust;

/// The server of one listening address.
#[derive(Clone)]
pub(crate) struct Connections {
    pub(crate) limits: Limits,
    /// The server's certificate and the client CAs. `None` without TLS.
    pub(crate) trust: Option<watch::Receiver<Arc<Trust>>>,
    pub(crate) registry: Arc<Registry>,
    /// The HTTP service. Its requests have a [`Peer`] as an extension.
    pub(crate) app: Router,
    /// Whether connections should end.
    pub(crate) shutdown: watch::Receiver<bool>,
}

impl Connections {
    /// Accepts connections until `shutdown` holds `true` or its sender is dropped. Returns once all
    /// connections have ended. Dropping the future closes open connections.
    pub(crate) async fn serve(self, mut listener: TcpListener) {
        let Limits {
            connections,
            connections_per_address,
            handshakes_per_address,
            ..
        } = self.limits;
        let all = Addresses::new(connections, connections_per_address);
        let shaking = Addresses::new(connections, handshakes_per_address);
        let mut pace = Pace::default();
        let mut shutdown = self.shutdown.clone();
        let mut open = JoinSet::new();
        loop {
            let (stream, address) = tokio::select! {
                accepted = Listener::accept(&mut listener) => accepted,
                Some(_) = open.join_next() => continue,
                () = stopped(&mut shutdown) => break,
            };
            // An IPv4 client has an IPv6 address on a dual-stack socket.
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            let slots = all.enter(address.ip()).and_then(|slot| {
                let shaking = self.trust.as_ref().map(|_| shaking.enter(address.ip()));
                Ok((slot, shaking.transpose()?))
            });
            match slots {
                Ok((slot, shaking)) => {
                    let age = jittered(self.limits.max_age, random());
                    let serving = self.clone().connection(stream, address, age, shaking);
                    open.spawn(async move {
                        serving.await;
                        drop(slot);
                    });
                }
                Err(full) => self.refuse(address, full, &mut pace),
            }
        }
        drop(listener);
        while open.join_next().await.is_some() {}
    }

    /// Serves a connection until it ends or must be closed. Over TLS, runs the handshake first.
    async fn connection(
        mut self,
        stream: TcpStream,
        address: SocketAddr,
        max_age: Duration,
        shaking: Option<Slot>,
    ) {
        // This fails only if the peer has disconnected.
        let _ = stream.set_nodelay(true);
        let (io, chain) = match &self.trust {
            None => (Either::Left(stream), None),
            Some(trust) => {
                let config = Arc::clone(&trust.borrow().config);
                let handshake = TlsAcceptor::from(config).accept(stream);
                let shaken = tokio::select! {
                    shaken = timeout(self.limits.handshake_timeout, handshake) => shaken,
                    () = stopped(&mut self.shutdown) => return,
                };
                match shaken.unwrap_or_else(|late| Err(late.into())) {
                    Ok(stream) => {
                        let chain = certificates(&stream);
                        (Either::Right(Box::new(stream)), Some(chain))
                    }
                    Err(why) => {
                        self.registry.metrics.handshakes_failed.inc();
                        debug!(peer = %address, "TLS handshake failed: {why}");
                        return;
                    }
                }
            }
        };
        drop(shaking);
        let peer = Peer::new(address, chain.as_deref());
        let idle = idle(peer.streams.subscribe(), self.limits.idle);
        let old = tokio::time::sleep(max_age);
        let distrust = async {
            match (self.trust, chain.filter(|chain| !chain.is_empty())) {
                (Some(trust), Some(chain)) => distrust(trust, chain).await,
                _ => std::future::pending().await,
            }
        };
        let has_to_end = async {
            tokio::select! {
                why = idle => why,
                () = old => "it has reached its maximum age; the proxy reconnects, perhaps to \
                             another replica",
                why = distrust => why,
            }
        };
        let app = TowerToHyperService::new(self.app.layer(Extension(peer)));
        let serving = self.limits.http2().serve_connection(TokioIo::new(io), app);
        let (mut serving, mut has_to_end) = (pin!(serving), pin!(has_to_end));
        let mut is_ending = false;
        loop {
            tokio::select! {
                _ = serving.as_mut() => return,
                why = has_to_end.as_mut() => {
                    debug!(peer = %address, "closing a connection: {why}");
                    return;
                }
                () = stopped(&mut self.shutdown), if !is_ending => {
                    is_ending = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }

    /// Counts and logs a rejected connection, which the caller drops.
    fn refuse(&self, address: SocketAddr, full: Full, pace: &mut Pace) {
        self.registry.metrics.connections_refused.inc();
        if !pace.is_due() {
            return;
        }
        match full {
            Full::All => warn!(
                peer = %address,
                "connections are refused: {} are open; run more replicas",
                self.limits.connections
            ),
            Full::Each => warn!(
                peer = %address,
                "connections of this address are refused: it has {} open or {} in their TLS \
                 handshake",
                self.limits.connections_per_address, self.limits.handshakes_per_address
            ),
        }
    }
}

fn certificates(stream: &TlsStream<TcpStream>) -> Vec<CertificateDer<'static>> {
    let (_, session) = stream.get_ref();
    session.peer_certificates().unwrap_or_default().to_vec()
}

/// Waits until the connection has had no stream for `limit`. Returns the reason to close it.
async fn idle(mut streams: watch::Receiver<usize>, limit: Duration) -> &'static str {
    loop {
        let limit = match *streams.borrow_and_update() {
            0 => limit,
            _ => Duration::MAX,
        };
        // The sender lives as long as the connection.
        if tokio::time::timeout(limit, streams.changed())
            .await
            .is_err()
        {
            return "it has no stream";
        }
    }
}

/// Waits until a client with `chain` would no longer be accepted. Returns the reason to close the
/// connection.
async fn distrust(
    mut trust: watch::Receiver<Arc<Trust>>,
    chain: Vec<CertificateDer<'static>>,
) -> &'static str {
    /// The interval at which a certificate's expiry is checked.
    const RECHECK: Duration = Duration::from_secs(60);
    let mut tick = interval_at(tokio::time::Instant::now() + RECHECK, RECHECK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let current = Arc::clone(&trust.borrow_and_update());
        if !current.admits(&chain, SystemTime::now()) {
            return "its certificate has expired, or isn't signed by a current CA";
        }
        tokio::select! {
            changed = trust.changed() => if changed.is_err() {
                // The server is stopping.
                std::future::pending::<()>().await;
            },
            _ = tick.tick() => {}
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
