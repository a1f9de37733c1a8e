//! `headgate bootstrap`: prints an Envoy bootstrap with a Headgate slot.

mod labels;
mod service;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;

use crate::module::{install, module_file};
use headgate_api::plan::TargetRef;
use headgate_command::output::Output;
use headgate_controller::bootstrap::{
    Admission, Bootstrap, ConfigSource, Outbound, Pod, ProxyIdentity, SdsFiles, Uploads, XdsTls,
};
use headgate_controller::endpoint::Endpoint;
use headgate_xds::files::replace;
use headgate_xds::module::Kind;

/// Prints a complete Envoy bootstrap: a listener, an upstream and the slot that Headgate fills.
#[derive(Debug, Clone, Args)]
pub(crate) struct BootstrapArgs {
    /// Address that Envoy listens on; [::]:PORT accepts IPv4 and IPv6 on all addresses
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:10000")]
    pub(crate) listen: Endpoint,
    /// Address of the backend to protect; localhost:PORT is the IPv4 or IPv6 loopback address,
    /// whichever the backend listens on
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) upstream: Endpoint,
    /// Use HTTP/2 to the backend, as gRPC servers need
    #[arg(long)]
    pub(crate) upstream_http2: bool,
    /// Name of a service that the application calls, and the address of one of its processes; may
    /// be repeated. Adds a second listener (--outbound-listen), whose calls propagate workflows.
    /// The Host header of a call selects the service by its name
    #[arg(long, value_name = "NAME=HOST:PORT", value_parser = service::parse)]
    pub(crate) outbound: Vec<(String, Endpoint)>,
    /// Address on which Envoy accepts the application's calls to the services of --outbound
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:10001",
        requires = "outbound"
    )]
    pub(crate) outbound_listen: Endpoint,
    /// Use HTTP/2 to the services of --outbound
    #[arg(long, requires = "outbound")]
    pub(crate) outbound_http2: bool,
    /// Address of `headgate run`; in a cluster headgate.headgate-system.svc:18000
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18000")]
    pub(crate) xds: Endpoint,
    /// Address of the class admission server (`headgate run --admission`), for policies with
    /// `classAdmission.method: Centralized`; in a cluster headgate.headgate-system.svc:18004. It
    /// uses TLS if --xds does
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) admission: Option<Endpoint>,
    /// Service account token that proves this proxy's namespace, from a projected volume with
    /// audience headgate; read again when it is renewed
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["xds_tls_ca", "output"],
        group = "xds_identity"
    )]
    pub(crate) xds_token: Option<PathBuf>,
    /// Certificate that proves this proxy's namespace, instead of a token (PEM); read again when it
    /// is renewed
    #[arg(
        long,
        value_name = "FILE",
        requires_all = ["xds_tls_key", "xds_tls_ca", "output"],
        group = "xds_identity"
    )]
    pub(crate) xds_tls_cert: Option<PathBuf>,
    /// Key of --xds-tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "xds_tls_cert")]
    pub(crate) xds_tls_key: Option<PathBuf>,
    /// CA of the operator's certificate (PEM); read again when it is renewed
    #[arg(long, value_name = "FILE", requires = "xds_identity")]
    pub(crate) xds_tls_ca: Option<PathBuf>,
    /// Name in the operator's certificate [default: the host of --xds, and of --admission]
    #[arg(long, value_name = "NAME", requires = "xds_tls_ca")]
    pub(crate) xds_server_name: Option<String>,
    /// Address of Envoy's admin interface
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9901")]
    pub(crate) admin: Endpoint,
    /// Address of a listener for Prometheus and probes, such as [::]:9902. It serves only
    /// /stats/prometheus and /ready of the admin interface
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) stats: Option<Endpoint>,
    /// Target whose policies this proxy enforces, such as Service/default/search; required if the
    /// policies have several and the proxy has no --label
    #[arg(long, value_name = "KIND/NAMESPACE/NAME")]
    pub(crate) target: Option<TargetRef>,
    /// Namespace of the proxy's Pod
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// A label of the proxy's Pod; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = labels::parse)]
    pub(crate) label: Vec<(String, String)>,
    /// Labels of the proxy's Pod in the downward API's format (fieldPath: metadata.labels)
    #[arg(long, value_name = "FILE")]
    pub(crate) labels_file: Option<PathBuf>,
    /// Copy the filter module into this folder, named by its hash, and load it from there; with
    /// --filter native both modules. The proxy must see the folder under the same path. The
    /// symbolic link headgate.wasm (or .so) points to the latest copy. Earlier copies stay, because
    /// other proxies may load them; delete those that no proxy loads
    #[arg(long, value_name = "DIR")]
    pub(crate) install_module: Option<PathBuf>,
    /// The filter module that --install-module copies [default: dist/headgate.wasm, else
    /// headgate.wasm beside this program]
    #[arg(long, value_name = "PATH", env = "HEADGATE_WASM")]
    pub(crate) wasm: Option<PathBuf>,
    /// Form in which the proxy loads the filter: wasm, or native, which needs Envoy 1.39 or newer,
    /// and --install-module or `headgate run --native`. A proxy that can't load the native module
    /// gets the Wasm module, and `headgate status` shows the reason
    #[arg(long, value_name = "KIND", default_value = "wasm")]
    pub(crate) filter: Kind,
    /// The native filter module that --install-module copies with --filter native [default:
    /// dist/libheadgate.so, else libheadgate.so beside this program]
    #[arg(long, value_name = "PATH", env = "HEADGATE_NATIVE")]
    pub(crate) native: Option<PathBuf>,
    /// Name of the proxy in `headgate status`
    #[arg(
        long,
        value_name = "ID",
        env = "POD_NAME",
        default_value = "headgate-envoy"
    )]
    pub(crate) node_id: String,
    /// Write an access log with response code details and refusals to this file
    #[arg(long, value_name = "PATH")]
    pub(crate) access_log: Option<PathBuf>,
    /// Buffer requests before Headgate admits them, up to this many bytes, so that a slow upload
    /// holds no slot. Larger bodies get status 413
    #[arg(long, value_name = "BYTES")]
    pub(crate) buffer_requests: Option<NonZeroU32>,
    /// Time in which a request must fully arrive, such as 30s; otherwise it gets status 408. No
    /// limit by default
    #[arg(long, value_name = "DURATION", value_parser = request_timeout)]
    pub(crate) request_timeout: Option<Duration>,
    /// Read the configuration from a file that `headgate render` wrote, without xDS
    #[arg(long, value_name = "PATH", conflicts_with_all = ["xds", "xds_identity"])]
    pub(crate) config_file: Option<PathBuf>,
    /// Read the configuration of calls from a file that `headgate render` wrote; with --config-file
    #[arg(long, value_name = "PATH", requires_all = ["outbound", "config_file"])]
    pub(crate) outbound_config_file: Option<PathBuf>,
    /// Write the bootstrap to this file instead of printing it, and with TLS two more files beside
    /// it
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Parses the value of `--request-timeout`.
fn request_timeout(text: &str) -> Result<Duration, String> {
    let timeout = headgate_api::Duration::above_zero(text);
    timeout.map_err(|why| format!("{why}; leave the argument out for no limit"))
}

