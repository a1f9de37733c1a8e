//! Limits that bound the server's memory and work against any behaviour of its peers.
//!
//! Unverified peers cause the highest cost, so handshakes have their own limit for each address. A
//! flood from a few addresses leaves room for others, and doesn't affect open streams. A client
//! with many addresses, such as a machine with an IPv6 /64 of its own, can take all connections.
//! Only a NetworkPolicy or a firewall prevents that. Handshakes don't wait for each other. Each
//! handshake costs one signature, made after the peer's hello.

use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// The largest number of concurrent HTTP/2 streams on one connection.
const STREAMS_PER_CONNECTION: u32 = 128;
/// The idle time after which the server sends a keepalive ping.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// The time within which a ping must be answered before the connection is closed.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of the xDS server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of open connections. Further connections are closed immediately.
    pub connections: usize,
    /// The largest number of connections from one address. A node that masquerades the addresses of
    /// its Pods has up to 250 proxies at one address.
    pub connections_per_address: usize,
    /// The largest number of connections of proxies that have proven the same namespace.
    pub connections_per_namespace: usize,
    /// The largest number of concurrent TLS handshakes of one address. Further connections are
    /// closed immediately.
    pub handshakes_per_address: usize,
    /// The timeout of a TLS handshake.
    pub handshake_timeout: Duration,
    /// The time without a stream after which a connection is closed.
    pub idle: Duration,
    /// The age at which a connection is closed, shortened by a random part of up to a quarter. So
    /// proxies spread over new replicas and present new certificates, but not all at once.
    pub max_age: Duration,
    /// The largest number of open streams.
    pub streams: usize,
    /// The largest number of streams of proxies that have proven the same namespace. Without TLS,
    /// the largest number of streams of proxies from one address.
    pub streams_per_namespace: usize,
    /// The largest total size of the responses that proxies haven't answered, in bytes. The server
    /// keeps a response in memory while its proxy doesn't read.
    pub response_bytes: usize,
    /// The largest total size of unanswered responses to proxies that have proven the same
    /// namespace, in bytes. Without TLS, this limit is for the proxies of one address. A larger
    /// response is sent if it is the only one.
    pub response_bytes_per_namespace: usize,
    /// The largest total size of the class admission reports in progress, in bytes.
    pub report_bytes: usize,
    /// The largest total size of the class admission reports of one namespace in progress, in
    /// bytes.
    pub report_bytes_per_namespace: usize,
    /// The largest number of records in the registry, of connected and disconnected proxies. It is
    /// larger than `streams`.
    pub proxies: usize,
    /// The time for which a disconnected proxy stays in the registry.
    pub keep: Duration,
    /// The time within which a stream's first request must arrive.
    pub first_message: Duration,
    /// The largest request, in bytes. A node lists every extension of its Envoy, about 100 KB.
    pub request_bytes: usize,
    /// The largest set of headers of a stream, in bytes.
    pub header_bytes: u32,
    /// The shortest time between reads of two requests of a stream. Flow control delays a client
    /// that sends requests faster, at no cost to other streams. No request of a busy proxy is lost.
    pub request_interval: Duration,
}

impl Limits {
    /// Returns an HTTP/2 server whose connections have these limits.
    pub(crate) fn http2(&self) -> http2::Builder<TokioExecutor> {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .max_header_list_size(self.header_bytes)
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        http
    }

    /// Returns the largest number of streams in total, of one namespace, and of one address without
    /// a proven namespace. The last number is two for each connection of an address.
    pub(crate) fn of_streams(&self) -> (usize, usize, usize) {
        let unproven = self.connections_per_address.saturating_mul(2);
        (self.streams, self.streams_per_namespace, unproven)
    }

    /// Returns the limits of a server for this number of connections. Limits that depend on the
    /// number of proxies are proportional to it.
    pub fn of_connections(connections: u32) -> Self {
        let default = Self::default();
        let connections = usize::try_from(connections).unwrap_or(usize::MAX);
        let scaled = |most: usize| {
            most.saturating_mul(connections)
                .div_ceil(default.connections)
        };
        let of_namespace = scaled(default.connections_per_namespace);
        Self {
            connections,
            connections_per_namespace: of_namespace,
            streams: scaled(default.streams),
            // A sidecar has a stream for requests and a stream for calls.
            streams_per_namespace: of_namespace.saturating_mul(2),
            // Few proxies may have large configurations.
            response_bytes: scaled(default.response_bytes).max(default.response_bytes),
            response_bytes_per_namespace: scaled(default.response_bytes_per_namespace)
                .max(default.response_bytes_per_namespace),
            proxies: scaled(default.proxies),
            ..default
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            connections_per_address: 256,
            connections_per_namespace: 2_048,
            handshakes_per_address: 32,
            handshake_timeout: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            max_age: Duration::from_secs(3_600),
            streams: 8_192,
            streams_per_namespace: 4_096,
            response_bytes: 256 << 20,
            response_bytes_per_namespace: 128 << 20,
            report_bytes: 64 << 20,
            report_bytes_per_namespace: 32 << 20,
            proxies: 10_000,
            keep: Duration::from_secs(15 * 60),
            first_message: Duration::from_secs(10),
            request_bytes: 512 << 10,
            header_bytes: 16 << 10,
            request_interval: Duration::from_millis(50),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_proxies_grow_with_the_connections() {
        let default = Limits::default();
        let of = Limits::of_connections;
        assert_eq!(of(4_096), default);
        let twice = of(8_192);
        assert_eq!(twice.connections_per_namespace, 4_096);
        assert_eq!((twice.streams, twice.proxies), (16_384, 20_000));
        assert_eq!(
            twice.connections_per_address,
            default.connections_per_address
        );
        for limits in [1, 5, 4_097].map(of) {
            let connections = limits.connections_per_namespace;
            assert!(connections > 0 && limits.streams_per_namespace >= 2 * connections);
            assert!(limits.proxies > limits.streams);
        }
    }
}
