//! `headgate render`: what a proxy gets for a policy, as a file.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::{Output, input};
use crate::plan::TargetRef;
use crate::xds::resource::discovery_json;

/// Prints what a proxy gets for a policy: for a slot in the proxy's configuration that reads a file
/// (`path_config_source`) in place of asking a server.
#[derive(Debug, Clone, Args)]
pub struct RenderArgs {
    /// Policy files, folders with such files, or - for standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    pub files: Vec<PathBuf>,
    /// For which proxy
    #[arg(long, value_name = "PROXY", default_value = "envoy")]
    pub target: Proxy,
    /// For which object, such as Service/default/search; needed where policies have several targets
    #[arg(long, value_name = "KIND/NAMESPACE/NAME")]
    pub workload: Option<TargetRef>,
    /// Where the proxy finds the filter module
    #[arg(
        long,
        value_name = "PATH",
        default_value = "dist/headgate.wasm",
        env = "HEADGATE_WASM"
    )]
    pub wasm: PathBuf,
    /// Name of the slot in the proxy's configuration
    #[arg(long, value_name = "NAME", default_value = "headgate")]
    pub name: String,
    /// How the file looks; Envoy tells by its extension
    #[arg(long, short, value_name = "FORMAT", default_value = "yaml")]
    pub output: FileFormat,
}

/// Proxies that can be rendered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Proxy {
    /// A `DiscoveryResponse` with one `TypedExtensionConfig`.
    Envoy,
}

/// How a file looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileFormat {
    /// YAML.
    Yaml,
    /// JSON.
    Json,
}

/// Renders the policies.
///
/// # Errors
/// A file that can't be read, or several targets to choose from.
pub fn run(args: &RenderArgs) -> anyhow::Result<Output> {
    let selection = match input::select(&args.files, args.workload.as_ref())? {
        Ok(selection) => selection,
        Err(output) => return Ok(output),
    };

    let wasm = std::path::absolute(&args.wasm)
        .with_context(|| format!("--wasm {}: not usable as a path", args.wasm.display()))?;
    let notes = match wasm.exists() {
        true => String::new(),
        false => format!(
            "warning: --wasm {}: no such file here; it must be there for the proxy, or every request fails\n",
            wasm.display()
        ),
    };
    let Proxy::Envoy = args.target;
    let response = discovery_json(&selection.config, &args.name, &wasm);
    let text = match args.output {
        FileFormat::Json => serde_json::to_string_pretty(&response)? + "\n",
        FileFormat::Yaml => serde_saphyr::to_string(&response)?,
    };
    Ok(Output {
        text,
        notes,
        ok: true,
    })
}
