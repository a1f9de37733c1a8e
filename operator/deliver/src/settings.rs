//! The settings of deliveries, including the location of the module.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::adapter::Adapter;
use crate::cluster::ObjectKey;
use headgate_xds::module::Kind;

/// The longest pause between attempts after a failure, and between lists of a kind that isn't
/// served.
const RETRY: Duration = Duration::from_secs(30);
/// The first pause after a refused write.
const REFUSED_RETRY: Duration = Duration::from_secs(5);
/// The default namespace of Envoy Gateway.
pub const ENVOY_GATEWAY_NAMESPACE: &str = "envoy-gateway-system";
/// The default namespace of Istio.
pub const ISTIO_NAMESPACE: &str = "istio-system";

/// Objects for other control planes and for Pods.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Delivery")]
pub struct DeliverArgs {
    /// Control planes for which objects are written: TrafficExtensions (WasmPlugins before Istio
    /// 1.30) for istio, EnvoyExtensionPolicies for envoy-gateway. auto selects those whose CRD is
    /// installed
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "auto"
    )]
    pub adapters: Vec<AdapterChoice>,
    /// Write a ConfigMap for each target, for Envoys that read their filter from a file
    #[arg(long)]
    pub deliver_config_maps: bool,
    /// Path of the module in Pods that mount such a ConfigMap. The default matches `headgate
    /// bootstrap --install-module /headgate`. {hash} is replaced by the first 16 hex digits of the
    /// SHA-256 of the operator's module
    #[arg(long, value_name = "PATH", default_value = "/headgate/headgate.wasm")]
    pub config_map_module: String,
    /// Name under which EnvoyProxies register the native module (spec.dynamicModules).
    /// EnvoyExtensionPolicies then use it in place of the Wasm module
    #[arg(long, value_name = "NAME")]
    pub envoy_gateway_native: Option<String>,
    /// Path of the native module in Istio's proxies. EnvoyFilters are then written in place of
    /// TrafficExtensions and WasmPlugins
    #[arg(long, value_name = "PATH")]
    pub istio_native: Option<PathBuf>,
    /// Namespace of Envoy Gateway. Pods with its labels count as proxies of a Gateway in this
    /// namespace and in the Gateway's own only
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = ENVOY_GATEWAY_NAMESPACE
    )]
    pub envoy_gateway_namespace: String,
    /// Namespace of istiod. The versions of its istiods decide between TrafficExtensions and
    /// WasmPlugins
    #[arg(
        long,
        value_name = "NAMESPACE",
        default_value = ISTIO_NAMESPACE
    )]
    pub istio_namespace: String,
    /// Keep the objects of control planes that --adapters leaves out. Without it, the operator
    /// deletes those of istio and envoy-gateway at its start, for which it needs the rights to list
    /// and delete them
    #[arg(long)]
    pub keep_leftovers: bool,
    /// Base URL from which control planes and proxies load this operator's modules [default:
    /// http://headgate.NAMESPACE.svc:18002]
    #[arg(long, value_name = "URL")]
    pub modules_url: Option<String>,
}

/// A control plane to write objects for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AdapterChoice {
    /// Every control plane whose CRD is installed.
    Auto,
    /// `TrafficExtension` or `WasmPlugin`.
    Istio,
    /// `EnvoyExtensionPolicy`.
    EnvoyGateway,
    /// None.
    None,
}

/// The effective settings of deliveries.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The arguments, from which the fields below are computed.
    pub args: DeliverArgs,
    /// Whether TrafficExtensions or WasmPlugins are written once their CRD is installed.
    pub istio: bool,
    /// Whether EnvoyExtensionPolicies are written once their CRD is installed.
    pub envoy_gateway: bool,
    /// The path of the module in the Pods that mount ConfigMaps, with `{hash}` in place of the
    /// first 16 digits of its SHA-256. With `None`, no ConfigMaps are written.
    pub config_map_module: Option<String>,
    /// The name of this operator's Lease, `namespace/name`. All replicas have the same, and
    /// operators of another release have another.
    pub operator: String,
    /// The namespaces of the objects. An empty list means all namespaces.
    pub watch_namespaces: Vec<String>,
    /// The base URL, `http://HOST:PORT`, below which `/modules/<sha256>.wasm` is served.
    pub modules_url: String,
    /// The longest pause between attempts after a failure, and between lists of a kind that isn't
    /// served.
    pub retry: Duration,
    /// The pause before the second attempt at a write that the API server refused. Later pauses
    /// double. It is also the shortest pause after a write that failed.
    pub refused_retry: Duration,
}

impl Settings {
    /// Whether the delivery of this adapter's objects is on.
    pub const fn delivers(&self, adapter: Adapter) -> bool {
        match adapter {
            Adapter::ConfigMap => self.config_map_module.is_some(),
            Adapter::EnvoyGateway => self.envoy_gateway,
            Adapter::Istio | Adapter::IstioExtension | Adapter::IstioNative => self.istio,
        }
    }

