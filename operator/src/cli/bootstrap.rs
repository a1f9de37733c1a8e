//! `headgate bootstrap`: print an Envoy bootstrap with a Headgate slot.

use std::path::PathBuf;

use clap::Args;

use crate::bootstrap::{Bootstrap, ConfigSource};
use crate::endpoint::Endpoint;
use crate::plan::TargetRef;

/// Prints a complete Envoy bootstrap: a listener, an upstream and the slot that Headgate fills.
#[derive(Debug, Clone, Args)]
pub struct BootstrapArgs {
    /// Where Envoy listens
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10000")]
    pub listen: Endpoint,
    /// The backend to protect
    #[arg(long, value_name = "HOST:PORT")]
    pub upstream: Endpoint,
    /// The backend speaks HTTP/2, as gRPC servers do
    #[arg(long)]
    pub upstream_http2: bool,
    /// Address of `headgate run`
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18000")]
    pub xds: Endpoint,
    /// Envoy's admin address
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9901")]
    pub admin: Endpoint,
    /// Target whose policies this proxy enforces, such as Service/default/search; needed where the policies
    /// have several
    #[arg(long, value_name = "KIND/NAMESPACE/NAME")]
    pub target: Option<TargetRef>,
    /// Name of the proxy in `headgate status`
    #[arg(long, value_name = "ID", default_value = "headgate-envoy")]
    pub node_id: String,
    /// Write an access log with response code details and refusals to this file
    #[arg(long, value_name = "PATH")]
    pub access_log: Option<PathBuf>,
    /// One aggregated stream (ADS) in place of one for the slot (ECDS)
    #[arg(long)]
    pub ads: bool,
    /// The delta protocol variant in place of state of the world
    #[arg(long)]
    pub delta: bool,
    /// Take the configuration from a file that `headgate render` wrote; no xDS
    #[arg(long, value_name = "PATH", conflicts_with_all = ["xds", "ads", "delta"])]
    pub config_file: Option<PathBuf>,
}

impl BootstrapArgs {
    /// The bootstrap as YAML.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let source = match &self.config_file {
            Some(path) => ConfigSource::File(path.clone()),
            None => ConfigSource::Xds {
                address: self.xds.clone(),
                ads: self.ads,
                delta: self.delta,
            },
        };
        let bootstrap = Bootstrap {
            listen: self.listen.clone(),
            upstream: self.upstream.clone(),
            upstream_http2: self.upstream_http2,
            source,
            admin: self.admin.clone(),
            target: self.target.clone(),
            node_id: self.node_id.clone(),
            access_log: self.access_log.clone(),
        };
        bootstrap.to_yaml()
    }
}
