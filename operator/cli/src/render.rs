//! `headgate render`: prints the configuration that a proxy gets for a policy, as a file.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use headgate_core::config::{Direction, FilterConfig};

use crate::input::{self, Selection};
use crate::module::check_kind;
use headgate_api::plan::TargetRef;
use headgate_command::output::{Output, json};
use headgate_xds::module::Kind;
use headgate_xds::resource::discovery_json;
use headgate_xds::{DEFAULT_SLOT, OUTBOUND_SLOT};

/// Prints the configuration that a proxy gets for a policy: for a slot in the proxy's configuration
/// that reads a file (`path_config_source`) instead of asking a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct RenderArgs {
    /// Policy files, folders with such files, or - for standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) files: Vec<PathBuf>,
    /// Kind of proxy to print for
    #[arg(long, value_name = "PROXY", default_value = "envoy")]
    pub(crate) target: Proxy,
    /// Target object, such as Service/default/search; required if policies have several targets
    #[arg(long, value_name = "KIND/NAMESPACE/NAME")]
    pub(crate) workload: Option<TargetRef>,
    /// Number of endpoints behind the proxies; parallelism.perEndpoint applies to each of them
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) endpoints: u32,
    /// Number of proxies that share the slots, such as the replicas of a gateway
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) proxies: u32,
    /// Form in which the proxy loads the filter: wasm, or native, which needs Envoy 1.39 or newer
    #[arg(long, value_name = "KIND", default_value = "wasm")]
    pub(crate) filter: Kind,
    /// Path of the filter module in the proxy's file system
    #[arg(
        long,
        value_name = "PATH",
        default_value = "dist/headgate.wasm",
        env = "HEADGATE_WASM"
    )]
    pub(crate) wasm: PathBuf,
    /// Path of the native filter module in the proxy's file system, for --filter native
    #[arg(
        long,
        value_name = "PATH",
        default_value = "dist/libheadgate.so",
        env = "HEADGATE_NATIVE"
    )]
    pub(crate) native: PathBuf,
    /// Print the configuration of the outbound listener's slot, for the backend's calls to other
    /// services
    #[arg(long)]
    pub(crate) outbound: bool,
    /// Name of the slot in the proxy's configuration [default: headgate, with --outbound
    /// headgate-outbound]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Format of the file; Envoy recognises it by its extension
    #[arg(long, short, value_name = "FORMAT", default_value = "yaml")]
    pub(crate) output: FileFormat,
}

/// Kinds of proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Proxy {
    /// A `DiscoveryResponse` with one `TypedExtensionConfig`.
    Envoy,
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileFormat {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// Renders the policies.
///
/// # Errors
/// Returns an error for a file that can't be read, or if there are several targets and none is
/// chosen.
pub(crate) fn run(args: &RenderArgs) -> anyhow::Result<Output> {
    let workload = args.workload.as_ref();
    let selection = input::select(&args.files, workload, args.endpoints, args.proxies)?;

    let (option, module) = match args.filter {
        Kind::Wasm => ("--wasm", &args.wasm),
        Kind::Native => ("--native", &args.native),
    };
    let module = std::path::absolute(module)
        .with_context(|| format!("{option} {}: not usable as a path", module.display()))?;
    check_kind(args.filter, &module, &module)?;
    let mut notes = match module.exists() {
        true => String::new(),
        false => format!(
            "warning: {option} {}: no such file here; the proxy needs it, or every request fails\n",
            module.display()
        ),
    };
    let Proxy::Envoy = args.target;
    let (slot, config) = match args.outbound {
        false => (DEFAULT_SLOT, Arc::clone(&selection.config)),
        true => (OUTBOUND_SLOT, calls(&selection, &mut notes)),
    };
    let name = args.name.as_deref().unwrap_or(slot);
    let response = discovery_json(&config, name, &module);
    let text = match args.output {
        FileFormat::Json => json(&response)?,
        FileFormat::Yaml => serde_saphyr::to_string(&response)?,
    };
    Ok(Output {
        notes,
        ..Output::ok(text)
    })
}

/// Returns the configuration of the outbound slot. If the policy has none, adds a note and returns
/// the empty configuration.
fn calls(selection: &Selection, notes: &mut String) -> Arc<FilterConfig> {
    if let Some(outbound) = &selection.outbound {
        return Arc::clone(outbound);
    }
    notes.push_str(&format!(
        "warning: no workflows apply to {}; its outbound slot does nothing\n",
        selection.target
    ));
    Arc::new(FilterConfig {
        direction: Direction::Outbound,
        ..FilterConfig::default()
    })
}
