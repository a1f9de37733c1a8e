//! The listener for the application's own calls.
//!
//! Headgate follows workflows from process to process. The inbound slot processes requests to the
//! application, and the slot of this listener processes the application's requests to other
//! services. The name in `Host` or `:authority` selects the service, so an application reaches all
//! services at one address. An application that uses the listener as its `http_proxy` needs no
//! other change.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{ConfigSource, LISTENER, cluster, fill, items, quoted, slot, socket};
use crate::endpoint::Endpoint;
use headgate_xds::OUTBOUND_SLOT;

/// A listener for the application's own calls, and the services that it routes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbound {
    /// The address on which Envoy accepts the application's calls.
    pub listen: Endpoint,
    /// The endpoints of each service, by the DNS name that calls have in `Host`. They are balanced
    /// by round robin.
    pub services: BTreeMap<String, Vec<Endpoint>>,
    /// Whether the services speak HTTP/2 (gRPC) rather than HTTP/1.1.
    pub http2: bool,
    /// A file with the slot's configuration, in place of the inbound slot's source.
    pub config_file: Option<PathBuf>,
}

impl Outbound {
    /// Returns the listener as an item of `listeners`.
    pub(super) fn listener(&self, source: &ConfigSource) -> String {
        let file = self.config_file.clone().map(ConfigSource::File);
        let hosts: Vec<String> = self.services.keys().map(|name| host(name)).collect();
        fill(
            LISTENER,
            &[
                ("NAME", "outbound"),
                ("ADDRESS", &socket(&self.listen)),
                ("DIRECTION", "traffic_direction: OUTBOUND"),
                ("MANAGER", ""),
                (
                    "VIRTUAL_HOSTS",
                    &format!("{}\n{IGNORE_PORT}", items(&hosts)),
                ),
                ("BUFFER", ""),
                ("SLOT_IS", SLOT_IS),
                (
                    "SLOT",
                    &slot(OUTBOUND_SLOT, file.as_ref().unwrap_or(source)),
                ),
            ],
        )
    }

    /// Returns the clusters of the services as items of `clusters`.
    pub(super) fn clusters(&self) -> impl Iterator<Item = String> {
        let services = self.services.iter();
        services.map(|(name, endpoints)| cluster(&quoted(name), endpoints, self.http2))
    }
}

const SLOT_IS: &str =
    "# The slot for calls. It shares memory with the one above, so both need the same module.";

const IGNORE_PORT: &str = "\
# Applications write the port that they call into Host, or don't.
ignore_port_in_host_matching: true";

fn host(name: &str) -> String {
    format!(
        "\
name: {name}
domains: [{name}]
routes:
- name: {name}
  match: {{prefix: /}}
  route: {{cluster: {name}, timeout: 0s}}",
        name = quoted(name)
    )
}
