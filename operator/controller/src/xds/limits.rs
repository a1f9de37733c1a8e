//! Limits that bound the server's memory and work, whatever its peers do.
//!
//! A peer without a verified certificate costs the most, so handshakes have their own limit for
//! each address: a flood from some addresses leaves room for the others, and doesn't affect open
//! streams. No handshake waits for another: its cost is a signature, made after the peer's hello.

use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Limits of the xDS server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The number of connections open at once; further ones are closed at once.
    pub connections: usize,
    /// The number of connections from one address (of IPv6: one /64). A node that hides its Pods
    /// behind its own address has up to 250.
    pub connections_per_address: usize,
    /// The number of connections whose proxies have proven one namespace.
    pub connections_per_namespace: usize,
    /// The number of TLS handshakes of one address at once; further ones are closed at once.
    pub handshakes_per_address: usize,
    /// The timeout of a TLS handshake.
    pub handshake_timeout: Duration,
    /// The time without a stream after which a connection is closed.
    pub idle: Duration,
    /// The age at which a connection is closed, shortened by a random part of up to a quarter. So
    /// proxies spread over new replicas and present new certificates, but not all at once.
    pub max_age: Duration,
    /// The number of streams open at once.
    pub streams: usize,
    /// The number of streams of proxies whose certificates are for one namespace, or of proxies
    /// without certificates from one address.
    pub streams_per_namespace: usize,
    /// The size of the reports for class admission that are being received, in bytes.
    pub report_bytes: usize,
    /// The size of these of one namespace.
    pub report_bytes_per_namespace: usize,
    /// The number of proxies in the registry, connected or not.
    pub proxies: usize,
    /// The time for which a disconnected proxy stays in the registry.
    pub keep: Duration,
    /// The time within which a stream's first request must arrive.
    pub first_message: Duration,
    /// The largest request, in bytes. A node lists every extension of its Envoy, some 100 KB.
    pub request_bytes: usize,
    /// The largest set of headers of a stream, in bytes.
    pub header_bytes: u32,
    /// The number of HTTP/2 streams on one connection.
    pub streams_per_connection: u32,
    /// The shortest time between two requests of one stream that are read. Flow control makes the
    /// sender of more wait, at no cost to other streams; a proxy that is merely busy loses nothing.
    pub request_interval: Duration,
    /// The time of silence after which a connection is sent a keepalive ping.
    pub keepalive_interval: Duration,
    /// The time within which a ping must be answered; else the connection is closed.
    pub keepalive_timeout: Duration,
}

impl Limits {
    /// Returns an HTTP/2 server whose connections have these limits.
    pub(super) fn http2(&self) -> http2::Builder<TokioExecutor> {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(self.streams_per_connection)
            .max_header_list_size(self.header_bytes)
            .keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout);
        http
    }

    /// Returns the largest numbers of streams: in total, of a namespace, and of an address whose
    /// streams have proven no namespace, which has two for each connection.
    pub(super) fn of_streams(&self) -> (usize, usize, usize) {
        let unproven = self.connections_per_address.saturating_mul(2);
        (self.streams, self.streams_per_namespace, unproven)
    }

    /// Returns the limits of a server for this many connections. Bounds that grow with the number
    /// of proxies have the same proportions for each number.
    #[must_use]
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
            // A sidecar has two, for requests and for calls.
            streams_per_namespace: of_namespace.saturating_mul(2),
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
            report_bytes: 64 << 20,
            report_bytes_per_namespace: 32 << 20,
            proxies: 10_000,
            keep: Duration::from_secs(15 * 60),
            first_message: Duration::from_secs(10),
            request_bytes: 512 << 10,
            header_bytes: 16 << 10,
            streams_per_connection: 128,
            request_interval: Duration::from_millis(50),
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
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
        }
    }
}