/// Prints or writes the bootstrap.
///
/// Returns an error of one line that names the argument at fault and the remedy.
pub(crate) fn run(args: &BootstrapArgs) -> anyhow::Result<Output> {
    let bootstrap = args.bootstrap()?;
    let Some(output) = &args.output else {
        return Ok(Output::ok(bootstrap.to_yaml()?));
    };
    let write = |path: &Path, content: &str| {
        // The file is readable by all, because Envoy often runs as another user.
        let written = replace(path, content.as_bytes(), 0o644);
        written.with_context(|| format!("--output {}", path.display()))
    };
    if let ConfigSource::Xds { tls: Some(tls), .. } = &bootstrap.source {
        write(&tls.sds.identity, &tls.identity_yaml()?)?;
        write(&tls.sds.ca, &tls.ca_yaml()?)?;
    }
    // The bootstrap is written last, so that a process that waits for this file finds the other
    // files.
    write(output, &bootstrap.to_yaml()?)?;
    Ok(Output::ok(String::new()))
}

impl BootstrapArgs {
    fn bootstrap(&self) -> anyhow::Result<Bootstrap> {
        Ok(Bootstrap {
            listen: self.listen.on_this_machine(),
            upstream: self.upstream.on_this_machine(),
            upstream_http2: self.upstream_http2,
            outbound: self.outbound()?,
            source: self.source()?,
            admission: self.admission()?,
            admin: self.admin.on_this_machine(),
            stats: self.stats.as_ref().map(Endpoint::on_this_machine),
            target: self.target.clone(),
            pod: self.pod()?,
            node_id: self.node_id.clone(),
            access_log: self.access_log.clone(),
            uploads: Uploads {
                buffer: self.buffer_requests,
                timeout: self.request_timeout,
            },
        })
    }

