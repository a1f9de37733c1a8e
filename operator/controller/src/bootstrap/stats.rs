//! The listener for Prometheus and probes. The admin interface lets any client stop Envoy and read
//! its configuration, so it stays on the loopback address. This listener serves only the two paths
//! that other hosts need.

use super::{cluster as cluster_of, fill, socket};
use crate::endpoint::Endpoint;

/// Returns the listener at `address` as an item of `listeners`.
pub(super) fn listener(address: &Endpoint) -> String {
    fill(
        include_str!("templates/stats.yaml"),
        &[("ADDRESS", &socket(address))],
    )
}

/// Returns the cluster of Envoy's admin interface as an item of `clusters`.
pub(super) fn cluster(admin: &Endpoint) -> String {
    cluster_of("headgate_admin", std::slice::from_ref(admin), false)
}
