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
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::Connected;
use tracing::debug;

use super::addresses::Slot;
use super::peer::{Peer, Spiffe};
use super::tls::Trust;
use crate::kubernetes::tokens::AUDIENCE;

type Io = Either<TcpStream, Box<TlsStream<TcpStream>>>;
type Watch = Pin<Box<dyn Future<Output = &'static str> + Send>>;

pub(super) struct Socket {
    io: Io,
    peer: Peer,
    watch: Option<Watch>,
    _slot: Slot<IpAddr>,
}

impl Socket {
    /// Returns a connection, after its handshake under `trust` if it is over TLS. It ends at
    /// `max_age`, or after the time `idle_limit` without a stream.
    pub(super) fn new(
        io: Io,
        address: SocketAddr,
        trust: Option<watch::Receiver<Arc<Trust>>>,
        idle_limit: Duration,
        max_age: Duration,
        slot: Slot<IpAddr>,
    ) -> Self {
        let chain: Vec<CertificateDer<'static>> = match &io {
            Either::Left(_) => Vec::new(),
            Either::Right(tls) => {
                let (_, session) = tls.get_ref();
                session.peer_certificates().unwrap_or_default().to_vec()
            }
        };
        let proven = trust.is_some().then(|| match chain.first() {
            Some(own) => Spiffe::of_certificate(own),
            None => Err(format!(
                "the client shows neither a token for audience {AUDIENCE:?} nor a certificate"
            )),
        });
        let peer = Peer {
            address,
            proven: proven.map(Arc::new),
            streams: Arc::default(),
            connection: Arc::default(),
        };
        let idle = idle(peer.streams.subscribe(), idle_limit);
        let old = tokio::time::sleep(max_age);
        let distrust = async move {
            match trust.filter(|_| !chain.is_empty()) {
                Some(trust) => distrust(trust, chain).await,
                None => std::future::pending().await,
            }
        };
        Self {
            io,
            peer,
            watch: Some(Box::pin(async move {
                tokio::select! {
                    why = idle => why,
                    () = old => "it is old; the proxy comes back, perhaps to another replica",
                    why = distrust => why,
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

/// Ends when there has been no stream for `limit`.
async fn idle(mut streams: watch::Receiver<usize>, limit: Duration) -> &'static str {
    loop {
        let limit = match *streams.borrow_and_update() {
            0 => limit,
            _ => Duration::MAX,
        };
        // The sender lives as long as the socket.
        if tokio::time::timeout(limit, streams.changed())
            .await
            .is_err()
        {
            return "it has no stream";
        }
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
