//! The listener to which the application sends its own calls.
//!
//! Headgate follows workflows from process to process: the inbound slot sees what is asked of the
//! application, and this one what it asks of others. The service is chosen by the name in `Host` or
//! `:authority`, so that an application reaches all of them at one address: by that header, or
//! through `http_proxy` without any change.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{ConfigSource, Listener, cluster, indented, quoted, slot};
use crate::endpoint::Endpoint;
use crate::xds::OUTBOUND_SLOT;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbound {
    /// Where Envoy takes the application's calls.
    pub listen: Endpoint,
    /// Processes of each service, which take turns, by the name that calls have in `Host`. A name
    /// is one of DNS.
    pub services: BTreeMap<String, Vec<Endpoint>>,
    /// Whether they speak HTTP/2 (gRPC) rather than HTTP/1.1.
    pub http2: bool,
    /// A file with the slot's configuration, in place of where the other slot's comes from.
    pub config_file: Option<PathBuf>,
}

impl Outbound {
    /// One item of `listeners`.
    pub(super) fn listener(&self, source: &ConfigSource) -> String {
        let file = self.config_file.clone().map(ConfigSource::File);
        let hosts: Vec<String> = self.services.keys().map(|name| host(name)).collect();
        Listener {
            name: "outbound",
            address: &self.listen,
            direction: "traffic_direction: OUTBOUND\n",
            manager: String::new(),
            virtual_hosts: format!("{}\n{IGNORE_PORT}", hosts.join("\n")),
            before_slot: String::new(),
            slot_is: "\
# The slot for calls. It shares memory with the one above, so both need the same module.",
            slot: slot(OUTBOUND_SLOT, file.as_ref().unwrap_or(source)),
        }
        .to_yaml()
    }

    /// Items of `clusters`, each after a line break.
    pub(super) fn clusters(&self) -> String {
        let cluster = |(name, endpoints): (&String, &Vec<Endpoint>)| {
            let block = cluster(&quoted(name), endpoints, self.http2);
            format!("\n  - {}", indented(&block, 4))
        };
        self.services.iter().map(cluster).collect()
    }
}

const IGNORE_PORT: &str = "\
# Applications write the port that they call into Host, or don't.
ignore_port_in_host_matching: true";

fn host(name: &str) -> String {
    format!(
        "\
- name: {name}
  domains: [{name}]
  routes:
  - name: {name}
    match: {{prefix: /}}
    route: {{cluster: {name}, timeout: 0s}}",
        name = quoted(name)
    )
}
