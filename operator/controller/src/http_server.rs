//! An HTTP/1.1 server for an address that any client may reach, with or without TLS. The number of
//! connections is limited, in total and for each client address, and so is their lifetime.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::quota::Addresses;
use crate::xds::tls::Trust;

/// The largest request head, and the largest amount of buffered response data, in bytes.
const MAX_BUFFER: usize = 16 << 10;

/// Limits on a server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// The largest number of open connections. Further connections are closed at once.
    pub connections: usize,
    /// The largest number of open connections from one address.
    pub connections_per_address: usize,
    /// The time within which a request's head must arrive.
    pub head: Duration,
    /// The longest lifetime of a connection. The limit also ends connections of clients that don't
    /// read.
    pub connection: Duration,
    /// Whether a connection may carry more than one request.
    pub keep_alive: bool,
}

/// Serves `app` until `shutdown` holds `true`, over TLS with the certificate of `trust`, if given.
/// Connections still open then end with the process. Requests have the client's
/// [`IpAddr`](std::net::IpAddr) as an extension. `name` is the server's name in log lines.
/// `turned_away` is called for each connection beyond the limits.
pub(crate) async fn serve(
    mut listener: TcpListener,
    name: &'static str,
    limits: HttpLimits,
    trust: Option<watch::Receiver<Arc<Trust>>>,
    app: Router,
    turned_away: impl Fn(),
    mut shutdown: watch::Receiver<bool>,
) {
    let connections = Addresses::new(limits.connections, limits.connections_per_address);
    loop {
        let (stream, peer) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            _ = shutdown.wait_for(|stop| *stop) => return,
        };
        let Ok(slot) = connections.enter(peer.ip()) else {
            turned_away();
            debug!(%peer, "a connection to the {name} address was turned away at a limit");
            continue;
        };
        let app = app.clone().layer(Extension(peer.ip()));
        let service = TowerToHyperService::new(app);
        let tls = trust.as_ref().map(|trust| trust.borrow().http1());
        let serving = async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(limits.head)
                .keep_alive(limits.keep_alive)
                .max_buf_size(MAX_BUFFER);
            match tls {
                Some(tls) => {
                    let stream = TlsAcceptor::from(tls).accept(stream).await?;
                    http.serve_connection(TokioIo::new(stream), service).await?;
                }
                None => http.serve_connection(TokioIo::new(stream), service).await?,
            }
            anyhow::Ok(())
        };
        tokio::spawn(async move {
            match tokio::time::timeout(limits.connection, serving).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%peer, "{name} connection: {error}"),
                Err(_) => debug!(%peer, "{name} connection: closed at its longest life"),
            }
            drop(slot);
        });
    }
}
