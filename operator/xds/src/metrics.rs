//! The metrics of the xDS server: streams, pushes, and proxies' answers.

use std::time::{Duration, SystemTime};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

/// Buckets, in seconds. An edit should be in force within 1 s. A retry or a distant proxy takes
/// longer.
const ACKS: [f64; 13] = [
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

/// Handles of the xDS server's metrics. Clones share the same numbers.
#[derive(Debug, Clone)]
pub struct XdsMetrics {
    /// Streams accepted.
    pub streams: Counter,
    /// Streams rejected at a limit, for an unproven identity, or for another protocol.
    pub streams_refused: Counter,
    /// Responses sent.
    pub pushes: Counter,
    /// Responses accepted.
    pub acks: Counter,
    /// Responses refused.
    pub nacks: Counter,
    /// Connections rejected at a limit.
    pub connections_refused: Counter,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: Counter,
    /// Reloads of TLS files that took effect.
    pub tls_reloads: Counter,
    /// Reloads of TLS files that failed.
    pub tls_reload_failures: Counter,
    ack_duration: Histogram,
    /// A family that has no series until a certificate is loaded, because 0 would mean an expiry in
    /// 1970.
    certificate_expiry: Family<Vec<(String, String)>, Gauge>,
    certificate_lifetime: Family<Vec<(String, String)>, Gauge>,
}

impl XdsMetrics {
    /// Registers the metrics, which start at zero, and returns their handles.
    pub fn register(registry: &mut Registry) -> Self {
        let ack_duration = Histogram::new(ACKS);
        registry.register_with_unit(
            "xds_ack",
            "Time from a new plan until a proxy accepts its changed configuration",
            Unit::Seconds,
            ack_duration.clone(),
        );
        let certificate_expiry = Family::default();
        registry.register_with_unit(
            "xds_certificate_expiry_timestamp",
            "Expiry of the xDS server's certificate or of the last CA of its clients, in Unix time",
            Unit::Seconds,
            certificate_expiry.clone(),
        );
        let certificate_lifetime = Family::default();
        registry.register_with_unit(
            "xds_certificate_lifetime",
            "Time from the issue of the xDS server's certificate to the expiry",
            Unit::Seconds,
            certificate_lifetime.clone(),
        );
        let mut counter = |name, help| register(registry, name, help);
        Self {
            streams: counter("xds_streams", "Streams of proxies accepted"),
            streams_refused: counter(
                "xds_streams_refused",
                "Streams of proxies refused at a limit, for a wrong identity, or for another \
                 protocol",
            ),
            pushes: counter("xds_pushes", "Responses sent to proxies"),
            acks: counter("xds_acks", "Responses that proxies accepted"),
            nacks: counter("xds_nacks", "Responses that proxies refused"),
            connections_refused: counter(
                "xds_connections_refused",
                "Connections refused at a limit",
            ),
            handshakes_failed: counter(
                "xds_handshakes_failed",
                "TLS handshakes that failed or took too long",
            ),
            tls_reloads: counter("xds_tls_reloads", "Times that new TLS files came into use"),
            tls_reload_failures: counter(
                "xds_tls_reload_failures",
                "Times that new TLS files were refused and the previous ones stayed in use",
            ),
            ack_duration,
            certificate_expiry,
            certificate_lifetime,
        }
    }

    /// Records that a proxy accepted a response `span` after its plan was made.
    pub fn acked_after(&self, span: Duration) {
        self.ack_duration.observe(span.as_secs_f64());
    }

    /// Sets the validity of the certificate in use: from its issue to the expiry of the certificate
    /// or of the clients' last CA, whichever comes first.
    pub fn set_certificate_validity(&self, (issue, expiry): (SystemTime, SystemTime)) {
        for (family, since) in [
            (&self.certificate_expiry, SystemTime::UNIX_EPOCH),
            (&self.certificate_lifetime, issue),
        ] {
            let seconds = expiry.duration_since(since).unwrap_or_default().as_secs();
            let gauge = family.get_or_create(&Vec::new());
            gauge.set(i64::try_from(seconds).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
impl Default for XdsMetrics {
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}

/// Registers a metric that starts at zero, and returns its handle.
pub fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}
