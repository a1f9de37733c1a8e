//! Settings of an injected proxy.

use std::sync::LazyLock;

use clap::Args;
use clap::builder::TypedValueParser as _;
use serde::Serialize;

use super::quantity::{amount, quantity};
use super::sidecar::{ADMIN_PORT, STATS_PORT};
use crate::endpoint::Endpoint;
use headgate_xds::module::Kind;

/// The image of this program's release. `None` if the program was built without the name of an
/// image repository.
static RELEASED: LazyLock<Option<String>> =
    LazyLock::new(|| released(option_env!("HEADGATE_IMAGE_REPOSITORY")));

pub(super) fn released(repository: Option<&str>) -> Option<String> {
    let repository = repository.filter(|repository| !repository.is_empty())?;
    Some(format!("{repository}:{}", env!("CARGO_PKG_VERSION")))
}

/// Returns `port`, unless Envoy listens on it for another purpose.
fn free(port: u16) -> Result<u16, &'static str> {
    match port {
        ADMIN_PORT => Err("Envoy needs this port for its admin interface; such as 10000"),
        STATS_PORT => Err("Envoy needs this port for its statistics; such as 10000"),
        _ => Ok(port),
    }
}

/// Arguments of `headgate inject` about the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
pub struct Settings {
    /// Image with this program and the filter modules. The default is the image of this program's
    /// release; a program built from source has no default
    #[arg(
        long,
        value_name = "IMAGE",
        default_value = RELEASED.as_deref(),
        required = RELEASED.is_none()
    )]
    pub image: String,
    /// Envoy's image
    #[arg(long, value_name = "IMAGE", default_value = "envoyproxy/envoy:v1.40.0")]
    pub envoy_image: String,
    /// Address of the operator
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "headgate.headgate-system.svc:18000"
    )]
    pub xds: Endpoint,
    /// ConfigMap with the CA of the operator's certificate. The operator writes it into each
    /// namespace
    #[arg(long, value_name = "NAME", default_value = "headgate-ca")]
    pub ca_config_map: String,
    /// Secret with a certificate (tls.crt, tls.key, ca.crt) that proves the namespace, in place of
    /// the token of the Pod's service account
    #[arg(long, value_name = "NAME")]
    pub tls_secret: Option<String>,
    /// Port on which Envoy listens
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u16).range(1..).try_map(free)
    )]
    pub listen_port: u16,
    /// Port on which the application listens [default: the annotation headgate.dev/app-port of the
    /// Pods, else their only port]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub app_port: Option<u16>,
    /// Use HTTP/2 to the application, as gRPC servers need
    #[arg(long)]
    pub upstream_http2: bool,
    /// Number of Envoy's worker threads
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub concurrency: u32,
    /// Form in which Envoy loads the filter: wasm, or native, which needs Envoy 1.39 or newer. An
    /// Envoy that can't load the native module gets the Wasm module
    #[arg(long, value_name = "KIND", default_value = "wasm")]
    pub filter: Kind,
    /// Leave the user and group of the added containers to the cluster, as OpenShift requires
    #[arg(long)]
    pub no_run_as_user: bool,
    /// CPU request of each added container
    #[arg(long, value_name = "QUANTITY", default_value = "100m", value_parser = quantity)]
    pub proxy_cpu_request: String,
    /// CPU limit of each added container; none by default
    #[arg(long, value_name = "QUANTITY", value_parser = quantity)]
    pub proxy_cpu_limit: Option<String>,
    /// Memory request of each added container
    #[arg(long, value_name = "QUANTITY", default_value = "96Mi", value_parser = quantity)]
    pub proxy_memory_request: String,
    /// Memory limit of each added container
    #[arg(long, value_name = "QUANTITY", default_value = "256Mi", value_parser = quantity)]
    pub proxy_memory_limit: String,
}

impl Settings {
    /// Checks that no request exceeds its limit. The API server would refuse the Pods.
    ///
    /// # Errors
    /// Returns one line that names the arguments.
    pub fn check_resources(&self) -> Result<(), String> {
        let (cpu, memory) = (&self.proxy_cpu_request, &self.proxy_memory_request);
        for (what, request, limit) in [
            ("cpu", cpu, self.proxy_cpu_limit.as_ref()),
            ("memory", memory, Some(&self.proxy_memory_limit)),
        ] {
            if let Some(limit) = limit
                && amount(request) > amount(limit)
            {
                return Err(format!(
                    "--proxy-{what}-request {request} is more than --proxy-{what}-limit {limit}"
                ));
            }
        }
        Ok(())
    }
}
