//! What keeps the server's memory and work bounded, whatever its peers do.
//!
//! A peer that hasn't shown a certificate yet costs the most for the least, so handshakes have a
//! bound of their own for each address: a flood from some addresses leaves room for the others, and
//! doesn't touch streams that are open. None waits for another: what a handshake costs is a
//! signature, which is made when the peer has said hello.

use std::time::Duration;

/// Bounds of the xDS server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at once; one more is closed at once.
    pub connections: usize,
    /// Connections from one address (of IPv6: one /64). A node that hides its Pods behind its own
    /// address has up to 250.
    pub connections_per_address: usize,
    /// TLS handshakes of one address at once; one more is closed at once.
    pub handshakes_per_address: usize,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// A connection that has had no stream for this long is closed, at the latest after twice as
    /// long.
    pub idle: Duration,
    /// Age at which a connection is closed, less up to a quarter at random, so that proxies spread
    /// over new replicas and show new certificates, not all at once.
    pub max_age: Duration,
    /// Streams open at once.
    pub streams: usize,
    /// Streams of proxies whose certificates are for one namespace, or without certificates of one
    /// address.
    pub streams_per_namespace: usize,
    /// Proxies remembered, connected or not.
    pub proxies: usize,
    /// How long a proxy is remembered after it left.
    pub keep: Duration,
    /// Time for a stream's first request.
    pub first_message: Duration,
    /// Largest request, in bytes. A node lists every extension that its Envoy has, some 100 KB.
    pub request_bytes: usize,
    /// Largest set of headers of a stream, in bytes.
    pub header_bytes: u32,
    /// HTTP/2 streams on one connection.
    pub streams_per_connection: u32,
    /// Requests that one stream may send at once; more are read at
    /// [`requests_per_second`](Self::requests_per_second).
    pub requests_burst: u32,
    /// Requests that are read from one stream over time, in requests/s.
    pub requests_per_second: u32,
    /// Encoded resources that are kept for all proxies, in bytes.
    pub cache_bytes: usize,
    /// A connection that is silent this long is asked whether it lives.
    pub keepalive_interval: Duration,
    /// And closed if it doesn't answer in this time.
    pub keepalive_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            connections_per_address: 256,
            handshakes_per_address: 32,
            handshake_timeout: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            max_age: Duration::from_secs(3_600),
            streams: 8_192,
            streams_per_namespace: 4_096,
            proxies: 10_000,
            keep: Duration::from_secs(15 * 60),
            first_message: Duration::from_secs(10),
            request_bytes: 512 << 10,
            header_bytes: 16 << 10,
            streams_per_connection: 128,
            requests_burst: 200,
            requests_per_second: 20,
            cache_bytes: 64 << 20,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}
