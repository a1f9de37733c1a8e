//! The listener for the application's own calls.
//!
//! Headgate follows workflows from process to process. The inbound slot processes requests to the
//! application, and the slot of this listener processes the application's requests to other
//! services. The name in `Host` or `:authority` selects the service, so an application reaches all
//! services at one address. An application that uses the listener as its `http_proxy` needs no
//! other change.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use crate::endpoint::Endpoint;

/// A listener for the application's own calls, and the services that it routes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
