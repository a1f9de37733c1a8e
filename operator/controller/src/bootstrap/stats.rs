//! The listener for Prometheus and probes. The admin interface can stop Envoy and shows its
//! configuration to any client, so it stays on the loopback address. This listener serves the two
//! paths that other hosts need.

use super::{cluster as cluster_of, indented, socket};
use crate::endpoint::Endpoint;

const ADMIN: &str = "headgate_admin";

/// Returns one more item of `listeners`.
pub(super) fn listener(address: &Endpoint) -> String {
    let block = format!(
        "\
name: stats
address: {address}
filter_chains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: stats
      route_config:
        name: stats
        virtual_hosts:
        - name: all
          domains: [\"*\"]
          # All of the admin interface that others need. Any other path is answered 404.
          routes:
          - {{match: {{path: /stats/prometheus}}, route: {{cluster: {ADMIN}}}}}
          - {{match: {{path: /ready}}, route: {{cluster: {ADMIN}}}}}
      http_filters:
      - name: envoy.filters.http.router
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
        address = socket(address),
    );
    format!("\n  - {}", indented(&block, 4))
}

/// Returns one more item of `clusters`: the admin interface.
pub(super) fn cluster(admin: &Endpoint) -> String {
    let block = cluster_of(ADMIN, std::slice::from_ref(admin), false);
    format!("\n  - {}", indented(&block, 4))
}
