//! `headgate clean-up`: removes the objects that operators wrote, before they are uninstalled.

use std::fmt::Write as _;

use anyhow::anyhow;
use clap::Args;

use headgate_command::cluster::client;
use headgate_command::output::{Output, block_on};
use headgate_controller::kubernetes::client::Access;
use headgate_deliver::clean_up::{clean_up, stop};
use headgate_deliver::cluster::ObjectKey;

/// Deletes the TrafficExtensions, WasmPlugins, EnvoyFilters, EnvoyExtensionPolicies and ConfigMaps
/// that operators have written, so that proxies run without a filter. Policies and the CRD stay.
/// ConfigMaps that Pods mount stay, too, because new Pods of the workload couldn't start without
/// them
#[derive(Debug, Clone, Args)]
pub(crate) struct CleanUpArgs {
    /// Deployment of the operators, in the namespace of the Pod or of the context. It is scaled to
    /// zero first, because running operators would recreate the objects. Objects of operators with
    /// a Lease of another name or namespace stay
    #[arg(long, value_name = "NAME")]
    pub(crate) deployment: Option<String>,
    /// Name of the ConfigMaps with the operators' CA, as in `headgate run --publish-ca`
    #[arg(long, value_name = "NAME")]
    pub(crate) publish_ca: Option<String>,
    /// Namespace of the objects; may be repeated [default: all]
    #[arg(long = "watch-namespace", value_name = "NAME")]
    pub(crate) watch_namespaces: Vec<String>,
    #[command(flatten)]
    pub(crate) access: Access,
}

/// Removes the objects and prints their names.
///
/// # Errors
/// Returns one line: the API server's answer.
pub(crate) fn run(args: &CleanUpArgs) -> anyhow::Result<Output> {
    block_on(remove(args))
}

async fn remove(args: &CleanUpArgs) -> anyhow::Result<Output> {
    let (client, namespace) = client(&args.access).await?;
    let deployment = { args.deployment.as_ref() }.map(|name| ObjectKey::new(namespace, name));
    if let Some(deployment) = &deployment {
        stop(&client, deployment).await.map_err(|e| anyhow!(e))?;
    }
    // The chart's Lease has the name of the Deployment.
    let operator = deployment.as_ref().map(ToString::to_string);
    let ca = args.publish_ca.as_deref();
    let done = clean_up(&client, operator.as_deref(), &args.watch_namespaces, ca).await;
    let done = done.map_err(|e| anyhow!(e))?;
    let (mut text, mut notes) = (String::new(), String::new());
    for (adapter, key) in &done.deleted {
        writeln!(text, "deleted {} {key}", adapter.kind())?;
    }
    for key in &done.mounted {
        writeln!(notes, "warning: ConfigMap {key} stays: a Pod mounts it")?;
    }
    Ok(Output {
        notes,
        ..Output::ok(text)
    })
}