    /// Whether any delivery is on.
    pub const fn is_on(&self) -> bool {
        // All fields are named, so that the compiler reports a new delivery that is missing here.
        let Self {
            istio,
            envoy_gateway,
            config_map_module,
            args: _,
            operator: _,
            watch_namespaces: _,
            modules_url: _,
            retry: _,
            refused_retry: _,
        } = self;
        *istio || *envoy_gateway || config_map_module.is_some()
    }

    /// Returns the settings of these arguments, for an operator with this Lease.
    ///
    /// # Errors
    /// Returns one line that names the argument at fault and the remedy.
    pub fn new(args: DeliverArgs, lease: &ObjectKey) -> anyhow::Result<Self> {
        let has = |choice| args.adapters.contains(&choice);
        if has(AdapterChoice::None) && args.adapters.len() > 1 {
            anyhow::bail!(
                "--adapters: none excludes all others; leave it out, or leave out the others"
            );
        }
        if args.deliver_config_maps && !args.config_map_module.starts_with('/') {
            anyhow::bail!(
                "--config-map-module {}: must be an absolute path in the proxy's Pod",
                args.config_map_module
            );
        }
        let is_native = |path: &PathBuf| path.is_absolute() && Kind::of(path) == Kind::Native;
        if let Some(path) = args.istio_native.as_ref().filter(|path| !is_native(path)) {
            anyhow::bail!(
                "--istio-native {}: must be an absolute path of a shared object (.so) in the \
                 proxies' containers",
                path.display()
            );
        }
        let url = args
            .modules_url
            .clone()
            .unwrap_or_else(|| format!("http://headgate.{}.svc:18002", lease.namespace));
        let host = url.strip_prefix("http://").map(|h| h.trim_end_matches('/'));
        match host {
            Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', '@']) => Ok(Self {
                istio: has(AdapterChoice::Auto) || has(AdapterChoice::Istio),
                envoy_gateway: has(AdapterChoice::Auto) || has(AdapterChoice::EnvoyGateway),
                config_map_module: args
                    .deliver_config_maps
                    .then(|| args.config_map_module.clone()),
                operator: lease.to_string(),
                watch_namespaces: Vec::new(),
                modules_url: format!("http://{host}"),
                retry: RETRY,
                refused_retry: REFUSED_RETRY,
                args,
            }),
            _ => {
                anyhow::bail!(
                    "--modules-url {url}: http://HOST:PORT without a path, such as \
                     http://headgate.headgate-system.svc:18002"
                )
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: DeliverArgs,
    }

    /// Returns the settings of these arguments, for an operator in namespace `headgate-system`.
    pub(crate) fn settings(line: &[&str]) -> Result<Settings, String> {
        let line = Line::try_parse_from([&["x"], line].concat()).map_err(|e| e.to_string())?;
        let lease = ObjectKey::new("headgate-system", "headgate");
        Settings::new(line.args, &lease).map_err(|e| e.to_string())
    }

    #[test]
    fn everything_that_is_installed_and_no_config_maps() {
        let all = settings(&[]).unwrap();
        assert!(all.istio && all.envoy_gateway && all.config_map_module.is_none());
        assert_eq!(all.watch_namespaces, [""; 0]);
        assert_eq!(all.modules_url, "http://headgate.headgate-system.svc:18002");
        assert_eq!((all.retry, all.refused_retry), (RETRY, REFUSED_RETRY));
        let args = all.args;
        assert_eq!((args.envoy_gateway_native, args.istio_native), (None, None));
        assert_eq!(args.envoy_gateway_namespace, "envoy-gateway-system");
        assert_eq!(args.istio_namespace, "istio-system");
        assert!(!args.keep_leftovers);
        let only = settings(&["--adapters", "istio", "--deliver-config-maps"]).unwrap();
        assert!(only.istio && !only.envoy_gateway && only.config_map_module.is_some());
        let none = settings(&["--adapters", "none"]).unwrap();
        assert!(!none.istio && !none.envoy_gateway);
        let url = settings(&["--modules-url", "http://127.0.0.1:1/"]).unwrap();
        assert_eq!(url.modules_url, "http://127.0.0.1:1");
    }

    #[test]
    fn mistakes_are_named() {
        for (line, expected) in [
            (
                &["--adapters", "none,istio"][..],
                "none excludes all others",
            ),
            (&["--modules-url", "https://x"], "http://HOST:PORT"),
            (&["--modules-url", "http://x/y"], "without a path"),
            (&["--modules-url", "http://"], "http://HOST:PORT"),
            (
                &["--deliver-config-maps", "--config-map-module", "a.wasm"],
                "an absolute path",
            ),
            (&["--istio-native", "libheadgate.so"], "an absolute path"),
            (&["--istio-native", "/headgate.wasm"], "a shared object"),
        ] {
            let error = settings(line).unwrap_err();
            assert!(error.contains(expected), "{line:?}: {error}");
        }
    }
}