    fn outbound(&self) -> anyhow::Result<Option<Outbound>> {
        if self.outbound.is_empty() {
            return Ok(None);
        }
        if self.config_file.is_some() && self.outbound_config_file.is_none() {
            bail!(
                "--outbound with --config-file needs --outbound-config-file: each slot has a file \
                 of its own"
            );
        }
        Ok(Some(Outbound {
            listen: self.outbound_listen.on_this_machine(),
            services: service::by_name(&self.outbound),
            http2: self.outbound_http2,
            config_file: self.outbound_config_file.clone(),
        }))
    }

    fn source(&self) -> anyhow::Result<ConfigSource> {
        if let Some(path) = &self.config_file {
            return Ok(ConfigSource::File(path.clone()));
        }
        Ok(ConfigSource::Xds {
            address: self.xds.on_this_machine(),
            tls: self.tls(&self.xds)?.map(Box::new),
        })
    }

    fn admission(&self) -> anyhow::Result<Option<Admission>> {
        let Some(address) = &self.admission else {
            return Ok(None);
        };
        Ok(Some(Admission {
            address: address.on_this_machine(),
            tls: self.tls(address)?.map(Box::new),
        }))
    }

    /// Returns the TLS settings for the operator at `address`.
    fn tls(&self, address: &Endpoint) -> anyhow::Result<Option<XdsTls>> {
        let (Some(ca), Some(output)) = (&self.xds_tls_ca, &self.output) else {
            return Ok(None);
        };
        // The paths must be absolute, because Envoy may run in another folder.
        let absolute = |path: &Path| {
            std::path::absolute(path).with_context(|| format!("{}: no such path", path.display()))
        };
        let identity = match (&self.xds_token, &self.xds_tls_cert, &self.xds_tls_key) {
            (Some(token), _, _) => ProxyIdentity::Token(absolute(token)?),
            (None, Some(cert), Some(key)) => ProxyIdentity::Certificate {
                cert: absolute(cert)?,
                key: absolute(key)?,
            },
            _ => return Ok(None),
        };
        Ok(Some(XdsTls {
            sds: SdsFiles::beside(&absolute(output)?, &identity),
            identity,
            ca: absolute(ca)?,
            server_name: self
                .xds_server_name
                .clone()
                .unwrap_or_else(|| address.host.clone()),
        }))
    }

    fn pod(&self) -> anyhow::Result<Pod> {
        let mut labels = BTreeMap::new();
        if let Some(path) = &self.labels_file {
            let named = || format!("--labels-file {}", path.display());
            let text = fs::read_to_string(path).with_context(named)?;
            labels = labels::read(&text).map_err(|why| anyhow!("{}: {why}", named()))?;
        }
        labels.extend(self.label.iter().cloned());
        if !labels.is_empty() && self.namespace.is_none() {
            bail!(
                "--labels-file or --label without --namespace: labels are of a Pod in a namespace; \
                 set --namespace, or POD_NAMESPACE by the downward API (fieldPath: \
                 metadata.namespace)"
            );
        }
        let is_native = self.filter == Kind::Native;
        Ok(Pod {
            namespace: self.namespace.clone(),
            labels,
            module: self.installed(Kind::Wasm, self.wasm.as_deref())?,
            native_module: match is_native {
                true => self.installed(Kind::Native, self.native.as_deref())?,
                false => None,
            },
            filter: self.filter,
            // On a system other than Linux, the proxy runs on another machine, which may have
            // another architecture.
            architecture: cfg!(target_os = "linux").then_some(std::env::consts::ARCH),
        })
    }

    /// Copies a module for --install-module, and returns the path of the copy. Returns `None`
    /// without this argument.
    fn installed(&self, kind: Kind, named: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
        let Some(dir) = &self.install_module else {
            return Ok(None);
        };
        let module = install(kind, &module_file(kind, named), dir);
        let module = module.and_then(|module| {
            module.link()?;
            Ok(module)
        });
        let module = module.with_context(|| format!("--install-module {}", dir.display()))?;
        Ok(Some(module.path))
    }
}
