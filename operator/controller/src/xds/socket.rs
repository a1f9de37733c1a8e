//! A proxy's connection, and the reasons why the server ends it.
//!
//! HTTP/2 itself never ends a connection that answers pings. So the socket has a watch of its own,
//! which ends a connection that has no streams, one that is old, one whose certificate has expired,
//! and one whose certificate the operator would no longer accept. The socket's reads and writes
//! poll it, so it needs no task.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::Connected;
use tracing::debug;

use super::addresses::Slot;
use super::peer::{Activity, Peer, Spiffe};
use super::tls::Trust;
use crate::kubernetes::tokens::AUDIENCE;

/// The limits on a connection's lifetime.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifetime {
    /// The longest time without a stream; a connection may exceed it by up to the same time.
    pub(super) idle: Duration,
    /// The longest lifetime.
    pub(super) max_age: Duration,
}
pub(super) struct Socket {
    io: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    peer: Peer,
    watch: Option<Watch>,
    _slot: Slot<IpAddr>,
}

type Watch = Pin<Box<dyn Future<Output = &'static str> + Send>>;

impl Socket {
    /// Returns a connection without TLS.
    pub(super) fn plain(
        stream: TcpStream,
        address: SocketAddr,
        lifetime: Lifetime,
        slot: Slot<IpAddr>,
    ) -> Self {
        let activity = Arc::<Activity>::default();
        let (idle, old) = (
            idle(Arc::clone(&activity), lifetime.idle),
            tokio::time::sleep(lifetime.max_age),
        );
        Self {
            io: Either::Left(stream),
            peer: Peer {
                address,
                proven: None,
                activity,
            },
            watch: Some(Box::pin(async move {
                tokio::select! {
                    why = idle => why,
                    () = old => OLD,
                }
            })),
            _slot: slot,
        }
    }

    /// Returns a connection after its handshake, under `trust`.
    pub(super) fn tls(
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
        lifetime: Lifetime,
        trust: watch::Receiver<Arc<Trust>>,
        slot: Slot<IpAddr>,
    ) -> Self {
        let chain: Vec<CertificateDer<'static>> = stream
            .get_ref()
            .1
            .peer_certificates()
            .unwrap_or_default()
            .to_vec();
        let certificate = match chain.first() {
            Some(own) => Spiffe::of_certificate(own),
            None => Err(format!(
                "the client shows neither a token for audience {AUDIENCE:?} nor a certificate"
            )),
        };
        let activity = Arc::<Activity>::default();
        let idle = idle(Arc::clone(&activity), lifetime.idle);
        let age = Instant::now() + lifetime.max_age;
        let shows_certificate = !chain.is_empty();
        Self {
            io: Either::Right(Box::new(stream)),
            peer: Peer {
                address,
                proven: Some(Arc::new(certificate)),
                activity,
            },
            watch: Some(Box::pin(async move {
                tokio::select! {
                    why = idle => why,
                    () = sleep_until(age) => OLD,
                    why = distrust(trust, chain), if shows_certificate => why,
                }
            })),
            _slot: slot,
        }
    }

    /// Returns an error once the connection must end.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(watch) = &mut self.watch
            && let Poll::Ready(why) = watch.as_mut().poll(cx)
        {
            self.watch = None;
            debug!(peer = %self.peer.address, "closing a connection: {why}");
        }
        match self.watch {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

const OLD: &str = "it is old; the proxy comes back, perhaps to another replica";

/// Ends when there has been no stream for `limit` (up to twice that).
async fn idle(activity: Arc<Activity>, limit: Duration) -> &'static str {
    let mut tick = interval_at(Instant::now() + limit, limit);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = 0;
    loop {
        tick.tick().await;
        let (open, opened) = activity.counts();
        if open == 0 && opened == seen {
            return "it has no stream";
        }
        seen = opened;
    }
}

/// Ends when a client with `chain` would no longer be accepted.
async fn distrust(
    mut trust: watch::Receiver<Arc<Trust>>,
    chain: Vec<CertificateDer<'static>>,
) -> &'static str {
    /// The interval at which a certificate's expiry is checked.
    const RECHECK: Duration = Duration::from_secs(60);
    let mut tick = interval_at(Instant::now() + RECHECK, RECHECK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let current = Arc::clone(&trust.borrow_and_update());
        if !current.admits(&chain, SystemTime::now()) {
            return "its certificate has expired, or none of the CAs signed it any more";
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

impl Connected for Socket {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
