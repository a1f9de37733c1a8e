//! The connection to the API server, with a limit on how long anything may take.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::requests::CountRequests;
use crate::metrics::Metrics;

/// Time for a connection to the API server.
const CONNECT: Duration = Duration::from_secs(5);
/// Time in which the API server must take a request.
const WRITE: Duration = Duration::from_secs(10);
/// Time without a byte from the API server: longer than it lets a watch last ([`super::watch::WATCH_SECONDS`]),
/// so that only a dead connection reaches it.
const READ: Duration = Duration::from_secs(75);

/// Which API server.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// A kubeconfig file; else `$KUBECONFIG`, `~/.kube/config`, or the Pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; else its current one.
    pub context: Option<String>,
}

/// A client, and the namespace that it is in by default.
///
/// # Errors
/// One line that says what is missing and what to do.
pub async fn connect(access: &Access, metrics: Metrics) -> anyhow::Result<(Client, String)> {
    let mut config = config(access).await?;
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(WRITE);
    config.read_timeout = Some(READ);
    config.reset_reader_on_write = true;
    // Watches and writes retry with a backoff of their own; a retry below them would hide how long a write
    // takes from whoever must not write after its lease ran out.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = ClientBuilder::try_from(config)
        .context("--kubernetes: making a client failed")?
        .with_layer(&CountRequests(metrics))
        .build();
    Ok((client, namespace))
}

async fn config(access: &Access) -> anyhow::Result<Config> {
    let options = KubeConfigOptions {
        context: access.context.clone(),
        ..KubeConfigOptions::default()
    };
    match (&access.kubeconfig, &access.context) {
        (Some(path), _) => {
            let named = || format!("--kubeconfig {}", path.display());
            let file = Kubeconfig::read_from(path).with_context(named)?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .with_context(named)
        }
        (None, Some(context)) => Config::from_kubeconfig(&options)
            .await
            .with_context(|| format!("--context {context}")),
        (None, None) => Config::infer().await.map_err(|error| {
            anyhow!(
                "--kubernetes: {error}; in a Pod, give it a service account; elsewhere, set --kubeconfig or $KUBECONFIG"
            )
        }),
    }
}
