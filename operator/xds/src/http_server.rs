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
use tracing::{debug, warn};

use crate::quota::{Addresses, Pace};
use crate::tls::Trust;

/// The largest request head, and the largest amount of buffered response data, in bytes.
const MAX_BUFFER: usize = 16 << 10;

/// Limits on a server's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    /// The largest number of connections that are served at once.
    pub connections: usize,
    /// The largest number of connections from one address that are served at once.
    pub connections_per_address: usize,
    /// The largest number of further connections, half of it from one address. They wait until they
    /// can be served. Beyond this limit, connections are closed at once.
    pub waiting: usize,
    /// The time within which a request's head must arrive.
    pub head: Duration,
    /// The longest lifetime of a connection, including the time for which it waits. The limit also
    /// ends connections of clients that don't read.
    pub connection: Duration,
    /// Whether a connection may carry more than one request.
    pub keep_alive: bool,
}

/// Serves `app` until `shutdown` holds `true`, over TLS with the certificate of `trust`, if given.
/// Connections still open then end with the process. Requests have the client's
/// [`IpAddr`](std::net::IpAddr) as an extension. `name` is the server's name in log lines.
/// `turned_away` is called for each connection beyond the limits.
pub async fn serve(
    mut listener: TcpListener,
    name: &'static str,
    limits: HttpLimits,
    trust: Option<watch::Receiver<Arc<Trust>>>,
    app: Router,
    turned_away: impl Fn(),
    mut shutdown: watch::Receiver<bool>,
) {
    let served = Addresses::new(limits.connections, limits.connections_per_address);
    let served = Arc::new(served);
    let waiting = Addresses::new(limits.waiting, limits.waiting / 2);
    let mut pace = Pace::default();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            _ = shutdown.wait_for(|stop| *stop) => return,
        };
        let client = peer.ip();
        // The inner error is the slot of a connection that waits.
        let slot = served.enter(client).map(Ok);
        let Ok(slot) = slot.or_else(|_| waiting.enter(client).map(Err)) else {
            turned_away();
            if pace.is_due() {
                warn!(
                    %peer,
                    "the {name} address closes this connection: too many in all or from this client"
                );
            }
            continue;
        };
        let served = Arc::clone(&served);
        let app = app.clone().layer(Extension(client));
        let service = TowerToHyperService::new(app);
        let tls = trust.as_ref().map(|trust| trust.borrow().http1());
        let serving = async move {
            let _slot = match slot {
                Ok(slot) => slot,
                Err(_waiting) => served.wait(client).await?,
            };
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
                Err(_) => debug!(%peer, "{name} connection: closed at its maximum age"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;

    async fn connect(from: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Returns whether the server answers a request on this connection.
    async fn is_answered(mut stream: TcpStream) -> bool {
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer.starts_with("HTTP/1.1 200")
    }

    #[tokio::test]
    async fn few_connections_of_an_address_wait_and_delay_no_other_address() {
        let limits = HttpLimits {
            connections: 2,
            connections_per_address: 1,
            waiting: 2,
            head: Duration::from_secs(600),
            connection: Duration::from_secs(600),
            keep_alive: false,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (_shutdown, stop) = watch::channel(false);
        let app = Router::new().route("/", get("ok"));
        tokio::spawn(serve(listener, "test", limits, None, app, || {}, stop));
        let silent = connect("127.0.0.2", at).await;
        let waits = connect("127.0.0.2", at).await;
        assert!(!is_answered(connect("127.0.0.2", at).await).await);
        assert!(is_answered(connect("127.0.0.3", at).await).await);
        drop(silent);
        assert!(is_answered(waits).await);
    }
}
